"""How much GPU memory a training step needs at a batch size, whether it fits, and the largest batch that does.

A trace's allocations, with the temporaries that kernels take besides (`workspaces`), are replayed through the model
of PyTorch's caching allocator. Pure functions of traces and a limit: no torch, no files.

Not covered: memory outside PyTorch's allocator, other than through the limit it leaves (the CUDA context).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from math import log
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from whichgpu import search
from whichgpu.allocator import (
    DEFAULT_CONFIG,
    SMALL_SEGMENT_BYTES,
    AllocatorConfig,
    CachingAllocator,
    Replay,
    drive,
    most_requested_bytes,
    replay,
)
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.capability import Capability
from whichgpu.program import Operators, Program, Skeleton, Temporaries
from whichgpu.scaling import Scaled, Single, Sizes

HELD = ("weight", "gradient", "optimizer_state", "activation", "temporary", "workspace", "input", "buffer")

# Where a search begins: a first line through two batch sizes leads to a rung of a ladder.
_FIRST_LINE = (8, 64)
_RUNG = 2 ** (1 / 3)  # from one rung to the next
_LOWEST_RUNG = 3  # batch sizes 2 and 3
_RUNGS_TRIED = 8
_LADDER_CAPABILITY = (9, 0)
# Below this share of a limit, by the ladder, a batch is not suspected of running into it
_FAR_BELOW = 0.99

# What a limit leaves for tensors of a few bytes that no trace shows, as kernels take for their scalars: one segment of the
# allocator's small pool. Recorded steps made up to some hundred of them; a step that meets its limit to the last segment is
# decided by these.
SPARE_BYTES = SMALL_SEGMENT_BYTES

# Programs that are kept for each workload; each may take a megabyte.
_KEPT_PROGRAMS = 32

Question = TypeVar("Question", int, tuple[int, int | None])
Answer = TypeVar("Answer")
Key = TypeVar("Key", int, tuple[int, Temporaries])
Made = TypeVar("Made")


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The moment of the allocated peak."""

    op: int | None  # index into the operators of the trace at that batch size; None when nothing was allocated
    op_name: str
    phase: str
    held_bytes: dict[str, int]  # by category; adds up to the allocated peak


class Answers(msgspec.Struct):
    """What a `MemoryModel` answered, for another one of the same traces; a limit of None is no limit."""

    replays: dict[tuple[int, int | None], Replay] = {}  # by batch size and limit
    peaks: dict[tuple[int, int | None], Peak] = {}
    largest: dict[int, int] = {}  # by limit
    safe: dict[tuple[int, int], int] = {}  # largest that "fits", by limit and what is left of it for the likely step

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self.replays) + len(self.peaks) + len(self.largest) + len(self.safe)

    def update(self, other: Answers) -> None:
        """Take over what another model of the same traces has answered."""
        self.replays.update(other.replays)
        self.peaks.update(other.peaks)
        self.largest.update(other.largest)
        self.safe.update(other.safe)


