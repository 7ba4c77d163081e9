"""Two traces as a function of the batch size: exact at a third, refused where they do not fit together."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import TRAINING, Call, Made, make_trace, programs, scaled

from whichgpu import scaling
from whichgpu.errors import TraceError
from whichgpu.scaling import Scaled, Single, mismatch
from whichgpu.trace import Tensor, Trace

batches = st.integers(1, 4096)


@settings(max_examples=60, deadline=None)
@given(calls=programs(), low=batches, high=batches, third=batches)
def test_two_traces_give_every_event_of_a_third(calls: list[Call], low: int, high: int, third: int) -> None:
    """For an affine program, sizes, shapes and FLOPs at any batch size follow exactly from any two others."""
    if low == high:
        high += 1
    function = Scaled(make_trace(calls, low), make_trace(calls, high))
    truth = make_trace(calls, third)

    assert function.agrees_with(truth) is None
    assert truth.events == function.events
    assert [storage.bytes for storage in truth.storages] == function.storage_bytes(third)
    assert list(truth.ops) == [function.op(index, third) for index in range(len(truth.ops))]


@given(calls=programs(most=8), batch_size=batches)
def test_given_traces_are_answered_as_they_are(calls: list[Call], batch_size: int) -> None:
    """At the two batch sizes that were traced, the answer is the trace itself."""
    low, high = make_trace(calls, batch_size), make_trace(calls, batch_size + 3)
    function = Scaled(low, high)
    for trace in (low, high):
        assert [storage.bytes for storage in trace.storages] == function.storage_bytes(trace.batch_size)
        assert list(trace.ops) == [function.op(index, trace.batch_size) for index in range(len(trace.ops))]


def test_sizes_never_become_negative() -> None:
    """A storage that shrinks with the batch size ends at nothing, not below."""
    function = scaled([Call((Made(100, -10),))])

    assert [[60], [10], [0], [0]] == [function.storage_bytes(n) for n in (4, 9, 10, 1000)]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([Call((Made(8), Made(8)))], "another order"),
        ([Call((Made(8),)), Call()], "another order"),
        ([Call((Made(8),), name="aten.mul.Tensor")], "aten.add.Tensor becomes aten.mul.Tensor"),
        ([Call((Made(8),), phase="backward")], "aten.add.Tensor becomes"),
        ([Call((Made(8),)), Call(frees=(0,))], "another order"),
    ],
)
def test_traces_of_another_structure_are_refused(other: list[Call], words: str) -> None:
    """Other events, operators or phases are named, from either side, and cannot be scaled."""
    one, two = make_trace([Call((Made(8),))], 4), make_trace(other, 8)

    assert words in str(mismatch(one, two))
    assert mismatch(two, one) is not None
    with pytest.raises(TraceError, match="made-up: "):
        Scaled(one, two)


def test_another_number_of_tensors_is_named() -> None:
    """Operators that take more tensors at another batch size do not match."""
    one = make_trace([Call((Made(8),))], 4)
    extra = msgspec.structs.replace(one.ops[0], inputs=(Tensor((1,), "float32"),))

    assert "another number of tensors" in str(mismatch(one, msgspec.structs.replace(one, ops=(extra,))))


def test_tensors_of_another_rank_or_type_do_not_match() -> None:
    """A dtype or a number of dimensions that changes with the batch size is no affine function of it."""
    one = make_trace([Call((Made(8, 8),))], 4)
    for changed in (Tensor((40,), "float32", (), 0), Tensor((40, 1), "uint8", (), 0)):
        op = msgspec.structs.replace(one.ops[0], outputs=(changed,))

        assert mismatch(one, msgspec.structs.replace(one, ops=(op,), batch_size=8)) is not None


def test_a_layout_known_from_one_trace_is_kept() -> None:
    """A tensor that batch 1 cannot tell from a contiguous one keeps the layout seen at another batch size."""

    def at(batch_size: int) -> Trace:
        made = make_trace([Call((Made(0, 24),))], batch_size)
        stride = () if batch_size == 1 else (24, 1, 6)  # channels last
        out = Tensor((batch_size, 6, 4), "uint8", stride, 0)
        return msgspec.structs.replace(made, ops=(msgspec.structs.replace(made.ops[0], outputs=(out,)),))

    assert Tensor((5, 6, 4), "uint8", (24, 1, 6), 0) == Scaled(at(1), at(2)).op(0, 5).outputs[0]
    assert Tensor((5, 6, 4), "uint8", (24, 1, 6), 0) == Scaled(at(2), at(1)).op(0, 5).outputs[0]


def test_equal_batch_sizes_are_refused() -> None:
    """Two traces at one batch size say nothing about others."""
    with pytest.raises(TraceError, match="same batch size"):
        Scaled(make_trace(TRAINING, 4), make_trace(TRAINING, 4))


def test_a_fraction_of_a_byte_per_sample_is_refused() -> None:
    """Sizes that are not whole in between are no affine sizes."""
    low, high = make_trace([Call((Made(10),))], 4), make_trace([Call((Made(13),))], 8)
    with pytest.raises(TraceError, match="fraction of a byte"):
        Scaled(low, high)


def test_a_third_trace_of_other_sizes_is_named() -> None:
    """The check at a third batch size says which size was found and which expected."""
    function = scaled([Call((Made(0, 1000),))])
    third = make_trace([Call((Made(12_000),))], 11)

    assert "a storage has 12,000 bytes where 11,000 were expected" == function.agrees_with(third)
    assert "another order" in str(function.agrees_with(make_trace([Call((Made(0, 1000),)), Call()], 11)))


@given(calls=programs(most=10))
def test_signatures_are_equal_only_for_operators_alike_at_every_batch_size(calls: list[Call]) -> None:
    """Equal signatures mean equal operators, storages aside, at a batch size not traced."""
    function = scaled(calls)

    def bare(index: int) -> object:
        op = function.op(index, 37)
        tensors = [(tensor.shape, tensor.dtype, tensor.stride) for tensor in (*op.inputs, *op.outputs)]
        return op.name, op.phase, tensors, op.attributes

    numbers = range(len(calls))
    for one in numbers:
        for other in numbers:
            if function.signature(one) == function.signature(other):
                assert bare(one) == bare(other)


class Traced:
    """Traces made on demand, each request noted; batches are padded to a multiple of `bucket`."""

    def __init__(self, bucket: int = 1) -> None:
        self.bucket = bucket
        self.asked: list[int] = []

    def __call__(self, batch_size: int) -> Trace:
        """The trace at a batch size."""
        self.asked.append(batch_size)
        padded = -(-batch_size // self.bucket) * self.bucket
        return msgspec.structs.replace(make_trace([Call((Made(64, 512),))], padded), batch_size=batch_size)


def test_affine_workloads_are_traced_three_times() -> None:
    """Two traces and a check are enough for every batch size."""
    traced = Traced()
    found = scaling.scaling(traced, (4, 8, 11))

    assert found.affine
    assert found.reason is None
    assert [4, 8, 11] == traced.asked
    assert [64 + 512 * 1000] == found.at(1000).storage_bytes(1000)
    assert [4, 8, 11] == traced.asked


def test_other_workloads_are_traced_at_each_batch_size() -> None:
    """Where the third trace disagrees, every batch size is answered by its own trace, made once."""
    traced = Traced(bucket=4)
    found = scaling.scaling(traced, (4, 8, 11))

    assert not found.affine
    assert "a storage has 6,208 bytes where 5,696 were expected" == found.reason
    assert isinstance(found.at(13), Single)
    assert [64 + 512 * 16] == found.at(13).storage_bytes(13)
    assert found.at(13) is found.at(13)
    assert [64 + 512 * 12] == found.at(11).storage_bytes(11)
    assert 1 == traced.asked.count(13)


def drawn(batch_size: int) -> Trace:
    """A large activation, and a small one that holds as many rows as a random mask let pass: about three in ten."""
    passed = round(0.3 * 1000 * batch_size) + (batch_size * 7919) % 11 - 5
    return make_trace([Call((Made(0, 1 << 20),)), Call((Made(16 * passed),))], batch_size)


def test_what_the_data_decides_follows_its_line() -> None:
    """A mask's share of a small tensor varies by chance: every batch size is answered, with how far traces were off."""
    found = scaling.scaling(drawn, (4, 8, 67))
    real = [storage.bytes for storage in drawn(500).storages]

    assert found.affine
    assert 0 < found.spread < 0.001
    assert real[0] == found.at(500).storage_bytes(500)[0]
    assert 0.02 * real[1] >= abs(found.at(500).storage_bytes(500)[1] - real[1])
    assert found.at(500).agrees_with(drawn(500)) is None


