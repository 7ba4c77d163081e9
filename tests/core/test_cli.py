"""The command line: options in, one call, one print; errors in one line; no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import typer.main
from example_reports import explain_report, fit_report, rank_report

import whichgpu
from whichgpu import cli
from whichgpu.commands import progress as progress_line
from whichgpu.errors import CatalogueError

ROOT = Path(__file__).parents[2]
OPTIONS = {
    "": ["--version"],
    "fit": [
        "WORKLOAD",
        "--batch-size",
        "--gpu",
        "--memory-limit",
        "--optimizer",
        "--baseline",
        "--host-speed",
        "--samples",
        "--epochs",
        "--dataset-size",
        "--catalogue",
        "--timeout",
        "--no-cache",
        "--json",
    ],
    "explain": [
        "WORKLOAD",
        "--batch-size",
        "--gpu",
        "--snapshot",
        "--roofline",
        "--host-speed",
        "--catalogue",
        "--timeout",
        "--no-cache",
        "--json",
    ],
    "rank": [
        "[WORKLOAD...]",
        "--set",
        "--gpu",
        "--baseline",
        "--host-speed",
        "--samples",
        "--epochs",
        "--dataset-size",
        "--sort",
        "--currency",
        "--catalogue",
        "--timeout",
        "--no-cache",
        "--json",
    ],
    "advise": [
        "[WORKLOAD...]",
        "--set",
        "--samples",
        "--epochs",
        "--dataset-size",
        "--batch-size",
        "--buy",
        "--rent",
        "--free",
        "--budget",
        "--deadline",
        "--hours-per-week",
        "--own",
        "--gpu",
        "--min-memory",
        "--architecture",
        "--form",
        "--vendor",
        "--max-power",
        "--provider",
        "--region",
        "--spot",
        "--on-demand",
        "--used",
        "--new",
        "--power-price",
        "--resale",
        "--currency",
        "--as-of",
        "--all",
        "--why",
        "--host-speed",
        "--catalogue",
        "--timeout",
        "--no-cache",
        "--json",
    ],
    "bench": [
        "[WORKLOAD...]",
        "--set",
        "--gpu-index",
        "--batch-size",
        "--memory-limit",
        "--power-of-two",
        "--steps",
        "--time-budget",
        "--speeds",
        "--timeout",
        "--precision",
        "--optimizer",
        "--data",
        "--results",
        "--catalogue",
        "--again",
        "--calibrate-host",
        "--json",
    ],
    "gpus": ["[NAME]", "--catalogue", "--json"],
    "accuracy": ["[WHAT]", "--markdown", "--json"],
    "zoo": ["--set", "--json"],
    "results": ["--workload", "--gpu", "--outcome", "--origin", "--results", "--catalogue", "--json"],
    "chart": [
        "CHART",
        "[WORKLOAD...]",
        "--set",
        "--gpu",
        "--baseline",
        "--price",
        "--out",
        "--host-speed",
        "--catalogue",
        "--timeout",
        "--no-cache",
        "--json",
    ],
    "results list": ["--workload", "--gpu", "--outcome", "--origin", "--results", "--catalogue", "--json"],
    "results export": ["FILE", "--workload", "--gpu", "--outcome", "--origin", "--results", "--catalogue"],
    "results import": ["FILE", "--origin", "--results"],
    "tables": [
        "TABLE",
        "[WORKLOAD...]",
        "--set",
        "--gpu",
        "--baseline",
        "--source",
        "--beside",
        "--power-of-two",
        "--results",
        "--catalogue",
        "--format",
        "--no-cache",
        "--json",
    ],
    "prices": ["[GPU...]", "--currency", "--used", "--as-of", "--catalogue", "--json"],
    "free": ["--catalogue", "--json"],
    "update": ["--yes", "--dry-run", "--catalogue", "--json"],
}


class FakeApi(types.ModuleType):
    """Stands for whichgpu.api: records what it is called with."""

    def __init__(self) -> None:
        super().__init__("whichgpu.api")
        self.calls: list[tuple[Any, ...]] = []
        self.failure: BaseException | None = None

    def fit(self, workload: str, **options: Any) -> Any:
        """Answer with a made-up report."""
        return self._answer(fit_report(), workload, options)

    def explain(self, workload: str, **options: Any) -> Any:
        """Answer with a made-up explanation."""
        return self._answer(explain_report(), workload, options)

    def rank(self, workloads: list[str], **options: Any) -> Any:
        """Answer with a made-up ranking."""
        return self._answer(rank_report(), workloads, options)

    def _answer(self, report: Any, *call: Any) -> Any:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure
        return report


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The command line with a fake behind it."""
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "whichgpu.api", fake)
    monkeypatch.setattr(whichgpu, "api", fake, raising=False)
    # the command leaves a signal handler, as its process ends with it
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return fake


