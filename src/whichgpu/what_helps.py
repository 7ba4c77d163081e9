"""What would make a batch fit on a card that it does not fit on: the usual changes, one by one and then together.

Each is tried by tracing the changed step, which takes seconds for each the first time; together only where none surely is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from whichgpu import advice, remedies, text
from whichgpu.catalogue import Gpu
from whichgpu.closeup import look_at, with_remedy
from whichgpu.errors import WorkloadError
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor, Progress
from whichgpu.remedies import Plan, Remedy
from whichgpu.speed_answers import lacks
from whichgpu.workload import WorkloadRef, with_options

# Options of the zoo and of libraries' models, from what changes training least to what changes it most
_TOGETHER: tuple[dict[str, str], ...] = (
    {"checkpoint": "1", "fused": "1"},
    {"optimizer": "adafactor", "checkpoint": "1"},
    {"precision": "pure-bf16", "checkpoint": "1"},
    {"precision": "pure-bf16", "optimizer": "adafactor", "checkpoint": "1"},
)
_FITTING = ("fits", "likely")


def what_helps(
    ref: WorkloadRef, card: Gpu, batch_size: int, *, cache: bool = True, on_progress: Progress | None = None
) -> tuple[Remedy, ...]:
    """The changes after which the batch likely fits, until one after which it surely does; else the one that needs least."""
    room = advice.room_bytes(card, context_bytes())
    capability = card.capability
    asked = Predictor(ref, cache=cache, on_progress=on_progress, exact=True, batch_size=batch_size, room_bytes=room)
    with asked as predictor:
        predictor.model(capability)
        look = look_at(predictor, batch_size, capability, room, search=False)

    def tried(plans: Iterator[Plan]) -> list[Remedy]:
        found = (
            with_remedy(plan, batch_size, capability, room, look, cache=cache, on_progress=on_progress)
            for plan in plans
        )
        return [one for one in found if isinstance(one, Remedy)]

    no_bfloat16 = lacks(card, ["bfloat16"])
    single, _ = remedies.plans(ref, look.trace, batch_size, no_bfloat16)
    outcomes = tried(plan for plan in single if plan.remedy != "smaller samples")
    if not any(one.verdict == "fits" for one in outcomes):
        for plan in _together(ref, no_bfloat16 is None):
            outcomes += tried(iter([plan]))
            if outcomes and outcomes[-1].verdict == "fits":
                break
    fitting = [one for one in outcomes if one.verdict in _FITTING]
    return tuple(fitting or sorted(outcomes, key=lambda one: one.peak_reserved_bytes)[:1])


def what_helps_in_words(
    ref: WorkloadRef, card: Gpu, batch_size: int, *, cache: bool = True, on_progress: Progress | None = None
) -> list[str]:
    """The same, a line for each change."""
    room = text.format_bytes(advice.room_bytes(card, context_bytes()))
    said = []
    for one in what_helps(ref, card, batch_size, cache=cache, on_progress=on_progress):
        needs = text.format_bytes(one.peak_reserved_bytes)
        fits = {"fits": "fits", "likely": "likely fits"}.get(one.verdict or "", "still does not fit")
        most = f", up to batch {text.format_count(one.max_batch_size)}" if one.max_batch_size else ""
        said.append(
            f"{ref.text} on the {card.name}: with {one.change} batch {text.format_count(batch_size)} {fits}{most} "
            f"({needs} of {room} beside the CUDA context)"
        )
    return said


def _together(ref: WorkloadRef, bfloat16: bool) -> Iterator[Plan]:
    """Several options at once, where the workload has them."""
    for options in _TOGETHER:
        if "precision" in options and not bfloat16:
            continue
        try:
            changed = with_options(ref, options)
        except WorkloadError:
            continue
        words = " ".join(f"{key}={value}" for key, value in options.items())
        yield Plan(remedy="several together", change=words, ref=changed)