def test_what_varies_is_never_below_the_last_check() -> None:
    """Where a further trace has more than its line says, the line is raised to it."""

    def trace_at(batch_size: int) -> Trace:
        more = 1.1 if batch_size == scaling.SQUARE_CHECK else 1
        return make_trace(
            [Call((Made(0, 1 << 20),)), Call((Made(int(4800 * batch_size * more) + batch_size % 3),))], batch_size
        )

    found = scaling.scaling(trace_at, (4, 8, 67))
    check = scaling.SQUARE_CHECK

    assert found.affine
    assert trace_at(check).storages[1].bytes <= found.at(check).storage_bytes(check)[1]


@pytest.mark.parametrize(
    "size", [lambda n: 4 * n**3, lambda n: 1 << n.bit_length() + 10, lambda n: 40000 * n + n % 3 * 9000]
)
def test_curves_and_large_shares_are_not_taken_for_chance(size: Callable[[int], int]) -> None:
    """What grows by another rule, or is a large part of all bytes, leaves every batch size to its own trace."""

    def trace_at(batch_size: int) -> Trace:
        return make_trace([Call((Made(0, 100_000),)), Call((Made(size(batch_size)),))], batch_size)

    assert not scaling.scaling(trace_at, (4, 8, 67)).affine


def test_a_batch_of_one_that_is_built_otherwise_is_left_out() -> None:
    """Only the first trace has another structure: the others, with one more as the check, answer for all sizes but that."""
    asked = []

    def trace_at(batch_size: int) -> Trace:
        asked.append(batch_size)
        calls = [Call((Made(64, 512),))] + [Call((Made(0, 1000),))] * (batch_size > 1)
        return make_trace(calls, batch_size, kind="real-cpu")

    found = scaling.scaling(trace_at, (1, 2, 3))

    assert found.affine
    assert [64 + 512 * 900, 900_000] == found.at(900).storage_bytes(900)
    assert [64 + 512] == found.at(1).storage_bytes(1)
    assert [1, 2, 3, 6] == asked


def test_a_single_trace_answers_for_itself() -> None:
    """`Single` gives the trace's own sizes and operators, and signatures that tell operators apart."""
    trace = make_trace(TRAINING, 5)
    single = Single(trace)

    assert [storage.bytes for storage in trace.storages] == single.storage_bytes(5)
    assert list(trace.ops) == [single.op(index, 5) for index in range(len(trace.ops))]
    assert len(trace.ops) == len({single.signature(index) for index in range(len(trace.ops))})
