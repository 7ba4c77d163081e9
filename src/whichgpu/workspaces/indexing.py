"""Temporaries of indexing and sorting: sorted copies of indices, and sums by row in float32.

Read in PyTorch 2.11 (aten/src/ATen/native/cuda: EmbeddingBackwardKernel.cu, Embedding.cu, Indexing.cu, Sort.cpp) and
compared with points measured on an H200. How many values a mask picks is taken from the operator's outputs.

Deterministic algorithms, for which scatter_add and index_add sort too, are not covered.
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
    contiguous_copy,
    facts,
    multiprocessors,
    round_up,
)


def sort_bytes(count: int, key_bytes: int, value_bytes: int) -> int:
    """What CUB's radix sort of pairs takes for itself."""
    figures = facts()["cub_radix_sort"]
    if count <= figures["one_tile_items"]:
        return 512
    return int(count * (key_bytes + value_bytes + figures["bytes_per_item"])) + int(figures["fixed_bytes"])


def _embedding_dense_backward(op: Op, capability: Capability) -> list[Temporary]:
    figures = facts()["embedding_dense_backward"]
    grad, indices = op.inputs[:2]
    count = prod(indices.shape)
    found = contiguous_copy(grad, 0) + contiguous_copy(indices, 0)
    scaled = bool(op.attributes.get("scale_grad_by_freq", False))
    if count <= figures["atomic_up_to_indices"] and not scaled:
        return found
    item = ITEM_BYTES[indices.dtype]
    sorting = [Temporary(count * item, 0)] * (3 if scaled else 2)
    return found + sorting + _sum_by_row(op, count, item, capability, fused=True)


