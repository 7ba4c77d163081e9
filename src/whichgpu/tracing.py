"""Traces on demand, from the disk cache or from a worker process; torch lives only in the worker.

A `Tracer` answers `trace_at(batch_size, capability)` for one workload. It starts one worker at
the first trace that the cache does not hold, keeps it for further batch sizes, and ends it with everything
the worker started. Tracing patches global state of torch and runs the user's code: both stay in that process.

Assumes POSIX (process groups, inherited pipes). Does not cover what is kept on disk and for how long: that is
`trace_cache`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from whichgpu import allocator, answers, errors
from whichgpu import trace as traces
from whichgpu.answers import Book
from whichgpu.arguments import TIMEOUT_S
from whichgpu.errors import CaptureError, TraceError
from whichgpu.trace import Trace
from whichgpu.trace_cache import Origin, TraceCache, make_key
from whichgpu.worker_process import WorkerProcess, one_line

if TYPE_CHECKING:
    from whichgpu.workload import WorkloadRef

# How long loading the workload, or one trace, may take within one question that is asked.
WITHIN_S: ContextVar[float] = ContextVar("WITHIN_S", default=TIMEOUT_S)

Kind = Literal["fake", "real-cpu"]

# -P: a random.py in the current folder must not stand in for Python's own before the workload is imported
WORKER = (sys.executable, "-P", "-m", "whichgpu.capture.worker")


class Tracer:
    """Traces of one workload, at any batch size and for any capability class; a context manager.

    `cache` is the directory of kept traces, or None for no cache. `on_progress` is called with a line for the
    user now and then. `timeout_s` bounds each answer of the worker, by default what `WITHIN_S` says.
    """

    def __init__(
        self,
        ref: WorkloadRef,
        *,
        kind: Kind = "fake",
        cache: Path | None = None,
        on_progress: Callable[[str], None] | None = None,
        timeout_s: float | None = None,
        worker: Sequence[str] = WORKER,
    ) -> None:
        self.seconds = 0.0  # wall time spent tracing, the start of the worker included
        self.notes: list[str] = []  # what the user should know about the cache, each said once
        self._ref = ref
        self._kind: Kind = kind
        self._cache = TraceCache(cache, self._note) if cache is not None else None
        self._on_progress = on_progress or _silent
        self._timeout_s = WITHIN_S.get() if timeout_s is None else timeout_s
        self._command = tuple(worker)
        self._worker: WorkerProcess | None = None
        self._origin: Origin | None = None
        self._holds_for: tuple[str, ...] | None = None  # classes of cards that the worker can trace for; None: all

    @property
    def cached(self) -> bool:
        """Whether no trace had to be made: all came from the cache."""
        return self.seconds == 0.0

    def trace_at(self, batch_size: int, capability: str, *, ahead: Sequence[int] = ()) -> Trace:
        """The trace at a batch size; raises the worker's WorkloadError, or CaptureError when it fails.

        `ahead` names batch sizes that will be asked for next: the worker may start on them at once.
        """
        key = self._key(batch_size, capability)
        if self._cache is not None:
            trace = self._cache.read(key)
            if trace is not None:
                return trace
        started = time.monotonic()
        try:
            return self._trace(batch_size, capability, ahead, key)
        finally:
            self.seconds += time.monotonic() - started

    def holds(self, batch_size: int, capability: str) -> bool:
        """Whether the cache holds that trace, by its entry: a trace that turns out damaged is made anew."""
        return self._cache is not None and self._cache.holds(self._key(batch_size, capability))

    def book(self) -> Book:
        """The answers kept for the workload; an empty book without a cache."""
        return answers.read(self._cache, self._book_key()) if self._cache is not None else Book()

    def keep(self, book: Book) -> None:
        """Keep a book, as one that all traces of this tracer so far belong to."""
        if self._cache is not None:
            answers.write(self._cache, self._book_key(), book)

    def close(self) -> None:
        """End the worker and whatever it started; the tracer can be used again."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _trace(self, batch_size: int, capability: str, ahead: Sequence[int], key: str) -> Trace:
        worker = self._running(capability)
        path = worker.directory / f"{capability}-{batch_size}.trace"
        request = {
            "batch_size": batch_size,
            "capability": capability,
            "ahead": list(ahead),
            "out": str(path),
        }
        answer = self._ask(worker, request, f"tracing batch size {batch_size}")
        assert self._origin is not None
        self._origin = self._origin.extended(answer.sources, answer.distributions)
        try:
            trace = traces.load(path)
            if trace.batch_size != batch_size or trace.capability != capability:
                raise TraceError(f"{path}: the trace is not the one asked for")
        except TraceError as error:
            self.close()
            raise CaptureError(f"the tracing worker wrote a bad trace ({error})") from error
        if self._cache is not None:
            self._cache.write(key, path, self._origin)
        path.unlink()
        return trace

    def _running(self, capability: str) -> WorkerProcess:
        if self._holds_for is not None and capability not in self._holds_for:
            self.close()  # the user's file looked at the card when it was imported
        if self._worker is None:
            self._worker = WorkerProcess(self._command, "the tracing worker", CaptureError, cure=_CURE)
            allocator.get_ready()  # while the worker loads what it needs, which takes as long where this was never done
            self._on_progress(f"loading {self._ref.text}")
            request = {
                "workload": msgspec.to_builtins(self._ref),
                "kind": self._kind,
                "capability": capability,
                "directory": str(self._worker.directory),
            }
            try:
                answer = self._ask(self._worker, request, f"loading {self._ref.text}")
            except errors.WhichGpuError:
                self.close()
                raise
            self._holds_for = answer.holds_for
            self._origin = Origin.empty(self._worker.started).extended(answer.sources, answer.distributions)
        return self._worker

    def _ask(self, worker: WorkerProcess, request: dict[str, Any], what: str) -> _Answer:
        try:
            asked = time.monotonic()
            worker.send(request)
            while (answer := worker.receive(_Answer, what, self._timeout_s, asked)).progress:
                self._on_progress(answer.progress)
        except BaseException:
            self._worker = None
            worker.close(patience_s=0.0)
            raise
        if not answer.ok:
            raise answer.exception()
        return answer

    def _key(self, batch_size: int, capability: str) -> str:
        return self._make_key(capability, batch_size)

    def _book_key(self) -> str:
        return self._make_key("answers", answers.package_hash())

    def _make_key(self, *asked: str | int) -> str:
        workload = msgspec.json.encode(self._ref, order="deterministic").decode()
        # a user's code may mean something else in another directory, a library's does not
        place = os.getcwd() if self._ref.scheme in ("file", "module") else ""
        return make_key(workload, place, *asked, self._kind)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


_CURE = (
    "if it is slow, allow more with --timeout (timeout_s in Python); if it never ends, look for a loop that waits for a number "
    "of the network to change: what .item() reads is assumed"
)


class _Answer(msgspec.Struct, frozen=True):
    """One line of the worker."""

    ok: bool = False
    progress: str = ""
    error: str = ""
    message: str = ""
    holds_for: tuple[str, ...] | None = None
    sources: tuple[str, ...] = ()
    distributions: dict[str, str] = {}

    def exception(self) -> errors.WhichGpuError:
        kind = getattr(errors, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, errors.WhichGpuError)):
            return CaptureError(one_line(f"the tracing worker failed: {self.error} {self.message}"))
        return kind(one_line(self.message))


def _silent(_: str) -> None:
    pass
