"""Traces on demand, from the disk cache or from a worker process; torch lives only in the worker.

A `Tracer` answers `trace_at(batch_size, capability)` for one workload. It starts one worker at
the first trace that the cache does not hold, keeps it for further batch sizes, and ends it with everything
the worker started. Tracing patches global state of torch and runs the user's code: both stay in that process.

Assumes POSIX (process groups, inherited pipes). Does not cover what is kept on disk and for how long: that is
`trace_cache`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Self

import msgspec

from whichgpu import answers, errors
from whichgpu import trace as traces
from whichgpu.answers import Book
from whichgpu.errors import CaptureError, TraceError
from whichgpu.trace import Trace
from whichgpu.trace_cache import Origin, TraceCache, make_key

if TYPE_CHECKING:
    from whichgpu.workload import WorkloadRef

Kind = Literal["fake", "real-cpu"]

# -P: a random.py in the current folder must not stand in for Python's own before the workload is imported
WORKER = (sys.executable, "-P", "-m", "whichgpu.capture.worker")

_POLL_S = 0.2  # how often a silent worker is checked for having died
_PATIENCE_S = 2.0  # how long a worker may take to leave by itself, and again after SIGTERM


class Tracer:
    """Traces of one workload, at any batch size and for any capability class; a context manager.

    `cache` is the directory of kept traces, or None for no cache. `on_progress` is called with a line for the
    user now and then. `timeout_s` bounds each answer of the worker.
    """

    def __init__(
        self,
        ref: WorkloadRef,
        *,
        kind: Kind = "fake",
        cache: Path | None = None,
        on_progress: Callable[[str], None] | None = None,
        timeout_s: float = 600.0,
        worker: Sequence[str] = WORKER,
    ) -> None:
        self.seconds = 0.0  # wall time spent tracing, the start of the worker included
        self.notes: list[str] = []  # what the user should know about the cache, each said once
        self._ref = ref
        self._kind: Kind = kind
        self._cache = TraceCache(cache, self._note) if cache is not None else None
        self._on_progress = on_progress or _silent
        self._timeout_s = timeout_s
        self._command = tuple(worker)
        self._worker: _Worker | None = None
        self._origin: Origin | None = None

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
        worker = self._running()
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

    def _running(self) -> _Worker:
        if self._worker is None:
            self._worker = _Worker(self._command, self._timeout_s, self._on_progress)
            self._on_progress(f"loading {self._ref.text}")
            request = {
                "workload": msgspec.to_builtins(self._ref),
                "kind": self._kind,
                "directory": str(self._worker.directory),
            }
            try:
                answer = self._ask(self._worker, request, f"loading {self._ref.text}")
            except errors.WhichGpuError:
                self.close()
                raise
            self._origin = Origin.empty(self._worker.started).extended(answer.sources, answer.distributions)
        return self._worker

    def _ask(self, worker: _Worker, request: dict[str, Any], what: str) -> _Answer:
        try:
            answer = worker.ask(request, what)
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


class _Answer(msgspec.Struct, frozen=True):
    """One line of the worker."""

    ok: bool = False
    progress: str = ""
    error: str = ""
    message: str = ""
    sources: tuple[str, ...] = ()
    distributions: dict[str, str] = {}

    def exception(self) -> errors.WhichGpuError:
        kind = getattr(errors, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, errors.WhichGpuError)):
            return CaptureError(_one_line(f"the tracing worker failed: {self.error} {self.message}"))
        return kind(_one_line(self.message))


class _Worker:
    """One worker process in a session of its own, its pipes, its log and its scratch directory."""

    def __init__(self, command: Sequence[str], timeout_s: float, on_progress: Callable[[str], None]) -> None:
        self.started = time.time()
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="whichgpu-"))
        except OSError as error:
            raise CaptureError(f"no folder for temporary files ({error}); set TMPDIR to one") from error
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._buffer = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._answers, their_end = os.pipe()
        try:
            with (self.directory / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, "--answers", str(their_end)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(their_end,),
                    env={**os.environ, "TMPDIR": str(self.directory)},  # what the user's code leaves there goes too
                    start_new_session=True,
                )
        except BaseException as error:
            self.close(patience_s=0.0)
            if isinstance(error, OSError):
                raise CaptureError(f"the tracing worker cannot be started ({error})") from error
            raise
        finally:
            os.close(their_end)

    def ask(self, request: dict[str, Any], what: str) -> _Answer:
        """Send one request and wait for its answer, passing progress on; `what` names it in errors."""
        deadline = time.monotonic() + self._timeout_s
        with contextlib.suppress(BrokenPipeError):  # a worker that is gone is found when its answer is read
            self._stdin.write(msgspec.json.encode(request) + b"\n")
            self._stdin.flush()
        while True:
            line = self._line(deadline, what)
            try:
                answer = msgspec.json.decode(line, type=_Answer)
            except msgspec.MsgspecError as error:
                raise CaptureError(self._told(f"answered nonsense about {what}")) from error
            if not answer.progress:
                return answer
            self._on_progress(answer.progress)

    def close(self, patience_s: float = _PATIENCE_S) -> None:
        """End the worker, whatever it started, and its files; it may first leave by itself."""
        process, self._process = self._process, None
        with _uninterrupted():
            if process is not None:
                with contextlib.suppress(OSError):  # it may be gone already
                    _pipe(process).close()
                if not _left_within(process.pid, patience_s):
                    _signal_group(process.pid, signal.SIGTERM)
                    _left_within(process.pid, _PATIENCE_S)
                # the worker is not reaped yet, so the number still is its own: this reaches its children too
                _signal_group(process.pid, signal.SIGKILL)
                process.wait()
            if self._answers >= 0:
                os.close(self._answers)
                self._answers = -1
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process is not None
        return _pipe(self._process)

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _line(self, deadline: float, what: str) -> bytes:
        left = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                wait_s = deadline - time.monotonic()
                if wait_s <= 0:
                    raise CaptureError(self._told(f"did not finish {what} within {self._timeout_s:g} s and was ended"))
                if selector.select(0 if left else min(wait_s, _POLL_S)):
                    chunk = os.read(self._answers, 1 << 16)
                    self._buffer += chunk
                    left = not chunk
                elif not left:
                    # what it wrote last may have come since: read once more before giving up
                    left = _left_within(self._pid, 0.0)
                    continue
                if left:
                    raise CaptureError(self._told(self._end(what)))
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self, what: str) -> str:
        during = f"{'in the middle of an answer about' if self._buffer else 'while'} {what}"
        if not _left_within(self._pid, _PATIENCE_S):
            return f"closed its answers {during}"
        status = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        if status.si_code == os.CLD_EXITED:
            return f"stopped with exit code {status.si_status} {during}"
        name = signal.Signals(status.si_status).name
        memory = ", most likely because memory ran out," if status.si_status == signal.SIGKILL else ""
        return f"was killed by {name}{memory} {during}"

    def _told(self, what: str) -> str:
        """A sentence about the worker with the last line of its log."""
        with contextlib.suppress(OSError):
            lines = (self.directory / "log").read_bytes()[-4096:].decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            if last:
                return _one_line(f"the tracing worker {what}; its last line: {last[:300]}")
        return f"the tracing worker {what}; it said nothing"


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment: a second one must not leave processes and files behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _left_within(pid: int, patience_s: float) -> bool:
    """Whether the child has ended, without reaping it."""
    deadline = time.monotonic() + patience_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _one_line(words: str) -> str:
    return " ".join(words.split())


def _silent(_: str) -> None:
    pass
