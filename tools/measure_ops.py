"""Times a grid of single operators on a GPU: what each kernel takes, and what its launch takes of the host.

    python3 tools/measure_ops.py --out DIR [--budget-s 150]

Writes DIR/ops.jsonl, a line a point (the first line is the environment): operator, tensors as the trace has them, attributes,
seconds on the GPU with operands that stay in the cache ("warm") and, where they would fit into it, with others in turn
("cold"), and the host's seconds a call. GPU times are of replayed CUDA graphs, so that no launch counts; a point whose operator
cannot be captured is timed with events around calls. A point that fails says why and the rest goes on. `--device cpu` is a
rehearsal at small sizes, without figures worth keeping. Needs PyTorch alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from speed import convolution_grid, grid, more_grid
from speed.grid import Maker, Point

CACHE_BYTES = 200e6  # more than any card's cache, with room
LARGEST_COPIES = 48
REPLAY_S = 3e-3  # of work in one graph, so that the launch of the graph does not count
REPLAYS = 4
HOST_CALLS = 40
GRIDS = {"first": grid, "second": more_grid, "convolutions": convolution_grid}


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Tensors among arguments or results, lists flattened."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def described(tensor: torch.Tensor) -> list[Any]:
    """A tensor as the trace has it: shape, dtype, stride where it is not contiguous."""
    stride = [] if tensor.is_contiguous() else list(tensor.stride())
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), stride]


def attributes(point: Point, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments that are not tensors, by the names in the schema."""
    named = zip(point.operator._schema.arguments, arguments, strict=False)
    found = {argument.name: value for argument, value in named if not tensors_in(value)}
    return {name: str(value) if isinstance(value, torch.dtype) else value for name, value in found.items()}


def name_of(operator: Any) -> str:
    """The overload's name as the trace has it."""
    return str(operator) if isinstance(operator, torch._ops.OpOverload) else str(operator.__name__)


class Timer:
    """Times calls on the device."""

    def __init__(self, device: str) -> None:
        self.cuda = device != "cpu"

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def once(self, call: Any) -> float:
        """Seconds of a call, launch included."""
        self.synchronize()
        begun = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - begun

    def graph(self, calls: list[Any], seconds: float) -> tuple[float, str]:
        """Seconds a call on the GPU, when the calls are made in turn as often as fills a graph; and how it was timed."""
        repeats = max(1, min(400, int(REPLAY_S / max(seconds, 1e-6)))) if seconds < REPLAY_S else 1
        repeats = max(repeats, len(calls))
        if not self.cuda:
            return self.once(lambda: [calls[i % len(calls)]() for i in range(repeats)]) / repeats, "wall"
        if seconds > 2e-3:
            return self.events(calls, repeats=2), "events"
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for number in range(repeats):
                    calls[number % len(calls)]()
        except RuntimeError:
            torch.cuda.synchronize()
            return self.events(calls, repeats), "events"
        graph.replay()
        times = [self._between(graph.replay) / repeats for _ in range(REPLAYS)]
        graph.reset()
        return statistics.median(times), "graph"

    def events(self, calls: list[Any], repeats: int) -> float:
        """Seconds a call between events around calls; the launch counts where it takes longer."""
        times = []
        for _ in range(2):
            times.append(self._between(lambda: [calls[i % len(calls)]() for i in range(repeats)]) / repeats)
        return min(times)

    def _between(self, call: Any) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def host(self, call: Any, seconds: float) -> float | None:
        """Seconds of the host for a call whose work is not waited for; None where the queue would fill up."""
        if seconds > 2e-4:
            return None
        self.synchronize()
        begun = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        taken = (time.perf_counter() - begun) / HOST_CALLS
        self.synchronize()
        return taken


def measure(point: Point, timer: Timer) -> dict[str, Any]:
    """All that is known of one point."""
    torch.backends.cuda.matmul.allow_tf32 = point.tf32
    torch.backends.cudnn.allow_tf32 = point.tf32_convolution
    arguments = point.make()
    result = point.operator(*arguments)
    row: dict[str, Any] = {
        "group": point.group,
        "op": name_of(point.operator),
        "in": [described(tensor) for tensor in tensors_in(arguments)],
        "out": [described(tensor) for tensor in tensors_in(result)],
        "attributes": attributes(point, arguments),
        "tf32": point.tf32,
        "tf32_convolution": point.tf32_convolution,
    }
    bytes_ = sum(tensor.numel() * tensor.element_size() for tensor in (*tensors_in(arguments), *tensors_in(result)))
    del result

    def call(given: tuple[Any, ...] = arguments) -> None:
        point.operator(*given)

    timer.once(call)
    seconds = min(timer.once(call), timer.once(call))
    warm, row["timed"] = timer.graph([call], seconds)
    row["warm_us"] = round(warm * 1e6, 3)
    taken = timer.host(call, warm)
    row["host_us"] = None if taken is None else round(taken * 1e6, 3)
    if 2**20 < bytes_ < CACHE_BYTES and len(row["in"]) < 64:
        copies = min(int(CACHE_BYTES // bytes_) + 1, LARGEST_COPIES)
        sets = [arguments, *(point.make() for _ in range(copies - 1))]
        cold, _ = timer.graph([lambda given=given: point.operator(*given) for given in sets], seconds)
        row["cold_us"] = round(cold * 1e6, 3)
    return row


def environment(device: str) -> dict[str, Any]:
    """Card, driver and libraries."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processors": torch.get_num_threads(),
        "device": device,
        "arguments": sys.argv[1:],
    }
    if device != "cpu":
        card = torch.cuda.get_device_properties(0)
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
        facts |= {
            "gpu": card.name,
            "capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nvidia_smi": answer.stdout.strip(),
        }
    return facts


def main() -> None:
    """Times points until all are done or the budget is spent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for ops.jsonl")
    parser.add_argument("--budget-s", type=float, default=150, help="start no point after this (default 150)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a rehearsal")
    parser.add_argument("--only", nargs="*", help="groups of operators")
    parser.add_argument("--most", type=int, help="at most so many points")
    parser.add_argument("--grid", default="first", choices=GRIDS, help="which grid (default first)")
    arguments = parser.parse_args()
    begun = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    maker = Maker(arguments.device, 1 if arguments.device != "cpu" else 64)
    timer = Timer(arguments.device)
    points = GRIDS[arguments.grid].points(maker)
    chosen = [p for p in points if not arguments.only or p.group in arguments.only][: arguments.most]
    failed = done = 0
    torch.manual_seed(0)
    with torch.no_grad(), (arguments.out / "ops.jsonl").open("w") as stream:
        stream.write(json.dumps({"environment": environment(arguments.device), "points": len(chosen)}) + "\n")
        if timer.cuda:  # clocks rise with work
            side = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
            for _ in range(200):
                side @ side
            torch.cuda.synchronize()
            del side
        for point in chosen:
            if time.monotonic() - begun > arguments.budget_s:
                break
            try:
                row = measure(point, timer)
                done += 1
            except Exception as error:  # one point is not worth the others
                row = {
                    "group": point.group,
                    "op": name_of(point.operator),
                    "error": f"{type(error).__name__}: {error}"[:300],
                }
                failed += 1
                if failed < 40:
                    print(row, flush=True)
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            if done % 100 == 0:
                if timer.cuda:
                    torch.cuda.empty_cache()
                print(f"{time.monotonic() - begun:.0f} s: {done} of {len(chosen)}", flush=True)
    print(f"{time.monotonic() - begun:.0f} s, {done} points of {len(chosen)}, {failed} failed")


if __name__ == "__main__":
    main()
