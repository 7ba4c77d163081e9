"""How long a step takes: timed on the GPU until the median is known well enough, or the time budget ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from whichgpu.bench_worker.card import Gpu

WITHIN = 0.01  # how close to the median both ends of its interval shall be
_FEWEST_STEPS = 12  # timed, before the interval is believed
_WARM_UP_STEPS = 3
_WARM_UP_S = 1.0  # clocks rise during the first second of work
_STRETCH_S = 0.25  # steps between two looks at the clock


def time_steps(step: Callable[[], Any], card: Gpu, budget_s: float, say: Callable[..., None]) -> dict[str, Any]:
    """Time steps on the GPU until the median's 95 % interval is within 1 % of it, or the time budget ends.

    Steps are queued in stretches of a quarter of a second, as training does, so that the host runs ahead where it can.
    """
    say(progress="warming up")
    started = time.monotonic()
    warm = 0
    while warm < _WARM_UP_STEPS or time.monotonic() - started < min(_WARM_UP_S, budget_s / 4):
        step()
        card.synchronize()
        warm += 1
    queued = max(int(_STRETCH_S * warm / (time.monotonic() - started)), 1)
    say(event="timing")
    started = time.monotonic()
    times: list[float] = []
    converged = False
    while not converged and (not times or time.monotonic() - started < budget_s):
        times += card.time_each(step, queued)
        low, median, high = median_interval(times)
        converged = len(times) >= _FEWEST_STEPS and max(high - median, median - low) <= WITHIN * median
    wall_s = time.monotonic() - started
    say(event="timed")
    return {"steps": len(times), "step_s": (median, low, high), "converged": converged, "timed_s": wall_s}


def median_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """Low end, median and high end of its 95 % interval by order statistics, which assumes no distribution."""
    ordered = sorted(times)
    count = len(ordered)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = _rank(count)  # how many of the lowest, and of the highest, lie outside
    return ordered[rank], median, ordered[count - 1 - rank]


def _rank(count: int) -> int:
    """How many values may be left out at each end with the median between the rest in 95 % of cases."""
    if count > 400:  # by then the normal distribution is exact enough
        return max(int(count / 2 - 0.98 * math.sqrt(count)) - 1, 0)
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) * 0.5**count
        if tail > 0.025:
            return max(rank - 1, 0)
        rank += 1
