"""How sure a memory prediction is: low, likely and high peaks, and whether a batch fits, likely fits, is tight or does not.

The likely peak is what a model replays. How far the real one may lie from it depends on how the step was understood and what
it runs (`Evidence`), and was measured: data/intervals.toml, fitted by tools/fit_intervals.py on the measured steps that
no rule was tuned on apart. Pure functions of traces and models: no torch.

Not covered: other processes on the card, and the CUDA context (`overheads`), of which the largest ever seen is subtracted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import resources
from math import ceil
from typing import Literal

import msgspec

from whichgpu import text
from whichgpu.batch_sizes import power_of_two_below
from whichgpu.extrapolation import LineModel
from whichgpu.memory import MemoryModel
from whichgpu.one_batch import OneBatch
from whichgpu.trace import Op, Trace

Model = MemoryModel | LineModel
# fits: the high end fits; likely: the likely peak does, the high end does not; tight: only the low end fits
Verdict = Literal["fits", "likely", "tight", "no"]
Evidence = Literal["plain", "convolutions", "sequences", "benchmark", "recurrent", "line", "compiled"]

MEASURED = (9, 0)  # compute capability of the card that the steps were measured on
# From this share of the step's FLOPs on, a step is one of convolutions: the patch embedding of a vision transformer is
# below 2 %, every convolutional network of the truth set above 60 %.
_CONVOLUTIONAL = 0.05
# Kernels of one row or column over a plane were asked of cuDNN up to this length (Inception, InceptionNeXt); longer ones, as
# over the samples of each electrode of an EEG, are as unknown as those over sequences.
_LONGEST_STRIP = 9
# Up to this batch size one sample more or less matters, and the largest safe batch is found exactly.
_FINE = 128


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A peak in bytes: no less than low, most likely, and no more than high."""

    low_bytes: int
    likely_bytes: int
    high_bytes: int

    def verdict(self, room_bytes: int) -> Verdict:
        """Whether a step with this peak fits in so much memory."""
        if self.high_bytes <= room_bytes:
            return "fits"
        if self.likely_bytes <= room_bytes:
            return "likely"
        return "tight" if self.low_bytes <= room_bytes else "no"


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How far a real peak may lie from the likely one, as shares of the likely one, with at least `floor_bytes` above it."""

    low: float
    high: float
    floor_bytes: int = 0

    def lowered(self, peak_bytes: int) -> int:
        """The low end of a peak."""
        return int(peak_bytes * (1 - self.low))

    def raised(self, peak_bytes: int) -> int:
        """The high end of a peak."""
        return max(ceil(peak_bytes * (1 + self.high)), peak_bytes + self.floor_bytes)

    def shrunk(self, room_bytes: int) -> int:
        """The memory in which the likely step must fit for the high end to fit in `room_bytes`."""
        return max(min(int(room_bytes / (1 + self.high)), room_bytes - self.floor_bytes), 0)

    def stretched(self, room_bytes: int) -> int:
        """The memory in which the likely step must fit for the low end to fit in `room_bytes`."""
        return int(room_bytes / (1 - self.low))


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one kind of step, and the spread that follows."""

    evidence: Evidence
    low: float
    high: float
    high_elsewhere: float  # on cards of another compute capability than the measured one
    points: int  # measurements that the spread was fitted on
    basis: str


class _File(msgspec.Struct, frozen=True, kw_only=True):
    floor_bytes: int
    steps: tuple[Fitted, ...]


@cache
def _file() -> _File:
    raw = tomllib.loads((resources.files("whichgpu") / "data" / "intervals.toml").read_text(encoding="utf-8"))
    return msgspec.convert(raw, _File)


def fitted(evidence: Evidence) -> Fitted:
    """What is known of one kind of step."""
    return next(row for row in _file().steps if row.evidence == evidence)


def spread(evidence: Evidence, capability: tuple[int, int]) -> Spread:
    """How far the real peak may lie from the likely one on cards of a compute capability."""
    row = fitted(evidence)
    high = row.high if capability == MEASURED else row.high_elsewhere
    return Spread(low=row.low, high=high, floor_bytes=_file().floor_bytes)


