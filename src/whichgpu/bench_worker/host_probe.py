"""How fast the processor of this machine launches operators; `python -m whichgpu.bench_worker.host_probe` prints a line of JSON.

Times a training step on the CPU whose tensors are so small that nearly all of it is what a step on a GPU takes of the host too:
Python, the dispatcher, autograd, memory that is handed out, and the optimizer's lists of tensors. The driver's part of a launch
is not in it, and is taken to scale alike. Beside that, what random numbers and copies take where a step makes its data itself.
Seconds are those of the processor, on one thread. Needs PyTorch alone, no GPU, and about ten seconds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAUNCHES_S, WARM_S, FEWEST = 3.0, 0.5, 8
BLOCKS, WIDTH = 12, 16
RANDOM_ELEMENTS = 1 << 21
COPY_BYTES = 1 << 25
DATA_TIMES = 5
QUARTILE = 0.25  # of steps: others that run at the same time only slow steps down
_now = time.thread_time  # of the processor: what others take of it does not count


def probe() -> dict[str, Any]:
    """What was measured: microseconds by phase of the small step, nanoseconds an element, and on what."""
    import torch

    begun = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    launches = launch_seconds(torch)
    elements = torch.empty(RANDOM_ELEMENTS)
    integers = torch.empty(RANDOM_ELEMENTS, dtype=torch.int64)
    source, target = torch.ones(COPY_BYTES // 4), torch.empty(COPY_BYTES // 4)
    found = {
        "launches_us": {phase: round(1e6 * seconds, 2) for phase, seconds in launches.items()},
        "normal_ns": round(1e9 * _least(elements.normal_) / RANDOM_ELEMENTS, 4),
        "uniform_ns": round(1e9 * _least(elements.uniform_) / RANDOM_ELEMENTS, 4),
        "integer_ns": round(1e9 * _least(lambda: integers.random_(0, 1000)) / RANDOM_ELEMENTS, 4),
        "copy_ns_per_byte": round(1e9 * _least(lambda: target.copy_(source)) / COPY_BYTES, 5),
    }
    torch.set_num_threads(threads)
    return {
        **found,
        "processor": _processor(),
        "processors": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 2),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def launch_seconds(
    torch: Any,
    device: str = "cpu",
    seconds: float = LAUNCHES_S,
    now: Callable[[], float] = _now,
    warm_s: float = WARM_S,
) -> dict[str, float]:
    """Seconds of each phase of the small step, by a clock: the lower quartile.

    On a GPU steps are queued one after the other and nothing waits for them, so that the driver's part of each launch counts too.
    """
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = nn.LayerNorm(WIDTH), nn.GELU()
            self.widen, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, data: Any) -> Any:
            return data + self.narrow(self.act(self.widen(self.norm(data))))

    model = nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, WIDTH)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    data, wanted = torch.randn(2, 4, WIDTH, device=device), torch.randn(2, 4, WIDTH, device=device)
    found: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    begun = time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < warm_s + seconds or len(found["forward"]) < FEWEST:
        marks = [now()]
        loss = nn.functional.mse_loss(model(data), wanted)
        marks.append(now())
        loss.backward()
        marks.append(now())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(now())
        if elapsed > warm_s:
            for phase, first, last in zip(found, marks, marks[1:], strict=False):
                found[phase].append(last - first)
    return {phase: statistics.quantiles(times, n=round(1 / QUARTILE))[0] for phase, times in found.items()}


def _least(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(DATA_TIMES):
        begun = _now()
        call()
        times.append(_now() - begun)
    return min(times)


def _processor() -> str:
    """The processor's name where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()) + "\n")
