"""The time of a training step on a card: all its kernels, or the host that launches them where that takes longer.

`demand` reads a step of a trace once; `predict` prices it on a card. Equal operators are priced once. The step is that of the last
one traced, which has its optimizer state. Times are of steps queued one after the other, as training queues them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import exp
from typing import NamedTuple

import numpy as np

from whichgpu.speed.asked import Cost
from whichgpu.speed.costs import costs
from whichgpu.speed.host import host_seconds, launches
from whichgpu.speed.kernels import Constants, all_seconds, columns_of, join, limit_of
from whichgpu.speed.rates import Rates
from whichgpu.trace import Op, Trace


class Demand(NamedTuple):
    """What a step asks of a card and of the host."""

    costs: Mapping[Cost, int]  # how often
    launches: Mapping[str, int]  # of the host, by kind


class StepTime(NamedTuple):
    """A predicted step."""

    step_s: float
    gpu_s: float
    host_s: float
    limit: str  # "compute", "memory" or "host"
    shares: Mapping[str, float]  # of the GPU's time, by kind of operator, largest first


def demand(trace: Trace, op_at: Callable[[int], Op] | None = None) -> Demand:
    """The last traced step; `op_at` gives an operator, by its index in the trace, at another batch size."""
    last = trace.steps - 1
    ops = ((op_at(index) if op_at else op) for index, op in enumerate(trace.ops) if op.step == last)
    return demand_of(ops, tf32_matmul=bool(trace.facts.get("tf32_matmul")))


def demand_of(ops: Iterable[Op], *, tf32_matmul: bool = False) -> Demand:
    """What operators ask for, one after the other."""
    kept = list(ops)
    counted = Counter(cost for op in kept for cost in costs(op, tf32_matmul=tf32_matmul))
    return Demand(counted, launches(kept))


def predict(asked: Demand, rates: Rates, constants: Constants, host_speed: float = 1.0) -> StepTime:
    """The step on a card, with a host of `host_speed` times the reference."""
    each = all_seconds(columns_of(asked.costs), rates, constants) * np.fromiter(asked.costs.values(), float)
    gpu_s = compute_s = 0.0
    kinds: dict[str, float] = {}
    for cost, seconds in zip(asked.costs, map(float, each), strict=True):
        gpu_s += seconds
        kinds[cost.kind] = kinds.get(cost.kind, 0.0) + seconds
        if limit_of(cost, rates, constants) == "compute":
            compute_s += seconds
    host_s = host_seconds(asked.launches, constants) / host_speed
    limit = "host" if host_s > gpu_s else "compute" if compute_s > gpu_s / 2 else "memory"
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return StepTime(
        float(join(gpu_s, host_s)), gpu_s, host_s, limit, {kind: seconds / gpu_s for kind, seconds in ordered}
    )


def interval_s(seconds: float, half_width: float) -> tuple[float, float]:
    """Low and high end of a time that is known within so much of its logarithm."""
    return seconds * exp(-half_width), seconds * exp(half_width)
