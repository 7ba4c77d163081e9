"""Does a batch fit on each card, and what is the largest that does?"""

from __future__ import annotations

from collections.abc import Sequence

from whichgpu import advice, arguments, catalogue, workload
from whichgpu import host_speed as host_speeds
from whichgpu.advice import FitReport, FitRow
from whichgpu.api.cards import DEFAULT_CARD, baseline_card
from whichgpu.arguments import TIMEOUT_S
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.ranking import in_turn, taken_for, unbounded
from whichgpu.speed_answers import in_fit, speed_answers
from whichgpu.tables import BASELINE
from whichgpu.tracers import falling_back


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
    compared = baseline_card(cards, baseline)
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


def _limit_note(card: catalogue.Gpu) -> str:
    return (
        f"limit: by the rules of the {card.name}, and for PyTorch's allocator alone; a card of that size also holds the "
        "CUDA context, so name it with --gpu to ask about one"
    )
