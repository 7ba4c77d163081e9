"""Measures workloads of the zoo at full size on a GPU: peak memory, every attempt in a process of its own.

    python3 tools/measure_zoo.py --out DIR [--only NAMES] [--budget-s 480]

Writes DIR/zoo.jsonl, a row an attempt: peaks allocated and reserved over five steps, and after each step, and the
environment in DIR/environment.json. Attempts share the GPU as far as their expected memory allows; they are scheduled, ended
and recorded by tools/measure_truth.py. Models of several billion weights are built on the GPU instead of on the CPU and moved,
which takes minutes. Needs PyTorch and the zoo's libraries; a workload whose library is missing is reported as an error and the
rest goes on. `--attempt NAME=BATCH` measures that instead, as in `--attempt 'graphsage?nodes=1000=8' --device cpu`, a rehearsal.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import measure_truth
from measure_truth import Children, Job, Output, Session

STEPS = 5
DEFAULT_GIB = 16


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
    Attempt("deeplabv3", 4, 14),
    Attempt("yolo-v3", 4, 12),
    Attempt("pix2pix-hd", 1, 30),
    Attempt("stylegan", 4, 18),
    Attempt("mask-rcnn", 2, 14),
    Attempt("transformer-big", 64, 12),
    Attempt("conv-seq2seq", 64, 12),
    Attempt("unsup-mt", 32, 14),
    Attempt("mt-dnn", 4, 16),
    Attempt("nasnet-large", 8, 20),
    Attempt("bert-base", 32, 10),
    Attempt("bert-finetune", 12, 14),
    Attempt("deeplabv3", 12, 34),
    Attempt("yolo-v3", 24, 32),
    Attempt("pix2pix-hd", 2, 50),
    Attempt("stylegan", 10, 36),
    Attempt("mask-rcnn", 8, 36),
    Attempt("transformer-big", 256, 22),
    Attempt("conv-seq2seq", 256, 22),
    Attempt("unsup-mt", 256, 30),
    Attempt("mt-dnn", 16, 30),
    Attempt("nasnet-large", 24, 40),
    Attempt("bert-base", 128, 24),
    Attempt("bert-finetune", 48, 34),
    Attempt("transformer-big?attention=eager&seq=128", 64, 40),
    Attempt("unsup-mt?attention=eager&seq=128", 32, 40),
    Attempt("mt-dnn?attention=eager", 4, 30),
    Attempt("deeplabv3", 1, 10),
)
BUILT_ON_THE_GPU = ("llama3", "llava", "olmoe", "olmo2", "sdxl")


def recipe_of(name: str, device: str) -> Any:
    """The recipe of a zoo workload; models of several billion weights are built on the device, as the CPU takes minutes."""
    import torch

    from whichgpu.workload import load, parse

    recipe = load(parse(name)).setup.__self__  # type: ignore[attr-defined]
    if not name.startswith(BUILT_ON_THE_GPU):
        return recipe
    make_model = recipe.make_model

    def build() -> Any:
        with torch.device(device):
            return make_model()

    return dataclasses.replace(recipe, make_model=build)


def measure(name: str, batch_size: int, device: str) -> dict[str, Any]:
    """Peaks of one workload in this process."""
    import torch

    recipe, on_gpu = recipe_of(name, device), name.startswith(BUILT_ON_THE_GPU)
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


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    attempts = [a for a in ATTEMPTS if not arguments.only or a.name.partition("?")[0] in arguments.only]
    if arguments.attempt:
        pairs = [given.rpartition("=") for given in arguments.attempt]
        attempts = [Attempt(name, int(size), DEFAULT_GIB) for name, _, size in pairs]
    return [
        Job("zoo", a.name, a.batch_size, device=arguments.device, timeout_s=arguments.timeout_s, room_gib=a.gib)
        for a in attempts
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of workloads")
    parser.add_argument("--attempt", nargs="*", metavar="NAME=BATCH", help="measure this instead")
    measure_truth.add_session_options(parser, jobs=6, budget_s=480, grace_s=60, timeout_s=240)
    return parser


def main() -> None:
    """Measure what is asked for as long as there is room and time."""
    begun = time.monotonic()
    arguments = _parser().parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        _, fork = measure_truth.look_at_gpu(arguments, Path(temporary))
        children = Children(arguments.jobs, Path(temporary), fork)
        session = Session(arguments, children, Output(arguments.out), begun)
        session.run([(job, None) for job in _jobs(arguments)], {}, None)
    print(f"{session.elapsed():.0f} s, {session.tally}")


if __name__ == "__main__":
    main()
