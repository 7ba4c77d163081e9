"""Times whole training steps of the zoo and of the truth set on a GPU, and what each operator in them takes.

    python3 tools/measure_steps.py --out DIR [--budget-s 300] [--only NAMES]

Writes DIR/steps.jsonl, a line a workload and batch size (the first line is the environment): seconds a step as training runs it
(events between steps that are queued without waiting), the host's seconds to queue one, and of one profiled step the kernels,
the seconds the GPU was busy, and seconds by operator and shapes in DIR/profiles.jsonl.gz. Each workload has a process of its
own; models are built side by side on the CPU, and one at a time has the GPU. Steps run until they are warm: the first ones
allocate, and a GradScaler leaves out optimizer steps until its scale fits. What fails says why and the rest goes on.
With
`--jobs 1 --no-profile` nothing else runs on the host while a step is timed, which steps that the host limits need. `--still`
has the same from many processes, and quicker: all others are stopped while one times its steps. It also times how fast the
host launches a small step of always the same kind, before and after each batch size (`launches_us`): hosts differ, and so does
one host from one minute to the next.
`--device cpu --tiny` is a rehearsal. Needs a POSIX system, PyTorch and the model libraries.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import gc
import gzip
import importlib
import itertools
import json
import os
import signal
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# is_available() must ask the driver's library, not CUDA: a parent that has touched CUDA cannot fork children
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from measure_zoo import ATTEMPTS, BUILT_ON_THE_GPU, recipe_of

WARM_STEPS, WARM_S = 4, 0.5
SCALED_STEPS = 12  # a scale of 65536 is halved with each step that is left out
TIMED_STEPS, TIMED_S = 12, 0.7
STILL_WARM_S, STILL_STEPS, STILL_S = 0.35, (8, 24), 0.9  # the same with --still: fewest and most steps
PROBE_S = 0.15
CHILD_S = 120  # of one workload, its wait for the GPU not counted
KERNELS_KEPT = 60
# of the truth set, timed by tools/measure_truth.py so far, which waits after each step
UNPROFILED = ("unet3d_sgd_fp32", "mobilenet_v2_benchmark_channels_last_fp16", "lstm_language_model_fp32", "stylegan")
KNOWN = Path(__file__).parent / "speed" / "data" / "h200_steps.jsonl"
BUSY, ROOM_GIB = 0.95, 45
SLOW_TO_BUILD = ("dlrm", "whisper-large-v3")
LATE = ("stylegan", "unsup-mt", "mamba2-370m")  # of long steps
# a small batch, where the host is the limit, besides those of ATTEMPTS
SMALL = {"dlrm": 256, "graphsage": 128, "transformer-big": 8, "conv-seq2seq": 8, "unsup-mt": 4, "bert-base": 4}
EXTRA = {"resnet50": (4, 32, 128, 256), "vit-base": (4, 32, 128), "gpt2": (1, 4, 16)}
# those of `whichgpu bench` that the host may limit
BENCHED = {
    "bert-base": (54,), "bert-finetune": (7, 15, 19, 28), "gpt2": (2, 6, 9), "nasnet-large": (5, 7, 9, 14, 22),
    "resnet50": (69,), "vit-base": (16, 40),
}  # fmt: skip


@dataclasses.dataclass
class Workload:
    """What one child times."""

    source: str  # "zoo" or "truth"
    name: str
    batch_sizes: list[int]
    scaled: bool  # whether it has a GradScaler
    held_out: bool = False


def workloads(only: list[str] | None) -> list[Workload]:
    """The zoo, then the truth set with those kept out of every fit first."""
    import truth

    sizes: dict[str, list[int]] = {}
    for attempt in ATTEMPTS:
        if "?" not in attempt.name:
            sizes.setdefault(attempt.name, []).append(attempt.batch_size)
    for name, batch in SMALL.items():
        sizes[name].append(batch)
    sizes |= {name: list(batches) for name, batches in EXTRA.items()}
    for name, batches in BENCHED.items():
        sizes[name] += batches
    fp16 = ("transformer-big", "swin-large", "vit-large", "sdxl-unet", "whisper-large-v3")
    found = [Workload("zoo", name, sorted(set(batches)), name in fp16) for name, batches in sizes.items()]
    late = (
        "dlrm",
        "whisper-large-v3",
        "llama3-8b",
        "llama3-8b-lora",
        "olmoe-1b-7b",
        "llava-7b-lora",
        "sdxl-unet",
        "mamba2-370m",
    )
    found.sort(key=lambda w: late.index(w.name) if w.name in late else -1)
    cases = [case for case in truth.CASES if not case.compiled]
    cases.sort(key=lambda case: not case.held_out)
    found += [
        Workload("truth", case.name, sorted(case.batch_sizes), case.precision == "fp16", case.held_out)
        for case in cases
    ]
    return [w for w in found if not only or w.name in only]


def hosts_first(plan: list[Workload]) -> list[Workload]:
    """Those that the host may limit, by what is known of them, the most so first, then those of which nothing is known; without
    sizes that the GPU decides about or that leave no room for others.
    """
    known = (json.loads(line) for line in KNOWN.read_text().splitlines())
    busy = {
        (row["name"], row["batch_size"]): row.get("busy_s", 0.0) / row["step_s"] for row in known if "step_s" in row
    }
    large = {(attempt.name, attempt.batch_size) for attempt in ATTEMPTS if attempt.gib > ROOM_GIB}
    found = []
    for workload in plan:
        shares = {size: busy.get((workload.name, size), 0.0) for size in workload.batch_sizes}
        sizes = [size for size, share in shares.items() if share < BUSY and (workload.name, size) not in large]
        if sizes and not workload.name.startswith(BUILT_ON_THE_GPU):
            least = min((share for share in shares.values() if share), default=0.0)
            rank = (workload.name in LATE, workload.name not in (*SLOW_TO_BUILD, *UNPROFILED), not least, least)
            sizes = sizes[:1] if workload.name in LATE else sizes
            found.append((rank, dataclasses.replace(workload, batch_sizes=sizes)))
    return [workload for _, workload in sorted(found, key=lambda pair: pair[0])]


@contextmanager
def turn(path: Path, device: str) -> Iterator[None]:
    """The GPU for this process alone."""
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            gc.collect()
            if device != "cpu":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            fcntl.flock(stream, fcntl.LOCK_UN)


def prepare(workload: Workload, device: str, tiny: bool) -> Callable[[], Callable[[int], Any]]:
    """Does what needs no GPU; the rest of the set-up."""
    if workload.source == "truth":
        import truth

        (case,) = truth.find([workload.name])
        setup = case.setup(tiny=tiny)
        return lambda: setup(torch.device(device))

    recipe = recipe_of(workload.name, device)
    early = not workload.name.startswith(BUILT_ON_THE_GPU) and hasattr(recipe, "prepare")
    ready = recipe.prepare() if early else recipe.setup
    return lambda: ready(torch.device(device))


@contextmanager
def still(scratch: Path, wanted: bool) -> Iterator[None]:
    """All other processes of this program stopped, by the one that started them."""
    if not wanted:
        yield
        return
    asked, stopped = scratch / "still", scratch / "stopped"
    written = scratch / f"still.{os.getpid()}"
    written.write_text(str(os.getpid()))
    written.rename(asked)
    begun = time.perf_counter()
    while not stopped.exists() and time.perf_counter() - begun < 5:
        time.sleep(0.002)
    try:
        yield
    finally:
        asked.unlink(missing_ok=True)
        while stopped.exists() and time.perf_counter() - begun < 600:
            time.sleep(0.002)


def launch_speed(device: str) -> dict[str, float]:
    """Microseconds of each phase of the small step of the host's probe, on this device by the clock on the wall."""
    from whichgpu.bench_worker.host_probe import launch_seconds

    seconds = launch_seconds(torch, device, PROBE_S, time.perf_counter, PROBE_S / 3)
    if device != "cpu":
        torch.cuda.synchronize()
    return {phase: round(1e6 * taken, 1) for phase, taken in seconds.items()}


