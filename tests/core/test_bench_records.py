"""What a bench leaves in its file of results when it is killed, when the disk fills, and when another bench writes too."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from whichgpu.results import Store

FAKE_WORKER = Path(__file__).parents[1] / "data" / "fake_bench_worker.py"
# The command as it is typed, but for the measuring process and the prediction, which need torch
DRIVE = f"""
import sys
from whichgpu import cli, gpu_status
from whichgpu.bench import one, run
from whichgpu.errors import CaptureError
from whichgpu.results import Store
def refuse(*_, **__):
    raise CaptureError("not here")
one.Predictor = refuse
gpu_status.connect = lambda _: (None, "no driver in tests")
Store.__init__.__kwdefaults__["timeout_s"] = 5.0
run.bench.__kwdefaults__["worker"] = (sys.executable, {str(FAKE_WORKER)!r})
cli.main()
"""
# As on a full disk, writes beyond fail: Python ignores the signal that would kill other programs
LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
"""


class Benches:
    """Starts benches over made-up workloads, in one folder, with one file of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results.sqlite"

    def start(self, behaviour: str, name: str = "step", largest_file_bytes: int | None = None) -> subprocess.Popen[str]:
        """A bench of a workload that behaves so."""
        path = self.folder / f"{name}.py"
        path.write_text(f"# {behaviour}\n", encoding="utf-8")
        code = DRIVE if largest_file_bytes is None else LIMIT.format(largest_file_bytes) + DRIVE
        options = ["--time-budget", "0", "--json", "--timeout", "300", "--results", str(self.results)]
        return subprocess.Popen(
            [sys.executable, "-c", code, "bench", str(path), *options],
            env={**os.environ, "FAKE_BENCH_ATTEMPTS": str(self.folder / f"tries of {name}")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def tried(self, name: str = "step") -> list[int]:
        """The batch sizes that were attempted, in order."""
        path = self.folder / f"tries of {name}"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [attempt["batch_size"] for attempt in map(json.loads, lines) if attempt["kind"] == "fit"]

    def recorded(self) -> list[int]:
        """The batch sizes on record, in order."""
        with Store(self.results, read_only=True) as store:
            return [measured.batch_size for measured in store.find()]


@pytest.fixture
def benches(tmp_path: Path) -> Benches:
    """A folder to measure in."""
    return Benches(tmp_path)


def test_after_a_kill_the_same_command_carries_on(benches: Benches) -> None:
    """kill -9 loses the attempt in flight alone: the same command repeats no other, and comes to the answer."""
    first = benches.start("300 fit, each takes a while")
    deadline = time.monotonic() + 30
    while len(benches.tried()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate()
    for left in started:  # the made-up worker does not watch its parent, as the real one does
        left.kill()
    kept = benches.recorded()
    before = benches.tried()
    assert before[: len(kept)] == kept
    assert len(before) - len(kept) <= 1
    code, out, err = benches.finish(benches.start("300 fit, each takes a while"))
    assert 0 == code, err
    row = json.loads(out)["rows"][0]
    assert (300, True, len(kept)) == (row["max_batch_size"], row["exact"], row["recorded"])
    again = Counter(benches.tried())
    assert all(1 == again[size] for size in kept)


def test_a_disk_that_fills_in_the_middle(benches: Benches) -> None:
    """One line says that there is no room; what was recorded before is whole, and with room the same command carries on."""
    code, out, err = benches.finish(benches.start("300 fit", largest_file_bytes=60_000))
    assert 2 == code
    assert ("", 1) == (out, len(err.strip().splitlines())), err
    assert "see whether its disk has room" in err
    kept = benches.recorded()
    tried = benches.tried()
    assert len(tried) - 1 == len(kept) > 0
    assert tried[: len(kept)] == kept
    code, out, err = benches.finish(benches.start("300 fit"))
    assert 0 == code, err
    row = json.loads(out)["rows"][0]
    assert (300, True, len(kept)) == (row["max_batch_size"], row["exact"], row["recorded"])


def test_two_benches_at_once_lose_nothing(benches: Benches) -> None:
    """Two benches with one file of results record every attempt of both, and both come to their answers."""
    processes = [benches.start(f"{largest} fit", f"step{largest}") for largest in (300, 77)]
    answers = [json.loads(benches.finish(process)[1])["rows"][0]["max_batch_size"] for process in processes]
    assert [300, 77] == answers
    assert sorted(benches.tried("step300") + benches.tried("step77")) == sorted(benches.recorded())


@pytest.mark.parametrize("damage", ["no database", "locked"])
def test_a_file_that_cannot_be_written(benches: Benches, damage: str) -> None:
    """A file that is no database, or is held by another program is told before anything is tried."""
    if damage == "no database":
        benches.results.write_text("measurements, by hand\n" * 100, encoding="utf-8")
    else:
        Store(benches.results).close()
    holder = sqlite3.connect(benches.results, isolation_level=None)
    if damage == "locked":
        holder.execute("BEGIN EXCLUSIVE")
    code, out, err = benches.finish(benches.start("300 fit"))
    holder.close()
    assert (2, "", 1) == (code, out, len(err.strip().splitlines())), err
    assert str(benches.results) in err
    assert [] == benches.tried()
