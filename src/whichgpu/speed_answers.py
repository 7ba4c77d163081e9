"""The speeds of one workload on the cards that were asked about, as they stand in the rows of `fit` and `rank`.

Joins predictions (`speeds`) with what is known of the same workload, card and batch (`known_speeds`), the baseline and a whole
run; computes no time itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from whichgpu import advice, catalogue
from whichgpu.advice import FitRow, RankRow
from whichgpu.catalogue import Gpu, Price
from whichgpu.known_speeds import Known, at, known_speeds
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.runs import Run, run
from whichgpu.speed.record import PredictedSpeed
from whichgpu.speeds import Speeds, relative
from whichgpu.speeds import notes as speed_notes
from whichgpu.torch_build import installed_torch


class Spoken(NamedTuple):
    """What is said of one card."""

    speed: PredictedSpeed | None  # at the largest batch that likely fits
    missing: str = ""  # why it is unknown
    best: PredictedSpeed | None = None  # at the batch with most samples per second, where that is another
    known: tuple[PredictedSpeed, ...] = ()  # measured and published, the smallest batch first
    ratio: float | None = None
    run: Run | None = None
    note: str = ""


class SpeedAnswers(NamedTuple):
    """What is said of all cards."""

    cards: dict[str, Spoken]  # by id
    baseline: str | None  # None where nothing is compared
    notes: tuple[str, ...]


def speed_answers(
    predictor: Predictor,
    sizes: Mapping[str, tuple[Gpu, int]],
    unit: Gpu | None,
    *,
    samples: int | None = None,
    rents: Mapping[str, Price | None] | None = None,
    known: bool = True,
    host_speed: float = 1.0,
    on_progress: Progress | None = None,
) -> SpeedAnswers:
    """Speeds at each card's largest batch (`sizes`, by id), relative to `unit`'s, and what a run of `samples` takes.

    `host_speed`: of the machine that the cards are in, times the reference's. `known`: measured and published speeds take the place of predictions.
    """
    if on_progress is not None:
        on_progress(f"{predictor.ref.text}: step times")
    speeds, others = Speeds(predictor, host_speed), known_speeds(predictor.ref) if known else {}
    predicted = {name: speeds.of(card, size) for name, (card, size) in sizes.items()}
    of_unit = _of_unit(predictor, speeds, unit, predicted)
    ratios = relative(predicted, of_unit)
    cards = {
        name: _spoken(speeds, card, found, others, ratios[name])
        for (name, found), (card, _) in zip(predicted.items(), sizes.values(), strict=True)
    }
    if samples is not None:
        for name, one in cards.items():
            rent = (rents or {}).get(name)
            fastest = one.best or one.speed
            if fastest is not None:
                fastest = _filled(speeds, sizes[name][0], fastest, samples, others)
                taken = run(samples, fastest, sizes[name][0].tdp_w, rent.usd if rent is not None else None)
                cards[name] = one._replace(run=taken)
    told = (*speed_notes(predicted, [card for card, _ in sizes.values()]), *_no_baseline(unit, of_unit))
    return SpeedAnswers(cards, unit.name if unit is not None and isinstance(of_unit, PredictedSpeed) else None, told)


def _spoken(speeds: Speeds, card: Gpu, found: PredictedSpeed | str, known: Known, ratio: float | None) -> Spoken:
    others = tuple(one for _, one in sorted(known.get(card.id, {}).items()))
    if not isinstance(found, PredictedSpeed):
        return Spoken(None, found, known=others)
    spoken, best = at(known, card.id, found), speeds.best(card, found.batch_size)
    assert isinstance(spoken, PredictedSpeed)
    # a prediction and a figure that is known are not told apart by some percent
    if best is not None and spoken.basis != "predicted":
        best = None
    return Spoken(spoken, "", best, others, ratio, None, speeds.note(card))


def _filled(speeds: Speeds, card: Gpu, fastest: PredictedSpeed, samples: int, known: Known) -> PredictedSpeed:
    """The speed of a run's steps: at a batch of all its samples where they do not fill one of the fastest."""
    if samples >= fastest.batch_size:
        return fastest
    found = at(known, card.id, speeds.of(card, samples))
    return found if isinstance(found, PredictedSpeed) else fastest


def _of_unit(
    predictor: Predictor, speeds: Speeds, unit: Gpu | None, predicted: Mapping[str, PredictedSpeed | str]
) -> PredictedSpeed | str | None:
    """The speed of the baseline, which need not be among the cards that were asked about."""
    if unit is None:
        return None
    if unit.id in predicted:
        return predicted[unit.id]
    if lacking := lacks(unit, advice.dtypes_used(predictor.facts(unit.capability))):
        return lacking
    return speeds.of(unit, predictor.estimate(unit.capability).largest_batch(advice.room_bytes(unit, context_bytes())))


def lacks(card: Gpu, dtypes: Sequence[str]) -> str | None:
    """Why a card cannot compute in some dtypes, whatever the PyTorch; None if it can."""
    build = installed_torch()
    plain = catalogue.supports(card, build.version, build.cuda)
    with_them = catalogue.supports(card, build.version, build.cuda, dtypes)
    return next((problem for problem in with_them if problem not in plain), None)


def _no_baseline(unit: Gpu | None, found: PredictedSpeed | str | None) -> Iterator[str]:
    """What is said where nothing can be compared with the baseline."""
    if unit is not None and isinstance(found, str):
        yield f"speeds are not compared with the {unit.name}: {found.removeprefix(f'{unit.name}: ')}"


def in_fit(row: FitRow, found: Spoken | None) -> FitRow:
    """A card's row with what is said of its speed."""
    if found is None:
        missing = "a limit is no card" if row.gpu == "limit" else "not supported"
        return msgspec.structs.replace(row, speed_missing=missing)
    return msgspec.structs.replace(
        row,
        speed=found.speed,
        speed_missing=found.missing,
        speed_note=found.note,
        relative_speed=found.ratio,
        best_speed=found.best,
        known_speeds=found.known,
        run=found.run,
    )


def in_rank(rows: Iterable[RankRow], cards: Sequence[Gpu], answers: Mapping[str, SpeedAnswers]) -> Iterator[RankRow]:
    """The rows of a ranking with what is said of the cards' speeds, by workload."""
    ids = {card.name: card.id for card in cards}
    unknown = Spoken(None, "not supported")
    for row in rows:
        found = {name: answer.cards.get(ids[row.gpu], unknown) for name, answer in answers.items()}
        yield msgspec.structs.replace(
            row,
            speed={name: one.speed for name, one in found.items()},
            speed_missing={name: one.missing for name, one in found.items() if one.missing},
            relative_speed={name: one.ratio for name, one in found.items()},
            best_speed={name: one.best for name, one in found.items()},
            run={name: one.run for name, one in found.items()},
        )
