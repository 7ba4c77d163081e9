"""The records that `fit` and `rank` answer with, and how they are made from estimates and the catalogue.

The command line's `--json` prints exactly these records; the Python functions return them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from whichgpu import text
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.catalogue import Gpu, Price
from whichgpu.currency import DOLLARS, Rate
from whichgpu.intervals import Estimate, Verdict
from whichgpu.runs import Run
from whichgpu.speed.record import PredictedSpeed
from whichgpu.trace import Trace

Basis = Literal["measured", "predicted", "published"]
Tier = Literal["all", "most", "poor"]  # trains all, trains most (small batches), not a good fit
Sort = Literal["price", "speed", "memory"]
ORDER: dict[Tier, int] = {"all": 0, "most": 1, "poor": 2}


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the workload was traced."""

    kind: Literal["fake", "real-cpu"]
    affine: bool  # sizes at every batch size follow from two traces
    seconds: float  # wall time of tracing; 0.0 when it came from the cache
    cached: bool = False
    torch_version: str = ""
    batch_sizes: tuple[int, ...] = ()  # at which the step was run; what is said of others follows from them
    failed_batch_sizes: tuple[int, ...] = ()  # at which it failed
    unit: str = "samples"  # what a sample is made of
    items_per_sample: int = 1  # how many of them


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes held at the moment of the allocated peak, by what they are for; they add up to the peak."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    workspaces_bytes: int
    inputs_bytes: int
    buffers_bytes: int


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One card (or one memory limit) against one workload at one batch size."""

    gpu: str
    memory_bytes: int  # what the driver reports, or the limit
    fits: bool  # the verdict is "fits", and the card is supported
    verdict: Verdict
    peak_reserved_bytes: int | None  # the likely one at the batch size; None when that does not fit
    peak_reserved_low_bytes: int
    peak_reserved_high_bytes: int
    peak_allocated_bytes: int | None
    context_bytes: int  # outside PyTorch's allocator: CUDA context and loaded libraries; 0 under a limit
    max_batch_size: int  # the largest that likely fits; 0 when not even batch 1 does
    max_batch_size_safe: int  # the largest whose high end fits
    max_batch_size_pow2: int  # of those that likely fit
    max_batch_size_at_least: bool = False  # the search ended at its upper end: larger ones may fit
    breakdown: Breakdown | None
    peak_phase: str  # phase at the allocated peak
    peak_op: str  # operator at the allocated peak
    supported: bool  # the installed torch has kernels for the card, and the card has the step's dtypes
    notes: tuple[str, ...]
    speed: PredictedSpeed | None = None  # at the largest batch that likely fits
    speed_missing: str = ""  # why it is unknown
    speed_note: str = ""  # arithmetic that the card does not have and computes otherwise
    # predicted samples per second as a ratio to the baseline's, each at its own largest batch
    relative_speed: float | None = None
    best_speed: PredictedSpeed | None = None  # at the batch with most samples per second, where that is another one
    known_speeds: tuple[PredictedSpeed, ...] = ()  # measured and published ones, at any batch size
    run: Run | None = None  # of `samples`


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu fit`."""

    workload: str
    batch_size: int
    basis: Basis
    trace: TraceInfo
    gpus: tuple[FitRow, ...]
    notes: tuple[str, ...] = ()  # caveats that hold for every card
    baseline: str | None = None  # the card whose speed is 1
    samples: int | None = None  # of the whole run that was asked about
    batch_size_is_default: bool = False  # none was asked about: it is the workload's own, or whichgpu's


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One card against all workloads asked for."""

    gpu: str
    memory_bytes: int
    compute_capability: str
    tier: Tier
    trains: int  # how many of the workloads likely fit at batch 1 or more
    max_batch_size: dict[str, int]  # by workload, what likely fits; 0 is printed as "*"
    max_batch_size_safe: dict[str, int]
    max_batch_size_pow2: dict[str, int]
    max_batch_size_at_least: dict[str, bool] = {}  # the search ended at its upper end
    supported: bool
    buy: Price | None
    rent: Price | None
    notes: tuple[str, ...]
    speed: dict[str, PredictedSpeed | None] = {}  # by workload, at the largest batch that likely fits
    speed_missing: dict[str, str] = {}  # by workload: why it is unknown
    # predicted samples per second as a ratio to the baseline's, each at its own largest batch
    relative_speed: dict[str, float | None] = {}
    best_speed: dict[
        str, PredictedSpeed | None
    ] = {}  # at the batch with most samples per second, where that is another
    run: dict[str, Run | None] = {}  # of `samples`, by workload
    problems: dict[str, tuple[str, ...]] = {}  # by workload, why the card cannot run it, where it cannot


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu rank`; cards are in the order of recommendation."""

    workloads: tuple[str, ...]
    basis: Basis
    traces: dict[str, TraceInfo]
    gpus: tuple[RankRow, ...]
    notes: tuple[str, ...] = ()
    baseline: str | None = None  # the card whose speed is 1
    samples: int | None = None  # of the whole run that was asked about
    sort: Sort = "price"  # the order within equal verdicts
    usual_batch_size: dict[str, int] = {}  # by workload, what it names itself
    # workloads that were not traced, as none of the cards has what they compute in: their batches, 0, are not known
    untraced: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # workloads that were asked about and are not answered, as it was interrupted
    currency: Rate = DOLLARS  # in which amounts are shown; those of the record itself are US dollars


