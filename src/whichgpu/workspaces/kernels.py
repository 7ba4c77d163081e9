"""Temporaries of PyTorch's other kernels: softmax, losses, pooling, resizing, rolling, norms of lists.

Most are a copy of an argument that is not contiguous, or a result before its mean. Each was measured on an H200.
"""

from __future__ import annotations

from math import prod

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces.records import (
    ITEM_BYTES,
    Capability,
    Rule,
    Temporary,
    bytes_of,
    contiguous_copy,
    contiguous_strides,
    facts,
)
from whichgpu.workspaces.reductions import reduction


def _softmax(op: Op, capability: Capability) -> list[Temporary]:
    return contiguous_copy(op.inputs[0])


def _log_softmax_backward(op: Op, capability: Capability) -> list[Temporary]:
    return [one for tensor in op.inputs[:2] for one in contiguous_copy(tensor)]


def _softmax_backward(op: Op, capability: Capability) -> list[Temporary]:
    """The kernel gets the product of gradient and result."""
    gradient, result = op.inputs[:2]
    wide = gradient if ITEM_BYTES[gradient.dtype] >= ITEM_BYTES[result.dtype] else result
    return [*_log_softmax_backward(op, capability), Temporary(bytes_of(wide))]


def _safe_softmax(op: Op, capability: Capability) -> list[Temporary]:
    """A mask of minus infinity, and which rows are all of it."""
    tensor = op.inputs[0]
    rows = prod(tensor.shape) // max(tensor.shape[int(op.attributes.get("dim", -1))], 1) if tensor.shape else 1
    return [*contiguous_copy(tensor), Temporary(bytes_of(tensor, "bool")), Temporary(rows)]


def _log_sum_exp(op: Op, capability: Capability) -> list[Temporary]:
    return [Temporary(bytes_of(op.inputs[0]), 0)]


def _euclidean_distance(op: Op, capability: Capability) -> list[Temporary]:
    """Both sets of points with their norms and ones beside them, for one matrix product."""
    return [Temporary(bytes_of(one) // max(one.shape[-1], 1) * (one.shape[-1] + 2), 0) for one in op.inputs[:2]]


def _reduced(op: Op) -> bool:
    return bool(op.attributes.get("reduction", 1) != 0)


def _loss_in_place(op: Op, capability: Capability) -> list[Temporary]:
    """The loss of each element once more than the result, whose memory has that size too and keeps it."""
    tensor = op.inputs[0]
    if not _reduced(op):
        return []
    return [Temporary(bytes_of(tensor)), *reduction(tensor, None, 4, capability)]


def _loss_with_logits(op: Op, capability: Capability) -> list[Temporary]:
    tensor = op.inputs[0]
    return [Temporary(bytes_of(tensor), 0)] * (2 if _reduced(op) else 1)


def _loss_before(op: Op, capability: Capability) -> list[Temporary]:
    return [Temporary(bytes_of(op.inputs[0]), 0)] if _reduced(op) else []


def _soft_margin_backward(op: Op, capability: Capability) -> list[Temporary]:
    return [Temporary(bytes_of(op.inputs[1]), 0)] * 2


def is_channels_last(tensor: Tensor) -> bool:
    """Whether a tensor of images is contiguous with its channels fastest."""
    if len(tensor.shape) not in (4, 5) or not tensor.stride:
        return False
    samples, channels, *space = tensor.shape
    strides = contiguous_strides((samples, *space, channels))
    return tensor.stride == (strides[0], strides[-1], *strides[1:-1])


def _pool_backward(op: Op, capability: Capability) -> list[Temporary]:
    """The gradient in the input's layout."""
    gradient, tensor = op.inputs[:2]
    if is_channels_last(tensor):
        return [] if is_channels_last(gradient) else [Temporary(bytes_of(gradient))]
    return contiguous_copy(gradient)


def _adaptive_pool_copies(op: Op, capability: Capability) -> list[Temporary]:
    return [one for tensor in op.inputs if len(tensor.shape) == 4 for one in contiguous_copy(tensor)]


def _resize_backward(op: Op, capability: Capability) -> list[Temporary]:
    gradient = op.inputs[0]
    if is_channels_last(gradient) and gradient.shape[1] >= 4:
        return []
    return contiguous_copy(gradient)


def _copied(op: Op, capability: Capability) -> list[Temporary]:
    return contiguous_copy(op.inputs[0])


def _smooth_resize(op: Op, capability: Capability) -> list[Temporary]:
    """Input and result laid out anew, where channels come last."""
    made = [Temporary(bytes_of(one)) for one in op.outputs[:1] if op.inputs[0].stride]
    return contiguous_copy(op.inputs[0]) + made


def _roll(op: Op, capability: Capability) -> list[Temporary]:
    """One dimension after the other, each into a new tensor."""
    tensor = op.inputs[0]
    several = len(op.attributes.get("dims") or ()) > 1
    return [Temporary(bytes_of(tensor), 0)] if several or tensor.stride else []


def _foreach_norm(op: Op, capability: Capability) -> list[Temporary]:
    if not op.inputs:
        return []
    chunk = int(facts()["multi_tensor_apply"]["chunk_items"])
    most = max(-(-prod(tensor.shape) // chunk) for tensor in op.inputs)
    return [Temporary(len(op.inputs) * most * 4, 0)]


RULES: dict[str, Rule] = {
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _log_softmax_backward,
    "aten._safe_softmax.default": _safe_softmax,
    "aten.logsumexp.default": _log_sum_exp,
    "aten._euclidean_dist.default": _euclidean_distance,
    "aten.mse_loss.default": _loss_in_place,
    "aten.smooth_l1_loss.default": _loss_in_place,
    "aten.binary_cross_entropy_with_logits.default": _loss_with_logits,
    "aten.huber_loss.default": _loss_before,
    "aten.soft_margin_loss_backward.default": _soft_margin_backward,
    "aten.avg_pool2d_backward.default": _pool_backward,
    "aten.max_pool2d_with_indices_backward.default": _pool_backward,
    "aten.adaptive_max_pool2d.default": _adaptive_pool_copies,
    "aten.upsample_bilinear2d_backward.default": _resize_backward,
    "aten.upsample_nearest2d_backward.default": _resize_backward,
    "aten.upsample_bicubic2d_backward.default": _copied,
    "aten._upsample_bilinear2d_aa.default": _smooth_resize,
    "aten._upsample_bilinear2d_aa_backward.default": _copied,
    "aten.reflection_pad2d.default": _copied,
    "aten.roll.default": _roll,
    "aten._foreach_norm.Scalar": _foreach_norm,
}
