"""The questions that whichgpu answers, from Python: `fit`, `explain`, `rank` and `advise`.

Joins the predictor of each workload with the catalogue into records. Nothing here computes memory or formats numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import msgspec

from whichgpu import advice, arguments, catalogue, explanation, free_machines, remedies, workload
from whichgpu import currency as currencies
from whichgpu import host_speed as host_speeds
from whichgpu import snapshot as snapshots
from whichgpu.advice import FitReport, FitRow, RankReport, Sort
from whichgpu.advising import advice as advising
from whichgpu.advising import wishes as wished
from whichgpu.advising.records import AdviceReport
from whichgpu.advising.wishes import Wishes
from whichgpu.arguments import TIMEOUT_S
from whichgpu.charts.figure import check_file
from whichgpu.charts.roofline import draw_roofline
from whichgpu.closeup import look_at, with_remedy
from whichgpu.errors import InputError
from whichgpu.explanation import ExplainReport
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.ranking import by_day, by_installed_torch, in_turn, ranking, taken_for, unbounded
from whichgpu.speed.rates import rates
from whichgpu.speed_answers import in_fit, lacks, speed_answers
from whichgpu.speed_closeup import TimeLook, time_of
from whichgpu.tables import BASELINE
from whichgpu.tracers import falling_back
from whichgpu.what_helps import what_helps_in_words

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
    named = {card.id: card for card in cards.find_all(gpus or ())}  # a card named twice is answered once
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
            batch_size_is_default=batch_size is None,
            basis="predicted",
            trace=predictor.info(),
            gpus=tuple(report),
            notes=(
                *predictor.notes(),
                *filter(None, [of_host]),
                *_in_general(predictor, exact),
                *taken_for(cards, gpus or ()),
                *([_limit_note(limit_card)] if limited else []),
                *unbounded(row.max_batch_size for row in report),
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
    for card, problems in in_turn(predictor, cards, "", on_progress):
        estimate = predictor.estimate(card.capability)
        rows[card.id] = advice.fit_row(card, estimate, batch_size, context_bytes(), problems)
    return [(card, rows[card.id]) for card in cards]


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
    host_speed: float | None = None,
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
    host_speeds.check(host_speed)
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
        times = _time(predictor, card, size, host_speed) if card is not None else ""
        if picture is not None:
            if isinstance(times, str):
                raise InputError(f"there is no roofline to draw: {times}")
            draw_roofline(ref.text, times, picture)
        info, notes = predictor.info(), predictor.notes()
    plans, left_out = remedies.plans(ref, look.trace, size, _no_bfloat16(card))
    outcomes = [with_remedy(plan, size, capability, room, look, cache=cache, on_progress=on_progress) for plan in plans]
    if room is not None and look.within_bytes is None:
        notes = (*notes, "the batch does not fit; what is shown is a run with as much memory as it wants")
    notes = (*notes, *taken_for(cards, [gpu] if gpu is not None else []))
    return ExplainReport(
        workload=ref.text,
        batch_size=size,
        batch_size_is_default=batch_size is None,
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


def _time(predictor: Predictor, card: catalogue.Gpu, batch_size: int, host_speed: float | None) -> TimeLook | str:
    """Where the time of a step goes on a card, or why that is not known."""
    problems = by_installed_torch()(card, advice.dtypes_used(predictor.facts(card.capability)))
    return "; ".join(problems) if problems else time_of(predictor, card, batch_size, host_speed)


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
    currency: str = "USD",
    known: bool = True,
    cache: bool = True,
    partial: bool = False,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> RankReport:
    """Which cards train these workloads, and what do they cost? Best first.

    `names` is a list; without `gpus` all cards are ranked; `sort` orders cards that train equally many workloads: by
    "price" to buy, by "speed" or by "memory"; amounts are shown in `currency`, as in `advise`. Where a run is asked about,
    its rent is told too. `known=False` predicts also where a measured or published speed is known. `partial=True`: who
    interrupts it gets what is known by then, and `missing` names the rest. The other arguments are those of `fit`. Raises
    subclasses of WhichGpuError.
    """
    arguments.check_names(names)
    arguments.check_gpus(gpus)
    arguments.check_sort(sort)
    shown_in = currencies.parse(currency)
    host_speeds.check(host_speed)
    host, of_host = host_speeds.chosen(host_speed) if known or host_speed is not None else (1.0, "")
    run_samples = arguments.run_samples(samples, epochs, dataset_size)
    refs = list({ref.text: ref for ref in map(workload.parse, names)}.values())
    cards = catalogue.load()
    wanted = None if gpus is None else {card.id for card in cards.find_all(gpus)}
    chosen = [card for card in cards.gpus if card.cuda and (wanted is None or card.id in wanted)]
    unit = _baseline(cards, baseline) or next((c for c in chosen if c.name == BASELINE), None)
    if not chosen:
        raise InputError(f"no card of those asked for has CUDA: {', '.join(gpus or ())}")
    report = ranking(
        refs,
        cards,
        chosen,
        unit,
        samples=run_samples,
        sort=sort,
        known=known,
        host_speed=host,
        cache=cache,
        partial=partial,
        on_progress=on_progress,
    )
    others = [*filter(None, [of_host]), *(taken_for(cards, gpus) if gpus else advice.left_out(cards.gpus))]
    return msgspec.structs.replace(report, currency=shown_in, notes=tuple(dict.fromkeys((*report.notes, *others))))


@falling_back
def advise(
    names: Sequence[str],
    *,
    wishes: Wishes | None = None,
    as_of: str | None = None,
    currency: str = "USD",
    host_speed: float | None = None,
    known: bool = True,
    cache: bool = True,
    partial: bool = False,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> AdviceReport:
    """Which cards to buy, to rent or to do without for these workloads?

    `wishes` holds what is wished for, with amounts in US dollars; `as_of` ("2020-02") asks with the cards and prices that were
    known on that day; amounts are shown in `currency`, a code or one with a rate ("EUR=1.08"). Where few cards are named, it
    is also said what would make a workload fit that does not; where only free machines are asked about, only their cards are
    ranked. `host_speed` is that of the machine that the cards stand in, by default the reference's. The other arguments are
    those of `rank`. Raises subclasses of WhichGpuError.
    """
    arguments.check_names(names)
    wishes = wishes or Wishes()
    wished.check(wishes)
    host_speeds.check(host_speed)
    refs = list({ref.text: ref for ref in map(workload.parse, names)}.values())
    everything = catalogue.load()
    cards = everything.as_of(as_of or "today")
    shown_in = currencies.parse(currency)
    _check_days(everything, cards, wishes)
    wished.check_words(wishes, cards.gpus)
    past = cards.day is not None and cards.day < date.today()
    machines = () if past else tuple(free_machines.load())
    # not this host's by default: what is rented or bought does not stand in it
    host, of_host = host_speeds.chosen(host_speed) if host_speed is not None else (host_speeds.REFERENCE_SPEED, "")
    extra = [*taken_for(cards, (*wishes.gpus, *wishes.own)), *filter(None, [of_host]), *([_PAST] if past else [])]

    chosen = advising.chosen(cards, wishes)

    def advice_from(providers: Sequence[str]) -> AdviceReport:
        asked = advising.on_offer(chosen, machines, wishes, providers) or chosen
        found = ranking(
            refs,
            cards,
            asked,
            next((card for card in asked if card.name == BASELINE), None),
            judge=by_day(past),
            samples=wishes.samples,
            known=known,
            host_speed=host,
            cache=cache,
            partial=partial,
            on_progress=on_progress,
        )
        found = msgspec.structs.replace(found, notes=tuple(dict.fromkeys((*extra, *found.notes))))
        left = [] if found.missing else _changes(refs, found, cards, wishes, cache, on_progress)
        return advising.advise(found, cards, wishes, currency=shown_in, machines=machines, changes=left)

    report = advice_from(wishes.providers)
    if wishes.way == "free" and wishes.providers and report.empty is not None and not report.missing:
        return advice_from(())  # other machines may be what to relax for
    return report


_PAST = (
    "a day of the past: cards and prices are of that day, and no card is left out because today's PyTorch has no kernels "
    "for it; steps are traced and speeds predicted for today's PyTorch all the same"
)
_FEW = 3  # cards that are named, and workloads, of which it is tried what helps


def _check_days(everything: catalogue.Catalogue, cards: catalogue.Catalogue, wishes: Wishes) -> None:
    """A card that is named and was not released on that day is told as such, and a day before all cards."""
    for card in everything.find_all((*wishes.own, *wishes.gpus)):
        cards.check_released(card)
        if card.vendor not in advising.PREDICTED:
            raise InputError(f"{card.name}: nothing is predicted of {card.vendor}'s processors; name another card")
    if not advising.chosen(cards, wishes):
        first = min(advising.chosen(everything, wishes), key=lambda card: card.release)
        raise InputError(
            f"no card of the catalogue was released by {cards.day}; the first was the {first.name} in {first.release}: "
            "ask about a later day"
        )


def _changes(
    refs: Sequence[workload.WorkloadRef],
    report: RankReport,
    cards: catalogue.Catalogue,
    wishes: Wishes,
    cache: bool,
    on_progress: Progress | None,
) -> list[str]:
    """What would make workloads fit on the cards that are named, where these are few."""
    named = {card.name: card for card in cards.find_all((*wishes.gpus, *wishes.own))}
    size = wishes.batch_size or 1
    failing = [
        (ref, named[row.gpu])
        for row in report.gpus
        for ref in refs
        if row.gpu in named and named[row.gpu].cuda and row.supported and row.max_batch_size[ref.text] < size
    ]
    if not 0 < len(failing) <= _FEW:
        return []
    return [
        words
        for ref, card in failing
        for words in what_helps_in_words(ref, card, size, cache=cache, on_progress=on_progress)
    ]


def _baseline(cards: catalogue.Catalogue, name: str | None) -> catalogue.Gpu | None:
    """The card of a name that speeds are compared with; InputError where no speed of it can be predicted."""
    if name is None:
        return None
    arguments.check_gpu(name)
    card = cards.find(name)
    if not card.cuda:
        raise InputError(f"{card.name} has no CUDA, so that its speed is not known; take another --baseline")
    return card


def _limit_note(card: catalogue.Gpu) -> str:
    return (
        f"limit: by the rules of the {card.name}, and for PyTorch's allocator alone; a card of that size also holds the "
        "CUDA context, so name it with --gpu to ask about one"
    )


def _no_bfloat16(card: catalogue.Gpu | None) -> str | None:
    """Why a card cannot compute in bfloat16; None if it can, or when no card was named."""
    return lacks(card, ["bfloat16"]) if card is not None else None
