"""From dated offers to one price with its interval: the only place that says what a card costs, and how far to trust it.

Which offers. To buy: new ones of the last BUY_MONTHS months, else used ones, else the lowest listings of a shop, else the
newest older offers ("new, dated"), else the price at launch. To rent: on demand, of the last RENT_MONTHS months; a provider
counts with the median of what it asked for lately (NEWEST_DAYS before its newest offer for the card), so that a price that
was read again takes the place of the earlier one; else the same over older offers ("on-demand, dated"). The lowest listings
of marketplaces are left out of rents.

How far to trust it. `usd` is the median; it is likely between `low_usd` and `high_usd`. Without age these are the quartiles
of what the median is over (of four or more; else its lowest and highest). With age both move apart by the factor
exp(DRIFT x sqrt(months)): a price wanders, and 80 % of the prices of the shipped files that were read twice had moved by
less. RENT_DRIFT is from 72 pairs of rents of one provider and card, most 3 months apart (where it gives x 1.3); BUY_DRIFT
from 9 pairs of purchase prices, which is few. A test works both out again from the files. Beyond MOST_MONTHS the interval
grows no more: hardly any pair is that far apart (one of purchases, 61 months: x 0.76), and the price is called stale anyhow.

What is stale. A price older than its window, or that of the launch: nobody sells at that any more, as far as is known.

Not covered: taxes, shipping, minimum terms, discounts for long terms, and whether anything is in stock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from statistics import median, quantiles
from typing import Literal

import msgspec

from whichgpu.catalogue.days import age_days, middle, months
from whichgpu.catalogue.records import Gpu, Offer

__all__ = [
    "BUY_MONTHS",
    "NEWEST_DAYS",
    "RENT_MONTHS",
    "Kind",
    "Price",
    "counted",
    "in_condition",
    "interval",
    "is_recent",
    "of_instance",
    "price_of",
    "price_to_buy",
    "smallest",
]

Kind = Literal["buy", "rent", "spot"]

BUY_MONTHS = 18  # a purchase price older than this is named as old
RENT_MONTHS = 12
NEWEST_DAYS = 30
RENT_DRIFT = 0.153  # per square root of a month
BUY_DRIFT = 0.226
MOST_MONTHS = 24  # of wandering that are known from pairs


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a card costs to buy, or an hour of it to rent: the median over `offers` offers, on the day that was asked about."""

    usd: float
    unit: Literal["once", "hour"]
    # "new", "used", "lowest listing", "new, dated", "used, dated", "launch"; "on-demand", "on-demand, dated", "spot", ...
    condition: str
    offers: int  # how many offers the median is over
    lowest_usd: float
    highest_usd: float
    oldest: str  # date of the oldest offer used, ISO ("2026-05-24" or "2026-05")
    newest: str
    providers: tuple[str, ...]
    sources: tuple[str, ...]
    low_usd: float  # likely between these two: how far offers differ, and the more the older they are
    high_usd: float
    age_days: int  # of the newest offer used
    stale: bool  # older than what counts as a price of that day, or the price at launch
    least_count: int = 1  # cards in the smallest instance among the offers: fewer cannot be rented at this price


def interval(values: Sequence[float], kind: Kind, age: int) -> tuple[float, float, float]:
    """Low, likely and high USD of prices for one card (per provider, or per offer) of which the newest is `age` days old.

    The module says how; `values` must not be empty.
    """
    likely = float(median(values))
    quartiles = quantiles(values, n=4, method="inclusive") if len(values) >= 4 else (min(values), likely, max(values))
    drift = BUY_DRIFT if kind == "buy" else RENT_DRIFT
    wider = math.exp(drift * math.sqrt(min(months(age), MOST_MONTHS)))
    return quartiles[0] / wider, likely, quartiles[2] * wider


def price_of(gpu: Gpu, offers: Iterable[Offer], kind: Kind, day: date) -> Price | None:
    """The price of a card on a day from its offers, of which later ones do not count; None where none is known."""
    condition, chosen = counted(gpu, offers, kind, day)
    if not chosen:
        return None
    if kind == "buy":
        return _summary(chosen, [float(offer.usd) for offer in chosen], kind, condition, day)
    by_provider = _by_provider(chosen).values()
    values = [float(median(offer.usd for offer in of_one)) for of_one in by_provider]
    return _summary(chosen, values, kind, condition, day)


def in_condition(offers: Iterable[Offer], condition: str | None) -> list[Offer]:
    """The offers to buy a card; only the "new" or the "used" ones where either is wished for."""
    return [offer for offer in offers if not offer.rental and condition in (None, offer.kind.removeprefix("buy-"))]


