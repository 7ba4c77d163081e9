"""Everything a user can get wrong, from the command line to the tracing process and back.

Each case runs the real command in a process of its own. Whatever happens, one line says what was wrong, and no process
and no file stays behind: the fixture looks for both after every test.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

GOOD = """\
import os, signal, subprocess, sys, threading, time
import torch
TOP

def setup(device):
    SETUP
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size):
        STEP
        model(torch.randn(batch_size, 16, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
ROOM_S = 60  # for one command on a busy machine


class Done:
    """What a command said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def error(self) -> str:
        """The one line of an error, which is all that was said."""
        assert (2, "") == (self.code, self.out), self.err
        assert 1 == self.err.count("\n")
        assert self.err.startswith("error: ")
        assert len(self.err) < 600
        return self.err


class Shell:
    """A folder with a user's files, and the command in it; knows the processes and files that it leaves."""

    def __init__(self, root: Path) -> None:
        self.folder, self.cache, self.scratch = root / "work", root / "cache", root / "scratch"
        for path in (self.folder, self.scratch):
            path.mkdir()
        self.mark = uuid.uuid4().hex
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "WHICHGPU_CACHE": str(self.cache),
            "TMPDIR": str(self.scratch),
            "WHICHGPU_TEST_MARK": self.mark,
        }

    def write(self, name: str, *, top: str = "", setup: str = "pass", step: str = "pass", text: str = GOOD) -> None:
        """The good workload with lines put in, or another text, as a file saved long ago."""
        path = self.folder / name
        lines = {"TOP": top, "SETUP": setup, "STEP": step}
        for place, line in lines.items():
            text = text.replace(place, line)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (0, 0))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "whichgpu", *arguments],
            **{
                "cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8", **options,
            },
        )  # fmt: skip

    def run(self, *arguments: str, **options: Any) -> Done:
        """Run the command to its end."""
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(timeout=ROOM_S)
        return Done(process.returncode, out, err)

    def fit(self, workload: str, *arguments: str, **options: Any) -> Done:
        """`whichgpu fit` for one card."""
        return self.run("fit", workload, "--gpu", "4090", *arguments, **options)

    def processes(self) -> list[psutil.Process]:
        """All that run and were started by this shell's commands, directly or not."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("WHICHGPU_TEST_MARK") == self.mark and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def files(self) -> list[str]:
        """What lies about: in the folder for temporary files, half-written in the cache, beside the user's files."""
        found = [*self.scratch.iterdir(), *self.cache.rglob("*.part")]
        found += [path for path in self.folder.iterdir() if path.suffix not in (".py", ".flag")]
        return [str(path) for path in found]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A user's folder; afterwards nothing may be left of what ran in it."""
    made = Shell(tmp_path)
    yield made
    wait_until(lambda: made.processes() == [])
    assert [] == made.files()


def notes(out: str) -> list[str]:
    """The notes of a report, but for the one that a step as small as these always gets."""
    return [note for note in json.loads(out)["notes"] if not note.startswith("no batch size above 1,048,576")]


def wait_until(condition: Callable[[], bool], room_s: float = 10) -> None:
    """Wait for something that is bound to happen."""
    deadline = time.monotonic() + room_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


# ---- workloads that cannot be loaded or set up -----------------------------------------------------------

