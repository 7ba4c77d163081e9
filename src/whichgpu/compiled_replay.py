"""The allocator's replay in machine code, for what nearly every replay is: default settings, and slots used once.

The largest batch of every card takes hundreds of replays of tens of thousands of entries, so that this one loop decides how
long an answer takes. `allocator.CachingAllocator` and `addresses.Addresses` say what it must do, and the tests hold the two
against each other. Numba compiles it when it is first called and keeps the result on disk, beside this file or, where that
cannot be written, where `NUMBA_CACHE_DIR` or the user's cache folder is.

Sizes and addresses are in units of 512 bytes (allocator.MIN_BLOCK_BYTES). Blocks are numbered, and what is known of one
stands at its number in several arrays; so do the regions of the driver's address space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

from whichgpu import addresses

Numbers = NDArray[np.int64]
Pool = NDArray[np.int32]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

UNIT_BYTES = 512
NO_LIMIT_BYTES = 1 << 62  # also: nothing was refused
NONE = -1  # no such block, entry or slot

_SMALL = (1 << 20) // UNIT_BYTES  # largest request of the small pool
_SMALL_SEGMENT = (2 << 20) // UNIT_BYTES
_LARGE_SEGMENT = (20 << 20) // UNIT_BYTES
_MIN_LARGE = (10 << 20) // UNIT_BYTES  # from here on a request gets a segment of its own
_LARGE_STEP = (2 << 20) // UNIT_BYTES

_PAGE = addresses.PAGE_BYTES // UNIT_BYTES
_LAST_PAGE = addresses.LAST_PAGE
_REGION_PAGES = addresses.REGION_PAGES
_LOADING_PAGES = addresses.LOADING_PAGES
_CUBLAS_PAGES = addresses.CUBLAS_PAGES
_HOLES = addresses.CONTEXT_HOLES


class Entries(NamedTuple):
    """An `allocator.CheckedProgram`."""

    program: Numbers
    loads: Numbers  # positions in order, before which the process loads something
    group_of: Numbers  # by slot: the group that is done without where there is no room for it, or `NONE`
    group_at: Numbers  # where in `group_slots` each group begins, and the end
    group_slots: Numbers
    instead_of: Numbers  # by slot: the one without which it is taken, or `NONE`


class Outcome(NamedTuple):
    """What became of a program; positions are indices into it, `NONE` where there is none."""

    failed_at: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_at: int
    peak_reserved_at: int
    released_cache: int
    reserved_bytes: int
    allocated_bytes: int
    refused_bytes: int  # the smallest sum of segments that the limit refused; `NO_LIMIT_BYTES` where it refused none


class _Kept(FunctionCache):
    """Numba's own cache on disk, but that what cannot be read, as another version left it, is made anew."""

    def load_overload(self, *signature: Any) -> Any:
        """What was compiled earlier; None if that has to be done now."""
        cache: Any = super()  # Numba has no types there
        try:
            return cache.load_overload(*signature)
        except Exception:  # whatever unpickling does with what is damaged or speaks of what is no more
            cache.flush()
            return None


def _compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    made: Any = numba.njit(function)
    # RuntimeError: there is no folder that can be written, and it is compiled anew in each process
    with contextlib.suppress(RuntimeError):
        made._cache = cast("Any", _Kept)(function)  # what `cache=True` does
    return cast("Callable[Parameters, Result]", made)


# ---- the driver's address space: what `addresses.Addresses` does ------------------------------------------


class _Space(NamedTuple):
    """Holes and gaps in no order; regions by age. `counts` has how many there are of each."""

    hole_place: Numbers
    hole_pages: Numbers
    hole_region: Numbers
    gap_place: Numbers
    gap_pages: Numbers
    region_place: Numbers
    region_pages: Numbers
    counts: Numbers


_N_HOLES, _N_GAPS, _N_REGIONS, _LOADED = 0, 1, 2, 3


@_compiled
def _new_space(segments: int) -> _Space:
    """As a new context finds it, with room for so many segments ever made."""
    room = 2 * segments + 8
    space = _Space(
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.zeros(4, np.int64),
    )
    for place, pages in _HOLES:
        _add_region(space, _LAST_PAGE + place, pages)
    space.gap_place[0], space.gap_pages[0] = 0, _LAST_PAGE
    space.counts[_N_GAPS] = 1
    return space


