"""The process that stays: serves attempts at one workload until its client goes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from typing import Any, NoReturn

from whichgpu import errors
from whichgpu.bench_worker.attempt import run_alone
from whichgpu.bench_worker.children import Child, forked, spawned
from whichgpu.bench_worker.loading import describe, load_workload, prepare, why_no_fork
from whichgpu.bench_worker.words import failed, send
from whichgpu.worker_side import Lines, die_with, private_input
from whichgpu.workload import Workload, WorkloadRef

# is_available() must ask the driver's library, not CUDA: after that no fork could use the GPU
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_IDLE_S = 0.1  # without a request, before time is used for what the next one will need


def main() -> None:
    """Serve until standard input closes; with `--attempt`, run the one attempt that standard input names."""
    fd = int(sys.argv[sys.argv.index("--answers") + 1])
    os.set_inheritable(fd, False)
    die_with(os.getppid(), signal.SIGKILL if "--attempt" in sys.argv else signal.SIGTERM)
    if "--attempt" in sys.argv:
        run_alone(fd, json.load(sys.stdin))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the client decides
    requests = Lines(private_input())
    first = requests.next()
    if first is None:
        return
    asked = json.loads(first)
    server = _Server(fd, requests, asked["workload"], asked["directory"])
    signal.signal(signal.SIGTERM, lambda *_: server.leave())
    server.run()


class _Server:
    """Loads the workload, then answers attempts one by one."""

    def __init__(self, fd: int, requests: Lines, reference: dict[str, Any], directory: str) -> None:
        self.fd = fd
        self.requests = requests
        self.reference = reference
        self.directory = directory
        self.child: Child | None = None

    def run(self) -> None:
        """Until standard input closes."""
        try:
            workload, threads = load_workload(WorkloadRef(**self.reference))
        except errors.WhichGpuError as error:
            send(self.fd, ok=False, error=type(error).__name__, message=str(error))
            return
        send(self.fd, ok=True, unsafe=why_no_fork(), **describe(WorkloadRef(**self.reference), workload))
        while True:
            if self._is_idle():
                workload = self._prepared(workload)
            line = self.requests.next()
            if line is None:
                return
            attempt = json.loads(line)
            if attempt["kind"] != "probe":
                workload = self._prepared(workload)
            if why_no_fork():  # asked before every fork: the workload's own threads may start late
                self.child = spawned(self.reference, attempt)
            else:
                self.child = forked(WorkloadRef(**self.reference), workload, threads, attempt)
            send(self.fd, event="started", pid=self.child.pid)
            answer = self._supervise(self.child, attempt["timeout_s"])
            self.child = None
            send(self.fd, event="done", **answer)

    def _is_idle(self) -> bool:
        """Whether the client has nothing to ask for the moment, as while it predicts."""
        return not self.requests.pending() and not select.select([self.requests.fd], [], [], _IDLE_S)[0]

    def _prepared(self, workload: Workload) -> Workload:
        """The workload built as far as can be without the device, unless attempts load it by themselves."""
        return workload if why_no_fork() else prepare(workload)

    def leave(self) -> NoReturn:
        """End together with the attempt in flight and the client's scratch directory; the client may be gone."""
        if self.child is not None:
            self.child.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)

    def _supervise(self, child: Child, timeout_s: float) -> dict[str, Any]:
        """Pass on what the child says until it answers, ends or its time is up; it is gone afterwards."""
        started = time.monotonic()
        while child.answer is None:
            left = started + timeout_s - time.monotonic()
            watched = [child.fd, *([] if self.requests.pending() else [self.requests.fd])]
            ready, _, _ = select.select(watched, [], [], max(left, 0.0))
            if self.requests.fd in ready and not self.requests.fill():
                self.leave()
            if child.fd in ready:
                for said in child.read():
                    send(self.fd, **said)
            elif left <= 0:
                where = f" ({child.doing})" if child.doing else ""
                child.answer = failed("hang", f"did not finish within {timeout_s:g} s and was ended{where}")
        if not child.kill():
            said = "cannot be ended: the driver does not let go of it; restart the machine or reset the GPU"
            child.answer = failed("driver", f"process {child.pid} {said}")
        return {**child.answer, "attempt_s": time.monotonic() - started}
