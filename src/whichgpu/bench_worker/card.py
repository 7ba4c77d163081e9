"""The GPU as PyTorch shows it, and the switches that decide what is computed on it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import platform
from collections.abc import Callable
from typing import Any

from whichgpu import errors


class NoSuchGpuError(Exception):
    """There is no GPU of that number."""


class Gpu:
    """The GPU as PyTorch shows it: the only user of `torch.cuda` here."""

    def __init__(self, index: int) -> None:
        import torch

        self._cuda = torch.cuda
        count = torch.cuda.device_count()
        if torch.backends.cuda.is_built() and count and index >= count:
            raise NoSuchGpuError(f"{count}")
        torch.cuda.init()
        torch.cuda.set_device(index)
        self.device = torch.device("cuda", index)
        self._allowed_bytes: int | None = None

    def facts(self) -> dict[str, Any]:
        """The card and the software, for the record of the environment."""
        import torch

        properties = self._cuda.get_device_properties(self.device)
        uuid = getattr(properties, "uuid", None)
        return {
            "name": properties.name,
            "uuid": str(uuid) if uuid is not None else "",
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": str(torch.version.cuda),
            "torch": torch.__version__,
            "cudnn": str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None,
            "python": platform.python_version(),
            "flags": self.flags(),
        }

    def flags(self) -> dict[str, Any]:
        """Switches that decide what is computed and how much memory that takes, as they are now."""
        import torch

        return {
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_cudnn": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            **environment_flags(),
        }

    def limit(self, limit_bytes: int) -> None:
        """Let PyTorch's allocator reserve exactly so many bytes and no more."""
        total = self._cuda.mem_get_info(self.device)[1]
        self._cuda.set_per_process_memory_fraction(exact_fraction(limit_bytes, total), self.device)
        self._allowed_bytes = limit_bytes

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._cuda.synchronize(self.device)

    def time_each(self, step: Callable[[], Any], count: int) -> list[float]:
        """Seconds of each of `count` steps that are queued one after the other."""
        marks = [self._cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        self.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(marks)]

    def peaks(self) -> dict[str, Any]:
        """Peaks of memory, and what lies outside PyTorch's allocator now."""
        stats = self._cuda.memory_stats(self.device)
        free, total = self._cuda.mem_get_info(self.device)
        return {
            "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
            "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
            "outside_bytes": total - free - stats.get("reserved_bytes.all.current", 0),
            "retries": stats.get("num_alloc_retries", 0),
        }

    def is_full(self) -> bool:
        """Whether memory ran out inside, or hardly any is left: then a library's failure is for want of it."""
        with contextlib.suppress(Exception):  # the context may be broken
            if self._cuda.memory_stats(self.device).get("num_ooms", 0):
                return True
            free = self._cuda.mem_get_info(self.device)[0]
            return bool(free < 256 << 20)
        return False


def environment_flags() -> dict[str, str]:
    """Variables of the environment that change what is measured; they are left as they are."""
    names = {
        "allocator": ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        "cublas_workspace": ("CUBLAS_WORKSPACE_CONFIG",),
        "tf32_override": ("NVIDIA_TF32_OVERRIDE",),
    }
    found = {flag: next((os.environ[v] for v in variables if v in os.environ), "") for flag, variables in names.items()}
    return {flag: value for flag, value in found.items() if value or flag == "allocator"}


def exact_fraction(part: int, whole: int) -> float:
    """The fraction that PyTorch, which multiplies and cuts off, turns back into exactly `part` of `whole`."""
    if not 0 < part <= whole:
        raise errors.InputError(f"a memory limit of {part} bytes: the card has {whole}")
    fraction = part / whole
    while int(fraction * whole) < part:
        fraction = math.nextafter(fraction, 2.0)
    return min(fraction, 1.0)
