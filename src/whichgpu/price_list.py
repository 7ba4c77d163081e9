"""What cards cost on a day, to buy and to rent, in some currency: the answer of `whichgpu prices`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import msgspec

from whichgpu import catalogue
from whichgpu.catalogue import Price
from whichgpu.catalogue.prices import price_to_buy
from whichgpu.currency import Rate

__all__ = ["PriceList", "PriceRow", "make"]


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One card; amounts are in US dollars whatever the currency that is shown."""

    gpu: str
    memory_bytes: int
    buy: Price | None
    rent: Price | None
    spot: Price | None


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu prices`."""

    as_of: str
    currency: Rate  # in which prices are shown
    gpus: tuple[PriceRow, ...]


def make(names: Sequence[str], currency: Rate, as_of: str | None = None, *, used: bool = False) -> PriceList:
    """The prices of some cards, or of all that have one, the cheapest to buy first; or only those of `used` cards to buy.

    CatalogueError for a name that is no card's, InputError for a day that is none or on which a named card was not yet there.
    """
    everything = catalogue.load()
    cards = everything if as_of is None else everything.as_of(as_of)
    named = everything.find_all(names)
    for card in named:
        cards.check_released(card)
    chosen = named or cards.gpus
    day = cards.day or date.today()
    rows = [
        PriceRow(
            gpu=card.name,
            memory_bytes=card.memory_bytes,
            buy=price_to_buy(card, cards.offers_of(card), "used", day) if used else cards.price(card, "buy", as_of=day),
            rent=None if used else cards.price(card, "rent", as_of=day),
            spot=None if used else cards.price(card, "spot", as_of=day),
        )
        for card in chosen
    ]
    priced = [row for row in rows if names or row.buy or row.rent or row.spot]
    far = float("inf")
    priced.sort(key=lambda row: (row.buy.usd if row.buy else far, row.rent.usd if row.rent else far, row.gpu))
    return PriceList(as_of=day.isoformat(), currency=currency, gpus=tuple(priced))
