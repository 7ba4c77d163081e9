"""A workload at one batch size, event for event, as it is and with each of the usual remedies: what `explain` shows.

Joins the predictor with `remedies`; does not cover the records of the report, which are made in `api`.
"""

from __future__ import annotations

from typing import NamedTuple

from whichgpu import advice, remedies
from whichgpu.errors import WhichGpuError
from whichgpu.intervals import Verdict
from whichgpu.memory import MemoryModel
from whichgpu.predictor import Predictor, Progress
from whichgpu.trace import Trace


class Look(NamedTuple):
    """One batch size of a workload, looked at event for event."""

    model: MemoryModel  # for this batch size alone
    trace: Trace  # with the operators and storages of its events
    verdict: Verdict | None  # None without a card, as are the largest batches
    within_bytes: int | None  # the memory that it is replayed with; None: as much as it wants
    largest: int | None
    safe: int | None
    reserved_bytes: int
    allocated_bytes: int


def look_at(
    predictor: Predictor, batch_size: int, capability: tuple[int, int], room_bytes: int | None, *, search: bool = True
) -> Look:
    """A batch size on a card with so much room (None: no card); `search`: for the largest batches as well."""
    estimate = predictor.estimate(capability)
    source = predictor.source(batch_size, capability)
    model = MemoryModel(lambda _: source, capability)
    verdict = estimate.verdict(batch_size, room_bytes) if room_bytes is not None else None
    fitting = room_bytes is not None and verdict in ("fits", "likely") and model.fits(batch_size, room_bytes)
    within = room_bytes if fitting else None
    result = model.replay(batch_size, within)
    searched = search and room_bytes is not None
    return Look(
        model=model,
        trace=source.low,
        verdict=verdict,
        within_bytes=within,
        largest=estimate.largest_batch(room_bytes) if searched and room_bytes is not None else None,
        safe=estimate.largest_safe_batch(room_bytes) if searched and room_bytes is not None else None,
        reserved_bytes=result.peak_reserved_bytes,
        allocated_bytes=result.peak_allocated_bytes,
    )


def with_remedy(
    plan: remedies.Plan,
    batch_size: int,
    capability: tuple[int, int],
    room_bytes: int | None,
    before: Look,
    *,
    cache: bool,
    on_progress: Progress | None,
) -> remedies.Remedy | remedies.LeftOut:
    """What a remedy saves against the step as it is, or why it cannot be traced."""

    def progress(line: str) -> None:
        if on_progress is not None:
            on_progress(f"{plan.remedy}: {line}")

    size = plan.batch_size(batch_size)
    try:
        with Predictor(plan.ref, cache=cache, on_progress=progress, exact=True, batch_size=size) as predictor:
            if size != batch_size:  # the step was not tried at this one; the others follow from how it is changed
                predictor.check(size, capability)
            predictor.model(capability)
            if predictor.info().kind != "fake":
                return remedies.LeftOut(remedy=plan.remedy, reason="the changed step looks at computed values")
            # where sizes do not follow the batch size, a search would trace each by itself
            look = look_at(predictor, size, capability, room_bytes, search=predictor.info().affine)
    except WhichGpuError as error:
        return remedies.LeftOut(remedy=plan.remedy, reason=remedies.reason_of(error, plan))
    return remedies.Remedy(
        remedy=plan.remedy,
        change=plan.change,
        peak_reserved_bytes=look.reserved_bytes,
        peak_allocated_bytes=look.allocated_bytes,
        saved_bytes=before.reserved_bytes - look.reserved_bytes,
        verdict=look.verdict,
        max_batch_size=plan.whole(look.largest),
        max_batch_size_safe=plan.whole(look.safe),
        max_batch_size_at_least=advice.at_least(look.largest),
    )
