"""Prices in the wrong unit: per month for per hour, for the whole machine for one card, cents for dollars.

A price is compared with the median of the card's other prices: to buy with those to buy, to rent with those to rent. The
bounds are wide enough for every shipped price (a test says so): rents of one card differ by twenty times between
marketplaces and large clouds, prices to buy by less than three. Where no others are known, an hour's rent is compared
with what the card costs to buy, and a price to buy with the price at launch and with the rents.

A price that is right all the same says `unusual = true`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from statistics import median

from whichgpu.catalogue.records import Gpu, Offer

__all__ = ["Known", "unlikely"]

RENT_BOUNDS = (0.1, 20.0)  # times the median; shipped: 0.15 to 18
LOWEST_LISTING = 0.04  # the same for the lowest of many listings; shipped: 0.047
BUY_BOUNDS = (1 / 8, 8.0)  # shipped: 0.45 to 2.2
LAUNCH_BOUNDS = (1 / 32, 8.0)  # old cards are sold at a fraction
RENT_HOURS = (100.0, 200_000.0)  # of a rent that make up the price of the card; shipped: 270 to 115,000
BUY_HOURS = (60.0, 40_000.0)  # of the median rent that make up a price to buy; shipped: 270 to 26,000
RENT_USD = (0.005, 25.0)  # where nothing else is known; shipped: 0.01 to 18
BUY_USD = (20.0, 500_000.0)


class Known:
    """The prices that others are compared with, by card."""

    def __init__(self, gpus: Mapping[str, Gpu], offers: Iterable[Offer]) -> None:
        self.gpus = gpus
        self._rents: dict[str, list[float]] = defaultdict(list)
        self._buys: dict[str, list[float]] = defaultdict(list)
        for offer in offers:
            for gpu_id in offer.gpus:
                (self._rents if offer.rental else self._buys)[gpu_id].append(float(offer.usd))
        self.typical = cache(self._typical)

    def _typical(self, gpu_ids: tuple[str, ...], rental: bool) -> tuple[float, int]:
        """The median of the prices of some cards and their number; 0.0 without any."""
        by_gpu = self._rents if rental else self._buys
        found = [usd for gpu_id in gpu_ids for usd in by_gpu.get(gpu_id, ())]
        return (median(found) if found else 0.0), len(found)

    def to_buy(self, gpu_ids: tuple[str, ...]) -> float | None:
        """About what a card costs to buy, or cost at launch; None where neither is known."""
        usd, _ = self.typical(gpu_ids, False)
        return usd or self.launch(gpu_ids)

    def launch(self, gpu_ids: tuple[str, ...]) -> float | None:
        """The price at launch."""
        return next((usd for gpu_id in gpu_ids if (usd := self.gpus[gpu_id].launch_price_usd)), None)


def unlikely(offer: Offer, known: Known) -> str:
    """Why a price is hardly in the right unit, and what to do; empty where it may be right."""
    if offer.unusual:
        return ""
    usd = float(offer.usd)
    what = _rent(offer, usd, known) if offer.rental else _buy(offer, usd, known)
    if not what:
        return ""
    unit = "USD for an hour of one card" if offer.rental else "USD for one card"
    return (
        f"{offer.usd} is {what}: write {unit} (not a month, a whole machine or cents), or unusual = true if it is right"
    )


def _rent(offer: Offer, usd: float, known: Known) -> str:
    typical, others = known.typical(offer.gpus, True)
    if others:
        least = LOWEST_LISTING if offer.minimum else RENT_BOUNDS[0]
        return _compared(usd, typical, (least, RENT_BOUNDS[1]), _others(others, "rent"))
    if not RENT_USD[0] <= usd <= RENT_USD[1]:
        return f"not between {RENT_USD[0]} and {RENT_USD[1]:g} USD an hour"
    to_buy = known.to_buy(offer.gpus)
    if to_buy is not None and not RENT_HOURS[0] <= to_buy / usd <= RENT_HOURS[1]:
        return f"such that {to_buy / usd:,.0f} hours make up the {to_buy:,.0f} USD that the card costs"
    return ""


def _buy(offer: Offer, usd: float, known: Known) -> str:
    typical, others = known.typical(offer.gpus, False)
    if others:
        return _compared(usd, typical, BUY_BOUNDS, _others(others, "price"))
    if not BUY_USD[0] <= usd <= BUY_USD[1]:
        return f"not between {BUY_USD[0]:g} and {BUY_USD[1]:,.0f} USD"
    launch = known.launch(offer.gpus)
    if launch is not None and (what := _compared(usd, launch, LAUNCH_BOUNDS, "the price at launch")):
        return what
    rent, _ = known.typical(offer.gpus, True)
    if rent and not BUY_HOURS[0] <= usd / rent <= BUY_HOURS[1]:
        return f"what {usd / rent:,.0f} hours of rent cost at {rent:,.4g} USD"
    return ""


def _others(count: int, what: str) -> str:
    return f"the median of {count} other {what}s of the card" if count > 1 else f"the other {what} of the card"


def _compared(usd: float, typical: float, bounds: tuple[float, float], with_what: str) -> str:
    ratio = usd / typical
    if bounds[0] <= ratio <= bounds[1]:
        return ""
    times = f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:,.2g} times"
    return f"{times} {with_what} ({typical:,.4g} USD)"
