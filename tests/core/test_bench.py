"""Measuring with a made-up measuring process: what is tried, told apart, recorded and carried on."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from whichgpu import bench, gpu_status, render
from whichgpu.bench_attempts import Attempts
from whichgpu.bench_report import BenchReport
from whichgpu.errors import BenchError, InputError, MissingExtraError, WorkloadError
from whichgpu.memory import MemoryModel
from whichgpu.results import Store

FAKE_WORKER = Path(__file__).parents[1] / "data" / "fake_bench_worker.py"
GIB = 1 << 30


class FakeModel(MemoryModel):
    """Foretells a line through nothing: so many samples fill 8 GiB."""

    def __init__(self, largest: int) -> None:
        self._largest = largest

    def largest_batch(self, limit_bytes: int) -> int:
        """The largest batch by this model."""
        return max(int((limit_bytes - 8 * GIB / 10) / (8 * GIB * 9 / 10 / self._largest)), 0)

    def replay(self, batch_size: int, limit_bytes: int | None = None) -> Any:
        """The peaks by this model."""

        class Peaks:
            fits = limit_bytes is None or batch_size <= self.largest_batch(limit_bytes)
            peak_allocated_bytes = 8 * GIB // 10 + 8 * GIB * 9 // 10 * batch_size // self._largest

        return Peaks()


class FakePredictor:
    """Stands for predictor.Predictor."""

    largest: int | None = None

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> FakePredictor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def model(self, _: tuple[int, int]) -> FakeModel:
        """The model, or why there is none."""
        if self.largest is None:
            raise MissingExtraError("no torch here")
        return FakeModel(self.largest)


class Scene:
    """Workloads, a results file and what was tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tries = folder / "tries"
        self.results = folder / "results.sqlite"

    def workload(self, behaviour: str, name: str = "step") -> str:
        """A file whose first line tells the fake worker how to behave."""
        path = self.folder / f"{name}.py"
        path.write_text(f"# {behaviour}\n", encoding="utf-8")
        return str(path)

    def run(self, *behaviours: str, **options: Any) -> BenchReport:
        """Measure workloads that behave so."""
        names = [self.workload(behaviour, f"step{number}") for number, behaviour in enumerate(behaviours)]
        options = {"time_budget_s": 0, "results_file": self.results, "timeout_s": 5.0, **options}
        return bench.bench(names, worker=(sys.executable, str(FAKE_WORKER)), **options)

    def tried(self, kind: str = "fit") -> list[int]:
        """The batch sizes of the attempts of one kind, in order."""
        lines = self.tries.read_text(encoding="utf-8").splitlines() if self.tries.exists() else []
        return [attempt["batch_size"] for attempt in map(json.loads, lines) if attempt["kind"] == kind]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A folder to measure in, without a driver and without predictions."""
    made = Scene(tmp_path)
    monkeypatch.setenv("FAKE_BENCH_ATTEMPTS", str(made.tries))
    monkeypatch.setattr("whichgpu.bench.one.Predictor", FakePredictor)
    monkeypatch.setattr(FakePredictor, "largest", None)
    monkeypatch.setattr(gpu_status, "connect", lambda _: (None, "no driver in tests"))
    monkeypatch.setattr("whichgpu.bench.holders.LAG_S", 0.3)
    return made


# ---- the answer ----


def test_the_search_starts_from_the_prediction(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right prediction takes two attempts: it fits, and one more does not."""
    monkeypatch.setattr(FakePredictor, "largest", 129)
    row = scene.run("129 fit", memory_limits_bytes=[8 * GIB]).rows[0]
    assert [129, 130] == scene.tried()
    assert (129, True, "ok", "out_of_memory") == (row.max_batch_size, row.exact, row.outcome, row.stopped_by)
    assert (129, 2) == (row.predicted_max_batch_size, row.attempts)