def widest(kinds: Iterable[Evidence], capability: tuple[int, int]) -> Spread:
    """The same for a step of several kinds: as far as any of them says."""
    spreads = [spread(kind, capability) for kind in kinds]
    return Spread(
        low=max(one.low for one in spreads),
        high=max(one.high for one in spreads),
        floor_bytes=max(one.floor_bytes for one in spreads),
    )


def unmeasured(found: Spread) -> Spread:
    """The spread on cards of vendors of which nothing was measured: twice as wide, which is a guess."""
    return Spread(low=min(2 * found.low, 0.9), high=2 * found.high, floor_bytes=2 * found.floor_bytes)


def least_sure(kinds: Iterable[Evidence]) -> Evidence:
    """The kind that decides how wide the interval of a step is; the first of those that are as wide."""
    return max(kinds, key=lambda kind: fitted(kind).high)


_STEPS: dict[str, str] = {
    "convolutions": "steps of convolutions",
    "sequences": "steps of convolutions over sequences",
    "benchmark": "steps that let cuDNN try algorithms",
    "recurrent": "recurrent networks",
    "line": "steps whose sizes follow their data",
    "compiled": "a step predicted as if torch.compile were not there, which usually takes less,",
}


def spread_in_words(evidence: Evidence) -> str | None:
    """How wide the interval is and why, for the user; None where it is as narrow as it gets."""
    if evidence == "plain":
        return None
    row = fitted(evidence)
    here, elsewhere = (text.format_share(round(1000 * share), 1000) for share in (row.high, row.high_elsewhere))
    share = here if here == elsewhere else f"{elsewhere} ({here} on the H200, where this was measured)"
    return f'"fits" and the safe batch leave {share} free for what {_STEPS[evidence]} may take beyond the prediction'


def evidence_of(trace: Trace, *, line: bool = False) -> Evidence:
    """The kind under which a step is counted; `line`: its prediction is a line through a few batch sizes."""
    return kinds_of(trace, line=line)[0]


def kinds_of(trace: Trace, *, line: bool = False) -> tuple[Evidence, ...]:
    """Everything that makes a prediction less sure: a compiled step may let cuDNN try algorithms as well."""
    kinds: list[Evidence] = ["compiled"] if trace.facts.get("compiled") else []
    if line:
        kinds.append("line")
    if any("_cudnn_rnn" in op.name for op in trace.ops):
        kinds.append("recurrent")
    flops = sum(op.flops for op in trace.ops)
    convolutions = [op.flops for op in trace.ops if "convolution" in op.name]
    sequences = sum(op.flops for op in trace.ops if "convolution" in op.name and _is_over_a_sequence(op))
    if convolutions and trace.facts.get("cudnn_benchmark"):  # what cuDNN tries takes memory however few they are
        kinds.append("benchmark")
    if sequences > _CONVOLUTIONAL * flops:  # less sure than any other convolution
        kinds.append("sequences")
    elif "benchmark" not in kinds and sum(convolutions) > _CONVOLUTIONAL * flops:
        kinds.append("convolutions")
    return tuple(kinds) or ("plain",)


def _is_over_a_sequence(op: Op) -> bool:
    """Whether a convolution goes over one dimension: over (samples, channels, length), the same written as a plane of one
    row or column, or over a plane with a longer strip than cuDNN was asked about.
    """
    over, *others = [tensor.shape[2:] for tensor in op.inputs] or [()]
    if len(over) == 1:
        return True
    kernel = others["backward" in op.name] if len(others) > ("backward" in op.name) else ()
    return any(len(_wide(shape)) == 1 and max(shape) > most for shape, most in ((over, 1), (kernel, _LONGEST_STRIP)))


def _wide(shape: tuple[int, ...]) -> list[int]:
    """The dimensions that are more than one."""
    return [size for size in shape if size > 1]


