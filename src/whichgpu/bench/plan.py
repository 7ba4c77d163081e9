"""What the user asked of a bench, apart from workloads and limits, and whether it makes sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whichgpu.errors import InputError

Progress = Callable[[str], None]

DEFAULT_STEPS = 3  # the first makes the optimizer's state, later ones show it together with activations
DEFAULT_TIME_BUDGET_S = 10.0
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_SPEEDS = 4  # batch sizes at which steps are timed: the largest, its half, ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user asked for, apart from workloads and limits."""

    gpu_index: int
    batch_sizes: tuple[int, ...]  # empty: the largest is searched for
    power_of_two: bool
    steps: int
    time_budget_s: float
    speeds: int
    timeout_s: float
    again: bool
    worker: tuple[str, ...]
    progress: Progress


def check(plan: Plan, names: Sequence[str], limits: Sequence[int]) -> None:
    """Raise InputError for what makes no sense."""
    if not names:
        raise InputError("name at least one workload")
    if plan.gpu_index < 0:
        raise InputError(f"GPU index {plan.gpu_index}: it must be 0 or more")
    if any(size < 1 for size in plan.batch_sizes):
        raise InputError(f"batch size {min(plan.batch_sizes)}: it must be 1 or more")
    if plan.batch_sizes and plan.power_of_two:
        raise InputError("batch sizes are given, so there is no search to keep to powers of two; leave one of them out")
    if any(limit < 1 for limit in limits):
        raise InputError(f"memory limit of {min(limits)} bytes: it must be positive")
    if plan.steps < 2:
        raise InputError(f"{plan.steps} steps: take 2 or more, since the first one makes the optimizer's state")
    if not 0 <= plan.time_budget_s < float("inf"):
        raise InputError(f"time budget of {plan.time_budget_s:g} s: it must be 0 or more")
    if plan.speeds < 1:
        raise InputError(f"{plan.speeds} speeds: it must be 1 or more; to measure none, set the time budget to 0")
    if not 0 < plan.timeout_s < float("inf"):
        raise InputError(f"time limit of {plan.timeout_s:g} s: it must be positive")