@pytest.mark.parametrize("predicted", [100, 127, 133, 160, None])
def test_a_wrong_prediction_still_ends_at_the_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, predicted: int | None
) -> None:
    """Whatever is predicted, or nothing, the answer was run and fits and the next was run and does not."""
    monkeypatch.setattr(FakePredictor, "largest", predicted)
    row = scene.run("129 fit", memory_limits_bytes=[8 * GIB]).rows[0]
    assert (129, True) == (row.max_batch_size, row.exact)
    assert {129, 130} <= set(scene.tried())


def test_each_limit_is_a_row(scene: Scene) -> None:
    """Several limits give several rows, in their order; one above the card's memory is refused in its row."""
    report = scene.run("128 fit", memory_limits_bytes=[4 * GIB, 8 * GIB, 16 * GIB])
    assert [64, 128, None] == [row.max_batch_size for row in report.rows]
    assert "driver" == report.rows[2].outcome
    assert "the card has only 8.0 GiB" == report.rows[2].message
    assert not report.answered


def test_not_even_one_fits(scene: Scene) -> None:
    """Where batch size 1 runs out of memory the answer is 0, and nothing is timed."""
    row = scene.run("0 fit", time_budget_s=1).rows[0]
    assert ("out_of_memory", 0, True, ()) == (row.outcome, row.max_batch_size, row.exact, row.speeds)
    assert 1 in scene.tried()


def test_powers_of_two(scene: Scene) -> None:
    """With power_of_two only powers are tried."""
    row = scene.run("100 fit", power_of_two=True).rows[0]
    assert 64 == row.max_batch_size
    assert all(size & (size - 1) == 0 for size in scene.tried())


def test_speeds_at_the_largest_and_its_halves(scene: Scene) -> None:
    """Steps are timed at the largest batch and at its halves; a rate is in the workload's own unit."""
    row = scene.run("20 fit", time_budget_s=1).rows[0]
    assert [20, 10, 5, 2] == [speed.batch_size for speed in row.speeds] == scene.tried("time")
    assert (100.0, 200.0) == (row.speeds[0].samples_per_second, row.speeds[0].units_per_second)
    assert "images" == row.unit
    assert row.speeds[0].converged


def test_one_batch_size(scene: Scene) -> None:
    """With a batch size given only that is measured, and whether it fits is the outcome."""
    report = scene.run("20 fit", batch_sizes=[10], time_budget_s=1)
    assert ("ok", None, 10) == (
        report.rows[0].outcome,
        report.rows[0].max_batch_size,
        report.rows[0].speeds[0].batch_size,
    )
    assert "out_of_memory" == scene.run("20 fit", batch_sizes=[30], time_budget_s=1).rows[0].outcome
    assert [] == scene.tried("fit")
    assert [10, 30] == scene.tried("time")


def test_a_batch_that_runs_out_of_memory_later(scene: Scene) -> None:
    """A batch that fits for a few steps but not for many is not the answer: the next smaller one that lasts is."""
    row = scene.run("20 fit, fewer for long", time_budget_s=1).rows[0]
    assert (19, True, "out_of_memory") == (row.max_batch_size, row.exact, row.stopped_by)
    assert 19 == row.speeds[0].batch_size


def test_several_batch_sizes(scene: Scene) -> None:
    """Each batch size asked for is a row that names it, and the text says how each went."""
    report = scene.run("20 fit", batch_sizes=[10, 30, 10], time_budget_s=0)
    assert [(10, "ok"), (30, "out_of_memory")] == [(row.batch_size, row.outcome) for row in report.rows]
    words = shown(report)
    assert "10 runs" in words
    assert "30 is too large" in words