class Estimate:
    """A model of a step's memory together with how sure it is."""

    def __init__(self, model: Model, spread: Spread) -> None:
        self.model = model
        self.spread = spread

    def verdict(self, batch_size: int, room_bytes: int) -> Verdict:
        """Whether a batch fits in so much memory, and how sure that is."""
        # as replays, whose answers are kept
        if self.model.replay(batch_size, room_bytes).fits:
            shrunk = self.spread.shrunk(room_bytes)
            if isinstance(self.model, LineModel):
                safe = self.model.steep_bytes(batch_size) <= shrunk
            else:
                safe = self.model.replay(batch_size, shrunk).fits
            return "fits" if safe else "likely"
        return "tight" if self.model.replay(batch_size, self.spread.stretched(room_bytes)).fits else "no"

    def interval(self, batch_size: int, room_bytes: int | None = None) -> Interval:
        """The reserved peak on an allocator with so much memory (None: as much as it wants).

        Agrees with `verdict`: the end that fits is no more than `room_bytes`, and the one that does not is more. With
        less memory the allocator gives its cache back earlier, so that each end is that of its own replay.
        """
        whole = self.model.replay(batch_size).peak_reserved_bytes
        low, likely, high = self.spread.lowered(whole), whole, self.spread.raised(self._steep(batch_size))
        if room_bytes is None:
            return Interval(low_bytes=low, likely_bytes=likely, high_bytes=max(high, likely))
        verdict = self.verdict(batch_size, room_bytes)
        if verdict in ("fits", "likely"):
            likely = min(self.model.replay(batch_size, room_bytes).peak_reserved_bytes, room_bytes)
        else:
            likely = max(likely, room_bytes + 1)
        if verdict == "fits":
            high = min(high, room_bytes)
        else:
            high = max(high, room_bytes + 1)
        low = max(low, room_bytes + 1) if verdict == "no" else min(low, room_bytes)
        return Interval(low_bytes=min(low, likely), likely_bytes=likely, high_bytes=max(high, likely))

    def largest_batch(self, room_bytes: int) -> int:
        """The largest batch that likely fits; 0 when not even 1 does."""
        return self.model.largest_batch(room_bytes)

    def largest_power_of_two(self, room_bytes: int) -> int:
        """The largest power of two up to there that likely fits as well; 0 when there is none.

        Near the limit a step may run at a batch size and fail at a smaller one.
        """
        if isinstance(self.model, OneBatch):
            return self.model.largest_power_of_two(room_bytes)
        size = power_of_two_below(self.largest_batch(room_bytes))
        while size and not self.model.replay(size, room_bytes).fits:
            size //= 2
        return size

    def largest_safe_batch(self, room_bytes: int) -> int:
        """The largest batch whose high end fits, 0 when that of not even 1 does; above 128 perhaps a little less."""
        if isinstance(self.model, LineModel):
            return min(self.model.largest_steep_batch(self.spread.shrunk(room_bytes)), self.largest_batch(room_bytes))
        answers = self.model.answers.safe
        question = (room_bytes, self.spread.shrunk(room_bytes))
        if question not in answers:
            answers[question] = self._search(self.model, room_bytes)
        return answers[question]

    def _search(self, model: MemoryModel, room_bytes: int) -> int:
        largest = self.largest_batch(room_bytes)
        if not model.follows_rule:
            # each batch size costs a trace: the few that this search needs were mostly made by the one for the likely batch
            return min(model.largest_batch(self.spread.shrunk(room_bytes)), largest)
        shrunk = self.spread.shrunk(room_bytes)
        # the line that the search for the likely one began on misses by about as much here
        probe = min(model.guess(shrunk) * largest // max(model.guess(room_bytes), 1), largest)

        def fits(size: int) -> bool:
            return model.fits(size, shrunk) and model.fits(size, room_bytes)

        low, high, step = probe, largest + 1, max(probe >> 7, 1)
        while low > 0 and not fits(low):
            low, high = max(low - step, int(low > 1)), low
            step *= 2
        more = min(low + model.room_for(low, shrunk), high - 1) if low else 0
        if more > low + (low >> 6) and fits(more):
            low = more
        while high <= largest and high - low > max(low >> 7, 1):
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        while 0 < low < min(_FINE, largest):
            # a size may need more than the next one does, which the allocator then serves from other blocks
            above = next((size for size in (low + 1, low + 2) if size <= largest and fits(size)), 0)
            if not above:
                break
            low = above
        return low

    def _steep(self, batch_size: int) -> int:
        if isinstance(self.model, LineModel):
            return self.model.steep_bytes(batch_size)
        return self.model.replay(batch_size).peak_reserved_bytes
