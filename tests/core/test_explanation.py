"""Timelines and holders: what is shown adds up, and folding loses nothing."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import MIB, TRAINING, Call, Made, always, make_trace, programs, scaled

from whichgpu import explanation, workspaces
from whichgpu.explanation import HOLDERS, Explanation, Piece, explained, grouped
from whichgpu.memory import MemoryModel
from whichgpu.module_paths import folded, starred
from whichgpu.scaling import Single
from whichgpu.trace import Op, Trace, validate
from whichgpu.workspaces.records import Temporary

PARTS = st.sampled_from(["layer", "conv", "0", "1", "12", "head"])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
PIECES = st.builds(
    Piece,
    st.sampled_from(["weight", "activation", "gradient"]),
    st.integers(512, 1 << 30),
    st.sampled_from(["aten.mm.default", "aten.add.Tensor"]),
    st.none() | PATHS,
    st.none() | st.sampled_from(["a.py:1", "a.py:2"]),
)


def explain(calls: list[Call] | tuple[Call, ...], batch_size: int, limit_bytes: int | None = None) -> Explanation:
    """A made-up program explained at a batch size."""
    source = scaled(calls)
    return explained(MemoryModel(always(source), (9, 0)), source.low, batch_size, limit_bytes)


def with_places(trace: Trace, *places: tuple[str, str]) -> Trace:
    """The trace with a module and a source line for each of its operators."""
    names = tuple(dict.fromkeys(name for place in places for name in place))

    def placed(op: Op, module: str, source: str) -> Op:
        return msgspec.structs.replace(op, module=names.index(module), source=names.index(source))

    ops = tuple(placed(op, *place) for op, place in zip(trace.ops, places, strict=True))
    made = msgspec.structs.replace(trace, names=names, ops=ops)
    validate(made)
    return made


@settings(max_examples=150, deadline=None)
@given(programs(most=30), st.integers(1, 40))
def test_holders_and_others_add_up_to_the_allocated_peak(calls: list[Call], batch_size: int) -> None:
    """To the byte, whatever the program, and at most ten are listed, the largest first."""
    model = MemoryModel(always(scaled(calls)), (9, 0))
    found = explain(calls, batch_size)
    listed = [holder.bytes for holder in found.holders]
    assert model.replay(batch_size).peak_allocated_bytes == sum(listed) + found.others.bytes
    assert found.peak_allocated_bytes == sum(listed) + found.others.bytes
    assert len(listed) <= HOLDERS
    assert sorted(listed, reverse=True) == listed
    assert (found.others.holders == 0) == (found.others.bytes == 0)


@settings(max_examples=150, deadline=None)
@given(programs(most=30), st.integers(1, 40))
def test_the_timeline_has_no_gaps_and_one_peak(calls: list[Call], batch_size: int) -> None:
    """Each phase begins with what the one before it left, and just one holds the peak."""
    found = explain(calls, batch_size)
    for one, other in pairwise(found.timeline):
        assert one.end_bytes == other.start_bytes
    for span in found.timeline:
        assert max(span.start_bytes, span.end_bytes) <= span.most_bytes <= found.peak_allocated_bytes
    peaks = [span for span in found.timeline if span.has_peak]
    assert (1 if found.peak_allocated_bytes else 0) == len(peaks)
    assert all(span.most_bytes == found.peak_allocated_bytes for span in peaks)
    assert all((span.step, span.phase) == (found.peak_step, found.peak_phase) for span in peaks)


def test_the_phases_of_a_step_are_in_order() -> None:
    """Set-up, forward, backward and optimizer of a training step, with its peak where its memory is highest."""
    found = explain(TRAINING, 8)
    assert ["forward", "backward", "optimizer"] == [span.phase for span in found.timeline if span.phase != "setup"]
    assert "optimizer" == found.peak_phase
    assert 1600 * MIB == sum(held.bytes for held in found.holders if held.category != "workspace")


def test_under_a_limit_it_is_the_replay_under_that_limit() -> None:
    """A cache that is given back under a limit changes segments, not what the holders add up to."""
    source = scaled(TRAINING)
    limit = MemoryModel(always(source), (9, 0)).replay(8).peak_reserved_bytes
    assert explain(TRAINING, 8) == explain(TRAINING, 8, limit)


def test_what_is_done_without_is_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit that leaves no room for a workspace, the step is explained without it."""
    monkeypatch.setitem(workspaces.RULES, "made.up", lambda op, capability: [Temporary(900 * MIB, optional=True)])
    source = scaled((*TRAINING, Call((Made(MIB),), name="made.up")))
    roomy = MemoryModel(always(source), (9, 0)).replay(8).peak_reserved_bytes
    found = explained(MemoryModel(always(source), (9, 0)), source.low, 8, roomy - 600 * MIB)

    assert not any(held.op == "made.up" and held.category == "workspace" for held in found.holders)
    assert MemoryModel(always(source), (9, 0)).fits(8, roomy - 600 * MIB)


