"""`whichgpu bench` on the card in front of you: exact answers, failures told apart, nothing left running.

Takes under four minutes; needs one CUDA card with 8 GiB free and, for the processes on the card, nvidia-ml-py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from whichgpu import bench, gpu_status, workload
from whichgpu.bench_attempts import WORKER, Attempts, Said
from whichgpu.errors import InputError
from whichgpu.results import Store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

GIB = 1 << 30
HEAD = """
import os, subprocess, time
import torch
import torch.nn.functional as F

"""
MLP = (
    HEAD
    + """
def setup(device):
    model = torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(4096, 4096), torch.nn.ReLU())]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size):
        model(torch.randn(batch_size, 64, 4096, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
)
CONVOLUTIONS = (
    HEAD
    + """
def setup(device):
    layers = []
    for before, after in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch_size):
        images = torch.randn(batch_size, 3, 224, 224, device=device)
        loss = F.cross_entropy(model(images), torch.zeros(batch_size, dtype=torch.long, device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
)
ATTENTION = (
    HEAD
    + """
def setup(device):
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True), 4, enable_nested_tensor=False
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size):
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(torch.randn(batch_size, 256, 768, device=device)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
)
FAILURES = (
    HEAD
    + """
def setup(device):
    weight = torch.ones(1 << 20, device=device)

    def step(batch_size):
        taken = torch.empty(batch_size << 20, device=device, dtype=torch.uint8)
        if batch_size == 11:
            weight[torch.tensor([1 << 30], device=device)].sum().item()
        if batch_size == 12:
            os.abort()
        if batch_size == 13:
            subprocess.Popen(["sleep", "600"])
            time.sleep(600)
        if batch_size == 14:
            raise ValueError("no 14")

    return step
"""
)


def on_the_card() -> list[int]:
    """Processes that compute on the card, as far as the driver tells."""
    status, why = gpu_status.connect(0)
    if status is None:
        pytest.skip(why)
    return [holder.pid for holder in status.holders() if not holder.graphics]


def used_bytes() -> int:
    """Memory of the card that is taken."""
    status, why = gpu_status.connect(0)
    memory = status.memory() if status is not None else None
    if memory is None:
        pytest.skip(why or "the driver does not tell")
    return memory[2]


def write(folder: Path, source: str) -> str:
    """A workload's file."""
    path = folder / "steps.py"
    path.write_text(source, encoding="utf-8")
    return str(path)


def attempts_of(name: str, timeout_s: float = 60.0) -> Attempts:
    """A measuring process."""
    made = Attempts(workload.parse(name), gpu_index=0, steps=3, time_budget_s=2.0, timeout_s=timeout_s, worker=WORKER)
    made.start()
    made.loaded()
    return made


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Attempts]:
    """A measuring process of a step that fails in every way."""
    made = attempts_of(write(tmp_path, FAILURES), timeout_s=8.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("source", "limit_bytes"),
    [(MLP, 4 * GIB), (CONVOLUTIONS, 6 * GIB), (ATTENTION, 2 * GIB)],
    ids=["mlp", "conv", "bf16"],
)
def test_the_largest_batch_is_exact(tmp_path: Path, source: str, limit_bytes: int) -> None:
    """What bench returns was run and fits in a process of its own, and the next one runs out of memory there."""
    name = write(tmp_path, source)
    results = tmp_path / "results.sqlite"
    report = bench.bench([name], memory_limits_bytes=[limit_bytes], results_file=results, time_budget_s=1.0)
    row = report.rows[0]
    print(
        f"predicted {row.predicted_max_batch_size}, found {row.max_batch_size} in {row.attempts} attempts, {row.search_s:.1f} s"
    )
    with Store(results, read_only=True) as store:
        print([(one.batch_size, one.outcome, one.peak_reserved_bytes) for one in store.find()])
    assert row.predicted_max_batch_size is not None, report.notes
    assert row.attempts <= 5
    assert ("ok", True, "out_of_memory") == (row.outcome, row.exact, row.stopped_by)
    assert row.max_batch_size
    attempts = attempts_of(name)
    try:
        silent = [attempts.run("fit", row.max_batch_size + more, limit_bytes, lambda _: None) for more in (0, 1)]
        if silent[1].outcome == "ok":  # for a few steps, but not for many
            silent[1] = attempts.run("time", row.max_batch_size + 1, limit_bytes, lambda _: None)
    finally:
        attempts.close()
    assert ["ok", "out_of_memory"] == [said.outcome for said in silent]
    assert limit_bytes >= (silent[0].peak_reserved_bytes or 0) > 0.8 * limit_bytes
    speed = row.speeds[0]
    assert speed.step_low_s <= speed.step_s <= speed.step_high_s
    assert speed.samples_per_second == pytest.approx(row.max_batch_size / speed.step_s)
    again = bench.bench([name], memory_limits_bytes=[limit_bytes], results_file=results, time_budget_s=1.0).rows[0]
    assert (0, row.max_batch_size, row.speeds) == (again.attempts, again.max_batch_size, again.speeds)


