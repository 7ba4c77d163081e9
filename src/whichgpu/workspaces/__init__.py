"""Workspaces: what an operator takes from the allocator beyond its outputs, and gives back at its end.

A trace holds what the dispatcher sees: inputs and outputs. What happens inside a kernel's host code (scratch
for a library, a float32 accumulator, a sorted copy of the indices) follows from the shapes by the rules here,
one small function an operator family. The figures they use are in data/workspaces.toml, each with its source.

Assumes PyTorch's defaults: no CUBLAS_WORKSPACE_CONFIG, no deterministic algorithms, one stream. An operator
without a rule takes nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from whichgpu.trace import Op
from whichgpu.workspaces import (
    attention,
    convolution,
    indexing,
    kernels,
    normalisation,
    products,
    recurrent,
    reductions,
)
from whichgpu.workspaces.products import CUBLAS, cublas_workspace_bytes
from whichgpu.workspaces.records import Capability, Rule, Temporary, facts

RULES: dict[str, Rule] = {
    **products.RULES,
    **convolution.RULES,
    **reductions.RULES,
    **normalisation.RULES,
    **attention.RULES,
    **recurrent.RULES,
    **indexing.RULES,
    **kernels.RULES,
}

_ANY: Capability = (9, 0)  # where it does not matter


def temporaries(op: Op, capability: Capability, kept: Collection[str] = ()) -> tuple[Temporary, ...]:
    """What `op` allocates beyond its outputs, in order, on a card of this compute capability.

    `kept` names the workspaces that the process holds already; a caller adds the keys of what this returns.
    """
    rule = RULES.get(op.name)
    if rule is None:
        return ()
    return tuple(entry for entry in rule(op, capability) if (entry.bytes or entry.search) and entry.key not in kept)


def temporaries_on_any(op: Op) -> tuple[Temporary, ...] | None:
    """What `op` allocates beyond its outputs where that is the same on all cards; None where the card matters."""
    if op.name not in RULES or not convolution.takes_the_same_on_all(op):
        return None
    return temporaries(op, _ANY)


__all__ = [
    "CUBLAS",
    "RULES",
    "Capability",
    "Temporary",
    "cublas_workspace_bytes",
    "facts",
    "temporaries",
    "temporaries_on_any",
]
