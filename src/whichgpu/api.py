"""The questions that whichgpu answers, from Python: `fit`, `explain` and `rank`.

Joins the predictor of each workload with the catalogue into records. Nothing here computes memory or formats numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from whichgpu import advice, arguments, catalogue, explanation, remedies, text, workload
from whichgpu import host_speed as host_speeds
from whichgpu import snapshot as snapshots
from whichgpu.advice import FitReport, FitRow, RankReport, Sort, TraceInfo
from whichgpu.arguments import TIMEOUT_S
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.charts.figure import check_file
from whichgpu.charts.roofline import draw_roofline
from whichgpu.closeup import look_at, with_remedy
from whichgpu.errors import InputError
from whichgpu.explanation import ExplainReport
from whichgpu.ordering import ordered
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.speed.rates import rates
from whichgpu.speed_answers import SpeedAnswers, in_fit, in_rank, lacks, speed_answers
from whichgpu.speed_closeup import TimeLook, time_of
from whichgpu.tables import BASELINE
from whichgpu.torch_build import installed_torch
from whichgpu.tracers import falling_back

DEFAULT_CARD = "H200"  # whose rules hold under --memory-limit when no card is named


@falling_back
def fit(
    name: str,
    *,
    batch_size: int | None = None,
    gpus: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    optimizer: str | None = None,
    baseline: str | None = None,
    host_speed: float | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    dataset_size: int | None = None,
    cache: bool = True,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> FitReport:
    """Does a batch of the workload fit on each card, and what is the largest that does?

    `batch_size`: samples per step, by default the workload's own. `gpus`: names of cards, by default every card with CUDA
    of the catalogue; cards that are named are answered exactly. `memory_limit_bytes` asks about PyTorch's allocator limited
    to so much, by the rules of the first card that is named, and besides only about cards that are named. `optimizer`
    ("adamw", "sgd", ...) replaces that of a library's model or of the zoo. `baseline` names the card whose speed is 1, by
    default the Quadro RTX 8000 where it is among those asked about. `host_speed` is that of the machine that the cards are in,
    times the reference's, by default this machine's where `whichgpu bench --calibrate-host` measured it. `samples`, or `epochs` and `dataset_size`, ask how long
    a whole run takes, and how much energy. `cache=False` traces again and keeps nothing on disk.
    `on_progress` is called with a line now and then. `timeout_s` seconds at most may pass while the workload is loaded, and
    at each batch size that is traced. Raises subclasses of WhichGpuError.
    """
    arguments.check_name(name)
    arguments.check_batch_size(batch_size)
    arguments.check_memory_limit(memory_limit_bytes)
    arguments.check_gpus(gpus)
    host_speeds.check(host_speed)
    host, of_host = host_speeds.chosen(host_speed)
    run_samples = arguments.run_samples(samples, epochs, dataset_size)
    cards = catalogue.load()
    compared = _baseline(cards, baseline)
    named = {card.id: card for card in map(cards.find, gpus or ())}  # a card named twice is answered once
    limited = memory_limit_bytes is not None
    chosen = list(named.values()) if gpus or limited else [card for card in cards.gpus if card.cuda]
    ref = workload.parse(name)
    if optimizer is not None:
        ref = workload.with_options(ref, {"optimizer": optimizer})
    exact = bool(gpus) or limited
    room = max((memory_limit_bytes or 0, *(advice.room_bytes(card, context_bytes()) for card in named.values())))
    asked_of = Predictor(ref, cache=cache, on_progress=on_progress, exact=exact, batch_size=batch_size, room_bytes=room)
    with asked_of as predictor:
        limit_card = chosen[0] if gpus else cards.find(DEFAULT_CARD)
        first = limit_card if limited else chosen[0]
        if batch_size is not None:
            predictor.check(batch_size, first.capability)
        predictor.model(first.capability)
        size = batch_size if batch_size is not None else predictor.default_batch_size(first.capability)

        def answers() -> list[tuple[catalogue.Gpu, FitRow]]:
            found = _fit_rows(predictor, chosen, size, on_progress)
            if memory_limit_bytes is not None:
                estimate = predictor.estimate(limit_card.capability)
                found.insert(0, (limit_card, advice.limit_row(estimate, size, memory_limit_bytes)))
            return found

        found = answers()
        most, row = max(found, key=lambda pair: pair[1].max_batch_size)
        if predictor.confirm(row.max_batch_size, most.capability):
            found = answers()
        sizes = {card.id: (card, row.max_batch_size) for card, row in found if row.gpu != "limit" and row.supported}
        unit = compared or next((card for card in chosen if card.name == BASELINE), None)
        speeds = speed_answers(predictor, sizes, unit, samples=run_samples, host_speed=host, on_progress=on_progress)
        report = [in_fit(row, speeds.cards.get(card.id) if row.gpu != "limit" else None) for card, row in found]
        return FitReport(
            baseline=speeds.baseline,
            samples=run_samples,
            workload=ref.text,
            batch_size=size,
            basis="predicted",
            trace=predictor.info(),
            gpus=tuple(report),
            notes=(
                *predictor.notes(),
                *filter(None, [of_host]),
                *_in_general(predictor, exact),
                *_taken_for(cards, gpus or ()),
                *([_limit_note(limit_card)] if limited else []),
                *_unbounded(row.max_batch_size for row in report),
                *speeds.notes,
                *([] if gpus or limited else advice.left_out(cards.gpus)),
            ),
        )


def _fit_rows(
    predictor: Predictor,
    cards: Sequence[catalogue.Gpu],
    batch_size: int,
    on_progress: Progress | None,
) -> list[tuple[catalogue.Gpu, FitRow]]:
    """Each card with its answer, in order."""
    rows = {}
    for card, problems in _in_turn(predictor, cards, "", on_progress):
        estimate = predictor.estimate(card.capability)
        rows[card.id] = advice.fit_row(card, estimate, batch_size, context_bytes(), problems)
    return [(card, rows[card.id]) for card in cards]


def _in_turn(
    predictor: Predictor, cards: Sequence[catalogue.Gpu], words: str, on_progress: Progress | None
) -> Iterator[tuple[catalogue.Gpu, list[str]]]:
    """Each card with why it cannot run the step, if so; `on_progress` hears of each."""
    build = installed_torch()
    for number, card in enumerate(cards):
        if on_progress is not None:
            on_progress(f"{words}{card.name} ({number + 1} of {len(cards)})")
        dtypes = advice.dtypes_used(predictor.facts(card.capability))
        yield card, catalogue.supports(card, build.version, build.cuda, dtypes)


def _in_general(predictor: Predictor, exact: bool) -> list[str]:
    """What is said of a workload for which every card is answered by a line, although a named one need not be."""
    if exact or not predictor.by_line or predictor.info().kind != "fake":
        return []
    return ["that line is an estimate for many cards at once: a card that is named (--gpu) is answered exactly"]


@falling_back
def explain(
    name: str,
    *,
    batch_size: int | None = None,
    gpu: str | None = None,
    snapshot: str | Path | None = None,
    roofline: str | Path | None = None,
    cache: bool = True,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> ExplainReport:
    """Where do the memory and the time of a step go, and what would the usual remedies save?

    Each remedy is traced by itself, which takes seconds for each the first time. Without `gpu` memory has no limit,
    the rules are those of the H200, and nothing is said of time. `snapshot` names a file for the predicted allocator events
    as a PyTorch memory snapshot, `roofline` one (.png or .svg) for the step's roofline on `gpu`; earlier files there are
    replaced. The other arguments are those of `fit`. Raises subclasses of WhichGpuError.
    """
    arguments.check_name(name)
    arguments.check_batch_size(batch_size)
    arguments.check_gpu(gpu)
    cards = catalogue.load()
    card = cards.find(gpu) if gpu is not None else None
    capability = (card or cards.find(DEFAULT_CARD)).capability
    room = advice.room_bytes(card, context_bytes()) if card is not None else None
    target = Path(snapshot).expanduser() if snapshot is not None else None
    if target is not None:
        snapshots.check_path(target)
    picture = Path(roofline).expanduser() if roofline is not None else None
    if picture is not None:
        _check_roofline(card, picture)
    ref = workload.parse(name)
    asked_of = Predictor(
        ref, cache=cache, on_progress=on_progress, exact=True, batch_size=batch_size, room_bytes=room or 0
    )
    with asked_of as predictor:
        if batch_size is not None:
            predictor.check(batch_size, capability)
        predictor.model(capability)
        size = batch_size if batch_size is not None else predictor.default_batch_size(capability)
        look = look_at(predictor, size, capability, room)
        if look.largest is not None and predictor.confirm(look.largest, capability):
            look = look_at(predictor, size, capability, room)
        found = explanation.explained(look.model, look.trace, size, look.within_bytes)
        if target is not None:
            snapshots.write(snapshots.make(look.model.program(size), look.trace, look.within_bytes), target)
        times = _time(predictor, card, size) if card is not None else ""
        if picture is not None:
            if isinstance(times, str):
                raise InputError(f"there is no roofline to draw: {times}")
            draw_roofline(ref.text, times, picture)
        info, notes = predictor.info(), predictor.notes()
    plans, left_out = remedies.plans(ref, look.trace, size, _no_bfloat16(card))
    outcomes = [with_remedy(plan, size, capability, room, look, cache=cache, on_progress=on_progress) for plan in plans]
    if room is not None and look.within_bytes is None:
        notes = (*notes, "the batch does not fit; what is shown is a run with as much memory as it wants")
    notes = (*notes, *_taken_for(cards, [gpu] if gpu is not None else []))
    return ExplainReport(
        workload=ref.text,
        batch_size=size,
        basis="predicted",
        trace=info,
        gpu=card.name if card is not None else None,
        memory_bytes=card.memory_bytes if card is not None else None,
        context_bytes=context_bytes() if card is not None else None,
        verdict=look.verdict,
        max_batch_size=look.largest,
        max_batch_size_safe=look.safe,
        max_batch_size_at_least=advice.at_least(look.largest),
        peak_reserved_bytes=look.reserved_bytes,
        **msgspec.structs.asdict(found),
        remedies=tuple(one for one in outcomes if isinstance(one, remedies.Remedy)),
        left_out=tuple(one for one in (*left_out, *outcomes) if isinstance(one, remedies.LeftOut)),
        snapshot=str(target) if target is not None else None,
        notes=notes,
        time=None if isinstance(times, str) else times.times,
        time_missing=times if isinstance(times, str) else "",
        roofline=str(picture) if picture is not None else None,
    )


def _check_roofline(card: catalogue.Gpu | None, picture: Path) -> None:
    """InputError where no roofline can be drawn, before anything is traced."""
    if card is None:
        raise InputError("a roofline is of a step on a card: name one with --gpu")
    rates(card)
    check_file(picture)


def _time(predictor: Predictor, card: catalogue.Gpu, batch_size: int) -> TimeLook | str:
    """Where the time of a step goes on a card, or why that is not known."""
    build = installed_torch()
    dtypes = advice.dtypes_used(predictor.facts(card.capability))
    problems = catalogue.supports(card, build.version, build.cuda, dtypes)
    return "; ".join(problems) if problems else time_of(predictor, card, batch_size)


@falling_back
def rank(
    names: Sequence[str],
    *,
    gpus: Sequence[str] | None = None,
    baseline: str | None = None,
    host_speed: float | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    dataset_size: int | None = None,
    sort: Sort = "price",
    known: bool = True,
    cache: bool = True,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> RankReport:
    """Which cards train these workloads, and what do they cost? Best first.

    `names` is a list; without `gpus` all cards are ranked; `sort` orders cards that train equally many workloads: by
    "price" to buy, by "speed" or by "memory". Where a run is asked about, its rent is told too. `known=False` predicts also
    where a measured or published speed is known. The other arguments are those of `fit`. Raises subclasses of
    WhichGpuError.
    """
    arguments.check_names(names)
    arguments.check_gpus(gpus)
    arguments.check_sort(sort)
    host_speeds.check(host_speed)
    host, of_host = host_speeds.chosen(host_speed) if known or host_speed is not None else (1.0, "")
    run_samples = arguments.run_samples(samples, epochs, dataset_size)
    refs = list({ref.text: ref for ref in map(workload.parse, names)}.values())
    cards = catalogue.load()
    wanted = None if gpus is None else {cards.find(gpu).id for gpu in gpus}
    chosen = [card for card in cards.gpus if card.cuda and (wanted is None or card.id in wanted)]
    unit = _baseline(cards, baseline) or next((c for c in chosen if c.name == BASELINE), None)
    if not chosen:
        raise InputError(f"no card of those asked for has CUDA: {', '.join(gpus or ())}")
    answers: dict[str, dict[str, advice.Largest]] = {}
    traces: dict[str, TraceInfo] = {}
    notes: list[str] = []
    speeds: dict[str, SpeedAnswers] = {}
    prices = {card.id: (cards.price(card, "buy"), cards.price(card, "rent")) for card in chosen}
    for number, ref in enumerate(refs, 1):
        told_of = _part(number, len(refs), on_progress)
        with Predictor(ref, cache=cache, on_progress=told_of) as predictor:
            largest = _largest_on_each(predictor, chosen, told_of)
            most = max(chosen, key=lambda card: largest[card.id].batch_size)
            if predictor.confirm(largest[most.id].batch_size, most.capability):
                largest = _largest_on_each(predictor, chosen, told_of)
            answers[ref.text] = largest
            sizes = {card.id: (card, largest[card.id].batch_size) for card in chosen if not largest[card.id].problems}
            speeds[ref.text] = speed_answers(
                predictor,
                sizes,
                unit,
                samples=run_samples,
                rents={card: rent for card, (_, rent) in prices.items()},
                known=known,
                host_speed=host,
                on_progress=told_of,
            )
            traces[ref.text] = predictor.info()
            unbounded = _unbounded(one.batch_size for one in largest.values())
            told = (*predictor.notes(), *unbounded, *speeds[ref.text].notes)
            notes += [f"{ref.text}: {note}" for note in told]
    return RankReport(
        workloads=tuple(ref.text for ref in refs),
        basis="predicted",
        traces=traces,
        gpus=ordered(tuple(in_rank(advice.ranked(chosen, answers, prices), chosen, speeds)), sort),
        baseline=next((answer.baseline for answer in speeds.values() if answer.baseline), None),
        samples=run_samples,
        sort=sort,
        notes=tuple(
            dict.fromkeys(
                (*notes, *filter(None, [of_host]), *(_taken_for(cards, gpus) if gpus else advice.left_out(cards.gpus)))
            )
        ),
    )


def _baseline(cards: catalogue.Catalogue, name: str | None) -> catalogue.Gpu | None:
    """The card of a name that speeds are compared with; InputError where no speed of it can be predicted."""
    if name is None:
        return None
    arguments.check_gpu(name)
    card = cards.find(name)
    if not card.cuda:
        raise InputError(f"{card.name} has no CUDA, so that its speed is not known; take another --baseline")
    return card


def _part(number: int, count: int, on_progress: Progress | None) -> Progress | None:
    """Who hears of the progress of one of several workloads: each line says which of them it is."""
    if on_progress is None or count == 1:
        return on_progress
    return lambda line: on_progress(f"{number} of {count}: {line}")


def _largest_on_each(
    predictor: Predictor, cards: Sequence[catalogue.Gpu], on_progress: Progress | None
) -> dict[str, advice.Largest]:
    """The largest batches of one workload, by card."""
    turns = _in_turn(predictor, cards, f"{predictor.ref.text} on ", on_progress)
    return {
        card.id: advice.largest(card, predictor.estimate(card.capability), context_bytes(), problems)
        for card, problems in turns
    }


def _taken_for(cards: catalogue.Catalogue, names: Iterable[str]) -> list[str]:
    """Which card was taken where a name says nothing of its form, and how to name the others."""
    found = []
    for name in dict.fromkeys(names):
        if others := cards.twins(name):
            taken = cards.find(name).name
            found.append(f'"{name}" was taken for the {taken}; the other is "{" or ".join(others)}"')
    return found


def _limit_note(card: catalogue.Gpu) -> str:
    return (
        f"limit: by the rules of the {card.name}, and for PyTorch's allocator alone; a card of that size also holds the "
        "CUDA context, so name it with --gpu to ask about one"
    )


def _unbounded(largest: Iterable[int]) -> list[str]:
    """The caveat where the search for the largest batch met its own end and not that of the memory."""
    if max(largest, default=0) < MAX_BATCH_SIZE:
        return []
    size = text.format_count(MAX_BATCH_SIZE)
    return [f"no batch size above {size} was looked at; does the memory of this step depend on its batch size at all?"]


def _no_bfloat16(card: catalogue.Gpu | None) -> str | None:
    """Why a card cannot compute in bfloat16; None if it can, or when no card was named."""
    return lacks(card, ["bfloat16"]) if card is not None else None
