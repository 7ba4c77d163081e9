"""Importing torch and the workload, so that the process can be forked afterwards; what a workload says of itself."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import importlib.metadata
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from whichgpu import errors
from whichgpu.workload import Workload, WorkloadRef, distributions, failure_line, load, sources

_ZOO_TABLE = Path(errors.__file__).parent / "zoo" / "__init__.py"  # one more workload changes none of the others
LIBRARIES = ("peft", "timm", "torchvision", "transformers", "triton")


def load_workload(ref: WorkloadRef) -> tuple[Workload, int]:
    """Import torch and the workload, and leave the process fit to be forked; also the threads torch would use."""
    try:
        import torch
        import torch._dynamo  # optimizers import it at their first step: once, before the forks
    except ImportError as error:
        raise errors.MissingExtraError(
            f"PyTorch cannot be imported ({failure_line(error)}); install it for your machine: "
            "https://pytorch.org/get-started"
        ) from error
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # no thread pool may exist before a fork
    before = _native_threads()
    sys.dont_write_bytecode = True  # the user's folder stays as it is
    try:
        workload = load(ref)
    except KeyboardInterrupt as error:  # raised by the user's code itself: the signal is ignored here
        raise errors.WorkloadError(f"{ref.text} cannot be loaded: {failure_line(error)}") from error
    if ref.scheme in ("file", "module"):
        _note_threads(before, "importing the workload")
    _share()
    return workload, threads


def prepare(workload: Workload) -> Workload:
    """The workload with all built that set-up does not need the device for: forked attempts then begin with the rest.

    What fails here fails in each attempt again, which tells it apart.
    """
    if workload.prepare is None:
        return workload
    before = _native_threads()
    with contextlib.suppress(BaseException):  # SystemExit too
        workload = dataclasses.replace(workload, setup=workload.prepare())
    _note_threads(before, "building the model")
    _share()
    return dataclasses.replace(workload, prepare=None)


def _share() -> None:
    """Let children share what is loaded until they write to it."""
    gc.collect()
    gc.freeze()


# What left threads behind, for which a forked child would wait for ever.
_started_threads = ""


def _note_threads(before: int, what: str) -> None:
    global _started_threads  # noqa: PLW0603  (a fact about this process)
    if _native_threads() > before:
        _started_threads = what


def _native_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def why_no_fork() -> str:
    """Why a forked child could not use the GPU; empty when it can."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() or _cuda_is_open():
        return "importing the workload touches CUDA"
    if _started_threads or threading.active_count() > 1:
        return f"{_started_threads or 'importing the workload'} starts threads"
    return ""


def _cuda_is_open() -> bool:
    """Whether this process has opened CUDA's device file, as code that goes round PyTorch may do."""
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith("/dev/nvidia-uvm"):
                    return True
    return False


def describe(ref: WorkloadRef, workload: Workload) -> dict[str, Any]:
    """What the client wants to know of a loaded workload."""
    return {
        "unit": workload.unit,
        "items_per_sample": workload.items_per_sample,
        "default_batch_size": workload.default_batch_size,
        "workload_hash": workload_hash(ref),
        "libraries": _versions({*LIBRARIES, *distributions(ref)} - {"torch"}),
    }


def workload_hash(ref: WorkloadRef) -> str:
    """A digest of the workload's name, options and source files, wherever these lie."""
    digest = hashlib.sha256()
    name = ref.text if ref.scheme not in ("file", "module") else f"{Path(ref.target).name}:{ref.function}"
    digest.update(json.dumps([ref.scheme, name, sorted(ref.options.items())]).encode())
    contents = []
    for path in sources(ref):
        if path == _ZOO_TABLE:
            continue
        with contextlib.suppress(OSError):
            contents.append(f"{path.name}:{hashlib.sha256(path.read_bytes()).hexdigest()}")
    digest.update("\n".join(sorted(contents)).encode())
    return digest.hexdigest()


def _versions(names: set[str]) -> dict[str, str]:
    found = {}
    for name in sorted(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
