"""A state machine of PyTorch's CUDA caching allocator: which segments it reserves and when it runs out.

It follows `c10/cuda/CUDACachingAllocator.cpp` (class DeviceCachingAllocator) as of torch 2.11 to 2.14, where
sizes, search order and splitting have not changed since torch 1.x: requests are rounded to 512 bytes, served
best fit from the small (up to 1 MiB) or large pool, split, merged again when freed, and only then from the
driver; when that fails, every unsplit cached segment is given back and the driver is asked once more.

Assumes one device, one stream (so a free completes at once), no CUDA graphs, private pools or
`record_stream`, and a driver that places segments as `Addresses` says; addresses only break ties between free
blocks of equal size. Does not cover `garbage_collection_threshold`, `roundup_power2_divisions`, a changed
`large_segment_size_mb`, the `cudaMallocAsync` backend, or the end of an expandable segment's address space
(9/8 of the card's memory).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Literal

import msgspec

from whichgpu.addresses import Addresses

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from whichgpu import compiled_replay

# c10/core/AllocatorConfig.h, torch 2.14.1 (in c10/cuda/CUDACachingAllocator.cpp before 2.10, same values)
MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_BYTES = 1 << 20  # kSmallSize: largest request of the small pool
SMALL_SEGMENT_BYTES = 2 << 20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 << 20  # kLargeBuffer, since 2.10 AcceleratorAllocatorConfig::large_segment_size()
MIN_LARGE_BYTES = 10 << 20  # kMinLargeAlloc: from here on a request gets a segment of its own
LARGE_STEP_BYTES = 2 << 20  # kRoundLarge
# AcceleratorAllocatorConfig::max_non_split_rounding_size()
MAX_UNSPLIT_EXCESS_BYTES = LARGE_SEGMENT_BYTES

# Address space of one expandable segment: a multiple of both page sizes and never used up.
_EXPANDABLE_SPACE_BYTES = LARGE_SEGMENT_BYTES << 24
_SIZE_SHIFT = 64  # a free block's key is size << 64 | address, so keys sort as BlockComparatorSize does


class AllocatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The allocator's settings, named as in PYTORCH_ALLOC_CONF.

    `limit` says what the byte limit stands for: "fraction" is `torch.cuda.set_per_process_memory_fraction`,
    which the allocator checks before it asks the driver; "card" is the memory that the driver has. They
    differ with expandable segments only, where the former may be exceeded by less than one 20 MiB page.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None  # None: every block may be split
    limit: Literal["fraction", "card"] = "fraction"


DEFAULT_CONFIG = AllocatorConfig()


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a program of allocations and frees; indices are positions in that program."""

    fits: bool
    failed_at: int | None  # the allocation that ran out of memory; nothing after it was replayed
    failed_request_bytes: int | None
    peak_reserved_bytes: int  # torch.cuda.max_memory_reserved()
    peak_allocated_bytes: int  # torch.cuda.max_memory_allocated(): whole blocks, so rounding included
    peak_requested_bytes: int  # torch.cuda.memory_stats()["requested_bytes.all.peak"]
    peak_at: int | None  # where the allocated peak is first reached; None if nothing was allocated
    peak_reserved_at: int | None
    released_cache: int  # how often all cached segments were given back: memory_stats()["num_alloc_retries"]
    final_reserved_bytes: int
    final_allocated_bytes: int
    # Under every limit from the one up to below the other (None: under any more), all of this is the same.
    same_from_bytes: int
    same_below_bytes: int | None

    def holds_under(self, limit_bytes: int | None) -> bool:
        """Whether the program would have run just like this under a limit (None: without one)."""
        if limit_bytes is None or self.same_below_bytes is None:
            return self.same_below_bytes is None and (limit_bytes is None or limit_bytes >= self.same_from_bytes)
        return self.same_from_bytes <= limit_bytes < self.same_below_bytes


class BlockState(msgspec.Struct, frozen=True):
    """One block of a segment in a snapshot."""

    address: int
    bytes: int
    requested_bytes: int  # 0 when the block is free
    allocated: bool


