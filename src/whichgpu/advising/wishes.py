"""What somebody wishes for, checked before any work: what contradicts itself is told in one line with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from whichgpu import text
from whichgpu.advising.defaults import POWER_USD_PER_KWH, RESALE
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from whichgpu.catalogue import Gpu

Way = Literal["buy", "rent", "free", "own"]
Market = Literal["on-demand", "spot"]
Condition = Literal["new", "used"]

HOURS_A_WEEK = 168.0


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for; None and empty where nothing is said."""

    way: Literal["buy", "rent", "free"] | None = None
    batch_size: int | None = None  # that every workload must fit at
    samples: int | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    hours_per_week: float | None = None
    own: tuple[str, ...] = ()  # names of cards in the catalogue
    gpus: tuple[str, ...] = ()  # only these
    min_memory_bytes: int | None = None
    architectures: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    max_power_w: float | None = None
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    market: Market | None = None  # on demand where nothing is said
    condition: Condition | None = None  # new before used where nothing is said
    power_usd_per_kwh: float = POWER_USD_PER_KWH
    resale: float = RESALE


def check(wishes: Wishes) -> None:
    """InputError for wishes that contradict each other or make no sense."""
    for problem in _problems(wishes):
        raise InputError(problem)


def check_words(wishes: Wishes, gpus: Sequence[Gpu]) -> None:
    """InputError for a vendor, an architecture or a form that no card has."""
    for flag, asked, own in (
        ("--vendor", wishes.vendors, "vendor"),
        ("--architecture", wishes.architectures, "architecture"),
        ("--form", wishes.forms, "form"),
    ):
        there = sorted({str(getattr(gpu, own)) for gpu in gpus})
        for word in asked:
            if word.casefold() not in map(str.casefold, there):
                raise InputError(f"{flag} {word}: no card has it; there is {', '.join(there)}")


def _problems(wishes: Wishes) -> Iterator[str]:
    renting = [
        flag
        for flag, said in (
            (f"--{wishes.market}", wishes.market),
            ("--region", wishes.regions),
            ("--provider", wishes.providers),
        )
        if said
    ]
    if wishes.way == "buy" and renting:
        yield f"--buy and {renting[0]}: {renting[0]} is about rented cards; leave one of the two out"
    if wishes.way == "free" and wishes.market is not None:
        yield f"--free and --{wishes.market}: free machines have no market; leave one of the two out"
    if wishes.way == "free" and wishes.regions:
        yield "--free and --region: free machines name no region; leave one of the two out"
    if wishes.way in ("rent", "free") and wishes.condition is not None:
        yield f"--{wishes.way} and --{wishes.condition}: --{wishes.condition} is about bought cards; leave one of the two out"
    if wishes.way == "free" and wishes.budget_usd is not None:
        yield "--free and --budget: free machines cost nothing; leave one of the two out"
    if wishes.batch_size is not None and wishes.batch_size > MAX_BATCH_SIZE:
        yield (
            f"--batch-size {text.format_count(wishes.batch_size)}: the largest batch is looked for up to "
            f"{text.format_count(MAX_BATCH_SIZE)}; `whichgpu fit` answers about one larger batch size"
        )
    if wishes.deadline_hours is not None and wishes.samples is None:
        yield "--deadline is about a run: say how long it is with --samples, or --epochs and --dataset-size"
    if wishes.way == "rent" and wishes.budget_usd is not None and wishes.samples is None:
        yield "--rent and --budget are about a run: say how long it is with --samples, or --epochs and --dataset-size"
    if wishes.budget_usd is not None and not 0 < wishes.budget_usd < float("inf"):
        yield f"--budget {wishes.budget_usd:g}: it must be a finite amount of more than 0"
    if wishes.deadline_hours is not None and not 0 < wishes.deadline_hours < float("inf"):
        yield f"--deadline of {wishes.deadline_hours:g} h: it must be finite and more than 0"
    if wishes.hours_per_week is not None and not 0 < wishes.hours_per_week <= HOURS_A_WEEK:
        yield f"--hours-per-week {wishes.hours_per_week:g}: a week has {HOURS_A_WEEK:g} hours; say between 0 and that"
    if not 0 <= wishes.resale <= 1:
        yield f"--resale {wishes.resale:g}: say the share of the price that is had back, between 0 and 1"
    if not 0 <= wishes.power_usd_per_kwh < float("inf"):
        yield f"--power-price {wishes.power_usd_per_kwh:g}: say a finite price per kWh of 0 or more"
    if wishes.max_power_w is not None and not 0 < wishes.max_power_w < float("inf"):
        yield f"--max-power {wishes.max_power_w:g}: say a finite number of watts, more than 0"
