"""docs/measurements.md: what it says follows from the data that come with whichgpu."""

from __future__ import annotations

import json
from pathlib import Path

from example_measurements import measurement

import bench_sweep
import compare_batch_finders
import import_measurements
import write_measurements
from whichgpu import results_exchange
from whichgpu.results import Measurement, Store

GIB = 1 << 30


def test_the_page_is_up_to_date() -> None:
    """docs/measurements.md is generated; else run tools/write_measurements.py again."""
    assert write_measurements.page() == write_measurements.PAGE.read_text(encoding="utf-8")


def test_packaged_largest_batches_are_exact_in_few_attempts() -> None:
    """Of every packaged search the next larger batch ran out of memory too; 3 attempts in the median, 5 at most.

    Two searches of a model whose memory goes up and down with the batch took more; the page names these, and there may be
    no other.
    """
    # what the end of the time cut off is neither proved nor timed
    found = [one for one in write_measurements.findings(results_exchange.packaged()) if one.timed or not one.largest]
    attempts = sorted(one.attempts for one in found)
    assert [] == [one for one in found if not one.proved]
    assert attempts[len(attempts) // 2] <= 3
    most = [one for one in found if one.attempts > 5]
    assert {("conv-seq2seq", 24): 7, ("conv-seq2seq", 48): 11} == {
        (one.workload, one.limit_gib): one.attempts for one in most
    }
    page = write_measurements.PAGE.read_text(encoding="utf-8")
    assert all(f"{one.attempts} for `{one.workload}` under {one.limit_gib} GiB" in page for one in most)


def test_findings_tell_attempts_from_timings() -> None:
    """The first try is what was foretold; a batch that ran out of memory when timed is no attempt, and not the largest."""
    tries = [
        (10, "ok", False),
        (11, "ok", False),
        (12, "out_of_memory", False),
        (11, "out_of_memory", True),
        (10, "ok", True),
    ]
    rows = [
        measurement(
            size,
            workload="w",
            memory_limit_bytes=8 * GIB,
            outcome=outcome,
            step_s=(0.1, 0.1, 0.1) if timed and outcome == "ok" else None,
        )
        for size, outcome, timed in tries
    ]
    (found,) = write_measurements.findings(rows)
    assert (10, 10, True, 8) == (found.foretold, found.largest, found.proved, found.limit_gib)
    assert (3, (11,)) == (found.attempts, found.relapsed)
    assert found.timed is rows[-1]


def test_the_column_of_the_same_memory() -> None:
    """A limit is set beside the cards of 2020 with so much memory, with the next batch that was tried there."""
    same = write_measurements.same_memory("BERT Base", 11)
    assert (("GTX 1080 Ti", "RTX 2080 Ti"), False, 32, 64) == same
    assert (("RTX 2060",), True, 0, 2000) == write_measurements.same_memory("Transformer Big", 6)
    assert write_measurements.same_memory("BERT Base", 40) is None


def test_a_sweep_leaves_out_what_is_answered(tmp_path: Path) -> None:
    """A limit is open until the largest batch is timed and the next one was seen to fail; a star closes it, too."""
    rows = [
        measurement(
            size, workload="resnet50", memory_limit_bytes=limit * GIB, outcome=outcome, step_s=step_s, origin="local"
        )
        for limit, size, outcome, step_s in [
            (6, 10, "ok", (0.1, 0.1, 0.1)),
            (6, 11, "out_of_memory", None),
            (8, 10, "ok", None),
            (8, 11, "out_of_memory", None),
            (11, 10, "ok", (0.1, 0.1, 0.1)),
            (12, 1, "out_of_memory", None),
        ]
    ]
    file = tmp_path / "results.sqlite"
    limits = [6 * GIB, 8 * GIB, 11 * GIB, 12 * GIB]
    assert limits == bench_sweep.open_limits(file, "resnet50", limits)
    with Store(file) as store:
        store.add_all(rows)
    assert [8 * GIB, 11 * GIB] == bench_sweep.open_limits(file, "resnet50", limits)


def test_a_comparison_carries_on_and_is_a_table(tmp_path: Path) -> None:
    """A run that gave no answer is made again and replaced; the table names answer, attempts and seconds."""
    path = tmp_path / "comparison.json"
    record = compare_batch_finders.Record(path)
    record.environment = {"gpu": "Made-up GPU"}
    shared = {"workload": "gpt2", "memory_limit_bytes": 24 * GIB}
    record.add({"finder": "whichgpu", **shared, "error": "not done within 90 s"})
    record.add({"finder": "accelerate", **shared, "answer": 15, "attempts": 41, "search_s": 20.04, "total_s": 30.0})
    again = compare_batch_finders.Record(path)
    assert [False, True] == [again.answered(finder, "gpt2") for finder in ("whichgpu", "accelerate")]
    assert "no answer" in compare_batch_finders.table(path)
    again.add({"finder": "whichgpu", **shared, "answer": 16, "attempts": 2, "search_s": 7.0, "total_s": 20.0})
    assert 2 == len(json.loads(path.read_text(encoding="utf-8"))["runs"])
    assert "| `gpt2` | 24 GiB | 16 in 2, 7.0 s | 15 in 41, 20.0 s |" in compare_batch_finders.table(path)


def test_an_import_keeps_one_search_of_each_workload_and_limit() -> None:
    """A proved search beats one that is not, a timed one an untimed one, the newest the rest; what is not covered stays."""

    def one(size: int, outcome: str, limit: int, card: str, hour: int, timed: bool = False) -> Measurement:
        return measurement(
            size,
            outcome,
            timed=timed,
            memory_limit_bytes=limit * GIB,
            gpu_uuid_hash=card,
            measured_at=f"2026-12-02T{hour:02}:00:00Z",
        )

    old = [
        *(one(90, "ok", 8, "a", 9), one(91, "out_of_memory", 8, "a", 9), one(90, "ok", 8, "a", 9, timed=True)),
        *(one(120, "ok", 11, "a", 9), one(121, "out_of_memory", 11, "a", 9), one(120, "ok", 11, "a", 9, timed=True)),
        *(one(200, "ok", 16, "a", 9), one(201, "out_of_memory", 16, "a", 9), one(200, "ok", 16, "a", 9, timed=True)),
    ]
    new = [
        *(one(90, "ok", 8, "b", 13), one(91, "out_of_memory", 8, "b", 13), one(90, "ok", 8, "b", 13, timed=True)),
        *(one(120, "ok", 11, "b", 13), one(121, "out_of_memory", 11, "b", 13)),
        *(one(270, "ok", 24, "b", 13),),
    ]
    merged = import_measurements.merge(old, new)
    assert [*new[:3], *old[3:]] == merged
    assert merged == import_measurements.merge(merged, new)


def test_an_import_goes_on_with_a_search_that_was_cut_off() -> None:
    """Rows of one search that a later call ended on the same card are one search, each row once."""
    first = [measurement(90, timed=False, memory_limit_bytes=8 * GIB)]
    rest = [
        measurement(91, "out_of_memory", memory_limit_bytes=8 * GIB, flags={"tf32_matmul": True}),
        measurement(90, memory_limit_bytes=8 * GIB),
    ]
    assert [*first, *rest] == import_measurements.merge(first, [*first, *rest])


def test_where_another_finder_was_faster_is_said(tmp_path: Path) -> None:
    """The page counts seconds against the finders that bisect, and names each workload that whichgpu lost."""
    record = compare_batch_finders.Record(tmp_path / "comparison.json")
    for name, finder, answer, seconds in [
        ("gpt2", "whichgpu", 16, 8.6),
        ("gpt2", "batch-probe", 16, 7.8),
        ("bert-base", "whichgpu", 80, 7.0),
        ("bert-base", "batch-probe", 77, 9.5),
    ]:
        found = {"answer": answer, "attempts": 2, "search_s": seconds, "total_s": 20.0, "exact": True}
        record.add({"finder": finder, "workload": name, "memory_limit_bytes": 8 * GIB, **found})
    words = "\n".join(write_measurements.in_short(record))
    assert "2 in the median, 2 at most; the answer is proved in 2 of 2" in words
    assert "no slower in 1 of 2; it was slower for `gpt2`, 8.6 s against 7.8 s. Its answer was smaller in 1" in words
