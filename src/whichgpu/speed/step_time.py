"""The time of a training step on a card: all its kernels, or the host that launches them where that takes longer.

`demand` reads a step of a trace once; `predict` prices it on a card. Equal operators are priced once. The step is that of the last
one traced, which has its optimizer state. Times are of steps queued one after the other, as training queues them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import NamedTuple

import numpy as np

from whichgpu.speed.asked import Cost
from whichgpu.speed.costs import costs
from whichgpu.speed.host import KINDS, Work, add_work, cuts, host_seconds, launches, modules, work_of
from whichgpu.speed.kernels import Columns, Constants, all_seconds, columns_of, join, limited_by_compute
from whichgpu.speed.rates import Rates
from whichgpu.trace import Op, Trace


class Part(NamedTuple):
    """What is asked for between two places where the host waits for the GPU."""

    costs: Mapping[Cost, int]
    launches: Mapping[str, float]


@dataclass(frozen=True)
class Demand:
    """What a step asks of a card and of the host; in parts where the host waits within it, or else in none."""

    costs: Mapping[Cost, int]  # how often
    launches: Mapping[str, float]  # of the host, by kind
    parts: tuple[Part, ...] = ()

    @cached_property
    def columns(self) -> Columns:
        """The costs as columns, in their order."""
        return columns_of(self.costs)

    @cached_property
    def times(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How often, in the order of the costs."""
        return np.fromiter(self.costs.values(), float, len(self.costs))

    @cached_property
    def places(
        self,
    ) -> tuple[tuple[np.ndarray[tuple[int], np.dtype[np.intp]], np.ndarray[tuple[int], np.dtype[np.float64]]], ...]:
        """Of each part, where its costs stand among all, and how often."""
        where = {cost: place for place, cost in enumerate(self.costs)}
        return tuple(
            (
                np.fromiter((where[cost] for cost in part.costs), np.intp, len(part.costs)),
                np.fromiter(part.costs.values(), float, len(part.costs)),
            )
            for part in self.parts
        )


class StepTime(NamedTuple):
    """A predicted step."""

    step_s: float
    gpu_s: float
    host_s: float
    limit: str  # "compute", "memory" or "host"
    shares: Mapping[str, float]  # of the GPU's time, by kind of operator, largest first


def repeated(trace: Trace, signature: Callable[[int], Hashable]) -> list[tuple[int, int]]:
    """Operators of the last traced step, by their index in the trace, each with how many are like it at any batch size, in the
    same part of the step.
    """
    ops = _last(trace)
    places = cuts(ops, work_of(trace, trace, trace.batch_size))
    first: dict[Hashable, int] = {}
    counted = Counter(first.setdefault((bisect_right(places, index), signature(index)), index) for index, _ in ops)
    return list(counted.items())


def demand(
    trace: Trace,
    op_at: Callable[[int], Op] | None = None,
    alike: Sequence[tuple[int, int]] = (),
    work: Sequence[Work] | None = None,
) -> Demand:
    """The last traced step; `op_at` gives an operator, by its index in the trace, at another batch size, and `work` is what the
    host does itself there.

    `alike` are its operators as `repeated` counts them, which is quicker.
    """
    ops = _last(trace)
    own = work_of(trace, trace, trace.batch_size)
    pairs = alike or [(index, 1) for index, _ in ops]
    at = op_at or trace.ops.__getitem__
    tf32 = bool(trace.facts.get("tf32_matmul"))
    return _demand(pairs, at, cuts(ops, own), own if work is None else work, modules(ops), tf32_matmul=tf32)


def demand_of(ops: Sequence[Op], *, tf32_matmul: bool = False) -> Demand:
    """What operators ask for, one after the other."""
    pairs = [(index, 1) for index in range(len(ops))]
    return _demand(
        pairs, ops.__getitem__, cuts(enumerate(ops), ()), (), modules(enumerate(ops)), tf32_matmul=tf32_matmul
    )


def _last(trace: Trace) -> list[tuple[int, Op]]:
    last = trace.steps - 1
    return [(index, op) for index, op in enumerate(trace.ops) if op.step == last]


def _demand(
    pairs: Iterable[tuple[int, int]],
    at: Callable[[int], Op],
    places: Sequence[int],
    work: Sequence[Work],
    called: Sequence[int],
    *,
    tf32_matmul: bool,
) -> Demand:
    """Operators by index, each with how often; what comes after the last wait is one part with the next step's beginning."""
    count = max(len(places), 1)
    asked: list[dict[Cost, int]] = [{} for _ in range(count)]
    launched = [dict.fromkeys(KINDS, 0.0) for _ in range(count)]
    for index, times in pairs:
        op, part = at(index), bisect_right(places, index) % count
        for cost in costs(op, tf32_matmul=tf32_matmul):
            asked[part][cost] = asked[part].get(cost, 0) + times
        for kind, number in launches([op]).items():
            launched[part][kind] += times * number
    for index in called:
        launched[bisect_right(places, index) % count]["module"] += 1
    for entry in work:
        # before a wait at the same place
        add_work(launched[bisect_left(places, entry.place) % count], [entry])
    whole: Counter[Cost] = Counter()
    for one in asked:
        whole.update(one)
    total = {kind: sum(one[kind] for one in launched) for kind in KINDS}
    if count == 1:
        return Demand(dict(whole), total)
    return Demand(dict(whole), total, tuple(map(Part, asked, launched)))


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
    step_s = float(join(gpu_s, host_s))
    if asked.parts:
        each = seconds / asked.times
        step_s = sum(
            float(join(float(each[places] @ times), host_seconds(part.launches, constants) / host_speed))
            for part, (places, times) in zip(asked.parts, asked.places, strict=True)
        )
    limit = "host" if host_s > gpu_s else "compute" if compute_s > gpu_s / 2 else "memory"
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    return StepTime(step_s, gpu_s, host_s, limit, {kind: of_kind / gpu_s for kind, of_kind in ordered})


def interval_s(seconds: float, half_width: float) -> tuple[float, float]:
    """Low and high end of a time that is known within so much of its logarithm."""
    return seconds * exp(-half_width), seconds * exp(half_width)
