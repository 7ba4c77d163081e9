"""`whichgpu update`: what rental prices would change, and writing them into the user's folder, never the shipped data.

Of each provider, card, region and way of renting (on demand, spot) the smallest instance is kept, of several the cheapest: that
is the least that can be rented there. Listings of cards that the catalogue does not know are left out, and so are prices that
are hardly in the right unit (`whichgpu.catalogue.units`). Everything is one file, `prices/gpuhunt.toml`, which appears whole or
not at all; rows of providers that could not be reached this time stay in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from whichgpu.catalogue import Catalogue, Offer, load, shipped, user_folder
from whichgpu.catalogue.files import Document, plain
from whichgpu.catalogue.units import Known, unlikely
from whichgpu.errors import CatalogueError
from whichgpu.gpuhunt_prices import Fetched, Listing
from whichgpu.output_file import replace_whole

__all__ = ["Change", "Update", "path", "prepare", "write"]

_SOURCE = "Python package gpuhunt {version} (https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3)"
_SAME = 0.0005  # prices that differ by less are the same


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider asks for an hour of one card: the median over its offers, before and after."""

    provider: str
    gpus: tuple[str, ...]  # names; several where the provider leaves the form open
    kind: Literal["cloud-on-demand", "cloud-spot"]
    before_usd: float | None  # None: no price was known
    before_date: str | None
    after_usd: float
    after_date: str


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What an update would write, and how that differs from what is at hand."""

    offers: tuple[Offer, ...]
    changes: tuple[Change, ...]
    unchanged: int  # prices that were read again and are the same
    missing: tuple[str, ...]  # providers that could not be reached
    unknown: dict[str, int]  # listings of cards that the catalogue does not know, by name
    unlikely: tuple[str, ...]  # prices that were left out, and why
    file: str  # where it is written
    written: bool = False


def path() -> Path:
    """The file of refreshed prices."""
    return user_folder() / "prices" / "gpuhunt.toml"


def prepare(fetched: Fetched) -> Update:
    """What would be written; CatalogueError where no listing is of a card of the catalogue, or the file at hand is damaged."""
    cards = load()
    source = _SOURCE.format(version=fetched.version)
    offers, unknown = _offers(fetched.listings, cards, source)
    known = Known({gpu.id: gpu for gpu in cards.gpus}, shipped().offers)
    problems = [(offer, unlikely(offer, known)) for offer in offers]
    good = [offer for offer, problem in problems if not problem]
    if not good:
        raise CatalogueError(
            f"none of {len(fetched.listings)} listings is of a card of the catalogue; the prices at hand stay as they are"
        )
    changes, unchanged = _changes(good, cards)
    return Update(
        offers=tuple(good),
        changes=tuple(changes),
        unchanged=unchanged,
        missing=fetched.missing,
        unknown=dict(sorted(unknown.items())),
        unlikely=tuple(
            f"{offer.provider} {offer.instance} {offer.region}: {problem}" for offer, problem in problems if problem
        ),
        file=str(path()),
    )


def write(update: Update) -> Update:
    """Write the offers; the file is replaced whole or not at all. CatalogueError where it cannot be written."""
    target = path()
    fetched = {offer.provider for offer in update.offers}
    kept = [offer for offer in _at_hand(target) if offer.provider not in fetched]
    words = _toml([*kept, *update.offers]).encode()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(target, lambda file: file.write(words))
    except OSError as error:
        raise CatalogueError(f"{target}: cannot be written ({error.strerror}); nothing was changed") from None
    return msgspec.structs.replace(update, written=True)


def _at_hand(target: Path) -> list[Offer]:
    return list(Document(target).rows("offer", Offer)) if target.is_file() else []


def _offers(listings: Iterable[Listing], cards: Catalogue, source: str) -> tuple[list[Offer], dict[str, int]]:
    unknown: dict[str, int] = {}
    named: dict[tuple[str, float], tuple[str, ...]] = {}
    best: dict[tuple[str, tuple[str, ...], bool, str], Listing] = {}
    for one in listings:
        name = (one.gpu, one.gpu_memory_gib)
        if name not in named:
            named[name] = tuple(sorted(gpu.id for gpu in cards.named(*name)))
        if not named[name]:
            label = f"{plain(one.gpu)} {one.gpu_memory_gib:g} GB"
            unknown[label] = unknown.get(label, 0) + 1
            continue
        key = (one.provider, named[name], one.spot, one.region)
        if key not in best or (one.count, one.usd) < (best[key].count, best[key].usd):
            best[key] = one
    return [_offer(one, gpus, source) for (_, gpus, _, _), one in sorted(best.items())], unknown


def _offer(one: Listing, gpus: tuple[str, ...], source: str) -> Offer:
    return Offer(
        gpus=gpus,
        kind="cloud-spot" if one.spot else "cloud-on-demand",
        provider=one.provider,
        usd=Decimal(f"{one.usd / one.count:.4f}".rstrip("0").rstrip(".")),
        count=one.count,
        instance=plain(one.instance) or None,
        region=plain(one.region) or None,
        date=one.date,
        source=source,
    )


def _changes(offers: Sequence[Offer], cards: Catalogue) -> tuple[list[Change], int]:
    """How the medians of providers change, the largest change first, new prices last."""
    groups: dict[tuple[str, tuple[str, ...], str], list[Offer]] = {}
    for offer in offers:
        groups.setdefault((offer.provider, offer.gpus, offer.kind), []).append(offer)
    by_id = {gpu.id: gpu for gpu in cards.gpus}
    changes, unchanged = [], 0
    for (provider, gpus, kind), found in groups.items():
        of_card = cards.offers_of(by_id[gpus[0]])
        earlier = [o for o in of_card if o.provider == provider and o.kind == kind and not o.minimum]
        newest = max((o.date for o in earlier), default=None)
        before = float(median(o.usd for o in earlier if o.date == newest)) if newest else None
        after = float(median(offer.usd for offer in found))
        if before is not None and abs(after / before - 1) < _SAME:
            unchanged += 1
            continue
        changes.append(
            Change(
                provider=provider,
                gpus=tuple(by_id[gpu_id].name for gpu_id in gpus),
                kind="cloud-spot" if kind == "cloud-spot" else "cloud-on-demand",
                before_usd=before,
                before_date=newest,
                after_usd=after,
                after_date=max(offer.date for offer in found),
            )
        )
    return sorted(changes, key=_by_size), unchanged


def _by_size(change: Change) -> tuple[object, ...]:
    ratio = change.after_usd / change.before_usd if change.before_usd else 1.0
    return (change.before_usd is None, -max(ratio, 1 / ratio), change.provider, change.gpus, change.kind)


def _toml(offers: Iterable[Offer]) -> str:
    lines = ["# Written by `whichgpu update`; delete it to go back to the prices that come with whichgpu.", ""]
    for offer in offers:
        lines.append("[[offer]]")
        for field, value in msgspec.to_builtins(offer).items():
            if value not in (None, False, ""):
                # a TOML string is written as one of JSON
                written = value if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
                lines.append(f"{field} = {str(written).lower() if isinstance(value, bool) else written}")
        lines.append("")
    return "\n".join(lines)
