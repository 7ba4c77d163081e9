"""The tracing process from end to end: good workloads, bad ones, and ones that take the process along."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from whichgpu import workload
from whichgpu.errors import CaptureError, DataDependentError, WorkloadError
from whichgpu.scaling import Scaled
from whichgpu.trace import Trace
from whichgpu.tracing import Tracer

GOOD = """
import sys, torch
import torch.nn.functional as F

def setup(device):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step(batch_size):
        BEHAVE
        x = torch.randn(batch_size, 16, device=device)
        F.cross_entropy(model(x), torch.randint(0, 4, (batch_size,), device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


@pytest.fixture
def tracer_of(tmp_path: Path) -> Iterator[Callable[..., Tracer]]:
    """Makes a tracer of the good workload with a line put into its step; closes it afterwards."""
    made: list[Tracer] = []

    def make(
        behave: str = "pass",
        *,
        kind: str = "fake",
        cache: Path | None = None,
        text: str = GOOD,
        on_progress: Callable[[str], None] | None = None,
    ) -> Tracer:
        path = tmp_path / "mine.py"
        path.write_text(text.replace("BEHAVE", behave))
        os.utime(path, (0, 0))
        ref = workload.parse(f"{path}:setup")
        tracer = Tracer(ref, kind=kind, cache=cache, on_progress=on_progress, timeout_s=120.0)  # type: ignore[arg-type]
        made.append(tracer)
        return tracer

    yield make
    for tracer in made:
        tracer.close()


def children() -> list[psutil.Process]:
    """Everything that this process has started and that still runs."""
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


def test_a_good_workload_is_traced_at_batch_sizes_ahead(tracer_of: Callable[..., Tracer]) -> None:
    """Three batch sizes from one worker, two made ahead; they are affine; nothing is left behind."""
    tracer = tracer_of()
    low = tracer.trace_at(4, "9.0", ahead=(8, 11))
    high, third = tracer.trace_at(8, "9.0", ahead=(11,)), tracer.trace_at(11, "9.0")

    assert [(4, "9.0"), (8, "9.0"), (11, "9.0")] == [(t.batch_size, t.capability) for t in (low, high, third)]
    assert Scaled(low, high).agrees_with(third) is None
    assert (3, 3) == (low.facts["backward_calls"], low.facts["optimizer_steps"])
    assert any("mine.py" in name for name in low.names)
    tracer.close()
    assert [] == children()


def test_a_workload_that_prints_does_not_disturb(tracer_of: Callable[..., Tracer]) -> None:
    """Standard output belongs to the user, whatever is written there."""
    noisy = "print('{\"ok\": true}'); print('x' * 200_000); print('warning', file=sys.stderr, flush=True)"

    assert 4 == tracer_of(noisy).trace_at(4, "9.0").batch_size


def test_a_step_that_raises_leaves_the_worker_usable(tracer_of: Callable[..., Tracer]) -> None:
    """The error comes in one line with file and line; another batch size is traced by the same worker."""
    tracer = tracer_of("assert batch_size != 5, 'five is right out'")
    with pytest.raises(WorkloadError, match=r"five is right out.*mine\.py:9"):
        tracer.trace_at(5, "9.0", ahead=(6,))

    assert 6 == tracer.trace_at(6, "9.0").batch_size


def test_values_on_the_gpu_ask_for_real_tensors(tracer_of: Callable[..., Tracer]) -> None:
    """The error that makes the caller fall back comes through as it is, and the fallback works."""
    needs = "torch.rand(1 << 22, device=device).gt(0.5).nonzero()"
    with pytest.raises(DataDependentError):
        tracer_of(needs).trace_at(4, "9.0")
    heard: list[str] = []
    trace = tracer_of(needs, kind="real-cpu", on_progress=heard.append).trace_at(2, "9.0")

    assert "real-cpu" == trace.kind
    assert "batch size 2: setting up, with real tensors on this CPU" in heard  # which is why it takes longer


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "SIGKILL (most likely because memory ran out)",
        ),
    ],
)
def test_a_step_that_takes_its_process_along_is_told(behave: str, words: str, tracer_of: Callable[..., Tracer]) -> None:
    """The process of one batch size may die in any way: one line says how, and others can still be traced."""
    tracer = tracer_of(f"if batch_size == 5: {behave}")
    with pytest.raises(CaptureError) as caught:
        tracer.trace_at(5, "9.0", ahead=(6,))

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert 6 == tracer.trace_at(6, "9.0").batch_size


def test_a_worker_killed_from_outside_is_told_and_replaced(tracer_of: Callable[..., Tracer]) -> None:
    """Killing the worker in a trace ends its children too; the next request starts a new one."""
    tracer = tracer_of("import time; time.sleep(30 if batch_size == 5 else 0)")
    tracer.trace_at(4, "9.0")
    (worker,) = psutil.Process().children()

    def kill() -> None:
        while not worker.children():
            time.sleep(0.01)
        os.kill(worker.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(CaptureError, match="SIGKILL"):
        tracer.trace_at(5, "9.0", ahead=(6, 7))
    thread.join()

    assert 8 == tracer.trace_at(8, "9.0").batch_size
    tracer.close()
    deadline = time.monotonic() + 5
    while children() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [] == children()


def test_closing_in_the_middle_leaves_nothing_running(tracer_of: Callable[..., Tracer]) -> None:
    """Work that was begun ahead ends with the tracer."""
    tracer = tracer_of("import time; time.sleep(0 if batch_size == 4 else 60)")
    tracer.trace_at(4, "9.0", ahead=(5, 6))
    tracer.close()
    deadline = time.monotonic() + 5
    while children() and time.monotonic() < deadline:
        time.sleep(0.02)

    assert [] == children()


def test_a_file_that_fails_on_import_is_a_mistake_of_the_workload(tracer_of: Callable[..., Tracer]) -> None:
    """The worker answers in one line, and the tracer holds no process afterwards."""
    with pytest.raises(WorkloadError, match="ZeroDivisionError") as caught:
        tracer_of(text="1 / 0\n").trace_at(4, "9.0")

    assert "\n" not in str(caught.value)
    assert [] == children()


def test_traces_are_kept_and_made_anew_when_the_file_changes(tracer_of: Callable[..., Tracer], tmp_path: Path) -> None:
    """A second tracer reads the trace from the cache; an edited file is traced again."""
    cache = tmp_path / "cache"

    def traced(tracer: Tracer) -> tuple[Trace, bool]:
        return tracer.trace_at(4, "9.0"), tracer.cached

    first, made = traced(tracer_of(cache=cache))
    second, kept = traced(tracer_of(cache=cache))
    third, anew = traced(tracer_of("x = 1", cache=cache))

    assert (False, True, False) == (made, kept, anew)
    assert first == second
    assert first.events == third.events
