"""Memory of made-up programs: what fits is what a replay says, and the peak is what is held."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import MIB, TRAINING, Call, Made, always, make_trace, programs, scaled

from whichgpu import memory, workspaces
from whichgpu.allocator import AllocatorConfig, replay
from whichgpu.batch_sizes import MAX_BATCH_SIZE, power_of_two_below
from whichgpu.memory import SPARE_BYTES, MemoryModel
from whichgpu.scaling import Single
from whichgpu.trace import Tensor
from whichgpu.workspaces import Temporary

HOPPER = (9, 0)


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces have their own tests; here operators take none unless a test says so."""
    monkeypatch.setattr(workspaces, "RULES", {})


def model_of(calls: list[Call] | tuple[Call, ...], config: AllocatorConfig | None = None) -> MemoryModel:
    """The model of an affine program."""
    return MemoryModel(always(scaled(calls)), HOPPER, *([config] if config else []))


def fits_directly(model: MemoryModel, batch_size: int, limit_bytes: int) -> bool:
    """What the allocator says, with nothing remembered, where a small segment is left."""
    program = model.program(batch_size)
    return replay(program.instructions, program.sizes, max(limit_bytes - SPARE_BYTES, 0)).fits


limits = st.one_of(st.integers(0, 256 * MIB), st.integers(0, 128).map(lambda n: n * 2 * MIB))


# ---- what fits ------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(calls=programs(), asked=st.lists(st.tuples(st.integers(1, 40), limits), min_size=1, max_size=30))
def test_remembered_answers_equal_fresh_replays(calls: list[Call], asked: list[tuple[int, int]]) -> None:
    """In whatever order batch sizes and limits are asked for, `fits` says what a fresh replay says."""
    model = model_of(calls)
    for batch_size, limit_bytes in asked:
        assert fits_directly(model, batch_size, limit_bytes) == model.fits(batch_size, limit_bytes)
        assert fits_directly(model, batch_size, limit_bytes) == model.replay(batch_size, limit_bytes).fits