# ---- making the records -------------------------------------------------------------------------------


class Largest(msgspec.Struct, frozen=True):
    """The largest batches of one workload on one card."""

    batch_size: int  # likely fits
    safe_batch_size: int  # fits even at the high end
    power_of_two: int  # likely fits
    problems: tuple[str, ...]


_BREAKDOWN = {
    "weights_bytes": "weight",
    "gradients_bytes": "gradient",
    "optimizer_state_bytes": "optimizer_state",
    "activations_bytes": "activation",
    "temporaries_bytes": "temporary",
    "workspaces_bytes": "workspace",
    "inputs_bytes": "input",
    "buffers_bytes": "buffer",
}


def room_bytes(card: Gpu, context_bytes: int) -> int:
    """What a card leaves to PyTorch's allocator beside the CUDA context; never less than 0."""
    return max(card.memory_bytes - context_bytes, 0)


def limit_row(estimate: Estimate, batch_size: int, limit_bytes: int) -> FitRow:
    """The row named "limit": PyTorch's allocator limited to exactly so many bytes."""
    return _row("limit", limit_bytes, limit_bytes, 0, estimate, batch_size, ())


def fit_row(card: Gpu, estimate: Estimate, batch_size: int, context_bytes: int, problems: Sequence[str]) -> FitRow:
    """One card's row; `problems` says why the card cannot run the step at all, empty when it can."""
    room = room_bytes(card, context_bytes)
    return _row(card.name, card.memory_bytes, room, context_bytes, estimate, batch_size, problems)


def _row(
    name: str,
    memory_bytes: int,
    room_bytes: int,
    context_bytes: int,
    estimate: Estimate,
    batch_size: int,
    problems: Sequence[str],
) -> FitRow:
    model = estimate.model
    result = model.replay(batch_size, room_bytes)
    interval = estimate.interval(batch_size, room_bytes)
    verdict = interval.verdict(room_bytes)
    safe_batch, largest_batch = estimate.largest_safe_batch(room_bytes), estimate.largest_batch(room_bytes)
    peak = model.peak(batch_size, room_bytes if result.fits else None)
    return FitRow(
        gpu=name,
        memory_bytes=memory_bytes,
        fits=verdict == "fits" and not problems,
        verdict=verdict,
        peak_reserved_bytes=interval.likely_bytes if result.fits else None,
        peak_reserved_low_bytes=interval.low_bytes,
        peak_reserved_high_bytes=interval.high_bytes,
        peak_allocated_bytes=result.peak_allocated_bytes if result.fits else None,
        context_bytes=context_bytes,
        max_batch_size=largest_batch,
        max_batch_size_safe=safe_batch,
        max_batch_size_pow2=estimate.largest_power_of_two(room_bytes),
        max_batch_size_at_least=at_least(largest_batch),
        breakdown=Breakdown(**{field: peak.held_bytes[held] for field, held in _BREAKDOWN.items()}),
        peak_phase=peak.phase,
        peak_op=peak.op_name,
        supported=not problems,
        notes=tuple(problems),
    )


def at_least(largest_batch: int | None) -> bool:
    """Whether larger batches than the largest may fit: the search for it ends somewhere."""
    return largest_batch is not None and largest_batch >= MAX_BATCH_SIZE


def left_out(cards: Sequence[Gpu]) -> list[str]:
    """What is said of the catalogue's cards that cannot be asked about, as CUDA does not run on them."""
    others = [card for card in cards if not card.cuda]
    vendors = ", ".join(sorted({card.vendor for card in others}))
    return [f"{len(others)} cards of the catalogue without CUDA ({vendors}) are left out"] if others else []


def dtypes_used(trace: Trace) -> tuple[str, ...]:
    """Dtypes that decide whether a card can run the step ("bfloat16", ...); TF32 is left off where a card lacks it."""
    return tuple(d for d in trace.facts.get("dtypes", ()) if d == "bfloat16" or d.startswith("float8"))


# Steps may keep a few numbers of each, as for a curve.
_NO_LEAK_BYTES = 1 << 16


