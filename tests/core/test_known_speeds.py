"""Measured and published speeds in the place of predictions: which count, and that they are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_measurements import measurement
from made_up_tracer import World

import whichgpu
from whichgpu import known_speeds, results_exchange, workload
from whichgpu.render.speed import speed_facts
from whichgpu.results import Store
from whichgpu.table_sources import make_table
from whichgpu.tables import Table


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results file of one's own, and nothing packaged."""
    path = tmp_path / "results.sqlite"
    monkeypatch.setenv("WHICHGPU_RESULTS", str(path))
    monkeypatch.setattr(results_exchange, "packaged", lambda: ())
    return path


def test_a_measurement_of_the_same_batch_takes_the_place_of_a_prediction(world: World, record: Path) -> None:
    """Same workload, card and batch: it is used, named and dated; at another batch it stands beside the prediction."""
    (before,) = whichgpu.fit("bert-base", gpus=["H200"]).gpus
    largest = before.max_batch_size
    with Store(record) as store:
        store.add(measurement(largest, workload="bert-base"))
        store.add(measurement(7, workload="bert-base"))
        store.add(measurement(9, "out_of_memory", workload="bert-base"))
        store.add(measurement(largest, workload="resnet50"))
    (after,) = whichgpu.fit("bert-base", gpus=["H200"]).gpus

    assert before.speed is not None
    assert after.speed is not None
    assert ("predicted", "measured") == (before.speed.basis, after.speed.basis)
    assert "own results, 2026-11-30" in after.speed.source
    assert 0.25 == after.speed.step_s
    assert [7, largest] == [one.batch_size for one in after.known_speeds]
    assert before.relative_speed == after.relative_speed
    words = " ".join(said for _, said in speed_facts(after, None))
    assert "measured (own results" in words


def test_other_cards_keep_their_predictions(world: World, record: Path) -> None:
    """A measurement is of its card alone."""
    with Store(record) as store:
        store.add(measurement(64, workload="bert-base"))
    rows = whichgpu.fit("bert-base", gpus=["A40", "H100 SXM"]).gpus

    assert [()] * 2 == [row.known_speeds for row in rows]


def test_files_of_the_users_may_have_changed(tmp_path: Path) -> None:
    """What was measured of a file is not taken for what it is now."""
    path = tmp_path / "train.py"
    path.write_text("def setup(device): ...\n", encoding="utf-8")

    assert {} == known_speeds.known_speeds(workload.parse(f"{path}:setup"))


def test_a_damaged_record_is_no_reason_not_to_predict(world: World, record: Path) -> None:
    """`fit` answers from predictions."""
    record.write_bytes(b"no database" * 100)
    (row,) = whichgpu.fit("bert-base", gpus=["H200"]).gpus

    assert row.speed is not None
    assert "predicted" == row.speed.basis


def test_published_figures_are_named() -> None:
    """The article's images and sequences per second are samples; words per second are not."""
    found = known_speeds.known_speeds(workload.parse("nasnet-large"))
    rtx_8000 = found["quadro-rtx-8000"][64]

    assert "published" == rtx_8000.basis
    assert "2020" in rtx_8000.source
    assert rtx_8000.samples_per_s_low == rtx_8000.samples_per_s == rtx_8000.samples_per_s_high
    by_words = known_speeds.known_speeds(workload.parse("transformer-big"))
    assert {"measured"} == {one.basis for by_batch in by_words.values() for one in by_batch.values()}
    assert {} == known_speeds.known_speeds(workload.parse("nasnet-large?optimizer=sgd"))


def test_a_table_of_predictions_holds_nothing_else(world: World, record: Path) -> None:
    """Figures of several sources never stand in one table."""
    (row,) = whichgpu.rank(["bert-base"], gpus=["H200"]).gpus
    with Store(record) as store:
        store.add(measurement(row.max_batch_size["bert-base"], workload="bert-base"))
    (after,) = whichgpu.rank(["bert-base"], gpus=["H200"]).gpus
    table = make_table("throughput", ["bert-base"], gpus=["H200"], source="predicted")
    before = row.speed["bert-base"]
    used = after.speed["bert-base"]

    assert before is not None
    assert used is not None
    assert "measured" == used.basis
    assert isinstance(table, Table)
    assert "predicted" == table.basis
    assert before.samples_per_s == table.rows[0].cells[0].value
    assert before.batch_size == table.rows[0].cells[0].batch_size


def test_relative_speeds_of_a_table_are_ratios_of_its_throughputs(world: World) -> None:
    """The baseline is 1, also where it was not named among the cards."""
    asked = {"gpus": ["T4", "A40"], "source": "predicted"}
    rates = make_table("throughput", ["bert-base"], **asked)  # type: ignore[arg-type]
    ratios = make_table("relative", ["bert-base"], baseline="T4", **asked)  # type: ignore[arg-type]
    assert isinstance(rates, Table)
    assert isinstance(ratios, Table)
    t4, a40 = (cell.value for cell in rates.rows[0].cells)

    assert "T4" == ratios.baseline
    assert t4 is not None
    assert a40 is not None
    assert [1.0, round(a40 / t4, 4)] == [cell.value for cell in ratios.rows[0].cells]
