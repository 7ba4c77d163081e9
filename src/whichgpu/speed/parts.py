"""The time of a step operator by operator: seconds on the GPU and of the host, arithmetic and bytes of each.

The same costs, rates and constants as `step_time`, without adding up: the seconds of all operators together are the GPU's time
of the step, and the host's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from whichgpu.speed.asked import Cost
from whichgpu.speed.costs import costs
from whichgpu.speed.host import KINDS, Work, add_work, host_seconds, launches, modules
from whichgpu.speed.kernels import Constants, Floats, all_seconds, columns_of, limited_by_compute
from whichgpu.speed.rates import Rates
from whichgpu.speed.step_time import demand, predict
from whichgpu.trace import Op, Trace


class Parts(NamedTuple):
    """The operators of the last traced step on a card, as columns; `ops` says which of the trace each is."""

    ops: tuple[int, ...]
    pipe: tuple[str, ...]  # arithmetic that most of an operator's FLOPs are done in; "" where it has none
    gpu_s: Floats
    compute_s: Floats  # of which arithmetic limits, and not memory
    host_s: Floats  # to launch them
    flops: Floats
    bytes: Floats  # that must cross the memory bus
    step_s: float  # of all, the GPU and the host at once but for waits


def parts(
    trace: Trace,
    op_at: Callable[[int], Op],
    rates: Rates,
    constants: Constants,
    work: Sequence[Work] = (),
    host_speed: float = 1.0,
) -> Parts:
    """The last traced step; `op_at` gives an operator by its index in the trace, and `work` is what the host does itself, at the
    batch size that is meant. What the host does stands with the operator that comes next, or else with the last.
    """
    tf32 = bool(trace.facts.get("tf32_matmul"))
    index = [number for number, op in enumerate(trace.ops) if op.step == trace.steps - 1]
    launched = _before(trace, index, work)
    asked: list[Cost] = []
    owners, pipes, host_s = [], [], []
    for place, number in enumerate(index):
        op = op_at(number)
        own = costs(op, tf32_matmul=tf32)
        asked += own
        owners += [place] * len(own)
        pipes.append(max(own, key=lambda cost: cost.flops).pipe if any(cost.flops for cost in own) else "")
        for kind, count in launches([op]).items():
            launched[place][kind] += count
        host_s.append(host_seconds(launched[place], constants) / host_speed)
    columns = columns_of(asked)
    seconds = all_seconds(columns, rates, constants) if asked else np.zeros(0)
    limited = limited_by_compute(columns, rates, constants) if asked else np.zeros(0, bool)

    def of_each(values: Floats) -> Floats:
        return np.bincount(np.array(owners, np.intp), values, len(index)).astype(float)

    gpu_s, host = of_each(seconds), np.array(host_s, float)
    return Parts(
        tuple(index),
        tuple(pipes),
        gpu_s,
        of_each(seconds * limited),
        host,
        of_each(columns.flops),
        of_each(columns.bytes),
        predict(demand(trace, op_at, work=work), rates, constants, host_speed).step_s if gpu_s.sum() else 0.0,
    )


def _before(trace: Trace, index: Sequence[int], work: Sequence[Work]) -> list[dict[str, float]]:
    """What the host does before it launches each operator: modules that it calls, data that it makes, waits."""
    found = [dict.fromkeys(KINDS, 0.0) for _ in index]
    places = {number: place for place, number in enumerate(index)}
    for number in modules((number, trace.ops[number]) for number in index):
        found[places[number]]["module"] += 1
    for entry in work:
        if found:
            add_work(found[min(bisect_left(index, entry.place), len(index) - 1)], [entry])
    return found


def between(first: Parts, last: Parts, share: float) -> Parts:
    """The same operators at a batch size between two, from 0 (the first) to 1 (the last), as step times are taken there."""

    def line(one: Floats, other: Floats) -> Floats:
        return np.maximum(one + (other - one) * share, 0.0)

    return first._replace(
        gpu_s=line(first.gpu_s, last.gpu_s),
        compute_s=line(first.compute_s, last.compute_s),
        host_s=line(first.host_s, last.host_s),
        flops=line(first.flops, last.flops),
        bytes=line(first.bytes, last.bytes),
        step_s=first.step_s + (last.step_s - first.step_s) * share,
    )
