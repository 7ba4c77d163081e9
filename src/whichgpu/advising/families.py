"""What image and language models gain from larger and faster cards: the two curves of the article of 2020.

A point is a card: the arithmetic mean over a family of its speed as a ratio to the baseline's, each card at its own largest
batch, with 0 for a workload that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import fmean, linear_regression

from whichgpu.advising.records import CardAdvice, CurvePoint, Family
from whichgpu.zoo_list import Family as Kind
from whichgpu.zoo_list import family

_BOTH: tuple[Kind, Kind] = ("image", "language")


def families(workloads: Sequence[str], cards: Sequence[CardAdvice], baseline: str | None) -> tuple[Family, ...]:
    """The curves of a set that has at least two workloads of each family; none for others, or without a baseline's speeds."""
    members = {kind: [name for name in workloads if family(name) == kind] for kind in _BOTH}
    named = [name for names in members.values() for name in names]
    whole = [card for card in cards if card.supported and all(card.speed[name] is not None for name in named)]
    unit = next((card for card in whole if card.gpu == baseline), None) or max(
        whole, key=lambda card: (card.relative_speed or 0.0, card.gpu), default=None
    )
    if unit is None or any(len(names) < 2 for names in members.values()):
        return ()
    return tuple(_curve(kind, members[kind], cards, unit) for kind in _BOTH)


def _curve(kind: Kind, names: Sequence[str], cards: Sequence[CardAdvice], unit: CardAdvice) -> Family:
    points = _points(names, cards, unit)
    return Family(family=kind, workloads=len(names), points=points, memory_exponent=_exponent(points))


def _exponent(points: Sequence[CurvePoint]) -> float | None:
    """The slope of the logarithms, over the cards that train something; None where all have the same memory."""
    found = [(log(point.memory_bytes), log(point.mean_speed)) for point in points if point.mean_speed > 0]
    if len({memory for memory, _ in found}) < 2:
        return None
    return round(linear_regression(*zip(*found, strict=True)).slope, 3)


def _points(names: Sequence[str], cards: Sequence[CardAdvice], unit: CardAdvice) -> tuple[CurvePoint, ...]:
    found = []
    for card in cards:
        ratios = [_ratio(card, unit, name) for name in names]
        if card.supported and not card.unmeasured and all(ratio is not None for ratio in ratios):
            mean = round(fmean(ratio or 0.0 for ratio in ratios), 4)
            found.append(CurvePoint(gpu=card.gpu, memory_bytes=card.memory_bytes, mean_speed=mean))
    return tuple(sorted(found, key=lambda point: (point.memory_bytes, point.mean_speed)))


def _ratio(card: CardAdvice, unit: CardAdvice, name: str) -> float | None:
    """None where it is unknown; 0 where it does not fit."""
    if name in card.fails:
        return 0.0
    own, other = card.speed[name], unit.speed[name]
    return own.samples_per_s / other.samples_per_s if own is not None and other is not None else None
