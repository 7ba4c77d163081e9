"""Temporaries of layer, RMS, group and batch normalisation.

Read in PyTorch 2.11 (aten/src/ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu, Normalization.cuh) and
agreeing with the points measured on an H200. cuDNN's batch normalisation of channels-last tensors was measured only:
one tile of partial sums for some rows of 64 channels.
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
    facts,
    multiprocessors,
)
from whichgpu.workspaces.reductions import reduction

_CUDNN_SAMPLES, _CUDNN_NUMBERS = 880801, 2**31 - 1  # up to which PyTorch gives batch normalisation to cuDNN


def _copied_input(op: Op, capability: Capability) -> list[Temporary]:
    return contiguous_copy(op.inputs[0], 0)


def _layer_norm_backward(op: Op, capability: Capability) -> list[Temporary]:
    """Also of RMS normalisation, which has one gradient of a weight where layer normalisation has two."""
    gradient, tensor = op.inputs[:2]
    found = contiguous_copy(gradient, 0) + contiguous_copy(tensor, 0)
    width = prod(op.attributes.get("normalized_shape") or tensor.shape[-1:])
    rows = prod(tensor.shape) // max(width, 1)
    figures = facts()["layer_norm_backward"]
    weights = sum(bool(one) for one in op.attributes.get("output_mask", (True, True, True))[1:])
    if rows <= figures["rows_over"] or width // 32 >= multiprocessors(capability) // 2 or not weights:
        return found
    # Many short rows: each 32 rows are summed by themselves, then the sums.
    dtype = tensor.dtype
    parts = Tensor((-(-rows // figures["rows_per_block"]), width), dtype)
    found += [Temporary(width * ITEM_BYTES[dtype], 1)] * weights + [Temporary(bytes_of(parts), 1)] * weights
    return found + reduction(parts, [0], 4, capability)


def _group_norm(op: Op, capability: Capability) -> list[Temporary]:
    scale = int(op.attributes["N"]) * int(op.attributes["C"]) * 4
    return [Temporary(scale)] * 2


def _group_norm_backward(op: Op, capability: Capability) -> list[Temporary]:
    samples, channels, groups = (int(op.attributes[name]) for name in ("N", "C", "group"))
    return [Temporary(samples * channels * 4)] * 3 + [Temporary(samples * groups * 4)] * 2


def _last(tensor: Tensor) -> bool:
    """Whether channels are the fastest dimension."""
    if len(tensor.shape) < 2 or not tensor.stride:
        return len(tensor.shape) == 2
    return tensor.stride[1] == 1


def _rows_and_channels(tensor: Tensor) -> tuple[int, int]:
    channels = tensor.shape[1]
    return prod(tensor.shape) // max(channels, 1), channels


def _batch_norm(op: Op, capability: Capability) -> list[Temporary]:
    tensor = op.inputs[0]
    if not op.attributes.get("training", True) or not _last(tensor):
        return []
    if _by_cudnn(op, tensor, op.inputs[1:2]):
        return _cudnn_tiles(tensor, "forward")
    return _staging(*_rows_and_channels(tensor), 16)


def _batch_norm_backward(op: Op, capability: Capability) -> list[Temporary]:
    gradient, tensor = op.inputs[:2]
    if not _last(tensor):
        # cuDNN's kernel, which CUDA takes but for bfloat16, wants the gradient in order
        return contiguous_copy(gradient, 0) if gradient.dtype in ("float32", "float16") else []
    channels = tensor.shape[1]
    training = bool(op.attributes.get("train", True))
    if training and _by_cudnn(op, tensor, op.inputs[2:3]):
        lies = _last(gradient) and 0 not in gradient.stride
        return [*([] if lies else [Temporary(bytes_of(gradient), 0)]), *_cudnn_tiles(tensor, "backward")]
    return [Temporary(channels * 4, 0)] * (2 if training else 3)


def _by_cudnn(op: Op, tensor: Tensor, weight: tuple[Tensor, ...]) -> bool:
    """Whether CUDA takes cuDNN when training (`use_cudnn` in aten/src/ATen/native/Normalization.cpp). A step is traced on
    the CPU, where one kernel does all.
    """
    if not weight or op.attributes.get("weight", weight) is None or len(tensor.shape) < 3:
        return False
    few = tensor.shape[0] <= _CUDNN_SAMPLES and prod(tensor.shape) < _CUDNN_NUMBERS
    return few and tensor.dtype in ("float32", "float16") and weight[0].dtype == "float32"


def _staging(rows: int, channels: int, bytes_per_channel: int) -> list[Temporary]:
    """Partial sums of several blocks and their semaphores (`flexible_launch_configs`)."""

    def power(value: int) -> int:
        return 1 << (max(value, 1).bit_length() - 1)

    block_x = min(power(channels), 32)
    block_y = min(power(-(-rows // 16)), 512 // block_x)
    if block_x * block_y != 512:
        block_x = min(power(channels), 512 // block_y)
    blocks = min(-(-rows // (block_y * 16)), 128)
    if blocks < 8:
        return []
    return [Temporary(bytes_per_channel * channels * blocks), Temporary(4 * -(-channels // block_x))]


def _cudnn_batch_norm(op: Op, capability: Capability) -> list[Temporary]:
    return _cudnn_tiles(op.inputs[0], "forward") if op.attributes.get("training", True) else []


def _cudnn_batch_norm_backward(op: Op, capability: Capability) -> list[Temporary]:
    return _cudnn_tiles(op.inputs[0], "backward")


def _cudnn_tiles(tensor: Tensor, direction: str) -> list[Temporary]:
    if not _last(tensor) or len(tensor.shape) == 2:
        return []
    figures = facts()["cudnn_batch_norm"][direction]
    rows, channels = _rows_and_channels(tensor)
    wide = -(-channels // 64)
    tile = int(figures["tile_rows"]["half" if ITEM_BYTES[tensor.dtype] <= 2 else "float"])
    return [Temporary(-(-rows // tile) * wide * figures["tile_bytes"] + 4 * wide + figures["fixed_bytes"])]


RULES: dict[str, Rule] = {
    "aten.native_layer_norm.default": _copied_input,
    "aten._fused_rms_norm.default": _copied_input,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten._fused_rms_norm_backward.default": _layer_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
    "aten.native_batch_norm.default": _batch_norm,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.cudnn_batch_norm.default": _cudnn_batch_norm,
    "aten.cudnn_batch_norm_backward.default": _cudnn_batch_norm_backward,
}
