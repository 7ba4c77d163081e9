"""Measures workloads of the zoo at full size on a GPU: peak memory, every attempt in a process of its own.

    python3 tools/measure_zoo.py --out DIR [--only NAMES] [--budget-s 280]

Writes DIR/zoo.jsonl, a row an attempt: peaks allocated and reserved over five steps, and after each step, and the
environment in DIR/environment.json. Attempts share the GPU as far as their expected memory allows. Models of several
billion weights are built on the GPU instead of on the CPU and moved, which takes minutes. Needs PyTorch and the zoo's
libraries; a workload whose library is missing is reported as an error and the rest goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOM_GIB = 132
STEPS = 5
PACKAGES = ("torch", "torchvision", "timm", "transformers", "peft", "diffusers", "scipy", "nvidia-cudnn-cu13")


class Attempt(NamedTuple):
    name: str
    batch_size: int
    gib: int  # of the GPU, more than is expected


ATTEMPTS = (
    Attempt("llama3-8b", 1, 76),
    Attempt("vit-large", 32, 20),
    Attempt("graphsage", 1024, 20),
    Attempt("llama3-8b-lora", 2, 36),
    Attempt("swin-large", 32, 26),
    Attempt("dit-xl", 32, 40),
    Attempt("convnext-large", 32, 40),
    Attempt("dlrm", 2048, 36),
    Attempt("segformer-b5", 1, 20),
    Attempt("whisper-large-v3", 4, 45),
    Attempt("rt-detr", 4, 15),
    Attempt("olmo2-1b", 2, 70),
    Attempt("mamba2-370m", 2, 40),
    Attempt("sdxl-unet", 1, 60),
    Attempt("llava-7b-lora", 2, 50),
    Attempt("olmoe-1b-7b", 1, 95),
    Attempt("vit-large", 128, 60),
    Attempt("swin-large", 64, 45),
    Attempt("convnext-large", 64, 60),
    Attempt("dit-xl", 64, 70),
    Attempt("segformer-b5", 4, 60),
    Attempt("whisper-large-v3", 16, 70),
    Attempt("rt-detr", 16, 45),
    Attempt("graphsage", 4096, 60),
    Attempt("dlrm", 32768, 50),
    Attempt("llama3-8b-lora", 8, 70),
    Attempt("olmo2-1b", 4, 110),
    Attempt("sdxl-unet", 4, 80),
    Attempt("mamba2-370m", 4, 70),
    Attempt("llava-7b-lora", 8, 90),
    Attempt("llama3-8b", 4, 90),
)
BUILT_ON_THE_GPU = ("llama3", "llava", "olmoe", "olmo2", "sdxl")


def measure(name: str, batch_size: int, device: str) -> dict[str, Any]:
    """Peaks of one workload in this process."""
    import torch

    from whichgpu.workload import load, parse

    recipe = load(parse(name)).setup.__self__  # type: ignore[attr-defined]
    on_gpu = name.startswith(BUILT_ON_THE_GPU)
    if on_gpu:
        make_model = recipe.make_model

        def build() -> Any:
            with torch.device(device):
                return make_model()

        recipe = dataclasses.replace(recipe, make_model=build)
    started = time.perf_counter()
    step = recipe.setup(torch.device(device))
    row: dict[str, Any] = {"built_on_gpu": on_gpu, "setup_s": round(time.perf_counter() - started, 1), "after": []}
    for _ in range(STEPS):
        started = time.perf_counter()
        step(batch_size)
        if device != "cpu":
            torch.cuda.synchronize()
            row["after"].append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        row["step_s"] = round(time.perf_counter() - started, 4)
    if row["after"]:
        row["peak_allocated_bytes"], row["peak_reserved_bytes"] = row["after"][-1]
        row["retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
    return row


def child(name: str, batch_size: int, device: str) -> None:
    """One attempt: a line of JSON, also where it failed."""
    try:
        row = {"kind": "ok", **measure(name, batch_size, device)}
    except BaseException as error:  # whatever went wrong is the result
        text = " ".join(f"{type(error).__name__}: {error}".split())
        row = {"kind": "oom" if "out of memory" in text else "error", "detail": text[:400]}
    print("ROW " + json.dumps({"name": name, "batch_size": batch_size, **row}), flush=True)
    os._exit(0)


def environment() -> dict[str, Any]:
    """What the measurements were made with."""
    import torch

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    card = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "gpu": card and card.name,
        "total_bytes": card and card.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "packages": {package: version(package) for package in PACKAGES},
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> None:
    """Start attempts as long as there is room and time; write each row as it comes."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of workloads")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--budget-s", type=float, default=280, help="start nothing after this, end all 60 s later")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "environment.json").write_text(json.dumps(environment(), indent=1) + "\n")
    begun = time.monotonic()
    waiting = [a for a in ATTEMPTS if not arguments.only or a.name.partition("?")[0] in arguments.only]
    running: dict[Attempt, subprocess.Popen[str]] = {}
    while waiting or running:
        late = time.monotonic() - begun - arguments.budget_s
        if late > 0:
            waiting = []
        for attempt in list(waiting):
            room = ROOM_GIB - sum(other.gib for other in running)
            if len(running) < arguments.jobs and attempt.gib <= room:
                waiting.remove(attempt)
                command = [sys.executable, __file__, "--child", attempt.name, str(attempt.batch_size), arguments.device]
                log = arguments.out / f"{attempt.name.partition('?')[0]}-{attempt.batch_size}.err"
                running[attempt] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("w"), text=True)
        for attempt, process in list(running.items()):
            if late > 60 and process.poll() is None:
                process.kill()
            if process.poll() is not None:
                del running[attempt]
                _take(attempt, process, arguments.out, time.monotonic() - begun)
        time.sleep(0.05)


def _take(attempt: Attempt, process: subprocess.Popen[str], folder: Path, elapsed: float) -> None:
    assert process.stdout is not None
    found = [line[4:] for line in process.stdout.read().splitlines() if line.startswith("ROW ")]
    failed = {"name": attempt.name, "batch_size": attempt.batch_size, "kind": "died", "detail": process.returncode}
    row = json.loads(found[-1]) if found else failed
    with (folder / "zoo.jsonl").open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    peaks = [row.get("peak_allocated_bytes"), row.get("peak_reserved_bytes")]
    shown = " ".join(f"{peak / 2**30:.2f}" for peak in peaks if peak is not None)
    print(f"{elapsed:6.1f} {row['kind']} {row['name']} {row['batch_size']} {shown} {row.get('detail', '')}", flush=True)


if __name__ == "__main__":
    main()
