"""What the zoo holds: each ready workload with its size, its arithmetic and its settings, without importing it.

The figures come from data/zoo.json, which tools/count_zoo.py writes from the models themselves; names, descriptions
and sets from the table of the zoo.

FLOPs are those of one training step, for each sample: of matrix products, convolutions and attention, forward and
backward, a multiplication and an addition being two; attention in full where it is causal too; what checkpointing
computes again is counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from whichgpu.sets import find
from whichgpu.workload import WorkloadRef
from whichgpu.zoo import ENTRIES

Family = Literal["image", "language"]
_FAMILIES: tuple[tuple[Family, str], ...] = (("image", "vision"), ("language", "language"))  # with their sets


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tools/count_zoo.py counts of a workload."""

    parameters: int  # of everything that the step holds, frozen networks too
    trained_parameters: int
    unit: str  # of speeds
    items_per_sample: int
    batch_size: int  # unless another is asked for
    flops_per_sample: int
    settings: dict[str, str]  # its own, as options
    counted: str  # with which torch, and when
    # what tracing it for every card took, the first time, on a machine with two cores
    trace_seconds: float | None = None


class ZooEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A ready workload; figures are null where they have not been counted."""

    name: str
    description: str
    sets: tuple[str, ...]
    parameters: int | None = None
    trained_parameters: int | None = None
    unit: str | None = None
    items_per_sample: int | None = None
    batch_size: int | None = None
    flops_per_sample: int | None = None
    settings: dict[str, str] = {}
    counted: str | None = None
    trace_seconds: float | None = None


@cache
def facts() -> dict[str, Facts]:
    """The counted figures by name."""
    return msgspec.json.decode((files("whichgpu") / "data" / "zoo.json").read_bytes(), type=dict[str, Facts])


def known_dtypes(ref: WorkloadRef) -> tuple[str, ...]:
    """What a workload is known to compute in before it is traced: the precision that it names, or that a ready one has."""
    own = facts().get(ref.target) if ref.scheme == "zoo" else None
    precision = ref.options.get("precision", own.settings.get("precision") if own is not None else None)
    return (precision,) if precision is not None and ref.scheme not in ("file", "module") else ()


def family(name: str) -> Family | None:
    """Whether a workload, with whatever options, trains an image or a language model; None for both, neither, or where unknown.

    Ready workloads are in a set of either kind; what timm and torchvision have are image models.
    """
    if name.startswith(("timm:", "torchvision:")):
        return "image"
    entry = ENTRIES.get(name.partition("?")[0])
    found = [of for of, kind in _FAMILIES if entry is not None and kind in entry.sets]
    return found[0] if len(found) == 1 else None


def entries(sets: Sequence[str] = ()) -> tuple[ZooEntry, ...]:
    """The ready workloads, or those of the sets that are in the zoo; InputError for an unknown set."""
    chosen = {name.partition("?")[0] for given in sets for name in find(given).workloads} if sets else set(ENTRIES)
    return tuple(_entry(name) for name in ENTRIES if name in chosen)


def _entry(name: str) -> ZooEntry:
    row = ENTRIES[name]
    known = facts().get(name)
    counted = msgspec.structs.asdict(known) if known is not None else {}
    return ZooEntry(name=name, description=row.description, sets=row.sets, **counted)