def timed(
    step: Callable[[int], Any], batch: int, workload: Workload, device: str, quickly: bool = False
) -> dict[str, Any]:
    """Step times at one batch size: medians over steps that are queued one after the other."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    retries = _retries(device)
    begun, each_warm = time.perf_counter(), [0.0]
    least = SCALED_STEPS if workload.scaled else 1 if quickly and workload.name in LATE else WARM_STEPS
    warm_s = STILL_WARM_S if quickly else WARM_S
    while len(each_warm) <= least or (time.perf_counter() - begun < warm_s and len(each_warm) < 100):
        before = time.perf_counter()
        step(batch)
        wait()
        each_warm.append(time.perf_counter() - before)
        if time.perf_counter() - begun > 8:
            break
    warm = len(each_warm) - 1
    each = max(statistics.median(each_warm[1:]), 1e-6)  # the first steps allocate and load kernels
    if quickly:
        count = 3 if each > 1 else max(STILL_STEPS[0], min(STILL_STEPS[1], int(STILL_S / each) + 1))
    else:
        count = 30 if each < 0.04 else max(3, min(TIMED_STEPS, int(TIMED_S / each) + 1))
    wait()
    begun = time.perf_counter()
    if device == "cpu":
        marks = [time.perf_counter()]
        for _ in range(count):
            step(batch)
            marks.append(time.perf_counter())
        times = [last - first for first, last in itertools.pairwise(marks)]
        queued = []
    else:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        queued = []
        events[0].record()
        for event in events[1:]:
            before = time.perf_counter()
            step(batch)
            event.record()
            queued.append(time.perf_counter() - before)
        wait()
        times = [first.elapsed_time(last) / 1e3 for first, last in itertools.pairwise(events)]
    wall = (time.perf_counter() - begun) / count
    row: dict[str, Any] = {
        "step_s": statistics.median(times),
        "least_s": min(times),
        "most_s": max(times),
        "mean_s": statistics.fmean(times),
        "wall_s": wall,
        "steps": count,
        "warm": warm,
        "retries": _retries(device) - retries,
    }
    if queued:
        row["queued_s"], row["least_queued_s"] = statistics.median(queued), min(queued)
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
    if queued and each < 1:
        # from an idle GPU, so that no full queue holds the host up
        alone = []
        for _ in range(3):
            wait()
            before = time.perf_counter()
            step(batch)
            alone.append(time.perf_counter() - before)
            wait()
        row["host_s"] = min(alone)
        row["waits"] = waits(lambda: step(batch))
    return row


def _retries(device: str) -> int:
    """How often the allocator has had to give back what it kept, which waits for the GPU."""
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if device != "cpu" else 0


def waits(step: Callable[[], Any]) -> int:
    """How often the host waits for the GPU in a step, as PyTorch counts it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in said)