@pytest.mark.parametrize(
    ("names", "loads"),
    [
        (["mm", "relu"], (2, 2)),  # making the handle of cuBLAS loads the first kernels as well
        (["relu", "mm"], (2, 3)),
        (["relu", "relu", "mm"], (2, 4)),
        (["mm", "mm"], (2, 2)),
        (["relu", "relu"], (2,)),
        (["relu"], ()),
    ],
)
def test_kernels_are_loaded_before_cublas(
    names: list[str], loads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process loads its first kernels once, no later than it makes the first handle of cuBLAS."""
    handle = Temporary(8 * MIB, key=f"{workspaces.CUBLAS}forward")
    monkeypatch.setattr(workspaces, "RULES", {"aten.mm.default": lambda *_: [handle]})
    trace = make_trace([Call((Made(MIB),), name=f"aten.{name}.default") for name in ("randn", *names)], 4)
    read = (Tensor((4,), "float32", (), 0),)
    ops = tuple(msgspec.structs.replace(op, inputs=read if number else ()) for number, op in enumerate(trace.ops))
    source = Single(msgspec.structs.replace(trace, ops=ops))

    assert loads == MemoryModel(always(source), HOPPER, batch_sizes=(4,)).program(4).instructions.loads


# With 48 MiB the cached segments are given back earlier than with 50, and what follows then fits.
LESS_IS_MORE = [
    Call((Made(5 * MIB),)),
    Call((Made(9 * MIB),), frees=(0,)),
    Call((Made(7 * MIB),), frees=(1,)),
    Call((Made(26 * MIB),)),
    Call((Made(9 * MIB),), frees=(3,)),
    Call((Made(600 << 10),)),
    Call((Made(600 << 10),), frees=(4,)),
    Call((Made(3 * MIB),), frees=(2, 6)),
    Call((Made(20 * MIB),), frees=(5,)),
    Call((Made(8 * MIB),)),
    Call((Made(MIB),)),
    Call((Made(600 << 10),)),
    Call((Made(600 << 10),)),
    Call(frees=(8,)),
]


def test_more_memory_does_not_always_help() -> None:
    """A program that runs with 48 MiB and not with 50 is answered so, whichever is asked first."""
    for order in ((48, 50), (50, 48)):
        model = model_of(LESS_IS_MORE)

        assert {48: True, 50: False} == {mib: model.fits(4, mib * MIB) for mib in sorted(order, key=order.index)} | {}


@settings(max_examples=60, deadline=None)
@given(calls=programs(), batch_size=st.integers(1, 50), spare=st.integers(0, 100 * MIB))
def test_enough_memory_changes_nothing(calls: list[Call], batch_size: int, spare: int) -> None:
    """With what it reserves when memory is not limited and a small segment, or more, a step runs as without a limit."""
    model = model_of(calls)
    whole = model.replay(batch_size)
    program = model.program(batch_size)

    assert whole == replay(program.instructions, program.sizes, whole.peak_reserved_bytes + spare)
    assert model.fits(batch_size, whole.peak_reserved_bytes + SPARE_BYTES)
    assert not whole.peak_reserved_bytes or not model.fits(batch_size, SPARE_BYTES)


# ---- the largest batch ----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(calls=programs(), limit_bytes=limits)
def test_the_largest_batch_fits_and_the_next_does_not(calls: list[Call], limit_bytes: int) -> None:
    """N fits and N + 1 does not; 0 means that batch 1 does not fit; nothing beyond the end of the search."""
    model = model_of(calls)
    found = model.largest_batch(limit_bytes)

    assert 0 <= found <= MAX_BATCH_SIZE
    assert found == 0 or fits_directly(model, found, limit_bytes)
    assert found == MAX_BATCH_SIZE or not fits_directly(model, found + 1, limit_bytes)


@settings(max_examples=60, deadline=None)
@given(
    calls=programs(largest_base=24 * MIB, largest_slope=6 * MIB),
    asked=st.lists(limits, min_size=1, max_size=6),
)
def test_the_largest_batch_is_the_largest_where_all_smaller_ones_fit(calls: list[Call], asked: list[int]) -> None:
    """Where every smaller batch fits and no larger one, counting from 1 finds the same."""
    model = model_of(calls)
    for limit_bytes in asked:
        answers = [fits_directly(model, batch_size, limit_bytes) for batch_size in range(1, 61)]
        if answers == sorted(answers, reverse=True):
            counted = sum(answers)
            found = model.largest_batch(limit_bytes)

            if found > 60:  # a larger one fits, as it must if it is named
                assert fits_directly(model, found, limit_bytes)
            else:
                assert counted == found


@settings(max_examples=40, deadline=None)
@given(calls=programs(), first=st.lists(limits, max_size=5), limit_bytes=limits)
def test_the_largest_batch_does_not_depend_on_earlier_questions(
    calls: list[Call], first: list[int], limit_bytes: int
) -> None:
    """The same question has the same answer, whatever other limits were asked about before."""
    asked, fresh = model_of(calls), model_of(calls)
    for other in first:
        asked.largest_batch(other)

    assert fresh.largest_batch(limit_bytes) == asked.largest_batch(limit_bytes)


@pytest.mark.parametrize("limit_bytes", [0, 1, MIB, 2 * MIB, 399 * MIB])
def test_nothing_fits_where_the_weights_do_not(limit_bytes: int) -> None:
    """0 when not even one sample fits."""
    assert 0 == model_of(TRAINING).largest_batch(limit_bytes)


def test_a_step_that_does_not_grow_ends_at_the_bound() -> None:
    """Memory that the batch size does not change gives the end of the search, or 0."""
    model = model_of([Call((Made(30 * MIB),))])

    assert MAX_BATCH_SIZE == model.largest_batch(30 * MIB + SPARE_BYTES)
    assert 0 == model.largest_batch(30 * MIB + SPARE_BYTES - 1)


def test_a_step_that_takes_a_byte_per_sample_ends_at_the_bound() -> None:
    """Slow growth does not lead beyond the largest batch size that is searched for."""
    assert MAX_BATCH_SIZE == model_of([Call((Made(0, 1),))]).largest_batch(80 << 30)


def test_a_step_that_allocates_nothing_fits_everywhere() -> None:
    """No allocation fits into no memory."""
    model = model_of([Call()])

    assert MAX_BATCH_SIZE == model.largest_batch(0)
    assert 0 == sum(model.peak(4).held_bytes.values())
    assert model.peak(4).op is None


def test_powers_of_two_are_the_largest_up_to_a_batch() -> None:
    """1 for 1, 64 for 64 and 127, 0 for 0."""
    assert [0, 1, 2, 2, 4, 64, 64, 128] == [power_of_two_below(n) for n in (0, 1, 2, 3, 4, 64, 127, 128)]


def long_program() -> list[Call]:
    """4,000 operators, so 10,000 events: activations made one after another and freed in reverse."""
    weights = [Call((Made(MIB, 0, "weight"),), phase="setup") for _ in range(500)]
    forward = [Call((Made(0, 10_000 + 7 * n), Made(0, 5_000))) for n in range(1500)]
    backward = [
        Call(
            (Made(MIB, 0, "gradient"),) if n % 3 == 0 else (),
            frees=(500 + 2 * n, 501 + 2 * n),
            phase="backward",
        )
        for n in reversed(range(1500))
    ]
    return [*weights, *forward, *backward]


def test_the_search_needs_few_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a program of 10,000 events, a dozen replays for each memory size and no more."""
    count = 0
    plain = memory.replay

    def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(memory, "replay", counted)
    model = model_of(long_program())
    assert 10_000 <= len(model.program(8).instructions) + len(model.program(8).op_at)
    sizes = [n << 30 for n in (2, 4, 8, 16, 24, 48, 80, 141)]
    found = [model.largest_batch(size) for size in sizes]

    assert found == sorted(found)
    assert count <= 14 * len(sizes)


# ---- the peak -------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(calls=programs(), batch_size=st.integers(1, 50), limit_bytes=st.none() | limits)
def test_what_is_held_adds_up_to_the_allocated_peak(
    calls: list[Call], batch_size: int, limit_bytes: int | None
) -> None:
    """The parts of the breakdown sum to the peak to the byte, with a limit and without."""
    model = model_of(calls)
    result = model.replay(batch_size, limit_bytes)
    peak = model.peak(batch_size, limit_bytes)

    assert set(memory.HELD) == set(peak.held_bytes)
    assert result.peak_allocated_bytes == sum(peak.held_bytes.values())
    assert (result.peak_at is None) == (peak.op is None)


def test_the_peak_names_its_operator_phase_and_parts() -> None:
    """At batch 100 the peak is the forward pass's; at batch 1 it is the optimizer's."""
    model = model_of(TRAINING)
    large, small = model.peak(100), model.peak(1)

    assert ("aten.relu.default", "forward") == (large.op_name, large.phase)
    assert 400 * MIB == large.held_bytes["weight"]
    assert 100 * MIB == large.held_bytes["input"] + 100 * MIB
    assert 4000 * MIB + 512 == large.held_bytes["activation"]
    assert 800 * MIB == large.held_bytes["temporary"]
    assert ("aten._foreach_add.List", "optimizer") == (small.op_name, small.phase)
    assert 800 * MIB == small.held_bytes["optimizer_state"]
    assert 400 * MIB == small.held_bytes["gradient"]
    assert 5 == small.op


def test_single_traces_answer_for_their_own_batch_size() -> None:
    """Where every batch size has a trace of its own, the peak's operator is looked up in that trace."""
    longer = [Call(name="aten.view.default")] * 30

    def at(batch_size: int) -> Single:
        return Single(make_trace([*longer[:batch_size], *TRAINING], batch_size))

    model = MemoryModel(at, HOPPER)

    assert (5 + 20, "aten._foreach_add.List") == (model.peak(20).op, model.peak(20).op_name)
    assert (5 + 1, "aten._foreach_add.List") == (model.peak(1).op, model.peak(1).op_name)


# ---- temporaries ----------------------------------------------------------------------------------------


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Temporary, ...]]:
    """Operator -> temporaries, as `workspaces` answers while the test runs."""
    table: dict[str, tuple[Temporary, ...]] = {}
    monkeypatch.setattr(workspaces, "RULES", table)
    monkeypatch.setattr(workspaces, "temporaries", lambda op, capability: table[op.name])
    return table


