"""Where the time of a training step goes on a card: its most expensive operators, and what limits them.

The records that `explain` answers with beside those of memory, and how they are made from the parts of a step. The times of all
groups, with the time in which the GPU waits for the host, add up to the predicted step time.

Operators of the same name, phase, module and line are one group; modules that differ in numbers only count as one, which says how
many it stands for. A group is limited by arithmetic or by memory, whichever has more of its time. It is limited by the host where
the whole step is, and launching it takes longer than running it: elsewhere launches hide behind kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from whichgpu.module_paths import folded, starred
from whichgpu.speed.parts import Parts
from whichgpu.speed.rates import Rates
from whichgpu.speed.record import Limit, PredictedSpeed
from whichgpu.trace import Op, Trace

GROUPS = 10  # how many are listed; the rest is summed up


class OpGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All operators of one name that one line runs in one phase, in one module or repeated ones."""

    op: str
    phase: str
    module: str | None  # its path, with * for the numbers of repeated layers; None outside of modules
    modules: int  # how many modules that path stands for; 0 outside of modules
    source: str | None  # "file.py:12"; None where no line of the user's or a library's is known
    calls: int
    gpu_s: float
    share: float  # of the step time
    limit: Limit
    host_s: float  # to launch them, which runs at the same time
    flops: float
    bytes: float  # that must cross the memory bus
    pipe: str  # arithmetic that most FLOPs are done in: "fp32", "tf32", ...; empty where none are counted


class OtherGroups(msgspec.Struct, frozen=True, kw_only=True):
    """All other operators."""

    groups: int
    calls: int
    gpu_s: float
    share: float


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where the predicted time of a step on a card goes."""

    gpu: str
    batch_size: int
    speed: PredictedSpeed  # predicted
    known: PredictedSpeed | None  # measured or published at this batch size
    step_s: float  # what `gpu_s` and `waiting_s` add up to
    gpu_s: float  # all kernels; what `groups` and `others` add up to
    compute_s: float  # of which arithmetic limits
    memory_s: float  # of which memory bandwidth limits
    waiting_s: float  # in which the GPU waits for the host
    host_s: float  # that the host takes for all launches, most of it while the GPU works
    groups: tuple[OpGroup, ...]  # the most expensive, the largest first
    others: OtherGroups
    flops: float
    bytes: float
    peak_bytes_per_s: float  # of the card's data sheet, as are the peaks
    peak_flops_per_s: dict[str, float]  # of the kinds of arithmetic that the step uses
    note: str = ""  # arithmetic that the card does not have and computes otherwise


def grouped(trace: Trace, found: Parts, *, host_limited: bool) -> list[OpGroup]:
    """The parts of a step as groups, the most expensive first."""
    places: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for place, index in enumerate(found.ops):
        op = trace.ops[index]
        places[op.name, op.phase, starred(_name(trace, op.module) or ""), op.source].append(place)
    groups = [_group(trace, found, members, host_limited) for members in places.values()]
    return sorted(groups, key=lambda group: (-group.gpu_s, group.op, group.phase, group.module or ""))


def _group(trace: Trace, found: Parts, places: Sequence[int], host_limited: bool) -> OpGroup:
    ops: list[Op] = [trace.ops[found.ops[place]] for place in places]
    paths = {path for op in ops if (path := _name(trace, op.module)) is not None}
    gpu_s, compute_s, host_s, flops, bytes_ = (
        float(column[places].sum()) for column in (found.gpu_s, found.compute_s, found.host_s, found.flops, found.bytes)
    )
    return OpGroup(
        op=ops[0].name,
        phase=ops[0].phase,
        module=folded(paths) if paths else None,
        modules=len(paths),
        source=_name(trace, ops[0].source),
        calls=len(ops),
        gpu_s=gpu_s,
        share=gpu_s / found.step_s if found.step_s else 0.0,
        limit="host" if host_limited and host_s > gpu_s else "compute" if compute_s > gpu_s / 2 else "memory",
        host_s=host_s,
        flops=flops,
        bytes=bytes_,
        pipe=_most_used(found, places),
    )


def _most_used(found: Parts, places: Sequence[int]) -> str:
    """The arithmetic that most FLOPs of some operators are done in; empty where none are counted."""
    flops: dict[str, float] = defaultdict(float)
    for place in places:
        if found.pipe[place]:
            flops[found.pipe[place]] += float(found.flops[place])
    return max(flops, key=lambda pipe: flops[pipe], default="")


def _name(trace: Trace, index: int) -> str | None:
    return trace.names[index] if index >= 0 else None


def step_times(
    card: Rates,
    found: Parts,
    groups: Sequence[OpGroup],
    speed: PredictedSpeed,
    known: PredictedSpeed | None = None,
    note: str = "",
) -> StepTimes:
    """The record of a step whose parts are known."""
    gpu_s, rest = float(found.gpu_s.sum()), groups[GROUPS:]
    pipes = sorted({pipe for pipe in found.pipe if pipe and pipe not in card.emulated} | _plain(found.pipe, card))
    return StepTimes(
        gpu=card.name,
        batch_size=speed.batch_size,
        speed=speed,
        known=known,
        step_s=found.step_s,
        gpu_s=gpu_s,
        compute_s=float(found.compute_s.sum()),
        memory_s=gpu_s - float(found.compute_s.sum()),
        waiting_s=found.step_s - gpu_s,
        host_s=float(found.host_s.sum()),
        groups=tuple(groups[:GROUPS]),
        others=OtherGroups(
            groups=len(rest),
            calls=sum(group.calls for group in rest),
            gpu_s=sum(group.gpu_s for group in rest),
            share=sum(group.share for group in rest),
        ),
        flops=float(found.flops.sum()),
        bytes=float(found.bytes.sum()),
        peak_bytes_per_s=card.bandwidth,
        peak_flops_per_s={pipe: card.flops[pipe] for pipe in pipes},
        note=note,
    )


def _plain(pipes: Iterable[str], card: Rates) -> set[str]:
    """Float32, where something is computed in it for want of another kind of arithmetic."""
    return {"fp32"} if any(pipe in card.emulated for pipe in pipes) else set()
