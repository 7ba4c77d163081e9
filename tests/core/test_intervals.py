"""How sure a prediction is: the ends of an interval are in order, and a verdict says no more than they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic import MIB, TRAINING, Call, Made, always, make_trace, programs, scaled

from whichgpu import intervals
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import Estimate, Evidence, Interval, Spread, Verdict
from whichgpu.memory import MemoryModel
from whichgpu.scaling import Single
from whichgpu.trace import Op, Tensor, Trace

HOPPER = (9, 0)
ORDER = ("no", "tight", "likely", "fits")
SPREADS = st.builds(
    Spread,
    low=st.floats(0, 0.9),
    high=st.floats(0, 2),
    floor_bytes=st.sampled_from((0, 40 * MIB)),
)
ROOMS = st.integers(2 * MIB, 64 << 30)


def exact(calls: tuple[Call, ...] | list[Call], spread: Spread) -> Estimate:
    """An estimate of a program that follows its batch size."""
    return Estimate(MemoryModel(always(scaled(calls)), HOPPER), spread)


def line(spread: Spread) -> Estimate:
    """An estimate from a line through batch sizes 1, 2 and 3."""
    return Estimate(LineModel(lambda n: Single(make_trace(TRAINING, n)), HOPPER, (1, 2, 3)), spread)


def rank(verdict: Verdict) -> int:
    """How good a verdict is."""
    return ORDER.index(verdict)


@given(
    st.lists(st.integers(0, 1 << 40), min_size=3, max_size=3), st.lists(st.integers(0, 1 << 41), min_size=2, max_size=2)
)
def test_more_memory_is_never_worse_for_an_interval(ends: list[int], rooms: list[int]) -> None:
    """The verdict is monotone in memory, and the four verdicts follow the three ends."""
    low, likely, high = sorted(ends)
    interval = Interval(low_bytes=low, likely_bytes=likely, high_bytes=high)
    small, large = sorted(rooms)

    assert rank(interval.verdict(small)) <= rank(interval.verdict(large))
    assert sum(end <= small for end in (low, likely, high)) == rank(interval.verdict(small))


@settings(max_examples=60, deadline=None)
@given(programs(), SPREADS, st.integers(1, 500), ROOMS)
def test_the_ends_are_in_order_and_agree_with_the_verdict(
    calls: list[Call], spread: Spread, batch_size: int, room_bytes: int
) -> None:
    """Low <= likely <= high, and the interval in a room says what the verdict says."""
    estimate = exact(calls, spread)
    free, tied = estimate.interval(batch_size), estimate.interval(batch_size, room_bytes)

    for interval in (free, tied):
        assert interval.low_bytes <= interval.likely_bytes <= interval.high_bytes
    assert estimate.verdict(batch_size, room_bytes) == tied.verdict(room_bytes)


@settings(max_examples=60, deadline=None)
@given(programs(), SPREADS, st.integers(1, 500), ROOMS)
def test_a_batch_that_fits_likely_fits(calls: list[Call], spread: Spread, batch_size: int, room_bytes: int) -> None:
    """What "fits" is said of runs as predicted too, and with the memory that the spread leaves."""
    estimate = exact(calls, spread)
    verdict = estimate.verdict(batch_size, room_bytes)

    assert (verdict in ("fits", "likely")) == estimate.model.fits(batch_size, room_bytes)
    if verdict == "fits":
        assert estimate.model.fits(batch_size, spread.shrunk(room_bytes))


@settings(max_examples=60, deadline=None)
@given(programs(), ROOMS)
def test_the_power_of_two_fits(calls: list[Call], room_bytes: int) -> None:
    """It is a power of two that fits by itself, and no larger than the largest batch."""
    estimate = exact(calls, Spread(low=0.1, high=0.1))
    found = estimate.largest_power_of_two(room_bytes)

    assert 0 == found & (found - 1)
    assert 0 <= found <= estimate.largest_batch(room_bytes)
    assert found == 0 or estimate.verdict(found, room_bytes) in ("fits", "likely")


def test_a_power_of_two_that_does_not_fit_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not quite monotone: below a batch that fits there may be one that does not."""
    estimate = exact(TRAINING, Spread(low=0.1, high=0.1))
    fits = {300: True, 256: False, 128: True}
    monkeypatch.setattr(estimate.model, "largest_batch", lambda _: 300)
    monkeypatch.setattr(estimate.model, "replay", lambda size, _: SimpleNamespace(fits=fits[size]))

    assert 128 == estimate.largest_power_of_two(0)


