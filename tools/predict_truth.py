"""Predictions for the truth set from its packed traces (tests/data/truth), without PyTorch: what tests and tools share."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import truth
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import MEASURED, Estimate, Evidence, Model, kinds_of, widest
from whichgpu.memory import MemoryModel
from whichgpu.scaling import Scaled, scaling
from whichgpu.trace import Trace

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "tests" / "data" / "truth"
DATA = ROOT / "tools" / "truth" / "data"
HOST_WORK = (
    DATA / "host_work.json"
)  # by step and batch size: what traces say of the host since they do (tools/pack_truth.py)


@dataclass(frozen=True)
class Predicted:
    """A step of the truth set with its model and what was measured of it."""

    case: truth.Case
    kind: str  # "fake" or "real-cpu"
    torch: str  # that it was traced with
    kinds: tuple[Evidence, ...]  # all that makes it less sure
    model: Model
    measured: Mapping[int, Mapping[str, Any]]  # by batch size
    largest: Mapping[str, Any] | None

    @property
    def evidence(self) -> Evidence:
        """The kind under which it is counted."""
        return self.kinds[0]

    def estimate(self) -> Estimate:
        """The model with its spread."""
        return Estimate(self.model, widest(self.kinds, MEASURED))

    def out_of_memory(self) -> list[int]:
        """Batch sizes that were seen to run out of memory under the limit."""
        if self.largest is None:
            return []
        return sorted({attempt["batch_size"] for attempt in self.largest["attempts"] if attempt["kind"] == "oom"})

    def edges(self) -> list[int]:
        """Batch sizes that were seen to run under the limit while the next was seen to run out of memory."""
        if self.largest is None:
            return []
        ran = {attempt["batch_size"] for attempt in self.largest["attempts"] if attempt["kind"] == "ok"}
        return [size - 1 for size in self.out_of_memory() if size - 1 in ran]


def lines(name: str) -> list[dict[str, Any]]:
    """The rows of a file of measurements."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def model_of(traces: tuple[Trace, ...]) -> Model:
    """The model that the product would use for all cards: exact where its traces allow, else a line."""
    if len(traces) == 2:  # the others follow from them (see pack_truth)
        scaled = Scaled(*traces)
        return MemoryModel(lambda _: scaled, MEASURED)
    by_size = {trace.batch_size: trace for trace in traces}
    low, high, third = (trace.batch_size for trace in traces[:3])
    found = scaling(by_size.__getitem__, (low, high, third))
    if found.affine:
        return MemoryModel(found.at, MEASURED)
    return LineModel(found.at, MEASURED, (low, high, third), also=by_size)


def load(name: str) -> tuple[Trace, ...] | None:
    """The packed traces of a step; None when there are none."""
    path = PACKED / f"{name}.xz"
    if not path.exists():
        return None
    return msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=tuple[Trace, ...])


def with_host_work(name: str, traces: tuple[Trace, ...]) -> tuple[Trace, ...]:
    """Packed traces with what is known of the host."""
    known = json.loads(HOST_WORK.read_text()).get(name, {})
    return tuple(
        msgspec.structs.replace(one, facts={**one.facts, "host_work": known.get(str(one.batch_size), [])})
        for one in traces
    )


def predicted(only: str | None = None) -> Iterator[Predicted]:
    """Every step of the truth set that has packed traces, in table order."""
    measured: dict[str, dict[int, Any]] = {}
    for row in lines("measured.jsonl"):
        if row["kind_of"] == "measure" and row["kind"] == "ok":
            measured.setdefault(row["name"], {})[row["batch_size"]] = row
    largest = {row["name"]: row for row in lines("max_batch.jsonl")}
    for case in truth.CASES:
        traces = load(case.name) if only in (None, case.name) else None
        if traces is None:
            continue
        model = model_of(traces)
        yield Predicted(
            case=case,
            kind=traces[0].kind,
            torch=traces[0].torch_version,
            kinds=kinds_of(traces[0], line=isinstance(model, LineModel)),
            model=model,
            measured={size: measured[case.name][size] for size in case.batch_sizes},
            largest=largest.get(case.name),
        )
