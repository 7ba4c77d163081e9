"""A process that works for this one: how it is started, spoken to in lines of JSON, and ended with all it started.

The worker gets requests on standard input and answers on a descriptor of its own, `--answers FD`, since the user's
code may print; what that prints goes to a log, whose last line is shown when something goes wrong.

Assumes POSIX (process groups, inherited pipes).
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from whichgpu.errors import WhichGpuError
from whichgpu.worker_side import descendants, end_all, ending

T = TypeVar("T")

_POLL_S = 0.2  # how often a silent worker is checked for having died
_PATIENCE_S = 2.0  # how long a worker may take to leave by itself, and again after SIGTERM


class WorkerProcess:
    """One worker process in a session of its own, its pipes, its log and its scratch directory.

    `name` is how errors call it; they are of the class `failure`. `cure` is what to do about one
    that takes too long.
    """

    def __init__(self, command: Sequence[str], name: str, failure: type[WhichGpuError], cure: str = "") -> None:
        self.started = time.time()
        self._name = name
        self._failure = failure
        self._cure = f" ({cure})" if cure else ""
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="whichgpu-"))
        except OSError as error:
            raise self._failure(f"no folder for temporary files ({error}); set TMPDIR to one") from error
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
                raise self._failure(f"{self._name} cannot be started ({error})") from error
            raise
        finally:
            os.close(their_end)

    def send(self, request: Any) -> None:
        """Send one request as a line of JSON."""
        with contextlib.suppress(BrokenPipeError):  # a worker that is gone is found when its answer is read
            self._stdin.write(msgspec.json.encode(request) + b"\n")
            self._stdin.flush()

    def receive(
        self, kind: type[T], what: str, timeout_s: float, since: float, on_wait: Callable[[], None] | None = None
    ) -> T:
        """Wait for the next line, until `timeout_s` after `since` on the monotonic clock, and read it as a `kind`.

        `what` it is about is named in errors; `on_wait` is called now and then while nothing comes.
        """
        line = self._line(what, timeout_s, since + timeout_s, on_wait)
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError as error:
            raise self._failure(self._told(f"answered nonsense about {what}")) from error

    def has_answered(self) -> bool:
        """Whether there is something to receive already, be it the news that the worker has ended."""
        return b"\n" in self._buffer or bool(select.select([self._answers], [], [], 0)[0])

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
                below = descendants(process.pid)  # those in a session of their own too
                # the worker is not reaped yet, so the number still is its own: this reaches its children too
                _signal_group(process.pid, signal.SIGKILL)
                end_all(below)
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

    def _line(self, what: str, timeout_s: float, deadline: float, on_wait: Callable[[], None] | None) -> bytes:
        left = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                wait_s = deadline - time.monotonic()
                if wait_s <= 0:
                    raise self._failure(
                        self._told(f"did not finish {what} within {timeout_s:g} s and was ended{self._cure}")
                    )
                if selector.select(0 if left else min(wait_s, _POLL_S)):
                    chunk = os.read(self._answers, 1 << 16)
                    self._buffer += chunk
                    left = not chunk
                elif not left:
                    # what it wrote last may have come since: read once more before giving up
                    left = _left_within(self._pid, 0.0)
                    if on_wait is not None:
                        on_wait()
                    continue
                if left:
                    raise self._failure(self._told(self._end(what)))
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self, what: str) -> str:
        during = f"{'in the middle of an answer about' if self._buffer else 'while'} {what}"
        if not _left_within(self._pid, _PATIENCE_S):
            return f"closed its answers {during}"
        status = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        killed = status.si_code != os.CLD_EXITED
        how, mark, cure = ending(-status.si_status if killed else status.si_status).partition(" (")
        return f"{how} {during}{mark}{cure}"

    def _told(self, what: str) -> str:
        """A sentence about the worker with the last line of its log."""
        with contextlib.suppress(OSError):
            lines = (self.directory / "log").read_bytes()[-4096:].decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            if last:
                return one_line(f"{self._name} {what}; its last line: {last[:300]}")
        return f"{self._name} {what}; it said nothing"


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment: a second one must not leave processes and files behind.

    To block the signal would not do: any other thread, as numerical libraries start them, would take it for this one.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():  # nothing is raised here
        yield
        return
    missed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: missed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if missed:
            signal.raise_signal(signal.SIGINT)


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


def one_line(words: str) -> str:
    """Words without line breaks."""
    return " ".join(words.split())
