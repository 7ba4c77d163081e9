"""What both worker processes do on their side of the pipes, whose other end is `worker_process`.

Nothing but the standard library: one of them runs where little else is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys


def private_input() -> int:
    """A descriptor for the requests; what the user's code reads from standard input is empty."""
    own = os.dup(0)  # not inherited by programs that the user's code starts
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return own


def die_with(parent: int, number: signal.Signals) -> None:
    """Linux: have the kernel send this process a signal when its parent ends, however that comes about."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """Linux: what is started below this process and loses its parent becomes a child of this one, detached or not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def descendants(pid: int) -> list[int]:
    """Linux: processes that run below another one; empty on systems without /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
            except OSError:  # it ended meanwhile
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def end_all(pids: list[int]) -> None:
    """Kill processes, some of which may have ended meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def ending(code: int) -> str:
    """How a process that did not say so itself ended, by its exit code or minus a signal, and what to do about it."""
    if code >= 0:
        cure = "something in it, as os._exit(), ends the process: have it return, or raise an error"
        return f"stopped with exit code {code} ({cure})"
    name = signal.Signals(-code).name
    if code == -signal.SIGKILL:
        return f"was killed by {name} (most likely because memory ran out)"
    if -code in _CRASHES:
        cure = "compiled code that it calls crashed: call it once by itself under python -X faulthandler to see where"
        return f"was killed by {name} ({cure})"
    return f"was killed by {name}"


_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class Lines:
    """Lines of a descriptor, without reading ahead into Python's buffers."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = b""

    def pending(self) -> bool:
        """Whether a whole line is there already."""
        return b"\n" in self.buffer

    def fill(self) -> bool:
        """Read once; False at the end of the input."""
        chunk = os.read(self.fd, 1 << 16)
        self.buffer += chunk
        return bool(chunk)

    def next(self) -> str | None:
        """The next line, or None at the end of the input."""
        while not self.pending():
            if not self.fill():
                return None
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode()
