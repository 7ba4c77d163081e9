"""What cards cost under somebody's wishes: which offers count, and what the smallest instance costs that has the card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

from rapidfuzz import fuzz, process

from whichgpu.advising.records import Rent
from whichgpu.advising.wishes import Wishes
from whichgpu.catalogue import Catalogue, Gpu, Kind, Offer, Price
from whichgpu.catalogue.days import age_days, months
from whichgpu.catalogue.prices import RENT_MONTHS, price_of
from whichgpu.errors import InputError


class Prices:
    """The offers of a catalogue that somebody would take; InputError for a provider or region that nobody has."""

    def __init__(self, cards: Catalogue, wishes: Wishes, services: Iterable[str] = ()) -> None:
        self.day = cards.day or date.today()
        self._cards = cards
        self._wishes = wishes
        self._kind = "cloud-spot" if wishes.market == "spot" else "cloud-on-demand"
        if wishes.providers or wishes.regions:
            _check_names(cards, wishes, services)

    def buy(self, card: Gpu) -> Price | None:
        """What a card costs to buy, in the condition that is wished for; the price of its launch is no used one."""
        wanted = f"buy-{self._wishes.condition}" if self._wishes.condition else None
        offers = [o for o in self._cards.offers_of(card) if not o.rental and wanted in (None, o.kind)]
        price = price_of(card, offers, "buy", self.day)
        return None if price is not None and price.condition == "launch" and wanted == "buy-used" else price

    def rent(self, card: Gpu) -> Rent | None:
        """What an hour costs of the smallest instance with the card; larger ones at the same providers do not count.

        Whoever needs one card does not rent eight: the price is that of the offers with the fewest cards. The lowest
        listings of marketplaces are left out, as from all rents.
        """
        offers = [o for o in self._cards.offers_of(card) if o.kind == self._kind and not o.minimum and self._takes(o)]
        if not offers:
            return None
        kind: Kind = "spot" if self._kind == "cloud-spot" else "rent"
        price = price_of(card, _smallest(offers, self.day), kind, self.day)
        if price is None:
            return None
        cards = price.least_count
        return Rent(
            usd_per_hour=cards * price.usd,
            usd_per_hour_low=cards * price.low_usd,
            usd_per_hour_high=cards * price.high_usd,
            cards=cards,
            price=price,
        )

    def _takes(self, offer: Offer) -> bool:
        providers, regions = self._wishes.providers, self._wishes.regions
        return (not providers or any(_is_named(offer.provider, one) for one in providers)) and (
            not regions or any(one.casefold() in (offer.region or "").casefold() for one in regions)
        )


def offers_behind(price: Price, cards: Catalogue, card: Gpu) -> list[Offer]:
    """The offers that a price is the median of, the newest first."""
    found = [o for o in cards.offers_of(card) if o.provider in price.providers and o.source in price.sources]
    return sorted(found, key=lambda o: o.date, reverse=True)


def is_named(name: str, words: str) -> bool:
    """Whether a provider or service goes by these words: "Vast.ai" is vast-ai, "kaggle" is Kaggle Notebooks."""
    return _is_named(name, words)


def _is_named(name: str, words: str) -> bool:
    return bool(_key(words)) and _key(words) in _key(name)


def _key(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.casefold())


def _smallest(offers: list[Offer], day: date) -> list[Offer]:
    """The offers with the fewest cards, of those that are recent if any is."""
    recent = [o for o in offers if months(age_days(o.date, day)) <= RENT_MONTHS] or offers
    least = min(o.count for o in recent)
    return [o for o in recent if o.count == least]


def _check_names(cards: Catalogue, wishes: Wishes, services: Iterable[str]) -> None:
    rented = [offer for offer in cards.offers if offer.rental]
    providers = sorted({*(offer.provider for offer in rented), *services})
    for words in wishes.providers:
        if not any(_is_named(name, words) for name in providers):
            raise InputError(f"--provider {words}: no such provider; {_near(words, providers)}")
    regions = sorted({offer.region for offer in rented if offer.region})
    for words in wishes.regions:
        if not any(words.casefold() in region.casefold() for region in regions):
            raise InputError(f"--region {words}: no offer names such a region; {_near(words, regions)}")


def _near(words: str, names: list[str]) -> str:
    near = [
        name
        for name, _, _ in process.extract(
            words, names, scorer=fuzz.WRatio, processor=str.casefold, limit=3, score_cutoff=65
        )
    ]
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names[:8])} and others"