def spelled(model: MemoryModel, batch_size: int = 4) -> list[str]:
    """The program in words: "+0" storage 0 is made, "-0" freed, "+t512" a temporary of 512 bytes."""
    program = model.program(batch_size)
    words = []
    for instruction in program.instructions:
        slot = abs(instruction) - 1
        name = str(slot) if slot < program.storages else f"t{program.sizes[slot]}"
        words.append(("+" if instruction > 0 else "-") + name)
    return words


def test_temporaries_stand_where_the_rule_says_and_die_with_the_operator(
    rules: dict[str, tuple[Temporary, ...]],
) -> None:
    """Before output 0, before output 1, after the last; all freed before the next operator begins."""
    rules["conv"] = (
        Temporary(1000, 0),
        Temporary(2000, 1),
        Temporary(3000),
        Temporary(4000, 7),
        Temporary(1001, 0),
    )
    calls = [Call((Made(8),)), Call((Made(16), Made(24)), name="conv"), Call((Made(32),), frees=(0,))]

    assert [
        "+0",
        "+t1000",
        "+t1001",
        "+1",
        "+t2000",
        "+2",
        "+t3000",
        "+t4000",
        "-t1000",
        "-t1001",
        "-t2000",
        "-t3000",
        "-t4000",
        "-0",
        "+3",
    ] == spelled(model_of(calls))


def test_temporaries_of_an_operator_without_outputs(rules: dict[str, tuple[Temporary, ...]]) -> None:
    """An operator that writes in place takes and returns its temporaries too."""
    rules["addmm_"] = (Temporary(1000, 0), Temporary(2000))
    calls = [Call((Made(8),)), Call(name="addmm_"), Call(frees=(0,))]

    assert ["+0", "+t1000", "+t2000", "-t1000", "-t2000", "-0"] == spelled(model_of(calls))


