"""Measures the truth set (tools/truth) on a real GPU, every attempt in a process of its own.

    python3 tools/measure_truth.py --out DIR [--events] [--ops] [--jobs 6]
    python3 tools/measure_truth.py --out DIR --max-batch --truth OLD/truth.jsonl --jobs 6
    python3 tools/measure_truth.py --out DIR --alone [--only NAMES]

A parent that has imported PyTorch and the model libraries, and never touches CUDA, forks one child for each
attempt (or starts a new Python where forking does not work). Figures of PyTorch's own allocator belong to a
process, so several children share the GPU; step times and the context's size are measured with `--alone`.

Writes, line by line, so that a kill loses nothing: truth.jsonl or alone.jsonl (peaks), events.jsonl.xz
(allocator histories), ops.jsonl.xz (bytes by operator), max_batch.jsonl and attempts.jsonl (largest batch
under a limit), and environment.json. Needs a POSIX system.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import pickle
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# is_available() must ask the driver's library, not CUDA: a parent that has touched CUDA cannot fork children
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

GIB = 2**30
PACKAGES = ("torch", "torchvision", "timm", "transformers", "peft", "diffusers", "scipy", "triton", "numpy",
            "opt_einsum", "nvidia-cudnn-cu13")  # fmt: skip
ALONE_BY_DEFAULT = [
    "convnet_fp32",
    "bert128_fp32",
    "gpt2_bf16amp",
    "resnet50_fp32",
    "resnet50_channels_last_fp16",
    "lstm_language_model_fp32",
    "unet3d_sgd_fp32",
    "dlrm_dense_adagrad_fp32",
    "llama_gqa_pure_bf16",
    "mobilenet_v2_benchmark_channels_last_fp16",
]
FILE_CAP_BYTES = 15 * 2**20
DEFAULT_GIB = 12  # room on the GPU assumed for an attempt without a limit
ROOM_GIB = 124
# What a failure for lack of memory says: a library that cannot get its workspace uses its own words
MEMORY_WORDS = ("out of memory", "ALLOC_FAILED", "unable to find an engine")


@dataclass
class Job:
    """One attempt: what a child is told."""

    kind: str  # measure, ops, attempt or probe; zoo: tools/measure_zoo.py; record, chosen: tools/record_steps.py
    name: str = ""
    batch_size: int = 0
    device: str = "cuda"
    tiny: bool = False
    events: bool = False
    alone: bool = False
    limit_bytes: int | None = None
    threads: int = 2
    timeout_s: float = 120.0
    room_gib: float = DEFAULT_GIB


@dataclass
class Running:
    """A child at work."""

    job: Job
    search: Generator[Job, dict[str, Any], dict[str, Any]] | None
    pid: int
    answer: Path
    log: Path
    started: float
    process: subprocess.Popen[bytes] | None = None


# ---- the child ----


def _probe(device: str) -> dict[str, Any]:
    import torch

    if device != "cuda":
        return {"gpu": None, "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "total_bytes": properties.total_memory,
        "mem_get_info_total_bytes": total,
        "mem_get_info_free_bytes": free,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "alloc_conf": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        "allow_tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "allow_tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
    }


def _work(job: Job) -> dict[str, Any]:
    if job.kind == "probe":
        return {"row": _probe(job.device), "blob": None}
    if job.kind == "zoo":
        from measure_zoo import measure

        return {"row": measure(job.name, job.batch_size, job.device), "blob": None}
    if job.kind == "record":
        from record_steps import record

        row, blob = record(job.name, job.batch_size, job.device, job.tiny, job.limit_bytes)
        return {"row": row, "blob": blob}
    if job.kind == "chosen":
        from record_steps import chosen

        return {"row": chosen(job.name, job.limit_bytes or 0, job.device), "blob": None}
    import torch

    import truth
    from truth import measuring

    torch.set_num_threads(job.threads)
    (case,) = truth.find([job.name])
    device = torch.device(job.device)
    if job.kind == "measure":
        row, blob = measuring.measure(
            case, job.batch_size, device=device, tiny=job.tiny, events=job.events, alone=job.alone
        )
    elif job.kind == "ops":
        row, blob = measuring.operators(case, job.batch_size, device=device, tiny=job.tiny)
    else:
        row, blob = (
            measuring.attempt(case, job.batch_size, device=device, tiny=job.tiny, limit_bytes=job.limit_bytes),
            None,
        )
    return {"row": row, "blob": blob}


def _child(job: Job, answer: Path) -> None:
    """Does the job and leaves the answer in a file; never returns to the caller's stack."""
    try:
        result = {"kind": "ok", **_work(job)}
    except BaseException as error:  # whatever went wrong in a user's step is a result of the measurement
        import traceback

        text = f"{type(error).__name__}: {error}"
        memory = any(word in text for word in MEMORY_WORDS)
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        result = {"kind": "oom" if memory else "error", "detail": text[:600], "where": where}
        traceback.print_exc()
    partial = answer.with_suffix(".part")
    partial.write_bytes(pickle.dumps(result))
    partial.rename(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # no interpreter shutdown: libraries' exit handlers can hang or crash after a fork


# ---- the parent ----


class Children:
    """Starts and watches the children; at most `jobs` at a time, within the room on the GPU."""

    def __init__(self, jobs: int, folder: Path, fork: bool) -> None:
        self.jobs, self.folder, self.fork = jobs, folder, fork
        self.running: list[Running] = []
        self.count = 0

    def has_room(self, job: Job) -> bool:
        if job.alone:
            return not self.running
        taken = sum(child.job.room_gib for child in self.running)
        return len(self.running) < self.jobs and taken + job.room_gib <= ROOM_GIB

    def start(self, job: Job, search: Any = None) -> None:
        self.count += 1
        answer, log = self.folder / f"{self.count}.answer", self.folder / f"{self.count}.log"
        process = None
        if self.fork:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                target = os.open(log, os.O_WRONLY | os.O_CREAT)
                os.dup2(target, 1)
                os.dup2(target, 2)
                _child(job, answer)
        else:
            order = self.folder / f"{self.count}.job"
            order.write_bytes(pickle.dumps(vars(job)))
            with log.open("wb") as target:
                process = subprocess.Popen(
                    [sys.executable, __file__, "--child", str(order), str(answer)],
                    stdout=target,
                    stderr=target,
                    process_group=0,
                )
            pid = process.pid
        self.running.append(Running(job, search, pid, answer, log, time.monotonic(), process))

    def finished(self) -> list[tuple[Running, dict[str, Any]]]:
        """The children that ended since the last call, with what they answered."""
        done = []
        for child in list(self.running):
            late = time.monotonic() - child.started > child.job.timeout_s
            if self._alive(child) and not late:
                continue
            self.running.remove(child)
            done.append((child, self._answer(child, late)))
        return done

    def _alive(self, child: Running) -> bool:
        if child.process is not None:
            return child.process.poll() is None
        return os.waitpid(child.pid, os.WNOHANG) == (0, 0)

    def _answer(self, child: Running, late: bool) -> dict[str, Any]:
        self._end(child, late)
        seconds = round(time.monotonic() - child.started, 2)
        log = child.log.read_text(errors="replace") if child.log.exists() else ""
        if child.answer.exists():
            result = pickle.loads(child.answer.read_bytes())  # written by our own child just now
        elif late:
            result = {"kind": "timeout", "detail": f"killed after {child.job.timeout_s:.0f} s"}
        else:
            last = log.strip().splitlines()[-1:] or ["no message"]
            result = {"kind": "error", "detail": f"the process died: {last[0][:300]}"}
        for path in (child.answer, child.log):
            path.unlink(missing_ok=True)
        return {"wall_s": seconds, "log": log, **result}

    def _end(self, child: Running, late: bool) -> None:
        """Ends what is left of the child's own process group (compile workers; all of it when it is late)."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        if late:
            if child.process is not None:
                child.process.wait()
            else:
                try:
                    os.waitpid(child.pid, 0)
                except ChildProcessError:
                    return

    def stop(self) -> list[Running]:
        """Ends every child; answers which were still at work."""
        left, self.running = self.running, []
        for child in left:
            self._end(child, late=True)
        return left


def search_largest(
    job: Job, known: list[tuple[int, int]], batch_sizes: tuple[int, ...], cap: int = 28
) -> Generator[Job, dict[str, Any], dict[str, Any]]:
    """Finds the largest batch that runs under the job's limit and whose successor does not.

    Yields the next attempt and is sent its answer. `known` are (batch, peak reserved bytes) without a limit:
    the first guess is their straight line at the limit. Then growing strides and halving close in.
    """
    points, attempts, low, high = list(known), [], 0, None

    def record(batch: int, answer: dict[str, Any]) -> bool:
        row = answer.get("row", {})
        kept = {key: row.get(key) for key in ("allowed_bytes", "peak_reserved_bytes", "alloc_retries", "ooms")}
        attempts.append({"batch_size": batch, "kind": answer["kind"], "detail": answer.get("detail"), **kept})
        if answer["kind"] == "ok" and not row.get("alloc_retries") and row.get("peak_reserved_bytes"):
            points.append((batch, row["peak_reserved_bytes"]))
        return answer["kind"] == "ok"

    limit = job.limit_bytes or 0
    for batch in batch_sizes if len(points) < 2 else ():
        if high is None and record(batch, (yield _at(job, batch))):
            low = batch
        elif high is None:
            high = batch
    guess = _line_at(points, limit) or (batch_sizes[0] if high is None else (low + high) // 2)
    stride = max(1, round(0.01 * guess))
    batch = max(guess, low + 1) if high is None else min(max(guess, low + 1), high - 1)
    while (high is None or high - low > 1) and len(attempts) < cap:
        answer = yield _at(job, batch)
        fits = record(batch, answer)
        if answer["kind"] == "timeout":
            break
        low, high = (batch, high) if fits else (low, batch)
        if high is None:
            batch, stride = low + stride, stride * 2
        elif low == 0 or (low < high - 2 * stride and not any(a["kind"] == "ok" for a in attempts[-2:])):
            batch, stride = max(low + 1, high - stride), stride * 2
        else:
            batch = (low + high) // 2
    exact = high is not None and high - low == 1
    next_kind = next((a["kind"] for a in attempts if a["batch_size"] == high), None)
    return {
        "max_batch_size": low if exact else None,
        "exact": exact,
        "runs": low,
        "fails": high,
        "next_kind": next_kind,
        "attempts": attempts,
    }


def _at(job: Job, batch_size: int) -> Job:
    return Job(**{**vars(job), "batch_size": batch_size})


def _line_at(points: list[tuple[int, int]], limit: int) -> int | None:
    if len(points) < 2:
        return None
    (first, low), (last, high) = min(points), max(points)
    if last == first or high <= low:
        return None
    return max(1, int(first + (limit - low) * (last - first) / (high - low)))


@dataclass
class Output:
    """The files of results; every row is on disk before the next child starts."""

    folder: Path
    skipped_bytes: int = 0
    written: dict[str, int] = field(default_factory=dict)

    def row(self, file: str, row: dict[str, Any]) -> None:
        with (self.folder / file).open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    def packed(self, file: str, blob: bytes) -> bool:
        """Appends a packed line; False when the file would pass its cap."""
        if self.written.get(file, 0) + len(blob) > FILE_CAP_BYTES:
            self.skipped_bytes += len(blob)
            return False
        with (self.folder / file).open("ab") as stream:
            stream.write(blob)
        self.written[file] = self.written.get(file, 0) + len(blob)
        return True


def _read_rows(path: str | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def _import_all(names: set[str]) -> None:
    """Imports the steps' files in the parent, so that children are warm; a file that fails is named."""
    import truth

    for module in truth.modules():
        used = [case.name for case in truth.CASES if case.target.startswith(module + ":")]
        if names.isdisjoint(used):
            continue
        try:
            importlib.import_module(f"truth.{module}")
        except Exception as error:
            print(f"IMPORT FAILED {module}: {type(error).__name__}: {error} (its steps will fail)", flush=True)


def measured_with(probe: dict[str, Any], arguments: argparse.Namespace, fork: bool) -> dict[str, Any]:
    """The environment of a run: card, driver, libraries, and how it was called."""

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    fields = "name,driver_version,memory.total,memory.used,memory.reserved"
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = f"no answer: {error}"
    return {
        **probe,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "packages": {package: version(package) for package in PACKAGES},
        "nvidia_smi_fields": fields,
        "nvidia_smi": answer,
        "processors": os.cpu_count(),
        "forked": fork,
        "jobs": arguments.jobs,
        "arguments": sys.argv[1:],
    }


def _plan(cases: list[Any], arguments: argparse.Namespace) -> list[tuple[Job, Any]]:
    """The attempts by value: reference, small batches, large batches, operators; compiled last."""
    earlier = _read_rows(arguments.skip_done)
    searched = {row["name"] for row in earlier if row.get("exact")}
    done = {
        (row["kind_of"], row["name"], row["batch_size"]) for row in earlier if "kind_of" in row and row["kind"] == "ok"
    }

    def job(kind: str, case: Any, batch: int) -> Job:
        return Job(
            kind,
            case.name,
            batch,
            device=arguments.device,
            tiny=arguments.tiny,
            events=arguments.events and arguments.device == "cuda",
            alone=arguments.alone,
            threads=max(1, (os.cpu_count() or 2) // arguments.jobs),
            timeout_s=arguments.timeout_s * (2.5 if case.compiled else 1),
        )

    def batches(case: Any) -> tuple[int, ...]:
        return (2, 3) if arguments.tiny else case.batch_sizes

    if arguments.max_batch:
        return [
            (_limited(case, arguments, job("attempt", case, 0), batches(case)), "search")
            for case in cases
            if case.limit_gib is not None and case.name not in searched
        ]
    eager = [case for case in cases if not case.compiled]
    first = [case for case in eager if case.family == "reference"]
    rest = [case for case in eager if case.family != "reference"]
    late = [case for case in cases if case.compiled]
    plan = [job("measure", case, batch) for case in first for batch in batches(case)]
    plan += [job("measure", case, batches(case)[0]) for case in rest]
    if not arguments.small_only:
        plan += [job("measure", case, batch) for case in rest for batch in batches(case)[1:]]
    if arguments.ops:
        plan += [job("ops", case, batches(case)[0]) for case in eager]
    plan += [job("measure", case, batch) for case in late for batch in batches(case)]
    return [(item, None) for item in plan if (item.kind, item.name, item.batch_size) not in done]


def _limited(case: Any, arguments: argparse.Namespace, job: Job, batch_sizes: tuple[int, ...]) -> Job:
    job.limit_bytes, job.room_gib = case.limit_gib * GIB, case.limit_gib + 1
    job.batch_size = batch_sizes[0]
    return job


class Session:
    """Works through the plan and writes what comes back."""

    def __init__(self, arguments: argparse.Namespace, children: Children, output: Output, begun: float) -> None:
        self.arguments, self.children, self.output, self.begun = arguments, children, output, begun
        self.tally: dict[str, int] = {}
        self.waiting: list[tuple[Job, Any]] = []

    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def run(self, plan: list[tuple[Job, Any]], known: dict[str, list[tuple[int, int]]], sizes: Any) -> None:
        self.waiting = []
        for job, search in plan:
            if search is None:
                self.waiting.append((job, None))
                continue
            finder = search_largest(job, known.get(job.name, []), sizes(job.name))
            self.waiting.append((next(finder), finder))
        while self.waiting or self.children.running:
            if self.elapsed() > self.arguments.budget_s:
                self.waiting = []
            if self.elapsed() > self.arguments.budget_s + self.arguments.grace_s:
                break
            self._start_what_fits()
            for child, answer in self.children.finished():
                self._take(child, answer)
            time.sleep(0.02)
        for child in self.children.stop():
            print(f"UNFINISHED {child.job.kind} {child.job.name} {child.job.batch_size}", flush=True)

    def _start_what_fits(self) -> None:
        for entry in list(self.waiting):
            if self.children.has_room(entry[0]):
                self.waiting.remove(entry)
                self.children.start(*entry)

    def _take(self, child: Running, answer: dict[str, Any]) -> None:
        job = child.job
        self.tally[answer["kind"]] = self.tally.get(answer["kind"], 0) + 1
        row = {
            "name": job.name,
            "batch_size": job.batch_size,
            "kind_of": job.kind,
            "kind": answer["kind"],
            "wall_s": answer["wall_s"],
            **answer.get("row", {}),
        }
        row |= {key: answer[key] for key in ("detail", "where") if key in answer}
        if job.kind == "attempt":
            row["limit_bytes"] = job.limit_bytes
        blob = answer.get("blob")
        if blob is not None:
            row["stored"] = self.output.packed("ops.jsonl.xz" if job.kind == "ops" else "events.jsonl.xz", blob)
        usual = "alone.jsonl" if job.alone else "truth.jsonl"
        file = {
            "attempt": "attempts.jsonl",
            "zoo": "zoo.jsonl",
            "record": "records.jsonl",
            "chosen": "records.jsonl",
        }.get(job.kind, usual)
        self.output.row(file, row)
        self._say(row, answer)
        if child.search is not None:
            self._go_on(child, answer)

    def _go_on(self, child: Running, answer: dict[str, Any]) -> None:
        assert child.search is not None
        try:
            self.waiting.insert(0, (child.search.send(answer), child.search))
        except StopIteration as end:
            found = {"name": child.job.name, "limit_bytes": child.job.limit_bytes, **end.value}
            self.output.row("max_batch.jsonl", found)
            print(f"LARGEST {child.job.name}: {found['max_batch_size']} ({len(found['attempts'])} tries)")

    def _say(self, row: dict[str, Any], answer: dict[str, Any]) -> None:
        peaks = [row.get("peak_allocated_bytes"), row.get("peak_reserved_bytes")]
        text = " ".join(f"{peak / GIB:.3f}" for peak in peaks if peak is not None)
        detail = "" if row["kind"] == "ok" else f" {row.get('detail', '')[:160]} {row.get('where', '')}"
        print(
            f"{self.elapsed():6.1f} {row['kind']:7} {row['kind_of']:7} {row['name']} {row['batch_size']} "
            f"{text} GiB {row['wall_s']} s{detail}",
            flush=True,
        )
        if row["kind"] == "error" and self.arguments.verbose:
            print(answer["log"][-2000:], flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", nargs="*", help="names of cases")
    add_session_options(parser, jobs=4, budget_s=560, grace_s=20, timeout_s=100)
    parser.add_argument("--events", action="store_true", help="also the allocator's history")
    parser.add_argument("--ops", action="store_true", help="also bytes by operator, at the smaller batch")
    parser.add_argument("--alone", action="store_true", help="one at a time: step times and context size too")
    parser.add_argument("--small-only", action="store_true", help="outside the reference, the smaller batch only")
    parser.add_argument("--max-batch", action="store_true", help="the largest batch under each case's limit")
    parser.add_argument("--truth", help="truth.jsonl with peaks for the first guess of --max-batch")
    parser.add_argument(
        "--skip-done", help="truth.jsonl or max_batch.jsonl of an earlier run: what is done is left out"
    )
    parser.add_argument("--skip-compiled", action="store_true", help="leave the torch.compile cases out")
    parser.add_argument("--tiny", action="store_true", help="the small sizes, batches 2 and 3")
    return parser


def add_session_options(
    parser: argparse.ArgumentParser, *, jobs: int, budget_s: float, grace_s: float, timeout_s: float
) -> None:
    """What a Session and its children are told, with these defaults."""
    parser.add_argument("--jobs", type=int, default=jobs, help=f"children at a time (default {jobs})")
    parser.add_argument("--budget-s", type=float, default=budget_s, help="start nothing after this many seconds")
    parser.add_argument("--grace-s", type=float, default=grace_s, help=f"then end what still runs (default {grace_s})")
    parser.add_argument("--timeout-s", type=float, default=timeout_s, help=f"limit of one child (default {timeout_s})")
    parser.add_argument("--fresh", action="store_true", help="a new Python for each attempt instead of a fork")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a rehearsal")
    parser.add_argument("--verbose", action="store_true", help="print the log of a failed attempt")


def _known_peaks(arguments: argparse.Namespace) -> dict[str, list[tuple[int, int]]]:
    known: dict[str, list[tuple[int, int]]] = {}
    for row in _read_rows(arguments.truth):
        if row["kind"] == "ok" and row["kind_of"] == "measure" and row.get("peak_reserved_bytes"):
            known.setdefault(row["name"], []).append((row["batch_size"], row["peak_reserved_bytes"]))
    return known


def probe_in_child(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    """The GPU's facts, and whether a forked child can use CUDA (else each child is a new Python)."""
    for fork in (False,) if arguments.fresh else (True, False):
        children = Children(1, folder, fork)
        children.start(Job("probe", device=arguments.device))
        answers: list[tuple[Running, dict[str, Any]]] = []
        while not answers:
            answers = children.finished()
            time.sleep(0.02)
        answer = answers[0][1]
        if answer["kind"] == "ok":
            return answer["row"], fork
        print(f"probe with fork={fork}: {answer.get('detail')}", flush=True)
    raise SystemExit("no usable GPU: " + str(answer.get("detail")))


def look_at_gpu(arguments: argparse.Namespace, folder: Path, name: str = "environment.json") -> tuple[str, bool]:
    """Writes what is measured with beside the results; that text, and whether children can be forked."""
    probe, fork = probe_in_child(arguments, folder)
    environment = measured_with(probe, arguments, fork)
    (arguments.out / name).write_text(json.dumps(environment, indent=1) + "\n")
    return json.dumps(environment), fork


def main() -> None:
    """Reads the arguments, measures, prints a summary."""
    if sys.argv[1:2] == ["--child"]:
        _child(Job(**pickle.loads(Path(sys.argv[2]).read_bytes())), Path(sys.argv[3]))
    begun = time.monotonic()
    arguments = _parser().parse_args()
    arguments.jobs = 1 if arguments.alone else arguments.jobs
    arguments.out.mkdir(parents=True, exist_ok=True)
    import truth

    names = arguments.only or (ALONE_BY_DEFAULT if arguments.alone else [case.name for case in truth.CASES])
    cases = [case for case in truth.find(names) if not (arguments.skip_compiled and case.compiled)]
    if arguments.device == "cpu":
        cases = [case for case in cases if not case.name.startswith("cuda_literal")]
    _import_all({case.name for case in cases})
    with tempfile.TemporaryDirectory() as temporary:
        mode = "_max_batch" if arguments.max_batch else "_alone" if arguments.alone else ""
        environment, fork = look_at_gpu(arguments, Path(temporary), f"environment{mode}.json")
        print(environment, flush=True)
        sizes = {case.name: ((2, 3) if arguments.tiny else case.batch_sizes) for case in cases}
        session = Session(arguments, Children(arguments.jobs, Path(temporary), fork), Output(arguments.out), begun)
        session.run(_plan(cases, arguments), _known_peaks(arguments), sizes.__getitem__)
    print(
        f"{session.elapsed():.0f} s, {session.tally}, files {session.output.written}, "
        f"left out {session.output.skipped_bytes} bytes"
    )


if __name__ == "__main__":
    main()
