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

    op: int | None  # index into the operators of the trace at that batch size; None when nothing was allocated
    op_name: str
    phase: str
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
        self._skeleton: _Skeleton | None = None
        self._unlimited: dict[int, Replay] = {}
        # By batch size and limit, exactly: more memory does not always help. With less, the allocator gives its
        # cache back earlier, and what it then reserves may happen to fit better.
        self._limited: dict[tuple[int, int], Replay] = {}
        self._peaks: dict[int, Peak] = {}
        self.program = lru_cache(maxsize=64)(self._program)

    # ---- one batch size -----------------------------------------------------------------------------

    def _program(self, batch_size: int) -> Program:
        source = self._at(batch_size)
        if self._skeleton is None or self._skeleton.source is not source:
            self._skeleton = _Skeleton(source)
        return self._skeleton.program(batch_size, self._capability)

    def replay(self, batch_size: int, limit_bytes: int | None = None) -> Replay:
        """The step at a batch size on an allocator that may reserve `limit_bytes` (None: as much as it wants)."""
        whole = self._unlimited.get(batch_size)
        if whole is not None and (limit_bytes is None or whole.peak_reserved_bytes <= limit_bytes):
            return whole
        if limit_bytes is None:
            return self._whole(batch_size)
        result = self._limited.get((batch_size, limit_bytes))
        if result is None:
            program = self.program(batch_size)
            result = replay(program.instructions, program.sizes, limit_bytes, self._config)
            if result.fits and not result.released_cache:
                # the limit was never met, so this is what happens without one
                return self._unlimited.setdefault(batch_size, result)
            self._limited[batch_size, limit_bytes] = result
        return result

    def _whole(self, batch_size: int) -> Replay:
        program = self.program(batch_size)
        result = self._unlimited[batch_size] = replay(program.instructions, program.sizes, None, self._config)
        return result

    def fits(self, batch_size: int, limit_bytes: int) -> bool:
        """Whether the step runs at a batch size under a limit."""
        whole = self._unlimited.get(batch_size)
        if whole is not None and limit_bytes < whole.peak_requested_bytes:
            return False
        return self.replay(batch_size, limit_bytes).fits

    def peak(self, batch_size: int, limit_bytes: int | None = None) -> Peak:
        """What is held at the allocated peak under a limit (None: as much memory as it wants).

        Where the step does not fit, this is the largest sum before memory ran out.
        """
        result = self.replay(batch_size, limit_bytes)
        if result is not self.replay(batch_size):
            return self._peak(batch_size, limit_bytes, result)
        if batch_size not in self._peaks:
            self._peaks[batch_size] = self._peak(batch_size, None, result)
        return self._peaks[batch_size]

    def _peak(self, batch_size: int, limit_bytes: int | None, result: Replay) -> Peak:
        held = dict.fromkeys(HELD, 0)
        if result.peak_at is None:
            return Peak(op=None, op_name="", phase="", held_bytes=held)
        program = self.program(batch_size)
        trace = self._at(batch_size).low
        for slot, block_bytes in _blocks_at(program, result.peak_at, limit_bytes, self._config):
            category = trace.storages[slot].category if slot < program.storages else "workspace"
            held[category] += block_bytes
        place = bisect_right(program.op_at, result.peak_at) - 1
        op = program.op_index[place] if place >= 0 else None
        return Peak(
            op=op, op_name=trace.ops[op].name if op is not None else "",
            phase=trace.ops[op].phase if op is not None else "", held_bytes=held,
        )

    # ---- the largest batch ----------------------------------------------------------------------------

    def largest_batch(self, limit_bytes: int) -> int:
        """The largest batch size that fits under a limit: it fits and the next one does not; 0 when 1 does not."""
        low, high = 0, MAX_BATCH_SIZE + 1  # low fits, high does not
        probe = self._guess(limit_bytes)
        step = max(probe >> 8, 1)
        while True:
            if self.fits(probe, limit_bytes):
                low = probe
            else:
                high = probe
            if high - low <= 1:
                break
            if low and high <= MAX_BATCH_SIZE and 2 * step > high - low:
                probe = (low + high) // 2
            else:
                probe = min(low + step, high - 1) if low else max(high - step, 1)
                step *= 2
        return low

    def _guess(self, limit_bytes: int) -> int:
        """Where the straight line through two peaks meets the limit, tried twice.

        It depends on nothing but the limit, so that the same question always has the same answer: memory is not
        quite monotone in the batch size, and a search from elsewhere might end elsewhere.
        """
        before, last = self._first_two()
        for _ in range(2):
            one, other = (self.replay(n).peak_reserved_bytes for n in (before, last))
            if other <= one:
                return min(2 * last, MAX_BATCH_SIZE)
            met = before + (limit_bytes - one) * (last - before) // (other - one)
            met = min(max(met, 1), MAX_BATCH_SIZE)
            if met in (before, last):
                return met
            before, last = sorted((last, met))
        return met

    def _first_two(self) -> tuple[int, int]:
        source = self._at(8)
        if isinstance(source, Scaled):
            return 8, 64
        return 4, 8

    def largest_power_of_two(self, largest: int) -> int:
        """The largest power of two up to a batch size; 0 for 0."""
        return 1 << (largest.bit_length() - 1) if largest else 0


def _blocks_at(
    program: Program, place: int, limit_bytes: int | None, config: AllocatorConfig
) -> list[tuple[int, int]]:
    """Slot and bytes of every block that is held after an instruction."""
    allocator = CachingAllocator(limit_bytes, config)
    blocks = {}
    for instruction in program.instructions[: place + 1]:
        if instruction > 0:
            blocks[instruction - 1] = allocator.malloc(program.sizes[instruction - 1])
        else:
            allocator.free(blocks.pop(-instruction - 1))
    return [(slot, block.size) for slot, block in blocks.items()]


class _Skeleton:
    """The part of a program that is the same at every batch size, cut where an operator may take temporaries."""

    def __init__(self, source: Scaled | Single) -> None:
        self.source = source
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
        sizes = self.source.storage_bytes(batch_size)
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
                temporaries = answers[group] = workspaces.temporaries(self.source.op(op, batch_size), capability)
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
                    if temporary.kept:
                        if temporary.key in kept:
                            continue
                        kept.add(temporary.key)
                    sizes.append(temporary.bytes)
                    out.append(len(sizes))
                    if not temporary.kept:
                        freed.append(-len(sizes))
                if number < last:
                    out.append(own[number])
            out += freed
        return Program(out, sizes, op_at, op_index, storages)