def caveats(trace: Trace) -> list[str]:
    """What the user should know about how the step was understood."""
    found = []
    if not trace.facts.get("backward_calls", 1):
        found.append("the step never calls backward(): this is the memory of a forward pass, not of training")
    if not trace.facts.get("optimizer_steps", 1):
        found.append(
            "no torch.optim optimizer stepped in the steps that were traced: optimizer state is only counted if the step "
            "keeps it itself; if it steps once in several calls, put the whole accumulation into one step(batch_size)"
        )
    elif idle := trace.facts.get("idle_optimizers", 0):
        those = "one optimizer was made that" if idle == 1 else f"{idle} optimizers were made that"
        found.append(
            f"{those} never stepped in the steps that were traced, so that its state and gradients may be missing here; "
            "if a step of one kind comes once in several calls, put the whole round into one step(batch_size)"
        )
    growth_bytes = trace.facts.get("growth_bytes", 0)
    if growth_bytes > _NO_LEAK_BYTES:
        found.append(
            f"each step leaves {text.format_bytes(growth_bytes)} more behind (at batch size {trace.batch_size}), so that a "
            f"run of more steps than the {trace.steps} that were traced needs more than this: does the step keep a loss or "
            "outputs with their graph? Keep loss.item() or loss.detach() instead"
        )
    if trace.facts.get("cudnn_benchmark"):
        found.append(
            "torch.backends.cudnn.benchmark is on: while cuDNN looks for the fastest algorithms, in the first step at "
            "each shape, it takes far more memory than later; where there is less, it looks among fewer"
        )
    if trace.kind == "real-cpu":
        found.append(
            "traced with real tensors on the CPU, since the step looks at computed values; sizes vary from run to run"
        )
    return found


def largest(card: Gpu, estimate: Estimate, context_bytes: int, problems: Sequence[str]) -> Largest:
    """The largest batches on a card, by memory alone, and why the card cannot run it all the same."""
    room = room_bytes(card, context_bytes)
    return Largest(
        estimate.largest_batch(room),
        estimate.largest_safe_batch(room),
        estimate.largest_power_of_two(room),
        tuple(problems),
    )


def ranked(
    cards: Sequence[Gpu],
    answers: Mapping[str, Mapping[str, Largest]],
    prices: Mapping[str, tuple[Price | None, Price | None]],
) -> tuple[RankRow, ...]:
    """Rows in the order of recommendation: cards that train all first, within a tier the cheapest to buy first.

    Within a tier, cards with a price of today come before those with an old one only: nobody sells at that any more.

    A card that the software cannot use comes after all that it can: its memory is of no help.

    Tiers follow the article of 2020: all workloads, most of them (small batches), or a poor fit (`tier_of`).
    """
    rows = [_rank_row(card, answers, *prices[card.id]) for card in cards]

    def key(row: RankRow) -> tuple[object, ...]:
        cost = row.buy.usd if row.buy is not None else float("inf")
        trains = -row.trains if row.tier != "all" else 0
        return (not row.supported, ORDER[row.tier], trains, not is_current(row.buy), cost, row.gpu)

    return tuple(sorted(rows, key=key))


def tier_of(trains: int, workloads: int) -> Tier:
    """The verdict on a card that trains so many of the workloads: all, most (all but one, or over three quarters), or fewer.

    The article of 2020 drew the second line somewhere between 7 of 12, not a good fit, and 11 of 12, most.
    """
    if trains == workloads:
        return "all"
    return "most" if trains and (trains >= workloads - 1 or 4 * trains > 3 * workloads) else "poor"


def is_current(price: Price | None) -> bool:
    """Whether a card can be had at about this price today: it is neither an older offer's nor that of the launch."""
    return price is not None and not price.stale


def _rank_row(
    card: Gpu, answers: Mapping[str, Mapping[str, Largest]], buy: Price | None, rent: Price | None
) -> RankRow:
    found = {name: by_card[card.id] for name, by_card in answers.items()}
    sizes = {name: answer.batch_size for name, answer in found.items()}
    trains = sum(size > 0 for size in sizes.values())
    problems = dict.fromkeys(problem for answer in found.values() for problem in answer.problems)
    return RankRow(
        gpu=card.name,
        memory_bytes=card.memory_bytes,
        compute_capability=card.compute_capability or "",
        tier=tier_of(trains, len(sizes)),
        trains=trains,
        max_batch_size=sizes,
        max_batch_size_safe={name: answer.safe_batch_size for name, answer in found.items()},
        max_batch_size_pow2={name: answer.power_of_two for name, answer in found.items()},
        max_batch_size_at_least={name: at_least(size) for name, size in sizes.items()},
        supported=not problems,
        buy=buy,
        rent=rent,
        notes=tuple(problems),
        problems={name: answer.problems for name, answer in found.items() if answer.problems},
    )