def run(*arguments: str) -> int:
    """The exit code of the command in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


def test_the_commands_and_options_are_stable() -> None:
    """Scripts rely on the names of commands and options: these lists only grow."""
    root: Any = typer.main.get_command(cli.app)
    seen = {"": root, **root.commands}
    for name, command in root.commands.items():
        seen |= {f"{name} {part}": inner for part, inner in getattr(command, "commands", {}).items()}
    names = {
        name: [p.metavar if p.param_type_name == "argument" else p.opts[0] for p in command.params]
        for name, command in seen.items()
    }
    assert OPTIONS == names


@pytest.mark.parametrize(
    "code",
    [
        "import whichgpu",
        "import whichgpu, whichgpu.api",
        "from whichgpu.cli import _run; _run(['--help'])",
        "from whichgpu.cli import _run; _run(['fit', '--help'])",
        "from whichgpu.cli import _run; _run(['gpus'])",
        "from whichgpu.cli import _run; _run(['zoo'])",
        "from whichgpu.cli import _run; _run(['accuracy'])",
    ],
)
def test_torch_is_not_loaded(code: str) -> None:
    """Importing the package and asking for help or lists loads no torch, nor the compiler."""
    done = python("-c", f"{code}\nimport sys\nassert not {{'numba', 'torch'}} & set(sys.modules)")
    assert (0, "") == (done.returncode, done.stderr)


def test_help_loads_little() -> None:
    """Asking for help loads neither the tables' library nor the predictors."""
    code = "from whichgpu.cli import _run; _run(['--help'])\nimport sys\nprint(*sys.modules)"
    modules = python("-c", code).stdout.split()
    assert not {"rich.table", "whichgpu.api", "whichgpu.catalogue", "msgspec"} & set(modules)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_the_commands(arguments: list[str]) -> None:
    """Without a command, and with --help, the commands are listed."""
    done = python("-m", "whichgpu", *arguments)
    assert 0 == done.returncode
    for command in ("fit", "explain", "rank", "advise", "gpus", "zoo"):
        assert f"\n  {command} " in done.stdout


SHADOWED = ["dataclasses", "enum", "json", "msgspec", "random", "subprocess", "typer", "typing"]