NO_SETUP = "def setup(device):\n    pass\n"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"top": "x = 1 / 0"}, "mine.py:setup cannot be loaded: ZeroDivisionError: division by zero (HERE/mine.py:3)"),
        ({"text": "import os\ndef setup(device)\n"}, "cannot be loaded: SyntaxError: expected ':' (HERE/mine.py:2)"),
        ({"top": "import no_such_thing"}, "ModuleNotFoundError: No module named 'no_such_thing' (HERE/mine.py:3)"),
        ({"top": "sys.exit(3)"}, "cannot be loaded: SystemExit: 3 (HERE/mine.py:3)"),
        ({"top": "raise KeyboardInterrupt"}, "cannot be loaded: KeyboardInterrupt (HERE/mine.py:3)"),
        ({"top": "raise MemoryError"}, "cannot be loaded: MemoryError (HERE/mine.py:3)"),
        ({"top": "input()"}, "cannot be loaded: EOFError: EOF when reading a line (HERE/mine.py:3)"),
        ({"top": "os._exit(3)"}, "stopped with exit code 3 while loading mine.py:setup (something in it, as os._exit()"),
        ({"top": "os.closerange(3, 1000)"}, "mine.py:setup closed file descriptors that it had not opened"),
        ({"text": NO_SETUP}, "mine.py:setup returned NoneType, not a function; end it with `return step`"),
        ({"text": "def setup():\n    pass\n"}, "setup must take exactly one argument, the device"),
        ({"text": "setup = 3\n"}, "setup is int, not a function setup(device)"),
        ({"text": "def train(device):\n    pass\n"}, "no function setup in HERE/mine.py; functions there"),
        ({"setup": "raise ValueError('too wide')"}, "setup raised: ValueError: too wide (HERE/mine.py:6)"),
    ],
)  # fmt: skip
def test_a_workload_that_cannot_be_set_up(shell: Shell, parts: dict[str, str], words: str) -> None:
    """The last line of the traceback and its place in the user's file, or what the file should hold."""
    shell.write("mine.py", **parts)

    assert words.replace("HERE", str(shell.folder)) in shell.fit("mine.py").error()
    assert not shell.cache.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.py"], "no such file: mine.py"),
        (["nowhere/mine.py:train"], "no such file: nowhere/mine.py"),
        (["good.py:trian"], "no function trian in"),
        (["good.py?batch=3"], "options are for timm:"),
        (["good.py", "--optimizer", "sgd"], "a step of your own sets them itself"),
        (["no_such_package.mine:setup"], "no module no_such_package"),
        (["bert-bsae"], "did you mean bert-base"),
        (["hf:no/such/folder"], "no config.json there"),
        (["good.py", "--gpu", "RTX 4099"], "did you mean"),
        (["good.py", "--gpu", "A100"], "may be A100 SXM4 40GB"),
        (["good.py", "--gpu", "MI300X"], "MI300X has no CUDA compute capability; choose an NVIDIA card"),
        (["resnet50", "--optimizer", "nonsense"], "nonsense"),
    ],
)
def test_a_name_that_leads_nowhere(shell: Shell, arguments: list[str], words: str) -> None:
    """Files, functions, workloads and cards that do not exist or are not clear: the nearest or the cure is named."""
    shell.write("good.py")

    assert words in shell.run("fit", *arguments).error()


@pytest.mark.parametrize(
    ("package", "workload"),
    [("timm", "timm:resnet50"), ("timm", "nasnet-large"), ("transformers", "hf:gpt2"), ("transformers", "bert-base")],
)
def test_a_missing_library_names_the_extra(shell: Shell, package: str, workload: str) -> None:
    """What to install is said where the library of a workload is not there."""
    (shell.folder / "hidden.py").mkdir()  # a folder, with a name that the check for files passes over
    text = f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n"
    (shell.folder / "hidden.py" / f"{package}.py").write_text(text, encoding="utf-8")
    shell.environment["PYTHONPATH"] = str(shell.folder / "hidden.py")

    words = shell.fit(workload).error()
    assert f"{workload} needs {package}, which is not installed: pip install 'whichgpu[zoo]'" in words


# ---- steps that fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("raise RuntimeError('never')", "step raised at batch size 4: RuntimeError: never (HERE/mine.py:11)"),
        ("raise MemoryError", "step raised at batch size 4: MemoryError (HERE/mine.py:11)"),
        ("raise KeyboardInterrupt", "raised at batch size 4: KeyboardInterrupt (HERE/mine.py:11)"),
        ("input()", "step raised at batch size 4: EOFError"),
        ("sys.exit(5)", "step called sys.exit(5) (HERE/mine.py:11); have it return instead, or raise an error"),
        (
            "os._exit(5)",
            "batch size 4 stopped with exit code 5 (something in it, as os._exit(), ends the process: have it",
        ),
        ("os.closerange(3, 1000)", "batch size 4 closed file descriptors that it had not opened"),
        ("os.closerange(0, 1000)", "batch size 4 closed file descriptors that it had not opened"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "batch size 4 was killed by SIGSEGV (compiled code that it calls"),
    ],
)
def test_a_step_that_fails(shell: Shell, step: str, words: str) -> None:
    """However a step fails, the line says at which batch size, and where in the user's file."""
    shell.write("mine.py", step=step)

    assert words.replace("HERE", str(shell.folder)) in shell.fit("mine.py").error()
    assert not shell.cache.exists()


