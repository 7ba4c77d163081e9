"""How fast a workload trains on cards: traces joined with the speed model, and with the step times that were kept.

Step times are worked out at powers of two, and are linear between them; a workload whose batch sizes have to be traced one by one
is answered by a line through those that were. Computes no kernel's time itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import msgspec

from whichgpu.batch_sizes import power_of_two_below
from whichgpu.catalogue import Gpu
from whichgpu.errors import WhichGpuError
from whichgpu.predictor import Predictor
from whichgpu.scaling import Scaled, Single
from whichgpu.speed import constants
from whichgpu.speed.asked import TENSOR_PIPES
from whichgpu.speed.host import work_of
from whichgpu.speed.rates import rates
from whichgpu.speed.record import Limit, PredictedSpeed, speed
from whichgpu.speed.step_time import Demand, demand, predict, repeated

NAMES = {"fp16": "float16", "bf16": "bfloat16"}
_BETTER = 1.01
_LIMITS: tuple[Limit, ...] = ("compute", "memory", "host")


class Speeds:
    """Step times of one workload, by card and batch size."""

    def __init__(self, predictor: Predictor, host_speed: float = 1.0) -> None:
        """`host_speed`: of the machine that the cards are in, times the reference's."""
        self._predictor = predictor
        self._host_speed = host_speed
        self._demands: dict[tuple[str, int], Demand] = {}
        self._alike: dict[tuple[str, int], list[tuple[int, int]]] = {}  # by class of cards and traced batch size

    def of(self, card: Gpu, batch_size: int) -> PredictedSpeed | str:
        """The speed at a batch size, or why none can be predicted."""
        if batch_size < 1:
            return "not even batch size 1 fits"
        try:
            step_s, limit = self._step(card, batch_size)
        except WhichGpuError as error:
            return str(error)
        if step_s <= 0:
            return "the step runs no operator on the GPU"
        return speed(
            batch_size, step_s, constants.half_width(constants.load(), card.name, card.architecture, limit), limit
        )

    def best(self, card: Gpu, largest: int) -> PredictedSpeed | None:
        """The speed at the batch size with most samples per second, where that is more than 1 % above the largest batch's.

        Rates are monotone between powers of two, so that these are tried, from the largest down while they get better.
        """
        whole = self.of(card, largest)
        if not isinstance(whole, PredictedSpeed) or not self._predictor.follows(card.capability):
            return None
        best, size = whole, power_of_two_below(largest)
        for one in (size, size // 2) if size < largest else (size // 2,):
            best = max(best, self._or(card, one, best), key=lambda found: found.samples_per_s)
        size = best.batch_size // 2
        while best is not whole and size and self._or(card, size, best).samples_per_s > best.samples_per_s:
            best, size = self._or(card, size, best), size // 2
        return best if best.samples_per_s > _BETTER * whole.samples_per_s else None

    def _or(self, card: Gpu, batch_size: int, other: PredictedSpeed) -> PredictedSpeed:
        found = self.of(card, batch_size)
        return found if isinstance(found, PredictedSpeed) else other

    def note(self, card: Gpu) -> str:
        """Which arithmetic of the step the card does not have, and computes otherwise; empty where it has all."""
        try:
            emulated = rates(card).emulated
        except WhichGpuError:
            return ""
        used = self._predictor.facts(card.capability).facts.get("dtypes", ())
        slow = [name for pipe, name in NAMES.items() if pipe in emulated and pipe in TENSOR_PIPES and name in used]
        told = [f"computes {' and '.join(slow)} at the speed of float32: it has no tensor cores for it"] if slow else []
        if "float64" in used and not {"float32", "float16", "bfloat16"} & set(used):
            told.append("float64 is taken to run at the rate of its specification; no step in it was measured")
        return "; ".join(told)

    def _step(self, card: Gpu, batch_size: int) -> tuple[float, Limit]:
        low, high = self.around(card, batch_size)
        first, limit = self._at(card, low)
        if low == high:
            return first, limit
        last, upper = self._at(card, high)
        step_s = first + (last - first) * (batch_size - low) / (high - low)
        return max(step_s, min(first, last) / high), limit if 2 * batch_size < low + high else upper

    def around(self, card: Gpu, batch_size: int) -> tuple[int, int]:
        """The batch sizes between which the step time is taken to be linear."""
        if self._predictor.follows(card.capability):
            low = power_of_two_below(batch_size)
            return low, low if low == batch_size else 2 * low
        sizes = sorted(self._predictor.info().batch_sizes)
        if batch_size in sizes or len(sizes) < 2:
            return batch_size, batch_size
        return next(((low, high) for low, high in pairwise(sizes) if batch_size < high), (sizes[-2], sizes[-1]))

    def _at(self, card: Gpu, batch_size: int) -> tuple[float, Limit]:
        """Seconds at a batch size whose operators are known, and what takes longest."""
        kept = self._predictor.step_times
        key = kept_as(card, batch_size, self._host_speed)
        if key not in kept:
            step = predict(self._asked(card, batch_size), rates(card), constants.load().constants, self._host_speed)
            kept[key] = (step.step_s if step.gpu_s else 0.0, _LIMITS.index(step.limit))
        step_s, limit = kept[key]
        return step_s, _LIMITS[int(limit)]

    def _asked(self, card: Gpu, batch_size: int) -> Demand:
        name = self._predictor.traced_as(card.capability)
        if (name, batch_size) not in self._demands:
            source = self._predictor.source(batch_size, card.capability)
            self._demands[name, batch_size] = demand(
                source.low,
                lambda index: source.op(index, batch_size),
                self._alike_ops(name, source),
                work_of(source.low, source.high, batch_size),
            )
        return self._demands[name, batch_size]

    def _alike_ops(self, name: str, source: Scaled | Single) -> list[tuple[int, int]]:
        """The operators of a step, those that are alike at every batch size that is foretold from the same traces counted."""
        key = (name, source.low.batch_size)
        if isinstance(source, Single):
            return repeated(source.low, source.signature)
        if key not in self._alike:
            self._alike[key] = repeated(source.low, source.signature)
        return self._alike[key]


def kept_as(card: Gpu, batch_size: int, host_speed: float = 1.0) -> str:
    """The name under which a step time is kept; another where a lab's own figures stand for the card, or for another host."""
    return f"{card.id} {_digest(card)} {batch_size}" + (f" {host_speed:g}" if host_speed != 1 else "")


@cache
def _digest(card: Gpu) -> str:
    return hashlib.sha256(msgspec.json.encode(card)).hexdigest()[:8]


def relative(
    speeds: Mapping[str, PredictedSpeed | str], baseline: PredictedSpeed | str | None
) -> dict[str, float | None]:
    """Samples per second as a ratio to a card's, each at its own largest batch; None where one of the two is unknown."""
    if not isinstance(baseline, PredictedSpeed):
        return dict.fromkeys(speeds)
    return {
        name: round(found.samples_per_s / baseline.samples_per_s, 3) if isinstance(found, PredictedSpeed) else None
        for name, found in speeds.items()
    }


def notes(missing: Mapping[str, PredictedSpeed | str], cards: Sequence[Gpu]) -> Iterator[str]:
    """Of which cards no speed is predicted though the step fits, and why, cards with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for card in cards:
        found = missing.get(card.id)
        if isinstance(found, str) and not found.startswith("not even"):
            reasons.setdefault(found.removeprefix(f"{card.name}: "), []).append(card.name)
    for reason, names in reasons.items():
        yield f"no speed is predicted of {', '.join(names)}: {reason}"
