"""The tracing worker's client and the trace cache, against a worker that has no torch."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whichgpu import trace_cache, tracing
from whichgpu.errors import CaptureError, WorkloadError
from whichgpu.trace_cache import Origin, TraceCache
from whichgpu.tracing import Tracer
from whichgpu.workload import WorkloadRef

FAKE_WORKER = Path(__file__).parents[1] / "data" / "fake_worker.py"


class Scene:
    """One test's directories, and the processes that its workers were."""

    def __init__(self, root: Path) -> None:
        self.cache = root / "cache"
        self.scratch = root / "scratch"
        self.starts = root / "starts"
        self.source = root / "model.py"
        self.scratch.mkdir()
        self.source.write_text("width = 8\n")
        os.utime(self.source, (1, 1))

    def tracer(self, behaviour: str = "good", cached: bool = True, scheme: str = "file", **options: Any) -> Tracer:
        """A tracer with the fake worker."""
        ref = WorkloadRef(text=behaviour, scheme=scheme, target=str(self.source))
        cache = self.cache if cached else None
        return Tracer(ref, cache=cache, worker=(sys.executable, str(FAKE_WORKER)), **options)

    def requests(self) -> list[dict[str, Any]]:
        """What the worker that "tells requests" was asked, each with the request that named the workload."""
        return [json.loads(line) for line in self.starts.with_name("requests").read_text().splitlines()]

    def pids(self) -> list[int]:
        """Process numbers of all workers started, and of the children they told of."""
        return [int(line) for line in self.starts.read_text().split()] if self.starts.exists() else []

    def alive(self) -> list[int]:
        """Those of `pids` that still run."""
        return [pid for pid in self.pids() if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        # a killed child whose new parent has not yet reaped it no longer runs
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """An empty cache, an empty directory for temporary files, and no worker yet."""
    scene = Scene(tmp_path)
    monkeypatch.setenv("FAKE_WORKER_STARTS", str(scene.starts))
    monkeypatch.setenv("TMPDIR", str(scene.scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    return scene


def test_one_worker_answers_for_all_batch_sizes(scene: Scene) -> None:
    """The worker is started at the first trace and kept until the end; progress reaches the caller."""
    lines: list[str] = []
    with scene.tracer(on_progress=lines.append) as tracer:
        assert scene.pids() == []
        assert [4, 8] == [tracer.trace_at(4, "9.0").batch_size, tracer.trace_at(8, "9.0").batch_size]
        assert tracer.seconds > 0
        assert not tracer.cached
    assert ["loading good", "tracing batch 4: step 1 of 3", "tracing batch 8: step 1 of 3"] == lines
    assert 1 == len(scene.pids())
    assert scene.alive() == []
    assert list(scene.scratch.iterdir()) == []


def test_one_worker_answers_for_all_classes(scene: Scene) -> None:
    """Classes of cards are asked for one by one from the same worker."""
    with scene.tracer() as tracer:
        assert ["9.0", "8.6"] == [tracer.trace_at(4, name).capability for name in ("9.0", "8.6")]
    assert 1 == len(scene.pids())


def test_the_worker_hears_what_comes_next(scene: Scene) -> None:
    """The first request names workload and kind; each other one a trace, its file and what comes next."""
    with scene.tracer("tells requests", kind="real-cpu") as tracer:
        tracer.trace_at(4, "9.0", ahead=(8, 67))
        tracer.trace_at(8, "8.6")
    one, two = scene.requests()
    assert {"workload", "kind", "directory", "capability"} == set(one["first"])
    assert one["first"]["directory"] == str(Path(one["out"]).parent)
    assert ("real-cpu", "tells requests") == (one["first"]["kind"], one["first"]["workload"]["text"])
    assert (4, "9.0", [8, 67]) == (one["batch_size"], one["capability"], one["ahead"])
    assert (8, "8.6", []) == (two["batch_size"], two["capability"], two["ahead"])
    assert {"first", "batch_size", "capability", "ahead", "out"} == set(one)
    assert one["out"] != two["out"]


def test_what_is_asked_ahead_is_not_kept_before_it_is_asked_for(scene: Scene) -> None:
    """Batch sizes named ahead are a hint: the cache holds only what was answered."""
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0", ahead=(8,))
        assert [True, False] == [tracer.holds(size, "9.0") for size in (4, 8)]


def test_the_cache_answers_without_a_worker(scene: Scene) -> None:
    """A second run with nothing changed starts no process."""
    with scene.tracer() as tracer:
        first = tracer.trace_at(4, "9.0")
    with scene.tracer() as tracer:
        assert first == tracer.trace_at(4, "9.0")
        assert (True, 0.0, []) == (tracer.cached, tracer.seconds, tracer.notes)
    assert 1 == len(scene.pids())


def test_what_the_cache_holds_can_be_asked(scene: Scene) -> None:
    """`holds` knows batch size, class and kind, and starts no worker; without a cache it holds nothing."""
    with scene.tracer() as tracer:
        assert not tracer.holds(4, "9.0")
        assert [] == scene.pids()
        tracer.trace_at(4, "9.0")
    with scene.tracer() as fake, scene.tracer(kind="real-cpu") as real, scene.tracer(cached=False) as none:
        assert fake.holds(4, "9.0")
        assert [] == [asked for asked in ((8, "9.0"), (4, "8.6")) if fake.holds(*asked)]
        assert not real.holds(4, "9.0")
        assert not none.holds(4, "9.0")
    assert 1 == len(scene.pids())


@pytest.mark.parametrize(("batch_size", "capability"), [(8, "9.0"), (4, "8.6")])
def test_batch_size_and_class_decide_the_cache(scene: Scene, batch_size: int, capability: str) -> None:
    """A trace of another batch size, or for another class of cards, is not used; both are then kept."""
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
    with scene.tracer() as tracer:
        other = tracer.trace_at(batch_size, capability)
        assert (batch_size, capability) == (other.batch_size, other.capability)
        assert not tracer.cached
    with scene.tracer() as tracer:
        for asked in ((4, "9.0"), (batch_size, capability)):
            found = tracer.trace_at(*asked)
            assert asked == (found.batch_size, found.capability)
        assert tracer.cached


def test_without_a_cache_nothing_is_kept_or_read(scene: Scene) -> None:
    """No cache means that every run traces and no file stays."""
    for _ in range(2):
        with scene.tracer(cached=False) as tracer:
            tracer.trace_at(4, "9.0")
    assert 2 == len(scene.pids())
    assert not scene.cache.exists()


def _another_kind(scene: Scene) -> Tracer:
    return scene.tracer(kind="real-cpu")


def _changed_source(scene: Scene) -> Tracer:
    scene.source.write_text("width = 16\n")
    os.utime(scene.source, (1, 1))
    return scene.tracer()


def _removed_source(scene: Scene) -> Tracer:
    scene.source.unlink()
    return scene.tracer()


@pytest.mark.parametrize("change", [_another_kind, _changed_source, _removed_source])
def test_what_decides_a_trace_decides_the_cache(scene: Scene, change: Callable[[Scene], Tracer]) -> None:
    """A trace made from something else is not used."""
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
    with change(scene) as tracer:
        tracer.trace_at(4, "9.0")
        assert not tracer.cached
        assert tracer.notes == []
    assert 2 == len(scene.pids())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RULES_VERSION", -1),
        ("_code_hash", lambda: "another tracer"),
        ("installed_version", {"msgspec": "0"}.get),
    ],
)
def test_another_whichgpu_or_library_traces_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    """Changed rules, tracing code or distributions invalidate what was kept."""
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
    monkeypatch.setattr(trace_cache, name, value)
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
        assert not tracer.cached


@pytest.mark.parametrize(("expected", "scheme"), [(False, "file"), (False, "module"), (True, "zoo"), (True, "timm")])
def test_a_users_code_belongs_to_its_directory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, expected: bool, scheme: str
) -> None:
    """A user's code from another directory is traced again, a library's architecture is not."""
    with scene.tracer(scheme=scheme) as tracer:
        tracer.trace_at(4, "9.0")
    monkeypatch.chdir(scene.scratch)
    with scene.tracer(scheme=scheme) as tracer:
        tracer.trace_at(4, "9.0")
        assert expected == tracer.cached


