"""The measuring process over a made-up card: attempts are processes of their own, and failures are told apart."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from whichgpu import workload
from whichgpu.bench_attempts import Attempts, Said
from whichgpu.bench_worker import card as cards
from whichgpu.bench_worker import loading
from whichgpu.bench_worker.failures import classify
from whichgpu.bench_worker.timing import median_interval
from whichgpu.errors import InputError, WorkloadError

WORKER = Path(__file__).parents[1] / "data" / "cpu_bench_worker.py"
STEPS = """
import os, subprocess, sys, time
import torch

calls = []

def setup(device):
    def step(batch_size):
        calls.append(batch_size)
        os.environ["MADE_UP_PEAK"] = str(batch_size << 20)
        if batch_size << 20 > int(os.environ["MADE_UP_LIMIT"]):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if batch_size == 11:
            raise RuntimeError("CUDA error: device-side assert triggered\\nCompile with TORCH_USE_CUDA_DSA")
        if batch_size == 12:
            os.abort()
        if batch_size == 13:
            subprocess.Popen(["sleep", "600"])
            print("asleep", flush=True)
            time.sleep(600)
        if batch_size == 14:
            raise ValueError("no 14")
        if batch_size == 15:
            os._exit(3)
        if batch_size == 16:
            sys.exit("enough")
        if batch_size == 17:
            os.environ["MADE_UP_PEAK"] = "0"
        if batch_size == 18:
            raise RuntimeError("CUDNN_STATUS_ALLOC_FAILED")
        if batch_size == 19:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: out of memory")
        if batch_size == 20 and len(calls) > 3:
            raise AssertionError("an attempt saw the steps of another")
        time.sleep(0.001)
    return step
"""


class Client:
    """One measuring process."""

    def __init__(self, folder: Path, source: str = STEPS, timeout_s: float = 20.0) -> None:
        path = folder / "steps.py"
        path.write_text(source, encoding="utf-8")
        self.attempts = Attempts(
            workload.parse(str(path)),
            gpu_index=0,
            steps=3,
            time_budget_s=2.0,
            timeout_s=timeout_s,
            worker=(sys.executable, "-P", str(WORKER)),
        )
        self.events: list[str] = []
        self.attempts.start()
        try:
            self.loaded = self.attempts.loaded()
        except WorkloadError:
            self.attempts.close()
            raise

    def run(self, batch_size: int, kind: str = "fit", limit: int | None = None) -> Said:
        """One attempt."""
        return self.attempts.run(kind, batch_size, limit, self.events.append)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A measuring process for most tests."""
    made = Client(tmp_path_factory.mktemp("steps"))
    yield made
    made.attempts.close()


def test_a_fit(client: Client) -> None:
    """A batch that runs is told with its peaks and steps; the limit is what decides."""
    said = client.run(5)
    assert ("ok", 5 << 20, 3) == (said.outcome, said.peak_reserved_bytes, said.steps)
    assert "ok" == client.run(8, limit=8 << 20).outcome
    assert "out_of_memory" == client.run(9, limit=8 << 20).outcome