def test_repeated_layers_are_one_holder() -> None:
    """Storages of the same operator and line in modules that differ in their numbers are folded, with a count."""
    calls = [Call((Made(MIB),)) for _ in range(4)]
    trace = with_places(
        make_trace(calls, 4),
        ("layer.0.out", "m.py:3"),
        ("layer.1.out", "m.py:3"),
        ("layer.1.out", "m.py:4"),
        ("head", "m.py:3"),
    )
    holders = explained(MemoryModel(always(Single(trace)), (9, 0)), trace, 4, None).holders
    found = [(held.module, held.modules, held.storages, held.source, held.bytes) for held in holders]
    assert [
        ("layer.*.out", 2, 2, "m.py:3", 2 * MIB),
        ("head", 1, 1, "m.py:3", MIB),
        ("layer.1.out", 1, 1, "m.py:4", MIB),
    ] == found


def test_what_belongs_to_a_parameter_belongs_to_its_module() -> None:
    """Weights are made in the set-up, outside of modules: their module is read from their name."""
    trace = make_trace([Call((Made(MIB, 0, "weight"),), phase="setup")], 4)
    named = tuple(msgspec.structs.replace(storage, name=0) for storage in trace.storages)
    trace = msgspec.structs.replace(trace, names=("encoder.3.weight",), storages=named)
    (holder,) = explained(MemoryModel(always(Single(trace)), (9, 0)), trace, 4, None).holders
    assert ("weight", "encoder.3", None) == (holder.category, holder.module, holder.source)


def test_workspaces_that_a_library_keeps_belong_to_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator takes for itself is shown with its place, what stays for later ones without."""

    def rule(op: Op, capability: tuple[int, int]) -> list[Temporary]:
        return [Temporary(8 * MIB, key="kept"), Temporary(2 * MIB)]

    monkeypatch.setitem(workspaces.RULES, "made.up", rule)
    calls = [Call((Made(MIB),), name="made.up"), Call((Made(MIB),), name="made.up")]
    trace = with_places(make_trace(calls, 4), ("first", "m.py:1"), ("second", "m.py:2"))
    holders = explained(MemoryModel(always(Single(trace)), (9, 0)), trace, 4, None).holders
    found = [(held.bytes, held.module, held.source) for held in holders if held.category == "workspace"]
    assert [(8 * MIB, None, None), (2 * MIB, "second", "m.py:2")] == found


@given(st.lists(PIECES, max_size=40))
def test_grouping_loses_nothing(pieces: list[Piece]) -> None:
    """Bytes, storages and modules of each category are the same before and after, in whatever order they come."""
    holders = grouped(pieces)
    for category in ("weight", "activation", "gradient"):
        own = [piece for piece in pieces if piece.category == category]
        assert sum(piece.bytes for piece in own) == sum(held.bytes for held in holders if held.category == category)
        assert len(own) == sum(held.storages for held in holders if held.category == category)
    assert holders == grouped(reversed(pieces))


@given(st.lists(PIECES, max_size=40))
def test_no_two_holders_could_be_one(pieces: list[Piece]) -> None:
    """Two holders differ in more than the numbers of repeated layers."""
    keys = [(held.category, held.op, starred(held.module or ""), held.source) for held in grouped(pieces)]
    assert len(set(keys)) == len(keys)


@given(PATHS, st.lists(st.integers(0, 99), min_size=1, max_size=5))
def test_folding_keeps_what_is_the_same(path: str, numbers: list[int]) -> None:
    """One path stays as it is, and only numbers that differ become a star."""
    assert path == folded([path])
    repeated = [f"{path}.{number}.out" for number in numbers]
    middle = str(numbers[0]) if len(set(numbers)) == 1 else "*"
    assert f"{path}.{middle}.out" == folded(repeated)
    assert starred(path) == starred(starred(path))
    assert {starred(one) for one in repeated} == {starred(folded(repeated))}


def test_a_program_without_memory_has_no_holders() -> None:
    """A step that allocates nothing is explained as such."""
    found = explain([Call()], 4)
    assert (0, (), 0, "") == (found.peak_allocated_bytes, found.holders, found.others.bytes, found.peak_op)


def test_the_figures_are_those_of_the_report() -> None:
    """Every figure of an explanation has its key in the report."""
    assert set(Explanation.__struct_fields__) <= set(explanation.ExplainReport.__struct_fields__)