def _sum_by_row(op: Op, count: int, item: int, capability: Capability, *, fused: bool) -> list[Temporary]:
    """Rows of the same index are summed in parts, then the parts (`embedding_backward_cuda_kernel`)."""
    figures = facts()["embedding_dense_backward"]
    grad = op.inputs[0]
    width, rows = grad.shape[-1], int(op.attributes["num_weights"])
    segments = min(count, rows)
    parts = count // figures["rows_per_thread"] + segments
    found = [Temporary(count * item)] + [Temporary(segments * item)] * 2 + [Temporary(parts * item)]
    warped = round_up(width, 32)
    grid = -(-segments * warped // min(warped, 1024))
    slots = multiprocessors(capability) * int(figures["fused_blocks_per_multiprocessor"])
    accumulator = max(4, ITEM_BYTES[grad.dtype])
    if not (fused and grid < slots and parts > 4 * grid):
        return [*found, Temporary(accumulator * parts * width)]
    found.append(Temporary(parts * item))
    if ITEM_BYTES[grad.dtype] <= 2:
        found.append(Temporary(accumulator * rows * width))
    return found


def _embedding_bag_backward(op: Op, capability: Capability) -> list[Temporary]:
    if op.attributes.get("sparse") or op.attributes.get("mode") == 2:
        return []
    indices = op.inputs[1]
    count, item = prod(indices.shape), ITEM_BYTES[indices.dtype]
    return [Temporary(count * item, 0)] * 2 + _sum_by_row(op, count, item, capability, fused=False)


def _index_put(op: Op, capability: Capability) -> list[Temporary]:
    if not op.attributes.get("accumulate") or len(op.inputs) < 3:
        return []
    positions = max((prod(tensor.shape) for tensor in op.inputs[1:-1]), default=0)
    if any(tensor.dtype in ("bool", "uint8") for tensor in op.inputs[1:-1]):
        positions = 0 if not op.inputs[-1].shape else op.inputs[-1].shape[0]
    found = [Temporary(positions * 8)] * 4 + [Temporary(sort_bytes(positions, 8, 8))]
    return contiguous_copy(op.inputs[-1]) + found


def _index(op: Op, capability: Capability) -> list[Temporary]:
    """A mask is turned into its positions first."""
    masks = [tensor for tensor in op.inputs[1:] if tensor.dtype in ("bool", "uint8")]
    if len(masks) != 1 or not op.outputs or not op.outputs[0].shape:
        return []
    picked = prod(op.outputs[0].shape) // max(prod(op.inputs[0].shape[len(masks[0].shape) :]), 1)
    return [Temporary(picked * 8 * len(masks[0].shape), 0)]


def _masked_select(op: Op, capability: Capability) -> list[Temporary]:
    if not op.outputs:
        return []
    return [Temporary(prod(op.outputs[0].shape) * 8 * len(op.inputs[0].shape), 0)]


def _masked_scatter(op: Op, capability: Capability) -> list[Temporary]:
    return [Temporary(prod(op.inputs[0].shape) * 8)]


def _sort(op: Op, capability: Capability) -> list[Temporary]:
    tensor = op.inputs[0]
    if not tensor.shape:
        return []
    length = tensor.shape[int(op.attributes.get("dim", -1))]
    count, item = prod(tensor.shape), ITEM_BYTES[tensor.dtype]
    if length <= facts()["sort"]["small_up_to"]:
        return [Temporary(length * 8)]
    own = [Temporary(count * 8), Temporary(sort_bytes(count, item, 8))]
    return own if length == count else [*own, Temporary(count * 8), Temporary(count * item)]


def _unique(op: Op, capability: Capability) -> list[Temporary]:
    count, item = prod(op.inputs[0].shape), ITEM_BYTES[op.inputs[0].dtype]
    inverse = 8 if op.attributes.get("return_inverse") or op.attributes.get("return_counts") else 0
    taken = count * (item + 2 * inverse) + sort_bytes(count, item, inverse)
    # Given back before the results are allocated: only what is above them counts.
    return [Temporary(max(taken - sum(bytes_of(one) for one in op.outputs), 0), 0)]


# TensorTopK.cu, `should_use_multiblock`: for so many rows and more, rows of this length go to several blocks.
_SHORTEST_ROWS = ((4001, 400), (800, 800), (200, 3000), (80, 5000), (40, 8000), (20, 10000), (0, 20000))
_TOPK_THREADS, _TOPK_DIGITS, _TOPK_BLOCKS = 256, 256, 6  # of a block, of a radix, on a multiprocessor


def _topk(op: Op, capability: Capability) -> list[Temporary]:
    """A copy in order and, where rows are long enough, counts of digits by block and by row (`mbtopk`)."""
    tensor = op.inputs[0]
    copied = contiguous_copy(tensor)
    length = tensor.shape[int(op.attributes.get("dim", -1))] if tensor.shape else 1
    rows = prod(tensor.shape) // max(length, 1)
    if length < next(shortest for least, shortest in _SHORTEST_ROWS if rows >= least):
        return copied
    each = -(-prod(tensor.shape) // (multiprocessors(capability) * _TOPK_BLOCKS * _TOPK_THREADS))
    blocks = rows * -(-length // (min(max(each, 4), 64) * _TOPK_THREADS))
    small = [rows * ITEM_BYTES[tensor.dtype], rows * 4, rows * 4, rows * 4]
    counts = [blocks * _TOPK_DIGITS * 2, rows * _TOPK_DIGITS * 4, blocks * 4, blocks * 4]
    return copied + [Temporary(size) for size in (*small, *counts)]


def _randperm(op: Op, capability: Capability) -> list[Temporary]:
    count = int(op.attributes.get("n", 0))
    keys = count * (8 if count >= 1 << 15 else 4)
    return [Temporary(count * 8), Temporary(keys), Temporary(keys), Temporary(sort_bytes(count, 8, 8))]


def _cumulative(op: Op, capability: Capability) -> list[Temporary]:
    tensor = op.inputs[0]
    if op.outputs and op.outputs[0].dtype != tensor.dtype:
        return [Temporary(bytes_of(tensor, op.outputs[0].dtype))]
    return []


RULES: dict[str, Rule] = {
    "aten.embedding_dense_backward.default": _embedding_dense_backward,
    "aten._embedding_bag_backward.default": _embedding_bag_backward,
    "aten._embedding_bag_dense_backward.default": _embedding_bag_backward,
    "aten.index_put.default": _index_put,
    "aten.index_put_.default": _index_put,
    "aten._index_put_impl_.default": _index_put,
    "aten.index.Tensor": _index,
    "aten.masked_select.default": _masked_select,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
    "aten.argsort.default": _sort,
    "aten._unique2.default": _unique,
    "aten.topk.default": _topk,
    "aten.randperm.default": _randperm,
    "aten.cumsum.default": _cumulative,
    "aten.cumprod.default": _cumulative,
}