@pytest.mark.parametrize(
    ("batch_size", "outcome", "words"),
    [
        (10_000, "out_of_memory", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        (11, "cuda_error", "device-side assert"),
        (12, "crash", "was killed by SIGABRT (step 1 of 3)"),
        (14, "step_error", "ValueError: no 14"),
        (15, "crash", "stopped with exit code 3"),
        (16, "step_error", "SystemExit: enough"),
        (17, "step_error", "put nothing on the GPU"),
        (18, "out_of_memory", "CUDNN_STATUS_ALLOC_FAILED"),
        (19, "step_error", "the machine's own memory ran out"),
    ],
)
def test_failures_are_told_apart(client: Client, batch_size: int, outcome: str, words: str) -> None:
    """Each kind of failure has its outcome and one line, and the next attempt is none the worse for it."""
    said = client.run(batch_size)
    assert outcome == said.outcome
    assert words in (said.message or "")
    assert "\n" not in (said.message or "")
    assert "ok" == client.run(5).outcome


def test_attempts_share_nothing(client: Client) -> None:
    """What a step leaves behind is gone at the next attempt."""
    assert ["ok", "ok"] == [client.run(20).outcome, client.run(20).outcome]


def test_a_hang_is_ended_with_its_children(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the time limit the attempt and what it started are killed, and the measuring process goes on."""
    with monkeypatch.context() as patch:
        patch.setattr(client.attempts, "_timeout_s", 1.5)
        said = client.run(13)
    assert "hang" == said.outcome
    assert "did not finish within 1.5 s and was ended (step 1 of 3)" == said.message
    assert [] == [p for p in psutil.process_iter(["name", "ppid"]) if p.info["name"] == "sleep" and orphan(p)]
    assert "ok" == client.run(5).outcome


def orphan(process: psutil.Process) -> bool:
    """Whether a process was started by an attempt here and lost its parent."""
    try:
        return process.cmdline() == ["sleep", "600"] and process.ppid() in (1, os.getpid())
    except psutil.NoSuchProcess:
        return False


def test_steps_are_timed_until_the_median_is_known(client: Client) -> None:
    """Timing gives a median within its interval, says when it begins and ends, and whether it was close enough."""
    said = client.run(5, "time")
    assert said.step_s is not None
    median, low, high = said.step_s
    assert 0.001 <= low <= median <= high < 0.1
    assert said.steps >= 12
    assert said.converged in (True, False)
    assert client.events.index("timing") < client.events.index("timed")


def test_the_card_is_described_by_a_child(client: Client) -> None:
    """The probe runs in an attempt of its own: the process that stays never looks at a card."""
    said = client.run(0, "probe")
    assert said.card is not None
    assert "Made-up GPU" == said.card.name
    assert "" == client.loaded.unsafe


def test_threads_at_import_mean_fresh_processes(tmp_path: Path) -> None:
    """A workload that starts threads when imported is not forked, and is measured all the same."""
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    client = Client(tmp_path, threads + STEPS, timeout_s=60.0)
    try:
        assert "importing the workload starts threads" == client.loaded.unsafe
        assert "ok" == client.run(5).outcome
        assert "crash" == client.run(12).outcome
    finally:
        client.attempts.close()


def test_a_workload_that_cannot_be_loaded(tmp_path: Path) -> None:
    """The error of a broken import arrives as what it is."""
    with pytest.raises(WorkloadError, match="ZeroDivisionError"):
        Client(tmp_path, "1 / 0\n")


def test_all_ends_when_the_client_is_killed(tmp_path: Path) -> None:
    """When whoever measures is killed outright, the measuring process, the attempt in flight and their files go by themselves."""
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    code = f"""
import sys
from whichgpu import workload
from whichgpu.bench_attempts import Attempts
ref = workload.parse({str(tmp_path / "steps.py")!r})
worker = (sys.executable, "-P", {str(WORKER)!r})
attempts = Attempts(ref, gpu_index=0, steps=3, time_budget_s=2.0, timeout_s=300.0, worker=worker)
attempts.run("fit", 13, None, lambda _: None)
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(scratch)})
    deadline = time.monotonic() + 60
    while (
        len(started := psutil.Process(process.pid).children(recursive=True)) < 3
    ):  # the server, the attempt, its child
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    assert list(scratch.glob("whichgpu-*"))
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert [] == alive
    assert [] == list(scratch.glob("whichgpu-*"))


def test_only_torch_is_needed(tmp_path: Path) -> None:
    """The measuring process runs where whichgpu's other dependencies are missing."""
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    code = f"""
import builtins, runpy, sys
real = builtins.__import__
def guarded(name, *rest):
    if name.partition(".")[0] in ("msgspec", "rich", "rapidfuzz", "typer", "platformdirs"):
        raise ImportError(name)
    return real(name, *rest)
builtins.__import__ = guarded
from whichgpu import workload
from whichgpu.bench_worker import attempt, children, loading, server
ref = workload.parse({str(tmp_path / "steps.py")!r})
found, _ = loading.load_workload(ref)
print(loading.describe(ref, found)["unit"], torch.cuda.is_initialized() if (torch := sys.modules["torch"]) else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "samples False" == done.stdout.strip(), done.stderr


def test_the_hash_follows_the_source_not_the_folder(tmp_path: Path) -> None:
    """The same file elsewhere has the same hash, a changed one another."""
    found = []
    for number, source in enumerate((STEPS, STEPS, STEPS + "# changed\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "steps.py").write_text(source, encoding="utf-8")
        found.append(loading.workload_hash(workload.parse(str(folder / "steps.py"))))
    assert found[0] == found[1] != found[2]


def test_the_hash_of_a_ready_workload_leaves_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another workload in the zoo's table makes no measurement of this one old; a change of its own file does."""
    zoo = Path(loading.errors.__file__).parent / "zoo"
    ref = workload.parse("resnet50")
    found = []
    for names in (["resnet50.py"], ["resnet50.py", "__init__.py"], ["resnet50.py", "training.py"]):
        monkeypatch.setattr(loading, "sources", lambda _, names=names: [zoo / name for name in names])
        found.append(loading.workload_hash(ref))
    assert found[0] == found[1] != found[2]


# ---- functions ----


def test_limits_are_exact() -> None:
    """The fraction that PyTorch multiplies and cuts off gives exactly the limit, for any card and limit."""
    chance = random.Random(4)
    for _ in range(20_000):
        total = chance.randint(1 << 30, 300 << 30)
        part = chance.randint(1, total)
        fraction = cards.exact_fraction(part, total)
        assert part == int(fraction * total)
        assert 0 < fraction <= 1
    with pytest.raises(InputError):
        cards.exact_fraction(2, 1)


