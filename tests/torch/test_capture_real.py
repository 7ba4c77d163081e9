"""Hollow tensors against real ones: the same step asks for the same storages in the same order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from training_steps import STEPS

from conftest import Tracing
from whichgpu.scaling import Scaled
from whichgpu.trace import Trace


@cache
def traced(name: str, batch_size: int = 4, kind: str = "fake") -> Trace:
    """Four steps of a workload, traced once for all tests."""
    return Tracing.trace(STEPS[name], batch_size, kind=kind, steps=4)


# CUDA's kernels of an embedding bag and an LSTM make other storages than the CPU's: real ones are no truth
OTHER_KERNELS = {"embeddings", "recurrent"}
# their numbers, and so the attributes of their operators, are those of the gradients
BY_VALUE = {"mlp adafactor"}


@pytest.mark.parametrize("name", [name for name in STEPS if name not in OTHER_KERNELS])
def test_hollow_and_real_tensors_ask_for_the_same_memory(name: str, tracing: Tracing) -> None:
    """Every birth and death, in order and to the byte, is the same with tensors that hold nothing."""
    hollow, real = traced(name), traced(name, kind="real-cpu")

    assert [op.name for op in real.ops] == [op.name for op in hollow.ops]
    assert tracing.memory_events(real) == tracing.memory_events(hollow)
    assert real.storages == hollow.storages
    assert name in BY_VALUE or real.ops == hollow.ops


@pytest.mark.parametrize("name", sorted(OTHER_KERNELS))
def test_operators_without_a_cpu_kernel_of_the_same_kind_go_on_with_real_tensors(name: str, tracing: Tracing) -> None:
    """The fallback traces to the end, with the same weights and gradients."""
    hollow, real = traced(name), traced(name, kind="real-cpu")

    assert tracing.alive_at_end(real) == tracing.alive_at_end(hollow)


@pytest.mark.parametrize("name", STEPS)
def test_two_batch_sizes_tell_a_third(name: str) -> None:
    """The trace at batch 13 is, event for event, what those at 4 and 8 say."""
    low, high, third = (traced(name, size) for size in (4, 8, 13))

    assert Scaled(low, high).agrees_with(third) is None


@pytest.mark.parametrize("name", STEPS)
def test_the_third_step_is_like_the_second(name: str, tracing: Tracing) -> None:
    """After the first step, which makes the optimizer's state, memory is steady."""
    events = tracing.memory_events(traced(name))
    starts = [place for place, event in enumerate(events) if event[0] == "step"] + [len(events)]
    parts = [events[starts[n] + 1 : starts[n + 1]] for n in range(4)]

    assert parts[2] == parts[3]
    assert sum(size if sign == "+" else -size for sign, size in parts[2]) == 0


def test_traces_are_repeatable(tracing: Tracing) -> None:
    """The same step gives the same trace again, whatever ran in between."""
    first = tracing.trace(STEPS["transformer"])
    tracing.trace(STEPS["autocast fp16"])
    again = tracing.trace(STEPS["transformer"])

    assert first.events == again.events
    assert first.ops == again.ops
    assert first.storages == again.storages


def test_sparse_gradients_are_kept_as_they_are(tracing: Tracing) -> None:
    """Rows and indices of an embedding's gradient are on the card once, from the backward pass to the end of the step."""

    def setup(device: torch.device) -> Callable[[int], None]:
        table = torch.nn.Embedding(1000, 16, sparse=True).to(device)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

        def step(batch_size: int) -> None:
            table(torch.arange(batch_size, device=device)).sum().backward()
            assert table.weight.grad is not None
            assert table.weight.grad.is_sparse
            optimizer.step()
            optimizer.zero_grad()

        return step

    made = tracing.trace(setup, 100, kind="real-cpu")
    rows = [place for place, event in enumerate(tracing.memory_events(made)) if event == ("+", 100 * 16 * 4)]

    assert "clone" not in tracing.op_names(made)
    assert rows
