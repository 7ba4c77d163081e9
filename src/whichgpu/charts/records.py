"""What the charts show, as records made from the answer of `rank`: the same for pictures, bars in a terminal and JSON.

"value": speed for the money against memory, with the cards that none beats in both (the Pareto front of today's prices).
"relative": speeds beside a card's that is 1. "batch": the largest batch against memory.

Several workloads are put together as geometric means of ratios to the baseline, over image and language models apart where there
are many; a card counts that trains all of them. Intervals are those of the card's own speed: they hold about 80 % of the time.
A ratio of measured speeds is measured where both are; else it is predicted by predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from statistics import fmean, geometric_mean
from typing import Literal

import msgspec

from whichgpu import text
from whichgpu.advice import Basis, RankReport, RankRow, is_current
from whichgpu.catalogue import Price
from whichgpu.errors import InputError
from whichgpu.runs import S_AN_HOUR
from whichgpu.speed.record import PredictedSpeed
from whichgpu.zoo_list import family

Money = Literal["buy", "rent"]

SINGLE = 4  # up to so many workloads each is a series of its own
MOST = 24  # cards of a chart of bars, where none are named
_SERIES = (("image", "image models"), ("language", "language models"), (None, "other models"))
_THOUSAND = 1000.0


class ValuePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A card with a price."""

    gpu: str
    memory_gb: int  # as sold
    value: float
    low: float
    high: float
    basis: Basis  # of the speed
    usd: float  # to buy it, or for an hour
    condition: str  # of the price
    date: str  # of the newest offer
    current: bool  # it can be had at about this price today
    front: bool  # no card of today's prices has as much memory and more value


class ValueChart(msgspec.Struct, frozen=True, kw_only=True):
    """Speed for the money against memory."""

    chart: Literal["value"] = "value"
    workloads: tuple[str, ...]
    price: Money
    unit: str  # of `value`
    baseline: str | None  # the card whose speed is 1, of several workloads
    points: tuple[ValuePoint, ...]  # the most value first
    source: str
    notes: tuple[str, ...]


class RelativeBar(msgspec.Struct, frozen=True, kw_only=True):
    """A card's speed in one series; the baseline's is 1."""

    value: float
    low: float
    high: float
    basis: Basis


class RelativeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A card with its bars."""

    gpu: str
    memory_gb: int
    bars: tuple[RelativeBar | None, ...]  # by series; None where it does not train all of it


class RelativeChart(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds beside the baseline's, each card at its own largest batch."""

    chart: Literal["relative"] = "relative"
    workloads: tuple[str, ...]
    baseline: str
    series: tuple[str, ...]
    rows: tuple[RelativeRow, ...]  # the fastest first
    source: str
    notes: tuple[str, ...]


class BatchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The cards that are sold with so much memory: the least of their largest batches."""

    memory_gb: int
    cards: tuple[str, ...]
    value: float  # likely fits
    low: float  # fits even at the high end of the prediction


class BatchSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A curve."""

    name: str
    workloads: tuple[str, ...]
    points: tuple[BatchPoint, ...]  # the smallest memory first