def profile(step: Callable[[int], Any], batch: int, device: str) -> Any:
    """A profiler that has seen one step."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        step(batch)
        if device != "cpu":
            torch.cuda.synchronize()
    return profiler


def read_profile(profiler: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Totals of a profiled step, and its operators and kernels."""
    kernels: dict[str, list[float]] = {}
    spans: list[tuple[float, float]] = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            spans.append((event.time_range.start, event.time_range.end))
            entry = kernels.setdefault(event.name[:120], [0, 0.0])
            entry[0] += 1
            entry[1] += event.time_range.end - event.time_range.start
    busy, end = 0.0, 0.0
    for first, last in sorted(spans):
        busy += max(last - max(first, end), 0.0)
        end = max(end, last)
    operators = [
        [e.key, e.input_shapes, e.count, round(e.self_device_time_total, 2), round(e.self_cpu_time_total, 1)]
        for e in profiler.key_averages(group_by_input_shape=True)
        if e.device_type == torch.autograd.DeviceType.CPU
        and (e.self_device_time_total > 0 or e.key.startswith("cudaLaunch"))
    ]
    kept = sorted(kernels.items(), key=lambda item: -item[1][1])[:KERNELS_KEPT]
    totals = {"kernels": len(spans), "busy_s": busy / 1e6}
    return totals, {"operators": operators, "kernels": [[name, count, round(us, 1)] for name, (count, us) in kept]}


