"""What one kernel asks of a GPU: arithmetic, bytes, units of work and launches."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from whichgpu.trace import Tensor

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "uint64": 8,
    "int32": 4,
    "uint32": 4,
    "int16": 2,
    "uint16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}
TENSOR_PIPES = ("tf32", "fp16", "bf16")
UNALIGNED = (
    "_unaligned"  # the end of the kind of a product without tensor cores whose rows have an odd number of elements
)


class Product(NamedTuple):
    """A batch of matrix products of the same size."""

    groups: int
    rows: int
    columns: int
    inner: int


class Cost(NamedTuple):
    """What one kernel, or some of one kind, asks of a GPU."""

    kind: str  # whose efficiency applies
    pipe: str  # arithmetic that it is done in: "fp64", "fp32", "tf32", "fp16" or "bf16"
    flops: float
    bytes: float
    kernels: int
    product: Product | None = None
    units: float = 0.0  # elements or rows, which kernels also take some time each for
    parts: int = 0  # how many blocks the work can be spread over, where that may leave processors without; 0: enough


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, those that it repeats counted once."""
    elements = prod(tensor.shape)
    if 0 in tensor.stride:
        elements = prod(size for size, stride in zip(tensor.shape, tensor.stride, strict=True) if stride)
    return elements * DTYPE_BYTES.get(tensor.dtype, 4)


def total(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors."""
    return sum(map(tensor_bytes, tensors))


def pipe_of(dtype: str, tf32: bool) -> str:
    """Which arithmetic a dtype is computed in."""
    if dtype in ("float32", "complex64"):
        return "tf32" if tf32 else "fp32"
    return {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "complex128": "fp64"}.get(dtype, "fp32")
