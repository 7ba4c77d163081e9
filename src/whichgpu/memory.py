"""How much GPU memory a training step needs at a batch size, whether it fits, and the largest batch that does.

A trace's allocations, with the temporaries that kernels take besides (`workspaces`), are replayed through the model
of PyTorch's caching allocator. Pure functions of traces and a limit: no torch, no files.

Not covered: memory outside PyTorch's allocator, other than through the limit it leaves (the CUDA context).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache

import msgspec

from whichgpu import workspaces
from whichgpu.allocator import DEFAULT_CONFIG, AllocatorConfig, CachingAllocator, Replay, replay
from whichgpu.scaling import Scaled, Single
from whichgpu.trace import EventKind

# Larger batches are not searched for: a step whose memory hardly grows would have no largest batch.
MAX_BATCH_SIZE = 1 << 20

HELD = (
    "weight", "gradient", "optimizer_state", "activation", "temporary", "workspace", "input", "buffer"
)


class Program(msgspec.Struct, frozen=True):
    """What the allocator is asked for at one batch size."""

    instructions: list[int]  # slot + 1 allocates, -(slot + 1) frees
    sizes: list[int]
    op_at: list[int]  # positions in `instructions` where operators begin ...
    op_index: list[int]  # ... and which ones
    storages: int  # slots from here on are temporaries and workspaces


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The moment of the allocated peak."""

    op: int | None  # index into the trace's operators
    held_bytes: dict[str, int]  # by category; adds up to the allocated peak


