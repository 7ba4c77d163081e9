"""Attempts on the GPU, seen from here: the measuring process of one workload, what it is asked and what it says.

The other side is `bench_worker`. A measuring process that crashes, hangs or answers nonsense is an outcome of the
attempt in flight; the next attempt starts another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from whichgpu import errors
from whichgpu.errors import BenchError, WhichGpuError
from whichgpu.worker_process import WorkerProcess
from whichgpu.workload import WorkloadRef

# -P: a random.py in the current folder must not stand in for Python's own before the workload is imported
WORKER = (sys.executable, "-P", "-m", "whichgpu.bench_worker")
GRACE_S = 30.0  # beyond an attempt's time limit, before the measuring process itself is given up


class Loaded(msgspec.Struct, frozen=True):
    """The measuring process's first line."""

    ok: bool = False
    error: str = ""
    message: str = ""
    unsafe: str = ""  # why attempts are not forked
    unit: str = "samples"
    items_per_sample: int = 1
    default_batch_size: int = 8
    workload_hash: str = ""
    libraries: dict[str, str] = {}


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The card and the software as PyTorch shows them."""

    name: str
    uuid: str
    memory_bytes: int
    compute_capability: str
    cuda: str
    torch: str
    cudnn: str | None
    python: str
    flags: dict[str, bool | str]
    outside_bytes: int | None = None  # held by this process's context and by others


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Any further line: progress, or the end of an attempt."""

    event: str = ""
    progress: str = ""
    pid: int | None = None
    outcome: str = "ok"
    message: str | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    outside_bytes: int | None = None
    step_s: tuple[float, float, float] | None = None
    steps: int = 0
    converged: bool | None = None
    flags: dict[str, bool | str] = {}
    card: Card | None = None
    attempt_s: float = 0.0


class Attempts:
    """Attempts of one workload, through a measuring process that is started anew where it was lost."""

    def __init__(
        self,
        ref: WorkloadRef,
        *,
        gpu_index: int,
        steps: int,
        time_budget_s: float,
        timeout_s: float,
        worker: Sequence[str],
    ) -> None:
        self._ref = ref
        self._gpu_index = gpu_index
        self._steps = steps
        self._time_budget_s = time_budget_s
        self._timeout_s = timeout_s
        self._command = tuple(worker)
        self._worker: WorkerProcess | None = None
        self._started = 0.0
        self._group: int | None = None  # of the attempt in flight

    def start(self) -> None:
        """Begin to load the workload, without waiting for it."""
        self._worker = WorkerProcess(self._command, "the measuring process", BenchError)
        self._started = time.monotonic()
        directory = str(self._worker.directory)
        self._worker.send({"workload": msgspec.to_builtins(self._ref), "directory": directory})

    def loaded(self) -> Loaded:
        """What the workload says of itself, once it is loaded; raises what loading raised."""
        assert self._worker is not None
        what = f"loading {self._ref.text}"
        loaded = self._worker.receive(Loaded, what, self._timeout_s + GRACE_S, self._started)
        if not loaded.ok:
            kind = getattr(errors, loaded.error, WhichGpuError)
            raise kind(" ".join(loaded.message.split()))
        return loaded

    def run(
        self,
        kind: str,
        batch_size: int,
        limit_bytes: int | None,
        on_event: Callable[[str], None],
        on_wait: Callable[[], None] | None = None,
    ) -> Said:
        """Make one attempt; a measuring process that is lost on the way is an outcome too."""
        if self._worker is None:
            self.start()
            self.loaded()
        timeout_s = self._timeout_s + (4 * self._time_budget_s if kind == "time" else 0.0)
        request = {
            "kind": kind,
            "gpu_index": self._gpu_index,
            "batch_size": batch_size,
            "memory_limit_bytes": limit_bytes,
            "steps": self._steps,
            "time_budget_s": self._time_budget_s,
            "timeout_s": timeout_s,
        }
        asked = time.monotonic()
        try:
            return self._follow(request, asked, on_event, on_wait)
        except BenchError as error:
            self.close()
            seconds = time.monotonic() - asked
            outcome = "hang" if seconds >= timeout_s else "crash"
            return Said(event="done", outcome=outcome, message=str(error), attempt_s=seconds)
        except BaseException:
            self.close()
            raise

    def _follow(
        self,
        request: dict[str, Any],
        asked: float,
        on_event: Callable[[str], None],
        on_wait: Callable[[], None] | None,
    ) -> Said:
        assert self._worker is not None
        self._worker.send(request)
        what = f"batch size {request['batch_size']}"
        while True:
            said = self._worker.receive(Said, what, request["timeout_s"] + GRACE_S, asked, on_wait)
            if said.event == "done":
                self._group = None
                return said
            self._group = said.pid or self._group
            on_event(said.progress or said.event)

    def close(self) -> None:
        """End the measuring process and the attempt in flight."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(patience_s=0.0)
        if self._group is not None:  # it dies with the measuring process, but what it started may not
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
            self._group = None
