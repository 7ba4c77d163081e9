"""The search for the largest batch: what it returns was run, and it ends, whatever memory does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.bench_search import Guess, Result, Search, Seen, line_guess

LIMIT = 11 << 30


def run(search: Search, attempt: Callable[[int], Result], memory: Callable[[int], int] = lambda _: 1) -> list[int]:
    """Search to the end; the batch sizes that were tried."""
    tried: list[int] = []
    while (size := search.next()) is not None:
        assert size not in tried
        tried.append(size)
        result = attempt(size)
        peak = memory(size) if result == "fits" else None
        search.tell(size, result, peak, peak)
        assert len(tried) < 150
    return tried


def under(memory: Callable[[int], int], limit: int = LIMIT) -> Callable[[int], Result]:
    """Attempts on a card with so much memory."""
    return lambda size: "fits" if memory(size) <= limit else "too large"


def predicted(memory: Callable[[int], int], limit: int = LIMIT) -> Guess:
    """A guess by a model with a memory function of its own, corrected by what was measured."""

    def guess(fits: Sequence[Seen]) -> Sequence[int]:
        shift = 0
        if fits:
            assert fits[-1].allocated_bytes is not None
            shift = fits[-1].allocated_bytes - memory(fits[-1].batch_size)
        low, high = 0, MAX_BATCH_SIZE + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if memory(middle) + shift <= limit else (low, middle)
        return (low,)

    return guess


def answer_is_proved(search: Search, attempt: Callable[[int], Result], tried: list[int], maximum: int) -> None:
    """What was found was run and fits, and the next was run and does not."""
    found = search.largest
    assert search.exact
    if found:
        assert found in tried
        assert "fits" == attempt(found)
    if found < maximum:
        assert found + 1 in tried
        assert "fits" != attempt(found + 1)


affine = st.tuples(st.integers(0, 12 << 30), st.integers(0, 1 << 31))


@given(affine=affine, start=st.one_of(st.none(), st.integers(0, MAX_BATCH_SIZE)), maximum=st.integers(1, 100_000))
@example(affine=(1 << 30, 80 << 20), start=129, maximum=MAX_BATCH_SIZE)
@example(affine=(1 << 30, 0), start=None, maximum=MAX_BATCH_SIZE)
def test_monotone_memory(affine: tuple[int, int], start: int | None, maximum: int) -> None:
    """For any affine memory and any first guess the exact largest batch is found and proved."""

    def memory(size: int) -> int:
        return affine[0] + affine[1] * size

    attempt = under(memory)
    search = Search(None if start is None else lambda _: (start,), maximum=maximum)
    tried = run(search, attempt, memory)
    answer_is_proved(search, attempt, tried, maximum)
    assert max((n for n in (search.largest,) if n), default=0) == min(
        (LIMIT - affine[0]) // affine[1]
        if affine[1] and affine[0] <= LIMIT
        else (maximum if affine[0] <= LIMIT else 0),
        maximum,
    )


@given(
    fits=st.sets(st.integers(1, 400)),
    always=st.integers(0, 60),
    start=st.one_of(st.none(), st.integers(0, 500)),
    seed=st.integers(0, 7),
)
def test_memory_that_is_not_monotone(fits: set[int], always: int, start: int | None, seed: int) -> None:
    """Whatever fits and does not: what is returned was run and fits, and the next was run and does not."""

    def attempt(size: int) -> Result:
        return "fits" if size <= always or size in fits else "too large"

    def memory(size: int) -> int:
        return (size * 2654435761 + seed) % 997  # peaks that mislead

    guess = line_guess(997) if start is None else (lambda _: (start,))
    search = Search(guess)
    answer_is_proved(search, attempt, run(search, attempt, memory), MAX_BATCH_SIZE)


@given(capacity=st.integers(1, MAX_BATCH_SIZE), start=st.integers(1, MAX_BATCH_SIZE))
def test_a_guess_that_never_learns(capacity: int, start: int) -> None:
    """A guess that always says that there is no more does not make the search crawl upwards one by one."""

    def stubborn(fits: Sequence[Seen]) -> Sequence[int]:
        return (fits[-1].batch_size if fits else start,)

    search = Search(stubborn)
    tried = run(search, lambda size: "fits" if size <= capacity else "too large")
    assert capacity == search.largest
    assert len(tried) <= 90


def test_a_line_that_is_past_its_limit_already_says_nothing_about_far_ahead() -> None:
    """Where memory grows and is nearly used up, no guess takes it for memory that does not grow."""

    def seen(batch_size: int, peak: int) -> Seen:
        return Seen(batch_size=batch_size, result="fits", allocated_bytes=peak, reserved_bytes=peak)

    assert [9, 17] == line_guess(1000)([seen(1, 984), seen(2, 985)])
    assert [64, 64] == line_guess(1000)([seen(1, 985), seen(2, 985)])


@given(capacity=st.integers(0, MAX_BATCH_SIZE), start=st.one_of(st.none(), st.integers(0, MAX_BATCH_SIZE)))
def test_powers_of_two(capacity: int, start: int | None) -> None:
    """With `power_of_two` only powers are tried, and the largest that fits is proved by the next power."""

    def attempt(size: int) -> Result:
        return "fits" if size <= capacity else "too large"

    search = Search(None if start is None else lambda _: (start,), power_of_two=True)
    tried = run(search, attempt)
    assert (1 << capacity.bit_length()) >> 1 == search.largest
    assert all(size & (size - 1) == 0 for size in tried)
    assert search.exact
    assert search.largest == MAX_BATCH_SIZE or max(2 * search.largest, 1) in tried


@given(
    base=st.integers(0, 2 << 30),
    per_sample=st.integers(40 << 20, 400 << 20),
    base_error=st.floats(-0.02, 0.02),
    sample_error=st.floats(-0.02, 0.02),
)
@example(base=0, per_sample=96812788, base_error=0.0, sample_error=-0.01953125)
def test_a_good_prediction_needs_few_attempts(
    base: int, per_sample: int, base_error: float, sample_error: float
) -> None:
    """With a prediction within 2 % of affine memory, at most five attempts are made."""

    def memory(size: int) -> int:
        return base + per_sample * size

    def model(size: int) -> int:
        return int(base * (1 + base_error) + per_sample * (1 + sample_error) * size)

    assert len(run(Search(predicted(model)), under(memory), memory)) <= 5


def test_the_median_is_three_attempts() -> None:
    """Over predictions from 1.5 % too low to 1.5 % too high, the median is three attempts, and an exact one takes two."""

    def memory(size: int) -> int:
        return (1 << 30) + (80 << 20) * size

    counts = []
    for error in range(-15, 16):

        def model(size: int, error: int = error) -> int:
            return memory(size) * (1000 + error) // 1000

        counts.append(len(run(Search(predicted(model)), under(memory), memory)))
    assert 2 == counts[15]
    assert 3 >= median(counts)
    assert 5 >= max(counts)


def test_a_batch_that_runs_out_of_memory_when_it_runs_for_longer_costs_one_more_attempt() -> None:
    """The batch below one that ran for a few steps only is tried next, whatever was tried above it."""
    search = Search(lambda _: (41,))
    assert [41, 42] == run(search, lambda size: "fits" if size <= 41 else "too large")
    search.tell(41, "too large", None, None)
    assert [40] == run(search, lambda size: "fits" if size <= 40 else "too large")
    assert (40, True) == (search.largest, search.exact)


def test_steps_below_a_refuted_guess_grow() -> None:
    """A guess that stays a little too high is not followed down one by one, as Conv. Seq2Seq under 48 GiB had it."""
    limit = 48 << 30

    def memory(size: int) -> int:
        return (48 << 30) - (1419 - size) * 35_756_100  # reserved; larger steps fail with less than the limit

    def guess(fits: Sequence[Seen]) -> Sequence[int]:
        return (
            (1386,) if not fits else (fits[-1].batch_size + (limit - memory(fits[-1].batch_size)) // 33_600_000, 1386)
        )

    tried = run(Search(guess), lambda size: "fits" if size <= 1416 else "too large", memory)
    assert 1417 in tried
    assert len(tried) <= 9


@pytest.mark.parametrize("largest", [1, 7, 129, 5000])
def test_without_a_prediction(largest: int) -> None:
    """Doubling and a line through what was measured need few attempts too."""

    def memory(size: int) -> int:
        return LIMIT // 10 + LIMIT * 9 // 10 * size // largest

    search = Search(line_guess(LIMIT))
    tried = run(search, under(memory), memory)
    assert largest == search.largest
    assert len(tried) <= 8


@pytest.mark.parametrize("usable", [0.95, 0.975, 0.99, 0.999])
@pytest.mark.parametrize("largest", [130, 982, 5000])
def test_without_a_prediction_there_is_no_crawling(largest: int, usable: float) -> None:
    """However much of the limit tensors can fill in the end, halving ends the search where nothing is predicted."""

    def memory(size: int) -> int:
        return int(usable * LIMIT * (0.03 + 0.97 * size / largest))

    search = Search(line_guess(LIMIT), first=32)
    tried = 0
    while (size := search.next()) is not None:
        tried += 1
        if size <= largest:
            allocated = memory(size)
            search.tell(size, "fits", allocated, min(int(1.2 * allocated), LIMIT))
        else:
            search.tell(size, "too large", None, None)
    assert (largest, True) == (search.largest, search.exact)
    assert tried <= 16


def test_the_maximum_is_tried_and_ends_the_search() -> None:
    """A step whose memory does not grow ends at the maximum, in a few attempts."""
    search = Search(line_guess(LIMIT), maximum=10_000)
    tried = run(search, lambda _: "fits", lambda _: 1 << 20)
    assert 10_000 == search.largest
    assert search.exact
    assert None is search.next_larger
    assert len(tried) <= 8


@pytest.mark.parametrize(("multiple", "start"), [(2, 129), (8, 129), (16, 128), (32, 1000), (2, 3)])
def test_steps_that_insist_on_multiples(multiple: int, start: int) -> None:
    """A step that refuses odd batches, or all but multiples of 8, gets the largest it accepts; the multiple is told."""

    def attempt(size: int) -> Result:
        return "refuses" if size % multiple else "fits" if size <= 1000 else "too large"

    search = Search(lambda _: (start,))
    run(search, attempt)
    assert 1000 // multiple * multiple == search.largest
    assert search.exact
    assert multiple == search.multiple


def test_a_step_that_refuses_one_sample() -> None:
    """Batch normalisation refuses a single sample: the answer is 0 where two do not fit, and 2 where they do."""
    for capacity, expected in ((1, 0), (2, 2), (3, 3)):
        search = Search(lambda _: (3,))
        run(search, lambda size, c=capacity: "refuses" if size == 1 else "fits" if size <= c else "too large")
        assert expected == search.largest


def test_a_step_that_refuses_everything() -> None:
    """A step that always raises is given up after a few attempts, and nothing is said to fit."""
    search = Search(lambda _: (129,))
    tried = run(search, lambda _: "refuses")
    assert 0 == search.largest
    assert len(tried) <= 9


def test_a_cuda_error_at_every_size() -> None:
    """When the first attempt fails for another reason than memory, one sample is tried next, and no more."""
    search = Search(lambda _: (129,))
    assert [129, 1] == run(search, lambda _: "fails")
    assert 0 == search.largest
    assert search.next_larger is not None
    assert "fails" == search.next_larger.result


def test_a_cuda_error_above_a_size() -> None:
    """Where large batches fail otherwise than by memory, the largest that runs is found, or the third failure ends it."""
    search = Search(lambda _: (129,))
    tried = run(search, lambda size: "fits" if size <= 129 else "fails")
    assert [129, 130] == tried
    assert 129 == search.largest
    search = Search(lambda _: (129,))
    tried = run(search, lambda size: "fits" if size <= 40 else "fails")
    assert 40 >= search.largest > 0
    assert not search.exact
    assert len(tried) <= 8


def test_what_is_known_is_not_tried_again() -> None:
    """With the results of an earlier search known, nothing is left to try, or only what is missing."""
    search = Search(lambda _: (500,))
    search.know(129, "fits", 1, 1)
    search.know(130, "too large", None, None)
    assert None is search.next()
    assert 129 == search.largest
    search = Search(lambda _: (129,))
    search.know(129, "fits", 1, 1)
    assert 130 == search.next()
    search = Search(lambda _: (129,), power_of_two=True)
    search.know(129, "fits", 1, 1)
    assert 128 == search.next()


def test_bad_bounds_are_refused() -> None:
    """A maximum or a start below 1 is a mistake of the caller."""
    with pytest.raises(ValueError, match="must be 1 or more"):
        Search(maximum=0)
    with pytest.raises(ValueError, match="must be 1 or more"):
        Search(first=0)
