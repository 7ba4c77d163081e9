"""Batch sizes that are traced as a check of what is foretold, with made-up traces in place of the tracing process."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_tracer import World
from synthetic import MIB, TRAINING, Call, Made

from whichgpu import api
from whichgpu.answers import Book
from whichgpu.errors import CaptureError, DataDependentError, StepError

GIB = 1 << 30


def _sizes(world: World) -> list[int]:
    return [size for _, size, _ in world.asked]


def test_the_largest_batch_is_traced_too(checking: World) -> None:
    """The step is run at the largest batch of the answer, the report says so, and a repeat need not."""
    for question in (lambda: api.fit("bert-base", gpus=["H200"]), lambda: api.fit("bert-base", gpus=["H200"])):
        report = question()
        assert (4, 8, 67, report.gpus[0].max_batch_size) == report.trace.batch_sizes
        assert () == report.trace.failed_batch_sizes == report.notes
    assert list(report.trace.batch_sizes) == _sizes(checking)


def test_the_largest_batch_of_all_cards_is_traced_too(checking: World) -> None:
    """One more trace vouches for every card of a list, and for each of them when it is named later."""
    checking.same_for = ("9.0", "8.0", "8.6", "7.0", "6.0")
    report = api.fit("bert-base")
    ranking = api.rank(["bert-base"])
    most = max(row.max_batch_size for row in report.gpus)
    api.fit("bert-base", gpus=["T4", "H200"])

    assert (4, 8, 67, most) == report.trace.batch_sizes == ranking.traces["bert-base"].batch_sizes
    assert [4, 8, 67, most] == _sizes(checking)


def test_a_step_that_fails_at_its_largest_batch_is_told(checking: World) -> None:
    """What is computed beyond the batch sizes at which the step ran is said, here and in a repeat that does not try again."""
    checking.runs_at = lambda n: n <= 100
    for _ in range(2):
        report = api.fit("bert-base", gpus=["H200"])
        (note,) = report.notes
        assert note.startswith("batches of more than 67 are computed by memory alone: step raised at batch size")
        assert (4, 8, 67) == report.trace.batch_sizes
        tried = set(report.trace.failed_batch_sizes)
    largest = report.gpus[0].max_batch_size
    assert {largest, 1 << (largest.bit_length() - 1)} == tried
    assert [4, 8, 67] == _sizes(checking)[:3]
    assert tried == set(_sizes(checking)[3:])
    assert 5 == len(checking.asked)


def test_a_step_that_wants_round_batches_is_tried_at_one(checking: World) -> None:
    """Where the largest batch is no multiple of what the step wants, the power of two below is traced."""
    checking.runs_at = lambda n: n % 8 == 0 or n < 100
    report = api.fit("bert-base", gpus=["H200"])
    largest = report.gpus[0].max_batch_size

    assert largest % 8
    assert 1 << (largest.bit_length() - 1) == report.trace.batch_sizes[-1]
    assert (largest,) == report.trace.failed_batch_sizes
    assert any(f"step raised at batch size {largest}" in note for note in report.notes)


def test_a_largest_batch_that_is_not_as_foretold_is_worked_out_again(checking: World) -> None:
    """Memory that grows in steps only from some size on is found out, and each batch size then counts by itself."""
    foretold = api.fit("bert-base", gpus=["H200"], cache=False).gpus[0]
    checking.bucket, checking.bucket_from = 500, 100
    report = api.fit("bert-base", gpus=["H200"])

    assert not report.trace.affine
    assert foretold.max_batch_size // 500 * 500 == report.gpus[0].max_batch_size
    assert any("not a straight function of the batch size" in note for note in report.notes)


def test_what_an_earlier_question_disproved_stays_disproved(checking: World) -> None:
    """A batch size that was once seen to be off counts in every later answer about the workload."""
    checking.bucket, checking.bucket_from = 64, 100
    checking.same_for = ("9.0", "8.0", "8.6", "7.0", "6.0")
    api.fit("bert-base", gpus=["H200"], batch_size=300)
    checking.asked.clear()
    one = api.fit("bert-base", gpus=["RTX 4090"], batch_size=8)
    every = api.fit("bert-base")
    ranking = api.rank(["bert-base"])

    assert 0 == one.gpus[0].max_batch_size % 64
    assert [False] * 3 == [one.trace.affine, every.trace.affine, ranking.traces["bert-base"].affine]
    for notes in (every.notes, ranking.notes):
        assert any("estimated from a line through batch sizes 4, 8, 67, 300" in note for note in notes)
    by_line = next(row for row in every.gpus if row.gpu == "RTX 4090")
    assert by_line.max_batch_size_safe <= one.gpus[0].max_batch_size


def test_a_default_batch_size_of_ones_own_is_tried(checking: World, tmp_path: Path) -> None:
    """Where a step fails at the batch size that it names itself, one at which it ran is answered for."""
    (tmp_path / "mine.py").write_text("def setup(device): ...")
    checking.facts = {"default_batch_size": 48}
    checking.runs_at = lambda n: n != 48
    for _ in range(2):
        report = api.fit(f"{tmp_path / 'mine.py'}", gpus=["H200"])
        assert 4 == report.batch_size
        assert any("batch size 48" in note for note in report.notes)
    assert 1 == _sizes(checking).count(48)


def test_data_of_ones_own_is_not_loaded_without_bounds(checking: World, tmp_path: Path) -> None:
    """How large a batch of the user's own code is traced depends on what it brings to the GPU for each sample."""
    (tmp_path / "mine.py").write_text("def setup(device): ...")
    name = str(tmp_path / "mine.py")
    largest = {}
    for input_bytes in (4, MIB // 8, 8 * MIB):
        checking.asked.clear()
        checking.kept = Book()
        data = Call((Made(0, input_bytes, "input"),))
        checking.calls[f"{name}:setup"] = [TRAINING[0], data, *TRAINING[2:]]
        largest[input_bytes] = (api.fit(name, gpus=["H200"]).gpus[0].max_batch_size, max(_sizes(checking)))

    assert largest[4][0] == largest[4][1]
    assert 2048 == largest[MIB // 8][1] < largest[MIB // 8][0]
    assert 1024 == largest[8 * MIB][1] < largest[8 * MIB][0]


def test_a_huge_batch_size_is_not_tried(world: World) -> None:
    """What the user's own code may not have the memory for is only computed."""
    report = api.fit("bert-base", gpus=["H200"], batch_size=10**6)

    assert not report.gpus[0].fits
    assert {4, 8, 67} == {size for _, size, _ in world.asked}


def test_a_batch_size_that_is_an_exception_counts_by_itself(world: World) -> None:
    """Where the size asked about takes another amount than foretold, the answer is from its own trace."""
    world.like = {48: 96}
    report = api.fit("bert-base", gpus=["H200"], batch_size=48)
    other = api.fit("bert-base", gpus=["H200"], batch_size=96)

    assert other.gpus[0].peak_reserved_bytes == report.gpus[0].peak_reserved_bytes
    assert not report.trace.affine


@pytest.mark.parametrize(
    "error",
    [CaptureError("the worker did not finish within 600 s"), DataDependentError("the step looks at a value")],
)
def test_a_check_that_comes_to_no_end_says_nothing_of_its_batch_size(checking: World, error: Exception) -> None:
    """A time limit, a crash or values to look at are told, but not kept: the next question tries again."""
    largest = api.fit("bert-base", gpus=["H200"], cache=False).gpus[0].max_batch_size
    checking.fails = {largest: error}
    stopped = api.fit("bert-base", gpus=["H200"])
    checking.fails = {}
    later = api.fit("bert-base", gpus=["H200"])

    assert () == stopped.trace.failed_batch_sizes
    assert ((4, 8, 67), (4, 8, 67, largest)) == (stopped.trace.batch_sizes, later.trace.batch_sizes)
    assert [True] == [f"at {largest:,}: {error}" in note for note in stopped.notes]
    assert () == later.notes


def test_data_of_ones_own_is_bounded_where_each_size_is_traced_by_itself(checking: World, tmp_path: Path) -> None:
    """What the batch size asked about brings to the GPU is told from a trace of another size by its samples."""
    (tmp_path / "mine.py").write_text("def setup(device): ...")
    name = str(tmp_path / "mine.py")
    checking.calls[f"{name}:setup"] = [TRAINING[0], Call((Made(0, MIB, "input"),)), *TRAINING[2:]]
    checking.bucket = 16
    checking.trace_seconds = 1e9
    api.fit(name, gpus=["H200"], batch_size=1000, cache=False)
    assert 1000 in _sizes(checking)
    checking.asked.clear()
    api.fit(name, batch_size=5000, cache=False)
    assert 5000 not in _sizes(checking)


# ---- batch sizes that stand alone -----------------------------------------------------------------------

# As a batch norm over one sample, which goes through other operators
ALONE = (*TRAINING[:2], Call((Made(64 * MIB, 64 * MIB, "activation"),), name="aten.conv2d.default"), *TRAINING[3:])


def test_a_batch_of_one_that_runs_otherwise_stands_alone(checking: World) -> None:
    """It is answered from its own trace, all others as foretold, here and in a repeat; and that is said."""
    checking.same_for = ("9.0", "8.0", "8.6", "7.0", "6.0")
    foretold = api.fit("gpt2", gpus=["H200"]).gpus[0]
    checking.calls_at = {1: ALONE}
    for card in ("H200", "H200", "T4"):
        one, other = (api.fit("bert-base", gpus=[card], batch_size=size) for size in (1, 30))
        for report in (one, other):
            assert report.trace.affine
            assert 1 in report.trace.batch_sizes
            assert [True] == ["batch size 1 was traced by itself" in note for note in report.notes]
    assert foretold.max_batch_size == api.fit("bert-base", gpus=["H200"]).gpus[0].max_batch_size
    assert (
        foretold.peak_allocated_bytes == api.fit("bert-base", gpus=["H200"], batch_size=8).gpus[0].peak_allocated_bytes
    )


def test_a_batch_of_one_fits_by_its_own_trace(checking: World) -> None:
    """That it does not fit is known from then on, also where the largest batch is looked for."""
    weight = Call((Made(100 * MIB, 0, "weight"),))
    checking.calls["bert-base"] = (weight, Call((Made(0, GIB),)))
    before = api.fit("bert-base", memory_limit_bytes=GIB + 200 * MIB, batch_size=2)
    assert (1, "no") == (before.gpus[0].max_batch_size, before.gpus[0].verdict)
    checking.calls_at = {1: (weight, Call((Made(3 * GIB),), name="aten.conv2d.default"))}
    one = api.fit("bert-base", memory_limit_bytes=GIB + 200 * MIB, batch_size=1)
    after = api.fit("bert-base", memory_limit_bytes=GIB + 200 * MIB, batch_size=2)

    assert "no" == one.gpus[0].verdict
    assert (0, "no") == (after.gpus[0].max_batch_size, after.gpus[0].verdict)


def test_a_batch_of_one_stands_alone_only_where_all_others_agree(checking: World) -> None:
    """Where a larger batch is off as well, each counts by itself."""
    checking.calls_at = {1: ALONE}
    checking.bucket, checking.bucket_from = 64, 100
    api.fit("bert-base", gpus=["H200"], batch_size=1)
    report = api.fit("bert-base", gpus=["H200"], batch_size=300)

    assert not report.trace.affine
    assert any("a storage has" in note for note in report.notes)


def test_a_step_that_runs_at_one_batch_size_alone_is_answered_for_that(checking: World) -> None:
    """Whether it fits follows from its trace; the largest batch is that one or none, on every card, and that is said."""
    elsewhere = api.fit("bert-base", batch_size=48, cache=False)
    checking.runs_at = lambda n: n == 48
    tight = api.fit("bert-base", batch_size=48, memory_limit_bytes=GIB).gpus[0]
    assert ("no", 0, 0) == (tight.verdict, tight.max_batch_size, tight.max_batch_size_safe)
    for _ in range(2):
        report = api.fit("bert-base", batch_size=48)
        assert (False, (48,), (1, 4, 16, 64)) == (
            report.trace.affine,
            report.trace.batch_sizes,
            report.trace.failed_batch_sizes,
        )
        assert [1] == [note.count("only that one is answered") for note in report.notes if "batch size 48" in note]
        assert [row.fits for row in elsewhere.gpus] == [row.fits for row in report.gpus]
        assert all((row.max_batch_size == 48) == (row.verdict in ("fits", "likely")) for row in report.gpus)
        assert {0} == {row.max_batch_size_pow2 for row in report.gpus}
    assert 48 == api.explain("bert-base", gpu="H200", batch_size=48).max_batch_size


def test_a_power_of_two_alone_is_the_largest_power_of_two(checking: World) -> None:
    """The column of 2020 has the one batch size where that is a power of two."""
    checking.runs_at = lambda n: n == 64
    row = api.fit("bert-base", gpus=["H200"], batch_size=64).gpus[0]

    assert (64, 64, 64) == (row.max_batch_size, row.max_batch_size_safe, row.max_batch_size_pow2)


def test_what_holds_for_one_batch_size_is_not_kept_for_others(checking: World) -> None:
    """Another batch size is tried afresh, and the error is about that one; without one the cure is to name it."""
    checking.runs_at = lambda n: n == 48
    api.fit("bert-base", gpus=["H200"], batch_size=48)
    with pytest.raises(StepError, match=r"at batch size 50: .*of batch sizes 1, 4, 16, 50, 64 it ran at none$"):
        api.fit("bert-base", gpus=["H200"], batch_size=50)
    with pytest.raises(StepError, match=r"at batch size 16: .*of batch sizes 1, 4, 16, 64 it ran at none$"):
        api.fit("bert-base", gpus=["H200"], batch_size=16)
    with pytest.raises(StepError, match=r"1, 4, 16, 64 it ran at none \(if it .* whichgpu fit --batch-size N\)$"):
        api.fit("bert-base", gpus=["H200"])


# ---- steps that take longer to trace for each sample ----------------------------------------------------


@pytest.mark.parametrize(("seconds", "far"), [(0.67, 512), (2.0, 128), (30.0, None), (0.3, 1024)])
def test_a_step_of_more_operators_for_each_sample_is_not_traced_for_hours(
    checking: World, seconds: float, far: int | None
) -> None:
    """No batch size is traced that would take minutes: a named card is answered by a line then, from as far as is quick."""
    checking.more_for_each = True
    checking.trace_seconds = seconds
    report = api.fit("bert-base", gpus=["H200"])
    again = api.fit("bert-base", gpus=["H200"])

    assert [True] == ["would take long to trace" in note for note in report.notes if "estimated from a line" in note]
    assert max(_sizes(checking)) == (far or 67)
    assert report.gpus == again.gpus
    assert far is None or 2_500 < report.gpus[0].max_batch_size < 3_600


def test_few_more_operators_are_traced_one_by_one(checking: World) -> None:
    """Where traces near the largest batch take seconds, a named card is answered exactly."""
    checking.more_for_each = True
    checking.trace_seconds = 0.001
    report = api.fit("bert-base", gpus=["GTX 1060 6GB"])
    largest = report.gpus[0].max_batch_size

    assert not any("estimated from a line" in note for note in report.notes)
    assert {largest, largest + 1} <= set(_sizes(checking))