def run(attempts: Attempts, batch_size: int, limit: int | None = None) -> Said:
    """One attempt."""
    return attempts.run("fit", batch_size, limit, lambda _: None)


def test_failures_are_told_apart(failing: Attempts) -> None:
    """Out of memory, a device assert, an abort, a hang and an error of the step each have their outcome; then it goes on."""
    for batch_size, outcome in ((11, "cuda_error"), (12, "crash"), (14, "step_error"), (13, "hang"), (5, "ok")):
        said = run(failing, batch_size)
        assert outcome == said.outcome, said.message
    assert "out_of_memory" == run(failing, 3000, 2 * GIB).outcome
    assert "ok" == run(failing, 2000, 2 * GIB).outcome


def test_the_limit_is_exact(failing: Attempts) -> None:
    """The allocator may reserve the limit to the last megabyte, and no more."""
    said = run(failing, 1000, GIB)  # a 4 MiB weight takes a segment of 20 MiB, a large request its own size
    assert "ok" == said.outcome
    assert (1000 << 20) + (20 << 20) == said.peak_reserved_bytes
    assert "ok" == run(failing, 1000, 1020 << 20).outcome
    assert "out_of_memory" == run(failing, 1000, (1020 << 20) - 1).outcome


def test_the_parent_never_touches_the_card(failing: Attempts) -> None:
    """Between attempts no process of ours is on the card, and the measuring process has no CUDA file open."""
    assert "ok" == run(failing, 5).outcome
    servers = [p for p in psutil.Process(os.getpid()).children() if "whichgpu.bench_worker" in " ".join(p.cmdline())]
    assert servers
    for server in servers:
        opened = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{server.pid}/fd") if entry.is_symlink()]
        assert [] == [path for path in opened if path.startswith("/dev/nvidia-uvm")]
        assert server.pid not in on_the_card()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_on_the_card(tmp_path: Path, number: signal.Signals) -> None:
    """However the bench ends in the middle of an attempt, its processes end and the card's memory comes back."""
    name = write(tmp_path, FAILURES)
    before = used_bytes()
    command = [sys.executable, "-m", "whichgpu", "bench", name, "--batch-size", "13", "--time-budget", "0"]
    process = subprocess.Popen([*command, "--results", str(tmp_path / "results.sqlite")], start_new_session=True)
    deadline = time.monotonic() + 90
    while not any("sleep" == p.name() for p in psutil.Process(process.pid).children(recursive=True)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.wait(30)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert [] == alive
    deadline = time.monotonic() + 10
    while used_bytes() > before + (64 << 20) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert used_bytes() <= before + (64 << 20)
    with Store(tmp_path / "results.sqlite") as store:
        assert [] == store.find()


def test_a_card_that_is_not_there(tmp_path: Path) -> None:
    """An index beyond the last card is refused with what there is."""
    with pytest.raises(InputError, match="there is no GPU 99: this machine has GPU"):
        bench.bench([write(tmp_path, MLP)], gpu_index=99, results_file=tmp_path / "results.sqlite")