class MemoryModel:
    """Memory of one workload on one capability, for any batch size; answers are kept.

    `batch_sizes` were traced already: where each batch size has a trace of its own, the search starts from them.
    What `answers` holds is not worked out again, and no trace is asked for; what is worked out is added to it.

    `at` gives the trace (as `scaling.Scaled` or `scaling.Single`) for a batch size. Models of one workload on several
    capabilities share what is the same for them, as long as `at` gives them the same objects.
    """

    def __init__(
        self,
        at: Callable[[int], Scaled | Single],
        capability: Capability,
        config: AllocatorConfig = DEFAULT_CONFIG,
        answers: Answers | None = None,
        batch_sizes: Sequence[int] = (4, 8),
    ) -> None:
        self._at = at
        self._batch_sizes = batch_sizes
        self.answers = Answers() if answers is None else answers
        self._capability = capability
        self._config = config
        self._known: dict[tuple[int, Capability], _Known] = {}

    # ---- one batch size -----------------------------------------------------------------------------

    @property
    def follows_rule(self) -> bool:
        """Whether every batch size follows from a few traces; otherwise each asks for a trace of its own."""
        return isinstance(self._at(self._batch_sizes[-1]), Scaled)  # the first may be set apart

    def program(self, batch_size: int) -> Program:
        """What the allocator is asked for at a batch size."""
        return self._program(batch_size, self._known_at(batch_size))

    def _program(self, batch_size: int, known: _Known) -> Program:
        source = self._at(batch_size)
        return _shared(source).program(source, batch_size, known.temporaries)

    def _known_at(self, batch_size: int, capability: Capability | None = None) -> _Known:
        key = batch_size, capability or self._capability
        known = self._known.get(key)
        if known is None:
            source = self._at(batch_size)
            known = _shared(source).known(source, *key, self._config)
            self._known[key] = known
        return known

    def replay(self, batch_size: int, limit_bytes: int | None = None) -> Replay:
        """The step at a batch size on an allocator that may reserve `limit_bytes` (None: as much as it wants).

        Of a limit, one small segment is left for what no trace shows.
        """
        return _remembered(
            self.answers.replays, (batch_size, limit_bytes), lambda: self._replay(batch_size, limit_bytes)
        )

    def _replay(self, batch_size: int, limit_bytes: int | None, capability: Capability | None = None) -> Replay:
        known = self._known_at(batch_size, capability)
        usable_bytes = _usable(limit_bytes)
        result = known.replay(usable_bytes)
        if result is None:
            program = self._program(batch_size, known)
            result = replay(program.instructions, program.size_array, usable_bytes, self._config)
            known.replays.append(result)
        return result

    def fits(self, batch_size: int, limit_bytes: int) -> bool:
        """Whether the step runs at a batch size under a limit."""
        known = self._known_at(batch_size)
        before = known.replay(_usable(limit_bytes))
        if before is not None:
            return before.fits
        if known.least_bytes is None:
            known.least_bytes = _least_bytes(self._program(batch_size, known))
        return known.least_bytes <= max(limit_bytes - SPARE_BYTES, 0) and self._replay(batch_size, limit_bytes).fits

    def peak(self, batch_size: int, limit_bytes: int | None = None) -> Peak:
        """What is held at the allocated peak under a limit (None: as much memory as it wants).

        Where the step does not fit, this is the largest sum before memory ran out.
        """
        return _remembered(
            self.answers.peaks, (batch_size, limit_bytes), lambda: self._find_peak(batch_size, limit_bytes)
        )

    def _find_peak(self, batch_size: int, limit_bytes: int | None) -> Peak:
        result = self._replay(batch_size, limit_bytes)
        peaks = self._known_at(batch_size).peaks
        if result.same_from_bytes not in peaks:
            peaks[result.same_from_bytes] = self._peak(batch_size, result)
        return peaks[result.same_from_bytes]

    def _peak(self, batch_size: int, result: Replay) -> Peak:
        held = dict.fromkeys(HELD, 0)
        if result.peak_at is None:
            return Peak(op=None, op_name="", phase="", held_bytes=held)
        program = self.program(batch_size)
        trace = self._at(batch_size).low
        for slot, block_bytes in _blocks_at(program, result, self._config):
            category = trace.storages[slot].category if slot < program.storages else "workspace"
            held[category] += block_bytes
        place = bisect_right(program.op_at, result.peak_at) - 1
        op = program.op_index[place] if place >= 0 else None
        return Peak(
            op=op,
            op_name=trace.ops[op].name if op is not None else "",
            phase=trace.ops[op].phase if op is not None else "",
            held_bytes=held,
        )

    # ---- the largest batch ----------------------------------------------------------------------------

    def largest_batch(self, limit_bytes: int) -> int:
        """The largest batch size that fits under a limit: it fits and the next one does not; 0 when 1 does not."""
        return _remembered(self.answers.largest, limit_bytes, lambda: self._search(limit_bytes))

    def _search(self, limit_bytes: int) -> int:
        if not self.follows_rule:
            return search.largest_batch(
                lambda size: self.fits(size, limit_bytes),
                lambda size: self._replay(size, None).peak_reserved_bytes,
                limit_bytes,
                self._batch_sizes,
                MAX_BATCH_SIZE,
            )
        low, high = 0, MAX_BATCH_SIZE + 1  # low fits, high does not
        probe = self.guess(limit_bytes)
        step = max(probe >> 8, 1)
        while True:
            if self.fits(probe, limit_bytes):
                low = probe
                step = max(step, self.room_for(low, limit_bytes))
            else:
                high = probe
            if high - low <= 1:
                break
            if low and high <= MAX_BATCH_SIZE and 2 * step > high - low:
                probe = (low + high) // 2
            else:
                probe = min(low + step, high - 1) if low else max(high - step, 1)
                step *= 2
        if low and self._gives_way(low, limit_bytes):
            near = self.guess(round(_FAR_BELOW * limit_bytes))
            return search.lowest_edge(lambda size: self.fits(size, limit_bytes), low, near)
        return low

    def _gives_way(self, batch_size: int, limit_bytes: int) -> bool:
        """Whether the limit is met, and there is something that can be done without."""
        return (
            self._known_at(batch_size).gives_way and self._replay(batch_size, limit_bytes).same_below_bytes is not None
        )

    def room_for(self, batch_size: int, limit_bytes: int) -> int:
        """How many more samples what a step that fits leaves free may hold; 0 where it met the limit on the way."""
        result = self._replay(batch_size, limit_bytes)
        if result.same_below_bytes is not None:
            return 0
        return (limit_bytes - result.peak_reserved_bytes) // self._line(limit_bytes).slope_bytes

    def guess(self, limit_bytes: int) -> int:
        """About the batch size whose peak meets a limit."""
        return self._line(limit_bytes).meets(limit_bytes)

    def _line(self, limit_bytes: int) -> _Line:
        """The peak about a limit: a line between two rungs of a ladder of batch sizes.

        It depends on nothing but the limit, so that the same question always has the same answer: memory is not
        quite monotone in the batch size, and a search from elsewhere might end elsewhere. The rungs are the same for all
        limits, so that the cards of a catalogue share their replays.
        """
        line = self._through(*_FIRST_LINE)
        rung = max(round(log(line.meets(limit_bytes)) / log(_RUNG)), _LOWEST_RUNG)
        for _ in range(_RUNGS_TRIED):
            sizes = round(_RUNG**rung), round(_RUNG ** (rung + 1))
            if sizes[1] > MAX_BATCH_SIZE:
                break
            line = self._through(*sizes)
            if rung > _LOWEST_RUNG and limit_bytes < line.low_bytes:
                rung -= 1
            elif limit_bytes > line.high_bytes:
                rung += 1
            else:
                break
        return line

    def _through(self, low: int, high: int) -> _Line:
        return _Line(low, high, self._rung_bytes(low), self._rung_bytes(high))

    def _rung_bytes(self, batch_size: int) -> int:
        """The peak without a limit as another card has it: near enough, and the same for all."""
        return self._replay(batch_size, None, _LADDER_CAPABILITY).peak_reserved_bytes


