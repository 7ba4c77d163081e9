"""The real measuring process over a made-up card: steps run on the CPU, and peaks are what a step says it took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from whichgpu.bench_worker import attempt, card, server
from whichgpu.capture import dynamo

dynamo.stand_in()  # nothing here needs the real one, which takes as long to import as torch


class CpuCard(card.Gpu):
    """A card of 8 GiB in words only."""

    def __init__(self, index: int) -> None:
        if index > 0:
            raise card.NoSuchGpuError("1")
        self.device = torch.device("cpu")
        os.environ["MADE_UP_LIMIT"] = str(8 << 30)

    def facts(self) -> dict[str, Any]:
        """What is there."""
        return {
            "name": "Made-up GPU",
            "uuid": "1234",
            "memory_bytes": 8 << 30,
            "compute_capability": "9.0",
            "cuda": "13.0",
            "torch": torch.__version__,
            "cudnn": None,
            "python": "3.12",
            "flags": self.flags(),
            "pid": os.getpid(),
        }

    def limit(self, limit_bytes: int) -> None:
        """Tell the step."""
        os.environ["MADE_UP_LIMIT"] = str(limit_bytes)

    def synchronize(self) -> None:
        """Nothing is queued."""

    def time_each(self, step: Callable[[], Any], count: int) -> list[float]:
        """Seconds by the clock."""
        times = []
        for _ in range(count):
            started = time.perf_counter()
            step()
            times.append(time.perf_counter() - started)
        return times

    def peaks(self) -> dict[str, Any]:
        """What the step says."""
        took = int(os.environ.get("MADE_UP_PEAK", "0"))
        return {"peak_allocated_bytes": took, "peak_reserved_bytes": took, "outside_bytes": 0, "retries": 0}

    def is_full(self) -> bool:
        """Never."""
        return False


if __name__ == "__main__":
    attempt.GPU = CpuCard
    server.main()