class MemoryModel:
    """Memory of one workload on one capability, for any batch size; answers are kept.

    `at` gives the trace (as `scaling.Scaled` or `scaling.Single`) for a batch size.
    """

    def __init__(
        self,
        at: Callable[[int], Scaled | Single],
        capability: tuple[int, int],
        config: AllocatorConfig = DEFAULT_CONFIG,
    ) -> None:
        self._at = at
        self._capability = capability
        self._config = config
        self._skeletons: dict[int, _Skeleton] = {}
        self._unlimited: dict[int, Replay] = {}
        self._fits_from: dict[int, int] = {}  # batch size -> smallest limit known to suffice
        self._fails_to: dict[int, int] = {}  # batch size -> largest limit known not to suffice
        self.program = lru_cache(maxsize=64)(self._program)

    # ---- one batch size -----------------------------------------------------------------------------

    def _program(self, batch_size: int) -> Program:
        source = self._at(batch_size)
        skeleton = self._skeletons.get(id(source))
        if skeleton is None:
            skeleton = self._skeletons[id(source)] = _Skeleton(source)
        return skeleton.program(batch_size, self._capability)

    def replay(self, batch_size: int, limit_bytes: int | None = None) -> Replay:
        """The step at a batch size on an allocator that may reserve `limit_bytes` (None: as much as it wants)."""
        whole = self._unlimited.get(batch_size)
        if whole is None:
            program = self.program(batch_size)
            whole = self._unlimited[batch_size] = replay(program.instructions, program.sizes, None, self._config)
        if limit_bytes is None or whole.peak_reserved_bytes <= limit_bytes:
            return whole
        program = self.program(batch_size)
        result = replay(program.instructions, program.sizes, limit_bytes, self._config)
        self._learn(batch_size, limit_bytes, result)
        return result

    def _learn(self, batch_size: int, limit_bytes: int, result: Replay) -> None:
        if result.fits:
            known = self._fits_from.get(batch_size, limit_bytes)
            self._fits_from[batch_size] = min(known, limit_bytes)
        else:
            self._fails_to[batch_size] = max(self._fails_to.get(batch_size, 0), limit_bytes)

    def fits(self, batch_size: int, limit_bytes: int) -> bool:
        """Whether the step runs at a batch size under a limit."""
        if limit_bytes >= self._fits_from.get(batch_size, 1 << 62):
            return True
        if limit_bytes <= self._fails_to.get(batch_size, -1):
            return False
        whole = self.replay(batch_size)
        if limit_bytes >= whole.peak_reserved_bytes:
            return True
        if limit_bytes < whole.peak_requested_bytes:
            return False
        return self.replay(batch_size, limit_bytes).fits

    def peak(self, batch_size: int) -> Peak:
        """What is held at the allocated peak, when memory is not limited."""
        whole = self.replay(batch_size)
        if whole.peak_at is None:
            return Peak(op=None, held_bytes=dict.fromkeys(HELD, 0))
        program = self.program(batch_size)
        source = self._at(batch_size)
        allocator = CachingAllocator(config=self._config)
        blocks = {}
        for instruction in program.instructions[: whole.peak_at + 1]:
            if instruction > 0:
                size = program.sizes[instruction - 1]
                if size:
                    blocks[instruction - 1] = allocator.malloc(size)
            elif (block := blocks.pop(-instruction - 1, None)) is not None:
                allocator.free(block)
        held = dict.fromkeys(HELD, 0)
        for slot, block in blocks.items():
            category = source.low.storages[slot].category if slot < program.storages else "workspace"
            held[category] += block.size
        place = bisect_right(program.op_at, whole.peak_at) - 1
        return Peak(op=program.op_index[place] if place >= 0 else None, held_bytes=held)

    # ---- the largest batch ----------------------------------------------------------------------------

    def largest_batch(self, limit_bytes: int) -> int:
        """The largest batch size that fits under a limit: it fits and the next one does not; 0 when 1 does not."""
        guess = self._guess(limit_bytes)
        if self.fits(guess, limit_bytes):
            low, high = guess, None
        else:
            low, high = 0, guess
        step = max(guess // 64, 1)
        while high is None:
            if low >= MAX_BATCH_SIZE:
                return MAX_BATCH_SIZE
            probe = min(low + step, MAX_BATCH_SIZE)
            if self.fits(probe, limit_bytes):
                low = probe
            else:
                high = probe
            step *= 2
        while low == 0 and high > 1:
            probe = max(high - step, 1)
            if self.fits(probe, limit_bytes):
                low = probe
            else:
                high = probe
            step *= 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, limit_bytes):
                low = middle
            else:
                high = middle
        return low

    def _guess(self, limit_bytes: int) -> int:
        """Where the straight line through two known peaks meets the limit."""
        known = sorted(self._unlimited)
        if len(known) < 2:
            for batch_size in self._first_two():
                self.replay(batch_size)
            known = sorted(self._unlimited)
        peaks = [(n, self._unlimited[n].peak_reserved_bytes) for n in known]
        below = [pair for pair in peaks if pair[1] <= limit_bytes]
        pair = (below[-1], peaks[peaks.index(below[-1]) + 1]) if below and below[-1] != peaks[-1] else (
            (peaks[-2], peaks[-1]) if below else (peaks[0], peaks[1])
        )
        (n, one), (m, other) = pair
        if other <= one:
            return min(2 * m, MAX_BATCH_SIZE)
        return int(min(max(n + (limit_bytes - one) * (m - n) // (other - one), 1), MAX_BATCH_SIZE))

    def _first_two(self) -> tuple[int, int]:
        source = self._at(8)
        if isinstance(source, Scaled):
            return 8, 64
        return 4, 8

    def largest_power_of_two(self, largest: int) -> int:
        """The largest power of two up to a batch size; 0 for 0."""
        return 1 << (largest.bit_length() - 1) if largest else 0


class _Skeleton:
    """The part of a program that is the same at every batch size, cut where an operator may take temporaries."""

    def __init__(self, source: Scaled | Single) -> None:
        self._source = source
        self._pieces: list[tuple[list[int], list[tuple[int, int]], int, list[int], int]] = []
        # (instructions, [(place in them, operator)], operator with rules or -1, its own allocations, its group)
        groups: dict[tuple[object, ...], int] = {}
        instructions: list[int] = []
        marks: list[tuple[int, int]] = []
        events = source.events
        place = 0
        while place < len(events):
            kind, argument = events[place]
            place += 1
            if kind == EventKind.ALLOC:
                instructions.append(argument + 1)
            elif kind == EventKind.FREE:
                instructions.append(-(argument + 1))
            elif kind == EventKind.OP:
                marks.append((len(instructions), argument))
                if source.low.ops[argument].name in workspaces.RULES:
                    own = []
                    while place < len(events) and events[place][0] == EventKind.ALLOC:
                        own.append(events[place][1] + 1)
                        place += 1
                    group = groups.setdefault(source.signature(argument), len(groups))
                    self._pieces.append((instructions, marks, argument, own, group))
                    instructions, marks = [], []
        self._pieces.append((instructions, marks, -1, [], -1))

    def program(self, batch_size: int, capability: tuple[int, int]) -> Program:
        """Everything with its sizes at a batch size."""
        sizes = self._source.storage_bytes(batch_size)
        storages = len(sizes)
        out: list[int] = []
        op_at: list[int] = []
        op_index: list[int] = []
        answers: dict[int, tuple[workspaces.Temporary, ...]] = {}
        kept: set[str] = set()
        for instructions, marks, op, own, group in self._pieces:
            base = len(out)
            for at, index in marks:
                op_at.append(base + at)
                op_index.append(index)
            out += instructions
            if op < 0:
                continue
            temporaries = answers.get(group)
            if temporaries is None:
                temporaries = answers[group] = workspaces.temporaries(self._source.op(op, batch_size), capability)
            if not temporaries:
                out += own
                continue
            freed = []
            last = len(own)
            for number in range(last + 1):
                for temporary in temporaries:
                    at = temporary.before_output
                    if (at if 0 <= at < last else last) != number:
                        continue
                    if temporary.kept is not None:
                        if temporary.kept in kept:
                            continue
                        kept.add(temporary.kept)
                    sizes.append(temporary.bytes)
                    out.append(len(sizes))
                    if temporary.kept is None:
                        freed.append(-len(sizes))
                if number < last:
                    out.append(own[number])
            out += freed
        return Program(out, sizes, op_at, op_index, storages)
