"""Temporaries of PyTorch's own kernels: indexing, sorting, reductions, normalisation, attention, recurrent layers."""

from __future__ import annotations

from math import prod

from whichgpu.trace import Op
from whichgpu.workspaces.records import ITEM_BYTES, Capability, Rule, Temporary, facts, round_up


def _embedding_dense_backward(op: Op, capability: Capability) -> list[Temporary]:
    figures = facts()["embedding_dense_backward"]
    grad, indices = op.inputs[:2]
    count, width = prod(indices.shape), grad.shape[-1]
    scaled = bool(op.attributes.get("scale_grad_by_freq", False))
    if count <= figures["atomic_up_to_indices"] and not scaled:
        return []
    item = ITEM_BYTES[indices.dtype]
    segments = min(count, int(op.attributes["num_weights"]))
    partial = count // figures["rows_per_thread"] + segments
    accumulated = max(4, ITEM_BYTES[grad.dtype]) * partial * round_up(width, 32)
    sorting = [Temporary(count * item, 0)] * (3 if scaled else 2)
    return [*sorting, *[Temporary(segments * item)] * 2, Temporary(partial * item), Temporary(accumulated)]


def _flash_backward(op: Op, capability: Capability) -> list[Temporary]:
    _, query, key, value = op.inputs[:4]
    batch, heads, length, width = query.shape
    rounded = round_up(length, facts()["flash_attention_backward"]["length_multiple"])
    wide = round_up(width, 32 if width <= 128 else 64)
    found = [Temporary(batch * heads * rounded * 4), Temporary(batch * rounded * heads * wide * 4)]
    if key.shape[1] != heads:  # gradients of repeated keys and values, before their sum over the group
        item = ITEM_BYTES[key.dtype]
        found += [Temporary(batch * heads * tensor.shape[2] * width * item) for tensor in (key, value)]
    return found


RULES: dict[str, Rule] = {
    "aten.embedding_dense_backward.default": _embedding_dense_backward,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
}
