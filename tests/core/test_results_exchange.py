"""Results as files: what is exported is what is imported, and no bad row gets in."""

from __future__ import annotations

import builtins
import csv
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_measurements import GIB, measurement
from hypothesis import given
from hypothesis import strategies as st

from whichgpu import results_exchange
from whichgpu.errors import InputError, ResultsError
from whichgpu.results import OUTCOMES, Measurement

ARROW = importlib.util.find_spec("pyarrow") is not None
parquet = pytest.param(".parquet", marks=pytest.mark.skipif(not ARROW, reason="pyarrow is not installed"))
every_kind = pytest.mark.parametrize("suffix", [".csv", ".jsonl", parquet])
MADE = [
    measurement(memory_limit_bytes=8 * GIB, throttled=("power",)),
    measurement(65, "out_of_memory", message='said "no",\nand again', cudnn=None, gpu_id=None),
    measurement(2, workload="timm:vit?size=224&precision=fp16", libraries={}, flags={"a": True, "b": "x"}),
]


def returned(made: list[Measurement], suffix: str, folder: Path) -> list[Measurement]:
    """Measurements after a way out and back."""
    path = folder / f"lab{suffix}"
    results_exchange.export_file(made, path)
    return results_exchange.import_file(path)


def at(origin: str, made: list[Measurement]) -> list[Measurement]:
    """The same, measured elsewhere."""
    return [msgspec.structs.replace(one, origin=origin) for one in made]


@every_kind
def test_what_is_exported_is_imported(suffix: str, tmp_path: Path) -> None:
    """Every field comes back equal from each kind of file; only the origin tells that it was elsewhere."""
    assert at("lab", MADE) == returned(MADE, suffix, tmp_path)


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)


@given(
    suffix=st.sampled_from([".csv", ".jsonl"]),
    workload=words,
    batch_size=st.integers(1, 2**40),
    outcome=st.sampled_from(OUTCOMES),
    message=st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1),
    power_w=st.none() | st.floats(0, 1e6),
    temperature_c=st.none() | st.floats(-50, 150),
    converged=st.none() | st.booleans(),
    unit=st.just("") | words,
    driver=st.just("") | words,
    libraries=st.dictionaries(words, words, max_size=3),
    flags=st.dictionaries(words, st.booleans() | words, max_size=3),
)
def test_no_figure_and_no_text_is_changed(tmp_path_factory: pytest.TempPathFactory, suffix: str, **fields: Any) -> None:
    """Whatever a measurement says comes back, the last bit of its figures included."""
    made = [measurement(**{"timed": False, **fields})]
    assert at("lab", made) == returned(made, suffix, tmp_path_factory.mktemp("any"))


def test_the_origin_is_kept(tmp_path: Path) -> None:
    """What was local there gets the name given or the file's; what came from a third place keeps its name."""
    path = tmp_path / "north.jsonl"
    results_exchange.export_file([measurement(1), measurement(2, origin="south")], path)
    assert ["north", "south"] == [one.origin for one in results_exchange.import_file(path)]
    assert ["East lab", "south"] == [one.origin for one in results_exchange.import_file(path, "East lab")]


@pytest.mark.parametrize("origin", ["local", "packaged", "", "  ", "a\nb"])
def test_an_origin_that_is_none_is_refused(origin: str, tmp_path: Path) -> None:
    """Nothing imported may pass for what was measured here, or for nothing."""
    results_exchange.export_file(MADE, tmp_path / "lab.csv")
    with pytest.raises(InputError, match="--origin"):
        results_exchange.import_file(tmp_path / "lab.csv", origin)


def test_packaged_measurements_say_so() -> None:
    """Measurements that come with the package are never local, and all of them pass the checks of an import."""
    assert "local" not in {one.origin for one in results_exchange.packaged()}


# ---- writing ------------------------------------------------------------------------------------------


def test_the_suffix_decides_and_others_are_refused(tmp_path: Path) -> None:
    """A name that ends in none of the kinds is told which there are; nothing is written."""
    for name in ("lab", "lab.xlsx", ".csv.gz"):
        with pytest.raises(InputError, match=r"\.csv, \.jsonl, \.parquet"):
            results_exchange.export_file(MADE, tmp_path / name)
        with pytest.raises(InputError, match=r"\.csv, \.jsonl, \.parquet"):
            results_exchange.import_file(tmp_path / name)
    assert [] == list(tmp_path.iterdir())


def test_an_export_replaces_the_file_whole(tmp_path: Path) -> None:
    """An older file is replaced, and nothing else is left in the folder."""
    path = tmp_path / "lab.csv"
    path.write_text("old\n" * 1000)
    results_exchange.export_file(MADE[:1], path)
    assert at("lab", MADE[:1]) == results_exchange.import_file(path)
    assert [path] == list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is not there, a folder in place of the file and a full disk are one line; the old file stays."""
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "folder.csv", tmp_path / "none" / "lab.csv"):
        with pytest.raises(ResultsError, match="cannot be written"):
            results_exchange.export_file(MADE, path)
    old = tmp_path / "lab.csv"
    old.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ResultsError, match="No space left"):
        results_exchange.export_file(MADE, old)
    assert "old" == old.read_text()
    assert {old, tmp_path / "folder.csv"} == set(tmp_path.iterdir())


def test_without_pyarrow_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet without its library is one line, which names the extra and the other kinds."""
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    path = tmp_path / "lab.parquet"
    with pytest.raises(ResultsError, match=r"whichgpu\[parquet\]"):
        results_exchange.export_file(MADE, path)
    assert [] == list(tmp_path.iterdir())
    path.write_bytes(b"PAR1")
    with pytest.raises(ResultsError, match=r"whichgpu\[parquet\]"):
        results_exchange.import_file(path)


