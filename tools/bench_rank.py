"""How long `rank` and `fit` take once the traces are cached, and how much of it the allocator's replays are.

    python tools/bench_rank.py [WORKLOAD...] [--repeat N]

Prints the best of a few runs: seconds (of this process, so that other work on the machine counts little), replays, the
instructions that they ran, and millions of instructions per second; then the same question once more, which is answered
from the answers that were kept. The first run, which may trace, does not count. Removes the answers that lie in the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from whichgpu import api, memory
from whichgpu.allocator import Replay
from whichgpu.trace_cache import cache_directory

WORKLOADS = ["bert-base", "bert-finetune", "nasnet-large"]
plain = memory.replay


class Counter:
    """Stands in for `memory.replay` and counts."""

    def __init__(self) -> None:
        self.replays = self.instructions = 0
        self.seconds = 0.0

    def __call__(self, program: Any, *rest: Any) -> Replay:
        started = time.process_time()
        result = plain(program, *rest)
        self.seconds += time.process_time() - started
        self.replays += 1
        self.instructions += len(program) if result.failed_at is None else result.failed_at + 1
        return result


def measure(question: Callable[[], object]) -> tuple[float, Counter]:
    """Seconds of one call that has its traces but no answers, and its replays."""
    for path in cache_directory().glob("*.answers"):
        path.unlink()
    counter = Counter()
    memory.replay = counter  # type: ignore[assignment]
    started = time.process_time()
    question()
    return time.process_time() - started, counter


def report(name: str, question: Callable[[], object], repeat: int) -> None:
    question()
    seconds, counter = min((measure(question) for _ in range(repeat)), key=lambda run: run[0])
    started = time.process_time()
    question()
    repeated = time.process_time() - started
    print(
        f"{name:45} {seconds:6.2f} s, of which {counter.seconds:5.2f} s for {counter.replays} replays of "
        f"{counter.instructions:,} instructions: {counter.instructions / counter.seconds / 1e6:.2f} million a second; "
        f"again {repeated:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How long rank and fit take once the traces are cached.")
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    report(f"rank {' '.join(arguments.workloads)}", lambda: api.rank(arguments.workloads), arguments.repeat)
    for name in arguments.workloads:
        report(f"fit {name}", lambda name=name: api.fit(name), arguments.repeat)  # type: ignore[misc]


if __name__ == "__main__":
    main()
