"""One attempt, inside its own process: set-up and steps on the GPU; whatever happens becomes an outcome."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from whichgpu import errors
from whichgpu.bench_worker.card import Gpu
from whichgpu.bench_worker.failures import classify
from whichgpu.bench_worker.loading import load_workload
from whichgpu.bench_worker.timing import time_steps
from whichgpu.bench_worker.words import failed, send
from whichgpu.workload import Workload, WorkloadRef

# Replaced where the worker is tested without a card.
GPU: type[Gpu] = Gpu


def run_alone(fd: int, job: dict[str, Any]) -> NoReturn:
    """In a fresh Python: load the workload and make the attempt."""
    ref = WorkloadRef(**job["workload"])
    try:
        workload, threads = load_workload(ref)
    except errors.WhichGpuError as error:
        send(fd, **failed("step_error", str(error)))
        os._exit(0)
    run(fd, ref, workload, threads, job["attempt"])


def run(fd: int, ref: WorkloadRef, workload: Workload, threads: int, attempt: dict[str, Any]) -> NoReturn:
    """Make the attempt, say how it went, and end the process."""
    own = os.getpid()
    sys.modules["torch"].set_num_threads(threads)
    answer = make_attempt(ref, workload, attempt, lambda **said: send(fd, **said))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's code may have closed them
            stream.flush()
    if os.getpid() == own:  # a step may have forked and failed
        send(fd, **answer)
    os._exit(0)


def make_attempt(
    ref: WorkloadRef, workload: Workload, attempt: dict[str, Any], say: Callable[..., None]
) -> dict[str, Any]:
    """Run what the attempt asks for; whatever happens becomes an outcome.

    Kinds: "probe" (which card, which versions), "fit" (set-up and a few steps, peaks of memory), "time" (the same, then
    steps until the median is known or the time budget ends).
    """
    card: Gpu | None = None
    try:
        card = GPU(attempt["gpu_index"])
        if attempt["kind"] == "probe":
            return {"outcome": "ok", "card": card.facts()}
        if attempt["memory_limit_bytes"] is not None:
            card.limit(attempt["memory_limit_bytes"])
        say(progress="setting up")
        step = workload.setup(card.device)
        answer = _steps(card, step, attempt, say)
        if card.peaks()["peak_allocated_bytes"] == 0:
            raise errors.WorkloadError(f"{ref.text} put nothing on the GPU; does it use the device that it is given?")
        return {"outcome": "ok", **answer, **card.peaks(), "flags": card.flags()}
    except BaseException as error:
        traceback.print_exc()
        outcome, message = classify(error, card)
        found = {}
        with contextlib.suppress(Exception):  # after a CUDA error nothing can be asked any more
            found = {**card.peaks(), "flags": card.flags()} if card is not None else {}
        return {**failed(outcome, message), **found}


def _steps(card: Gpu, step: Callable[[int], Any], attempt: dict[str, Any], say: Callable[..., None]) -> dict[str, Any]:
    for number in range(attempt["steps"]):
        say(progress=f"step {number + 1} of {attempt['steps']}")
        step(attempt["batch_size"])
        card.synchronize()
    if attempt["kind"] == "fit":
        return {"steps": attempt["steps"]}
    return time_steps(lambda: step(attempt["batch_size"]), card, attempt["time_budget_s"], say)