def test_csv_has_plain_columns(tmp_path: Path) -> None:
    """A spreadsheet or a script finds one row a measurement, unknown figures empty, switches as true and false."""
    results_exchange.export_file(MADE, tmp_path / "lab.csv")
    with (tmp_path / "lab.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert ["64", "65", "2"] == [row["batch_size"] for row in rows]
    assert ["256.0", "", "8.0"] == [row["samples_per_second"] for row in rows]
    assert ["true", "", "true"] == [row["converged"] for row in rows]
    assert {"1"} == {row["format"] for row in rows}
    assert '{"a":true,"b":"x"}' == rows[2]["flags"]


# ---- bad files ----------------------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    """A row of JSON lines with some fields changed, those of the environment too."""
    made: dict[str, Any] = {"format": 1, **msgspec.to_builtins(measurement())}
    for key, value in changes.items():
        (made["environment"] if key in made["environment"] else made)[key] = value
    return made


BAD_ROWS = {
    "batch_size": row(batch_size=0),
    "outcome": row(outcome="fine"),
    "workload": row(workload=""),
    "peak_allocated_bytes": row(peak_allocated_bytes=3 * GIB),
    "peak_reserved_bytes": row(peak_reserved_bytes=9 * GIB, memory_limit_bytes=8 * GIB),
    "memory_limit_bytes": row(memory_limit_bytes=1000 * GIB),
    "step_s": row(step_s=[0.25, 0.26, 0.27]),
    "samples_per_second": row(samples_per_second=1000.0),
    "measured_at": row(measured_at="2026-11-30T12:00:00"),
    "gpu_memory_bytes": row(gpu_memory_bytes=None),
    "torch": row(torch=2.11),
    "gpu": row(gpu="H200\x1b[31m"),
    "flags": row(flags={"tf32": 1}),
    "newer whichgpu": row(format=2),
    "version of this format": row(format=None),
    "unknown field": row(colour="red"),
    "missing required field": {key: value for key, value in row().items() if key != "steps"},
    "no JSON object": [1, 2],
}


@pytest.mark.parametrize("problem", BAD_ROWS)
def test_a_bad_row_is_named_and_nothing_is_imported(problem: str, tmp_path: Path) -> None:
    """The message names file, line and field, and says that nothing was imported."""
    path = tmp_path / "lab.jsonl"
    lines = [json.dumps(row()), "", json.dumps(BAD_ROWS[problem]), json.dumps(row())]
    path.write_text("\n".join(lines))
    with pytest.raises(ResultsError) as caught:
        results_exchange.import_file(path)
    said = str(caught.value)
    assert said.startswith("lab.jsonl, line 3: ")
    assert problem in said
    assert "nothing was imported" in said
    assert said.isprintable()


def edited(change: Callable[[list[list[str]]], None]) -> str:
    """A good CSV file after somebody edited its cells."""
    rows = list(csv.reader(io.StringIO(results_exchange._to_csv(MADE).decode(), newline="")))
    change(rows)
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def cell(column: str, words: str) -> Callable[[list[list[str]]], None]:
    """Overwrites a cell of the second measurement."""
    return lambda rows: rows[2].__setitem__(rows[0].index(column), words)


BAD_CSV = {
    "batch_size": cell("batch_size", "many"),
    "steps": cell("steps", ""),
    "power_w": cell("power_w", "nan"),
    "temperature_c": cell("temperature_c", "inf"),
    "converged": cell("converged", "perhaps"),
    "malformed": cell("flags", "{tf32"),
    "not as many cells": lambda rows: rows[2].pop(),
    "as many cells as": lambda rows: rows[2].append("1"),
    "format": cell("format", "one"),
}


@pytest.mark.parametrize("problem", BAD_CSV)
def test_a_bad_cell_is_named(problem: str, tmp_path: Path) -> None:
    """Cells that are no figures, and rows of another length, are told with their line."""
    (tmp_path / "lab.csv").write_text(edited(BAD_CSV[problem]), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"lab\.csv, line \d+: .*nothing was imported") as caught:
        results_exchange.import_file(tmp_path / "lab.csv")
    assert problem in str(caught.value)


def test_columns_must_be_those_that_are_exported(tmp_path: Path) -> None:
    """A column too few, too many or twice is named."""
    path = tmp_path / "lab.csv"
    for change, said in (
        (lambda rows: [line.pop() for line in rows], "no column 'whichgpu'"),
        (lambda rows: [line.append("x") for line in rows], "a column 'x'"),
        (lambda rows: [line.append(line[0]) for line in rows], "a column twice"),
    ):
        path.write_text(edited(change), encoding="utf-8")
        with pytest.raises(ResultsError, match=said):
            results_exchange.import_file(path)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("lab.csv", b"", "no column"),
        ("lab.csv", b"\xff\xfe\x00", "not CSV in UTF-8"),
        ("lab.jsonl", b"", "has no measurements"),
        ("lab.jsonl", b"\n\n", "has no measurements"),
        ("lab.jsonl", b"{", "line 1"),
        ("lab.jsonl", b"\xff\xfe", "line 1"),
        ("lab.jsonl", b"9" * (1 << 21), "too long"),
        pytest.param("lab.parquet", b"PAR1 and nothing", "not Parquet", marks=parquet.marks),
    ],
)
def test_other_files_are_told_in_a_line(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    """Files that are not what their names say are no crash."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ResultsError, match=said) as caught:
        results_exchange.import_file(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A missing file and a folder are named."""
    (tmp_path / "folder.csv").mkdir()
    for name in ("none.csv", "folder.csv"):
        with pytest.raises(ResultsError, match="cannot be read"):
            results_exchange.import_file(tmp_path / name)