@_compiled
def _add_region(space: _Space, place: int, pages: int) -> None:
    """A new region, all of it one hole, which is the last one."""
    region, hole = space.counts[_N_REGIONS], space.counts[_N_HOLES]
    space.region_place[region], space.region_pages[region] = place, pages
    space.hole_place[hole], space.hole_pages[hole], space.hole_region[hole] = place, pages, region
    space.counts[_N_REGIONS] += 1
    space.counts[_N_HOLES] += 1


@_compiled
def _drop_hole(space: _Space, hole: int) -> None:
    last = space.counts[_N_HOLES] - 1
    space.hole_place[hole] = space.hole_place[last]
    space.hole_pages[hole] = space.hole_pages[last]
    space.hole_region[hole] = space.hole_region[last]
    space.counts[_N_HOLES] = last


@_compiled
def _drop_gap(space: _Space, gap: int) -> None:
    last = space.counts[_N_GAPS] - 1
    space.gap_place[gap] = space.gap_place[last]
    space.gap_pages[gap] = space.gap_pages[last]
    space.counts[_N_GAPS] = last


@_compiled
def _place(space: _Space, pages: int) -> tuple[int, int]:
    """The page where a new segment begins, and its region."""
    found = -1
    for hole in range(space.counts[_N_HOLES]):
        if space.hole_pages[hole] < pages:
            continue
        if found >= 0:
            newer = space.hole_region[hole] - space.hole_region[found]
            smaller = space.hole_pages[found] - space.hole_pages[hole]
            if newer < 0 or (not newer and smaller < 0):
                continue
            if not newer and not smaller and space.hole_place[hole] > space.hole_place[found]:
                continue
        found = hole
    if found < 0:
        _new_region(space, -(-pages // _REGION_PAGES) * _REGION_PAGES)
        found = space.counts[_N_HOLES] - 1
    place, region = space.hole_place[found], space.hole_region[found]
    space.hole_place[found] += pages
    space.hole_pages[found] -= pages
    if not space.hole_pages[found]:
        _drop_hole(space, found)
    return place, region


@_compiled
def _new_region(space: _Space, pages: int) -> None:
    """A region at the upper end of the highest gap that has more room than that."""
    found = -1
    for gap in range(space.counts[_N_GAPS]):
        if space.gap_pages[gap] > pages and (found < 0 or space.gap_place[gap] > space.gap_place[found]):
            found = gap
    space.gap_pages[found] -= pages
    _add_region(space, space.gap_place[found] + space.gap_pages[found], pages)


@_compiled
def _give_back(space: _Space, place: int, pages: int, region: int) -> None:
    """Pages of a region are free again, and all of it may be given up."""
    hole = 0
    while hole < space.counts[_N_HOLES]:
        if space.hole_region[hole] == region:
            if space.hole_place[hole] + space.hole_pages[hole] == place:
                place = space.hole_place[hole]
                pages += space.hole_pages[hole]
                _drop_hole(space, hole)
                continue
            if space.hole_place[hole] == place + pages:
                pages += space.hole_pages[hole]
                _drop_hole(space, hole)
                continue
        hole += 1
    if region < len(_HOLES) or pages < space.region_pages[region]:
        hole = space.counts[_N_HOLES]
        space.hole_place[hole], space.hole_pages[hole], space.hole_region[hole] = place, pages, region
        space.counts[_N_HOLES] = hole + 1
        return
    gap = 0
    while gap < space.counts[_N_GAPS]:
        if space.gap_place[gap] + space.gap_pages[gap] == place:
            place = space.gap_place[gap]
            pages += space.gap_pages[gap]
            _drop_gap(space, gap)
        elif space.gap_place[gap] == place + pages:
            pages += space.gap_pages[gap]
            _drop_gap(space, gap)
        else:
            gap += 1
    gap = space.counts[_N_GAPS]
    space.gap_place[gap], space.gap_pages[gap] = place, pages
    space.counts[_N_GAPS] = gap + 1


@_compiled
def _load(space: _Space) -> None:
    """See `Addresses.load`."""
    if space.counts[_LOADED]:
        _place(space, _CUBLAS_PAGES)
        return
    space.counts[_LOADED] = 1
    region = len(_HOLES) - 1
    _give_back(space, _LAST_PAGE + _HOLES[region][0] - _LOADING_PAGES, _LOADING_PAGES, region)


# ---- blocks and the two pools: what `allocator.CachingAllocator` does -------------------------------------


class _Blocks(NamedTuple):
    """All blocks; `region` is told of the first of each segment only."""

    size: Numbers
    address: Numbers
    before: Numbers
    after: Numbers
    region: Numbers
    is_free: NDArray[np.bool_]
    spare: Numbers  # numbers that are not used, the next one last


@_compiled
def _new_blocks(count: int) -> _Blocks:
    return _Blocks(
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.zeros(count, np.bool_),
        np.arange(count - 1, -1, -1),
    )


# A pool is an array of its free blocks in the order of best fit: by size, then by address.


@_compiled
def _rank(pool: Pool, low: int, high: int, blocks: _Blocks, size: int, address: int) -> int:
    """Where, from `low` up to `high`, a free block of a size and address stands or would stand."""
    while low < high:
        middle = (low + high) >> 1
        block = pool[middle]
        if blocks.size[block] < size or (blocks.size[block] == size and blocks.address[block] < address):
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def _find(pool: Pool, count: int, blocks: _Blocks, block: int) -> int:
    return _rank(pool, 0, count, blocks, blocks.size[block], blocks.address[block])


@_compiled
def _insert(pool: Pool, count: int, blocks: _Blocks, block: int) -> None:
    at = _find(pool, count, blocks, block)
    for place in range(count, at, -1):
        pool[place] = pool[place - 1]
    pool[at] = block
    blocks.is_free[block] = True


@_compiled
def _remove(pool: Pool, count: int, blocks: _Blocks, at: int) -> None:
    blocks.is_free[pool[at]] = False
    for place in range(at, count - 1):
        pool[place] = pool[place + 1]


@_compiled
def _replace_by_smaller(pool: Pool, blocks: _Blocks, at: int, block: int) -> None:
    """What stands somewhere is free no more, but a block that comes before it in the order."""
    blocks.is_free[pool[at]] = False
    to = _rank(pool, 0, at, blocks, blocks.size[block], blocks.address[block])
    for place in range(at, to, -1):
        pool[place] = pool[place - 1]
    pool[to] = block
    blocks.is_free[block] = True


@_compiled
def _replace_by_larger(pool: Pool, count: int, blocks: _Blocks, at: int, block: int) -> None:
    """What stands somewhere is free no more, but a block that comes after it in the order."""
    blocks.is_free[pool[at]] = False
    to = _rank(pool, at + 1, count, blocks, blocks.size[block], blocks.address[block]) - 1
    for place in range(at, to):
        pool[place] = pool[place + 1]
    pool[to] = block
    blocks.is_free[block] = True


@_compiled
def _segment_size(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _MIN_LARGE:
        return _LARGE_SEGMENT
    return -(-size // _LARGE_STEP) * _LARGE_STEP


@_compiled
def _release(pool: Pool, count: int, blocks: _Blocks, spares: int, space: _Space) -> tuple[int, int, int]:
    """Give a pool's segments of one free block back: free blocks left, spare numbers, and what was given back."""
    kept = released = 0
    for at in range(count):
        block = pool[at]
        if blocks.before[block] >= 0 or blocks.after[block] >= 0:
            pool[kept] = block
            kept += 1
            continue
        size = blocks.size[block]
        _give_back(space, blocks.address[block] // _PAGE, size // _PAGE, blocks.region[block])
        blocks.is_free[block] = False
        blocks.spare[spares] = block
        spares += 1
        released += size
    return kept, spares, released


@_compiled
def _run(entries: Entries, sizes: Numbers, limit_bytes: int) -> Outcome:
    program, loads = entries.program, entries.loads
    limit = limit_bytes // UNIT_BYTES
    blocks = _new_blocks(2 * len(sizes) + 2)
    spares = len(blocks.spare)
    space = _new_space(len(sizes) + len(loads))
    small, large = np.empty(len(blocks.spare), np.int32), np.empty(len(blocks.spare), np.int32)
    n_small = n_large = 0
    block_of = np.full(len(sizes), -1)
    skipped = np.zeros(len(sizes), np.bool_)
    requested = peak_requested = allocated = peak_allocated = reserved = peak_reserved = released_cache = 0
    failed_at = peak_at = reserved_at = -1
    refused = NO_LIMIT_BYTES // UNIT_BYTES
    loaded = 0
    for index in range(len(program)):
        entry = program[index]
        if entry > 0:
            slot = entry - 1
            if not sizes[slot] or skipped[slot]:
                continue
            first = entries.instead_of[slot]
            if first >= 0 and not skipped[first]:
                continue
            size = (sizes[slot] + UNIT_BYTES - 1) // UNIT_BYTES
            is_small = size <= _SMALL
            pool, count = (small, n_small) if is_small else (large, n_large)
            keep_unsplit_up_to = 0 if is_small else _SMALL
            at = _rank(pool, 0, count, blocks, size, 0)
            if at < count:
                block = pool[at]
            else:
                segment = _segment_size(size)
                while loaded < len(loads) and loads[loaded] <= index:
                    _load(space)
                    loaded += 1
                if reserved + segment > limit:
                    refused = min(refused, reserved + segment)
                    n_large, spares, released = _release(large, n_large, blocks, spares, space)
                    reserved -= released
                    n_small, spares, released = _release(small, n_small, blocks, spares, space)
                    reserved -= released
                    released_cache += 1
                    count = n_small if is_small else n_large
                    if reserved + segment > limit:
                        refused = min(refused, reserved + segment)
                        group = entries.group_of[slot]
                        if group >= 0:
                            for other in entries.group_slots[entries.group_at[group] : entries.group_at[group + 1]]:
                                if block_of[other] < 0:  # what is there already is given back as ever
                                    skipped[other] = True
                            continue
                        failed_at = index
                        break
                page, region = _place(space, segment // _PAGE)
                spares -= 1
                block = blocks.spare[spares]
                blocks.size[block], blocks.address[block], blocks.region[block] = segment, page * _PAGE, region
                blocks.before[block] = blocks.after[block] = -1
                reserved += segment
                if reserved > peak_reserved:
                    peak_reserved = reserved
                    reserved_at = index
            rest_size = blocks.size[block] - size
            if rest_size > keep_unsplit_up_to:
                spares -= 1
                rest = blocks.spare[spares]
                after = blocks.after[block]
                blocks.size[rest], blocks.address[rest] = rest_size, blocks.address[block] + size
                blocks.before[rest], blocks.after[rest] = block, after
                if after >= 0:
                    blocks.before[after] = rest
                blocks.after[block] = rest
                if at < count:
                    _replace_by_smaller(pool, blocks, at, rest)
                else:
                    _insert(pool, count, blocks, rest)
                    count += 1
                blocks.size[block] = size
            elif at < count:
                _remove(pool, count, blocks, at)
                count -= 1
            if is_small:
                n_small = count
            else:
                n_large = count
            block_of[slot] = block
            requested += sizes[slot]
            peak_requested = max(peak_requested, requested)
            allocated += blocks.size[block]
            if allocated > peak_allocated:
                peak_allocated = allocated
                peak_at = index
        elif entry < 0:
            slot = -entry - 1
            block = block_of[slot]
            if block < 0:  # of no size, or done without
                continue
            is_small = (sizes[slot] + UNIT_BYTES - 1) // UNIT_BYTES <= _SMALL
            pool, count = (small, n_small) if is_small else (large, n_large)
            requested -= sizes[slot]
            allocated -= blocks.size[block]
            before, after = blocks.before[block], blocks.after[block]
            joins_before = before >= 0 and blocks.is_free[before]
            at = NONE  # where in the pool one of them stands that it becomes one with
            if after >= 0 and blocks.is_free[after]:
                at = _find(pool, count, blocks, after)
                if joins_before:
                    _remove(pool, count, blocks, at)
                    count -= 1
                blocks.size[block] += blocks.size[after]
                blocks.spare[spares] = after
                spares += 1
                blocks.after[block] = blocks.after[after]
                if blocks.after[block] >= 0:
                    blocks.before[blocks.after[block]] = block
            if joins_before:
                at = _find(pool, count, blocks, before)
                blocks.size[before] += blocks.size[block]
                blocks.spare[spares] = block
                spares += 1
                blocks.after[before] = blocks.after[block]
                if blocks.after[block] >= 0:
                    blocks.before[blocks.after[block]] = before
                block = before
            if at >= 0:
                _replace_by_larger(pool, count, blocks, at, block)
            else:
                _insert(pool, count, blocks, block)
                count += 1
            if is_small:
                n_small = count
            else:
                n_large = count
        else:
            while loaded < len(loads) and loads[loaded] <= index:
                _load(space)
                loaded += 1
            n_large, spares, released = _release(large, n_large, blocks, spares, space)
            reserved -= released
            n_small, spares, released = _release(small, n_small, blocks, spares, space)
            reserved -= released
    return Outcome(
        failed_at,
        peak_reserved * UNIT_BYTES,
        peak_allocated * UNIT_BYTES,
        peak_requested,
        peak_at,
        reserved_at,
        released_cache,
        reserved * UNIT_BYTES,
        allocated * UNIT_BYTES,
        refused * UNIT_BYTES,
    )


# ---- from and to Python -------------------------------------------------------------------------------------


def as_arrays(
    program: Sequence[int],
    loads: Sequence[int],
    optional: Mapping[int, Collection[int]],
    instead_of: Mapping[int, int],
) -> Entries:
    """What an `allocator.CheckedProgram` consists of; slots may share what they stand for, which is then kept once.

    Raises ValueError where `optional` or `instead_of` names a slot that the program does not have.
    """
    entries = np.array(program, np.int64)
    slots = int(np.abs(entries).max(initial=0))
    groups = {id(members): members for members in optional.values()}
    numbers = {key: number for number, key in enumerate(groups)}
    group_at = np.cumsum([0, *map(len, groups.values())], dtype=np.int64)
    group_slots = np.array([slot for members in groups.values() for slot in members], np.int64)
    named = (*optional, *instead_of, *instead_of.values())
    if max(group_slots.max(initial=-1), max(named, default=-1)) >= slots:
        raise ValueError("what is optional names a slot that the program does not have")
    group_of = np.full(slots, NONE, np.int64)
    for slot, members in optional.items():
        group_of[slot] = numbers[id(members)]
    others = np.full(slots, NONE, np.int64)
    for slot, other in instead_of.items():
        others[slot] = other
    return Entries(entries, np.array(loads, np.int64), group_of, group_at, group_slots, others)


@_compiled
def uses_slots_once(program: Numbers, slots: int) -> bool:
    """Whether a program allocates every slot at most once, and frees it at most once and after that."""
    state = np.zeros(slots, np.int8)  # 1: allocated, 2: freed
    for entry in program:
        if entry > 0:
            if state[entry - 1] != 0:
                return False
            state[entry - 1] = 1
        elif entry < 0:
            if state[-entry - 1] != 1:
                return False
            state[-entry - 1] = 2
    return True


@_compiled
def _most_requested(program: Numbers, sizes: Numbers) -> int:
    now = most = 0
    for entry in program:
        if entry > 0:
            now += sizes[entry - 1]
            most = max(most, now)
        elif entry < 0:
            now -= sizes[-entry - 1]
    return most


def most_requested_bytes(entries: Entries, sizes: Sequence[int] | Numbers) -> int:
    """The largest sum of what is alive at once, not rounded."""
    return int(_most_requested(entries.program, np.asarray(sizes, np.int64)))


def replay(entries: Entries, sizes: Sequence[int] | Numbers, limit_bytes: int | None) -> Outcome:
    """Run a program as `allocator.replay` describes it, which has checked all of this."""
    limit = NO_LIMIT_BYTES if limit_bytes is None else min(limit_bytes, NO_LIMIT_BYTES)
    return Outcome(*map(int, _run(entries, np.asarray(sizes, np.int64), limit)))


def compile_now() -> None:
    """Do what the first replay would wait for: it takes seconds where no earlier process did it, and a moment elsewhere."""
    nothing = as_arrays((), (), {}, {})
    uses_slots_once(nothing.program, 0)
    most_requested_bytes(nothing, ())
    replay(nothing, (), None)