class SegmentState(msgspec.Struct, frozen=True):
    """One segment (with expandable segments: one contiguous mapped range) in a snapshot."""

    address: int
    bytes: int
    pool: Literal["small", "large"]
    expandable: bool
    blocks: tuple[BlockState, ...]  # by address, without gaps


class OutOfMemory(Exception):
    """The allocator cannot serve a request within its limit."""

    def __init__(self, requested_bytes: int, reserved_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"out of memory: {requested_bytes} bytes asked for, {reserved_bytes} of {limit_bytes} reserved"
        )
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes
        self.limit_bytes = limit_bytes


class Block:
    """A piece of a segment: allocated, free or (expandable segments only) not mapped.

    The first block of a segment is the same object for as long as the segment lives.
    """

    __slots__ = ("address", "free_key", "mapped", "next", "pool", "prev", "requested_bytes", "size")

    def __init__(self, address: int, size: int, pool: _Pool, prev: Block | None, next_: Block | None) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.prev = prev
        self.next = next_
        self.mapped = True
        self.requested_bytes = 0  # above 0 exactly while the block is allocated
        self.free_key = 0  # above 0 exactly while the block is free, then its place in the pool


class _Pool:
    """The free blocks of one pool, in the order of best fit, and its rules."""

    __slots__ = ("blocks", "is_small", "keep_unsplit_up_to", "keys", "page_bytes", "unmapped")

    def __init__(self, is_small: bool, expandable: bool) -> None:
        self.is_small = is_small
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []  # by address
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        # should_split(): a remainder up to this stays with the block that is handed out
        self.keep_unsplit_up_to = MIN_BLOCK_BYTES - 1 if is_small or expandable else SMALL_BYTES

    def add(self, block: Block) -> None:
        key = block.free_key = block.size << _SIZE_SHIFT | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        key = block.free_key
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]
        block.free_key = 0

    def add_unmapped(self, block: Block) -> None:
        block.mapped = False
        insort(self.unmapped, block, key=lambda other: other.address)


