"""The time of a training step on a card: all its kernels, or the host that launches them where that takes longer.

`demand` reads a step of a trace once; `predict` prices it on a card. Equal operators are priced once. The step is that of the last
one traced, which has its optimizer state. Times are of steps queued one after the other, as training queues them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import NamedTuple

import numpy as np

from whichgpu.speed.asked import Cost
from whichgpu.speed.costs import costs
from whichgpu.speed.host import KINDS, host_seconds, launches
from whichgpu.speed.kernels import Columns, Constants, all_seconds, columns_of, join, limited_by_compute
from whichgpu.speed.rates import Rates
from whichgpu.trace import Op, Trace


@dataclass(frozen=True)
class Demand:
    """What a step asks of a card and of the host."""

    costs: Mapping[Cost, int]  # how often
    launches: Mapping[str, int]  # of the host, by kind

    @cached_property
    def columns(self) -> Columns:
        """The costs as columns, in their order."""
        return columns_of(self.costs)

    @cached_property
    def times(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How often, in the order of the costs."""
        return np.fromiter(self.costs.values(), float, len(self.costs))


class StepTime(NamedTuple):
    """A predicted step."""

    step_s: float
    gpu_s: float
    host_s: float
    limit: str  # "compute", "memory" or "host"
    shares: Mapping[str, float]  # of the GPU's time, by kind of operator, largest first


def repeated(trace: Trace, signature: Callable[[int], Hashable]) -> list[tuple[int, int]]:
    """Operators of the last traced step, by their index in the trace, each with how many are like it at any batch size."""
    last = trace.steps - 1
    first: dict[Hashable, int] = {}
    counted = Counter(
        first.setdefault(signature(index), index) for index, op in enumerate(trace.ops) if op.step == last
    )
    return list(counted.items())


def demand(trace: Trace, op_at: Callable[[int], Op] | None = None, alike: Sequence[tuple[int, int]] = ()) -> Demand:
    """The last traced step; `op_at` gives an operator, by its index in the trace, at another batch size.

    `alike` are its operators as `repeated` counts them, which is quicker.
    """
    last = trace.steps - 1
    pairs = alike or [(index, 1) for index, op in enumerate(trace.ops) if op.step == last]
    at = op_at or trace.ops.__getitem__
    return _demand(((at(index), times) for index, times in pairs), tf32_matmul=bool(trace.facts.get("tf32_matmul")))


def demand_of(ops: Iterable[Op], *, tf32_matmul: bool = False) -> Demand:
    """What operators ask for, one after the other."""
    return _demand(((op, 1) for op in ops), tf32_matmul=tf32_matmul)


def _demand(ops: Iterable[tuple[Op, int]], *, tf32_matmul: bool) -> Demand:
    asked: dict[Cost, int] = {}
    launched = dict.fromkeys(KINDS, 0)
    for op, times in ops:
        for cost in costs(op, tf32_matmul=tf32_matmul):
            asked[cost] = asked.get(cost, 0) + times
        for kind, count in launches([op]).items():
            launched[kind] += times * count
    return Demand(asked, launched)


def predict(asked: Demand, rates: Rates, constants: Constants, host_speed: float = 1.0) -> StepTime:
    """The step on a card, with a host of `host_speed` times the reference."""
    seconds = all_seconds(asked.columns, rates, constants) * asked.times
    gpu_s = float(seconds.sum())
    compute_s = float(seconds[limited_by_compute(asked.columns, rates, constants)].sum())
    kinds: dict[str, float] = {}
    sorts = np.bincount(asked.columns.sort, seconds, len(asked.columns.sorts))
    for (kind, *_), of_sort in zip(asked.columns.sorts, map(float, sorts), strict=True):
        kinds[kind] = kinds.get(kind, 0.0) + of_sort
    host_s = host_seconds(asked.launches, constants) / host_speed
    limit = "host" if host_s > gpu_s else "compute" if compute_s > gpu_s / 2 else "memory"
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return StepTime(
        float(join(gpu_s, host_s)), gpu_s, host_s, limit, {kind: of_kind / gpu_s for kind, of_kind in ordered}
    )


def interval_s(seconds: float, half_width: float) -> tuple[float, float]:
    """Low and high end of a time that is known within so much of its logarithm."""
    return seconds * exp(-half_width), seconds * exp(half_width)
