"""The allocator model: exact sizes, properties on random programs, and what real cards recorded."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whichgpu.allocator import (
    EMPTY_CACHE,
    SMALL_BYTES,
    AllocatorConfig,
    Block,
    CachingAllocator,
    CheckedProgram,
    OutOfMemory,
    Replay,
    SegmentState,
    _replay_by_steps,
    get_ready,
    live_at,
    replay,
    round_size,
    segment_size,
)

MIB = 1 << 20
EXPANDABLE = AllocatorConfig(expandable_segments=True)
EXPANDABLE_CARD = AllocatorConfig(expandable_segments=True, limit="card")
CONFIGS = [
    AllocatorConfig(),
    AllocatorConfig(max_split_size_bytes=32 * MIB),
    EXPANDABLE,
    EXPANDABLE_CARD,
]
ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "tests" / "data" / "allocator").glob("*.json.gz"))

EDGES = [1, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 5 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1]
EDGES += [11 * MIB, 11 * MIB - 1000, 19 * MIB, 19 * MIB - 1000]  # leave about 1 MiB of a segment
request_sizes = st.one_of(
    st.integers(0, 3000),
    st.integers(0, 2 * MIB),
    st.integers(0, 48 * MIB),
    st.sampled_from(EDGES),
    st.integers(1, 40).map(lambda n: n * 2 * MIB),
)


@st.composite
def programs(draw: Any) -> tuple[list[int], list[int]]:
    """A random program of up to 120 entries, slots used again, in which every free has its allocation."""
    sizes = draw(st.lists(request_sizes, min_size=1, max_size=30))
    length = draw(st.integers(0, 120))
    slots = draw(st.lists(st.integers(1, len(sizes)), min_size=length, max_size=length))
    program: list[int] = []
    live: set[int] = set()
    for slot in slots:
        program.append(-slot if slot in live else slot)
        live ^= {slot}
    return program, sizes


def slots_once(program: list[int], sizes: list[int]) -> tuple[list[int], list[int]]:
    """The same program with a slot for every allocation."""
    renamed: dict[int, int] = {}
    entries, bytes_of = [], []
    for entry in program:
        if entry > 0:
            bytes_of.append(sizes[entry - 1])
            renamed[entry] = len(bytes_of)
            entries.append(len(bytes_of))
        else:
            entries.append(-renamed[-entry])
    return entries, bytes_of


@st.composite
def long_programs(draw: Any) -> tuple[list[int], list[int]]:
    """Some hundred entries of a few sizes, as training steps are, so that many free blocks have the same size."""
    sizes = draw(st.lists(request_sizes | st.sampled_from(EDGES), min_size=2, max_size=6))
    random = draw(st.randoms(use_true_random=False))
    program: list[int] = []
    live: list[int] = []
    bytes_of: list[int] = []
    for _ in range(draw(st.integers(100, 400))):
        if random.random() < min(0.9, len(live) / 40):
            program.append(-live.pop(random.randrange(len(live))))
        else:
            bytes_of.append(random.choice(sizes))
            live.append(len(bytes_of))
            program.append(len(bytes_of))
    return program, bytes_of


# How tight a limit is, in percent of the reserved peak without one: most of these force releases or failures.
tightness = st.one_of(st.none(), st.integers(20, 105), st.integers(70, 100), st.just(100))


def limit_of(case: tuple[list[int], list[int]], percent: int | None, config: AllocatorConfig) -> int | None:
    """The limit in bytes that a tightness stands for."""
    return None if percent is None else replay(*case, None, config).peak_reserved_bytes * percent // 100


def run(allocator: CachingAllocator, program: list[int], sizes: list[int]) -> dict[int, Block]:
    """Drive the class by hand; requests that run out of memory are skipped, with their frees."""
    live: dict[int, Block] = {}
    for entry in program:
        if entry < 0:
            if -entry in live:
                allocator.free(live.pop(-entry))
        else:
            try:
                live[entry] = allocator.malloc(sizes[entry - 1])
            except OutOfMemory:
                continue
    return live


def layout(allocator: CachingAllocator) -> list[list[tuple[int, int]]]:
    """(block bytes, requested bytes) of every segment, by address."""
    return [[(b.bytes, b.requested_bytes) for b in segment.blocks] for segment in allocator.snapshot()]


def check_consistent(segments: list[SegmentState], allocator: CachingAllocator) -> None:
    """Assert what must hold of every state: no gaps or overlaps, bytes conserved, counters true."""
    end = -1
    for segment in segments:
        assert segment.address >= end
        end = segment.address
        for block in segment.blocks:
            assert end == block.address
            assert block.bytes > 0
            assert block.bytes % 512 == 0
            assert block.requested_bytes <= block.bytes
            assert (block.requested_bytes > 0) == block.allocated
            end += block.bytes
        assert segment.address + segment.bytes == end
        pairs = zip(segment.blocks, segment.blocks[1:], strict=False)
        assert not any(not left.allocated and not right.allocated for left, right in pairs)
    blocks = [block for segment in segments for block in segment.blocks]
    assert allocator.reserved_bytes == sum(block.bytes for block in blocks)
    assert allocator.allocated_bytes == sum(block.bytes for block in blocks if block.allocated)
    assert allocator.requested_bytes == sum(block.requested_bytes for block in blocks)
    assert allocator.reserved_bytes >= allocator.allocated_bytes >= allocator.requested_bytes


# --- sizes at every rounding edge


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (511, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (1024, 1024, 2 * MIB),
        (1_048_575, 1_048_576, 2_097_152),
        (1_048_576, 1_048_576, 2_097_152),
        (1_048_577, 1_049_088, 20_971_520),
        (2_097_151, 2_097_152, 20_971_520),
        (2_097_152, 2_097_152, 20_971_520),
        (2_097_153, 2_097_664, 20_971_520),
        (10_484_736, 10_484_736, 20_971_520),
        (10_485_248, 10_485_248, 20_971_520),
        # rounding up to 512 bytes reaches kMinLargeAlloc, which is no longer below it
        (10_485_249, 10_485_760, 10_485_760),
        (10_485_759, 10_485_760, 10_485_760),
        (10_485_760, 10_485_760, 10_485_760),
        # from 10 MiB on the segment is the next multiple of 2 MiB; a rest of exactly 1 MiB or less stays
        (10_485_761, 10_486_272, 12_582_912),
        (11_534_335, 12_582_912, 12_582_912),
        (11_534_336, 12_582_912, 12_582_912),
        (11_533_824, 11_533_824, 12_582_912),
        (12_582_911, 12_582_912, 12_582_912),
        (12_582_912, 12_582_912, 12_582_912),
        (12_582_913, 12_583_424, 14_680_064),
        (20_971_519, 20_971_520, 20_971_520),
        (20_971_520, 20_971_520, 20_971_520),
        (20_971_521, 20_972_032, 23_068_672),
        (104_857_599, 104_857_600, 104_857_600),
        (104_857_601, 104_858_112, 106_954_752),
    ],
)
def test_first_request_gets_this_block_and_segment(requested: int, block: int, segment: int) -> None:
    """A request to an empty allocator gets exactly this block out of exactly this segment."""
    allocator = CachingAllocator()

    got = allocator.malloc(requested)

    assert (block, segment) == (got.size, allocator.reserved_bytes)
    assert (block, requested) == (allocator.allocated_bytes, allocator.requested_bytes)
    assert [segment] == allocator.segment_allocs


@given(st.integers(1, 1 << 40))
def test_helpers_agree_with_the_allocator(requested: int) -> None:
    """The published rounding functions say what the allocator does to a first request."""
    allocator = CachingAllocator()

    block = allocator.malloc(requested)

    assert segment_size(round_size(requested)) == allocator.reserved_bytes
    assert 0 <= block.size - round_size(requested) <= MIB


def test_request_of_nothing_allocates_nothing() -> None:
    """A request of 0 bytes reserves nothing and its free is allowed."""
    allocator = CachingAllocator(limit_bytes=0)

    allocator.free(allocator.malloc(0))

    assert (0, 0, []) == (allocator.reserved_bytes, allocator.peak_allocated_bytes, allocator.snapshot())


# --- splitting


@pytest.mark.parametrize(
    ("cached", "requested", "block"),
    [
        # small pool: any rest is split off, the smallest being 512 bytes
        (1024, 512, 512),
        (1024, 513, 1024),
        (MIB - 512, MIB - 1024, MIB - 1024),
        # large pool: a rest above 1 MiB is split off, one of exactly 1 MiB stays with the block
        (20 * MIB, 19 * MIB, 20 * MIB),
        (20 * MIB, 19 * MIB - 511, 20 * MIB),
        (20 * MIB, 19 * MIB - 512, 19 * MIB - 512),
        (30 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_cached_block_is_split_by_its_rest(cached: int, requested: int, block: int) -> None:
    """A cached free block is split exactly when the rest is worth keeping in its pool."""
    allocator = CachingAllocator()
    first = allocator.malloc(cached)
    allocator.malloc(512)  # keeps a small block from merging with the rest of its segment
    allocator.free(first)

    got = allocator.malloc(requested)

    assert (first.address, block) == (got.address, got.size)


def test_unsplit_rest_counts_as_allocated_but_not_as_requested() -> None:
    """allocated_bytes counts the whole block handed out, requested_bytes what was asked for."""
    allocator = CachingAllocator()

    allocator.malloc(11 * MIB)

    assert (12 * MIB, 11 * MIB, 12 * MIB) == (
        allocator.allocated_bytes,
        allocator.requested_bytes,
        allocator.reserved_bytes,
    )


def test_small_and_large_requests_do_not_share_segments() -> None:
    """A free block of the large pool never serves a small request, nor the other way round."""
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(2 * MIB))

    allocator.malloc(MIB)

    assert [20 * MIB, 2 * MIB] == allocator.segment_allocs


# --- best fit


def test_best_fit_takes_the_smallest_block_that_serves() -> None:
    """Of several free blocks the smallest sufficient one is taken, wherever it lies."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size * MIB) for size in (40, 24, 32)]
    for block in blocks:
        allocator.free(block)

    got = allocator.malloc(24 * MIB)

    assert blocks[1].address == got.address


