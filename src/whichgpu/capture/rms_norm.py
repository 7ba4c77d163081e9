"""RMS normalisation as CUDA runs it: one kernel that keeps its input and a number for each row.

Elsewhere PyTorch takes it apart into powers, means and products, which keep the normalised input besides. CUDA does so too for
complex numbers, channels last, and where input and weight are of two types, as under autocast before it cast them
(`rms_norm_symint` of aten/src/ATen/native/layer_norm.cpp, `_fused_rms_norm_cuda` of cuda/layer_norm_kernel.cu).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten
Tensor = torch.Tensor


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """`rms_norm`, which is composite."""
    fused = (
        input.is_cuda
        and not input.is_complex()
        and suggest_memory_format(input) == torch.contiguous_format
        and (weight is None or weight.dtype == input.dtype)
    )
    if fused:
        return aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]
    return in_parts(input, normalized_shape, weight, eps)[0]


def in_parts(input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """`rms_norm_composite`: the result, and the inverse root mean square of each row."""
    wide = input.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else input
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    inverse = torch.rsqrt(wide.pow(2).mean(_axes(normalized_shape), keepdim=True).add_(least))
    result = wide.mul(inverse)
    if weight is not None:
        result = result.mul(weight)
    return result.type_as(input), inverse


def kernel_backward(
    gradient: Tensor, input: Tensor, normalized_shape: Any, inverse: Tensor, weight: Tensor | None, mask: Any
) -> tuple[Tensor | None, Tensor | None]:
    """`_fused_rms_norm_backward` computed."""
    normed, wide = input * inverse, gradient.to(inverse.dtype)
    axes = _axes(normalized_shape)
    inner = wide if weight is None else wide * weight
    to_input = inverse * (inner - normed * (inner * normed).mean(axes, keepdim=True))
    outer = tuple(range(input.dim() - len(axes)))
    to_weight = None if weight is None or not mask[1] else (wide * normed).sum(outer).to(weight.dtype)
    return to_input.to(input.dtype) if mask[0] else None, to_weight


def shapes(input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """What `_fused_rms_norm` returns."""
    rows = [*input.shape[: input.dim() - len(normalized_shape)], *[1] * len(normalized_shape)]
    return (
        torch.empty_like(input, memory_format=torch.contiguous_format),
        input.new_empty(rows, dtype=torch.float64 if input.dtype == torch.float64 else torch.float32),
    )


def _axes(normalized_shape: Any) -> tuple[int, ...]:
    return tuple(range(-len(normalized_shape), 0))