def test_a_source_saved_after_the_start_is_not_kept(scene: Scene) -> None:
    """What the worker loaded may not be what the file says now: such a trace is used but not kept."""
    os.utime(scene.source, (time.time() + 60, time.time() + 60))
    with scene.tracer() as tracer:
        assert 4 == tracer.trace_at(4, "9.0").batch_size
    assert not scene.cache.exists()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def _replace(path: Path) -> None:
    path.write_bytes(b"[]")


@pytest.mark.parametrize("suffix", [".json", ".trace"])
@pytest.mark.parametrize("damage", [_truncate, _replace])
def test_damage_is_ignored_rebuilt_and_said_once(scene: Scene, suffix: str, damage: Callable[[Path], None]) -> None:
    """Damaged files of the cache never stop a run; the user hears of them once, and they are made anew."""
    for batch_size in (4, 8):
        with scene.tracer() as tracer:
            tracer.trace_at(batch_size, "9.0")
    for path in scene.cache.glob(f"*{suffix}"):
        damage(path)
    with scene.tracer() as tracer:
        assert [4, 8] == [tracer.trace_at(4, "9.0").batch_size, tracer.trace_at(8, "9.0").batch_size]
        assert ["a damaged entry of the trace cache was ignored and rebuilt"] == tracer.notes
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
        tracer.trace_at(8, "9.0")
        assert (True, []) == (tracer.cached, tracer.notes)