def price_to_buy(gpu: Gpu, offers: Iterable[Offer], condition: str | None, day: date) -> Price | None:
    """What a card costs to buy on a day, in the condition that is wished for; the price of its launch is no used one."""
    price = price_of(gpu, in_condition(offers, condition), "buy", day)
    return None if price is not None and price.condition == "launch" and condition == "used" else price


def counted(gpu: Gpu, offers: Iterable[Offer], kind: Kind, day: date) -> tuple[str, list[Offer]]:
    """The offers that the price of a card on a day is over, and their condition; none where no price is known."""
    known = [offer for offer in offers if middle(offer.date) <= day]
    if kind == "buy":
        return _to_buy(gpu, known, day)
    return _to_rent(known, "cloud-spot" if kind == "spot" else "cloud-on-demand", day)


def smallest(offers: Sequence[Offer], day: date) -> list[Offer]:
    """The offers with the fewest cards, of those that are recent if any is: who needs one card does not rent eight."""
    recent = [o for o in offers if is_recent(o, day, RENT_MONTHS)] or list(offers)
    least = min((o.count for o in recent), default=1)
    return [o for o in recent if o.count == least]


def of_instance(price: Price) -> Price:
    """The price of a whole instance, which cannot be rented in part, from that of one of its cards."""
    count = price.least_count
    return msgspec.structs.replace(
        price,
        usd=count * price.usd,
        low_usd=count * price.low_usd,
        high_usd=count * price.high_usd,
        lowest_usd=count * price.lowest_usd,
        highest_usd=count * price.highest_usd,
    )


def _to_buy(gpu: Gpu, known: list[Offer], day: date) -> tuple[str, list[Offer]]:
    offers = [o for o in known if o.kind in {"buy-new", "buy-used"}]
    recent = [o for o in offers if is_recent(o, day, BUY_MONTHS)]
    typical = [o for o in recent if not o.minimum]
    for condition, chosen in (
        ("new", [o for o in typical if o.kind == "buy-new"]),
        ("used", [o for o in typical if o.kind == "buy-used"]),
        ("lowest listing", [o for o in recent if o.minimum]),
    ):
        if chosen:
            return condition, chosen
    if offers:
        newest = max(offers, key=lambda o: middle(o.date))
        old = [o for o in offers if o.kind == newest.kind and o.date[:7] == newest.date[:7]]
        return f"{newest.kind.removeprefix('buy-')}, dated", old
    if gpu.launch_price_usd is None:
        return "", []
    launch = Offer(
        gpus=(gpu.id,),
        kind="buy-new",
        provider=gpu.vendor,
        usd=Decimal(str(gpu.launch_price_usd)),
        date=gpu.release,
        source=gpu.source,
    )
    return "launch", [launch]


def _to_rent(
    known: list[Offer], offered: Literal["cloud-on-demand", "cloud-spot"], day: date
) -> tuple[str, list[Offer]]:
    offers = [o for o in known if o.kind == offered and not o.minimum]
    recent = [o for o in offers if is_recent(o, day, RENT_MONTHS)]
    condition = offered.removeprefix("cloud-") + ("" if recent else ", dated")
    return condition, [offer for of_one in _by_provider(recent or offers).values() for offer in _lately(of_one)]


def _by_provider(offers: Iterable[Offer]) -> dict[str, list[Offer]]:
    found: dict[str, list[Offer]] = {}
    for offer in offers:
        found.setdefault(offer.provider, []).append(offer)
    return found


def _lately(offers: list[Offer]) -> list[Offer]:
    """Of one provider's offers those of its newest reading."""
    newest = max(middle(offer.date) for offer in offers)
    return [offer for offer in offers if (newest - middle(offer.date)).days <= NEWEST_DAYS]


def is_recent(offer: Offer, day: date, most_months: int) -> bool:
    """Whether an offer is no older on a day than so many months."""
    return months(age_days(offer.date, day)) <= most_months


def _summary(offers: list[Offer], values: list[float], kind: Kind, condition: str, day: date) -> Price:
    dates = sorted((o.date for o in offers), key=middle)
    age = age_days(dates[-1], day)
    low_usd, usd, high_usd = interval(values, kind, age)
    return Price(
        usd=usd,
        low_usd=low_usd,
        high_usd=high_usd,
        unit="once" if kind == "buy" else "hour",
        condition=condition,
        offers=len(offers),
        lowest_usd=float(min(o.usd for o in offers)),
        highest_usd=float(max(o.usd for o in offers)),
        oldest=dates[0],
        newest=dates[-1],
        age_days=age,
        stale=condition.endswith("dated") or condition == "launch",
        least_count=min(o.count for o in offers),
        providers=tuple(sorted({o.provider for o in offers})),
        sources=tuple(sorted({o.source for o in offers})),
    )