class BatchChart(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch against memory."""

    chart: Literal["batch"] = "batch"
    workloads: tuple[str, ...]
    unit: str
    baseline: str | None  # the card whose batches are 1; None where batches are counted
    series: tuple[BatchSeries, ...]
    source: str
    notes: tuple[str, ...]


Chart = ValueChart | RelativeChart | BatchChart


# ---- which workloads belong together --------------------------------------------------------------------


def series_of(workloads: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Workloads as series with names: each by itself, or many by what they are models of."""
    if len(workloads) <= SINGLE:
        return [(name, (name,)) for name in workloads]
    kinds = {name: family(name) for name in workloads}
    found = [(title, tuple(name for name in workloads if kinds[name] == kind)) for kind, title in _SERIES]
    return [(title, members) for title, members in found if members]


# ---- speeds ------------------------------------------------------------------------------------------------


def _spread(found: PredictedSpeed) -> tuple[float, float]:
    """Both ends of a speed as shares of it."""
    return found.samples_per_s_low / found.samples_per_s, found.samples_per_s_high / found.samples_per_s


def _ratio(row: RankRow, unit: RankRow, name: str) -> RelativeBar | None:
    """A card's speed by the baseline's."""
    found, ratio, of_unit = row.speed.get(name), row.relative_speed.get(name), unit.speed.get(name)
    if found is None or ratio is None:
        return None
    low, high = _spread(found)
    if of_unit is not None and found.basis == of_unit.basis != "predicted":
        ratio = found.samples_per_s / of_unit.samples_per_s
        return RelativeBar(value=ratio, low=ratio * low, high=ratio * high, basis=found.basis)
    return RelativeBar(value=ratio, low=ratio * low, high=ratio * high, basis="predicted")


def _mean(row: RankRow, unit: RankRow, names: Iterable[str]) -> RelativeBar | None:
    """The geometric mean over workloads; None where the card does not train all. Their errors are taken to be alike."""
    bars = []
    for name in names:
        bar = _ratio(row, unit, name)
        if bar is None:
            return None
        bars.append(bar)
    value, low, high = (exp(fmean(log(end) for end in ends)) for ends in zip(*map(_ends, bars), strict=True))
    bases = {bar.basis for bar in bars}
    return RelativeBar(value=value, low=low, high=high, basis=bases.pop() if len(bases) == 1 else "predicted")


def _ends(bar: RelativeBar) -> tuple[float, float, float]:
    return bar.value, bar.low, bar.high


def _unit(report: RankReport) -> RankRow:
    """The baseline's row; InputError where there is none to compare with."""
    found = next((row for row in report.gpus if row.gpu == report.baseline), None)
    if found is None or not any(ratio is not None for row in report.gpus for ratio in row.relative_speed.values()):
        why = next((note for note in report.notes if "not compared" in note), "the baseline has no predicted speed")
        raise InputError(f"{why}; take another --baseline")
    return found


def _reason(row: RankRow) -> str:
    """Why a card has no bar: that it is not supported, or why its speed is unknown. Empty where that is not told."""
    told = row.notes if not row.supported else tuple(dict.fromkeys(row.speed_missing.values()))
    return "; ".join(one.removeprefix(f"{row.gpu}: ") for one in told)


def _reasons(report: RankReport, shown: Iterable[str]) -> list[str]:
    """Of each card that is not shown, why; those of which nothing is told are not named."""
    there = set(shown)
    return [f"{row.gpu} is left out: {why}" for row in report.gpus if row.gpu not in there and (why := _reason(row))]


def _gb(row: RankRow) -> int:
    return text.memory_class_gb(row.memory_bytes, row.gpu)


def _cards(count: int) -> str:
    return "1 card is" if count == 1 else f"{text.format_count(count)} cards are"


def _supported(report: RankReport) -> list[RankRow]:
    return [row for row in report.gpus if row.supported]


def _source(report: RankReport, *prices: Price) -> str:
    versions = sorted({trace.torch_version for trace in report.traces.values() if trace.torch_version})
    torch = f" (torch {', '.join(versions)})" if versions else ""
    said = f"Predicted from traces{torch}, each card at its largest batch; no GPU was used."
    if prices:
        months = text.format_months(min(price.oldest for price in prices), max(price.newest for price in prices))
        said += f" Prices: medians of dated offers, {months}."
    return said


# ---- the charts ----------------------------------------------------------------------------------------------


def value_chart(report: RankReport, price: Money = "buy", *, named: bool = False) -> ValueChart:
    """Speed for the money against memory; InputError where no card has both.

    Cards with an old price or that of their launch are shown only where they were `named`, or where no other card is.
    """
    several = len(report.workloads) > 1
    unit = _unit(report) if several else None
    points, fails, unpriced = [], 0, 0
    for row in _supported(report):
        offer = row.buy if price == "buy" else row.rent
        bar = _mean(row, unit, report.workloads) if unit is not None else _alone(row, report.workloads[0])
        if bar is None:
            fails += 1
        elif offer is None:
            unpriced += 1
        else:
            points.append((_value_point(row, bar, offer, price, several), offer))
    if not points:
        told = "".join(f"; {why}" for why in _reasons(report, ()) if named)
        raise InputError(
            f"no card of those asked about has both a speed and a price to {price}{told}; name others with --gpu"
        )
    today = [pair for pair in points if pair[0].current]
    shown = points if named or not today else today
    front = _front([point for point, _ in shown])
    marked = [msgspec.structs.replace(point, front=point.gpu in front) for point, _ in shown]
    counted = (
        (fails, "that do not train all of it, or of which no speed is known"),
        (unpriced, f"of which no price to {price} is known"),
        (len(points) - len(shown), "with an old price or that of their launch"),
    )
    notes = [f"{_cards(count)} left out {why}" for count, why in counted if count]
    if named:
        notes += _reasons(report, (point.gpu for point, _ in points))
    what = f"speed ({report.baseline} = 1)" if several else "samples a second"
    if price == "rent":
        what = f"hours of the {report.baseline}'s work" if several else "samples"
    return ValueChart(
        workloads=report.workloads,
        price=price,
        unit=f"{what} for {'1,000 USD' if price == 'buy' else '1 USD of rent'}",
        baseline=report.baseline if several else None,
        points=tuple(sorted(marked, key=lambda point: (-point.value, point.gpu))),
        source=_source(report, *(offer for _, offer in shown)),
        notes=tuple(notes),
    )


def _alone(row: RankRow, name: str) -> RelativeBar | None:
    """The speed of one workload, in samples a second."""
    found = row.speed.get(name)
    if found is None:
        return None
    low, high = found.samples_per_s_low, found.samples_per_s_high
    return RelativeBar(value=found.samples_per_s, low=low, high=high, basis=found.basis)


def _value_point(row: RankRow, bar: RelativeBar, offer: Price, price: Money, several: bool) -> ValuePoint:
    money = _THOUSAND if price == "buy" else 1.0 if several else S_AN_HOUR
    factor = money / offer.usd
    return ValuePoint(
        gpu=row.gpu,
        memory_gb=_gb(row),
        value=bar.value * factor,
        low=bar.low * factor,
        high=bar.high * factor,
        basis=bar.basis,
        usd=offer.usd,
        condition=offer.condition,
        date=offer.newest,
        current=is_current(offer),
        front=False,
    )


def _front(points: Sequence[ValuePoint]) -> set[str]:
    """The cards of today's prices that no other one has as much memory as and more value than, or more memory and as much."""
    today = [point for point in points if point.current]

    def beaten(point: ValuePoint) -> bool:
        return any(
            other.memory_gb >= point.memory_gb
            and other.value >= point.value
            and (other.memory_gb, other.value) != (point.memory_gb, point.value)
            for other in today
        )

    return {point.gpu for point in today if not beaten(point)}


def relative_chart(report: RankReport, *, named: bool) -> RelativeChart:
    """Speeds beside the baseline's; where no cards are `named`, of the fastest that can be had today."""
    unit = _unit(report)
    series = series_of(report.workloads)
    rows = []
    for row in _supported(report):
        bars = tuple(_mean(row, unit, members) for _, members in series)
        if any(bars) and (named or row is unit or is_current(row.buy) or is_current(row.rent)):
            rows.append(RelativeRow(gpu=row.gpu, memory_gb=_gb(row), bars=bars))
    rows.sort(key=lambda row: (None in row.bars, -geometric_mean(bar.value for bar in row.bars if bar), row.gpu))
    shown = rows
    if not named and len(rows) > MOST:
        shown = [row for number, row in enumerate(rows) if number < MOST - 1 or row.gpu == unit.gpu][:MOST]
    left = len(_supported(report)) - len(shown)
    notes = (
        [f"{_cards(left)} left out: slower ones, and those without a price of today; --gpu names them"] if left else []
    )
    return RelativeChart(
        workloads=report.workloads,
        baseline=unit.gpu,
        series=tuple(name for name, _ in series),
        rows=tuple(shown),
        source=_source(report),
        notes=tuple(_reasons(report, (row.gpu for row in rows)) if named else notes),
    )


def batch_chart(report: RankReport) -> BatchChart:
    """The largest batch against memory: of each workload, or of many as means beside the baseline's."""
    series = series_of(report.workloads)
    single = all(len(members) == 1 for _, members in series)
    unit = None if single else next((row for row in report.gpus if row.gpu == report.baseline), None)
    if not single and unit is None:
        raise InputError("batches of many workloads are compared with a card's: name one with --baseline")
    found = [
        BatchSeries(name=name, workloads=members, points=_curve(report, members, unit)) for name, members in series
    ]
    kept = tuple(one for one in found if one.points)
    if not kept:
        raise InputError("no card of those asked about trains any of it at batch size 1; name others with --gpu")
    gone = [f"{one.name}: no card trains all of them" for one in found if not one.points]
    return BatchChart(
        workloads=report.workloads,
        unit="largest batch" if unit is None else f"largest batch ({unit.gpu} = 1)",
        baseline=unit.gpu if unit is not None else None,
        series=kept,
        source=_source(report).replace(", each card at its largest batch", ", with all of a card's memory free"),
        notes=("of cards with the same memory the one that holds least", *gone),
    )


def _curve(report: RankReport, names: Sequence[str], unit: RankRow | None) -> tuple[BatchPoint, ...]:
    """By size of memory, the card that holds least; sizes at which some workload does not fit on one are left out."""
    if unit is not None and not all(unit.max_batch_size[name] for name in names):
        raise InputError(f"the {unit.gpu} does not train all of them; take another --baseline")

    def mean(sizes: Callable[[RankRow], dict[str, int]], row: RankRow) -> float:
        values = [sizes(row)[name] / (unit.max_batch_size[name] if unit is not None else 1) for name in names]
        return 0.0 if not all(values) else geometric_mean(values) if len(values) > 1 else float(values[0])

    groups: dict[int, list[RankRow]] = {}
    for row in _supported(report):
        groups.setdefault(_gb(row), []).append(row)
    points = []
    for size, rows in sorted(groups.items()):
        likely = [mean(lambda row: row.max_batch_size, row) for row in rows]
        if not all(likely):
            continue
        safe = [mean(lambda row: row.max_batch_size_safe, row) for row in rows]
        cards = tuple(sorted(row.gpu for row in rows))
        points.append(BatchPoint(memory_gb=size, cards=cards, value=min(likely), low=min(safe)))
    return tuple(points)