class _Line(NamedTuple):
    """Peaks at two batch sizes."""

    low: int
    high: int
    low_bytes: int
    high_bytes: int

    @property
    def slope_bytes(self) -> int:
        """Of each further sample; at least 1."""
        return max((self.high_bytes - self.low_bytes) // (self.high - self.low), 1)

    def meets(self, limit_bytes: int) -> int:
        """The batch size, from 1 on, where the line meets a limit; a step that hardly grows is tried farther out."""
        if self.high_bytes <= self.low_bytes:
            return min(2 * self.high, MAX_BATCH_SIZE)
        rise = (limit_bytes - self.low_bytes) * (self.high - self.low) // (self.high_bytes - self.low_bytes)
        return min(max(self.low + rise, 1), MAX_BATCH_SIZE)


def _remembered(answers: dict[Question, Answer], question: Question, find: Callable[[], Answer]) -> Answer:
    if question not in answers:
        answers[question] = find()
    return answers[question]


def _usable(limit_bytes: int | None) -> int | None:
    """What the traced part of a step may reserve under a limit."""
    return None if limit_bytes is None else max(limit_bytes - SPARE_BYTES, 0)


def _least_bytes(program: Program) -> int:
    """What is asked for at the most at once by all that cannot be done without: no allocator gets along with less."""
    sizes = program.size_array.copy()
    sizes[list(program.instructions.optional)] = 0
    return most_requested_bytes(program.instructions, sizes)


def _blocks_at(program: Program, result: Replay, config: AllocatorConfig) -> list[tuple[int, int]]:
    """Slot and bytes of every block that is held at the allocated peak of a replay."""
    assert result.peak_at is not None
    steps = drive(CachingAllocator(result.same_from_bytes, config), program.instructions, program.sizes)
    live = next(islice(steps, result.peak_at, None))
    return [(slot, block.size) for slot, block in live.items()]


class _Known:
    """What replays of one program said. Each holds for a range of limits, and no two for the same limit."""

    __slots__ = ("gives_way", "least_bytes", "peaks", "replays", "temporaries")

    def __init__(self, temporaries: Temporaries) -> None:
        self.temporaries = temporaries
        self.gives_way = any(one.optional for group in temporaries for one in group)
        self.least_bytes: int | None = None  # worked out when it is first needed
        self.replays: list[Replay] = []
        self.peaks: dict[int, Peak] = {}  # by where the range of its replay begins

    def replay(self, limit_bytes: int | None) -> Replay | None:
        """The replay that holds under a limit (None: without one), if there was one."""
        return next((one for one in self.replays if one.holds_under(limit_bytes)), None)


class _Shared:
    """What models of the same traces share: programs, and answers where the temporaries are the same."""

    def __init__(self, source: Scaled | Single) -> None:
        self._skeleton = Skeleton(source)
        self._programs: dict[tuple[int, Temporaries], Program] = {}
        self._ops: dict[int, Operators] = {}  # by batch size, for all capabilities
        self._sizes: dict[int, Sizes] = {}
        self._known: dict[tuple[int, Temporaries, AllocatorConfig], _Known] = {}

    def known(
        self, source: Scaled | Single, batch_size: int, capability: Capability, config: AllocatorConfig
    ) -> _Known:
        """What is known about a batch size on a capability, and on others that take the same temporaries."""
        temporaries = self._skeleton.temporaries(self._ops_at(source, batch_size), capability)
        key = (batch_size, temporaries, config)
        if key not in self._known:
            self._known[key] = _Known(temporaries)
        return self._known[key]

    def _ops_at(self, source: Scaled | Single, batch_size: int) -> Operators:
        return _kept(self._ops, batch_size, lambda: self._skeleton.operators(source, batch_size))

    def _sizes_at(self, source: Scaled | Single, batch_size: int) -> Sizes:
        return _kept(self._sizes, batch_size, lambda: source.storage_array(batch_size))

    def program(self, source: Scaled | Single, batch_size: int, temporaries: Temporaries) -> Program:
        """The program at a batch size; the last few are kept."""
        return _kept(
            self._programs,
            (batch_size, temporaries),
            lambda: self._skeleton.program(self._sizes_at(source, batch_size), temporaries),
        )


def _kept(found: dict[Key, Made], key: Key, make: Callable[[], Made]) -> Made:
    """A value from a table of the last few."""
    if key not in found:
        if len(found) >= _KEPT_PROGRAMS:
            del found[next(iter(found))]
        found[key] = make()
    return found[key]


# Nothing in the values may hold on to the keys, or neither would ever go.
_SHARED: WeakKeyDictionary[Scaled | Single, _Shared] = WeakKeyDictionary()


def _shared(source: Scaled | Single) -> _Shared:
    found = _SHARED.get(source)
    if found is None:
        found = _SHARED[source] = _Shared(source)
    return found