def test_best_fit_breaks_ties_by_the_lowest_address() -> None:
    """Of free blocks of one size the one at the lowest address is taken, whatever was freed last."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(24 * MIB) for _ in range(3)]
    for index in (2, 1, 0):
        allocator.free(blocks[index])
    lowest = min(block.address for block in blocks)

    got = allocator.malloc(23 * MIB)

    assert lowest == got.address


def test_addresses_of_the_driver_can_be_given() -> None:
    """With a placing function the ties follow the driver's addresses instead of ascending ones."""
    addresses = iter([3 << 40, 1 << 40, 2 << 40])
    allocator = CachingAllocator(place=lambda _: next(addresses))
    for block in [allocator.malloc(24 * MIB) for _ in range(3)]:
        allocator.free(block)

    got = allocator.malloc(24 * MIB)

    assert 1 << 40 == got.address


# --- merging


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_neighbours_merge_in_any_order_of_freeing(order: tuple[int, int, int]) -> None:
    """Three blocks of one segment are one whole free block once all are freed."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(5 * MIB) for _ in range(3)]

    for index in order:
        allocator.free(blocks[index])

    assert [[(20 * MIB, 0)]] == layout(allocator)


def test_live_neighbour_stops_the_merge() -> None:
    """A block between two free ones keeps them apart."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])

    assert [[(5 * MIB, 0), (5 * MIB, 5 * MIB), (5 * MIB, 0), (5 * MIB, 5 * MIB)]] == layout(allocator)


