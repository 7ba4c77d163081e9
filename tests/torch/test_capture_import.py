"""What a user's file does when it is imported counts: it finds a GPU there, and what it puts on it is in the trace."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whichgpu import workload
from whichgpu.capture import in_place
from whichgpu.capture.stage import Stage
from whichgpu.capture.target import Target
from whichgpu.errors import CaptureError, WorkloadError
from whichgpu.trace import Trace
from whichgpu.tracing import Tracer

TEXT = """
import torch
TOP

def setup(given):
    SETUP
    def step(batch_size):
        x = torch.randn(batch_size, 64, device=device)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""
BUILD = "model = torch.nn.Linear(64, 64).to(device); optimizer = torch.optim.Adam(model.parameters())"

Make = Callable[..., Tracer]


@pytest.fixture
def tracer_of(tmp_path: Path) -> Iterator[Make]:
    """Makes a tracer of the text with lines put in."""
    made: list[Tracer] = []

    def make(top: str, setup: str = BUILD) -> Tracer:
        path = tmp_path / "mine.py"
        path.write_text(TEXT.replace("TOP", top).replace("SETUP", setup))
        os.utime(path, (0, 0))
        made.append(Tracer(workload.parse(f"{path}:setup"), timeout_s=120.0))
        return made[-1]

    yield make
    for tracer in made:
        tracer.close()


def held(trace: Trace) -> Counter[tuple[str, int]]:
    """What is on the GPU over all steps, by category."""
    return Counter((storage.category, storage.bytes) for storage in trace.storages)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The trace of the form in which everything happens in the set-up."""
    path = tmp_path_factory.mktemp("plain") / "plain.py"
    path.write_text(TEXT.replace("TOP", "pass").replace("SETUP", f"device = given; {BUILD}"))
    with Tracer(workload.parse(f"{path}:setup")) as tracer:
        return tracer.trace_at(4, "9.0")


@pytest.mark.parametrize(
    "top",
    [
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        'device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"',
        'assert torch.cuda.is_available(); device = "cuda"',
        'from torch.cuda import is_available; import json; device = "cuda" if is_available() else "cpu"',
    ],
)
def test_a_file_finds_a_gpu_when_it_is_imported(top: str, tracer_of: Make, plain: Trace) -> None:
    """A device that is chosen at the top of the file is the GPU, and the trace is the one of the plain form."""
    assert held(plain) == held(tracer_of(top).trace_at(4, "9.0"))


def test_a_model_of_the_module_is_on_the_gpu(tracer_of: Make, plain: Trace) -> None:
    """What the import puts on the GPU counts as made in the set-up, at every batch size alike."""
    tracer = tracer_of(f"device = 'cuda'; {BUILD}", "pass")

    assert held(plain) == held(tracer.trace_at(4, "9.0", ahead=(8,)))
    assert "weight" in {storage.category for storage in tracer.trace_at(8, "9.0").storages}


def test_a_file_that_looks_at_the_card_is_imported_for_each_class(tracer_of: Make) -> None:
    """What the import learnt of one card does not hold for another."""
    top = "device = 'cuda'; new = torch.cuda.get_device_capability() >= (8, 0)"
    tracer = tracer_of(top, f"{BUILD}; torch.ones(3, device=device, dtype=torch.bfloat16 if new else torch.float32)")

    assert "bfloat16" not in tracer.trace_at(4, "7.5").facts["dtypes"]
    assert "bfloat16" in tracer.trace_at(4, "9.0").facts["dtypes"]


def test_a_step_with_nothing_on_the_gpu_is_refused(tracer_of: Make) -> None:
    """It would fit on every card: more likely it forgot the device, and the error says how to use it."""
    with pytest.raises(WorkloadError, match="ran nothing on the GPU; use the device that setup") as caught:
        tracer_of("device = 'cpu'").trace_at(4, "9.0")
    assert "mine.py" in str(caught.value)


def test_the_process_that_is_forked_runs_no_backward_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage is made before the forks: with a GPU, autograd's threads would make every backward pass of theirs fail."""
    log = tmp_path / "log"
    count = in_place._count_uses

    def told() -> tuple[int, ...]:
        log.write_text(str(os.getpid()), encoding="utf-8")
        return count()

    monkeypatch.setattr(in_place, "_count_uses", told)
    in_place._uses_when_alone.cache_clear()
    Stage(Target.parse("9.0"))
    assert str(os.getpid()) != log.read_text(encoding="utf-8")
    assert count() == in_place._uses_when_alone()


@pytest.mark.parametrize("words", ["Unable to handle autograd's threading in combination with fork-based", "broken"])
def test_only_threads_that_run_already_are_a_reason_to_count_here(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass that fails for another reason in the fork is an error: here it might start threads."""
    here, count = os.getpid(), in_place._count_uses

    def failing() -> tuple[int, ...]:
        if os.getpid() != here:
            raise RuntimeError(words)
        return count()

    monkeypatch.setattr(in_place, "_count_uses", failing)
    in_place._uses_when_alone.cache_clear()
    if "fork" in words:
        assert count() == in_place._uses_when_alone()
    else:
        with pytest.raises(CaptureError, match=r"failed on this machine \(code 1\)"):
            in_place._uses_when_alone()
    in_place._uses_when_alone.cache_clear()