def test_how_many_speeds(scene: Scene) -> None:
    """Steps are timed at as many batch sizes as asked for, from the largest down, while there are halves."""
    assert [20] == [speed.batch_size for speed in scene.run("20 fit", time_budget_s=1, speeds=1).rows[0].speeds]
    assert [20, 10, 5, 2, 1] == [
        speed.batch_size for speed in scene.run("20 fit", time_budget_s=1, speeds=9).rows[0].speeds
    ]


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("behaviour", "outcome", "words"),
    [
        ("300 fit crashes", "crash", "killed by SIGSEGV"),
        ("300 fit partial line", "crash", "in the middle of an answer"),
        ("300 fit garbage", "crash", "answered nonsense about batch size"),
        ("300 fit hangs", "hang", "did not finish batch size"),
    ],
)
def test_a_lost_measuring_process_is_an_outcome(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, behaviour: str, outcome: str, words: str
) -> None:
    """A crash, half a line, garbage and a hang are recorded as what they are; what ran before remains the answer."""
    monkeypatch.setattr("whichgpu.bench_attempts.GRACE_S", 0.2)
    row = scene.run(behaviour, timeout_s=0.5).rows[0]
    assert (outcome, "ok") == (row.stopped_by, row.outcome)
    assert 64 <= (row.max_batch_size or 0) <= 100
    with Store(scene.results) as store:
        lost = store.find(outcomes=[outcome])
    assert lost
    assert words in (lost[0].message or "")
    assert [] == children()


def test_a_cuda_error_is_no_lack_of_memory(scene: Scene) -> None:
    """A step that fails on the GPU at every size is said to, after two attempts, and is no star."""
    row = scene.run("129 fit cuda error").rows[0]
    assert ("cuda_error", None, 2) == (row.outcome, row.max_batch_size, row.attempts)
    assert "CUDA error: device-side assert triggered" == row.message


def test_a_step_that_raises(scene: Scene) -> None:
    """A step that raises at every size is a step error."""
    row = scene.run("129 fit refuses").rows[0]
    assert ("step_error", None, "ValueError: no") == (row.outcome, row.max_batch_size, row.message)