# --- release and retry


def test_release_gives_back_whole_segments_of_both_pools_only() -> None:
    """At the limit, free segments of both pools go back, partly used ones stay, and the request is served."""
    allocator = CachingAllocator(limit_bytes=64 * MIB)
    unused_large = allocator.malloc(20 * MIB)
    unused_small = allocator.malloc(MIB)
    kept, gone = allocator.malloc(5 * MIB), allocator.malloc(5 * MIB)
    for block in (unused_large, unused_small, gone):
        allocator.free(block)

    allocator.malloc(40 * MIB)

    assert 1 == allocator.num_alloc_retries
    assert 60 * MIB == allocator.reserved_bytes
    assert [[(5 * MIB, 5 * MIB), (15 * MIB, 0)], [(40 * MIB, 40 * MIB)]] == sorted(layout(allocator))
    assert 5 * MIB == kept.size


def test_release_leaves_a_segment_whose_first_block_is_free() -> None:
    """A free block with a live neighbour behind it is not given back."""
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    first, _ = allocator.malloc(5 * MIB), allocator.malloc(15 * MIB)
    allocator.free(first)

    allocator.malloc(20 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(10 * MIB)

    assert [[(5 * MIB, 0), (15 * MIB, 15 * MIB)], [(20 * MIB, 20 * MIB)]] == sorted(layout(allocator))


def test_out_of_memory_keeps_live_blocks_and_releases_the_cache() -> None:
    """A request beyond the limit fails once the cache is released, and the rest lives on."""
    allocator = CachingAllocator(limit_bytes=64 * MIB)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(30 * MIB)

    with pytest.raises(OutOfMemory) as failure:
        allocator.malloc(34 * MIB + 1)

    assert (34 * MIB + 1, 30 * MIB, 64 * MIB) == (
        failure.value.requested_bytes,
        failure.value.reserved_bytes,
        failure.value.limit_bytes,
    )
    assert 34 * MIB == allocator.malloc(34 * MIB).size


def test_limit_is_met_exactly() -> None:
    """Segments may add up to the limit itself, not to a byte more."""
    assert replay([1, 2], [20 * MIB, 2 * MIB], 40 * MIB, AllocatorConfig()).fits
    assert not replay([1, 2], [20 * MIB, 2 * MIB], 40 * MIB - 1, AllocatorConfig()).fits


# --- max_split_size


def test_oversize_blocks_are_not_split_and_serve_only_near_sizes() -> None:
    """With max_split_size, a cached oversize block serves only requests nearly as large."""
    allocator = CachingAllocator(config=AllocatorConfig(max_split_size_bytes=32 * MIB))
    allocator.free(allocator.malloc(60 * MIB))

    assert 12 * MIB == allocator.malloc(12 * MIB).size
    assert 40 * MIB == allocator.malloc(40 * MIB).size
    assert 60 * MIB == allocator.malloc(42 * MIB).size
    assert [60 * MIB, 12 * MIB, 40 * MIB] == allocator.segment_allocs


def test_oversize_blocks_are_released_first_and_no_more_than_needed() -> None:
    """With max_split_size, an oversize block goes back before the whole cache does."""
    allocator = CachingAllocator(160 * MIB, AllocatorConfig(max_split_size_bytes=32 * MIB))
    for block in [allocator.malloc(size * MIB) for size in (20, 40, 90)]:
        allocator.free(block)

    allocator.malloc(50 * MIB)

    assert 0 == allocator.num_alloc_retries
    assert [20 * MIB, 40 * MIB, 50 * MIB] == sorted(segment.bytes for segment in allocator.snapshot())


def test_block_of_exactly_the_split_limit_is_oversize() -> None:
    """A cached block as large as max_split_size serves nothing below that size."""
    allocator = CachingAllocator(config=AllocatorConfig(max_split_size_bytes=32 * MIB))
    allocator.free(allocator.malloc(32 * MIB))

    allocator.malloc(30 * MIB)

    assert [32 * MIB, 30 * MIB] == allocator.segment_allocs


def test_too_few_oversize_blocks_lead_to_a_full_release() -> None:
    """Oversize blocks that together are smaller than the request do not spare the whole cache."""
    allocator = CachingAllocator(100 * MIB, AllocatorConfig(max_split_size_bytes=32 * MIB))
    allocator.malloc(20 * MIB)
    for block in [allocator.malloc(size * MIB) for size in (40, 4)]:
        allocator.free(block)

    allocator.malloc(60 * MIB)

    assert 1 == allocator.num_alloc_retries
    assert [20 * MIB, 60 * MIB] == sorted(segment.bytes for segment in allocator.snapshot())


# --- expandable segments


def test_expandable_segments_grow_by_pages_and_stay_in_one_piece() -> None:
    """The pools grow by 2 and 20 MiB pages in one run of addresses, and blocks are cut to size."""
    allocator = CachingAllocator(config=EXPANDABLE)

    for size in (512, 15 * MIB, 30 * MIB, MIB, MIB, 21 * MIB):
        allocator.malloc(size)

    # 15 MiB: one page; 30 MiB: the 5 left and two pages; 21 MiB: the 15 left and one page
    assert [2 * MIB, 20 * MIB, 40 * MIB, 2 * MIB, 20 * MIB] == allocator.segment_allocs
    assert [
        [(512, 512), (MIB, MIB), (MIB, MIB), (2 * MIB - 512, 0)],
        [(15 * MIB, 15 * MIB), (30 * MIB, 30 * MIB), (21 * MIB, 21 * MIB), (14 * MIB, 0)],
    ] == layout(allocator)
    assert [True, True] == [segment.expandable for segment in allocator.snapshot()]


def test_expandable_segments_split_off_512_bytes_in_the_large_pool_too() -> None:
    """With expandable segments no rest of a large block is handed out unused."""
    allocator = CachingAllocator(config=EXPANDABLE)

    assert 20 * MIB - 512 == allocator.malloc(20 * MIB - 512).size
    assert 20 * MIB == allocator.reserved_bytes


def test_expandable_segments_prefer_the_block_that_cannot_grow() -> None:
    """Best fit counts the end of the segment by what it can grow to, so an inner gap is taken first."""
    allocator = CachingAllocator(config=EXPANDABLE)
    inner, _ = allocator.malloc(15 * MIB), allocator.malloc(15 * MIB)
    allocator.free(inner)

    got = allocator.malloc(8 * MIB)

    assert inner.address == got.address


def test_expandable_segments_release_whole_free_pages() -> None:
    """At the limit only whole pages inside free blocks are unmapped; what fits no gap goes to the end."""
    allocator = CachingAllocator(120 * MIB, EXPANDABLE)
    blocks = [allocator.malloc(size * MIB) for size in (10, 75, 15)]
    allocator.free(blocks[1])

    got = allocator.malloc(80 * MIB)

    assert 1 == allocator.num_alloc_retries
    assert 120 * MIB == allocator.reserved_bytes
    assert [
        [(10 * MIB, 10 * MIB), (10 * MIB, 0)],
        [(5 * MIB, 0), (15 * MIB, 15 * MIB), (80 * MIB, 80 * MIB)],
    ] == layout(allocator)
    assert blocks[2].address + blocks[2].size == got.address


def test_expandable_segments_fill_an_unmapped_gap() -> None:
    """A request that fits into an unmapped gap is mapped there, joined with the free bytes around it."""
    allocator = CachingAllocator(config=EXPANDABLE)
    blocks = [allocator.malloc(size * MIB) for size in (10, 75, 15)]
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert [[(10 * MIB, 10 * MIB), (10 * MIB, 0)], [(5 * MIB, 0), (15 * MIB, 15 * MIB)]] == layout(allocator)

    got = allocator.malloc(40 * MIB)

    assert 10 * MIB == got.address - blocks[0].address
    assert [
        [(10 * MIB, 10 * MIB), (40 * MIB, 40 * MIB), (10 * MIB, 0)],
        [(5 * MIB, 0), (15 * MIB, 15 * MIB)],
    ] == (layout(allocator))


def test_expandable_segments_join_what_surrounds_a_filled_gap() -> None:
    """A gap mapped to its end is one free block with the free bytes before and behind it."""
    allocator = CachingAllocator(config=EXPANDABLE)
    blocks = [allocator.malloc(size * MIB) for size in (10, 35, 15)]
    allocator.free(blocks[1])
    allocator.empty_cache()

    got = allocator.malloc(25 * MIB)

    assert [[(10 * MIB, 10 * MIB), (25 * MIB, 25 * MIB), (10 * MIB, 0), (15 * MIB, 15 * MIB)]] == layout(allocator)
    assert blocks[0].address + 10 * MIB == got.address


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_neighbouring_unmapped_pages_count_as_one_gap(order: tuple[int, int]) -> None:
    """Pages unmapped at different times are one gap, which best fit sees as room to grow."""
    allocator = CachingAllocator(config=EXPANDABLE)
    # by pages: 15 + 5 | 20 | 20 | 14 + 6 | 20 | 20
    blocks = [allocator.malloc(size * MIB) for size in (15, 25, 20, 14, 26, 20)]
    for index in (*order, 4):
        allocator.free(blocks[index])
        allocator.empty_cache()

    got = allocator.malloc(4 * MIB)

    # 5 MiB that can grow by 40 are kept in favour of 6 that can grow by 20
    assert 60 * MIB == allocator.reserved_bytes
    assert 74 * MIB == got.address - blocks[0].address


def test_card_limit_fails_where_mapping_fails() -> None:
    """On a real card expandable segments run out when pages do, under a fraction before they ask."""
    program, sizes = [1, 2], [90 * MIB, 25 * MIB]

    card = replay(program, sizes, 120 * MIB, EXPANDABLE_CARD)
    fraction = replay(program, sizes, 120 * MIB, EXPANDABLE)

    # 10 MiB are left over in the fifth page, so 15 MiB more need one page, but a fraction asks for 26
    assert (True, 0) == (card.fits, card.released_cache)
    assert (False, 1) == (fraction.fits, fraction.released_cache)


# --- properties


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@settings(max_examples=60, deadline=None)
@given(case=programs(), percent=tightness)
def test_every_state_is_consistent(
    config: AllocatorConfig, case: tuple[list[int], list[int]], percent: int | None
) -> None:
    """After every event: no overlap, bytes conserved, counters true, limit kept; freed, all is whole."""
    program, sizes = case
    limit = limit_of(case, percent, config)
    allocator = CachingAllocator(limit, config)
    slack = 20 * MIB if config.expandable_segments and config.limit == "fraction" else 0
    live: dict[int, Block] = {}
    for entry in program:
        try:
            if entry > 0:
                live[entry] = allocator.malloc(sizes[entry - 1])
            elif -entry in live:
                allocator.free(live.pop(-entry))
        except OutOfMemory:
            pass
        check_consistent(allocator.snapshot(), allocator)
        assert limit is None or allocator.reserved_bytes <= limit + slack
        requested = sorted(sizes[slot - 1] for slot in live if sizes[slot - 1])
        blocks = [block for segment in allocator.snapshot() for block in segment.blocks]
        assert requested == sorted(block.requested_bytes for block in blocks if block.allocated)

    for block in live.values():
        allocator.free(block)

    assert (0, 0) == (allocator.allocated_bytes, allocator.requested_bytes)
    assert all(len(segment.blocks) == 1 for segment in allocator.snapshot())
    allocator.empty_cache()
    assert (0, []) == (allocator.reserved_bytes, allocator.snapshot())


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@settings(max_examples=60, deadline=None)
@given(case=programs(), percent=tightness)
def test_replay_is_the_class_driven_by_hand(
    config: AllocatorConfig, case: tuple[list[int], list[int]], percent: int | None
) -> None:
    """replay() reports what the class, driven event by event, passes through, and where."""
    program, sizes = case
    limit = limit_of(case, percent, config)
    allocator = CachingAllocator(limit, config)
    live: dict[int, Block] = {}
    failed_at, allocated, reserved = None, [], []
    for index, entry in enumerate(program):
        try:
            if entry > 0:
                live[entry] = allocator.malloc(sizes[entry - 1])
            else:
                allocator.free(live.pop(-entry))
        except OutOfMemory:
            failed_at = index
        allocated.append(allocator.allocated_bytes)
        reserved.append(allocator.peak_reserved_bytes)
        if failed_at is not None:
            break
    peak, peak_reserved = max(allocated, default=0), max(reserved, default=0)

    assert Replay(
        fits=failed_at is None,
        failed_at=failed_at,
        failed_request_bytes=None if failed_at is None else sizes[program[failed_at] - 1],
        peak_reserved_bytes=peak_reserved,
        peak_allocated_bytes=peak,
        peak_requested_bytes=allocator.peak_requested_bytes,
        peak_at=allocated.index(peak) if peak else None,
        peak_reserved_at=reserved.index(peak_reserved) if peak_reserved else None,
        released_cache=allocator.num_alloc_retries,
        final_reserved_bytes=allocator.reserved_bytes,
        final_allocated_bytes=allocator.allocated_bytes,
        same_from_bytes=allocator.allowed_bytes,
        same_below_bytes=allocator.refused_bytes,
    ) == replay(program, sizes, limit, config)


def by_class(program: list[int], sizes: list[int], limit: int | None) -> tuple[object, ...]:
    """What the class passes through with default settings: the fields of `Replay`."""
    allocator = CachingAllocator(limit)
    live: dict[int, Block] = {}
    failed_at = peak_at = reserved_at = None
    for index, entry in enumerate(program):
        allocated, reserved = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
        try:
            if entry > 0:
                live[entry] = allocator.malloc(sizes[entry - 1])
            elif entry == EMPTY_CACHE:
                allocator.empty_cache()
            else:
                allocator.free(live.pop(-entry))
        except OutOfMemory:
            failed_at = index
            break
        peak_at = index if allocator.peak_allocated_bytes > allocated else peak_at
        reserved_at = index if allocator.peak_reserved_bytes > reserved else reserved_at
    return (
        failed_at is None,
        failed_at,
        None if failed_at is None else sizes[program[failed_at] - 1],
        allocator.peak_reserved_bytes,
        allocator.peak_allocated_bytes,
        allocator.peak_requested_bytes,
        peak_at,
        reserved_at,
        allocator.num_alloc_retries,
        allocator.reserved_bytes,
        allocator.allocated_bytes,
        allocator.allowed_bytes,
        allocator.refused_bytes,
    )


@settings(max_examples=300, deadline=None)
@given(case=long_programs() | programs().map(lambda case: slots_once(*case)), percent=tightness)
def test_fast_replay_is_the_class(case: tuple[list[int], list[int]], percent: int | None) -> None:
    """With default settings and slots used once, replay() takes its fast loop, and every figure is the class's."""
    program, sizes = case
    limit = limit_of(case, percent, CONFIGS[0])

    assert by_class(program, sizes, limit) == msgspec.structs.astuple(replay(program, sizes, limit))
    assert replay(program, sizes, limit) == replay(CheckedProgram(program), sizes, limit)


@settings(max_examples=200, deadline=None)
@given(case=long_programs(), percent=tightness, drawn=st.data())
def test_what_a_process_loads_is_taken_at_its_place(
    case: tuple[list[int], list[int]], percent: int | None, drawn: st.DataObject
) -> None:
    """Wherever kernels and handles of cuBLAS are loaded, all at once or later, the fast loop says what the class says."""
    program, sizes = case
    limit = limit_of(case, percent, CONFIGS[0])
    loads = sorted(drawn.draw(st.lists(st.integers(0, len(program)), max_size=3)))  # two at once as well
    checked = CheckedProgram(program, loads)

    assert tuple(loads) == checked.loads
    assert replay(checked, sizes, limit) == _replay_by_steps(checked, sizes, limit, CONFIGS[0])


@settings(max_examples=100, deadline=None)
@given(case=programs().map(lambda case: slots_once(*case)), percent=tightness, drawn=st.data())
def test_a_program_may_empty_the_cache(
    case: tuple[list[int], list[int]], percent: int | None, drawn: st.DataObject
) -> None:
    """Wherever the cache is emptied, every figure is that of the class, and step by step they are the same again."""
    program, sizes = case
    limit = limit_of(case, percent, CONFIGS[0])
    for place in sorted(drawn.draw(st.sets(st.integers(0, len(program)))), reverse=True):
        program.insert(place, EMPTY_CACHE)
    found = by_class(program, sizes, limit)

    assert found == msgspec.structs.astuple(replay(CheckedProgram(program), sizes, limit))
    assert found == msgspec.structs.astuple(_replay_by_steps(program, sizes, limit, CONFIGS[0]))


def test_an_emptied_cache_keeps_what_is_alive() -> None:
    """Of three segments, the one with a live block stays; without emptying, all of them."""
    program, sizes = [1, 2, 3, -1, -3], [30 << 20, 1 << 10, 50 << 20]

    assert (82 << 20, 2 << 20) == (
        replay(program, sizes, None).final_reserved_bytes,
        replay([*program, EMPTY_CACHE], sizes, None).final_reserved_bytes,
    )


@pytest.mark.parametrize(("limit_mib", "peak_mib"), [(None, 50), (60, 50), (40, 30), (25, 0)])
def test_a_smaller_one_is_taken_where_the_first_is_done_without(limit_mib: int | None, peak_mib: int) -> None:
    """Of two workspaces the second is there only where the first has no room, in this and in later operators."""
    checked = CheckedProgram([1, 2, -1, -2, 3, 4, -3, -4], optional={0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)},
                             instead_of={1: 0, 3: 2})  # fmt: skip
    sizes, limit = [50 << 20, 30 << 20] * 2, None if limit_mib is None else limit_mib << 20
    result = replay(checked, sizes, limit)

    assert (True, peak_mib << 20, 0) == (result.fits, result.peak_allocated_bytes, result.final_allocated_bytes)
    assert result == _replay_by_steps(checked, sizes, limit, CONFIGS[0])


