"""Cards against several workloads: the largest batches, speeds and prices of each, joined into one report.

What `rank` prints and what advice is chosen from. Computes no memory and no time itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial as with_arguments
from typing import NamedTuple

import msgspec

from whichgpu import advice, catalogue, text
from whichgpu.advice import RankReport, Sort, TraceInfo
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.catalogue import Catalogue, Gpu
from whichgpu.intervals import Estimate, unmeasured
from whichgpu.ordering import ordered
from whichgpu.outlook import Outlook
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.speed_answers import SpeedAnswers, in_rank, speed_answers
from whichgpu.torch_build import installed_torch
from whichgpu.tracers import is_kept
from whichgpu.workload import WorkloadRef
from whichgpu.zoo_list import known_dtypes

# Why a card cannot run a step that uses some dtypes; empty where it can.
Judge = Callable[[Gpu, Sequence[str]], list[str]]

# Whose rules hold for cards without CUDA: datacentre cards since Hopper, which no step was measured on either.
STAND_IN = "9.4"


def ranking(
    refs: Sequence[WorkloadRef],
    cards: Catalogue,
    chosen: Sequence[Gpu],
    unit: Gpu | None,
    *,
    judge: Judge | None = None,
    samples: int | None = None,
    sort: Sort = "price",
    known: bool = True,
    host_speed: float = 1.0,
    cache: bool = True,
    partial: bool = False,
    on_progress: Progress | None = None,
) -> RankReport:
    """The cards `chosen` from a catalogue for all workloads, best first.

    `unit`: the card whose speed is 1. `judge` says which cards can run a step, by default the PyTorch that is installed.
    `samples`: of a whole run of each workload; `host_speed`: of the machine the cards are in, times the reference. Cards
    without CUDA are answered by the rules of the nearest ones with CUDA: memory alone, with a wider interval. A workload
    of which it is known that no card has what it computes in is not traced. With `partial`, who interrupts it gets what is
    known by then, if anything is. The other arguments are those of `api.rank`.
    """
    chosen = [stand_in(card) for card in chosen]
    judge = judge or by_installed_torch()
    prices = {card.id: (cards.price(card, "buy"), cards.instance_rent(card)) for card in chosen}
    rents = {card: rent for card, (_, rent) in prices.items()}
    found = {ref.text: _untraced(lacked) for ref in refs if (lacked := _lacked_by_all(ref, chosen))}
    speeds_of = with_arguments(
        speed_answers, unit=unit, samples=samples, rents=rents, known=known, host_speed=host_speed
    )
    untraced, traced = tuple(found), [ref for ref in refs if ref.text not in found]
    outlook = Outlook(traced, kept=is_kept if cache else lambda _: False) if on_progress is not None else None
    traced = outlook.refs if outlook is not None else traced
    if outlook is not None and on_progress is not None and (words := outlook.announcement(partial=partial)):
        on_progress(words)
    missing: tuple[str, ...] = ()
    for number, ref in enumerate(traced, 1):
        told_of = _part(number, len(traced), outlook, on_progress)
        try:
            with Predictor(ref, cache=cache, on_progress=told_of) as predictor:
                found[ref.text] = _answer(predictor, chosen, judge, speeds_of, told_of)
        except KeyboardInterrupt:
            if not partial or number == 1:
                raise
            found.pop(ref.text, None)
            missing = tuple(ref.text for ref in refs if ref.text not in found)
            break
        if outlook is not None:
            outlook.done()
    answered = {ref.text: found[ref.text] for ref in refs if ref.text in found}
    speeds = {name: one.speeds for name, one in answered.items()}
    rows = advice.ranked(chosen, {name: one.largest for name, one in answered.items()}, prices)
    return RankReport(
        workloads=tuple(answered),
        basis="predicted",
        traces={name: one.trace for name, one in answered.items() if one.trace is not None},
        gpus=ordered(tuple(in_rank(rows, chosen, speeds)), sort),
        baseline=next((one.baseline for one in speeds.values() if one.baseline), None),
        samples=samples,
        sort=sort,
        notes=tuple(f"{name}: {note}" for name, one in answered.items() for note in one.notes),
        usual_batch_size={name: one.usual for name, one in answered.items() if one.usual},
        untraced=untraced,
        missing=missing,
    )


class _Answer(NamedTuple):
    """What is said of one workload; by card where nothing else is said."""

    largest: dict[str, advice.Largest]
    speeds: SpeedAnswers
    trace: TraceInfo | None
    usual: int | None  # the batch size that it names itself
    notes: tuple[str, ...]


def _answer(
    predictor: Predictor,
    chosen: Sequence[Gpu],
    judge: Judge,
    speeds_of: Callable[..., SpeedAnswers],
    on_progress: Progress | None,
) -> _Answer:
    largest = _largest_on_each(predictor, chosen, judge, on_progress)
    most = max(chosen, key=lambda card: largest[card.id].batch_size)
    if predictor.confirm(largest[most.id].batch_size, most.capability):
        largest = _largest_on_each(predictor, chosen, judge, on_progress)
    able = {c.id: (c, largest[c.id].batch_size) for c in chosen if c.cuda and not largest[c.id].problems}
    speeds = speeds_of(predictor, able, on_progress=on_progress)
    size = predictor.facts(chosen[0].capability).facts.get("default_batch_size")
    told = (*predictor.notes(), *unbounded(one.batch_size for one in largest.values()), *speeds.notes)
    return _Answer(largest, speeds, predictor.info(), int(size) if size else None, told)


def _untraced(lacked: dict[str, tuple[str, ...]]) -> _Answer:
    """The answer about a workload that no card can run, with the reasons by card."""
    largest = {card: advice.Largest(0, 0, 0, problems) for card, problems in lacked.items()}
    told = ("not traced, as no card asked about has what it computes in",)
    return _Answer(largest, SpeedAnswers({}, None, ()), None, None, told)


def _lacked_by_all(ref: WorkloadRef, cards: Sequence[Gpu]) -> dict[str, tuple[str, ...]]:
    """Why none of the cards can run a workload, by card, where that is known before it is traced; else nothing."""
    dtypes = known_dtypes(ref)
    found = {card.id: tuple(catalogue.lacking(card, dtypes)) for card in cards}
    return found if all(found.values()) else {}


def by_installed_torch() -> Judge:
    """Why a card cannot run a step with the PyTorch that is installed, which is looked up once."""
    build = installed_torch()
    return lambda card, dtypes: catalogue.supports(card, build.version, build.cuda, dtypes)


def by_day(past: bool) -> Judge:
    """Why a card cannot run a step: by the PyTorch that is installed, or by what the card lacks where that is no matter.

    That is so on a day of the past, and for cards without CUDA.
    """
    installed = by_installed_torch()
    return lambda card, dtypes: installed(card, dtypes) if card.cuda and not past else catalogue.lacking(card, dtypes)


def stand_in(card: Gpu) -> Gpu:
    """A card, with the compute capability of its nearest relatives where it has none."""
    return card if card.cuda else msgspec.structs.replace(card, compute_capability=STAND_IN)


def in_turn(
    predictor: Predictor,
    cards: Sequence[Gpu],
    words: str,
    on_progress: Progress | None,
    judge: Judge | None = None,
) -> Iterator[tuple[Gpu, list[str]]]:
    """Each card with why it cannot run the step, if so; `on_progress` hears of each."""
    why = judge or by_installed_torch()
    for number, card in enumerate(cards):
        if on_progress is not None:
            on_progress(f"{words}{card.name} ({number + 1} of {len(cards)})")
        dtypes = advice.dtypes_used(predictor.facts(card.capability))
        yield card, why(card, dtypes)


def taken_for(cards: Catalogue, names: Iterable[str]) -> list[str]:
    """Which card was taken where a name says nothing of its form, and how to name the others."""
    found = []
    for name in dict.fromkeys(names):
        if others := cards.twins(name):
            taken = cards.find(name).name
            found.append(f'"{name}" was taken for the {taken}; the other is "{" or ".join(others)}"')
    return found


def unbounded(largest: Iterable[int]) -> list[str]:
    """The caveat where the search for the largest batch met its own end and not that of the memory."""
    if max(largest, default=0) < MAX_BATCH_SIZE:
        return []
    size = text.format_count(MAX_BATCH_SIZE)
    return [f"no batch size above {size} was looked at; does the memory of this step depend on its batch size at all?"]


def _part(number: int, count: int, outlook: Outlook | None, on_progress: Progress | None) -> Progress | None:
    """Who hears of the progress of one of several workloads: each line says which of them it is, and what is left."""
    if outlook is None or on_progress is None:
        return None
    outlook.begin()
    if count == 1:
        return on_progress
    return lambda line: on_progress(f"{number} of {count}{outlook.left()}: {line}")


def _largest_on_each(
    predictor: Predictor, cards: Sequence[Gpu], judge: Judge | None, on_progress: Progress | None
) -> dict[str, advice.Largest]:
    """The largest batches of one workload, by card."""
    # cards of about the same memory meet the same batch sizes, of which the last few are kept
    alike = sorted(cards, key=lambda card: (card.memory_bytes, card.capability))
    turns = in_turn(predictor, alike, f"{predictor.ref.text} on ", on_progress, judge)
    return {
        card.id: advice.largest(card, _estimate(predictor, card), context_bytes(), problems) for card, problems in turns
    }


def _estimate(predictor: Predictor, card: Gpu) -> Estimate:
    """The memory model for a card; less sure where nothing of its vendor was measured."""
    estimate = predictor.estimate(card.capability)
    return estimate if card.cuda else Estimate(estimate.model, unmeasured(estimate.spread))
