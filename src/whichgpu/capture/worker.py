"""The tracing process: loads one workload and traces it at the batch sizes that it is asked for.

Started as `python -m whichgpu.capture.worker --answers FD`; requests come as JSON lines on standard input, answers go
as JSON lines to the descriptor FD, since the user's code may print. The first request names the workload, each further
one a batch size, a capability class and the file to write. Every trace is made in a forked child, so that nothing that
the user's code or the emulation leaves behind reaches the next one, and two can be made at a time. When standard input
closes, or on Linux when the client dies in whatever way, everything ends: this process, all that it and the user's code
started, and the scratch directory that the first request named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.metadata
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from whichgpu import errors, trace
from whichgpu.worker_side import Lines, adopt_orphans, descendants, die_with, end_all, ending, private_input
from whichgpu.workload import WorkloadRef, distributions, failure_line, load, sources

_CHILDREN = max(os.cpu_count() or 1, 1)
_ROUNDS = 20
_CUT_OFF = 97  # exit code of a child whose pipe was closed behind its back
_CLOSED = "closed file descriptors that it had not opened (os.closerange?), so that the tracer was cut off"


def main() -> None:
    """Serve until standard input closes."""
    fd = int(sys.argv[sys.argv.index("--answers") + 1])
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the client decides
    requests = Lines(private_input())
    first = json.loads(requests.next() or "{}")
    if not first:
        return
    signal.signal(signal.SIGTERM, lambda *_: _leave(first["directory"]))
    die_with(os.getppid(), signal.SIGTERM)
    adopt_orphans()
    ref = msgspec.convert(first["workload"], WorkloadRef)
    try:
        workload, stage = _load(ref, first.get("capability"), first["kind"])
    except errors.WhichGpuError as error:
        _answer(fd, ok=False, error=type(error).__name__, message=str(error))
        _leave(first["directory"])
    try:
        _answer(fd, ok=True, holds_for=stage.holds_for() if stage is not None else None, **_origin(ref))
    except OSError:
        sys.exit(f"{ref.text} {_CLOSED}")  # the last line of the log, which the client shows
    _Server(fd, requests, workload, stage, ref, first["kind"], first["directory"]).run()
    _leave(first["directory"])


def _leave(directory: str) -> NoReturn:
    """End with everything that runs below; the client may be gone and no longer do it."""
    for _ in range(_ROUNDS):  # one that is about to be killed may just have started another
        if not (below := descendants(os.getpid())):
            break
        end_all(below)
    shutil.rmtree(directory, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _load(ref: WorkloadRef, capability: str | None, kind: Any) -> tuple[Any, Any]:
    """The workload, and the stage that the user's file was imported on; None for a library's."""
    try:
        import torch
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            what = "PyTorch is not installed"
        else:
            what = f"PyTorch cannot be imported ({failure_line(error)})"
        raise errors.MissingExtraError(
            f"{what}; install it for your machine: https://pytorch.org/get-started"
        ) from error
    torch.set_num_threads(1)  # children are forked: no thread pool may exist before that
    import whichgpu.capture.run  # noqa: F401 - loaded once, before the forks
    from whichgpu.capture.changes import changed
    from whichgpu.capture.stage import Stage
    from whichgpu.capture.target import Target

    _set_aside()
    sys.dont_write_bytecode = True  # the user's folder stays as it is
    stage = Stage(Target.parse(capability), kind) if capability and ref.scheme in ("file", "module") else None
    try:
        with stage.importing() if stage is not None else contextlib.nullcontext():
            workload = load(ref)
        if ref.changes:
            workload = dataclasses.replace(workload, setup=changed(workload.setup, ref.changes))
    except KeyboardInterrupt as error:  # raised by the user's code itself: the signal is ignored here
        raise errors.WorkloadError(f"{ref.text} cannot be loaded: {failure_line(error)}") from error
    if ref.scheme not in ("file", "module"):
        _set_aside()  # a library's code is loaded by now, and its model is built in the set-up
    return workload, stage


def _set_aside() -> None:
    """Keep what is loaded out of the garbage collector's sight.

    Tracing collects at each step, and finds the user's models among all objects that the collector knows: both need
    not look through torch. Never called after a user's code has run, which may have built a model already.
    """
    gc.collect()
    gc.freeze()


def _origin(ref: WorkloadRef) -> dict[str, Any]:
    found = {}
    for name in distributions(ref):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"sources": [str(path) for path in sources(ref)], "distributions": found}


class _Server:
    """Answers requests in order; works ahead in forked children where it was told what comes next."""

    def __init__(
        self, fd: int, requests: Lines, workload: Any, stage: Any, ref: WorkloadRef, kind: str, directory: str
    ) -> None:
        self.fd = fd
        self.directory = directory
        self.requests = requests
        self.workload = workload
        self.stage = stage
        self.ref = ref
        self.kind = kind
        self.children: dict[tuple[str, int], _Child] = {}

    def run(self) -> None:
        """Until standard input closes."""
        while (line := self.requests.next()) is not None:
            request = json.loads(line)
            out = Path(request["out"])
            wanted = (request["capability"], request["batch_size"])
            queue = [wanted, *((request["capability"], size) for size in request.get("ahead", ()))]
            child = self._start(wanted)
            answer: dict[str, Any] | None = None
            while answer is None:
                for key in queue:
                    if sum(not c.finished for c in self.children.values()) < _CHILDREN:
                        self._start(key)
                answer = self._wait(child)
            del self.children[wanted]
            if answer["ok"]:
                child.path.replace(out)
            _answer(self.fd, **answer)

    def _start(self, key: tuple[str, int]) -> _Child:
        child = self.children.get(key)
        if child is None:
            path = Path(self.directory) / f"made-{key[0]}-{key[1]}"
            child = self.children[key] = _Child((self.workload, self.stage), self.ref, key, self.kind, path)
        return child

    def _wait(self, wanted: _Child) -> dict[str, Any] | None:
        """Read what the children say until one of them finishes; the wanted child's answer, once it is there."""
        if wanted.finished:
            return wanted.answer
        open_fds = {child.fd: child for child in self.children.values() if not child.finished}
        watched = [*open_fds, *([] if self.requests.pending() else [self.requests.fd])]
        ready, _, _ = select.select(watched, [], [])
        for fd in ready:
            if fd == self.requests.fd:
                if not self.requests.fill():
                    _leave(self.directory)
                continue
            child = open_fds[fd]
            for progress in child.read():
                if child is wanted:
                    _answer(self.fd, progress=progress)
        return wanted.answer if wanted.finished else None