def round_size(requested_bytes: int) -> int:
    """Bytes of the block that serves a request (upstream `round_size`)."""
    return max(MIN_BLOCK_BYTES, (requested_bytes + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES)


def segment_size(rounded_bytes: int) -> int:
    """Bytes asked of the driver for a rounded request (upstream `get_allocation_size`)."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // LARGE_STEP_BYTES) * LARGE_STEP_BYTES


class CachingAllocator:
    """The allocator itself, one request at a time; its counters are plain attributes, named as in torch.

    `limit_bytes` is the most that all segments may add up to, None for no limit. `place` gives the address of
    a new segment of so many bytes, for those who know what the driver answered (not asked for expandable
    segments); the default is what `Addresses` says.
    """

    def __init__(
        self,
        limit_bytes: int | None = None,
        config: AllocatorConfig = DEFAULT_CONFIG,
        place: Callable[[int], int] | None = None,
    ) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}; it must be 0 or more, or None for no limit")
        max_split = config.max_split_size_bytes
        if max_split is not None and max_split <= LARGE_SEGMENT_BYTES:
            raise ValueError(
                f"max_split_size_bytes is {max_split}; PyTorch accepts only more than {LARGE_SEGMENT_BYTES}"
            )
        self.limit_bytes = limit_bytes
        self.config = config
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.num_alloc_retries = 0
        # The largest sum of segments that the limit was seen to allow, and the smallest that it was seen to refuse
        self.allowed_bytes = 0
        self.refused_bytes: int | None = None
        self.segment_allocs: list[int] = []  # what the driver was asked for, in order
        self._addresses = Addresses(1, MIN_BLOCK_BYTES)
        self._place = place
        self._next_space = 0
        self._expandable = config.expandable_segments
        self._max_split = max_split
        self._plain = not self._expandable and max_split is None
        self._small = _Pool(True, self._expandable)
        self._large = _Pool(False, self._expandable)
        self._segments: dict[int, Block] = {}  # by address
        self._nothing = Block(0, 0, self._small, None, None)

    def malloc(self, requested_bytes: int) -> Block:
        """Serve one request; raises OutOfMemory (and stays usable) or ValueError (negative size).

        A request of 0 bytes returns an empty block and changes nothing, as torch hands out a null pointer.
        """
        if requested_bytes <= 0:
            if requested_bytes < 0:
                raise ValueError(f"cannot allocate {requested_bytes} bytes; sizes are 0 or more")
            return self._nothing
        size = (requested_bytes + 511) & -512  # round_size, inlined
        pool = self._small if size <= SMALL_BYTES else self._large
        keys = pool.keys
        at = bisect_left(keys, size << _SIZE_SHIFT)
        if at < len(keys) and (self._plain or (at := self._usable(pool, at, size)) >= 0):
            block = pool.blocks.pop(keys.pop(at))
            block.free_key = 0
        else:
            block = self._grow(pool, size, requested_bytes)
        rest_bytes = block.size - size
        if rest_bytes > pool.keep_unsplit_up_to and (self._max_split is None or self._may_split(pool, size)):
            after = block.next
            address = block.address + size
            rest = Block(address, rest_bytes, pool, block, after)
            if after is not None:
                after.prev = rest
            block.next = rest
            block.size = size
            rest.free_key = key = rest_bytes << _SIZE_SHIFT | address  # _Pool.add, inlined
            insort(keys, key)
            pool.blocks[key] = rest
        else:
            size = block.size
        block.requested_bytes = requested_bytes
        self.allocated_bytes = allocated = self.allocated_bytes + size
        if allocated > self.peak_allocated_bytes:  # noqa: PLR1730  a call of max() costs a tenth of the loop
            self.peak_allocated_bytes = allocated
        self.requested_bytes = requested = self.requested_bytes + requested_bytes
        if requested > self.peak_requested_bytes:  # noqa: PLR1730
            self.peak_requested_bytes = requested
        return block

    def free(self, block: Block) -> None:
        """Give a block back; it merges with free neighbours. Raises ValueError if it is not allocated."""
        requested = block.requested_bytes
        if not requested:
            if block is self._nothing:
                return
            raise ValueError("this block is not allocated: it was freed before")
        size = block.size
        block.requested_bytes = 0
        self.requested_bytes -= requested
        self.allocated_bytes -= size
        pool = block.pool
        keys = pool.keys
        before = block.prev
        after = block.next
        if after is not None and (key := after.free_key):
            del keys[bisect_left(keys, key)]
            del pool.blocks[key]
            size += after.size
            after = block.next = after.next
            if after is not None:
                after.prev = block
        if before is not None and (key := before.free_key):
            del keys[bisect_left(keys, key)]
            del pool.blocks[key]
            size += before.size
            before.next = after
            if after is not None:
                after.prev = before
            block = before
        block.size = size
        block.free_key = key = size << _SIZE_SHIFT | block.address
        insort(keys, key)
        pool.blocks[key] = block

    def load(self) -> None:
        """The process loads something, for which the driver takes memory or gives it back: see `Addresses.load`."""
        self._addresses.load()

    def empty_cache(self) -> None:
        """Give every segment without a live block back to the driver (`torch.cuda.empty_cache`)."""
        for pool in (self._large, self._small):
            free = [pool.blocks[key] for key in pool.keys]
            for block in free:
                if self._expandable:
                    self._unmap(block)
                elif block.prev is None and block.next is None:
                    self._release(block)

    def snapshot(self) -> list[SegmentState]:
        """All segments and their blocks, by address."""
        segments = []
        for address in sorted(self._segments):
            block: Block | None = self._segments[address]
            run: list[Block] = []
            while block is not None:
                if block.mapped:
                    run.append(block)
                if run and (block.next is None or not block.next.mapped):
                    segments.append(_segment_state(run, self._expandable))
                    run = []
                block = block.next
        return segments

    # Everything below runs only when no cached block serves a request.

    def _next_expandable(self) -> int:
        address = self._next_space
        self._next_space += _EXPANDABLE_SPACE_BYTES
        return address

    def _may_split(self, pool: _Pool, size: int) -> bool:
        return pool.is_small or self._expandable or self._max_split is None or size < self._max_split

    def _usable(self, pool: _Pool, at: int, size: int) -> int:
        """The rest of upstream `get_free_block`: index of the block to take, or -1 for none."""
        keys, blocks = pool.keys, pool.blocks
        if self._expandable:
            # best fit counts what a block can grow to, not what it is
            while at + 1 < len(keys) and _growable(blocks[keys[at + 1]]) < _growable(blocks[keys[at]]):
                at += 1
        if self._max_split is not None:
            found = keys[at] >> _SIZE_SHIFT
            if size < self._max_split <= found:
                return -1
            if size >= self._max_split and found >= size + MAX_UNSPLIT_EXCESS_BYTES:
                return -1
        return at

    def _grow(self, pool: _Pool, size: int, requested_bytes: int) -> Block:
        block = self._from_driver(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._from_driver(pool, size)
        if block is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._from_driver(pool, size)
        if block is None:
            assert self.limit_bytes is not None
            raise OutOfMemory(requested_bytes, self.reserved_bytes, self.limit_bytes)
        return block

    def _from_driver(self, pool: _Pool, size: int) -> Block | None:
        """Upstream `alloc_block`: a block of at least `size` bytes in no free list, None beyond the limit."""
        asked = segment_size(size)
        # with a real card and expandable segments it is the mapping, page by page, that fails
        if not (self._expandable and self.config.limit == "card") and not self._has_room(asked):
            return None
        if self._expandable:
            return self._expand(pool, size)
        block = Block((self._place or self._addresses.place)(asked), asked, pool, None, None)
        self._segments[block.address] = block
        self._reserve(asked)
        return block

    def _has_room(self, more_bytes: int) -> bool:
        wanted = self.reserved_bytes + more_bytes
        if self.limit_bytes is None or wanted <= self.limit_bytes:
            self.allowed_bytes = max(self.allowed_bytes, wanted)
            return True
        self.refused_bytes = wanted if self.refused_bytes is None else min(self.refused_bytes, wanted)
        return False

    def _reserve(self, more_bytes: int) -> None:
        self.segment_allocs.append(more_bytes)
        self.reserved_bytes += more_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        del self._segments[block.address]
        if self._place is None:
            self._addresses.give_back(block.address, block.size)
        self.reserved_bytes -= block.size

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Upstream `release_available_cached_blocks`: give back just enough unsplittable blocks."""
        if self._max_split is None or self._expandable:
            return False
        wanted = max(size, self._max_split)
        at = bisect_left(pool.keys, wanted << _SIZE_SHIFT)
        if at < len(pool.keys):
            self._release(pool.blocks[pool.keys[at]])
            return True
        released = 0
        while pool.keys and released < wanted and pool.keys[-1] >> _SIZE_SHIFT >= self._max_split:
            block = pool.blocks[pool.keys[-1]]
            released += block.size
            self._release(block)
        return released >= wanted

    # Expandable segments: one run of address space per pool, of which pages are mapped as needed.

    def _expand(self, pool: _Pool, size: int) -> Block | None:
        """Upstream `try_allocate_expandable_block`."""
        block = self._find_space(pool, size)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            gap = block.next
            assert gap is not None
            mapped = self._map(gap, min(size - block.size, gap.size))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def _find_space(self, pool: _Pool, size: int) -> Block:
        """Upstream `find_expandable_block`: lowest address with `size` bytes free or not mapped."""
        for block in pool.unmapped:
            if block.prev is not None and block.prev.free_key:
                block = block.prev  # noqa: PLW2901
            room, look = 0, block
            while room < size and not look.requested_bytes:
                room += look.size
                if look.next is None:
                    break
                look = look.next
            if room >= size:
                return block
        address = self._next_expandable()
        space = Block(address, _EXPANDABLE_SPACE_BYTES, pool, None, None)
        self._segments[space.address] = space
        pool.add_unmapped(space)
        return space

    def _map(self, block: Block, size: int) -> Block | None:
        """Upstream `map_block`: back the start of an unmapped block; the free block it is part of then."""
        pool = block.pool
        mapped = -(-size // pool.page_bytes) * pool.page_bytes
        if self.config.limit == "card" and not self._has_room(mapped):
            return None
        pool.unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            pool.add_unmapped(_cut(block, mapped))
        if block.next is not None and block.next.free_key:
            pool.remove(block.next)
            _join(block)
        if block.prev is not None and block.prev.free_key:
            block = block.prev
            pool.remove(block)
            _join(block)
        pool.add(block)
        self._reserve(mapped)
        return block

    def _unmap(self, block: Block) -> None:
        """Upstream `unmap_block`: give back the whole pages within a free block, maybe the segment."""
        pool = block.pool
        first = -(-block.address // pool.page_bytes) * pool.page_bytes
        last = (block.address + block.size) // pool.page_bytes * pool.page_bytes
        if first >= last:
            return
        pool.remove(block)
        self.reserved_bytes -= last - first
        if last < block.address + block.size:
            pool.add(_cut(block, last - block.address))
        if block.address < first:
            middle = _cut(block, first - block.address)
            pool.add(block)
            block = middle
        block.mapped = False
        if block.next is not None and not block.next.mapped:
            pool.unmapped.remove(block.next)
            _join(block)
        if block.prev is not None and not block.prev.mapped:
            block = block.prev
            pool.unmapped.remove(block)
            _join(block)
        if block.prev is None and block.next is None:
            del self._segments[block.address]
        else:
            pool.add_unmapped(block)


def _growable(block: Block) -> int:
    after = block.next
    return block.size if after is None or after.mapped else block.size + after.size


def _cut(block: Block, size: int) -> Block:
    """Shorten a block to `size` bytes and return the rest as a new block behind it."""
    rest = Block(block.address + size, block.size - size, block.pool, block, block.next)
    if block.next is not None:
        block.next.prev = rest
    block.next = rest
    block.size = size
    return rest


def _join(block: Block) -> None:
    """Let a block swallow the one behind it."""
    after = block.next
    assert after is not None
    block.size += after.size
    block.next = after.next
    if after.next is not None:
        after.next.prev = block


def _segment_state(run: list[Block], expandable: bool) -> SegmentState:
    blocks = tuple(BlockState(b.address, b.size, b.requested_bytes, b.requested_bytes > 0) for b in run)
    pool: Literal["small", "large"] = "small" if run[0].pool.is_small else "large"
    return SegmentState(run[0].address, sum(block.size for block in run), pool, expandable, blocks)


_COUNTABLE_BYTES = 1 << 60  # sums up to this are safe in 64 bits, with what is rounded up
EMPTY_CACHE = 0  # an entry of a program: segments without a live block are given back to the driver


NOTHING_OPTIONAL: Mapping[int, Collection[int]] = {}
NOTHING_INSTEAD: Mapping[int, int] = {}


class CheckedProgram(tuple[int, ...]):
    """A program that allocates every slot at most once, and frees it at most once and after that.

    It is checked when it is made, so that replays with other sizes and limits, which are many, need not check it again.
    """

    slots: int  # how many sizes it needs
    loads: tuple[int, ...]  # the entries before which the process loads something, in order; see `Addresses.load`
    # Slots that are done without where there is no room although the cache has been given back, and so are from then on
    # those that each stands for.
    optional: Mapping[int, Collection[int]]
    instead_of: Mapping[int, int]  # slots that are taken only where another one is done without, and which one that is
    compiled: compiled_replay.Entries  # all of this for `compiled_replay`

    def __new__(
        cls,
        program: Iterable[int],
        loads: Iterable[int] = (),
        optional: Mapping[int, Collection[int]] = NOTHING_OPTIONAL,
        instead_of: Mapping[int, int] = NOTHING_INSTEAD,
    ) -> CheckedProgram:
        """Raises ValueError for a program that no process could run, or that uses a slot again."""
        # imported where it is needed, as that takes a moment, and an answer that was kept needs no replay
        from whichgpu import compiled_replay  # noqa: PLC0415

        self = super().__new__(cls, program)
        self.loads = tuple(sorted(loads))
        self.optional = optional
        self.instead_of = instead_of
        self.compiled = compiled_replay.as_arrays(self, self.loads, optional, instead_of)
        self.slots = len(self.compiled.group_of)
        if not compiled_replay.uses_slots_once(self.compiled.program, self.slots):
            raise ValueError("the program frees a slot that is not alive, or allocates a slot twice")
        return self


def replay(
    program: Sequence[int],
    sizes: Sequence[int] | NDArray[np.int64],
    limit_bytes: int | None,
    config: AllocatorConfig = DEFAULT_CONFIG,
) -> Replay:
    """Run a program of allocations and frees: does it fit, and how much memory does it reserve?

    `slot + 1` in `program` allocates `sizes[slot]` bytes, `-(slot + 1)` frees them; a slot may be used again. `EMPTY_CACHE`
    does what `torch.cuda.empty_cache` does.
    `limit_bytes` is the most that all segments may add up to (card memory less the CUDA context, or what
    `torch.cuda.set_per_process_memory_fraction` allows), None for no limit. Raises ValueError for a program that no process
    could run. A `CheckedProgram` is replayed somewhat faster.
    """
    if not isinstance(program, CheckedProgram) or program.slots > len(sizes):
        _check_entries(program, len(sizes))
    least_bytes, most_bytes = _extremes(sizes)
    if least_bytes < 0:
        slot = next(slot for slot, size in enumerate(sizes) if size < 0)
        raise ValueError(f"sizes[{slot}] is {sizes[slot]}; sizes are 0 or more bytes")
    plain = not config.expandable_segments and config.max_split_size_bytes is None
    countable = most_bytes * len(sizes) < _COUNTABLE_BYTES
    if plain and countable and (limit_bytes is None or limit_bytes >= 0):
        checked = program if isinstance(program, CheckedProgram) else _checked(program)
        if checked is not None:
            return _replay_compiled(checked, sizes, limit_bytes)
    return _replay_by_steps(program, [*map(int, sizes)], limit_bytes, config)


def _extremes(sizes: Sequence[int] | NDArray[np.int64]) -> tuple[int, int]:
    if not len(sizes):
        return 0, 0
    if isinstance(sizes, Sequence):
        return min(sizes), max(sizes)
    return int(sizes.min()), int(sizes.max())


def _checked(program: Sequence[int]) -> CheckedProgram | None:
    try:
        return CheckedProgram(program)
    except ValueError:
        return None


def most_requested_bytes(program: CheckedProgram, sizes: Sequence[int] | NDArray[np.int64]) -> int:
    """The most that is asked for at once: no allocator gets along with less."""
    from whichgpu import compiled_replay  # noqa: PLC0415

    return compiled_replay.most_requested_bytes(program.compiled, sizes)


def drive(allocator: CachingAllocator, program: Sequence[int], sizes: Sequence[int]) -> Iterator[dict[int, Block]]:
    """Run a program on an allocator, entry by entry: after each, the blocks that are alive, by slot.

    It is the same dictionary each time. Program and sizes are those of `replay`. Raises OutOfMemory where the program ends
    for want of memory, and ValueError for one that no process could run.
    """
    live: dict[int, Block] = {}
    skipped: set[int] = set()
    checked = program if isinstance(program, CheckedProgram) else None
    loads = checked.loads if checked is not None else ()
    optional, instead_of = (
        (checked.optional, checked.instead_of) if checked is not None else (NOTHING_OPTIONAL, NOTHING_INSTEAD)
    )
    for index, entry in enumerate(program):
        for _ in range(loads.count(index)):
            allocator.load()
        slot = abs(entry) - 1
        if entry > 0:
            if slot in live:
                raise ValueError(f"program[{index}] allocates slot {slot}, which is alive already")
            if slot not in skipped and (slot not in instead_of or instead_of[slot] in skipped):
                try:
                    live[slot] = allocator.malloc(sizes[slot])
                except OutOfMemory:
                    if slot not in optional:
                        raise
                    skipped.update(optional[slot])
        elif entry == EMPTY_CACHE:
            allocator.empty_cache()
        elif slot in live:
            allocator.free(live.pop(slot))
        elif slot not in skipped and slot not in instead_of:  # one that was not taken is not there to be freed
            raise ValueError(f"program[{index}] frees slot {slot}, which is not alive")
        yield live


def _check_entries(program: Sequence[int], slots: int) -> None:
    if program and (max(program) > slots or min(program) < -slots):
        index = next(i for i, entry in enumerate(program) if abs(entry) > slots)
        raise ValueError(
            f"program[{index}] is {program[index]}; entries are slot + 1 or -(slot + 1), and there are {slots} slots"
        )


def _replay_by_steps(
    program: Sequence[int],
    sizes: Sequence[int],
    limit_bytes: int | None,
    config: AllocatorConfig,
) -> Replay:
    """The replay of any program with any settings: the class above, one call at a time."""
    allocator = CachingAllocator(limit_bytes, config)
    index = peak = reserved = 0
    peak_at = reserved_at = failed_at = None
    try:
        for _ in drive(allocator, program, sizes):
            if allocator.allocated_bytes > peak:
                peak = allocator.allocated_bytes
                peak_at = index
            if allocator.peak_reserved_bytes > reserved:
                reserved = allocator.peak_reserved_bytes
                reserved_at = index
            index += 1
    except OutOfMemory:
        failed_at = index
        if allocator.peak_reserved_bytes > reserved:
            reserved_at = index
    return Replay(
        fits=failed_at is None,
        failed_at=failed_at,
        failed_request_bytes=None if failed_at is None else sizes[program[failed_at] - 1],
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_requested_bytes=allocator.peak_requested_bytes,
        peak_at=peak_at,
        peak_reserved_at=reserved_at,
        released_cache=allocator.num_alloc_retries,
        final_reserved_bytes=allocator.reserved_bytes,
        final_allocated_bytes=allocator.allocated_bytes,
        same_from_bytes=allocator.allowed_bytes,
        same_below_bytes=allocator.refused_bytes,
    )


def _replay_compiled(
    program: CheckedProgram, sizes: Sequence[int] | NDArray[np.int64], limit_bytes: int | None
) -> Replay:
    """`_replay_by_steps` with default settings for a program that uses every slot once, some twenty times as fast."""
    from whichgpu import compiled_replay  # noqa: PLC0415

    outcome = compiled_replay.replay(program.compiled, sizes, limit_bytes)
    failed_at = _position(outcome.failed_at)
    refused_bytes = outcome.refused_bytes
    return Replay(
        fits=failed_at is None,
        failed_at=failed_at,
        failed_request_bytes=None if failed_at is None else int(sizes[program[failed_at] - 1]),
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        peak_allocated_bytes=outcome.peak_allocated_bytes,
        peak_requested_bytes=outcome.peak_requested_bytes,
        peak_at=_position(outcome.peak_at),
        peak_reserved_at=_position(outcome.peak_reserved_at),
        released_cache=outcome.released_cache,
        final_reserved_bytes=outcome.reserved_bytes,
        final_allocated_bytes=outcome.allocated_bytes,
        same_from_bytes=outcome.peak_reserved_bytes,
        same_below_bytes=refused_bytes if refused_bytes < compiled_replay.NO_LIMIT_BYTES else None,
    )


def _position(index: int) -> int | None:
    return index if index >= 0 else None


@cache
def get_ready() -> None:
    """Begin, in another thread, what the first replay would wait for; to be called where there is something else to do.

    That takes seconds on a machine where it was never done. The process does not end before it is through.
    """

    def prepare() -> None:
        from whichgpu import compiled_replay  # noqa: PLC0415

        compiled_replay.compile_now()

    Thread(target=prepare, name="get the replay ready").start()


def live_at(program: Sequence[int], index: int) -> list[int]:
    """Slots that are alive just after `program[index]`, oldest first."""
    if not 0 <= index < len(program):
        raise ValueError(f"index {index} is outside the program of {len(program)} entries")
    live: dict[int, None] = {}
    for entry in program[: index + 1]:
        if entry > 0:
            live[entry - 1] = None
        else:  # an emptied cache had nothing alive in it
            live.pop(-entry - 1, None)
    return list(live)
