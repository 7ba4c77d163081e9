"""Any batch size from two traces.

Most training steps ask for the same operators and storages in the same order at every batch size, and every size
and shape is affine in the batch size. `Scaled` is two such traces seen as one function of the batch size; `mismatch`
says where two traces differ, so that a third trace can prove or disprove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import repeat
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

from whichgpu.errors import TraceError, WhichGpuError
from whichgpu.trace import Op, Tensor, Trace

Sizes = NDArray[np.int64]  # bytes by storage

# By which share of all bytes sizes may differ from a straight line and still be taken for one that varies.
LARGEST_SPREAD = 0.01
# By how much all that varies may be off its line together: more is another curve, not chance.
LARGEST_BEND = Fraction(1, 5)
# Which share of all bytes the data may decide about: where it is more, blocks of other sizes at each step fragment memory.
LARGEST_SHARE = 0.05
MOST_BYTES = 1 << 59  # of one storage: more than any memory has, and safe in 64 bits
_KEPT = 8  # traces of single batch sizes that are kept; each may take tens of megabytes


def mismatch(first: Trace, second: Trace) -> str | None:
    """Why two traces do not have the same structure, or None when they do."""
    if first.events != second.events:
        return "storages are made or freed in another order"
    if len(first.ops) != len(second.ops):
        return "the number of operators changes"
    for one, other in zip(first.ops, second.ops, strict=True):
        if one.name != other.name or one.phase != other.phase:
            return f"{one.name} becomes {other.name}"
        if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
            return f"{one.name} has another number of tensors"
        for tensor, its in zip((*one.inputs, *one.outputs), (*other.inputs, *other.outputs), strict=True):
            if tensor.dtype != its.dtype or len(tensor.shape) != len(its.shape):
                return f"{one.name} has tensors of another type or number of dimensions"
    return None


class Scaled:
    """Two traces of one workload as a function of the batch size; with a third one where sizes grow with its square.

    A storage of the third trace that is not on the straight line through the other two is taken as quadratic (every
    sample against every other one). Raises TraceError when the traces do not have the same structure, or when the
    straight lines do not go through whole numbers and there is no third trace.
    """

    def __init__(self, low: Trace, high: Trace, third: Trace | None = None, *, fractions: bool = False) -> None:
        reason = mismatch(low, high)
        if reason is not None:
            raise TraceError(f"{low.workload}: {reason}")
        if low.batch_size == high.batch_size:
            raise TraceError(f"{low.workload}: two traces at the same batch size say nothing about others")
        self.low = low
        self.high = high
        self.events = low.events
        gap = high.batch_size - low.batch_size
        slopes: list[int] = []
        self._curves: dict[int, tuple[Fraction, Fraction, Fraction]] = {}
        for index, (one, other) in enumerate(zip(low.storages, high.storages, strict=True)):
            slope, rest = divmod(other.bytes - one.bytes, gap)
            if rest and fractions:
                self._curves[index] = _line(low.batch_size, one.bytes, Fraction(other.bytes - one.bytes, gap))
            elif rest and third is None:
                raise TraceError(f"{low.workload}: a storage grows by a fraction of a byte per sample")
            slopes.append(slope)
        self._bases = np.array(_sizes(low), np.int64)
        self._slopes = np.array(slopes, np.int64)
        self._steepest = int(max(self._bases.max(initial=0), np.abs(self._slopes).max(initial=0)))
        self._gap = gap
        self._same: dict[int, bool] = {}  # by operator, as far as it was asked
        if third is not None:
            self._add_curves(third)

    @property
    def curved(self) -> bool:
        """Whether something grows with the square of the batch size."""
        return bool(self._curves)

    def _add_curves(self, third: Trace) -> None:
        reason = mismatch(self.low, third)
        if reason is not None:
            raise TraceError(f"{self.low.workload}: {reason}")
        places = [trace.batch_size for trace in (self.low, self.high, third)]
        on_line = self.storage_bytes(third.batch_size)
        for index, storage in enumerate(third.storages):
            straight = self.low.storages[index].bytes + int(self._slopes[index]) * self._gap
            if on_line[index] != storage.bytes or straight != self.high.storages[index].bytes:
                sizes = [trace.storages[index].bytes for trace in (self.low, self.high, third)]
                self._curves[index] = _parabola(places, sizes)

    def storage_array(self, batch_size: int) -> Sizes:
        """Requested bytes of every storage at a batch size; none is said to be more than `MOST_BYTES`."""
        by = batch_size - self.low.batch_size
        if self._steepest * (abs(by) + 1) < MOST_BYTES:
            sizes = (self._bases + self._slopes * by).clip(0)
        else:
            lines = zip(self._bases.tolist(), self._slopes.tolist(), strict=True)
            sizes = np.array([_within_bounds(base + slope * by) for base, slope in lines], np.int64)
        for index, (constant, linear, square) in self._curves.items():
            sizes[index] = _within_bounds(ceil(constant + linear * batch_size + square * batch_size**2))
        return sizes

    def storage_bytes(self, batch_size: int) -> list[int]:
        """The same as a list."""
        return [*map(int, self.storage_array(batch_size))]

    def op(self, index: int, batch_size: int) -> Op:
        """One operator with its shapes at a batch size."""
        low, high = self.low.ops[index], self.high.ops[index]
        if self._same_at_any(index):
            return low
        by, gap = batch_size - self.low.batch_size, self._gap

        def between(one: Tensor, other: Tensor) -> Tensor:
            if one.shape == other.shape and one.stride == other.stride:
                return one
            strides = one.stride or other.stride, other.stride or one.stride
            return Tensor(
                tuple(map(_between, one.shape, other.shape, repeat(by), repeat(gap))),
                one.dtype,
                # a batch of one may pass for contiguous where others show the layout
                tuple(map(_between, *strides, repeat(by), repeat(gap))) if strides[0] else (),
                one.storage,
            )

        return msgspec.structs.replace(
            low,
            inputs=tuple(map(between, low.inputs, high.inputs)),
            outputs=tuple(map(between, low.outputs, high.outputs)),
            flops=_between(low.flops, high.flops, by, gap),
        )

    def _same_at_any(self, index: int) -> bool:
        """Whether an operator is the same at every batch size, as those of optimizers are, with their many tensors."""
        if index not in self._same:
            low, high = self.low.ops[index], self.high.ops[index]
            pairs = zip((*low.inputs, *low.outputs), (*high.inputs, *high.outputs), strict=True)
            self._same[index] = low.flops == high.flops and all(
                one.shape == other.shape and one.stride == other.stride for one, other in pairs
            )
        return self._same[index]

    def signature(self, index: int) -> tuple[object, ...]:
        """Equal for operators that are the same at every batch size but for the storages they touch on the GPU."""
        low, high = self.low.ops[index], self.high.ops[index]
        return (
            low.name,
            low.phase,
            tuple((t.shape, t.dtype, t.stride) for t in (*low.inputs, *low.outputs)),
            tuple(t.shape for t in (*high.inputs, *high.outputs)),
            [t.storage < 0 for t in low.inputs].count(True),
            _settings(low),
        )

    def agrees_with(self, third: Trace) -> str | None:
        """Why a trace at a third batch size is not what this one says, or None when it is, event for event."""
        reason = mismatch(self.low, third)
        if reason is not None:
            return reason
        for size, storage in zip(self.storage_bytes(third.batch_size), third.storages, strict=True):
            if size != storage.bytes:
                return f"a storage has {storage.bytes:,} bytes where {size:,} were expected"
        return None


class Loose(Scaled):
    """Traces of a workload some of whose sizes the data decides: masks drawn at random, different numbers in a list.

    Such sizes grow with the batch size, only not exactly. They follow the line through two traces; where the last of
    the `others` lies above it, they are raised to that. `spread` is by which share of all bytes the others differ.
    Raises TraceError when the structure differs, the sizes do by more than `LARGEST_SPREAD`, or too many vary.
    """

    def __init__(self, low: Trace, high: Trace, others: tuple[Trace, ...]) -> None:
        super().__init__(low, high, fractions=True)
        varying = {index for other in others for index in self._off_line(other)}
        self._raise(varying, others[-1])
        self.spread = max(self._apart(other) for other in others)
        share = sum(high.storages[index].bytes for index in varying) / max(sum(_sizes(high)), 1)
        if share > LARGEST_SHARE:
            raise TraceError(f"{low.workload}: the data decides about {share:.0%} of all bytes")
        if self.spread > LARGEST_SPREAD:
            raise TraceError(f"{low.workload}: sizes are {self.spread:.1%} off a straight line")

    def _off_line(self, other: Trace) -> list[int]:
        reason = mismatch(self.low, other)
        if reason is not None:
            raise TraceError(f"{self.low.workload}: {reason}")
        foretold = self.storage_bytes(other.batch_size)
        return [index for index, storage in enumerate(other.storages) if storage.bytes != foretold[index]]

    def _raise(self, varying: set[int], other: Trace) -> None:
        """Lift what varies to what it adds up to in another trace, if that is more."""
        foretold = self.storage_bytes(other.batch_size)
        real, expected = (sum(sizes[index] for index in varying) for sizes in (_sizes(other), foretold))
        if abs(real - expected) > LARGEST_BEND * expected:
            raise TraceError(f"{self.low.workload}: what the data decides does not grow with the batch size")
        lift = max(Fraction(real, max(expected, 1)), Fraction(1))
        for index in varying:
            one, many = self.low.storages[index].bytes, self.high.storages[index].bytes
            rate = Fraction(many - one, self._gap) * lift
            self._curves[index] = _line(self.low.batch_size, ceil(one * lift), rate)

    def _apart(self, other: Trace) -> float:
        pairs = zip(self.storage_bytes(other.batch_size), _sizes(other), strict=True)
        return sum(abs(foretold - real) for foretold, real in pairs) / max(sum(_sizes(other)), 1)

    def agrees_with(self, third: Trace) -> str | None:
        """Why a trace at another batch size is not what this one says, but for what the data may decide."""
        reason = mismatch(self.low, third)
        if reason is None and self._apart(third) > LARGEST_SPREAD:
            reason = f"sizes are {self._apart(third):.1%} off a straight line"
        return reason


class Single:
    """One trace, good for its own batch size only; same interface as `Scaled`."""

    def __init__(self, trace: Trace) -> None:
        self.low = self.high = trace
        self.events = trace.events

    def storage_array(self, batch_size: int) -> Sizes:
        """Requested bytes of every storage."""
        return np.array(_sizes(self.low), np.int64)

    def storage_bytes(self, batch_size: int) -> list[int]:
        """The same as a list."""
        return _sizes(self.low)

    def op(self, index: int, batch_size: int) -> Op:
        """One operator."""
        return self.low.ops[index]

    def signature(self, index: int) -> tuple[object, ...]:
        """Equal for operators that are the same but for the storages they touch on the GPU."""
        op = self.low.ops[index]
        return (
            op.name,
            op.phase,
            tuple((t.shape, t.dtype, t.stride) for t in (*op.inputs, *op.outputs)),
            [t.storage < 0 for t in op.inputs].count(True),
            _settings(op),
        )


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload's memory follows its batch size."""

    affine: bool
    reason: str | None  # why not, when not, or when batch size 1 is set apart
    at: Callable[[int], Scaled | Single]
    example: Trace
    spread: float = 0.0  # by which share of all bytes traces were seen to differ from this, where the data decides
    apart: bool = False  # batch size 1 runs other operators than the others and has a trace of its own
    only: int | None = None  # the one batch size at which the step is known to run
    seconds_per_sample: float = 0.0  # that tracing takes longer for each, where there are more operators for each


