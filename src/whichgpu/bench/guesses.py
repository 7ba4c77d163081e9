"""From what is predicted and measured to the batch sizes that a search should try."""

from __future__ import annotations

from collections.abc import Sequence

from whichgpu.bench_search import Guess, Seen, line_guess
from whichgpu.intervals import Model
from whichgpu.memory import MemoryModel
from whichgpu.overheads import context_bytes
from whichgpu.results import Environment


def room_bytes(environment: Environment, limit: int | None) -> int:
    """Bytes that PyTorch may reserve: the limit, or what the card leaves beside contexts and other processes."""
    if limit is not None:
        return limit
    return max(environment.gpu_memory_bytes - context_bytes(), 1)


def make_guess(model: Model | None, room: int) -> tuple[Guess, int | None]:
    """Batch sizes to try by what is predicted and measured, and the prediction itself."""
    if model is None:
        return line_guess(room), None
    predicted = model.largest_batch(room)
    line = line_guess(room)
    if not isinstance(model, MemoryModel):  # a line itself, with a margin: one through measured peaks is better
        return lambda fits: line(fits) if fits else (predicted,), predicted

    def guess(fits: Sequence[Seen]) -> Sequence[int]:
        if not fits or fits[-1].allocated_bytes is None:
            return (predicted,)
        last = fits[-1]
        assert last.allocated_bytes is not None
        foretold = model.replay(last.batch_size, room)
        if foretold.fits:
            corrected = model.largest_batch(room * foretold.peak_allocated_bytes // max(last.allocated_bytes, 1))
        else:
            corrected = last.batch_size + _more(model, last, room)
        return (corrected, predicted)

    return guess, predicted


def _more(model: MemoryModel, last: Seen, room: int) -> int:
    """How many more samples have room beside one that ran although it was predicted not to: each as large as predicted."""
    fits = model.largest_batch(room)
    if fits < 2 or not last.reserved_bytes:
        return 0
    most, half = (model.replay(size, room).peak_allocated_bytes for size in (fits, fits // 2))
    a_sample = (most - half) / (fits - fits // 2)
    return int((room - last.reserved_bytes) / a_sample) if a_sample > 0 else 0
