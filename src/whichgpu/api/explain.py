"""Where do the memory and the time of a step go, and what would the usual remedies save?"""

from __future__ import annotations

from pathlib import Path

import msgspec

from whichgpu import advice, arguments, catalogue, explanation, remedies, workload
from whichgpu import host_speed as host_speeds
from whichgpu import snapshot as snapshots
from whichgpu.api.cards import DEFAULT_CARD
from whichgpu.arguments import TIMEOUT_S
from whichgpu.charts.figure import check_file
from whichgpu.charts.roofline import draw_roofline
from whichgpu.closeup import look_at, with_remedy
from whichgpu.errors import InputError
from whichgpu.explanation import ExplainReport
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.ranking import by_installed_torch, taken_for
from whichgpu.speed.rates import rates
from whichgpu.speed_answers import lacks
from whichgpu.speed_closeup import TimeLook, time_of
from whichgpu.tracers import falling_back


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


def _no_bfloat16(card: catalogue.Gpu | None) -> str | None:
    """Why a card cannot compute in bfloat16; None if it can, or when no card was named."""
    return lacks(card, ["bfloat16"]) if card is not None else None