def test_a_users_modules_stand_in_for_nobody(tmp_path: Path) -> None:
    """`python -m whichgpu` answers, as the command does, in a folder whose files are named like Python's own."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('mine')\n")
    source = str(Path(whichgpu.__file__).parents[1])
    done = python("-m", "whichgpu", "gpus", cwd=tmp_path, env={**os.environ, "PYTHONPATH": source})
    assert (0, "") == (done.returncode, done.stderr)
    assert {f"{name}.py" for name in SHADOWED} == {path.name for path in tmp_path.iterdir()}


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str], api: FakeApi) -> None:
    """--version prints one line and does nothing else."""
    assert 0 == run("--version")
    assert ["whichgpu"] == capsys.readouterr().out.split()[:1]


def test_fit_passes_everything_on(api: FakeApi) -> None:
    """Each option of fit reaches the call in its unit."""
    arguments = "resnet50 --batch-size 64 --gpu 4090 --gpu h100 --memory-limit 8GiB --optimizer sgd --baseline a40 --host-speed 0.5 --epochs 3 --dataset-size 1000 --no-cache --timeout 90"
    assert 0 == run("fit", *arguments.split())
    assert [
        (
            "resnet50",
            {
                "batch_size": 64,
                "gpus": ["4090", "h100"],
                "memory_limit_bytes": 8 << 30,
                "optimizer": "sgd",
                "baseline": "a40",
                "host_speed": 0.5,
                "samples": None,
                "epochs": 3,
                "dataset_size": 1000,
                "cache": False,
                "on_progress": ANY,
                "timeout_s": 90.0,
            },
        )
    ] == api.calls


def test_fit_leaves_what_is_not_said_open(api: FakeApi) -> None:
    """What is not given is None, so that the call decides; the cache is used."""
    assert 0 == run("fit", "resnet50")
    ((_, options),) = api.calls
    assert {
        "batch_size": None,
        "gpus": None,
        "memory_limit_bytes": None,
        "optimizer": None,
        "baseline": None,
        "host_speed": None,
        "samples": None,
        "epochs": None,
        "dataset_size": None,
        "cache": True,
        "on_progress": ANY,
        "timeout_s": 600.0,
    } == options


def test_explain_passes_everything_on(api: FakeApi) -> None:
    """Each option of explain reaches the call, and what is not given is None."""
    assert 0 == run(
        "explain",
        *"resnet50 --batch-size 64 --gpu 4090 --snapshot s.pickle --roofline r.svg --host-speed 0.5 --no-cache".split(),
    )
    assert 0 == run("explain", "resnet50", "--json")
    given = {
        "batch_size": 64,
        "gpu": "4090",
        "snapshot": "s.pickle",
        "roofline": "r.svg",
        "host_speed": 0.5,
        "cache": False,
        "on_progress": ANY,
        "timeout_s": 600.0,
    }
    left = dict.fromkeys(("batch_size", "gpu", "snapshot", "roofline", "host_speed")) | {
        "cache": True,
        "on_progress": ANY,
        "timeout_s": 600.0,
    }
    assert [("resnet50", given), ("resnet50", left)] == api.calls


def test_rank_passes_all_workloads(api: FakeApi) -> None:
    """Several workloads are ranked together, in order."""
    assert 0 == run("rank", "gpt2", "resnet50", "--no-cache", "--samples", "500", "--sort", "speed")
    assert [
        (
            ["gpt2", "resnet50"],
            {
                "gpus": None,
                "baseline": None,
                "host_speed": None,
                "samples": 500,
                "epochs": None,
                "dataset_size": None,
                "sort": "speed",
                "currency": "USD",
                "cache": False,
                "partial": True,
                "on_progress": ANY,
                "timeout_s": 600.0,
            },
        )
    ] == api.calls


def test_named_cards_are_shown_closely(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Naming a card gives its details, naming none gives the groups."""
    run("fit", "resnet50", "--gpu", "4090")
    assert "held at the peak" in capsys.readouterr().out
    run("fit", "resnet50")
    assert "Batch size 64 fits on" in capsys.readouterr().out


