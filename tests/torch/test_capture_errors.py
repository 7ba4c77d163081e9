"""Mistakes of the workload are told in one line, with the place; its own exits do not end the tracer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Tracing
from whichgpu.errors import WorkloadError

Step = Callable[[int], Any]


def load(text: str, tmp_path: Path) -> Any:
    """`setup` of a user's file."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    return names["setup"]


def refusal(setup: Any, tracing: Tracing, batch_size: int = 4) -> str:
    """The one line with which a workload is refused."""
    with pytest.raises(WorkloadError) as caught:
        tracing.trace(setup, batch_size)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_step_that_raises_names_error_batch_size_and_line(tmp_path: Path, tracing: Tracing) -> None:
    """The error's own words, at which batch size, in which line of the user's file."""
    text = (
        "import torch\n"
        "def setup(device):\n"
        "    layer = torch.nn.Linear(8, 4).to(device)\n"
        "    def step(batch_size):\n"
        "        layer(torch.rand(batch_size, 9, device=device))\n"
        "    return step\n"
    )
    said = refusal(load(text, tmp_path), tracing)

    assert "step raised at batch size 4: RuntimeError: " in said
    assert "[4, 9]" in said or "4x9" in said
    assert f"({tmp_path}/mine.py:5)" in said


def test_a_setup_that_raises_names_its_line(tmp_path: Path, tracing: Tracing) -> None:
    """The same for the set-up, where no batch size is at fault."""
    said = refusal(load("def setup(device):\n    raise ValueError('no\\n  good')\n", tmp_path), tracing)

    assert "setup raised: ValueError: no good" in said
    assert f"({tmp_path}/mine.py:2)" in said
    assert "batch size" not in said


def test_only_some_batch_sizes_may_fail(tmp_path: Path, tracing: Tracing) -> None:
    """A batch of one that batch norm refuses does not spoil the others."""
    text = (
        "import torch\n"
        "def setup(device):\n"
        "    norm = torch.nn.BatchNorm1d(4).to(device)\n"
        "    return lambda batch_size: norm(torch.rand(batch_size, 4, device=device))\n"
    )
    setup = load(text, tmp_path)

    assert "at batch size 1" in refusal(setup, tracing, 1)
    assert tracing.trace(setup, 2).ops


@pytest.mark.parametrize(("returned", "word"), [("None", "NoneType"), ("3", "int"), ("(1, 2)", "tuple")])
def test_a_setup_must_return_a_function(returned: str, word: str, tmp_path: Path, tracing: Tracing) -> None:
    """What came instead is named, and how to cure it."""
    said = refusal(load(f"def setup(device):\n    return {returned}\n", tmp_path), tracing)

    assert word in said
    assert "return step" in said


def test_a_step_may_be_any_callable(tracing: Tracing) -> None:
    """An object with `__call__` is a step too."""

    class Trainer:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __call__(self, batch_size: int) -> None:
            torch.rand(batch_size, device=self.device)

    assert 3 == len(tracing.trace(Trainer).ops)


@pytest.mark.parametrize("place", ["setup", "step"])
def test_sys_exit_is_a_mistake_of_the_workload(place: str, tracing: Tracing) -> None:
    """`sys.exit` and `exit` in user code do not end the tracer."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            sys.exit(3)

        if place == "setup":
            sys.exit(3)
        return step

    assert f"{place} called sys.exit(3)" in refusal(setup, tracing)


def test_memory_that_the_host_lacks_is_told(tracing: Tracing) -> None:
    """A host array beyond the machine is an error in one line, not a crash."""

    def setup(device: torch.device) -> Step:
        import numpy

        def step(batch_size: int) -> None:
            numpy.zeros((1 << 50,), dtype=numpy.uint8).fill(1)

        return step

    assert "step raised" in refusal(setup, tracing)


def test_a_long_error_is_cut(tracing: Tracing) -> None:
    """PyTorch's essays are cut to a line that can be read."""

    def setup(device: torch.device) -> Step:
        raise RuntimeError("word " * 5000)

    assert len(refusal(setup, tracing)) < 700


def test_missing_backward_and_optimizer_are_seen(tracing: Tracing) -> None:
    """How often the step went backward and stepped an optimizer is in the trace's facts."""

    def setup(device: torch.device) -> Step:
        layer = torch.nn.Linear(4, 4).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)

        def step(batch_size: int) -> None:
            layer(torch.rand(batch_size, 4, device=device)).sum().backward()
            if batch_size == 4:
                optimizer.step()

        return step

    seen = [
        (trace.facts["backward_calls"], trace.facts["optimizer_steps"])
        for trace in (tracing.trace(setup, 4), tracing.trace(setup, 5))
    ]

    assert [(3, 3), (3, 0)] == seen


def test_gradients_by_hand_count_as_backward(tracing: Tracing) -> None:
    """`torch.autograd.grad` is a backward pass."""

    def setup(device: torch.device) -> Step:
        layer = torch.nn.Linear(4, 4).to(device)

        def step(batch_size: int) -> None:
            torch.autograd.grad(layer(torch.rand(batch_size, 4, device=device)).sum(), layer.parameters())

        return step

    assert 3 == tracing.trace(setup).facts["backward_calls"]


def test_compiling_is_told(tracing: Tracing) -> None:
    """A step that compiles is traced without, and says so."""

    def setup(device: torch.device) -> Step:
        layer = torch.compile(torch.nn.Linear(4, 4).to(device))

        @torch.compile
        def run(x: torch.Tensor) -> torch.Tensor:
            return layer(x)

        return lambda batch_size: run(torch.rand(batch_size, 4, device=device)).sum().backward()

    trace = tracing.trace(setup)

    assert trace.facts["compiled"]
    assert any("torch.compile" in note for note in trace.notes)
