"""What a network chooses, where nobody can know it: routed experts, hard examples, nearest neighbours.

The indices that `topk`, `sort` or `argmax` return depend on numbers that hollow tensors do not have. How many times each
is chosen often decides about memory all the same, so they are taken as spread evenly: every expert gets the same
number of tokens. Steps whose sizes follow from such a choice carry a note that says so.
"""

from __future__ import annotations

from typing import Any

import torch

from whichgpu.capture import known

Tensor = torch.Tensor

NOTE = "where the step's sizes follow from what the network chooses (top-k, argmax), its choices were taken as even"
READ = "the step reads results back from the GPU (.tolist() or the like); numbers between 0 and 1 were assumed"

# operator -> place of the indices among its results (None: the only one) and of the dimension among its arguments
_CHOOSES: dict[str, tuple[int | None, int | None]] = {
    "topk": (1, 2),
    "sort": (1, 1),
    "kthvalue": (1, 2),
    "argsort": (None, 1),
    "argmax": (None, 1),
    "argmin": (None, 1),
    "max": (1, 1),
    "min": (1, 1),
    "multinomial": (None, None),
}


def attach(short: str, arguments: tuple[str, ...], args: Any, kwargs: Any, outputs: list[Tensor]) -> bool:
    """Give the indices among an operator's results contents that are spread evenly; whether there were any."""
    if short not in _CHOOSES or not args or not isinstance(args[0], Tensor):
        return False
    place, dim_at = _CHOOSES[short]
    if place is not None and len(outputs) <= place:  # the whole tensor's maximum
        return False
    indices = outputs[place or 0]
    if indices.dtype != torch.int64 or not known.followed(indices) or not args[0].dim():
        return False
    named = dict(zip(arguments, args, strict=False)) | kwargs
    dim = named.get("dim", -1) if dim_at is not None or "dim" in arguments else -1
    if dim is None:
        return False
    keeps = indices.dim() == args[0].dim()
    value = evenly(indices.shape if keeps else (*indices.shape, 1), dim if keeps else -1, args[0].shape[dim])
    if not keeps:
        value = value.squeeze(-1)
    mark([value])
    known.attach(indices, value)
    return True


def evenly(shape: Any, dim: int, count: int) -> Tensor:
    """Indices below `count`, one after the other along `dim` and on from there in the next row."""
    last = [*shape]
    width = last.pop(dim)
    rows = 1
    for size in last:
        rows *= size
    value = torch.arange(rows * width).remainder_(max(count, 1)) if width < count else _rotations(rows, width)
    return value.view(*last, width).movedim(-1, dim)


def _rotations(rows: int, width: int) -> Tensor:
    return (torch.arange(rows)[:, None] + torch.arange(width)).remainder_(max(width, 1))


def mark(values: list[Tensor]) -> None:
    """Remember that these contents follow from a choice; their views do as well."""
    for value in values:
        value.untyped_storage()._whichgpu_chosen = True


def follow_from(values: list[Tensor]) -> bool:
    """Whether any of these contents follow from a choice."""
    return any(getattr(value.untyped_storage(), "_whichgpu_chosen", False) for value in values)


def numbers_like(tensor: Tensor) -> Tensor:
    """Stands in for floating-point results that the step reads: between 0 and 1, the same ones each time."""
    generator = torch.Generator().manual_seed(tensor.numel())
    return torch.rand(tensor.shape, generator=generator, device="cpu").to(tensor.dtype)
