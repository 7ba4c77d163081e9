"""The line through a few batch sizes, for steps that do not follow theirs; and sizes that grow with its square."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import MIB, TRAINING, Call, Made, make_trace

from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.extrapolation import LineModel
from whichgpu.memory import HELD, MemoryModel
from whichgpu.scaling import SQUARE_CHECK, Scaled, Single, scaling
from whichgpu.trace import Trace

HOPPER = (9, 0)


def line_model(calls: tuple[Call, ...] = TRAINING) -> LineModel:
    """A line through batch sizes 1, 2 and 3 of a program."""
    return LineModel(lambda n: Single(make_trace(calls, n)), HOPPER, (1, 2, 3))


def exact_model(calls: tuple[Call, ...] = TRAINING) -> MemoryModel:
    """What the same program really takes at any batch size."""
    function = Scaled(make_trace(calls, 4), make_trace(calls, 8))
    return MemoryModel(lambda _: function, HOPPER)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2000))
def test_the_steep_line_is_on_the_safe_side(gibibytes: int) -> None:
    """For a program that does follow its batch size, the steep line never allows a batch that does not fit."""
    limit = gibibytes << 25

    largest = line_model().largest_steep_batch(limit)

    assert largest <= exact_model().largest_batch(limit)


def test_fits_agrees_with_the_largest_batch() -> None:
    """The largest batch fits and the next one does not; away from the traced batch sizes."""
    model, limit = line_model(), 16 << 30
    largest = model.largest_batch(limit)

    assert 3 < largest < MAX_BATCH_SIZE
    assert model.fits(largest, limit)
    assert not model.fits(largest + 1, limit)


def test_the_steep_line_is_never_below_the_middle_one() -> None:
    """A batch that fits likely fits too."""
    model = line_model()
    for batch_size in (1, 2, 3, 4, 100, 5000):
        assert model.replay(batch_size).peak_reserved_bytes <= model.steep_bytes(batch_size)


def test_a_batch_size_that_was_asked_about_is_no_part_of_the_line() -> None:
    """It is answered from its own trace, and everything else as without it."""
    calls = (*TRAINING, Call((Made(0, 3 * MIB),)))
    plain = line_model(calls)
    asked = LineModel(lambda n: Single(make_trace(calls, n)), HOPPER, (1, 2, 3), also=(50,))

    assert exact_model(calls).replay(50) == asked.replay(50)
    assert plain.middle_bytes(50) == asked.middle_bytes(50) == plain.replay(50).peak_reserved_bytes
    assert plain.replay(40) == asked.replay(40)
    assert plain.steep_bytes(50) == asked.steep_bytes(50)


def test_the_middle_line_goes_through_what_was_traced() -> None:
    """Of a program that bends, traced peaks are on the line, and those between two of them lie between these."""
    calls = (*TRAINING, Call((Made(0),)))

    def bent(batch_size: int) -> Single:
        trace = make_trace(calls, batch_size)
        last = msgspec.structs.replace(trace.storages[-1], bytes=MIB * batch_size**2)
        return Single(msgspec.structs.replace(trace, storages=(*trace.storages[:-1], last)))

    model = LineModel(bent, HOPPER, (4, 8, 64))
    peaks = {n: MemoryModel(bent, HOPPER).replay(n).peak_reserved_bytes for n in (4, 8, 64)}

    assert peaks == {n: model.middle_bytes(n) for n in peaks}
    assert peaks[8] + (peaks[64] - peaks[8]) // 4 == model.middle_bytes(22)


def test_nothing_fits_in_nothing() -> None:
    """A limit below the weights allows not even batch size 1."""
    assert 0 == line_model().largest_batch(100 * MIB)


def test_shares_add_up_to_the_peak() -> None:
    """Between traced batch sizes and beyond, what is held adds up to the allocated peak."""
    model = line_model()
    for batch_size in (2, 5, 64):
        peak = model.peak(batch_size)

        assert set(HELD) == set(peak.held_bytes)
        assert model.replay(batch_size).peak_allocated_bytes == sum(peak.held_bytes.values())


def squared(batch_size: int) -> Trace:
    """A program one of whose storages holds every sample against every other one."""
    trace = make_trace((*TRAINING, Call((Made(0),), name="aten.mm.default")), batch_size)
    last = msgspec.structs.replace(trace.storages[-1], bytes=4 * batch_size**2 + 512)
    return msgspec.structs.replace(trace, storages=(*trace.storages[:-1], last))


def test_squares_are_followed_exactly() -> None:
    """Three traces give a size that grows with the square of the batch size, and a fourth one is asked to agree."""
    asked = []

    def trace_at(batch_size: int) -> Trace:
        asked.append(batch_size)
        return squared(batch_size)

    found = scaling(trace_at, (4, 8, 67))
    function = found.at(100)

    assert [4, 8, 67, SQUARE_CHECK] == asked
    assert found.affine
    assert isinstance(function, Scaled)
    assert function.curved
    assert [storage.bytes for storage in squared(100).storages] == function.storage_bytes(100)


def test_other_curves_are_not_taken_for_squares() -> None:
    """A size that grows with the third power is found out by the fourth trace."""

    def trace_at(batch_size: int) -> Trace:
        trace = squared(batch_size)
        last = msgspec.structs.replace(trace.storages[-1], bytes=4 * batch_size**3)
        return msgspec.structs.replace(trace, storages=(*trace.storages[:-1], last))

    found = scaling(trace_at, (4, 8, 67))

    assert not found.affine
    assert found.reason is not None
