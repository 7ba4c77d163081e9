"""What the user asked of a bench, apart from workloads and limits, and whether it makes sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whichgpu.errors import InputError

Progress = Callable[[str], None]

DEFAULT_STEPS = 3  # the first makes the optimizer's state, later ones show it together with activations
DEFAULT_TIME_BUDGET_S = 10.0
DEFAULT_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user asked for, apart from workloads and limits."""

    gpu_index: int
    batch_size: int | None
    power_of_two: bool
    steps: int
    time_budget_s: float
    timeout_s: float
    again: bool
    worker: tuple[str, ...]
    progress: Progress


def check(
    names: Sequence[str],
    gpu_index: int,
    batch_size: int | None,
    limits: Sequence[int],
    steps: int,
    time_budget_s: float,
    timeout_s: float,
) -> None:
    """Raise InputError for what makes no sense."""
    if not names:
        raise InputError("name at least one workload")
    if gpu_index < 0:
        raise InputError(f"GPU index {gpu_index}: it must be 0 or more")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch size {batch_size}: it must be 1 or more")
    if any(limit < 1 for limit in limits):
        raise InputError(f"memory limit of {min(limits)} bytes: it must be positive")
    if steps < 2:
        raise InputError(f"{steps} steps: take 2 or more, since the first one makes the optimizer's state")
    if not 0 <= time_budget_s < float("inf"):
        raise InputError(f"time budget of {time_budget_s:g} s: it must be 0 or more")
    if not 0 < timeout_s < float("inf"):
        raise InputError(f"time limit of {timeout_s:g} s: it must be positive")