@settings(max_examples=100, deadline=None)
@given(case=programs().map(lambda case: slots_once(*case)), percent=tightness, drawn=st.data())
def test_what_is_taken_instead_is_the_same_step_by_step(
    case: tuple[list[int], list[int]], percent: int | None, drawn: st.DataObject
) -> None:
    """Whichever slots stand in for others, machine code and the class agree; those that never have to take nothing."""
    program, sizes = case
    if not sizes:
        return
    limit = limit_of(case, percent, CONFIGS[0])
    slots = st.sampled_from(range(len(sizes)))
    optional = {slot: (slot,) for slot in drawn.draw(st.sets(slots))}
    instead_of = drawn.draw(st.dictionaries(slots, slots))
    checked = CheckedProgram(program, optional=optional, instead_of=instead_of)
    result = replay(checked, sizes, limit)

    assert result == _replay_by_steps(checked, sizes, limit, CONFIGS[0])
    if result.fits and not result.released_cache:
        without = [0 if slot in instead_of else size for slot, size in enumerate(sizes)]
        assert result.peak_allocated_bytes == replay(program, without, limit).peak_allocated_bytes


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@settings(max_examples=60, deadline=None)
@given(case=programs().map(lambda case: slots_once(*case)), percent=tightness, drawn=st.data())
def test_what_is_done_without_is_as_if_never_asked_for(
    config: AllocatorConfig, case: tuple[list[int], list[int]], percent: int | None, drawn: st.DataObject
) -> None:
    """Optional slots never make a step fail, and those given up, with all they stand for, take nothing from then on."""
    program, sizes = case
    limit = limit_of(case, percent, config)
    slots = sorted(drawn.draw(st.sets(st.sampled_from(range(len(sizes)))))) if sizes else []
    optional = dict.fromkeys(slots, slots)  # one that fails gives all of them up
    result = replay(CheckedProgram(program, optional=optional), sizes, limit, config)
    plain = replay(program, sizes, limit, config)

    assert result.fits == (result.failed_at is None) == (result.failed_request_bytes is None)
    if result.failed_at is not None:
        assert program[result.failed_at] - 1 not in optional
        assert sizes[program[result.failed_at] - 1] == result.failed_request_bytes
    if plain.fits:
        assert plain == result
    if len(slots) == len(sizes):
        assert result.fits
    allocator = CachingAllocator(limit, config)
    live: dict[int, Block] = {}
    given_up: set[int] = set()
    for entry in program[: result.failed_at]:
        if entry > 0 and entry - 1 not in given_up:
            try:
                live[entry] = allocator.malloc(sizes[entry - 1])
            except OutOfMemory:
                given_up.update(optional[entry - 1])
        elif -entry in live:
            allocator.free(live.pop(-entry))
    assert allocator.peak_allocated_bytes == result.peak_allocated_bytes