@settings(max_examples=60, deadline=None)
@given(st.booleans(), SPREADS, ROOMS)
@example(by_line=False, spread=Spread(low=0.0, high=0.140625), room_bytes=2_047_606_784)  # 3 does not fit, 4 to 12 do
def test_the_safe_batch_fits_and_is_no_larger_than_the_likely_one(
    by_line: bool, spread: Spread, room_bytes: int
) -> None:
    """The safe batch's verdict is "fits"; a batch 2 % larger (and at least two samples) has another one."""
    estimate = line(spread) if by_line else exact(TRAINING, spread)
    safe = estimate.largest_safe_batch(room_bytes)

    assert 0 <= safe <= estimate.largest_batch(room_bytes)
    if safe:
        assert "fits" == estimate.verdict(safe, room_bytes)
    beyond = safe + max(safe // 50, 2)
    if beyond > 3:  # a line takes the traced batch sizes as they are
        assert "fits" != estimate.verdict(beyond, room_bytes)


@settings(max_examples=60, deadline=None)
@given(SPREADS, st.floats(0, 1), ROOMS)
def test_a_wider_spread_never_says_more(spread: Spread, more: float, room_bytes: int) -> None:
    """Less certainty never makes a batch fit that did not."""
    wider = msgspec.structs.replace(spread, high=spread.high + more)
    sure, unsure = exact(TRAINING, spread), exact(TRAINING, wider)
    for batch_size in (1, 30, 300):
        assert rank(unsure.verdict(batch_size, room_bytes)) <= rank(sure.verdict(batch_size, room_bytes))


@given(SPREADS, ROOMS, st.integers(1, 64 << 30))  # a step that holds nothing has no peak
def test_a_peak_in_the_shrunk_room_fits_at_its_high_end(spread: Spread, room_bytes: int, peak_bytes: int) -> None:
    """The room in which the likely step must fit is the one in which the high end fits, to a byte of rounding."""
    if peak_bytes <= spread.shrunk(room_bytes):
        assert spread.raised(peak_bytes) <= room_bytes + 1
    else:
        assert spread.raised(peak_bytes) >= room_bytes


def test_no_spread_is_the_replay_itself() -> None:
    """Without any spread, what likely fits fits, and the ends are the peak."""
    estimate = exact(TRAINING, Spread(low=0, high=0))
    peak = estimate.model.replay(30).peak_reserved_bytes

    assert Interval(low_bytes=peak, likely_bytes=peak, high_bytes=peak) == estimate.interval(30)
    assert "fits" == estimate.verdict(30, peak)
    assert "no" == estimate.verdict(300, peak)


@pytest.mark.parametrize(("room_mib", "verdict"), [(20_000, "fits"), (3_200, "likely"), (1_500, "tight"), (900, "no")])
def test_all_four_verdicts_are_given(room_mib: int, verdict: Verdict) -> None:
    """A step of about 2 GiB that may take half or twice as much."""
    assert verdict == exact(TRAINING, Spread(low=0.5, high=1.0)).verdict(30, room_mib * MIB)


# ---- what a spread follows from -------------------------------------------------------------------------


def trace_of(*ops: tuple[str, int], **facts: bool) -> Trace:
    """A trace with operators of so many FLOPs."""
    trace = make_trace((Call((Made(1),)),), 4, facts=facts)
    return msgspec.structs.replace(
        trace, ops=tuple(Op(name, "forward", 0, inputs_of(name), (), {}, flops=flops) for name, flops in ops)
    )


def inputs_of(name: str) -> tuple[Tensor, ...]:
    """Three dimensions for what is over a sequence, four for other convolutions."""
    if "convolution" not in name:
        return ()
    return (Tensor((8, 64, 100) if name in OVER_A_SEQUENCE else (8, 64, 100, 100), "float32"),)


CONVOLUTION = ("aten.convolution.default", 60)
BACKWARD = ("aten.convolution_backward.default", 60)
OVER_A_SEQUENCE = {BACKWARD[0]}


@pytest.mark.parametrize(
    ("trace", "line", "evidence"),
    [
        (trace_of(("aten.mm.default", 100)), False, "plain"),
        (trace_of(("aten.mm.default", 10_000), CONVOLUTION), False, "plain"),
        (trace_of(("aten.mm.default", 100), CONVOLUTION), False, "convolutions"),
        (trace_of(CONVOLUTION, BACKWARD), False, "sequences"),
        (trace_of(CONVOLUTION, ("aten.mm.default", 10_000), BACKWARD), False, "plain"),
        (trace_of(CONVOLUTION, cudnn_benchmark=True), False, "benchmark"),
        (trace_of(("aten.mm.default", 10_000), CONVOLUTION, cudnn_benchmark=True), False, "benchmark"),
        (trace_of(("aten.mm.default", 100), cudnn_benchmark=True), False, "plain"),
        (trace_of(("aten._cudnn_rnn.default", 0), CONVOLUTION), False, "recurrent"),
        (trace_of(CONVOLUTION), True, "line"),
        (trace_of(CONVOLUTION, compiled=True), True, "compiled"),
    ],
)
def test_the_evidence_is_told_by_the_trace(trace: Trace, line: bool, evidence: Evidence) -> None:
    """What the step runs, and how it was traced, decide how sure the prediction is."""
    assert evidence == intervals.evidence_of(trace, line=line)


@pytest.mark.parametrize(
    ("shape", "kernel", "evidence"),
    [
        ((64, 100), (64, 64, 9), "sequences"),
        ((64, 1, 100), (64, 64, 1, 9), "sequences"),  # as PyTorch itself asks cuDNN about one dimension
        ((64, 100, 1), (64, 64, 9, 1), "sequences"),
        ((64, 22, 100), (64, 64, 1, 50), "sequences"),
        ((64, 22, 100), (64, 64, 22, 1), "sequences"),
        ((64, 17, 17), (64, 64, 1, 7), "convolutions"),
        ((64, 17, 17), (64, 64, 7, 1), "convolutions"),
        ((64, 17, 17), (64, 64, 1, 1), "convolutions"),
        ((64, 1, 1), (64, 64, 1, 1), "convolutions"),  # of what was pooled
        ((64, 56, 56), (64, 64, 56, 56), "convolutions"),
    ],
)
@pytest.mark.parametrize("name", [CONVOLUTION[0], BACKWARD[0]])
def test_a_plane_of_one_row_is_a_sequence(
    name: str, shape: tuple[int, ...], kernel: tuple[int, ...], evidence: Evidence
) -> None:
    """A convolution over a sequence is one however it is written; short strips over a plane, as of Inception, are not."""
    over, weight = Tensor((8, *shape), "float32"), Tensor(kernel, "float32")
    inputs = (over, over, weight) if name == BACKWARD[0] else (over, weight)
    trace = make_trace((Call((Made(1),)),), 4)
    op = Op(name, "forward", 0, inputs, (), {}, flops=60)

    assert evidence == intervals.evidence_of(msgspec.structs.replace(trace, ops=(op,)))


@pytest.mark.parametrize("capability", [intervals.MEASURED, (8, 6)])
@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (trace_of(CONVOLUTION, compiled=True, cudnn_benchmark=True), False),
        (trace_of(CONVOLUTION, cudnn_benchmark=True), True),
        (trace_of(("aten._cudnn_rnn.default", 0), CONVOLUTION), False),
        (trace_of(CONVOLUTION, compiled=True), True),
        (trace_of(BACKWARD, cudnn_benchmark=True), False),
    ],
)
def test_a_step_of_several_kinds_is_as_unsure_as_each(trace: Trace, line: bool, capability: tuple[int, int]) -> None:
    """No kind hides another: the interval is as wide as that of any, and the widest one is told."""
    kinds = intervals.kinds_of(trace, line=line)
    found = intervals.widest(kinds, capability)
    each = [intervals.spread(kind, capability) for kind in kinds]

    assert 2 <= len(kinds)
    assert (max(one.low for one in each), max(one.high for one in each)) == (found.low, found.high)
    assert max(intervals.fitted(kind).high for kind in kinds) == intervals.fitted(intervals.least_sure(kinds)).high


@pytest.mark.parametrize("evidence", get_args(Evidence))
def test_cards_that_were_not_measured_are_less_sure(evidence: Evidence) -> None:
    """Every kind of step has a spread; elsewhere than on the measured card its high end is wider; all but the narrowest is told."""
    here, elsewhere = (intervals.spread(evidence, capability) for capability in (intervals.MEASURED, (8, 6)))

    assert 0 < here.high <= elsewhere.high
    assert 0 < here.low == elsewhere.low < 1
    assert here.floor_bytes > 0
    assert (evidence == "plain") == (intervals.spread_in_words(evidence) is None)


def test_convolutions_are_less_sure_elsewhere() -> None:
    """What cuDNN takes was measured on one card only."""
    row = intervals.fitted("convolutions")

    assert row.high < row.high_elsewhere
