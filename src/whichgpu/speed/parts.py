"""The time of a step operator by operator: seconds on the GPU and of the host, arithmetic and bytes of each.

The same costs, rates and constants as `step_time`, without adding up: the seconds of all operators together are the GPU's time
of the step, and the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from whichgpu.speed.asked import Cost
from whichgpu.speed.costs import costs
from whichgpu.speed.host import host_seconds, launches
from whichgpu.speed.kernels import Constants, Floats, all_seconds, columns_of, join, limited_by_compute
from whichgpu.speed.rates import Rates
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
    step_s: float  # of all, the GPU and the host at once


def parts(trace: Trace, op_at: Callable[[int], Op], rates: Rates, constants: Constants) -> Parts:
    """The last traced step; `op_at` gives an operator by its index in the trace, at the batch size that is meant."""
    tf32 = bool(trace.facts.get("tf32_matmul"))
    index = [number for number, op in enumerate(trace.ops) if op.step == trace.steps - 1]
    asked: list[Cost] = []
    owners, pipes, host_s = [], [], []
    for place, number in enumerate(index):
        op = op_at(number)
        own = costs(op, tf32_matmul=tf32)
        asked += own
        owners += [place] * len(own)
        pipes.append(max(own, key=lambda cost: cost.flops).pipe if any(cost.flops for cost in own) else "")
        host_s.append(host_seconds(launches([op]), constants))
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
        float(join(float(gpu_s.sum()), float(host.sum()))) if gpu_s.sum() else 0.0,
    )


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