@pytest.mark.parametrize(("command", "key"), [("fit", "workload"), ("rank", "workloads")])
def test_json_stands_alone_on_stdout(api: FakeApi, capsys: pytest.CaptureFixture[str], command: str, key: str) -> None:
    """With --json, standard output is one JSON document and standard error is empty."""
    assert 0 == run(command, "resnet50", "--json")
    out, err = capsys.readouterr()
    assert key in json.loads(out)
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fit"], "Missing argument 'WORKLOAD'"),
        (["rank"], "name at least one workload, or a set of them"),
        (["rank", "--set", "2021"], "there is no set '2021'; say 2020, 2026, vision, language, or the path"),
        (["fit", "resnet50", "--batch-size", "0"], "batch size '0' is not"),
        (["fit", "resnet50", "--batch-size", "-3"], "batch size '-3' is not"),
        (["fit", "resnet50", "--batch-size", "many"], "batch size 'many' is not"),
        (["fit", "resnet50", "--batch-size", "1.5"], "batch size '1.5' is not"),
        (["fit", "resnet50", "--batch-size", "1e3"], "batch size '1e3' is not"),
        (["fit", "resnet50", "--batch-size", ""], "batch size '' is not"),
        (["fit", "resnet50", "--batch-size", "9" * 30], "is more than 2,147,483,647, the limit"),
        (["fit", "resnet50", "--memory-limit", "nan"], "'nan' is not a memory size"),
        (["fit", "resnet50", "--memory-limit", "8 giraffes"], "'8 giraffes' is not a memory size"),
        (["fit", "resnet50", "--memory-limit", "-1"], "'-1' is not a memory size"),
        (["fit", "resnet50", "--memory-limit", "inf"], "'inf' is not a memory size"),
        (["fit", "resnet50", "--memory-limit", "1e400"], "'1e400' is not a memory size"),
        (["fit", "resnet50", "--memory-limit", "0"], "'0' of memory is less than any GPU has"),
        (["fit", "resnet50", "--memory-limit", "9" * 400], "of memory is more than any GPU has"),
        (["fit", "resnet50", "--memory-limit"], "requires an argument"),
        (["fit", "resnet50", "--memory-limit", "8"], "did you forget the unit?"),
        (["fit", "resnet50", "--nonsense"], "No such option: --nonsense"),
        (["fit", "resnet50", "gpt2"], "unexpected extra argument"),
        (["nonsense"], "No such command 'nonsense'"),
        (["bench", "resnet50", "--data", "/no/such"], "--data /no/such: there is no such folder"),
        (["gpus", "no such card"], "no card has 'no such card' in its name"),
    ],
)
def test_mistakes_are_told_in_one_line(
    api: FakeApi, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    """A mistake in the arguments is one line on stderr, exit code 2, and no call."""
    assert 2 == run(*arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert expected in err
    assert 1 == err.count("\n")
    assert api.calls == []


def test_errors_are_told_in_one_line(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """A deliberate error of the call is one line, whatever line breaks it carries."""
    api.failure = CatalogueError("no card is called 'x';\n did you mean y?")
    assert 2 == run("fit", "resnet50", "--gpu", "x")
    assert ("", "error: no card is called 'x'; did you mean y?\n") == tuple(capsys.readouterr())


def test_an_interrupt_is_told_in_one_word(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the command with the shell's code for it and no traceback."""
    api.failure = KeyboardInterrupt()
    assert 130 == run("fit", "resnet50")
    assert ("", "interrupted\n") == tuple(capsys.readouterr())


def test_a_bug_is_not_hidden(api: FakeApi) -> None:
    """An error that nobody raised on purpose keeps its traceback."""
    api.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["fit", "resnet50"])


def test_a_closed_pipe_is_no_error() -> None:
    """`whichgpu gpus | head -1` ends without a word."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "whichgpu", "gpus", "--json"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert (0, b"") == (done.returncode, done.stderr)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a full disk at hand")
@pytest.mark.parametrize("arguments", [["zoo"], ["gpus", "--json"], ["--help"], ["--version"], ["results", "--help"]])
def test_a_full_disk_is_told_in_one_line(arguments: list[str]) -> None:
    """Output that cannot be written is an error of one line, however much there was and whoever printed it."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "whichgpu", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (2, "error: output cannot be written: No space left on device\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize("argument", [b"caf\xe9.py", b"timm:re\xff", b"bert-base?seq=\xff", b"d\xe9/x.py"])
def test_bytes_that_are_no_text_are_told_in_one_line(locale: str, argument: bytes) -> None:
    """Whatever bytes an argument holds, the answer is one line of text."""
    around = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable.encode(), b"-m", b"whichgpu", b"fit", argument]
    done = subprocess.run(command, capture_output=True, check=False, env=around)
    assert (2, b"") == (done.returncode, done.stdout)
    assert done.stderr.startswith(b"error: '")
    assert b"set LC_ALL to a UTF-8 locale" in done.stderr
    assert 1 == done.stderr.count(b"\n")


def test_gpus_can_be_filtered(capsys: pytest.CaptureFixture[str], api: FakeApi) -> None:
    """A part of the name selects cards, in whatever case."""
    assert 0 == run("gpus", "Rtx 4090", "--json")
    names = [card["name"] for card in json.loads(capsys.readouterr().out)]
    assert "RTX 4090" in names
    assert all("4090" in name for name in names)


@pytest.mark.parametrize(
    ("words", "listed", "left_out"),
    [
        ("80GB", "A100 PCIe 80GB", "B200 180GB"),
        ("A10", "A10G", "A100 PCIe 80GB"),
        ("309", "RTX 3090 Ti", "RTX 3080 12GB"),
    ],
)
def test_numbers_are_whole_ones(
    words: str, listed: str, left_out: str, capsys: pytest.CaptureFixture[str], api: FakeApi
) -> None:
    """A number is no part of a longer one, unless no card has it whole."""
    assert 0 == run("gpus", words, "--json")
    names = [card["name"] for card in json.loads(capsys.readouterr().out)]
    assert listed in names
    assert left_out not in names
    assert 0 == run("gpus", left_out, "--json")


def test_the_zoo_is_listed(capsys: pytest.CaptureFixture[str], api: FakeApi) -> None:
    """Every workload of the zoo is listed with what it is."""
    assert 0 == run("zoo")
    assert "resnet50 " in capsys.readouterr().out


def test_a_set_of_the_zoo_is_listed(capsys: pytest.CaptureFixture[str], api: FakeApi) -> None:
    """With --set only the members of that set are listed, as JSON too."""
    assert 0 == run("zoo", "--set", "vision", "--json")
    listed = json.loads(capsys.readouterr().out)
    assert "resnet50" in [entry["name"] for entry in listed]
    assert all("vision" in entry["sets"] for entry in listed)


def test_sets_stand_for_their_workloads(api: FakeApi) -> None:
    """`rank` is asked about what was named and then the members of the set, each once."""
    assert 0 == run("rank", "timm:resnet18", "vit-base", "--set", "vision")
    workloads, _ = api.calls[-1]
    assert ["timm:resnet18", "vit-base"] == workloads[:2]
    assert "resnet50" in workloads
    assert 1 == workloads.count("vit-base")


@pytest.mark.parametrize("command", ["rank", "bench"])
def test_naming_nothing_is_told(command: str, capsys: pytest.CaptureFixture[str], api: FakeApi) -> None:
    """Neither a workload nor a set is an error of one line that shows both ways."""
    assert 2 == run(command)
    assert "error: name at least one workload, or a set of them as in --set 2026\n" == capsys.readouterr().err


TERMINAL = """
import sys, types
sys.path.insert(0, {here!r})
from example_reports import fit_report
import whichgpu
api = types.ModuleType("whichgpu.api")
def fit(*_, on_progress, **__):
    on_progress("tracing batch 4: step 1 of 3")
    return fit_report()
api.fit = fit
sys.modules["whichgpu.api"] = whichgpu.api = api
from whichgpu.cli import main
main(["fit", "resnet50"])
"""


def test_progress_is_shown_on_a_terminal_only() -> None:
    """On a terminal standard error shows what is going on, and standard output stays clean."""
    ours, theirs = pty.openpty()
    code = TERMINAL.format(here=str(Path(__file__).parent))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=False
    )
    os.close(theirs)
    seen = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert 0 == done.returncode, seen
    assert "tracing batch 4: step 1 of 3" in seen
    assert done.stdout.startswith(b"resnet50, batch size 64")
    assert b"\x1b" not in done.stdout


BAR = """
from whichgpu.commands.progress import progress
with progress() as on_progress:
    on_progress("2 of 4: w on T4 (1 of 9)")
    on_progress("4 of 4: v on T4 (1 of 9)")
"""


def test_a_bar_shows_how_many_workloads_are_done() -> None:
    """Of a line that begins with its part of the whole, the bar is as full as what came before."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", BAR], stderr=theirs, env=environment, check=False)
    os.close(theirs)
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 1 << 16).decode())
    os.close(ours)
    assert 0 == done.returncode
    assert "━━━━━━━━━" in seen.split("4 of 4")[0].rpartition("\n")[2]
    assert "4 of 4: v on T4 (1 of 9)" in seen


def test_the_page_of_the_command_line_is_fresh() -> None:
    """docs/cli.md is what tools/write_cli_docs.py writes, and names every command, option and JSON key."""
    spec = importlib.util.spec_from_file_location("write_cli_docs", ROOT / "tools" / "write_cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert tool.page() == page, "run python tools/write_cli_docs.py"
    for command, names in OPTIONS.items():
        assert f"## {' '.join(['whichgpu', command]).strip()}\n" in page
        assert all(f"`{name}" in page for name in names)


def test_a_slow_question_is_hinted_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while one line on stderr says what to do, on no terminal too; a quick answer has none."""
    with progress_line.progress("be patient"):
        pass
    assert "" == capsys.readouterr().err
    monkeypatch.setattr(progress_line, "_SLOW_S", 0.01)
    with progress_line.progress("be patient"):
        time.sleep(0.3)

    assert "still at work after 0.01 s: be patient\n" == capsys.readouterr().err
