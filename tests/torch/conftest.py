"""Traces made in this process, and ways to compare them."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from whichgpu.capture.run import capture
from whichgpu.capture.target import Target
from whichgpu.trace import EventKind, Trace, validate
from whichgpu.workload import load, parse
from whichgpu.zoo.training import set_tf32

Setup = Callable[[torch.device], Callable[[int], Any]]


class Tracing:
    """Makes traces of `setup` functions and reads them."""

    @staticmethod
    def trace(
        setup: Setup, batch_size: int = 4, *, capability: str = "9.0", kind: str = "fake", steps: int = 3
    ) -> Trace:
        """The trace of a workload; always checked for consistency."""
        made = capture("test", setup, batch_size, Target.parse(capability), kind=kind, steps=steps)
        validate(made)
        return made

    @staticmethod
    def memory_events(trace: Trace) -> list[tuple[str, int]]:
        """Births and deaths in order, each with its bytes, and the beginnings of steps."""
        found: list[tuple[str, int]] = []
        for kind, argument in trace.events:
            if kind == EventKind.ALLOC:
                found.append(("+", trace.storages[argument].bytes))
            elif kind == EventKind.FREE:
                found.append(("-", trace.storages[argument].bytes))
            elif kind == EventKind.STEP:
                found.append(("step", argument))
        return found

    @staticmethod
    def op_names(trace: Trace, *, step: int | None = None) -> list[str]:
        """Operators in order, without prefix and overload."""
        return [op.name.split(".")[1] for op in trace.ops if step is None or op.step == step]

    @staticmethod
    def peak(trace: Trace, step: int | None = None) -> int:
        """Most requested bytes alive at once, over everything or in one step."""
        alive = most = 0
        now = -1
        for kind, argument in trace.events:
            if kind == EventKind.STEP:
                now = argument
            elif kind == EventKind.ALLOC:
                alive += trace.storages[argument].bytes
            elif kind == EventKind.FREE:
                alive -= trace.storages[argument].bytes
            if step is None or now == step:
                most = max(most, alive)
        return most

    @staticmethod
    def alive_at_end(trace: Trace) -> Counter[int]:
        """Sizes of the storages that are never freed."""
        alive: dict[int, int] = {}
        for kind, argument in trace.events:
            if kind == EventKind.ALLOC:
                alive[argument] = trace.storages[argument].bytes
            elif kind == EventKind.FREE:
                del alive[argument]
        return Counter(alive.values())


@functools.cache
def full_size(name: str) -> tuple[Any, torch.nn.Module]:
    """A workload's recipe and its model without numbers, built once for all tests: it takes up to seconds."""
    recipe = load(parse(name)).setup.__self__  # type: ignore[attr-defined]
    with torch.device("meta"):
        return recipe, recipe.make_model()


@pytest.fixture(scope="module", autouse=True)
def _quick_garbage_collection() -> None:
    """Tracing collects garbage often; what torch and pytest hold need not be looked through each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def zoo_defaults() -> Iterator[None]:
    """One seed and one thread (tensors are small), and switches left as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    set_tf32("fp32")


@pytest.fixture
def tracing() -> Tracing:
    """Makes and reads traces."""
    return Tracing()