def test_kept_workspaces_are_taken_once_for_each_key(rules: dict[str, tuple[Temporary, ...]]) -> None:
    """A workspace with a key is never freed and not taken again; another key is another workspace."""
    rules["mm"] = (Temporary(1000, 0, "forward"),)
    rules["bmm"] = (Temporary(1000, 0, "forward"), Temporary(500))
    rules["mm_backward"] = (Temporary(1000, 0, "backward"),)
    calls = [Call((Made(8),), name=name) for name in ("mm", "bmm", "mm", "mm_backward", "mm_backward")]

    assert ["+t1000", "+0", "+1", "+t500", "-t500", "+2", "+t1000", "+3", "+4"] == spelled(model_of(calls))


def test_every_program_has_its_own_kept_workspaces(rules: dict[str, tuple[Temporary, ...]]) -> None:
    """Asking for one batch size does not take a workspace away from the next."""
    rules["mm"] = (Temporary(1000, 0, "forward"),)
    model = model_of([Call((Made(8, 8),), name="mm")])

    assert spelled(model, 4) == spelled(model, 5) == ["+t1000", "+0"]


def test_workspaces_are_a_part_of_the_breakdown(rules: dict[str, tuple[Temporary, ...]]) -> None:
    """Bytes of temporaries at the peak are told as workspaces, and the sum stays exact."""
    rules["mm"] = (Temporary(32 * MIB, 0, "forward"), Temporary(3 * MIB))
    model = model_of([Call((Made(8 * MIB, 0, "weight"),)), Call((Made(MIB, MIB),), name="mm")])
    peak = model.peak(4)

    assert 35 * MIB == peak.held_bytes["workspace"]
    assert 8 * MIB == peak.held_bytes["weight"]
    assert model.replay(4).peak_allocated_bytes == sum(peak.held_bytes.values())
    assert "mm" == peak.op_name


def test_what_is_done_without_once_is_done_without_by_all_of_its_plan(
    rules: dict[str, tuple[Temporary, ...]],
) -> None:
    """Operators whose workspaces have one plan give way together, others each for themselves."""
    rules["conv"] = (Temporary(3 * MIB, optional=True, plan="both"), Temporary(2 * MIB, optional=True, plan="conv"))
    rules["transposed"] = (Temporary(3 * MIB, optional=True, plan="both"), Temporary(2 * MIB, optional=True))
    rules["linear"] = (Temporary(2 * MIB, optional=True),)
    program = model_of([Call((Made(8),), name=name) for name in ("conv", "transposed", "conv", "linear")]).program(4)
    begin = program.storages

    assert [begin, begin + 2, begin + 4] == program.instructions.optional[begin]
    assert [begin + 1, begin + 5] == program.instructions.optional[begin + 1]
    assert [begin + 3] == program.instructions.optional[begin + 3]
    assert [begin + 6] == program.instructions.optional[begin + 6]


def test_temporaries_follow_the_shapes_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules see the operator at the batch size asked for and the card's capability."""
    monkeypatch.setattr(workspaces, "RULES", {"mm"})
    asked = []

    def temporaries(op: object, capability: object) -> tuple[Temporary, ...]:
        shape = op.outputs[0].shape  # type: ignore[attr-defined]
        asked.append(capability)
        return (Temporary(2 * shape[0], 0),)

    monkeypatch.setattr(workspaces, "temporaries", temporaries)
    model = MemoryModel(always(scaled([Call((Made(10, 3),), name="mm")])), (8, 6))

    assert ["+t2060", "+0", "-t2060"] == spelled(model, 340)
    assert ["+t38", "+0", "-t38"] == spelled(model, 3)
    assert {(8, 6)} == set(asked)


@settings(max_examples=50, deadline=None)
@given(calls=programs(names=("aten.add.Tensor", "mm", "conv")), batch_size=st.integers(1, 30))
def test_programs_with_temporaries_are_well_formed(calls: list[Call], batch_size: int) -> None:
    """Whatever the rules say, every slot is made once, freed after, and marks point at their operators."""
    with pytest.MonkeyPatch.context() as patch:
        answers = {"mm": (Temporary(512, 0, "k"), Temporary(MIB)), "conv": (Temporary(3 * MIB, 1),)}
        patch.setattr(workspaces, "RULES", answers)
        patch.setattr(workspaces, "temporaries", lambda op, capability: answers[op.name])
        model = model_of(calls)
        program = model.program(batch_size)
        result = model.replay(batch_size)  # raises ValueError for a program that cannot be
        held = model.peak(batch_size).held_bytes

    assert sorted(set(program.instructions)) == sorted(program.instructions)
    assert list(range(len(calls))) == program.op_index
    assert program.op_at == sorted(program.op_at)
    assert result.peak_allocated_bytes == sum(held.values())