@pytest.mark.parametrize(
    ("behaviour", "options", "error", "words"),
    [
        ("no driver", {}, BenchError, "`whichgpu fit` and `whichgpu rank` answer without one"),
        ("one card", {"gpu_index": 3}, InputError, "there is no GPU 3: this machine has GPU 0 only"),
        ("full card", {}, BenchError, "GPU 0 is full"),
        ("bad workload", {}, WorkloadError, "no such function"),
        ("1 fit", {"gpu_index": -1}, InputError, "GPU index -1"),
        ("1 fit", {"batch_sizes": [4, 0]}, InputError, "batch size 0"),
        ("1 fit", {"batch_sizes": [4], "power_of_two": True}, InputError, "leave one of them out"),
        ("1 fit", {"speeds": 0}, InputError, "0 speeds"),
        ("1 fit", {"precisions": ["fp16"]}, WorkloadError, "step0.py"),
        ("1 fit", {"steps": 1}, InputError, "1 steps"),
        ("1 fit", {"time_budget_s": -1.0}, InputError, "time budget of -1 s"),
        ("1 fit", {"timeout_s": 0.0}, InputError, "time limit of 0 s"),
        ("1 fit", {"memory_limits_bytes": [0]}, InputError, "memory limit of 0 bytes"),
    ],
)
def test_mistakes_in_one_line(
    scene: Scene, behaviour: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """No driver, no such card, a full card, a broken workload and senseless options each get one line and its cure."""
    with pytest.raises(error) as raised:
        scene.run(behaviour, **options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_one_broken_workload_of_several(scene: Scene) -> None:
    """A workload that cannot be loaded gets a row that says so; the others are measured."""
    report = scene.run("bad workload", "20 fit")
    assert ["step_error", "ok"] == [row.outcome for row in report.rows]
    assert "no such function" in (report.rows[0].message or "")


class Nvml:
    """A driver's management library with one card and some processes."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, held: Sequence[tuple[int, int]] = (), free_bytes: int = 8 * GIB) -> None:
        self.held = held
        self.free_bytes = free_bytes
        self.energy_mj = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[[], Any]] = {
            "nvmlDeviceGetCudaComputeCapability": lambda: (9, 0),
            "nvmlDeviceGetUUID": lambda: "GPU-1234",
            "nvmlSystemGetDriverVersion": lambda: b"580.1",
            "nvmlSystemGetProcessName": lambda: b"/usr/bin/python3 -m train",
            "nvmlDeviceGetComputeRunningProcesses": lambda: [
                type("P", (), {"pid": pid, "usedGpuMemory": size}) for pid, size in self.held
            ],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda: [type("P", (), {"pid": 7, "usedGpuMemory": GIB})],
            "nvmlDeviceGetMemoryInfo": lambda: type(
                "M", (), {"total": 8 * GIB, "free": self.free_bytes, "used": 8 * GIB - self.free_bytes}
            ),
            "nvmlDeviceGetPowerUsage": lambda: 250_000,
            "nvmlDeviceGetClockInfo": lambda: 1500,
            "nvmlDeviceGetTemperature": lambda: 60,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda: 0x4 | 0x1,
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *_: answers[name]()


def test_a_busy_card_says_who(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process on the card stops a measurement of the whole card, and is named; a screen does not."""
    nvml = Nvml(held=[(42, 3 * GIB)], free_bytes=5 * GIB)
    monkeypatch.setattr(gpu_status, "connect", lambda _: (gpu_status.GpuStatus(nvml, None), ""))
    row = scene.run("20 fit").rows[0]
    assert ("busy", None) == (row.outcome, row.max_batch_size)
    assert "python3 (pid 42, 3.0 GiB) uses the card" == row.message
    assert [] == scene.tried()
    with Store(scene.results) as store:
        assert ["busy"] == [measured.outcome for measured in store.find()]
    report = scene.run("20 fit", memory_limits_bytes=[2 * GIB])
    assert "ok" == report.rows[0].outcome
    assert any(note.startswith("speeds may suffer: python3 (pid 42") for note in report.notes)
    nvml.held = ()
    nvml.free_bytes = 8 * GIB
    assert "ok" == scene.run("20 fit").rows[0].outcome


def test_power_and_clocks_are_noted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """While steps are timed the driver's figures are read, throttling among them; energy follows from power and rate."""
    monkeypatch.setattr(gpu_status, "connect", lambda _: (gpu_status.GpuStatus(Nvml(), None), ""))
    report = scene.run("20 fit", time_budget_s=1)
    speed = report.rows[0].speeds[0]
    assert (250.0, 1500.0, 60.0, ("power limit",)) == (
        speed.power_w,
        speed.sm_clock_mhz,
        speed.temperature_c,
        speed.throttled,
    )
    assert 2.5 == speed.energy_per_sample_j
    assert "580.1" == report.driver
    words = shown(report, 80)
    assert [f"{size} 250 2.50 1,500 60 power limit" for size in (20, 10, 5, 2)] == [
        " ".join(line.split()[-7:]) for line in words.splitlines() if line.endswith("power limit")
    ]
    assert 80 >= max(map(len, words.splitlines()))


def test_what_the_driver_does_not_tell_is_left_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that is unknown for all timings has no column, and without any there is no table of them."""
    assert "Power" not in shown(scene.run("20 fit", time_budget_s=1))
    nvml = Nvml()
    monkeypatch.setattr(Nvml, "NVMLError", KeyError)
    for query in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        monkeypatch.setattr(nvml, query, {}.__getitem__, raising=False)
    monkeypatch.setattr(gpu_status, "connect", lambda _: (gpu_status.GpuStatus(nvml, None), ""))
    words = shown(scene.run("20 fit", time_budget_s=1, again=True))
    assert [f"{size} 1,500 60" for size in (20, 10, 5, 2)] == [
        " ".join(line.split()[-3:]) for line in words.splitlines() if line.endswith(" 60")
    ]
    assert not {"Power", "Energy", "Slowed"} & set(words.split())


def test_few_steps_have_no_spread(scene: Scene) -> None:
    """Below six timed steps no interval holds the median in 95 % of cases: none is shown, and the text says how many."""
    report = scene.run("20 fit", time_budget_s=1, speeds=1)
    row = report.rows[0]
    assert " 0.5 %" in shown(report)
    speed = msgspec.structs.replace(row.speeds[0], steps=5, converged=False)
    words = shown(msgspec.structs.replace(report, rows=(msgspec.structs.replace(row, speeds=(speed,)),)), 200)
    assert " 0.5 %" not in words
    assert "batch size 20: the time budget ended after 5 steps, too few to know the step within 1 %" in words


# ---- what is kept ----


def test_nothing_is_measured_twice(scene: Scene) -> None:
    """The same call again takes all from the record; `again` measures again; another workload does not share."""
    first = scene.run("20 fit", time_budget_s=1).rows[0]
    tried = scene.tried(), scene.tried("time")
    second = scene.run("20 fit", time_budget_s=1).rows[0]
    assert tried == (scene.tried(), scene.tried("time"))
    assert (0, first.max_batch_size, first.speeds) == (second.attempts, second.max_batch_size, second.speeds)
    assert second.recorded > 0
    scene.run("20 fit", again=True)
    assert 2 * len(tried[0]) == len(scene.tried())
    assert 21 == scene.run("21 fit").rows[0].max_batch_size


def test_an_interrupted_search_carries_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interruption the attempts that had ended are not repeated."""
    attempts = Attempts.run
    calls = []

    def interrupted(self: Any, kind: str, size: int, *rest: Any) -> Any:
        calls.append(size)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return attempts(self, kind, size, *rest)

    monkeypatch.setattr(Attempts, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scene.run("129 fit")
    assert [] == children()
    before = scene.tried()
    assert 2 == len(before)
    monkeypatch.setattr(Attempts, "run", attempts)
    row = scene.run("129 fit").rows[0]
    assert 129 == row.max_batch_size
    assert len(set(scene.tried())) == len(scene.tried())


DRIVE = """
import sys
from pathlib import Path
from whichgpu import bench, gpu_status
from whichgpu.bench import one
from whichgpu.errors import CaptureError
def refuse(*_, **__):
    raise CaptureError("not here")
one.Predictor = refuse
bench.bench([sys.argv[1]], results_file=Path(sys.argv[2]), time_budget_s=0, worker=(sys.executable, sys.argv[3]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_bench_leaves_nothing_behind(scene: Scene, number: signal.Signals) -> None:
    """However the bench ends in the middle of an attempt, what it started ends too, and finished attempts are kept."""
    name = scene.workload("300 fit hangs")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVE, name, str(scene.results), str(FAKE_WORKER)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not any(size > 100 for size in scene.tried()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    assert started
    process.send_signal(number)
    process.wait(30)
    if number == signal.SIGINT:
        _, alive = psutil.wait_procs(started, timeout=5)
        assert [] == alive
    with Store(scene.results) as store:
        kept = [measured.batch_size for measured in store.find(outcomes=["ok"])]
    assert [size for size in scene.tried() if size <= 100] == kept
    for left in started:  # the made-up worker does not watch its parent, as the real one does
        try:
            left.kill()
        except psutil.NoSuchProcess:
            continue


def children() -> list[psutil.Process]:
    """Processes that this one started and that still run."""
    return [one for one in psutil.Process(os.getpid()).children(recursive=True) if one.status() != "zombie"]


# ---- what is shown ----


def shown(report: BenchReport, width: int = 100) -> str:
    """The report as text."""
    file = io.StringIO()
    console = render.make_console(file, width)
    with render.trimmed(console):
        render.print_bench(report, console)
    return file.getvalue()


def test_the_report_as_text(scene: Scene) -> None:
    """The tables name limits, largest batches, rates with their unit and spread; failures are in words."""
    report = scene.run("20 fit", "0 fit", "129 fit cuda error", memory_limits_bytes=[8 * GIB], time_budget_s=1)
    words = shown(report)
    assert "Made-up GPU (8.0 GiB, torch 2.14.1, driver" in words
    assert "measured on the card" in words
    assert "200 images" in words
    assert "*  not even batch size 1 fits" in words
    assert "CUDA error" in words
    assert "data loading is not measured" in words
    assert 80 >= max(map(len, shown(report, 80).splitlines()))
