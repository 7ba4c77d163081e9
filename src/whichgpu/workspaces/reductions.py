"""Reductions over large tensors: the buffer in which thread blocks leave their partial results.

Follows PyTorch's aten/src/ATen/native/cuda/Reduce.cuh (`setReduceConfig`, `ReduceConfig::global_memory_size`), read at
torch 2.11. The sizes agree to the byte with 1,238 of 1,239 recorded on an H200: the sum over the rows of a (3152, 768)
float32 tensor, the gradient of a bias, takes 19,660,800 bytes; a norm over the rows of (32128, 512) takes 131,596,288.

The number of multiprocessors, which bounds the buffer, is taken as an H200's 132; smaller cards may take less.
"""

from __future__ import annotations

from math import prod

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces.records import ITEM_BYTES, Capability, Rule, Temporary

_MAX_THREADS = 512  # mnt_wrapper<T>::MAX_NUM_THREADS
_WARP = 32
_VECTOR = 4
_MIN_VALUES, _MAX_VALUES = 16, 256  # min_values_per_thread, max_values_per_thread
_MULTIPROCESSORS = 132
# maxThreadsPerMultiProcessor, CUDA C++ Programming Guide, "Technical specifications per compute capability"
_THREADS_PER_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}


def buffer_bytes(tensor: Tensor, dims: list[int], capability: Capability) -> int:
    """Bytes of the partial results when `tensor` is reduced over `dims` (all of them when empty); 0 for none."""
    shape = tensor.shape
    reduced = {dim % len(shape) for dim in dims} if dims and shape else set(range(len(shape)))
    inputs = prod(shape[dim] for dim in reduced)
    outputs = prod(shape) // inputs if inputs else 0
    if inputs < _MAX_VALUES or not outputs:
        return 0
    stride = tensor.stride or _contiguous(shape)
    moving = [dim for dim, size in enumerate(shape) if size > 1]
    fastest = min(moving, key=lambda dim: stride[dim])
    on_fastest = fastest in reduced
    width_of, height_of = (inputs, outputs) if on_fastest else (outputs, inputs)
    vector = 1
    if stride[fastest] == 1 and not on_fastest:
        vector = _output_vector(shape[fastest], [stride[dim] for dim in moving if dim != fastest])
        width_of //= vector
    elif stride[fastest] == 1 and len(reduced) == len(shape) and _dense(tensor, stride) and width_of > 128:
        width_of //= _VECTOR
    return _config(inputs, outputs, width_of, height_of, vector, on_fastest, capability) * _accumulator(tensor.dtype)


def _config(
    inputs: int, outputs: int, width_of: int, height_of: int, vector: int, on_fastest: bool, capability: Capability
) -> int:
    """Elements of the buffer: `set_block_dimension` and the rest of `setReduceConfig`."""
    most = _MAX_THREADS // vector
    width_limit, height_limit = (_last_power_of_two(size) if size < most else most for size in (width_of, height_of))
    width = min(width_limit, _WARP)
    height = min(height_limit, most // width)
    width = min(width_limit, most // height)
    step_input, step_output = (width, 1) if on_fastest else (1, width)
    values = -(-inputs // step_input)
    if not (values >= height * 16 or values >= _MAX_VALUES):
        return 0  # every warp has an output of its own
    step_input *= height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = _MULTIPROCESSORS * (_THREADS_PER_MULTIPROCESSOR.get(capability, 2048) // (width * height))
    if values < _MAX_VALUES or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))
    if blocks <= 1:
        return 0
    return outputs * blocks * (1 if on_fastest else width * vector)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        stride[dim] = stride[dim + 1] * max(shape[dim + 1], 1)
    return tuple(stride)


def _dense(tensor: Tensor, stride: tuple[int, ...]) -> bool:
    last = sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True))
    return last + 1 == prod(tensor.shape)


def _output_vector(size: int, strides: list[int]) -> int:
    """`get_output_vec_size`."""
    vector = _VECTOR
    for number in (size, *strides):
        while number % vector:
            vector //= 2
    return vector


def _last_power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number else 1


def _accumulator(dtype: str) -> int:
    return max(ITEM_BYTES.get(dtype, 4), 4)


def _reduction(op: Op, capability: Capability) -> list[Temporary]:
    if not op.inputs:
        return []
    dims = op.attributes.get("dim")
    listed = [int(dim) for dim in dims] if isinstance(dims, list) else [int(dims)] if isinstance(dims, int) else []
    return [Temporary(buffer_bytes(op.inputs[0], listed, capability))]


_NAMES = (
    "sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "linalg_vector_norm.default", "norm.ScalarOpt_dim",
    "norm.ScalarOpt_dim_dtype", "norm.Scalar", "amax.default", "amin.default", "max.default", "min.default",
    "prod.default", "prod.dim_int", "all.default", "any.default", "all.dim", "any.dim",
)  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _reduction for name in _NAMES}
