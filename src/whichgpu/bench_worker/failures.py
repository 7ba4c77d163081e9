"""What kind of failure an exception is: out of memory, an error of CUDA, of the driver, or of the step itself."""

from __future__ import annotations

import sys

from whichgpu import errors
from whichgpu.bench_worker.card import Gpu, NoSuchGpuError
from whichgpu.bench_worker.words import shorten
from whichgpu.workload import failure_line

# What errors say that are about memory: a library that cannot get its workspace uses its own words.
_MEMORY = ("out of memory", "ALLOC_FAILED")
_MAYBE_MEMORY = ("unable to find an engine", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED")
_DRIVER = (
    "Found no NVIDIA driver",
    "no NVIDIA driver",
    "driver version is insufficient",
    "driver on your system is too old",
    "no CUDA-capable device",
    "No CUDA GPUs are available",
    "not compiled with CUDA",
    "CUDA driver initialization failed",
    "CUDA unknown error",
    "unsupported display driver",
    "driver/library version mismatch",
    "system not yet initialized",
    "forward compatibility was attempted",
)
_CUDA = (
    "CUDA error",
    "CUDA driver error",
    "cuDNN error",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "NCCL",
    "device-side assert",
)


def classify(error: BaseException, card: Gpu | None) -> tuple[str, str]:
    """What kind of failure an exception is, and one line about it."""
    torch = sys.modules["torch"]
    words = str(error)
    line = shorten(words.strip().partition("\n")[0] or type(error).__name__)
    if isinstance(error, torch.OutOfMemoryError) or any(word in words for word in _MEMORY):
        if isinstance(error, MemoryError) or "CPUAllocator" in words:
            return "step_error", shorten(f"the machine's own memory ran out: {line}")
        return "out_of_memory", line
    if any(word in words for word in _MAYBE_MEMORY) and card is not None and card.is_full():
        return "out_of_memory", line
    if isinstance(error, NoSuchGpuError):
        return "no_gpu", words
    if card is None or any(word in words for word in _DRIVER):
        return "driver", line
    if isinstance(error, RuntimeError) and any(word in words for word in _CUDA):
        return "cuda_error", line
    if isinstance(error, errors.WhichGpuError):
        return "step_error", shorten(words)
    return "step_error", shorten(failure_line(error))