class _Child:
    """A forked process that makes one trace."""

    def __init__(self, loaded: Any, ref: WorkloadRef, key: tuple[str, int], kind: str, path: Path) -> None:
        self.path = path
        self.finished = False
        self.answer: dict[str, Any] = {}
        self._about = f"{ref.text}: the process that traced batch size {key[1]}"
        self._buffer = b""
        self.fd, theirs = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                die_with(parent, signal.SIGKILL)
                _make(theirs, loaded, ref, key, kind, path)
            finally:
                _flush()
                os._exit(1)  # `_make` ends the process itself when all went as it should
        os.close(theirs)

    def read(self) -> list[str]:
        """Progress lines that came in; notes the end of the process."""
        chunk = os.read(self.fd, 1 << 16)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        progress = []
        for line in lines:
            said = json.loads(line)
            if "progress" in said:
                progress.append(said["progress"])
            else:
                self.answer = said
        if self.answer or not chunk:  # what the user's code started may hold the pipe open: an answer is the end
            self._end()
        return progress

    def _end(self) -> None:
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        self.finished = True
        if not self.answer:
            told = f"{self._about} {_ending(os.waitstatus_to_exitcode(status))}"
            self.answer = {"ok": False, "error": "CaptureError", "message": told}


def _ending(code: int) -> str:
    return _CLOSED if code == _CUT_OFF else ending(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's code may have closed them
            stream.flush()


def _make(fd: int, loaded: Any, ref: WorkloadRef, key: tuple[str, int], kind: str, path: Path) -> None:
    """In the child: trace, write the file, say how it went."""
    last = 0.0
    # real tensors: the step looked at values, so that it runs in full, with all its memory
    slowly = ", with real tensors on this CPU" if kind == "real-cpu" else ""

    def progress(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > 0.1:
            last = time.monotonic()
            _answer(fd, progress=text + slowly)

    own = os.getpid()
    progress(f"batch size {key[1]}: setting up")
    answer = _attempt(loaded, ref, key, kind, path, progress)
    _flush()
    if os.getpid() == own:  # a step may have forked and failed
        try:
            _answer(fd, **answer)
        except OSError:
            os._exit(_CUT_OFF)
    os._exit(0)


def _attempt(
    loaded: Any, ref: WorkloadRef, key: tuple[str, int], kind: str, path: Path, progress: Any
) -> dict[str, Any]:
    """What to answer about one trace, whatever the user's code or the tracer raises."""
    try:
        made = _trace(loaded, ref, key, kind, progress)
    except errors.WhichGpuError as error:
        return {"ok": False, "error": type(error).__name__, "message": str(error)}
    except KeyboardInterrupt as error:  # raised by the user's code itself: the signal is ignored here
        told = f"{ref.text}: raised at batch size {key[1]}: {failure_line(error)}"
        return {"ok": False, "error": "WorkloadError", "message": told}
    except MemoryError:
        told = f"{ref.text}: this machine's memory is too small to trace it"
        return {"ok": False, "error": "CaptureError", "message": told}
    except Exception as error:
        with contextlib.suppress(Exception):  # the user's code may have closed the log
            traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        told = f"{ref.text}: the tracer itself failed ({what}); please report it with the model's name"
        return {"ok": False, "error": "CaptureError", "message": told}
    try:
        trace.save(made, path)
    except OSError as error:
        folder = path.parent.parent
        told = f"no room for the trace in {folder} ({error.strerror}); set TMPDIR to another folder"
        return {"ok": False, "error": "CaptureError", "message": told}
    return {"ok": True, **_origin(ref)}


def _trace(loaded: Any, ref: WorkloadRef, key: tuple[str, int], kind: str, progress: Any) -> trace.Trace:
    from whichgpu.capture.run import capture
    from whichgpu.capture.target import Target

    own = os.getpid()
    capability, batch_size = key
    if kind == "real-cpu":
        import torch

        torch.set_num_threads(max((os.cpu_count() or 2) // 2, 1))
    target = Target.parse(capability)
    workload, stage = loaded
    made = capture(ref.text, workload.setup, batch_size, target, kind=kind, on_progress=progress, stage=stage)
    if os.getpid() != own:  # a step that forks may come back here twice
        os._exit(0)
    if not any(op.step >= 0 for op in made.ops):  # it would fit on every card
        raise errors.WorkloadError(
            f"{ref.text}: the step ran nothing on the GPU; use the device that setup(device) is given, "
            "as in model.to(device) and torch.randn(..., device=device)"
        )
    return _with_workload(made, workload)


def _with_workload(made: trace.Trace, workload: Any) -> trace.Trace:
    """The trace with what the workload says of itself."""
    facts = {
        **made.facts,
        "unit": workload.unit,
        "items_per_sample": workload.items_per_sample,
        "default_batch_size": workload.default_batch_size,
        "description": workload.description,
        "precision": workload.precision,
        "sizes": dict(workload.sizes),
    }
    return msgspec.structs.replace(made, facts=facts)


def _answer(fd: int, **fields: Any) -> None:
    os.write(fd, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
