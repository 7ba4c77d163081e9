"""Measures on a GPU what operators take from the allocator beyond their outputs, and what the CUDA context takes.

    python3 tools/measure_workspaces.py --out DIRECTORY --budget-s 150

Needs torch with CUDA; uses timm, torchvision and transformers where they are installed. Writes
DIRECTORY/workspaces.jsonl.gz, one JSON record a line, each of them one of
  {"environment": ...}                                      versions and the card
  {"context": order, "stage": ..., "outside_bytes": ...}     memory outside the allocator (workspace_grid/context.py)
  {"p": label, "c": settings, "n": operator, "a": ..., "e": ..., "o": ...}   one operator (workspace_grid/recorder.py)
  {"p": label, "failed": text}                              a grid point that failed
  {"summary": ...}                                          the last line: points run, by lane, and seconds

`--lanes kernels recurrent` runs the short selection of operators (workspace_grid/kernels.py) instead of the full grids.

Points run in several processes at once, the most valuable first, until the budget is spent; a process that
crashes or hangs is replaced and the point named. Equal records of one label family are written once.
`--dry-run` builds and runs each point on the meta device, or on the CPU, to check shapes where there is no GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))
DONE = "done"
POINT_TIMEOUT_S = 40.0
FIRST_RECURRENT_TIMEOUT_S = 75.0  # loads cuDNN's library for recurrent layers
STUCK_S = 12.0
START_TIMEOUT_S = 90.0
SIZE_LIMIT_BYTES = 12 << 20
CRASH_LIMIT = 60


ALL_LANES = ("model", "conv", "ops", "kernels", "recurrent")
DEFAULT_LANES = ("model", "conv", "ops")


def lanes(names: Sequence[str] = DEFAULT_LANES) -> dict[str, list[Any]]:
    """Points by lane, in the order in which they are to run; the same in every process."""
    from workspace_grid import attention, conv, kernels, models, ops

    def general() -> list[Any]:
        points = [*attention.points(), *ops.points()]
        random.Random(0).shuffle(points)  # so that a budget cut short leaves some of every family
        return points

    makers: dict[str, Callable[[], list[Any]]] = {
        "model": models.points,
        "ops": general,
        "conv": lambda: [entry for batch in conv.points() for entry in batch],
        "kernels": kernels.points,
        "recurrent": kernels.recurrent_points,
    }
    return {name: makers[name]() for name in names}


# ---- a worker process -------------------------------------------------------------------------------------------


def work(share: float, device: str, names: Sequence[str]) -> None:
    """Reads "lane index" lines, runs these points and prints their rows, each point closed by a done line."""
    import torch

    from workspace_grid.points import apply_settings
    from workspace_grid.recorder import run_twice

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the rows
    limit = 0.0
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.set_per_process_memory_fraction(share)
        limit = share * torch.cuda.get_device_properties(0).total_memory
    points = lanes(names)
    torch.set_num_threads(2)  # several workers share the cores
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        lane, index = line.split()
        point = points[lane][int(index)]
        started = time.monotonic()
        faulthandler.dump_traceback_later(STUCK_S, file=sys.stderr)  # says where a point that gets killed was
        try:
            apply_settings(point.settings)
            rows, failure = run_twice(point.build(device), device)
        except Exception as error:
            rows, failure = [], f"{type(error).__name__}: {str(error)[:300]}"
        faulthandler.cancel_dump_traceback_later()
        for row in rows:
            if lane == "model" and row["n"].startswith("aten._foreach"):
                continue  # lists of hundreds of tensors; the optimizer points cover them
            print(json.dumps({"p": point.label, "c": point.settings, **row}, separators=(",", ":")), file=out)
        if failure:
            print(json.dumps({"p": point.label, "c": point.settings, "failed": failure}), file=out)
        if limit and torch.cuda.memory_reserved() > 0.5 * limit:
            torch.cuda.empty_cache()
        print(
            json.dumps({DONE: [lane, int(index)], "s": round(time.monotonic() - started, 3)}),
            file=out,
            flush=True,
        )


# ---- the parent -------------------------------------------------------------------------------------------------


class Writer:
    """One gzipped file; equal lines once; flushed every few seconds so that a kill loses little."""

    def __init__(self, path: Path) -> None:
        self.raw = path.open("wb")
        self.file = gzip.GzipFile(fileobj=self.raw, mode="wb", compresslevel=6)
        self.seen: set[int] = set()
        self.lock = threading.Lock()
        self.flushed = time.monotonic()
        self.lines = 0

    def write(self, line: str) -> None:
        with self.lock:
            key = hash(line)
            if key in self.seen:
                return
            self.seen.add(key)
            self.lines += 1
            self.file.write(line.encode() + b"\n")
            if time.monotonic() - self.flushed > 5:
                self.flush()

    def flush(self) -> None:
        self.file.flush(zlib.Z_SYNC_FLUSH)
        self.raw.flush()
        self.flushed = time.monotonic()

    def size(self) -> int:
        return self.raw.tell()

    def close(self) -> None:
        self.file.close()
        self.raw.close()


class Crew:
    """Worker processes, each fed by a thread of this one."""

    def __init__(self, writer: Writer, deadline: float, share: float, device: str, names: Sequence[str]) -> None:
        self.writer, self.deadline, self.share, self.device, self.names = (
            writer,
            deadline,
            share,
            device,
            names,
        )
        self.slow: dict[str, float] = {}
        self.queues: dict[str, queue.SimpleQueue[int]] = {}
        for lane, points in lanes(names).items():
            self.queues[lane] = queue.SimpleQueue()
            for index in range(len(points)):
                self.queues[lane].put(index)
        self.counts: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.crashes: list[str] = []
        self.logs: dict[int, Path] = {}
        self.lock = threading.Lock()

    def over(self) -> bool:
        return time.monotonic() > self.deadline or self.writer.size() > SIZE_LIMIT_BYTES

    def next_point(self, order: list[str]) -> tuple[str, int] | None:
        for lane in order:
            try:
                return lane, self.queues[lane].get_nowait()
            except queue.Empty:
                continue
        return None

    def serve(self, order: list[str]) -> None:
        process = self.start()
        while not self.over() and (task := self.next_point(order)) is not None:
            if not self.give(process, *task):
                with self.lock:
                    self.crashes.append(f"{task[0]} {task[1]}")
                if time.monotonic() > self.deadline - 15 or len(self.crashes) > CRASH_LIMIT:
                    break
                process = self.start()
        if process.poll() is None:
            process.kill()
        process.wait()

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE), "--worker", str(self.share), "--device", self.device]
        command += ["--lanes", *self.names]
        log = tempfile.NamedTemporaryFile(prefix="workspaces-", suffix=".log", delete=False)  # noqa: SIM115
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self.logs[process.pid] = Path(log.name)
        assert process.stdout is not None
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        while (line := process.stdout.readline()) and line.strip() != "ready":
            pass  # importing torch and building the points takes seconds that no point should be charged for
        watchdog.cancel()
        return process

    def give(self, process: subprocess.Popen[str], lane: str, index: int) -> bool:
        """Runs one point in the worker; False when it died or was killed over it."""
        assert process.stdin is not None
        assert process.stdout is not None
        limit = FIRST_RECURRENT_TIMEOUT_S if lane == "recurrent" and not self.counts[lane] else POINT_TIMEOUT_S
        patience = min(limit, max(3.0, self.deadline + 8 - time.monotonic()))
        watchdog = threading.Timer(patience, process.kill)
        watchdog.start()
        try:
            process.stdin.write(f"{lane} {index}\n")
            process.stdin.flush()
            for line in process.stdout:
                text = line.rstrip("\n")
                if text == "ready":
                    continue
                if text.startswith(f'{{"{DONE}"'):
                    with self.lock:
                        self.counts[lane] += 1
                        if (seconds := json.loads(text)["s"]) > 2:
                            self.slow[f"{lane} {index}"] = seconds
                    return True
                self.writer.write(text)
        except (BrokenPipeError, OSError):
            pass
        finally:
            watchdog.cancel()
        process.kill()
        text = f"worker ended, code {process.wait()}: {self.logs[process.pid].read_text(errors='replace')[-1500:]}"
        self.writer.write(json.dumps({"p": f"{lane} {index}", "failed": text}))
        return False


def environment() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False).stdout.strip()  # fmt: skip
    return {
        "environment": {
            "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "driver": driver,
            "card": properties.name, "capability": list(torch.cuda.get_device_capability(0)),
            "memory_bytes": properties.total_memory, "multiprocessors": properties.multi_processor_count,
            "python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d"),
            "variables": {k: v for k, v in os.environ.items() if k.startswith(("CUBLAS", "PYTORCH", "CUDA_", "TORCH_", "NVIDIA_TF32"))},
        }
    }  # fmt: skip


def contexts(writer: Writer) -> None:
    """Fresh processes one after the other, before this process or a worker touches the card."""
    for order in ("gemm_first", "conv_first", "attention_first", "cudnn_attention_first", "cublaslt"):
        command = [sys.executable, "-m", "workspace_grid.context", order]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=HERE.parent, check=False)
        except subprocess.TimeoutExpired:
            writer.write(json.dumps({"context": order, "failed": "timed out"}))
            continue
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                writer.write(line)
        if done.returncode:
            writer.write(json.dumps({"context": order, "failed": done.stderr[-600:]}))


def _orders(names: Sequence[str], workers: int) -> list[list[str]]:
    """Which lanes each worker serves, most wanted first."""
    if tuple(names) == DEFAULT_LANES:
        lead = [["model", "conv", "ops"], ["ops", "conv"], ["conv", "ops"]]
        return [lead[i % len(lead)] for i in range(workers)]
    others = [name for name in names if name != "recurrent"]
    alone = ["recurrent"] if "recurrent" in names else []
    return [[*alone, *others]] * len(alone) + [others] * (workers - len(alone))


def measure(out: Path, budget_s: float, workers: int, with_context: bool, device: str, names: Sequence[str]) -> None:
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    writer = Writer(out / "workspaces.jsonl.gz")
    if with_context:
        contexts(writer)
        writer.flush()
    about = subprocess.run([sys.executable, str(HERE), "--environment"], capture_output=True, text=True, check=False)
    writer.write(about.stdout.strip() or json.dumps({"environment": None, "failed": about.stderr[-600:]}))
    crew = Crew(writer, started + budget_s - 6, 0.92 / workers, device, names)
    threads = [threading.Thread(target=crew.serve, args=(order,)) for order in _orders(names, workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = {lane: [crew.counts[lane], crew.counts[lane] + crew.queues[lane].qsize()] for lane in crew.counts}
    summary = {
        "points": totals,
        "crashes": crew.crashes,
        "lines": writer.lines,
        "slow": crew.slow,
        "seconds": round(time.monotonic() - started, 1),
    }
    writer.write(json.dumps({"summary": summary}))
    writer.close()
    print(json.dumps(summary))
    print((out / "workspaces.jsonl.gz").stat().st_size, "bytes")


# ---- without a GPU ----------------------------------------------------------------------------------------------


def dry_run(part: str, every: int, names: Sequence[str]) -> None:
    """Builds and runs points on meta, or on the CPU where meta cannot; prints each kind of failure once."""
    from workspace_grid.points import apply_settings
    from workspace_grid.recorder import run_twice

    counts = {"meta": 0, "cpu": 0, "failed": 0}
    failures: dict[str, str] = {}
    for lane, points in lanes(names).items():
        for point in points[::every] if lane == "conv" else points:
            if part and not f"{lane}/{point.label}".startswith(part):
                continue
            apply_settings({})
            for device in ("meta", "cpu"):
                try:
                    rows, failure = run_twice(point.build(device), device)
                    json.dumps(rows)
                except Exception as error:
                    failure = f"build: {type(error).__name__}: {str(error)[:200]}"
                if failure is None:
                    counts[device] += 1
                    break
            else:
                counts["failed"] += 1
                failures.setdefault(f"{lane} {point.label}: {failure[:70]}", failure)
    print(counts)
    for name, failure in failures.items():
        print(name, "|", failure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--budget-s", type=float, default=150.0)
    parser.add_argument("--workers", type=int, default=max(1, min(10, (os.cpu_count() or 2) - 3)))
    parser.add_argument("--no-context", action="store_true", help="skip the context measurements")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--part", default="", help="with --dry-run: only points whose lane/label begins so")
    parser.add_argument("--every", type=int, default=200, help="with --dry-run: every so many convolutions")
    parser.add_argument(
        "--device", choices=("cuda", "meta"), default="cuda", help="meta tries the machinery without a GPU"
    )
    parser.add_argument("--lanes", nargs="+", choices=ALL_LANES, default=list(DEFAULT_LANES))
    parser.add_argument("--worker", type=float, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--environment", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.device, options.lanes)
    elif options.environment:
        print(json.dumps(environment()))
    elif options.dry_run:
        dry_run(options.part, options.every, options.lanes)
    else:
        context = not options.no_context
        measure(options.out, options.budget_s, options.workers, context, options.device, options.lanes)


if __name__ == "__main__":
    main()
