"""The search where each probe is a trace: what it finds, and with how many."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu.search import largest_batch, lowest_edge

HIGHEST = 1 << 20


def searched(
    peak_bytes: Callable[[int], int], limit_bytes: int, known: tuple[int, ...] = (4, 8, 67)
) -> tuple[int, int]:
    """What is found where just the peak decides, and how many batch sizes that are not known were looked at."""
    seen: set[int] = set()

    def looked(size: int) -> int:
        seen.add(size)
        return peak_bytes(size)

    found = largest_batch(lambda size: looked(size) <= limit_bytes, looked, limit_bytes, known, HIGHEST)
    return found, len(seen - set(known))


@given(
    base=st.integers(0, 1000),
    slope=st.integers(0, 50),
    step=st.integers(1, 100),
    limit=st.integers(0, 10**6),
    known=st.lists(st.integers(1, 200), min_size=1, max_size=3, unique=True),
)
def test_what_is_found_fits_and_the_next_does_not(
    base: int, slope: int, step: int, limit: int, known: list[int]
) -> None:
    """Whatever the steps, the limit and what is known: it fits, the next one does not."""

    def peak(size: int) -> int:
        return base + slope * -(-size // step)

    found, _ = searched(peak, limit, tuple(known))
    assert found == 0 or peak(found) <= limit
    assert found == HIGHEST or peak(found + 1) > limit


@given(peaks=st.dictionaries(st.integers(1, 300), st.integers(0, 1000)), limit=st.integers(0, 1000))
def test_peaks_without_any_order_end_the_search_too(peaks: dict[int, int], limit: int) -> None:
    """Memory that goes up and down has more than one answer; one of them is found."""

    def peak(size: int) -> int:
        return peaks.get(size, 2000 if size > 300 else 500)

    found, _ = searched(peak, limit)
    assert found == 0 or peak(found) <= limit
    assert peak(found + 1) > limit


@pytest.mark.parametrize(
    ("peak_bytes", "limit_bytes", "most"),
    [
        (lambda size: 500 + 7 * size, 7 * 300 + 500, 3),
        (lambda size: 500 + 7 * -(-size // 16) * 16, 7 * 300 + 500, 9),
        (lambda size: 500 + 7 * -(-size // 48) * 48, 7 * 540_000 + 500, 20),
        (lambda size: 500 + size * size, 1_000_000, 12),
        (lambda size: 10**9, 1000, 3),
    ],
)
def test_few_batch_sizes_are_traced(peak_bytes: Callable[[int], int], limit_bytes: int, most: int) -> None:
    """A straight line takes two or three probes, steps about as many as halving a step."""
    assert searched(peak_bytes, limit_bytes)[1] <= most


@given(found=st.integers(1, 3000), failing=st.sets(st.integers(1, 3000), max_size=5))
def test_the_lowest_edge_fits_and_the_next_does_not(found: int, failing: set[int]) -> None:
    """Whatever fails below what was found, the answer fits, is no larger, and is an edge unless it is what was found."""

    def fits(size: int) -> bool:
        return size not in failing

    failing = {size for size in failing if size < found}
    edge = lowest_edge(fits, found)
    assert 0 <= edge <= found
    assert edge == 0 or fits(edge)
    assert edge == found or not fits(edge + 1)


def test_a_wide_gap_below_is_found() -> None:
    """A step that runs up to 111, fails from 112 to 119 and runs again at 128 is answered with 111."""
    assert 111 == lowest_edge(lambda size: size < 112 or size > 119, 128)


def test_the_lowest_of_many_edges_is_looked_for_again() -> None:
    """Where fitting and failing sizes alternate, an edge that was found is looked below once more."""
    failing = {2836, 2837, *range(2841, 2846), *range(2849, 2854), 2857, 2858}
    assert 2835 == lowest_edge(lambda size: size not in failing and size < 2900, 2899, 1941)