@settings(max_examples=100, deadline=None)
@given(case=programs(), percent=tightness)
def test_names_of_slots_do_not_matter(case: tuple[list[int], list[int]], percent: int | None) -> None:
    """A slot for every allocation, which is replayed by the fast loop, or slots used again: the same."""
    limit = limit_of(case, percent, CONFIGS[0])

    assert replay(*case, limit) == replay(*slots_once(*case), limit)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@settings(max_examples=100, deadline=None)
@given(case=programs(), percent=tightness, data=st.data())
def test_a_replay_holds_for_its_range_of_limits(
    config: AllocatorConfig, case: tuple[list[int], list[int]], percent: int | None, data: Any
) -> None:
    """Every limit in the range that a replay names gives the very same result, and its own limit lies in it."""
    limit = limit_of(case, percent, config)
    result = replay(*case, limit, config)
    assert result.holds_under(limit)

    end = result.same_below_bytes if result.same_below_bytes is not None else 2 * result.same_from_bytes + 2
    other = data.draw(st.integers(result.same_from_bytes, end - 1))

    assert result.holds_under(other)
    assert result == replay(*case, other, config)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[1], EXPANDABLE_CARD], ids=str)
@settings(max_examples=60, deadline=None)
@given(case=programs(), more=st.integers(0, 50 * MIB))
def test_limit_that_is_never_reached_changes_nothing(
    config: AllocatorConfig, case: tuple[list[int], list[int]], more: int
) -> None:
    """A limit at or above the unlimited reserved peak gives the very same result."""
    unlimited = replay(*case, None, config)

    assert unlimited == replay(*case, unlimited.peak_reserved_bytes + more, config)


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[1], EXPANDABLE_CARD], ids=str)
@settings(max_examples=60, deadline=None)
@given(case=programs(), data=st.data())
def test_limit_below_what_is_alive_fails(config: AllocatorConfig, case: tuple[list[int], list[int]], data: Any) -> None:
    """A limit below the bytes requested at once cannot be kept, and the failure names its allocation."""
    program, sizes = case
    unlimited = replay(program, sizes, None, config)
    if not unlimited.peak_requested_bytes:
        assert replay(program, sizes, 0, config).fits
        return
    limit = data.draw(st.integers(0, unlimited.peak_requested_bytes - 1))

    limited = replay(program, sizes, limit, config)

    assert not limited.fits
    assert limited.failed_at is not None
    assert program[limited.failed_at] > 0
    assert sizes[program[limited.failed_at] - 1] == limited.failed_request_bytes


