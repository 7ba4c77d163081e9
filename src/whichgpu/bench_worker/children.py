"""Attempts as processes, seen from the one that stays: how they are started, listened to and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

from whichgpu.bench_worker.attempt import run
from whichgpu.bench_worker.words import failed
from whichgpu.worker_side import die_with
from whichgpu.workload import Workload, WorkloadRef

_LEAVE_S = 15.0  # how long a killed process may take to give its memory back


class Child:
    """A process that makes one attempt, seen from its parent."""

    def __init__(self, pid: int, fd: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.fd = fd
        self.doing = ""  # what it said last that it does
        self.answer: dict[str, Any] | None = None
        self._process = process
        self._buffer = b""
        self._gone = False

    def read(self) -> list[dict[str, Any]]:
        """What it says on its way; notes its answer, or its end without one."""
        chunk = os.read(self.fd, 1 << 16)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        passed_on = []
        for line in lines:
            try:
                said = dict(json.loads(line))
            except (ValueError, TypeError):
                self.answer = failed("crash", "answered nonsense")
                break
            if "outcome" in said:
                self.answer = said
                break
            self.doing = said.get("progress", self.doing)
            passed_on.append(said)
        if self.answer is None and not chunk:
            self.answer = failed("crash", self._end())
        return passed_on

    def kill(self) -> bool:
        """End its process group; False when it does not go."""
        if not self._gone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._wait(_LEAVE_S)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        return self._gone

    def _end(self) -> str:
        status = self._wait(2.0)
        if status is None:
            return "closed its answers"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it started may live on
        code = os.waitstatus_to_exitcode(status)
        where = f" ({self.doing})" if self.doing else ""
        if code >= 0:
            return f"stopped with exit code {code}{where}: does the step end the process itself?"
        memory = ", most likely because the machine's own memory ran out" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{memory}{where}"

    def _wait(self, patience_s: float) -> int | None:
        """The exit status; None when it is still there after `patience_s`."""
        deadline = time.monotonic() + patience_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._gone = True
                if self._process is not None:
                    self._process.returncode = os.waitstatus_to_exitcode(status)
                return status
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.005)


def forked(ref: WorkloadRef, workload: Workload, threads: int, attempt: dict[str, Any]) -> Child:
    """An attempt as a copy of this process."""
    ours, theirs = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 about threads: `why_no_fork` has looked
        pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(ours)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            die_with(parent, signal.SIGKILL)
            run(theirs, ref, workload, threads, attempt)
        finally:
            os._exit(1)  # `run` ends the process itself when all went as it should
    os.close(theirs)
    with contextlib.suppress(OSError):  # whoever of the two is first
        os.setpgid(pid, pid)
    return Child(pid, ours)


def spawned(reference: dict[str, Any], attempt: dict[str, Any]) -> Child:
    """An attempt as a fresh Python, where a copy of this process could not use the GPU."""
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", sys.argv[0], "--attempt", "--answers", str(theirs)],
        stdin=subprocess.PIPE,
        pass_fds=(theirs,),
        process_group=0,
    )
    os.close(theirs)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps({"workload": reference, "attempt": attempt}).encode())
    return Child(process.pid, ours, process)