def _parabola(places: list[int], sizes: list[int]) -> tuple[Fraction, Fraction, Fraction]:
    """Constant, linear and square coefficient of the parabola through three points."""
    (x1, x2, x3), (y1, y2, y3) = places, sizes
    rise, later = Fraction(y2 - y1, x2 - x1), Fraction(y3 - y2, x3 - x2)
    square = (later - rise) / (x3 - x1)
    linear = rise - square * (x1 + x2)
    return y1 - linear * x1 - square * x1**2, linear, square


def _line(place: int, size: int, rate: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    return size - rate * place, rate, Fraction(0)


def _within_bounds(size: int) -> int:
    return min(max(size, 0), MOST_BYTES)


def _sizes(trace: Trace) -> list[int]:
    return [storage.bytes for storage in trace.storages]


def _settings(op: Op) -> str:
    """Attributes that can decide about memory; numbers such as a bias correction differ from step to step."""
    kept = {
        name: value
        for name, value in op.attributes.items()
        if not isinstance(value, float) and not (isinstance(value, list) and any(isinstance(v, float) for v in value))
    }
    return repr(kept)


def _between(one: int, other: int, by: int, gap: int) -> int:
    return one if one == other else one + (other - one) * by // gap


def scaling(trace_at: Callable[[int], Trace], batch_sizes: tuple[int, int, int]) -> Scaling:
    """Trace at two batch sizes, check at the third; where it is not affine, every batch size is traced by itself.

    Sizes that grow with the square of the batch size take the third trace too, and a fourth one as the check; so do those
    that the data decides.
    """
    low, high, third = (trace_at(batch_size) for batch_size in batch_sizes)
    try:
        scaled = Scaled(low, high)
        reason = scaled.agrees_with(third)
    except TraceError as error:
        reason = str(error).partition(": ")[2]
    if reason is None:
        return Scaling(affine=True, reason=None, at=lambda _: scaled, example=high)
    if low.kind == "fake" and mismatch(low, third) is None:  # hollow tensors, where a fourth trace is cheap
        fourth = trace_at(SQUARE_CHECK)
        curved = _curved(low, high, third, fourth)
        if curved is not None:
            return Scaling(affine=True, reason=None, at=lambda _: curved, example=high)
        loose = _loose(low, third, (high, fourth))
        if loose is not None:
            return Scaling(affine=True, reason=None, at=lambda _: loose, example=high, spread=loose.spread)
    later = _from_the_second(low, high, third, trace_at)
    if later is not None:
        first = Single(low)
        return Scaling(
            affine=True, reason=None, at=lambda size: first if size == 1 == low.batch_size else later, example=third
        )
    at = one_by_one(trace_at, (low, high, third))
    return Scaling(affine=False, reason=reason, at=at, example=high, seconds_per_sample=_pace(low, third))


def _pace(low: Trace, high: Trace) -> float:
    """How much longer each further sample makes tracing, by operators: clocks tell little from small batches."""
    more = max(len(high.ops) - len(low.ops), 0) / (high.batch_size - low.batch_size)
    return more * high.seconds / max(len(high.ops), 1)


def _from_the_second(low: Trace, high: Trace, third: Trace, trace_at: Callable[[int], Trace]) -> Scaled | None:
    """Without the first trace, where only that one is built otherwise: a batch of one is laid out like no other."""
    if mismatch(low, high) is None or mismatch(high, third) is not None:
        return None
    try:
        fourth = trace_at(2 * third.batch_size)
        scaled = Scaled(high, third)
        return scaled if scaled.agrees_with(fourth) is None else Loose(high, fourth, (third,))
    except WhichGpuError:  # the step may not run there, or not follow a line either
        return None


def one_by_one(trace_at: Callable[[int], Trace], made: Iterable[Trace] = ()) -> Callable[[int], Single]:
    """Every batch size from a trace of its own; those made already and the last few are kept."""
    known = {trace.batch_size: Single(trace) for trace in made}
    kept = lru_cache(maxsize=_KEPT)(lambda batch_size: Single(trace_at(batch_size)))
    return lambda batch_size: known.get(batch_size) or kept(batch_size)


# Where the square is checked: far enough from the other three, and cheap.
SQUARE_CHECK = 23


def _curved(low: Trace, high: Trace, third: Trace, fourth: Trace) -> Scaled | None:
    """The three traces as a quadratic function, if a fourth one agrees."""
    try:
        curved = Scaled(low, high, third)
    except TraceError:
        return None
    return curved if curved.agrees_with(fourth) is None else None


def _loose(low: Trace, high: Trace, others: tuple[Trace, ...]) -> Loose | None:
    try:
        return Loose(low, high, others)
    except TraceError:
        return None