@pytest.mark.parametrize("suffix", [".json", ".trace"])
def test_the_cache_does_not_claim_what_it_lost(scene: Scene, suffix: str) -> None:
    """A trace whose entry is damaged, whose file is gone or whose source changed is not held."""
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
        assert tracer.holds(4, "9.0")
        scene.source.write_text("width = 16\n")
        assert not tracer.holds(4, "9.0")
        scene.source.write_text("width = 8\n")
        assert tracer.holds(4, "9.0")
        for path in scene.cache.glob(f"*{suffix}"):
            path.unlink() if suffix == ".trace" else path.write_bytes(b"{}")
        assert not tracer.holds(4, "9.0")
        assert [] == tracer.notes


def test_a_trace_removed_by_another_process_is_a_miss(scene: Scene) -> None:
    """A missing file is not damage: it is traced again without a word."""
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
    next(scene.cache.glob("*.trace")).unlink()
    with scene.tracer() as tracer:
        tracer.trace_at(4, "9.0")
        assert (False, []) == (tracer.cached, tracer.notes)


def test_a_cache_that_cannot_be_written_is_said(scene: Scene) -> None:
    """A file in the place of the directory costs the cache, not the answer."""
    scene.cache.write_text("in the way")
    with scene.tracer() as tracer:
        assert 4 == tracer.trace_at(4, "9.0").batch_size
        (note,) = tracer.notes
        assert "cannot be written" in note