def child(workload: Workload, arguments: argparse.Namespace, answer: Path, lock: Path) -> None:
    """Times one workload and leaves its rows in a file."""
    rows: list[dict[str, Any]] = []
    head = {"source": workload.source, "name": workload.name, "held_out": workload.held_out}
    profiles: list[tuple[dict[str, Any], Any]] = []
    sizes = [2, 3] if arguments.tiny else workload.batch_sizes

    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {CHILD_S} s on the GPU")

    signal.signal(signal.SIGALRM, late)
    try:
        torch.set_num_threads(2)
        begun = time.perf_counter()
        ready = prepare(workload, arguments.device, arguments.tiny)
        built = time.perf_counter() - begun
        if arguments.still:  # what loads libraries and kernels disturbs none, since it is stopped while others time
            begun = time.perf_counter()
            step = ready()
            setup = time.perf_counter() - begun
            step(sizes[0])
            if arguments.device != "cpu":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        with turn(lock, arguments.device):
            signal.alarm(CHILD_S)
            if not arguments.still:
                begun = time.perf_counter()
                step = ready()
                setup = time.perf_counter() - begun
            seconds = {"built_s": round(built, 1), "setup_s": round(setup, 1)}
            with still(answer.parent, arguments.still):
                speeds = [launch_speed(arguments.device)] if arguments.still else []
                for batch in sizes:
                    found = timed(step, batch, workload, arguments.device, arguments.still)
                    rows.append({**head, "batch_size": batch, **found, **seconds})
                    if arguments.still:
                        speeds.append(launch_speed(arguments.device))
                        rows[-1] |= {"quiet": True, "launches_us": speeds[-2:]}
            for row in rows:
                batch = row["batch_size"]
                if arguments.no_profile or (arguments.still and workload.name not in UNPROFILED):
                    continue
                try:
                    profiles.append((row, profile(step, batch, arguments.device)))
                except RuntimeError as error:  # times without a profile are worth having
                    row["profile_error"] = str(error)[:200]
            signal.alarm(0)
            del step, ready
        for row, profiler in profiles:
            totals, details = read_profile(profiler)
            row.update(totals, profile=details)
    except BaseException as error:
        rows.append({**head, "error": f"{type(error).__name__}: {error}"[:400], "where": traceback.format_exc()[-400:]})
    partial = answer.with_suffix(".part")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    partial.rename(answer)
    sys.stdout.flush()
    os._exit(0)


class Writer:
    """Takes rows of children as they come."""

    def __init__(self, folder: Path) -> None:
        self.rows = (folder / "steps.jsonl").open("w")
        self.profiles = gzip.open(folder / "profiles.jsonl.gz", "wt", compresslevel=6)  # noqa: SIM115
        self.failed = self.done = 0

    def take(self, answer: Path, workload: Workload, elapsed: float) -> None:
        if not answer.exists():
            self.failed += 1
            print(f"{elapsed:.0f} s: {workload.name}: ended without an answer", flush=True)
            return
        for line in answer.read_text().splitlines():
            row = json.loads(line)
            details = row.pop("profile", None)
            if details is not None:
                key = {"name": row["name"], "batch_size": row["batch_size"]}
                self.profiles.write(json.dumps({**key, **details}) + "\n")
            self.rows.write(json.dumps(row) + "\n")
            self.rows.flush()
            self.failed += "error" in row
            self.done += "error" not in row
            text = row.get("error") or f"{row['step_s'] * 1e3:.2f} ms, busy {row.get('busy_s', 0) * 1e3:.2f} ms"
            print(f"{elapsed:.0f} s: {row['name']} {row.get('batch_size', '')}: {text}", flush=True)


