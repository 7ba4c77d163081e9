"""The measuring process: loads one workload and runs it on the GPU, every attempt in a process of its own.

Needs Python's own library, PyTorch and what the workload imports: it runs on machines where whichgpu's other
dependencies are missing. Started as `python -m whichgpu.bench_worker --answers FD`; requests come as JSON lines on
standard input, answers go as JSON lines to the descriptor FD. The first request names the workload, each further one
is an attempt.

This process imports everything and never touches CUDA; an attempt is a forked child, so that neither fragmented
memory nor a broken context reaches the next one and no attempt waits for imports. Where the workload's import touched
CUDA or started threads, forking is not safe, and an attempt is a fresh Python instead. A child has a process group of
its own, which is killed at the end, at the time limit, and when the client goes; on Linux it also dies with this
process, however that comes about.

Data loading is not measured: a step makes its own batch.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from whichgpu import errors
from whichgpu.worker_side import Lines, die_with, private_input
from whichgpu.workload import Workload, WorkloadRef, distributions, failure_line, load, sources

# is_available() must ask the driver's library, not CUDA: after that no fork could use the GPU
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LIBRARIES = ("peft", "timm", "torchvision", "transformers", "triton")
WITHIN = 0.01  # how close to the median both ends of its interval shall be
_FEWEST_STEPS = 12  # timed, before the interval is believed
_WARM_UP_STEPS = 3
_WARM_UP_S = 1.0  # clocks rise during the first second of work
_STRETCH_S = 0.25  # steps between two looks at the clock
_LEAVE_S = 15.0  # how long a killed process may take to give its memory back
_LONGEST_MESSAGE = 300

# What errors say that are about memory: a library that cannot get its workspace uses its own words.
_MEMORY = ("out of memory", "ALLOC_FAILED")
_MAYBE_MEMORY = ("unable to find an engine", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED")
_DRIVER = (
    "Found no NVIDIA driver",
    "no NVIDIA driver",
    "driver version is insufficient",
    "driver on your system is too old",
    "no CUDA-capable device",
    "No CUDA GPUs are available",
    "not compiled with CUDA",
    "CUDA driver initialization failed",
    "CUDA unknown error",
    "unsupported display driver",
    "driver/library version mismatch",
    "system not yet initialized",
    "forward compatibility was attempted",
)
_CUDA = (
    "CUDA error",
    "CUDA driver error",
    "cuDNN error",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "NCCL",
    "device-side assert",
)


# ---- the process that stays -------------------------------------------------------------------------------


def main() -> None:
    """Serve until standard input closes; with `--attempt`, run the one attempt that standard input names."""
    fd = int(sys.argv[sys.argv.index("--answers") + 1])
    os.set_inheritable(fd, False)
    die_with(os.getppid(), signal.SIGKILL if "--attempt" in sys.argv else signal.SIGTERM)
    if "--attempt" in sys.argv:
        _alone(fd, json.load(sys.stdin))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the client decides
    requests = Lines(private_input())
    first = requests.next()
    if first is None:
        return
    server = _Server(fd, requests, json.loads(first)["workload"])
    signal.signal(signal.SIGTERM, lambda *_: server.leave())
    server.run()


class _Server:
    """Loads the workload, then answers attempts one by one."""

    def __init__(self, fd: int, requests: Lines, reference: dict[str, Any]) -> None:
        self.fd = fd
        self.requests = requests
        self.reference = reference
        self.child: _Child | None = None

    def run(self) -> None:
        """Until standard input closes."""
        try:
            workload, threads = load_workload(WorkloadRef(**self.reference))
        except errors.WhichGpuError as error:
            _say(self.fd, ok=False, error=type(error).__name__, message=str(error))
            return
        _say(self.fd, ok=True, unsafe=why_no_fork(), **describe(WorkloadRef(**self.reference), workload))
        while (line := self.requests.next()) is not None:
            attempt = json.loads(line)
            reason = why_no_fork()  # asked before every fork: the workload's own threads may start late
            if reason:
                self.child = _spawned(self.reference, attempt)
            else:
                self.child = _forked(WorkloadRef(**self.reference), workload, threads, attempt)
            _say(self.fd, event="started", pid=self.child.pid)
            answer = self._supervise(self.child, attempt["timeout_s"])
            self.child = None
            _say(self.fd, event="done", **answer)

    def leave(self) -> NoReturn:
        """End together with the attempt in flight."""
        if self.child is not None:
            self.child.kill()
        os._exit(0)

    def _supervise(self, child: _Child, timeout_s: float) -> dict[str, Any]:
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
                    _say(self.fd, **said)
            elif left <= 0:
                where = f" ({child.doing})" if child.doing else ""
                child.answer = _failed("hang", f"did not finish within {timeout_s:g} s and was ended{where}")
        if not child.kill():
            said = "cannot be ended: the driver does not let go of it; restart the machine or reset the GPU"
            child.answer = _failed("driver", f"process {child.pid} {said}")
        return {**child.answer, "attempt_s": time.monotonic() - started}


class _Child:
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
                self.answer = _failed("crash", "answered nonsense")
                break
            if "outcome" in said:
                self.answer = said
                break
            self.doing = said.get("progress", self.doing)
            passed_on.append(said)
        if self.answer is None and not chunk:
            self.answer = _failed("crash", self._end())
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


def _forked(ref: WorkloadRef, workload: Workload, threads: int, attempt: dict[str, Any]) -> _Child:
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
            _run(theirs, ref, workload, threads, attempt)
        finally:
            os._exit(1)  # `_run` ends the process itself when all went as it should
    os.close(theirs)
    with contextlib.suppress(OSError):  # whoever of the two is first
        os.setpgid(pid, pid)
    return _Child(pid, ours)


def _spawned(reference: dict[str, Any], attempt: dict[str, Any]) -> _Child:
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
    return _Child(process.pid, ours, process)


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
    if ref.scheme in ("file", "module") and _native_threads() > before:
        global _started_threads  # noqa: PLW0603  (a fact about this process)
        _started_threads = True
    gc.collect()
    gc.freeze()  # children share what is loaded until they write to it
    return workload, threads


# Whether importing the user's code left threads behind: a forked child would wait for them for ever.
_started_threads = False


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
        return "importing the workload starts threads"
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


# ---- an attempt -------------------------------------------------------------------------------------------


def _alone(fd: int, job: dict[str, Any]) -> NoReturn:
    """In a fresh Python: load the workload and make the attempt."""
    ref = WorkloadRef(**job["workload"])
    try:
        workload, threads = load_workload(ref)
    except errors.WhichGpuError as error:
        _say(fd, **_failed("step_error", str(error)))
        os._exit(0)
    _run(fd, ref, workload, threads, job["attempt"])


def _run(fd: int, ref: WorkloadRef, workload: Workload, threads: int, attempt: dict[str, Any]) -> NoReturn:
    """Make the attempt, say how it went, and end the process."""
    own = os.getpid()
    sys.modules["torch"].set_num_threads(threads)
    answer = make_attempt(ref, workload, attempt, lambda **said: _say(fd, **said))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's code may have closed them
            stream.flush()
    if os.getpid() == own:  # a step may have forked and failed
        _say(fd, **answer)
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
        return {**_failed(outcome, message), **found}


def _steps(card: Gpu, step: Callable[[int], Any], attempt: dict[str, Any], say: Callable[..., None]) -> dict[str, Any]:
    for number in range(attempt["steps"]):
        say(progress=f"step {number + 1} of {attempt['steps']}")
        step(attempt["batch_size"])
        card.synchronize()
    if attempt["kind"] == "fit":
        return {"steps": attempt["steps"]}
    return time_steps(lambda: step(attempt["batch_size"]), card, attempt["time_budget_s"], say)


def time_steps(step: Callable[[], Any], card: Gpu, budget_s: float, say: Callable[..., None]) -> dict[str, Any]:
    """Time steps on the GPU until the median's 95 % interval is within 1 % of it, or the time budget ends.

    Steps are queued in stretches of a quarter of a second, as training does, so that the host runs ahead where it can.
    """
    say(progress="warming up")
    started = time.monotonic()
    warm = 0
    while warm < _WARM_UP_STEPS or time.monotonic() - started < min(_WARM_UP_S, budget_s / 4):
        step()
        card.synchronize()
        warm += 1
    queued = max(int(_STRETCH_S * warm / (time.monotonic() - started)), 1)
    say(event="timing")
    started = time.monotonic()
    times: list[float] = []
    converged = False
    while not converged and (not times or time.monotonic() - started < budget_s):
        times += card.time_each(step, queued)
        low, median, high = median_interval(times)
        converged = len(times) >= _FEWEST_STEPS and max(high - median, median - low) <= WITHIN * median
    wall_s = time.monotonic() - started
    say(event="timed")
    return {"steps": len(times), "step_s": (median, low, high), "converged": converged, "timed_s": wall_s}


def median_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """Low end, median and high end of its 95 % interval by order statistics, which assumes no distribution."""
    ordered = sorted(times)
    count = len(ordered)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = _rank(count)  # how many of the lowest, and of the highest, lie outside
    return ordered[rank], median, ordered[count - 1 - rank]


def _rank(count: int) -> int:
    """How many values may be left out at each end with the median between the rest in 95 % of cases."""
    if count > 400:  # by then the normal distribution is exact enough
        return max(int(count / 2 - 0.98 * math.sqrt(count)) - 1, 0)
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) * 0.5**count
        if tail > 0.025:
            return max(rank - 1, 0)
        rank += 1


def classify(error: BaseException, card: Gpu | None) -> tuple[str, str]:
    """What kind of failure an exception is, and one line about it."""
    torch = sys.modules["torch"]
    words = str(error)
    line = _shorten(words.strip().partition("\n")[0] or type(error).__name__)
    if isinstance(error, torch.OutOfMemoryError) or any(word in words for word in _MEMORY):
        if isinstance(error, MemoryError) or "CPUAllocator" in words:
            return "step_error", _shorten(f"the machine's own memory ran out: {line}")
        return "out_of_memory", line
    if any(word in words for word in _MAYBE_MEMORY) and card is not None and card.is_full():
        return "out_of_memory", line
    if isinstance(error, NoSuchGpuError):
        return "no_gpu", words
    if card is None or any(word in words for word in _DRIVER):
        return "driver", line
    if isinstance(error, RuntimeError) and any(word in words for word in _CUDA):
        return "cuda_error", line
    if isinstance(error, errors.WhichGpuError):
        return "step_error", _shorten(words)
    return "step_error", _shorten(failure_line(error))


class NoSuchGpuError(Exception):
    """There is no GPU of that number."""


class Gpu:
    """The GPU as PyTorch shows it: the only user of `torch.cuda` here."""

    def __init__(self, index: int) -> None:
        import torch

        self._cuda = torch.cuda
        count = torch.cuda.device_count()
        if torch.backends.cuda.is_built() and count and index >= count:
            raise NoSuchGpuError(f"{count}")
        torch.cuda.init()
        torch.cuda.set_device(index)
        self.device = torch.device("cuda", index)
        self._allowed_bytes: int | None = None

    def facts(self) -> dict[str, Any]:
        """The card and the software, for the record of the environment."""
        import torch

        properties = self._cuda.get_device_properties(self.device)
        uuid = getattr(properties, "uuid", None)
        return {
            "name": properties.name,
            "uuid": str(uuid) if uuid is not None else "",
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": str(torch.version.cuda),
            "torch": torch.__version__,
            "cudnn": str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None,
            "python": platform.python_version(),
            "flags": self.flags(),
        }

    def flags(self) -> dict[str, Any]:
        """Switches that decide what is computed and how much memory that takes, as they are now."""
        import torch

        return {
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_cudnn": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            **environment_flags(),
        }

    def limit(self, limit_bytes: int) -> None:
        """Let PyTorch's allocator reserve exactly so many bytes and no more."""
        total = self._cuda.mem_get_info(self.device)[1]
        self._cuda.set_per_process_memory_fraction(exact_fraction(limit_bytes, total), self.device)
        self._allowed_bytes = limit_bytes

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._cuda.synchronize(self.device)

    def time_each(self, step: Callable[[], Any], count: int) -> list[float]:
        """Seconds of each of `count` steps that are queued one after the other."""
        marks = [self._cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        self.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(marks)]

    def peaks(self) -> dict[str, Any]:
        """Peaks of memory, and what lies outside PyTorch's allocator now."""
        stats = self._cuda.memory_stats(self.device)
        free, total = self._cuda.mem_get_info(self.device)
        return {
            "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
            "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
            "outside_bytes": total - free - stats.get("reserved_bytes.all.current", 0),
            "retries": stats.get("num_alloc_retries", 0),
        }

    def is_full(self) -> bool:
        """Whether memory ran out inside, or hardly any is left: then a library's failure is for want of it."""
        with contextlib.suppress(Exception):  # the context may be broken
            if self._cuda.memory_stats(self.device).get("num_ooms", 0):
                return True
            free = self._cuda.mem_get_info(self.device)[0]
            return bool(free < 256 << 20)
        return False


# Replaced where the worker is tested without a card.
GPU: type[Gpu] = Gpu


def environment_flags() -> dict[str, str]:
    """Variables of the environment that change what is measured; they are left as they are."""
    names = {
        "allocator": ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        "cublas_workspace": ("CUBLAS_WORKSPACE_CONFIG",),
        "tf32_override": ("NVIDIA_TF32_OVERRIDE",),
    }
    found = {flag: next((os.environ[v] for v in variables if v in os.environ), "") for flag, variables in names.items()}
    return {flag: value for flag, value in found.items() if value or flag == "allocator"}


def exact_fraction(part: int, whole: int) -> float:
    """The fraction that PyTorch, which multiplies and cuts off, turns back into exactly `part` of `whole`."""
    if not 0 < part <= whole:
        raise errors.InputError(f"a memory limit of {part} bytes: the card has {whole}")
    fraction = part / whole
    while int(fraction * whole) < part:
        fraction = math.nextafter(fraction, 2.0)
    return min(fraction, 1.0)


# ---- small things -----------------------------------------------------------------------------------------


def _failed(outcome: str, message: str) -> dict[str, Any]:
    return {"outcome": outcome, "message": message}


def _shorten(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 3] + "..."


def _say(fd: int, **fields: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(fd, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
