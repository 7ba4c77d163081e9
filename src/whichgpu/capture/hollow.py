"""Hollow tensors: ordinary CPU tensors whose storage has a size and no memory of its own.

Every hollow storage points to the same reserved, never committed range of addresses. Kernels are never run on
hollow tensors; what is needed of them is what PyTorch's own machinery keeps: shapes, strides, views, autograd
and, above all, the true lifetime of each storage. A stray read finds zeros; nothing is ever allocated.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

_RESERVED_BYTES = 1 << 44  # 16 TiB of address space; falls back to less where the system refuses
_MAP_NORESERVE = 0x4000
_CPU = torch.device("cpu")


def _reserve() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_NORESERVE if sys.platform == "linux" else 0)
    size = _RESERVED_BYTES
    while size >= 1 << 32:
        address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if address not in (None, ctypes.c_void_p(-1).value):
            return int(address)
        size >>= 1
    raise MemoryError("cannot reserve address space for tracing (is `ulimit -v` set?)")


_base = 0


def base() -> int:
    """Address that all hollow storages share; reserved at the first call."""
    global _base  # noqa: PLW0603 - one reservation per process, made when first needed
    if not _base:
        _base = _reserve()
    return _base


def storage_bytes(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> int:
    """Bytes that `torch.empty_strided` asks for: up to and including the last element."""
    last = 0
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * step
    return (last + 1) * itemsize


def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, at_least_bytes: int = 0) -> torch.Tensor:
    """A hollow tensor of its own storage, which may be larger than the tensor needs."""
    size = max(storage_bytes(shape, stride, dtype.itemsize), at_least_bytes)
    storage = torch._C._construct_storage_from_data_pointer(base(), _CPU, size)
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, stride)


def is_hollow(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no memory of its own (it may be a view of a hollow one)."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return False
    return tensor.untyped_storage().data_ptr() == _base != 0
