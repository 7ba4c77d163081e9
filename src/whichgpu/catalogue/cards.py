"""Cards and offers together: a card by any of its names, what it costs, and the catalogue as it was on an earlier day.

Names. `find` ignores case, spaces, hyphens, underscores and the words NVIDIA, GeForce and Tesla. A name that
several cards share ("A100", "RTX 6000") is refused with the candidates. Where a name states the memory but
not the form ("A100 80GB", "H100 80GB", "V100 32GB"), the SXM part is meant: memory decides what fits, and
clouds rent mostly those. "H200" is the SXM part, "P100" the PCIe part, "RTX 3060" the common one of 12 GB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date
from functools import cached_property

from rapidfuzz import fuzz, process

from whichgpu.catalogue.days import asked_day, last, middle
from whichgpu.catalogue.files import plain
from whichgpu.catalogue.prices import Kind, Price, of_instance, price_of, smallest
from whichgpu.catalogue.records import Gpu, Offer
from whichgpu.errors import CatalogueError, InputError

__all__ = ["Catalogue", "clash"]

LONGEST_NAME = 100
_SAME_MEMORY = 0.07  # a GB300 is listed with 270 and with 279


class Catalogue:
    """Cards and offers. `offers` may be a function, which is called when a price is first asked for.

    `day` is the day on which prices are asked for where nothing else is said; None is today.
    """

    def __init__(
        self, gpus: Iterable[Gpu], offers: Iterable[Offer] | Callable[[], Iterable[Offer]], day: date | None = None
    ) -> None:
        self.gpus = tuple(gpus)
        self.day = day
        self._offers = offers
        self._names, self._shared = _index(self.gpus)

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer; CatalogueError where a price file is malformed or names an unknown card."""
        return tuple(self._offers() if callable(self._offers) else self._offers)

    @cached_property
    def _offers_by_gpu(self) -> dict[str, list[Offer]]:
        by_gpu: dict[str, list[Offer]] = {}
        for offer in self.offers:
            for gpu_id in offer.gpus:
                by_gpu.setdefault(gpu_id, []).append(offer)
        return by_gpu

    def as_of(self, day: str) -> Catalogue:
        """Only the cards released and the prices dated by that day, which prices are then asked for.

        `day` is "2020-02-14", "2020-02" (all of that month), "2020" or "today"; InputError otherwise, and for the future.
        A card of whose release only the month is known counts from the end of that month; an offer without a day counts
        from the middle of its month or year.
        """
        until = asked_day(day)
        gpus = [gpu for gpu in self.gpus if last(gpu.release) <= until]
        known = {gpu.id for gpu in gpus}
        return Catalogue(
            gpus, lambda: [o for o in self.offers if middle(o.date) <= until and known.intersection(o.gpus)], until
        )

    def check_released(self, gpu: Gpu) -> None:
        """InputError for a card that was not yet there on the day that is asked about."""
        if gpu not in self.gpus:
            raise InputError(f"{gpu.name} was released in {gpu.release}, after the day that is asked about")

    def offers_of(self, gpu: Gpu) -> tuple[Offer, ...]:
        """Every offer of a card, whatever its kind and date."""
        return tuple(self._offers_by_gpu.get(gpu.id, ()))

    def price(self, gpu: Gpu, kind: Kind, *, as_of: date | None = None) -> Price | None:
        """What the card costs to buy, or to rent for an hour; None where no price is known.

        `as_of` is by default the catalogue's day, or today. Which offers count, and how far to trust the price, says
        `whichgpu.catalogue.prices`.
        """
        return price_of(gpu, self.offers_of(gpu), kind, as_of or self.day or date.today())

    def instance_rent(self, gpu: Gpu) -> Price | None:
        """What an hour costs, on demand, of the smallest instance with the card: all its cards (`least_count`) are paid for."""
        day = self.day or date.today()
        offers = [offer for offer in self.offers_of(gpu) if offer.kind == "cloud-on-demand" and not offer.minimum]
        price = price_of(gpu, smallest(offers, day), "rent", day)
        return of_instance(price) if price is not None else None

    def find_all(self, names: Iterable[str]) -> list[Gpu]:
        """The cards of several names, each once; CatalogueError that tells of every name that is none, or may be several."""
        found: dict[str, Gpu] = {}
        wrong: list[str] = []
        for name in dict.fromkeys(names):
            try:
                card = self.find(name)
                found[card.id] = card
            except CatalogueError as error:
                wrong.append(str(error))
        if wrong:
            raise CatalogueError("; ".join(wrong))
        return list(found.values())

    def find(self, name: str) -> Gpu:
        """The card of that name, alias or id; CatalogueError, naming what is near, for none or several."""
        if len(name) > LONGEST_NAME:
            raise CatalogueError(f'"{plain(name[:40])}..." is too long for a name; `whichgpu gpus` lists the names')
        key = _key(name)
        if not key and any(map(str.isalnum, name)):
            raise CatalogueError(f'no card is called "{plain(name)}"; `whichgpu gpus` lists the names')
        if not key:
            raise CatalogueError("the card's name is empty; `whichgpu gpus` lists the names")
        for candidate in dict.fromkeys((key, re.sub(r"(?<=\d)(g|gib)$", "gb", key))):
            if candidate in self._names:
                return self._names[candidate]
            if candidate in self._shared:
                raise CatalogueError(f'"{plain(name)}" may be {_either(self._shared[candidate])}: say which')
        near = self._near(key)
        hint = f"did you mean {_either(near)}?" if near else "`whichgpu gpus` lists the names"
        raise CatalogueError(f'no card is called "{plain(name)}"; {hint}')

    def twins(self, name: str) -> list[str]:
        """Cards that a name without a form (SXM, PCIe) may mean besides the one that is found; CatalogueError as `find`."""
        card = self.find(name)
        if _FORM.search(name):
            return []
        return [other.name for other in self.gpus if other is not card and _formless(other) == _formless(card)]

    def named(self, name: str, memory_gib: float) -> tuple[Gpu, ...]:
        """The cards that a name without memory or form may mean ("A100"), of those with so much memory; empty for none."""
        key = _key(name)
        found = [
            gpu for gpu in self.gpus if key in {_key(one) for one in (gpu.name, gpu.id, *gpu.aliases, *gpu.families)}
        ]
        forms = {_formless(gpu) for gpu in found}
        return tuple(
            gpu
            for gpu in self.gpus
            if (gpu in found or _formless(gpu) in forms) and abs(gpu.memory_gib / memory_gib - 1) < _SAME_MEMORY
        )

    def _near(self, key: str) -> list[str]:
        keys = [*self._names, *self._shared]
        found: dict[str, None] = {}
        for match, _, _ in process.extract(key, keys, scorer=fuzz.ratio, limit=8, score_cutoff=60):
            names = [self._names[match].name] if match in self._names else self._shared[match]
            found.update(dict.fromkeys(names))
        return list(found)[:5]


