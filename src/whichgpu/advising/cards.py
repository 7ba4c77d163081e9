"""Each card of a ranking with what it costs and takes under somebody's wishes; makes `CardAdvice`, its reason left empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean

from whichgpu.advice import ORDER, RankReport, RankRow, tier_of
from whichgpu.advising.costs import break_even, whole
from whichgpu.advising.prices import Prices
from whichgpu.advising.records import CardAdvice
from whichgpu.advising.wishes import Wishes
from whichgpu.catalogue import Gpu
from whichgpu.speed.record import PredictedSpeed


def cards(report: RankReport, gpus: Iterable[Gpu], prices: Prices, wishes: Wishes) -> list[CardAdvice]:
    """The rows of a ranking as advice, in the order of recommendation: what trains most first, then the cheapest."""
    by_name = {gpu.name: gpu for gpu in gpus}
    fastest = _fastest(report)
    possible = trainable(report, wishes)
    found = [_card(row, by_name[row.gpu], report, prices, wishes, fastest, possible) for row in report.gpus]
    return sorted(found, key=_order)


def trainable(report: RankReport, wishes: Wishes) -> list[str]:
    """The workloads that some card of the ranking trains."""
    return [
        name for name in report.workloads if any(_runs(row, name) and _fits(row, name, wishes) for row in report.gpus)
    ]


def _fits(row: RankRow, name: str, wishes: Wishes) -> bool:
    return row.max_batch_size[name] >= (wishes.batch_size or 1)


def _runs(row: RankRow, name: str) -> bool:
    """Whether a card can run a workload at all, whatever its memory."""
    return row.supported or (name not in row.problems and bool(row.problems))


def best(row: RankRow, name: str) -> PredictedSpeed | None:
    """The speed at the batch size with most samples a second."""
    return row.best_speed.get(name) or row.speed.get(name)


def _fastest(report: RankReport) -> dict[str, float]:
    """Samples a second of the fastest card, by workload."""
    rates: dict[str, float] = {}
    for row in report.gpus:
        for name in report.workloads:
            speed = best(row, name)
            if speed is not None and _runs(row, name):
                rates[name] = max(rates.get(name, 0.0), speed.samples_per_s)
    return rates


def _card(
    row: RankRow,
    gpu: Gpu,
    report: RankReport,
    prices: Prices,
    wishes: Wishes,
    fastest: Mapping[str, float],
    possible: Sequence[str],
) -> CardAdvice:
    able = [name for name in report.workloads if _runs(row, name)]
    # by memory alone where the card can run none of them, so that it is known what other software would do
    fails = tuple(name for name in report.workloads if not _fits(row, name, wishes) or (able and name not in able))
    trains = len(report.workloads) - len(fails)
    buy, rent = prices.buy(gpu), prices.rent(gpu)
    speeds = {name: best(row, name) if name not in fails else None for name in report.workloads}
    runs = [row.run.get(name) if name not in fails else None for name in possible]
    return CardAdvice(
        gpu=gpu.name,
        id=gpu.id,
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        form=gpu.form,
        memory_bytes=gpu.memory_bytes,
        tdp_w=gpu.tdp_w,
        tier=tier_of(trains, len(report.workloads)),
        trains=trains,
        small_batches=any(
            row.max_batch_size[name] < max(report.usual_batch_size.get(name, 1), 1) for name in report.workloads
        ),
        max_batch_size=row.max_batch_size,
        max_batch_size_safe=row.max_batch_size_safe,
        fails=fails,
        supported=bool(able),
        unmeasured=not gpu.cuda,
        problems=row.notes,
        cannot=() if not able else tuple(name for name in report.workloads if name not in able),
        speed=speeds,
        relative_speed=_relative([speeds[name] for name in possible], [fastest.get(name, 0.0) for name in possible]),
        buy=buy,
        rent=rent,
        run=whole(runs, rent, wishes) if report.samples is not None else None,
        break_even=break_even(buy, rent, gpu.tdp_w, wishes),
        reason="",
    )


def _relative(speeds: Sequence[PredictedSpeed | None], fastest: Sequence[float]) -> float | None:
    """The geometric mean of shares of the fastest; None where a speed is unknown."""
    known = [speed.samples_per_s for speed in speeds if speed is not None]
    if not known or len(known) < len(speeds):
        return None
    return round(exp(fmean(log(one / most) for one, most in zip(known, fastest, strict=True))), 4)


def _order(card: CardAdvice) -> tuple[object, ...]:
    cost = card.buy.usd if card.buy is not None else float("inf")
    stale = card.buy is None or card.buy.stale
    return (card.unmeasured, not card.supported, ORDER[card.tier], -card.trains, stale, cost, card.gpu)