def test_a_full_disk_costs_the_cache_only(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written any more the answer is given all the same, and no part of a file stays."""

    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with scene.tracer() as tracer:
        assert 4 == tracer.trace_at(4, "9.0").batch_size
        assert [f"the trace cache {scene.cache} cannot be written (No space left on device)"] == tracer.notes
    assert [] == list(scene.cache.iterdir())


def test_the_least_recently_used_goes_first(scene: Scene) -> None:
    """Beyond the size limit the traces that were not used for the longest time are removed."""
    traced = scene.scratch / "trace"
    traced.write_bytes(b"x" * 1000)
    cache = TraceCache(scene.cache, pytest.fail, limit_bytes=3500)
    for age, key in ((3, "a"), (2, "b"), (1, "c")):
        cache.write(key, traced, Origin({}, {}))
        for path in scene.cache.glob(f"{key}*"):
            os.utime(path, (time.time() - 100 * age,) * 2)
    cache.write("d", traced, Origin({}, {}))
    assert {"b", "c", "d"} == {path.name[0] for path in scene.cache.glob("*.trace")}


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (
            "exits",
            "stopped with exit code 3 while tracing batch size 4 (something in it, as os._exit(), ends the process",
        ),
        ("partial line", "stopped with exit code 0 in the middle of an answer about tracing batch size 4"),
        (
            "crashes",
            "was killed by SIGSEGV while tracing batch size 4 (compiled code that it calls crashed: call it once",
        ),
        ("out of memory", "was killed by SIGKILL while tracing batch size 4 (most likely because memory ran out)"),
        ("nonsense", "answered nonsense about tracing batch size 4"),
        ("closes", "closed its answers while tracing batch size 4"),
        ("hangs", "did not finish tracing batch size 4 within 1 s and was ended"),
        ("hangs with a child", "did not finish tracing batch size 4 within 1 s and was ended"),
        ("will not leave", "did not finish tracing batch size 4 within 1 s and was ended"),
    ],
)
def test_a_worker_that_fails_is_told_in_one_line(scene: Scene, behaviour: str, expected: str) -> None:
    """However the worker ends, one line says how and what it printed last, and nothing stays behind."""
    with scene.tracer(behaviour, timeout_s=1.0) as tracer:
        with pytest.raises(CaptureError) as caught:
            tracer.trace_at(4, "9.0")
        assert expected in str(caught.value)
        assert str(caught.value).endswith('its last line: {"ok": true}')
        assert 1 == len(str(caught.value).splitlines())
        _wait_until(lambda: scene.alive() == [])  # the kernel may take a moment to end what was killed
    assert list(scene.scratch.iterdir()) == []
    assert not scene.cache.exists()


def test_a_damaged_trace_from_the_worker_is_an_error(scene: Scene) -> None:
    """A file that is no trace is neither returned nor kept."""
    with scene.tracer("damaged trace") as tracer, pytest.raises(CaptureError, match="wrote a bad trace"):
        tracer.trace_at(4, "9.0")
    assert not scene.cache.exists()


def test_a_trace_for_another_class_is_an_error(scene: Scene) -> None:
    """A trace that is not the one asked for is neither returned nor kept."""
    with scene.tracer("another class") as tracer, pytest.raises(CaptureError, match="not the one asked for"):
        tracer.trace_at(4, "9.0")
    assert not scene.cache.exists()


def test_the_workers_error_keeps_its_class_and_is_one_line(scene: Scene) -> None:
    """An error about the workload reaches the user as such."""
    with scene.tracer("bad workload") as tracer, pytest.raises(WorkloadError) as caught:
        tracer.trace_at(4, "9.0")
    assert "no such function; name one of: a, b" == str(caught.value)
    assert scene.alive() == []


def test_an_unknown_error_class_is_a_capture_error(scene: Scene) -> None:
    """Only whichgpu's own errors are raised by name."""
    with scene.tracer("unknown error") as tracer, pytest.raises(CaptureError, match="SystemExit what"):
        tracer.trace_at(4, "9.0")


def test_a_step_that_fails_at_one_batch_size_leaves_the_worker(scene: Scene) -> None:
    """After an error at one batch size the same worker traces another."""
    with scene.tracer("raises at batch 7") as tracer:
        with pytest.raises(WorkloadError, match="failed at batch 7"):
            tracer.trace_at(7, "9.0")
        assert 8 == tracer.trace_at(8, "9.0").batch_size
    assert 1 == len(scene.pids())


def test_a_worker_that_died_is_replaced(scene: Scene) -> None:
    """After a death the next trace starts a new worker."""
    with scene.tracer("exits") as tracer:
        for _ in range(2):
            with pytest.raises(CaptureError, match="exit code 3"):
                tracer.trace_at(4, "9.0")
    assert 2 == len(scene.pids())


def test_a_worker_that_cannot_be_started_is_an_error(scene: Scene) -> None:
    """No such program: one line, nothing left."""
    tracer = Tracer(WorkloadRef(text="good", scheme="zoo", target="good"), worker=("/no/such/python",))
    with pytest.raises(CaptureError, match="cannot be started"):
        tracer.trace_at(4, "9.0")
    assert list(scene.scratch.iterdir()) == []


def test_a_machine_without_room_for_temporary_files_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder to work in: one line, no process."""
    monkeypatch.setattr("tempfile.tempdir", str(scene.scratch / "missing"))
    with scene.tracer() as tracer, pytest.raises(CaptureError, match="set TMPDIR"):
        tracer.trace_at(4, "9.0")
    assert [] == scene.pids()


PARENT = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_tracing import FAKE_WORKER
from whichgpu.workload import WorkloadRef
from whichgpu.tracing import Tracer
ref = WorkloadRef(text={behaviour!r}, scheme="file", target={source!r})
with Tracer(ref, cache=Path({cache!r}), worker=(sys.executable, str(FAKE_WORKER))) as tracer:
    for batch_size in {batch_sizes!r}:
        print(tracer.trace_at(batch_size, "9.0").batch_size, flush=True)
"""


def _parent(scene: Scene, behaviour: str, batch_sizes: tuple[int, ...]) -> subprocess.Popen[bytes]:
    code = PARENT.format(
        here=str(Path(__file__).parent),
        behaviour=behaviour,
        source=str(scene.source),
        cache=str(scene.cache),
        batch_sizes=batch_sizes,
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=scene.cache.parent
    )


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("behaviour", ["hangs with a child", "will not leave"])
def test_ctrl_c_leaves_nothing_behind(scene: Scene, behaviour: str, times: int) -> None:
    """Ctrl-C, also pressed again and again, ends the worker and its children, and leaves no file."""
    expected = 2 if behaviour == "hangs with a child" else 1
    with _parent(scene, behaviour, (4,)) as parent:
        _wait_until(lambda: len(scene.pids()) == expected)
        time.sleep(0.2)
        for _ in range(times):
            parent.send_signal(signal.SIGINT)
            time.sleep(0.1)
        _, stderr = parent.communicate(timeout=30)
    assert b"KeyboardInterrupt" in stderr
    _wait_until(lambda: scene.alive() == [])
    assert list(scene.scratch.iterdir()) == []
    assert not scene.cache.exists()


def test_two_processes_share_the_cache(scene: Scene) -> None:
    """Two runs at once both answer, and leave whole entries only."""
    with _parent(scene, "good", (4, 8)) as one, _parent(scene, "good", (8, 4)) as two:
        for parent, expected in ((one, b"4\n8\n"), (two, b"8\n4\n")):
            stdout, stderr = parent.communicate(timeout=60)
            assert (expected, b"") == (stdout, stderr)
    assert list(scene.cache.glob("*.part")) == []
    for path in scene.cache.glob("*.json"):
        assert (scene.cache / json.loads(path.read_text())["trace"]).exists()


def test_the_cache_directory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """$WHICHGPU_CACHE moves the cache; without it the platform's own place is used."""
    monkeypatch.setenv("WHICHGPU_CACHE", str(tmp_path))
    assert tmp_path / "traces" == trace_cache.cache_directory()
    monkeypatch.delenv("WHICHGPU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tmp_path / "xdg" / "whichgpu" / "traces" == trace_cache.cache_directory()


def test_the_real_worker_is_started_by_this_python() -> None:
    """The worker runs in the interpreter that asks, whatever stands first on PATH."""
    assert sys.executable == tracing.WORKER[0]


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