@settings(max_examples=100, deadline=None)
@given(case=programs(), percent=tightness)
def test_released_segments_are_whole(case: tuple[list[int], list[int]], percent: int | None) -> None:
    """Whatever a retry gives back, every live block keeps its address and its size."""
    program, sizes = case
    allocator = CachingAllocator(limit_of(case, percent, CONFIGS[0]))
    live: dict[int, tuple[Block, int, int]] = {}
    for entry in program:
        if entry > 0:
            try:
                block = allocator.malloc(sizes[entry - 1])
            except OutOfMemory:
                continue
            live[entry] = (block, block.address, block.size)
        elif -entry in live:
            allocator.free(live.pop(-entry)[0])
        for block, address, size in live.values():
            assert (address, size) == (block.address, block.size)


# --- which slots live


def test_live_slots_just_after_an_event() -> None:
    """live_at counts the event itself, knows slots used again and lists the oldest first."""
    program = [3, 1, -3, 2, 3]

    assert [[2], [2, 0], [0], [0, 1], [0, 1, 2]] == [live_at(program, index) for index in range(5)]


@given(case=programs(), data=st.data())
def test_live_slots_carry_the_requested_bytes(case: tuple[list[int], list[int]], data: Any) -> None:
    """The slots alive at an event add up to what the allocator then has on request."""
    program, sizes = case
    if not program:
        return
    index = data.draw(st.integers(0, len(program) - 1))
    allocator = CachingAllocator()
    run(allocator, program[: index + 1], sizes)

    assert allocator.requested_bytes == sum(sizes[slot] for slot in live_at(program, index))


