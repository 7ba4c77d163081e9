"""What advice is made of: the records that `whichgpu advise --json` prints."""

from __future__ import annotations

from typing import Literal

import msgspec

from whichgpu.advice import Basis, Tier, TraceInfo
from whichgpu.advising.wishes import Way, Wishes
from whichgpu.catalogue import Price
from whichgpu.currency import Rate
from whichgpu.speed.record import PredictedSpeed

Role = Literal["best value to rent", "best value to buy", "fastest", "cheapest", "yours"]


class Rent(msgspec.Struct, frozen=True, kw_only=True):
    """What an hour costs of the smallest instance that has the card, which cannot be rented in part."""

    usd_per_hour: float  # of the whole instance
    usd_per_hour_low: float
    usd_per_hour_high: float
    cards: int  # in the instance
    price: Price  # of one of them


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of all workloads on one card, one after the other."""

    seconds: float
    seconds_low: float
    seconds_high: float
    energy_kwh: float | None  # of the board at its power limit
    weeks: float | None = None  # at so many hours a week as were named
    rent_usd: float | None = None
    rent_usd_low: float | None = None
    rent_usd_high: float | None = None
    power_usd: float | None = None  # of the card at home


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """From how many hours of use on buying is cheaper than renting; None where it never is."""

    hours: float | None
    weeks: float | None = None
    loss_usd: float  # of the price, what is not had back by selling the card
    power_usd_per_hour: float


class CardAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """One card for all workloads."""

    gpu: str
    id: str
    vendor: str
    architecture: str
    form: str
    memory_bytes: int
    tdp_w: float | None
    tier: Tier
    trains: int
    small_batches: bool  # some workload does not fit, or only at smaller batches than its own
    max_batch_size: dict[str, int]
    max_batch_size_safe: dict[str, int]
    fails: tuple[str, ...]  # workloads that do not fit, or that the card cannot run
    cannot: tuple[str, ...]  # those of them that the card cannot run, whatever its memory
    supported: bool  # whether it can run any of them
    unmeasured: bool  # nothing of its vendor was measured
    problems: tuple[str, ...]  # why it cannot run some or all of the workloads
    speed: dict[str, PredictedSpeed | None]  # at the batch size with most samples a second
    relative_speed: float | None  # samples a second as a share of the fastest card's, the geometric mean over workloads
    buy: Price | None
    rent: Rent | None
    run: Whole | None
    break_even: BreakEven | None
    reason: str
    misses: tuple[str, ...] = ()  # wishes that it does not meet


class FreeAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that costs nothing, with what its card does of the workloads."""

    service: str
    plan: str
    gpu: str
    cards: int  # in the machine; what is said is about one
    trains: int
    tier: Tier
    fits: tuple[str, ...]
    fails: tuple[str, ...]
    session_hours: float | None
    weekly_hours: float | None
    monthly_hours: float | None
    total_hours: float | None  # given once
    enough: bool | None  # whether these are enough for the runs
    open_to_new: bool
    card_required: bool
    stale: bool  # the terms were read too long ago to count on
    run_seconds: float | None  # of the runs of all that any card trains; None where one of these does not fit
    sessions: int | None
    weeks: float | None
    unattended: bool
    persistent: str  # what stays between sessions; empty where that is unknown
    note: str
    source: str
    date: str
    confidence: str
    reason: str


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the short list."""

    roles: tuple[Role, ...]
    way: Way
    gpu: str
    reason: str


class Relaxation(msgspec.Struct, frozen=True, kw_only=True):
    """A wish that, relaxed by itself, would leave something."""

    wish: str  # as it was given: "--budget 100"
    cure: str  # "275 USD is enough for the RTX 3060 12GB"


class Empty(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing meets all wishes."""

    wish: str  # that left nothing, the others before it having left some
    left: int  # cards that were left before it
    relaxations: tuple[Relaxation, ...]


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One card on a curve."""

    gpu: str
    memory_bytes: int
    mean_speed: float  # arithmetic mean over the family, * as 0, the baseline being 1


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of models gains from larger and faster cards: points of a curve, by card."""

    family: Literal["image", "language"]
    workloads: int
    points: tuple[CurvePoint, ...]  # the least memory first
    memory_exponent: float | None  # mean speed grows with memory to this power, by least squares over the cards


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that is shown, and where it comes from."""

    about: str  # the card, or "all"
    what: str
    value: str
    basis: str  # "predicted", "measured", "published", "data sheet", "offer", "assumed"
    source: str
    date: str = ""


class AdviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu advise`."""

    workloads: tuple[str, ...]
    basis: Basis
    as_of: str  # the day whose cards and prices these are
    wishes: Wishes
    currency: Rate  # in which amounts are shown; all of the record itself are US dollars
    samples: int | None
    traces: dict[str, TraceInfo]
    short_list: tuple[Pick, ...]
    empty: Empty | None
    cards: tuple[CardAdvice, ...]  # in the order of recommendation
    free: tuple[FreeAdvice, ...]
    families: tuple[Family, ...]
    changes: tuple[str, ...]  # what would make it fit, where a single card was asked about
    sources: tuple[Figure, ...]
    notes: tuple[str, ...]
    untraced: tuple[str, ...] = ()  # workloads that no card asked about has the hardware for
    missing: tuple[str, ...] = ()  # workloads that are not answered, as it was interrupted