def test_a_step_that_fails_at_the_batch_size_asked_about(shell: Shell) -> None:
    """A step that runs at other batch sizes is an error where it is asked about one at which it fails."""
    shell.write("mine.py", step="assert batch_size != 40, 'forty is right out'")

    words = f"step raised at batch size 40: AssertionError: forty is right out ({shell.folder}/mine.py:11)"
    assert words in shell.fit("mine.py", "--batch-size", "40").error()
    assert 0 == shell.fit("mine.py", "--batch-size", "41").code


def test_a_step_that_runs_at_even_batch_sizes_only(shell: Shell) -> None:
    """A step that pairs its samples is answered for, and the failure at an odd number of them is told in a note."""
    shell.write("mine.py", step="assert batch_size % 2 == 0, 'pairs, please'")
    first, again = (shell.fit("mine.py", "--batch-size", "40", "--json") for _ in range(2))

    assert (0, "") == (first.code, first.err)
    (note,) = notes(first.out)
    assert "traced at batch sizes 4, 8, 24" in note
    assert f"pairs, please ({shell.folder}/mine.py:11)" in note
    assert json.loads(again.out)["trace"]["cached"]
    assert json.loads(first.out)["gpus"] == json.loads(again.out)["gpus"]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (".backward()", ["never calls backward()"]),
        ("optimizer.step()", ["no torch.optim optimizer stepped"]),
    ],
)
def test_a_step_that_is_no_training_step_goes_on(shell: Shell, missing: str, words: list[str]) -> None:
    """Without backward or optimizer there still is an answer, with a note of what is missing."""
    shell.write("mine.py", text=GOOD.replace(missing, "" if missing.startswith(".") else "pass"))
    done = shell.fit("mine.py", "--json")

    assert (0, "") == (done.code, done.err)
    report = json.loads(done.out)
    assert report["gpus"][0]["max_batch_size"] > 0
    for word in words:
        assert any(word in note for note in report["notes"]), report["notes"]


def test_a_step_that_runs_at_one_batch_size_is_answered_for_that(shell: Shell) -> None:
    """A step that insists on its batch size is traced at that; where it is not named, the error says how to."""
    shell.write("mine.py", step="assert batch_size == 48, 'forty-eight'")

    error = shell.fit("mine.py").error()
    assert (
        "of batch sizes 1, 4, 16, 64 it ran at none (if it runs at another one alone, name that: whichgpu fit" in error
    )
    done = shell.fit("mine.py", "--batch-size", "48")
    assert 0 == done.code
    assert "only that one is answered" in " ".join(done.out.split())


# ---- steps that do odd things and are fine ---------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        {"step": "print('x' * 300_000); print('y' * 300_000, file=sys.stderr)", "top": "print('{\"ok\": 1}')"},
        {"step": "thread = threading.Thread(target=time.sleep, args=(0.01,)); thread.start(); thread.join()"},
        {"step": "batch_size == 8 and os.fork()"},
        {"step": "subprocess.run(['true'], check=True)"},
        {"step": "subprocess.Popen(['sleep', '600'])"},
        {"step": "sys.stdout.close()"},
    ],
    ids=["prints", "threads", "forks", "runs", "leaves a process", "closes its output"],
)
def test_a_step_may_do_as_it_likes(shell: Shell, parts: dict[str, str]) -> None:
    """Output, threads and processes of the step disturb nothing, and end with the command."""
    shell.write("mine.py", **parts)
    done = shell.fit("mine.py", "--json")

    assert (0, "") == (done.code, done.err)
    assert [] == notes(done.out)


