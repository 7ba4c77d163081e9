"""What a step does in threads counts as if it had been done without them, and their errors are the step's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from conftest import Tracing
from whichgpu.errors import DataDependentError, StepError
from whichgpu.trace import Trace

Run = Callable[[Callable[[], Any]], Any]


def at_once(work: Callable[[], Any]) -> Any:
    """No thread at all."""
    return work()


def in_thread(work: Callable[[], Any]) -> Any:
    """A thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0] if results else None


def in_pool(work: Callable[[], Any]) -> Any:
    """A thread of a pool."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def workload(run_input: Run, run_training: Run) -> Callable[[torch.device], Callable[[int], Any]]:
    """A step whose input and whose training may happen in threads."""

    def setup(device: torch.device) -> Callable[[int], Any]:
        model = torch.nn.Linear(64, 64).to(device)
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch_size: int) -> None:
            x = run_input(lambda: torch.randn(batch_size, 64).to(device))
            run_training(lambda: model(x).sum().backward() if x is not None else None)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return setup


def seen(trace: Trace) -> tuple[Counter[str], Counter[int]]:
    """Operators and storages, whatever their order."""
    return Counter(op.name for op in trace.ops), Counter(storage.bytes for storage in trace.storages)


@pytest.mark.parametrize("run", [in_thread, in_pool])
def test_work_in_threads_counts(run: Run, tracing: Tracing) -> None:
    """Input, forward and backward pass are recorded wherever they run."""
    expected = tracing.trace(workload(at_once, at_once))

    assert seen(expected) == seen(tracing.trace(workload(run, at_once)))
    assert seen(expected) == seen(tracing.trace(workload(at_once, run)))


def test_an_error_in_a_thread_is_the_steps(tracing: Tracing) -> None:
    """Python only prints it, and the trace would lack what did not run."""

    def fail(work: Callable[[], Any]) -> Any:
        return in_thread(lambda: 1 / 0)

    with pytest.raises(StepError, match="step raised at batch size 4: ZeroDivisionError"):
        tracing.trace(workload(fail, at_once))


def test_a_thread_that_reads_computed_values_asks_for_real_tensors(tracing: Tracing) -> None:
    """As it does without a thread."""

    def look(work: Callable[[], Any]) -> Any:
        def positive() -> torch.Tensor:
            return (work() > 0).nonzero()

        return in_thread(positive)

    with pytest.raises(DataDependentError):
        tracing.trace(workload(look, at_once), 1 << 16)
