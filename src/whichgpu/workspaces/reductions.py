"""Scratch of reductions (sum, mean, norm, max, any, variance): partial results that several blocks share.

Follows PyTorch's aten/src/ATen/native/cuda/Reduce.cuh (`setReduceConfig`, `global_memory_size`, `semaphore_size`) and TensorIterator's
order of dimensions, read at release 2.11; every point measured on an H200 agrees to the byte. Where few outputs take
many inputs each, blocks split an output among them and leave partial results in memory: up to a copy of the input's
size where threads lie along the outputs. The last block to finish adds them up; which one that is, is counted in semaphores.
These are small, but where memory is short one more small segment decides when the cache is given back.

Depends on the number of multiprocessors, of which data/workspaces.toml has one for each compute capability.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces.records import (
    ITEM_BYTES,
    Capability,
    Rule,
    Temporary,
    contiguous_strides,
    multiprocessors,
    resident_threads,
)

_MAX_THREADS = 512
_MIN_VALUES, _MAX_VALUES = 16, 256  # values per thread
_MAX_OFFSET = 2**31 - 1
_WELFORD_BYTES = 16  # mean, squares, count as int and as float
_PAIR_BYTES = 16  # a value and its index
_SEMAPHORE_BYTES = 4  # for each block along the outputs


class Dimension(NamedTuple):
    """A dimension of the iteration, fastest first."""

    size: int
    stride: int  # of the input, in items
    result_stride: int  # 0 where it is reduced


def reduction(tensor: Tensor, dims: Any, accumulator_bytes: int, capability: Capability) -> list[Temporary]:
    """Partial results and semaphores of a reduction of `tensor` over `dims` (None or empty: over all)."""
    count = len(tensor.shape)
    listed = [dims] if isinstance(dims, int) else list(dims or ())
    reduced = {dim % count for dim in listed} if listed and count else set(range(count))
    if prod(tensor.shape) == 0:
        return []
    item = ITEM_BYTES[tensor.dtype]
    sizes = _scratch(_halved(_iteration(tensor, reduced), item), accumulator_bytes, capability)
    return [Temporary(size) for size in sizes]


def buffer_bytes(tensor: Tensor, dims: Any, capability: Capability) -> int:
    """Bytes of the partial results of a sum of `tensor` over `dims`; 0 where every output has a block of its own."""
    found = reduction(tensor, dims, accumulator_bytes(tensor.dtype), capability)
    return found[0].bytes if found else 0


def _iteration(tensor: Tensor, reduced: set[int]) -> list[Dimension]:
    """Reduced dimensions first, then by stride, adjacent ones merged where they are one run."""
    strides = tensor.stride or contiguous_strides(tensor.shape)
    kept = [1 if place in reduced else size for place, size in enumerate(tensor.shape)]
    result = [0 if place in reduced else stride for place, stride in enumerate(contiguous_strides(kept))]
    dims = [Dimension(*row) for row in zip(tensor.shape, strides, result, strict=True)][::-1]
    dims.sort(key=lambda dim: (dim.result_stride != 0, dim.result_stride or dim.stride))
    merged: list[Dimension] = []
    for dim in dims:
        if not merged or not (merged[-1].size == 1 or dim.size == 1 or _adjacent(merged[-1], dim)):
            merged.append(dim)
        elif merged[-1].size == 1:
            merged[-1] = dim
        else:
            merged[-1] = merged[-1]._replace(size=merged[-1].size * dim.size)
    return merged


def _adjacent(first: Dimension, second: Dimension) -> bool:
    return first.size * first.stride == second.stride and first.size * first.result_stride == second.result_stride


def _halved(dims: list[Dimension], item: int) -> list[Dimension]:
    """The first part of an iteration that is split until 32-bit offsets reach all of it."""
    while sum((dim.size - 1) * dim.stride for dim in dims) * item >= _MAX_OFFSET:
        place = max(range(len(dims)), key=lambda one: (dims[one].size - 1) * dims[one].stride)
        if dims[place].size <= 1:
            break
        dims[place] = dims[place]._replace(size=dims[place].size // 2)
    return dims


def _scratch(dims: list[Dimension], accumulator_bytes: int, capability: Capability) -> tuple[int, ...]:
    """Bytes of partial results and semaphores; nothing where every output has a block of its own."""
    reduced = [dim for dim in dims if dim.result_stride == 0]
    kept = [dim for dim in dims if dim.result_stride != 0]
    inputs, outputs = prod(dim.size for dim in reduced), prod(dim.size for dim in kept)
    along_input = not kept or (bool(reduced) and reduced[0].stride < kept[0].stride)
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    vector = 1  # neighbouring outputs that a thread takes
    if along_input:
        if reduced and reduced[0].stride == 1 and width > 128 and len(dims) == 1:
            width //= 4
    elif kept[0].stride == 1:
        vector = _output_vector(dims, kept[0])
        width //= vector
    block_x, block_y = _block(width, height, _MAX_THREADS // vector)
    step = block_x if along_input else 1
    values = -(-inputs // step)
    outputs_per_block = 1 if along_input else block_x
    if values < min(block_y * 16, _MAX_VALUES):
        return ()
    values = -(-inputs // (step * block_y))
    grid = -(-(outputs // vector) // outputs_per_block)
    target = multiprocessors(capability) * (resident_threads(capability) // (block_x * block_y))
    if values < _MAX_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))
    if blocks <= 1:
        return ()
    return accumulator_bytes * outputs * blocks * (1 if along_input else block_x * vector), _SEMAPHORE_BYTES * grid


def _output_vector(dims: list[Dimension], fastest: Dimension) -> int:
    vector = 4
    for number in (fastest.size, *(dim.stride for dim in dims if dim is not fastest)):
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    def power(value: int) -> int:
        return min(1 << (max(value, 1).bit_length() - 1), threads)

    block_x = min(power(width), 32)
    block_y = min(power(height), threads // block_x)
    return min(power(width), threads // block_y), block_y


def accumulator_bytes(dtype: str) -> int:
    """Item size in which a sum is kept: float32 for the 16-bit types, int64 for whole numbers."""
    if dtype in ("float16", "bfloat16", "float32"):
        return 4
    return max(8, ITEM_BYTES[dtype])


def _sum(op: Op, capability: Capability) -> list[Temporary]:
    tensor = op.inputs[0]
    dtype = str(op.attributes.get("dtype") or tensor.dtype)
    found: list[Temporary] = []
    if tensor.dtype in ("bool", "uint8", "int8", "int16", "int32"):  # cast before the sum
        found = [Temporary(prod(tensor.shape) * 8, 0)]
        tensor = Tensor(tensor.shape, "int64")
    elif dtype != tensor.dtype and not (dtype == "float32" and ITEM_BYTES[tensor.dtype] == 2):
        found = [Temporary(prod(tensor.shape) * ITEM_BYTES[dtype], 0)]
        tensor = Tensor(tensor.shape, dtype)
    return found + reduction(tensor, op.attributes.get("dim"), accumulator_bytes(tensor.dtype), capability)


def _of_input(op: Op, capability: Capability) -> list[Temporary]:
    tensor = op.inputs[0]
    return reduction(tensor, op.attributes.get("dim"), ITEM_BYTES[tensor.dtype], capability)


def _with_index(op: Op, capability: Capability) -> list[Temporary]:
    return reduction(op.inputs[0], op.attributes.get("dim"), _PAIR_BYTES, capability)


def _variance(op: Op, capability: Capability) -> list[Temporary]:
    return reduction(op.inputs[0], op.attributes.get("dim"), _WELFORD_BYTES, capability)


RULES: dict[str, Rule] = {
    **{f"aten.{name}": _sum for name in (
        "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "linalg_vector_norm.default", "prod.default",
        "norm.Scalar", "norm.ScalarOpt_dim", "nansum.default",
    )},
    **{f"aten.{name}": _of_input for name in (
        "amax.default", "amin.default", "max.default", "min.default", "any.default", "any.dim", "any.dims",
        "all.default", "all.dim",
    )},
    **{f"aten.{name}": _with_index for name in ("argmax.default", "argmin.default", "max.dim", "min.dim")},
    **{f"aten.{name}": _variance for name in (
        "var.correction", "std.correction", "var_mean.correction", "std_mean.correction",
    )},
}  # fmt: skip
