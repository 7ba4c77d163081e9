"""What cards cost under somebody's wishes: which offers count, and what the smallest instance costs that has the card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

from rapidfuzz import fuzz, process

from whichgpu.advising.records import Rent
from whichgpu.advising.wishes import Wishes
from whichgpu.catalogue import Catalogue, Gpu, Kind, Offer, Price
from whichgpu.catalogue.prices import counted, in_condition, of_instance, price_of, price_to_buy, smallest
from whichgpu.errors import InputError


class Prices:
    """The offers of a catalogue that somebody would take; InputError for a provider or region that nobody has."""

    def __init__(self, cards: Catalogue, wishes: Wishes, services: Iterable[str] = ()) -> None:
        self.day = cards.day or date.today()
        self._cards = cards
        self._wishes = wishes
        self._kind: Kind = "spot" if wishes.market == "spot" else "rent"
        if wishes.providers or wishes.regions:
            _check_names(cards, wishes, services)

    def buy(self, card: Gpu) -> Price | None:
        """What a card costs to buy, in the condition that is wished for; the price of its launch is no used one."""
        return price_to_buy(card, self._cards.offers_of(card), self._wishes.condition, self.day)

    def rent(self, card: Gpu) -> Rent | None:
        """What an hour costs of the smallest instance with the card; larger ones at the same providers do not count.

        Whoever needs one card does not rent eight: the price is that of the offers with the fewest cards. The lowest
        listings of marketplaces are left out, as from all rents.
        """
        price = price_of(card, self._to_rent(card), self._kind, self.day)
        if price is None:
            return None
        whole = of_instance(price)
        return Rent(
            usd_per_hour=whole.usd,
            usd_per_hour_low=whole.low_usd,
            usd_per_hour_high=whole.high_usd,
            cards=price.least_count,
            price=price,
        )

    def behind(self, card: Gpu, price: Price) -> list[Offer]:
        """The offers that a price of `buy` or `rent` is the median of, the newest first."""
        to_buy = price.unit == "once"
        offered = self._cards.offers_of(card)
        offers = in_condition(offered, self._wishes.condition) if to_buy else self._to_rent(card)
        _, found = counted(card, offers, "buy" if to_buy else self._kind, self.day)
        return sorted(found, key=lambda o: o.date, reverse=True)

    def _to_rent(self, card: Gpu) -> list[Offer]:
        offered = "cloud-spot" if self._kind == "spot" else "cloud-on-demand"
        offers = [o for o in self._cards.offers_of(card) if o.kind == offered and not o.minimum and self._takes(o)]
        return smallest(offers, self.day)

    def _takes(self, offer: Offer) -> bool:
        providers, regions = self._wishes.providers, self._wishes.regions
        return (not providers or any(is_named(offer.provider, one) for one in providers)) and (
            not regions or any(one.casefold() in (offer.region or "").casefold() for one in regions)
        )


def rents(cards: Catalogue, wishes: Wishes) -> bool:
    """Whether one of the providers that are wished for, if any, rents out cards at all; a free service does not."""
    names = {offer.provider for offer in cards.offers if offer.rental}
    return not wishes.providers or any(is_named(name, words) for name in names for words in wishes.providers)


def is_named(name: str, words: str) -> bool:
    """Whether a provider or service goes by these words: "Vast.ai" is vast-ai, "kaggle" is Kaggle Notebooks."""
    return bool(_key(words)) and _key(words) in _key(name)


def _key(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.casefold())


def _check_names(cards: Catalogue, wishes: Wishes, services: Iterable[str]) -> None:
    rented = [offer for offer in cards.offers if offer.rental]
    providers = sorted({*(offer.provider for offer in rented), *services})
    for words in wishes.providers:
        if not any(is_named(name, words) for name in providers):
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