def clash(gpu: Gpu, others: Iterable[Gpu]) -> tuple[str, str] | None:
    """The field of a card with a name that is another's already, and what to do about it; None where all names are its own."""
    taken = {
        _key(name): other for other in others if other.id != gpu.id for name in (other.name, other.id, *other.aliases)
    }
    for field, names in (
        ("name", (gpu.name,)),
        ("id", (gpu.id,)),
        ("aliases", gpu.aliases),
        ("families", gpu.families),
    ):
        for name in names:
            other = taken.get(_key(name))
            if other is not None:
                cure = "take another name" if field in ("name", "id") else "leave it out"
                return field, f'"{name}" is a name of {other.name} already; {cure}'
    return None


def _key(name: str) -> str:
    """What is left of a name when case, punctuation and the maker's brands are ignored."""
    key = re.sub(r"[^0-9a-z]", "", name.casefold()).removesuffix("generation")
    while (rest := re.sub(r"^(nvidia|geforce|tesla)(?=.)", "", key)) != key:
        key = rest
    return key


# NVL is no form of a card that goes by the same name: an H200 NVL is always called so
_FORM = re.compile(r"sxm\d*|pcie|nvlink", re.IGNORECASE)


def _formless(gpu: Gpu) -> str:
    return _key(_FORM.sub("", gpu.name))


def _index(gpus: tuple[Gpu, ...]) -> tuple[dict[str, Gpu], dict[str, list[str]]]:
    names: dict[str, Gpu] = {}
    shared: dict[str, list[str]] = {}
    for gpu in gpus:
        for name in (gpu.name, gpu.id, *gpu.aliases):
            other = names.setdefault(_key(name), gpu)
            if other is not gpu:
                both = f"both {other.name} and {gpu.name}"
                raise CatalogueError(f'gpus.toml: "{name}" names {both}; move it to `families` of both')
        for family in gpu.families:
            shared.setdefault(_key(family), []).append(gpu.name)
    for key in names.keys() & shared.keys():
        raise CatalogueError(f'gpus.toml: "{key}" is a name of {names[key].name} and a family; keep one')
    return names, shared


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