# --- bad input


@pytest.mark.parametrize(
    ("program", "sizes", "message"),
    [
        ([1, -1, -1], [5], r"program\[2\] frees slot 0, which is not alive"),
        ([-1], [5], r"program\[0\] frees slot 0, which is not alive"),
        ([1, 1], [5], r"program\[1\] allocates slot 0, which is alive already"),
        ([1, -1, -1], [0], r"program\[2\] frees slot 0, which is not alive"),
        ([2], [5], r"program\[0\] is 2; .* there are 1 slots"),
        ([1, -2], [5], r"program\[1\] is -2; .* there are 1 slots"),
        ([1], [], r"program\[0\] is 1; .* there are 0 slots"),
        ([1], [5, -1], r"sizes\[1\] is -1; sizes are 0 or more bytes"),
    ],
)
def test_impossible_program_is_refused(program: list[int], sizes: list[int], message: str) -> None:
    """A program that no process could run raises a ValueError that points at the entry."""
    with pytest.raises(ValueError, match=message):
        replay(program, sizes, None)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([-1], "frees a slot that is not alive"),
        ([1, -1, -1], "frees a slot that is not alive"),
        ([-1, 1], "frees a slot that is not alive"),
        ([1, -1, 1], "allocates a slot twice"),
        ([2, 1, 2], "allocates a slot twice"),
    ],
)
def test_checked_program_uses_slots_once(program: list[int], message: str) -> None:
    """What is no program, or uses a slot again, is not accepted as checked."""
    with pytest.raises(ValueError, match=message):
        CheckedProgram(program)


def test_checked_program_needs_all_its_sizes() -> None:
    """A checked program replayed with too few sizes is refused like any other."""
    with pytest.raises(ValueError, match=r"program\[1\] is 3; .* there are 2 slots"):
        replay(CheckedProgram([1, 3]), [5, 5], None)
    with pytest.raises(ValueError, match=r"sizes\[1\] is -1"):
        replay(CheckedProgram([1]), [5, -1], None)


def test_optional_slots_are_those_of_the_program() -> None:
    """A slot that no entry allocates cannot be optional, nor stand for others."""
    for optional in ({1: [0]}, {0: [1]}):
        with pytest.raises(ValueError, match="names a slot that the program does not have"):
            CheckedProgram([1], optional=optional)


@pytest.mark.parametrize("terabytes", [1, 1000, 400_000])
def test_sums_are_exact_far_above_any_card(terabytes: int) -> None:
    """No sum is rounded or wraps around, in whatever loop, for sizes that no card will have."""
    bytes_of = terabytes << 40

    result = replay([1, 2, -1, 3], [bytes_of, bytes_of + 1, 512], None)

    assert (2 * bytes_of + 1, 2 * bytes_of + 512) == (result.peak_requested_bytes, result.peak_allocated_bytes)
    assert not replay([1, 2], [bytes_of, bytes_of], bytes_of).fits


def test_impossible_use_of_the_class_is_refused() -> None:
    """Double frees (also of merged blocks), negative sizes and limits, a tiny max_split_size are errors."""
    allocator = CachingAllocator()
    first, second = allocator.malloc(5), allocator.malloc(5)
    allocator.free(first)
    allocator.free(second)

    for block in (first, second):
        with pytest.raises(ValueError, match="not allocated"):
            allocator.free(block)
    with pytest.raises(ValueError, match="cannot allocate -1 bytes"):
        allocator.malloc(-1)
    with pytest.raises(ValueError, match="limit_bytes is -1"):
        CachingAllocator(-1)
    with pytest.raises(ValueError, match="max_split_size_bytes is 20971520"):
        CachingAllocator(config=AllocatorConfig(max_split_size_bytes=20 * MIB))


@pytest.mark.parametrize("index", [-1, 2])
def test_live_slots_outside_the_program_are_refused(index: int) -> None:
    """live_at refuses an index that is not in the program."""
    with pytest.raises(ValueError, match=f"index {index} is outside the program of 2 entries"):
        live_at([1, -1], index)


