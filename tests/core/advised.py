"""A small ranking and a small catalogue for tests of advice: real cards, made-up prices, batches and speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from whichgpu import catalogue
from whichgpu.advice import RankReport, RankRow, TraceInfo, tier_of
from whichgpu.advising.advice import advise
from whichgpu.advising.records import AdviceReport, CardAdvice
from whichgpu.advising.wishes import Wishes
from whichgpu.catalogue import Catalogue, Gpu, Offer
from whichgpu.runs import run
from whichgpu.speed.record import speed

DAY = date(2026, 12, 1)
TRACE = TraceInfo(kind="fake", affine=True, seconds=1.0, torch_version="2.14.1", unit="images")
# card: largest batch of each workload, samples per second at it
CARDS: dict[str, tuple[tuple[int, ...], float]] = {
    "RTX 3060": ((40, 0), 100.0),
    "RTX 3090": ((90, 3), 200.0),
    "RTX 4090": ((90, 3), 400.0),
    "T4": ((50, 1), 50.0),
    "H100 SXM": ((300, 20), 1000.0),
}
PRICES: dict[str, float] = {"RTX 3060": 250, "RTX 3090": 800, "RTX 4090": 2000, "T4": 900, "H100 SXM": 25_000}
RENTS: dict[str, float] = {"RTX 3090": 0.2, "RTX 4090": 0.4, "H100 SXM": 2.5}


def card(name: str) -> Gpu:
    """A card of the shipped catalogue."""
    return catalogue.load().find(name)


def offer(name: str, usd: float, kind: str = "buy-new", **more: Any) -> Offer:
    """An offer of a card."""
    told = {"provider": "shop", "date": "2026-11", "source": f"https://example.com/{kind}", **more}
    return Offer(gpus=(card(name).id,), kind=kind, usd=Decimal(str(usd)), **told)  # type: ignore[arg-type]


def offers() -> list[Offer]:
    """One price to buy for each card, and two providers to rent some from."""
    bought = [offer(name, usd) for name, usd in PRICES.items()]
    rented = [
        offer(name, factor * usd, "cloud-on-demand", provider=provider)
        for name, usd in RENTS.items()
        for provider, factor in (("one", 0.9), ("two", 1.1))
    ]
    return [*bought, *rented]


def market(extra: Sequence[Offer] = (), own: Sequence[Offer] | None = None, more: Sequence[str] = ()) -> Catalogue:
    """The cards with their offers on a day."""
    return Catalogue([card(name) for name in (*CARDS, *more)], [*(offers() if own is None else own), *extra], DAY)


def ranking(
    workloads: int = 1,
    samples: int | None = None,
    rows: Mapping[str, tuple[tuple[int, ...], float]] = CARDS,
    problems: Mapping[str, str] | None = None,
    usual: int | None = None,
) -> RankReport:
    """A ranking of the cards for one or two workloads."""
    names = ("a", "b")[:workloads]
    found = [
        _row(name, sizes, rate, names, samples, (problems or {}).get(name)) for name, (sizes, rate) in rows.items()
    ]
    return RankReport(
        workloads=names,
        basis="predicted",
        traces=dict.fromkeys(names, TRACE),
        gpus=tuple(found),
        samples=samples,
        usual_batch_size=dict.fromkeys(names, usual) if usual else {},
    )


def _row(
    name: str, sizes: tuple[int, ...], rate: float, workloads: Sequence[str], samples: int | None, problem: str | None
) -> RankRow:
    gpu = card(name)
    batches = dict(zip(workloads, sizes, strict=False))
    trains = sum(size > 0 for size in batches.values())
    known = gpu.cuda and problem is None
    speeds = {
        one: speed(size, size / rate, 0.2, "compute") if size and known else None for one, size in batches.items()
    }
    return RankRow(
        gpu=gpu.name,
        memory_bytes=gpu.memory_bytes,
        compute_capability=gpu.compute_capability or "",
        tier=tier_of(trains, len(workloads)),
        trains=trains,
        max_batch_size=batches,
        max_batch_size_safe={one: size - size // 10 for one, size in batches.items()},
        max_batch_size_pow2=batches,
        supported=problem is None,
        buy=None,
        rent=None,
        notes=() if problem is None else (problem,),
        speed=speeds,
        run={
            one: run(samples, found, gpu.tdp_w) if samples is not None and found is not None else None
            for one, found in speeds.items()
        },
    )


def ask(report: RankReport | None = None, cards: Catalogue | None = None, **wishes: Any) -> AdviceReport:
    """Advice on the small ranking."""
    report = report or ranking(samples=wishes.get("samples"))
    more = {key: wishes.pop(key) for key in ("machines", "currency", "changes") if key in wishes}
    return advise(report, cards or market(), Wishes(**wishes), **more)


def of(report: AdviceReport, name: str) -> CardAdvice:
    """What is said of one card."""
    return next(one for one in report.cards if one.gpu == card(name).name)


def picks(report: AdviceReport) -> dict[str, tuple[str, str]]:
    """Card and way by role."""
    return {role: (pick.gpu, pick.way) for pick in report.short_list for role in pick.roles}


__all__ = [
    "CARDS",
    "DAY",
    "PRICES",
    "RENTS",
    "TRACE",
    "ask",
    "card",
    "market",
    "of",
    "offer",
    "offers",
    "picks",
    "ranking",
]