def stop_others(scratch: Path, pids: list[int]) -> None:
    """Stops all children but one as long as that one asks for it."""
    asked, stopped = scratch / "still", scratch / "stopped"
    if not asked.exists():
        return
    others = [pid for pid in pids if str(pid) != asked.read_text()]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)  # what they have queued on the GPU ends
    stopped.touch()
    begun = time.monotonic()
    while asked.exists() and time.monotonic() - begun < CHILD_S:
        time.sleep(0.02)
    asked.unlink(missing_ok=True)
    for pid in others:
        os.kill(pid, signal.SIGCONT)
    stopped.unlink()


def run(plan: list[Workload], arguments: argparse.Namespace, writer: Writer, begun: float) -> None:
    """Keeps `jobs` children going until the plan or the budget is done."""
    scratch = arguments.out / "scratch"
    scratch.mkdir(exist_ok=True)
    lock = scratch / "gpu.lock"
    running: dict[int, tuple[Workload, Path]] = {}
    waiting = list(enumerate(plan))
    while waiting or running:
        stop_others(scratch, list(running))
        elapsed = time.monotonic() - begun
        if elapsed > arguments.budget_s:
            waiting = []
        if elapsed > arguments.budget_s + arguments.grace_s:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        while waiting and len(running) < arguments.jobs:
            number, workload = waiting.pop(0)
            answer = scratch / f"{number}.jsonl"
            pid = os.fork()
            if pid == 0:
                log = os.open(scratch / f"{number}.log", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                child(workload, arguments, answer, lock)
            running[pid] = (workload, answer)
        pid, _ = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if pid:
            workload, answer = running.pop(pid)
            writer.take(answer, workload, time.monotonic() - begun)
        else:
            time.sleep(0.02)
    for path in scratch.iterdir():
        path.unlink()
    scratch.rmdir()


def main() -> None:
    """Reads the arguments, times, prints a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--budget-s", type=float, default=300, help="start nothing after this (default 300)")
    parser.add_argument("--grace-s", type=float, default=30, help="then end what still runs (default 30)")
    parser.add_argument("--jobs", type=int, default=6, help="processes at a time; one has the GPU (default 6)")
    parser.add_argument("--no-profile", action="store_true", help="time only")
    parser.add_argument(
        "--still", action="store_true", help="stop all other processes while one times; profile what has no profile yet"
    )
    parser.add_argument("--only", nargs="*", help="names of workloads")
    parser.add_argument("--skip", nargs="*", default=[], help="names of workloads")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="the small sizes of the truth set, batches 2 and 3")
    arguments = parser.parse_args()
    begun = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    plan = [workload for workload in workloads(arguments.only) if workload.name not in arguments.skip]
    plan = hosts_first(plan) if arguments.still else plan
    import truth

    for module in ("timm", "torchvision", "transformers", *(f"truth.{name}" for name in truth.modules())):
        try:  # so that children find it in memory
            importlib.import_module(module)
        except Exception as error:
            print(f"{module} cannot be imported: {error}", flush=True)
    writer = Writer(arguments.out)
    facts = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "arguments": sys.argv[1:]}
    processor = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    facts |= {"processor": processor[0].partition(":")[2].strip() if processor else "", "processors": os.cpu_count()}
    writer.rows.write(json.dumps({"environment": facts}) + "\n")
    run(plan, arguments, writer, begun)
    writer.rows.close()
    writer.profiles.close()
    print(f"{time.monotonic() - begun:.0f} s, {writer.done} rows, {writer.failed} failed")


if __name__ == "__main__":
    main()