def test_the_interval_of_the_median() -> None:
    """The interval holds the true median in about 95 of 100 samples, at any sample size."""
    chance = random.Random(5)
    for count in (12, 40, 399, 401, 900):
        held = 0
        for _ in range(600):
            low, median, high = median_interval([chance.expovariate(1.0) for _ in range(count)])
            assert low <= median <= high
            held += low <= math.log(2) <= high
        assert held >= 0.93 * 600
        assert held < 600


def test_classification_needs_the_right_words() -> None:
    """A library's vague failure is called lack of memory only on a card that is full."""

    class Card:
        full = True

        def is_full(self) -> bool:
            return self.full

    card: Any = Card()
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert "out_of_memory" == classify(error, card)[0]
    card.full = False
    assert "step_error" == classify(error, card)[0]
    assert "driver" == classify(RuntimeError("Found no NVIDIA driver on your system"), None)[0]
    assert "driver" == classify(RuntimeError("No CUDA GPUs are available"), card)[0]
    assert ("no_gpu", "2") == classify(cards.NoSuchGpuError("2"), None)
    assert "out_of_memory" == classify(torch.OutOfMemoryError("CUDA out of memory"), card)[0]


def test_records_are_json(client: Client) -> None:
    """Flags name what the user has set, and can be written as JSON."""
    said = client.run(5)
    assert {"allocator", "tf32_matmul", "tf32_cudnn", "cudnn_benchmark", "deterministic"} <= set(said.flags)
    json.dumps(said.flags)


# ---- what attempts share ----


BUILDS = """
import os, sys
sys.path.insert(0, {data!r})
os.environ["MADE_UP_PEAK"] = "1000"
import cpu_bench_worker, torch
from whichgpu.bench_worker import attempt, loading, server
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

def tell(*words):
    with open({log!r}, "a") as log:
        print(*words, file=log)

def make_model():
    tell("built in", os.getpid())
    return torch.nn.Linear(8, 8)

def compute_loss(model, batch):
    tell("step in", os.getpid(), model.weight.sum().item())
    return model(batch).square().mean()

recipe = Recipe(
    where="made-up", settings=read_settings(Options("made-up", {{}})), make_model=make_model,
    make_batch=lambda size, device, dtype: torch.ones(size, 8), compute_loss=compute_loss, optimizer_arguments={{"lr": 0.1}},
)
loading.load = lambda _: make_workload(recipe)
attempt.GPU = cpu_bench_worker.CpuCard
server.main()
"""


def test_a_ready_workload_is_built_once(tmp_path: Path) -> None:
    """Attempts at a ready workload are forked from a process that has built it, and none sees another's training."""
    script, log = tmp_path / "worker.py", tmp_path / "log"
    script.write_text(BUILDS.format(data=str(WORKER.parent), log=str(log)), encoding="utf-8")
    attempts = Attempts(
        workload.parse("resnet50"),
        gpu_index=0,
        steps=2,
        time_budget_s=1.0,
        timeout_s=20.0,
        worker=(sys.executable, str(script)),
    )
    attempts.start()
    try:
        assert "" == attempts.loaded().unsafe
        said = [attempts.run("fit", size, None, lambda _: None) for size in (2, 2)]
    finally:
        attempts.close()
    assert ["ok", "ok"] == [one.outcome for one in said], said[0].message
    built, *steps = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    processes = [line[2] for line in steps]
    assert processes[0] == processes[1] != processes[2] == processes[3]
    assert "built" == built[0]
    assert built[2] not in processes
    assert steps[0][3:] == steps[2][3:] != steps[1][3:] == steps[3][3:]


def test_what_cannot_be_built_is_told_by_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fails to build leaves set-up as it was, so that the attempt fails with its own outcome."""

    def fails() -> Any:
        raise SystemExit("no such width")

    def setup(_: Any) -> Any:
        return fails()

    monkeypatch.setattr(loading.gc, "freeze", lambda: None)
    made = loading.prepare(workload.Workload(name="w", setup=setup, prepare=fails))
    assert (setup, None) == (made.setup, made.prepare)


def test_threads_of_a_build_mean_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where building the model leaves threads behind, attempts are not forked."""
    ended = threading.Event()

    def prepare() -> Any:
        threading.Thread(target=ended.wait, daemon=True).start()
        return lambda _: None

    monkeypatch.setattr(loading.gc, "freeze", lambda: None)
    monkeypatch.setattr(loading, "_started_threads", "")
    loading.prepare(workload.Workload(name="w", setup=lambda _: lambda _: None, prepare=prepare))
    try:
        assert "building the model starts threads" == loading.why_no_fork()
    finally:
        ended.set()
