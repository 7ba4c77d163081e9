"""Temporaries of scaled dot product attention: accumulators in float32 and the row sums of the backward pass.

Read in PyTorch 2.11 (aten/src/ATen/native/transformers/cuda, the CUTLASS kernels' `workspace_size`, flash attention's
`mha_bwd` and `num_splits_heuristic`) and agreeing with the points measured on an H200. cuDNN's and the CUTLASS
kernels' figures hold for compute capability 8.0 and later.
"""

from __future__ import annotations

from math import prod

from whichgpu.trace import Op
from whichgpu.workspaces.records import (
    ITEM_BYTES,
    Capability,
    Rule,
    Temporary,
    bytes_of,
    facts,
    multiprocessors,
    round_up,
)


def _flash_forward(op: Op, capability: Capability) -> list[Temporary]:
    query, key = op.inputs[:2]
    if op.attributes.get("dropout_p"):
        return []
    batch, heads, length, width = query.shape
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    rows = batch * heads * -(-length // 64)
    splits = _splits(rows, 2 * multiprocessors(capability), -(-key.shape[2] // block))
    if splits == 1:
        return []
    parts = splits * batch * heads * length
    return [Temporary(parts * 4), Temporary(parts * round_up(width, 32 if width <= 128 else 64) * 4)]


def _splits(rows: int, slots: int, blocks: int) -> int:
    """Into how many parts flash attention splits the keys of few queries (`num_splits_heuristic`)."""
    if rows >= 0.8 * slots:
        return 1
    waves = [rows * parts / slots for parts in range(1, min(128, slots, blocks) + 1)]
    efficiency = [
        wave / -(-wave // 1) if parts == 1 or -(-blocks // parts) != -(-blocks // (parts - 1)) else 0.0
        for parts, wave in enumerate(waves, 1)
    ]
    return next(parts for parts, one in enumerate(efficiency, 1) if one and one >= 0.85 * max(efficiency))


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


def _efficient_forward(op: Op, capability: Capability) -> list[Temporary]:
    query, _, value = op.inputs[:3]
    if ITEM_BYTES[query.dtype] > 2 or value.shape[-1] <= 128:
        return []
    return [Temporary(prod(query.shape[:3]) * value.shape[-1] * 4)]  # the output, accumulated in float32


def _efficient_backward(op: Op, capability: Capability) -> list[Temporary]:
    grad, query, key = op.inputs[:3]
    batch, heads, length, width = query.shape
    row_sums = batch * heads * length * 4
    workspace = 4 * batch * heads * efficient_workspace_items(query.dtype, length, key.shape[2], width)
    if ITEM_BYTES[query.dtype] > 2:  # the product of gradient and output, summed over rows and then laid out anew
        workspace = max(workspace, bytes_of(grad) + round_up(row_sums, 512))
    return [Temporary(row_sums), Temporary(workspace)]


def efficient_workspace_items(dtype: str, length: int, keys: int, width: int) -> int:
    """Float32 numbers that the CUTLASS backward kernel needs for each head of each sample.

    A tile of the query's gradient with its lock and counter for every block, and beyond 128 columns of the 16-bit
    types the gradients of keys and values. Of 121 measured points 117 agree; with 192 columns of a 16-bit type it
    takes less than this, by half at most.
    """
    half = ITEM_BYTES[dtype] <= 2
    if width <= 64:
        rows, columns = 64, 64
    else:
        rows, columns = 128, 128 if half and width <= 128 else 64
    tiles = -(-length // rows) * -(-width // columns)
    items = tiles * (rows * columns + 4)
    if half and width > 128:
        items += 2 * round_up(keys, 128) * round_up(width, 128)
    return items


def _cudnn_forward(op: Op, capability: Capability) -> list[Temporary]:
    return [Temporary(256)]


def _cudnn_backward(op: Op, capability: Capability) -> list[Temporary]:
    query, key, value = op.inputs[1:4]
    batch, heads, length, width = query.shape
    size = batch * heads * length * (width + 1) * 4 + 256  # query's gradient and row sums
    if key.shape[1] != heads:  # gradients of repeated keys and values, before their sum over the group
        size += sum(batch * heads * prod(one.shape[2:]) * ITEM_BYTES[one.dtype] for one in (key, value))
    return [Temporary(size)]


RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_flash_attention.default": _flash_forward,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten._scaled_dot_product_efficient_attention.default": _efficient_forward,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten._scaled_dot_product_cudnn_attention.default": _cudnn_forward,
    "aten._scaled_dot_product_cudnn_attention_backward.default": _cudnn_backward,
}
