"""`whichgpu results` and `whichgpu tables` from end to end: what they print, and every mistake in one line."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_measurements import GIB, measurement, search
from example_reports import rank_report

from whichgpu import api, cli, results_exchange
from whichgpu.results import Store


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # the command leaves a signal handler, as its process ends with it
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(results_exchange, "packaged", lambda: ())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file of results, with a few rows."""
    path = tmp_path / "data" / "results.sqlite"
    monkeypatch.setenv("WHICHGPU_RESULTS", str(path))
    with Store(path) as store:
        store.add_all([*search(1800), *search(96, memory_limit_bytes=8 * GIB), measurement(4, workload="gpt2")])
        store.add(measurement(7, origin="lab", gpu="Odd card", gpu_id=None))
    return path


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file that is not there yet."""
    path = tmp_path / "data" / "results.sqlite"
    monkeypatch.setenv("WHICHGPU_RESULTS", str(path))
    return path


def run(*arguments: str) -> int:
    """The exit code of the command in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake is answered with; nothing goes to standard output."""
    assert 2 == run(*arguments)
    said = capsys.readouterr()
    assert "" == said.out
    assert said.err.startswith("error: ")
    assert 1 == said.err.count("\n")
    return said.err


def sizes(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[int]:
    """The batch sizes that `whichgpu results ... --json` lists."""
    assert 0 == run("results", *arguments, "--json")
    return [row["batch_size"] for row in json.loads(capsys.readouterr().out)]


# ---- results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [[], ["list"]])
def test_results_are_listed_and_filtered(word: list[str], file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without the word list: everything in order, or what the filters leave; cards by any of their names."""
    assert [1800, 1801, 96, 97, 4, 7] == sizes(capsys, *word)
    assert [4] == sizes(capsys, *word, "--workload", "gpt2")
    assert [1801, 97] == sizes(capsys, *word, "--outcome", "out_of_memory")
    assert [1800, 1801, 96, 97, 4] == sizes(capsys, *word, "--gpu", "h200")
    assert [7] == sizes(capsys, *word, "--gpu", "Odd card")
    assert [7] == sizes(capsys, *word, "--origin", "lab")
    assert [4, 7] == sizes(capsys, *word, "--workload", "gpt2", "--workload", "resnet50", "--outcome", "ok")[-2:]
    assert [] == sizes(capsys, *word, "--workload", "none")