def test_a_model_may_be_built_on_import(shell: Shell) -> None:
    """Weights of a model that the file makes outside its set-up are weights all the same."""
    shell.write("inside.py")
    made = "    model = torch.nn.Linear(16, 4)"
    shell.write("outside.py", top=made.strip(), text=GOOD.replace(made, "    global model; model = model"))
    held = [json.loads(shell.fit(name, "--json").out)["gpus"][0]["breakdown"] for name in ("inside.py", "outside.py")]

    assert held[0]["weights_bytes"] > 0
    assert held[0] == held[1]


@pytest.mark.parametrize("name", ["random.py", "torch.py", "json.py", "modèle 模型.py", "my-model.v2.py"])
def test_a_file_may_have_any_name(shell: Shell, name: str) -> None:
    """A file called as a module of Python or of PyTorch hides nothing, and names need not be ASCII."""
    shell.write(name)
    done = shell.fit(name, "--json")

    assert (0, "") == (done.code, done.err)
    assert f"{name}:setup" == json.loads(done.out)["workload"]


# ---- interruptions ---------------------------------------------------------------------------------------

WAITS = "open('started.flag', 'w').close(); time.sleep(300)"


def begun(shell: Shell, **options: Any) -> subprocess.Popen[str]:
    """The command in the middle of a trace, or where the flag stands."""
    process = shell.start("fit", "mine.py", start_new_session=True, **options)
    wait_until((shell.folder / "started.flag").exists, ROOM_S)
    time.sleep(0.1)
    return process


@pytest.mark.parametrize("place", ["top", "setup", "step"])
@pytest.mark.parametrize("to", ["the terminal", "the command"])
def test_ctrl_c(shell: Shell, place: str, to: str) -> None:
    """Ctrl-C ends the command with exit code 130 and a word, wherever it is."""
    shell.write("mine.py", **{place: WAITS})
    with begun(shell) as process:
        os.killpg(process.pid, signal.SIGINT) if to == "the terminal" else process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=ROOM_S)

    assert (130, "", "interrupted\n") == (process.returncode, out, err)
    assert not shell.cache.exists()


@pytest.mark.parametrize("place", ["top", "step"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_being_ended_from_outside(shell: Shell, place: str, number: signal.Signals) -> None:
    """When the command is ended, even by force, all that it started ends too, and takes its files along."""
    shell.write("mine.py", **{place: f"subprocess.Popen(['sleep', '600']); {WAITS}"})
    with begun(shell) as process:
        assert len(shell.processes()) > 2
        process.send_signal(number)
        out, _ = process.communicate(timeout=ROOM_S)

    assert "" == out
    assert {signal.SIGTERM: 143, signal.SIGKILL: -9}[number] == process.returncode


# ---- the cache -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", ["*.json", "*.trace", "*.answers", "*.*"])
def test_a_damaged_cache(shell: Shell, damaged: str) -> None:
    """Damaged entries are ignored and rebuilt, and this is said once."""
    shell.write("mine.py")
    first = json.loads(shell.fit("mine.py", "--json").out)
    for path in shell.cache.rglob(damaged):
        path.write_bytes(path.read_bytes()[:20])
    again, third = (json.loads(shell.fit("mine.py", "--json").out) for _ in range(2))

    assert ["a damaged entry of the trace cache was ignored and rebuilt"] == notes(json.dumps(again))
    assert [False, damaged == "*.answers", True] == [report["trace"]["cached"] for report in (first, again, third)]
    assert first["gpus"] == again["gpus"] == third["gpus"]
    assert [] == notes(json.dumps(third))


def test_a_cache_that_cannot_be_written(shell: Shell) -> None:
    """The answer comes all the same, with a note."""
    shell.write("mine.py")
    shell.environment["WHICHGPU_CACHE"] = "/dev/full"
    done = shell.fit("mine.py", "--json")

    assert (0, "") == (done.code, done.err)
    (note,) = notes(done.out)
    assert "the trace cache /dev/full/traces cannot be written" in note


def test_a_disk_without_room(shell: Shell) -> None:
    """Where the trace itself cannot be written, the line says where room is needed."""
    shell.write("mine.py")
    limits = (1000, 1000)
    done = shell.fit("mine.py", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))

    assert f"no room for the trace in {shell.scratch}" in done.error()
    assert "set TMPDIR" in done.err


# ---- what is shown ---------------------------------------------------------------------------------------


def read_all(descriptor: int, into: list[bytes]) -> None:
    """Read a terminal until nobody writes to it any more."""
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:
            return
        if not chunk:
            return
        into.append(chunk)


def test_a_slow_set_up_shows_that_something_goes_on(shell: Shell) -> None:
    """On a terminal standard error tells what is done and for how long; standard output is the JSON alone."""
    shell.write("mine.py", setup="time.sleep(2.5)", step="print('noise')")
    ours, theirs = pty.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(ours, shown))
    shell.environment |= {"TERM": "xterm", "COLUMNS": "80"}
    with shell.start("fit", "mine.py", "--gpu", "4090", "--json", stderr=theirs) as process:
        os.close(theirs)
        reader.start()
        out, _ = process.communicate(timeout=ROOM_S)
    reader.join()
    os.close(ours)
    progress = b"".join(shown).decode()

    assert "4090" in json.loads(out)["gpus"][0]["gpu"]
    for words in ("loading mine.py:setup", "batch size 4: setting up", "0:00:02"):
        assert words in progress
    assert "noise" not in progress + out


