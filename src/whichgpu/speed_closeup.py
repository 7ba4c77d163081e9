"""The time of one batch size of a workload on a card, operator by operator: the time side of `explain`.

Joins the traces of a predictor with the speed model as `speeds` does, so that the step time is the one that `fit` and `rank` say.
"""

from __future__ import annotations

from typing import NamedTuple

from whichgpu.catalogue import Gpu
from whichgpu.host_speed import chosen
from whichgpu.known_speeds import known_speeds
from whichgpu.predictor import Predictor
from whichgpu.speed import constants
from whichgpu.speed.host import work_of
from whichgpu.speed.parts import Parts, between, parts
from whichgpu.speed.rates import Rates, rates
from whichgpu.speed.record import PredictedSpeed
from whichgpu.speeds import Speeds
from whichgpu.time_explanation import OpGroup, StepTimes, grouped, step_times
from whichgpu.trace import Trace


class TimeLook(NamedTuple):
    """A step's times, and all of its groups, of which the record has the most expensive."""

    times: StepTimes
    groups: tuple[OpGroup, ...]


def time_of(predictor: Predictor, card: Gpu, batch_size: int, host_speed: float | None = None) -> TimeLook | str:
    """Where the time of a step goes on a card, or why that cannot be predicted; `host_speed` is that of `fit`."""
    host, of_host = chosen(host_speed)
    speeds = Speeds(predictor, host)
    speed = speeds.of(card, batch_size)
    if not isinstance(speed, PredictedSpeed):
        return speed
    priced = rates(card)
    low, high = speeds.around(card, batch_size)
    trace, found = _parts(predictor, card, priced, low, host)
    if low != high:
        found = between(found, _parts(predictor, card, priced, high, host)[1], (batch_size - low) / (high - low))
    groups = grouped(trace, found, host_limited=speed.limit == "host")
    known = known_speeds(predictor.ref).get(card.id, {}).get(batch_size)
    note = "; ".join(filter(None, [speeds.note(card), of_host]))
    return TimeLook(step_times(priced, found, groups, speed, known, note), tuple(groups))


def _parts(predictor: Predictor, card: Gpu, priced: Rates, batch_size: int, host_speed: float) -> tuple[Trace, Parts]:
    source = predictor.source(batch_size, card.capability)
    fitted = constants.load().constants
    work = work_of(source.low, source.high, batch_size)
    return source.low, parts(source.low, lambda index: source.op(index, batch_size), priced, fitted, work, host_speed)
