"""Workspaces: what an operator takes from the allocator beyond its outputs, and gives back at its end.

A trace holds what the dispatcher sees: inputs and outputs. What happens inside a kernel's host code (scratch
for a library, a float32 accumulator, a sorted copy of the indices) follows from the shapes by the rules here,
one small function an operator family. The figures they use are in data/workspaces.toml, each with its source.

Assumes PyTorch's defaults: no CUBLAS_WORKSPACE_CONFIG, no deterministic algorithms, one stream. An operator
without a rule takes nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import msgspec

from whichgpu.trace import Op

Capability = tuple[int, int]
AFTER_LAST = -1
_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Temporary(msgspec.Struct, frozen=True):
    """One allocation inside an operator. Freed when the operator ends, unless it has a key."""

    bytes: int
    before_output: int = AFTER_LAST  # the operator's own allocation before which it is taken, from 0
    key: str = ""  # kept until the process ends, at most one of a key

    @property
    def kept(self) -> bool:
        return self.key != ""


def temporaries(op: Op, capability: Capability, kept: Collection[str] = ()) -> tuple[Temporary, ...]:
    """What `op` allocates beyond its outputs, in order, on a card of this compute capability.

    `kept` names the workspaces that the process holds already; a caller adds the keys of what this returns.
    """
    rule = RULES.get(op.name)
    if rule is None:
        return ()
    return tuple(entry for entry in rule(op, capability) if entry.bytes > 0 and entry.key not in kept)


def facts() -> dict[str, Any]:
    """The measured and published figures behind the rules, as data/workspaces.toml has them."""
    return _facts()


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads(files("whichgpu").joinpath("data/workspaces.toml").read_text("utf-8"))


def cublas_workspace_bytes(capability: Capability) -> int:
    """Size of the workspace that PyTorch gives each cuBLAS handle."""
    cublas = _facts()["cublas"]
    return int(cublas["large_bytes" if capability[0] in cublas["large_majors"] else "default_bytes"])


def _matrix_product(op: Op, capability: Capability) -> list[Temporary]:
    # The autograd engine runs backward in its own thread, which has its own handle.
    thread = "backward" if op.phase == "backward" else "forward"
    return [Temporary(cublas_workspace_bytes(capability), key=f"cublas:{thread}")]


def _embedding_dense_backward(op: Op, capability: Capability) -> list[Temporary]:
    facts = _facts()["embedding_dense_backward"]
    grad, indices = op.inputs[:2]
    count, width = prod(indices.shape), grad.shape[-1]
    scaled = bool(op.attributes.get("scale_grad_by_freq", False))
    if count <= facts["atomic_up_to_indices"] and not scaled:
        return []
    item = _ITEM_BYTES[indices.dtype]
    segments = min(count, int(op.attributes["num_weights"]))
    partial = count // facts["rows_per_thread"] + segments
    accumulated = max(4, _ITEM_BYTES[grad.dtype]) * partial * _round_up(width, 32)
    sorting = [Temporary(count * item, 0)] * (3 if scaled else 2)
    return [*sorting, *[Temporary(segments * item)] * 2, Temporary(partial * item), Temporary(accumulated)]


def _flash_backward(op: Op, capability: Capability) -> list[Temporary]:
    _, query, key, value = op.inputs[:4]
    batch, heads, length, width = query.shape
    rounded = _round_up(length, _facts()["flash_attention_backward"]["length_multiple"])
    wide = _round_up(width, 32 if width <= 128 else 64)
    found = [Temporary(batch * heads * rounded * 4), Temporary(batch * rounded * heads * wide * 4)]
    if key.shape[1] != heads:  # gradients of repeated keys and values, before their sum over the group
        item = _ITEM_BYTES[key.dtype]
        found += [Temporary(batch * heads * tensor.shape[2] * width * item) for tensor in (key, value)]
    return found


def _round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


_PRODUCTS = (
    "mm.default", "addmm.default", "bmm.default", "baddbmm.default", "addbmm.default", "mv.default",
    "addmv.default", "dot.default", "_addmm_activation.default", "addmm_.default", "baddbmm_.default",
    "linear.default", "mm.out", "addmm.out", "bmm.out",
)  # fmt: skip

RULES: dict[str, Callable[[Op, Capability], list[Temporary]]] = {
    **{f"aten.{name}": _matrix_product for name in _PRODUCTS},
    "aten.embedding_dense_backward.default": _embedding_dense_backward,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
}

__all__ = ["RULES", "Capability", "Temporary", "cublas_workspace_bytes", "facts", "temporaries"]
