"""What an operator's result looks like, worked out on shapes alone, and tensors made from that.

An `Outcome` is kept by the shapes of the arguments (`key_of`): the same call comes again in each step and layer.
"""

from __future__ import annotations

from typing import Any

import torch

from whichgpu.capture import hollow
from whichgpu.capture.refusals import check_layout
from whichgpu.errors import DataDependentError

Tensor = torch.Tensor


class Outcome:
    """Result of one operator on one set of argument shapes: what comes out, attributes, FLOPs. Cached."""

    __slots__ = ("attributes", "flops", "inputs", "out")

    def __init__(self, out: Any, inputs: Any, attributes: Any) -> None:
        self.out = out
        self.inputs = inputs
        self.attributes = attributes
        self.flops: int | None = None


def collect(values: Any, into: list[Tensor]) -> None:
    """Append every tensor among the values, nested ones too."""
    for value in values:
        if isinstance(value, Tensor):
            into.append(value)
        elif isinstance(value, (list, tuple)):
            collect(value, into)


def key_of(values: Any, key: list[Any]) -> None:
    """Append what tells calls of an operator apart: shapes, strides and types of tensors, and plain values."""
    if isinstance(values, dict):
        for name, value in values.items():
            key.append(name)
            key_of((value,), key)
        return
    for value in values:
        if isinstance(value, Tensor):
            key.append((value.shape, value.stride(), value.dtype) if value.layout == torch.strided else object())
        elif isinstance(value, (list, tuple)):
            key.append(len(value))
            key_of(value, key)
        else:
            key.append((type(value), value))


def meta_of(tensor: Tensor) -> Tensor:
    """A tensor like it that is nothing but a shape."""
    check_layout(tensor)
    if tensor.layout != torch.strided:
        raise DataDependentError(f"a tensor of layout {tensor.layout}")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor has no more room than elements."""
    return hollow.storage_bytes(tuple(tensor.shape), tensor.stride(), 1) <= max(tensor.numel(), 1)


def recipe(out: Any, places: dict[int, int], bases: dict[int, int], fresh: dict[int, int] | None = None) -> Any:
    """A recipe for the result: ("alias", n), ("view", n, ...), ("new", ...) or a plain value.

    New tensors that share a storage carry the same number, so that they share one again when made.
    """
    fresh = {} if fresh is None else fresh
    if isinstance(out, Tensor):
        if id(out) in places:
            return ("alias", places[id(out)])
        check_layout(out)
        if out.layout != torch.strided:
            raise DataDependentError(f"a result of layout {out.layout}")
        if not out.is_meta:  # belongs to the host
            return ("value", out)
        storage = out.untyped_storage()
        base = bases.get(storage._cdata)
        if base is not None:
            return ("view", base, tuple(out.shape), out.stride(), out.storage_offset())
        number = fresh.setdefault(storage._cdata, len(fresh))
        return ("new", number, tuple(out.shape), out.stride(), out.dtype, storage.nbytes(), out.storage_offset())
    if isinstance(out, (list, tuple)):
        kind = type(out) if type(out) in (list, tuple) else tuple
        return (kind, [recipe(item, places, bases, fresh) for item in out])
    return ("value", out)


def zeros(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, at_least_bytes: int) -> Tensor:
    """A real tensor of zeros, whose storage may be larger than it needs."""
    size = max(hollow.storage_bytes(shape, stride, dtype.itemsize), at_least_bytes)
    return torch.empty(0, dtype=dtype).set_(torch.zeros(size, dtype=torch.uint8).untyped_storage(), 0, shape, stride)


def materialise(
    spec: Any, tensors: list[Tensor], make: Any = hollow.empty, made: dict[int, Tensor] | None = None
) -> Any:
    """The result that a recipe describes, with new tensors made by `make`."""
    made = {} if made is None else made
    kind = spec[0]
    if kind == "new":
        _, number, shape, stride, dtype, size, offset = spec
        if number not in made:
            first = made[number] = make(shape, stride, dtype, size)
            return first if not offset else first.as_strided(shape, stride, offset)
        return torch.empty(0, dtype=dtype).set_(made[number].untyped_storage(), offset, shape, stride)
    if kind == "alias":
        return tensors[spec[1]]
    if kind == "view":
        return torch.as_strided(tensors[spec[1]], spec[2], spec[3], spec[4])
    if kind == "value":
        return spec[1]
    return kind(materialise(item, tensors, make, made) for item in spec[1])


def describe(tensor: Tensor) -> tuple[Any, ...]:
    """Shape, dtype and strides (none where contiguous) for the record."""
    dtype = str(tensor.dtype)[6:]
    if tensor.layout != torch.strided:
        return (tuple(tensor.shape), dtype, ())
    return (tuple(tensor.shape), dtype, () if tensor.is_contiguous() else tensor.stride())