# --- recorded on real cards


def test_there_are_recorded_traces() -> None:
    """The model is held against real cards; without recordings this suite must not pass."""
    assert len(RECORDED) >= 2, "record some with tools/record_allocator.py --out tests/data/allocator on a GPU"


# The entries before which first kernels and cuBLAS were loaded, from the recorded addresses, where that matters.
LOADS = {"transformer_bf16": (60, 61)}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_recorded_trace_is_reproduced(path: Path) -> None:
    """What torch reported after a real training loop is what the model computes from its requests.

    Without the driver's addresses ties between free blocks of equal size are broken otherwise than on the card; a
    block's unsplit rest (up to 1 MiB) then counts as allocated in another place, and nothing else may differ.
    """
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    assert 1 == recorded["format"]
    config = AllocatorConfig(expandable_segments=recorded["expandable_segments"])

    program = CheckedProgram(recorded["program"], LOADS.get(path.name.removesuffix(".json.gz"), ()))

    result = replay(program, recorded["sizes"], recorded["limit_bytes"], config)

    assert recorded["oom"] is not result.fits
    if recorded["oom"]:
        assert len(recorded["program"]) - 1 == result.failed_at
    assert (
        recorded["peak_reserved_bytes"],
        recorded["peak_requested_bytes"],
        recorded["num_alloc_retries"],
    ) == (result.peak_reserved_bytes, result.peak_requested_bytes, result.released_cache)
    assert SMALL_BYTES >= abs(recorded["peak_allocated_bytes"] - result.peak_allocated_bytes)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_recorded_driver_calls_are_reproduced(path: Path) -> None:
    """At the addresses that the driver gave, the model asks for the same segments and reaches the same peaks."""
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    config = AllocatorConfig(expandable_segments=recorded["expandable_segments"])
    addresses = iter(recorded["segment_addresses"])
    allocator = CachingAllocator(recorded["limit_bytes"], config, place=lambda _: next(addresses, 0))

    run(allocator, recorded["program"], recorded["sizes"])

    assert recorded["segment_allocs"] == allocator.segment_allocs
    assert recorded["peak_allocated_bytes"] == allocator.peak_allocated_bytes
    assert recorded["peak_reserved_bytes"] == allocator.peak_reserved_bytes


def recorder() -> Any:
    """The recording tool as a module; it needs no torch to be imported."""
    spec = importlib.util.spec_from_file_location("record_allocator", ROOT / "tools" / "record_allocator.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@settings(max_examples=50, deadline=None)
@given(case=programs(), percent=tightness)
def test_recording_tool_restores_the_program(case: tuple[list[int], list[int]], percent: int | None) -> None:
    """A history as torch writes it becomes a program with the same outcome as the one that made it."""
    program, sizes = case
    limit = limit_of(case, percent, CONFIGS[0])
    allocator = CachingAllocator(limit)
    live: dict[int, Block] = {}
    entries: list[dict[str, Any]] = []
    for entry in program:
        size = sizes[abs(entry) - 1]
        if not size:
            continue
        if entry < 0:
            block = live.pop(-entry)
            for action in ("free_requested", "free_completed"):
                entries.append({"action": action, "addr": block.address, "size": size, "stream": 0})
            allocator.free(block)
            continue
        asked = len(allocator.segment_allocs)
        try:
            block = live[entry] = allocator.malloc(size)
        except OutOfMemory:
            entries.append({"action": "oom", "device_free": 0, "size": round_size(size), "stream": 0})
            break
        for segment in allocator.segment_allocs[asked:]:
            entries.append({"action": "segment_alloc", "addr": block.address, "size": segment, "stream": 0})
        entries.append({"action": "alloc", "addr": block.address, "size": size, "stream": 0})

    recorded = RECORD.program_of(entries)

    expected, result = replay(program, sizes, limit), replay(recorded["program"], recorded["sizes"], limit)
    assert expected.fits is not recorded["oom"]
    assert (expected.fits, expected.peak_reserved_bytes, expected.peak_allocated_bytes) == (
        result.fits,
        result.peak_reserved_bytes,
        result.peak_allocated_bytes,
    )
    assert allocator.segment_allocs == recorded["segment_allocs"]


RECORD = recorder()


REPLAY = "from whichgpu.allocator import replay\nprint(replay([1, -1], [1000], None).peak_reserved_bytes)"


def in_a_process(code: str, folder: Path) -> tuple[str, str]:
    """What a process prints that keeps compiled code in a folder."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    return done.stdout, done.stderr


def test_what_was_compiled_is_kept_and_made_anew_where_it_is_damaged(tmp_path: Path) -> None:
    """What an earlier process compiled is used; where that cannot be read it is compiled again, without a word."""
    assert ("2097152\n", "") == in_a_process(REPLAY, tmp_path)
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*.nb?")}
    assert any("_run" in file.name for file in kept)
    assert ("2097152\n", "") == in_a_process(REPLAY, tmp_path)
    assert kept == {file: file.read_bytes() for file in kept}

    for file in kept:
        file.write_bytes(b"damaged")

    assert ("2097152\n", "") == in_a_process(REPLAY, tmp_path)
    assert all(file.read_bytes() != b"damaged" for file in kept if file.suffix == ".nbi")


def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    """Without a folder for what is compiled, a replay compiles it for itself and says the same."""
    nowhere = "import numba.core.caching as caching\ncaching.CacheImpl._locator_classes = []\n"

    assert ("2097152\n", "") == in_a_process(nowhere + REPLAY, tmp_path)
    assert [] == [*tmp_path.iterdir()]


def test_getting_ready_needs_no_waiting() -> None:
    """What the first replay would wait for is begun once, in another thread."""
    get_ready()
    get_ready()

    assert 1 == get_ready.cache_info().misses