def test_json_can_be_piped(shell: Shell) -> None:
    """`whichgpu fit ... --json | python -m json.tool` works for a step that prints, and has the documented keys."""
    shell.write("mine.py", top="print('loaded')", step="print('stepped')")
    command = f"{sys.executable} -P -m whichgpu fit mine.py --memory-limit 8GiB --json | {sys.executable} -m json.tool"
    done = subprocess.run(
        command, shell=True, cwd=shell.folder, env=shell.environment, capture_output=True, timeout=ROOM_S, check=True
    )
    report = json.loads(done.stdout)

    assert b"" == done.stderr
    assert {"workload", "batch_size", "basis", "trace", "gpus"} <= set(report)
    assert {"kind", "affine", "seconds"} <= set(report["trace"])
    keys = {"gpu", "memory_bytes", "fits", "peak_reserved_bytes", "peak_allocated_bytes", "context_bytes"}
    keys |= {"max_batch_size", "max_batch_size_pow2", "breakdown", "notes"}
    assert [] == [row["gpu"] for row in report["gpus"] if not keys <= set(row)]
    assert "limit" == report["gpus"][0]["gpu"]


# ---- steps that never end, and what a step leaves behind ---------------------------------------------------


@pytest.mark.parametrize(
    ("place", "what"), [("setup", "tracing batch size 4"), ("step", "tracing batch size 4"), ("top", "loading mine.py")]
)
def test_a_loop_that_never_ends(shell: Shell, place: str, what: str) -> None:
    """The worker is ended after --timeout, with what it detached, and one line says what to look for."""
    detach = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    shell.write(
        "mine.py", **{place: f"{detach}\n    while True: pass" if place != "top" else f"{detach}\nwhile True: pass"}
    )
    if place == "step":
        shell.write("mine.py", step=f"{detach}\n        while True: pass")

    error = shell.fit("mine.py", "--timeout", "8").error()

    assert f"did not finish {what}" in error
    assert "within 8 s and was ended (if it is slow, allow more with --timeout" in error


def test_what_a_step_detaches_is_ended(shell: Shell) -> None:
    """A process in a session of its own does not outlive the command; the fixture looks for it."""
    shell.write("mine.py", step="subprocess.Popen(['sleep', '600'], start_new_session=True)")

    assert 0 == shell.fit("mine.py").code


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_timeout_that_is_no_time(shell: Shell, seconds: str) -> None:
    """A timeout is a positive number of seconds."""
    assert "it must be positive and finite" in shell.fit("bert-base", "--timeout", seconds).error()