def test_results_are_shown_with_their_environments(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list for a person names each environment and says that the figures are measured."""
    assert 0 == run("results")
    shown = capsys.readouterr().out
    assert shown.startswith("Measurements: measured")
    assert "[2] Odd card" in shown


def test_without_a_file_there_is_nothing_and_no_file_is_made(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asking before anything was measured is no mistake and writes nothing."""
    assert [] == sizes(capsys)
    assert 0 == run("results")
    assert "whichgpu bench" in capsys.readouterr().out
    assert not nothing.parent.exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_results_go_from_lab_to_lab(
    suffix: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export is imported elsewhere with its origin, once only, and can be asked for by that."""
    out, there = str(tmp_path / f"ours{suffix}"), str(tmp_path / "there.sqlite")
    assert 0 == run("results", "export", out, "--workload", "resnet50")
    assert f"5 measurements written to {out}" in capsys.readouterr().out
    assert 0 == run("results", "import", out, "--origin", "North", "--results", there)
    assert "5 measurements imported from North, lab" in capsys.readouterr().out
    assert [1800, 1801, 96, 97] == sizes(capsys, "--origin", "North", "--results", there)
    assert [7] == sizes(capsys, "--origin", "lab", "--results", there)
    assert 0 == run("results", "import", out, "--origin", "North", "--results", there)
    assert "0 measurements imported from North, lab; 5 measurements on record already" in capsys.readouterr().out


def test_mistakes_of_results_are_one_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each wrong value is named with the cure, and no file is left behind."""
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    (tmp_path / "text.sqlite").write_text("no database, but long enough to be read as one\n" * 50)
    before = set(tmp_path.rglob("*"))
    assert "no outcome" in mistake(capsys, "results", "--outcome", "fine")
    assert "after `whichgpu results export`" in mistake(capsys, "results", "--gpu", "h200", "export", "x.csv")
    assert "cannot be opened" in mistake(capsys, "results", "--results", str(tmp_path / "none.sqlite"))
    assert "not a file of results" in mistake(capsys, "results", "--results", str(tmp_path / "text.sqlite"))
    assert "end the name in" in mistake(capsys, "results", "export", str(tmp_path / "x.xlsx"))
    assert "nothing was written" in mistake(capsys, "results", "export", str(tmp_path / "x.csv"), "--origin", "none")
    assert "cannot be written" in mistake(capsys, "results", "export", str(tmp_path / "none" / "x.csv"))
    assert "cannot be read" in mistake(capsys, "results", "import", str(tmp_path / "none.csv"))
    assert "no column" in mistake(capsys, "results", "import", str(tmp_path / "bad.csv"))
    assert "cannot be the origin" in mistake(
        capsys, "results", "import", str(tmp_path / "bad.csv"), "--origin", "local"
    )
    assert "xport" in mistake(capsys, "results", "exprot", "x.csv")
    assert before == {path for path in tmp_path.rglob("*") if not path.name.endswith(("-wal", "-shm"))}


# ---- tables -------------------------------------------------------------------------------------------


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """A table as JSON."""
    assert 0 == run("tables", *arguments, "--json")
    return json.loads(capsys.readouterr().out)


def test_measured_tables_are_of_what_is_on_record(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word about the source, figures are those on record; cards and workloads can be chosen by name."""
    found = table(capsys, "max-batch")
    assert "measured" == found["basis"]
    assert ["resnet50", "gpt2"] == [row["workload"] for row in found["rows"]]
    found = table(capsys, "relative", "resnet50", "--gpu", "h200", "--baseline", "h200 limited to 8 GiB")
    assert [1.0, 18.75] == [cell["value"] for cell in found["rows"][0]["cells"]]
    found = table(capsys, "max-batch", "--gpu", "odd card")
    assert ["Odd card"] == [card["name"] for card in found["cards"]]
    assert [1024] == [cell["value"] for cell in table(capsys, "max-batch", "--power-of-two")["rows"][0]["cells"]][1:2]
    assert {"H200 SXM 141GB", "Odd card"} <= {row["gpu"] for row in table(capsys, "tiers")["cards"]}


def test_packaged_measurements_are_in_the_tables(
    nothing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes with the package is there before anything was measured here, and says where it comes from."""
    monkeypatch.setattr(results_exchange, "packaged", lambda: tuple(search(64, origin="packaged")))
    found = table(capsys, "max-batch")
    assert 64 == found["rows"][0]["cells"][0]["value"]
    assert "origin packaged" in found["cards"][0]["environment"]


def test_predicted_tables_are_the_rankings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Predictions come from the same call as `whichgpu rank`, with the workloads as named."""
    asked: list[Any] = []

    def rank(names: list[str], **options: Any) -> Any:
        asked.append((names, options["cache"]))
        return rank_report(8)

    monkeypatch.setattr(api, "rank", rank)
    found = table(capsys, "max-batch", "resnet50", "gpt2", "--source", "predicted", "--no-cache", "--gpu", "RTX 4090")
    assert [(["resnet50", "gpt2"], False)] == asked
    assert "predicted" == found["basis"]
    assert ["RTX 4090"] == [card["name"] for card in found["cards"]]


@pytest.mark.parametrize("kind", ["max-batch", "throughput", "relative", "tiers"])
def test_published_tables_say_so_in_every_format(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, Markdown, CSV and JSON each name the article, its date and the basis."""
    for layout in ("terminal", "markdown", "csv", "json"):
        assert 0 == run("tables", kind, "--source", "published", "--format", layout)
        shown = " ".join(capsys.readouterr().out.split())
        assert "Choosing the Best GPU for Deep Learning in 2020" in shown
        assert "2020-02" in shown
        assert "published" in shown


def test_published_workloads_and_cards_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Names are taken in any case, and cards as the catalogue takes them."""
    arguments = ("throughput", "bert base", "mt-dnn", "--gpu", "2080ti", "--gpu", "titan rtx", "--source", "published")
    assert 0 == run("tables", *arguments, "--format", "csv")
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert ["workload", "family", "unit", "RTX 2080 Ti", "Titan RTX", "basis", "source", "row_source"] == rows[0]
    assert ["raw", "raw"] == [row[-1] for row in rows[1:]]
    assert [["82.71", "102.38"], ["9.4", "18.16"]] == [row[3:5] for row in rows[1:]]


def test_mistakes_of_tables_are_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each wrong word is named, with those that there are."""
    published = ("--source", "published")
    assert "max-batch, throughput, relative or tiers" in mistake(capsys, "tables", "biggest")
    assert "measured, predicted or published" in mistake(capsys, "tables", "tiers", "--source", "guessed")
    assert "terminal, markdown, csv or json" in mistake(capsys, "tables", "tiers", "--format", "html")
    assert "choose one" in mistake(capsys, "tables", "tiers", "--format", "csv", "--json")
    assert "tables relative" in mistake(capsys, "tables", "throughput", "--baseline", "h200")
    assert "tables max-batch" in mistake(capsys, "tables", "tiers", "--power-of-two")
    assert "name the workloads" in mistake(capsys, "tables", "throughput", "--source", "predicted")
    assert "name the workloads" in mistake(capsys, "tables", "tiers", "--source", "predicted")
    assert "no card is called" in mistake(capsys, "tables", "tiers", "w", "--source", "predicted", "--gpu", "xyz")
    assert "NasNet Large" in mistake(capsys, "tables", "max-batch", "nasnet larg", *published)
    assert "gpt2" in mistake(capsys, "tables", "max-batch", "gpt3")
    assert "the table has no 'H100 SXM'" in mistake(capsys, "tables", "max-batch", "--gpu", "H100 SXM", *published)
    assert "no card is called" in mistake(capsys, "tables", "max-batch", "--gpu", "nothing like it", *published)
    assert "is not in the table" in mistake(capsys, "tables", "relative", "--baseline", "H100 SXM", *published)
    assert "cannot be opened" in mistake(capsys, "tables", "tiers", "--results", str(file.parent / "none"))


def test_without_measurements_the_cure_is_told(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing measured, nothing packaged: the line names what makes measurements and what needs none."""
    said = mistake(capsys, "tables", "max-batch")
    assert all(word in said for word in ("whichgpu bench", "whichgpu results import", "--source predicted"))


@pytest.mark.parametrize("arguments", [["results"], ["tables", "tiers", "--source", "published"]])
def test_torch_is_not_loaded(arguments: list[str], tmp_path: Path) -> None:
    """Lists and tables of what is known load no torch."""
    code = f"from whichgpu.cli import _run; _run({arguments!r})\nimport sys\nassert 'torch' not in sys.modules"
    environment = {**os.environ, "WHICHGPU_RESULTS": str(tmp_path / "none.sqlite")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert (0, "") == (done.returncode, done.stderr)
