"""Known values: small tensors whose contents are followed although the tensors themselves are hollow.

Constructors call `.item()` on a linspace, losses index with small label tensors, scalers look at their own
counters. A known value is a real CPU tensor attached to a hollow one; a view's known value is the same view of
its base's, so in-place changes reach all of them. A write of something unknown makes the whole storage unknown.
"""

from __future__ import annotations

from typing import Any

import torch

# Elements; larger tensors are never followed. Token and position numbers are looked at more often than data, and what
# a step makes (anchors, boxes, masks drawn at random) more often than the numbers that a model begins with.
LIMIT_FLOATING = 1 << 20
LIMIT_FLOATING_WEIGHTS = 1 << 16  # made in the set-up, or by a kernel that takes long
LIMIT_OTHER = 1 << 21
LIMIT_UNIFORM = 1 << 25  # one number everywhere: no memory, but still time


def followed(tensor: torch.Tensor, *, weights: bool = False) -> bool:
    """Whether a tensor is small enough for its contents to be followed; `weights`: there may be many like it."""
    if not tensor.dtype.is_floating_point:
        return tensor.numel() <= LIMIT_OTHER
    return tensor.numel() <= (LIMIT_FLOATING_WEIGHTS if weights else LIMIT_FLOATING)


def uniform(tensor: torch.Tensor, number: float) -> None:
    """The tensor holds one number everywhere."""
    if followed(tensor, weights=True):
        tensor._whichgpu_value = torch.full(tensor.shape, number, dtype=tensor.dtype)
    elif tensor.numel() <= LIMIT_UNIFORM:
        tensor._whichgpu_value = torch.tensor(number, dtype=tensor.dtype).expand(tensor.shape)


def shares_one_number(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether one number stands for many elements, so that writing to one of them would write to all."""
    return value.untyped_storage().nbytes() < value.itemsize * min(
        tensor.untyped_storage().nbytes() // tensor.itemsize, 2
    )


def value_of(tensor: torch.Tensor, hollow: bool) -> torch.Tensor | None:
    """The real tensor that holds the contents, or None when they are not known."""
    if not hollow:
        return tensor if followed(tensor) else None
    if getattr(tensor.untyped_storage(), "_whichgpu_unknown", False):
        return None
    return getattr(tensor, "_whichgpu_value", None)


def attach(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Remember the contents of a hollow tensor."""
    if followed(value):
        tensor._whichgpu_value = value


def forget(tensor: torch.Tensor) -> None:
    """Something unknown was written into the tensor's storage."""
    if tensor.layout == torch.strided:
        tensor.untyped_storage()._whichgpu_unknown = True


def substitute(value: Any, lookup: Any) -> Any:
    """The same nested arguments with every tensor replaced by `lookup(tensor)`."""
    if isinstance(value, torch.Tensor):
        return lookup(value)
    if isinstance(value, (list, tuple)):
        return (
            type(value)([substitute(item, lookup) for item in value])
            if isinstance(value, list)
            else tuple(substitute(item, lookup) for item in value)
        )
    return value
