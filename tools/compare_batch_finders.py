"""Compares `whichgpu bench` with other batch finders on a real GPU: answer, attempts, seconds.

    python tools/compare_batch_finders.py --out comparison.json [--only WORKLOAD ...] [--finders NAME ...]

Every finder runs in a fresh Python, on the same training step under the same limit of PyTorch's allocator, with its own
defaults where it has them. `search_s` is the search alone; `process_s` is everything, imports included (for whichgpu:
tracing too, with an empty cache). An attempt is one batch size that a finder tries. Needs lightning, accelerate and
batch-probe besides whichgpu. The file is written after each run, so that a kill loses nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

GIB = 1 << 30
# Workload and limit: the cards of 2020 with 11, 8, 24, 12 and 16 GiB
CASES = {
    "resnet50?optimizer=adamw": 11 * GIB,
    "bert-base": 8 * GIB,
    "gpt2": 24 * GIB,
    "vit-base": 12 * GIB,
    "nasnet-large": 16 * GIB,
}
ACCELERATE_START = 1024  # it only goes down: any start below the answer is returned as it is
PROBE_HIGH = 4096
TIMEOUT_S = 150


def lightning_module(step: Callable[[int], Any]) -> Any:
    """The step as a LightningModule whose batch size is tuned."""
    import lightning
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, _: int) -> int:
            return 0

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.automatic_optimization = False
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, _: int) -> None:
            step(len(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.unused], lr=0.0)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Rows(), batch_size=self.batch_size)

    return Module()


def find_with_lightning(step: Callable[[int], Any], mode: str) -> int:
    import lightning
    from lightning.pytorch.tuner import Tuner

    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=1,
    )
    return Tuner(trainer).scale_batch_size(lightning_module(step), mode=mode) or 0


def find_with_accelerate(step: Callable[[int], Any]) -> int:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=ACCELERATE_START)
    def train(batch_size: int) -> int:
        for _ in range(3):
            step(batch_size)
        return batch_size

    return train()


def find_with_batch_probe(step: Callable[[int], Any]) -> int:
    from batch_probe import probe

    def work(batch_size: int) -> None:
        for _ in range(3):
            step(batch_size)

    return probe(work, low=1, high=PROBE_HIGH, headroom=0.0, verbose=False)


PEERS: dict[str, tuple[str, Callable[[Callable[[int], Any]], int]]] = {
    "lightning power": ("lightning", lambda step: find_with_lightning(step, "power")),
    "lightning binsearch": ("lightning", lambda step: find_with_lightning(step, "binsearch")),
    "accelerate": ("accelerate", find_with_accelerate),
    "batch-probe": ("batch-probe", find_with_batch_probe),
}


def run_peer(finder: str, name: str, limit_bytes: int) -> dict[str, Any]:
    """In a fresh Python: one finder on one workload."""
    import torch

    from whichgpu import workload
    from whichgpu.bench_worker.card import exact_fraction

    loaded = workload.load(workload.parse(name))
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(exact_fraction(limit_bytes, total))
    step = loaded.setup(torch.device("cuda", 0))
    tried: list[int] = []

    def counted(batch_size: int) -> None:
        if not tried or tried[-1] != batch_size:
            tried.append(batch_size)
        step(batch_size)
        torch.cuda.synchronize()

    started = time.monotonic()
    package, find = PEERS[finder]
    answer = find(counted)
    return {
        "answer": answer,
        "attempts": len(tried),
        "tried": tried,
        "search_s": round(time.monotonic() - started, 2),
        "version": metadata.version(package),
    }


def run_whichgpu(name: str, limit_bytes: int) -> dict[str, Any]:
    """`whichgpu bench` as a user would run it, with nothing cached or on record."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--time-budget", "0", "--results", f"{folder}/results.sqlite", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "whichgpu", "bench", name, "--memory-limit", str(limit_bytes), *options],
            env={**os.environ, "WHICHGPU_CACHE": folder},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    try:
        row = json.loads(done.stdout)["rows"][0]
    except ValueError:
        return {"error": done.stderr[-600:]}
    keys = ("attempts", "predicted_max_batch_size", "exact", "outcome", "message", "search_s", "seconds")
    return {"answer": row["max_batch_size"], **{key: row[key] for key in keys}}


def run_one(finder: str, name: str, limit_bytes: int) -> dict[str, Any]:
    """One finder on one workload, timed from outside."""
    started = time.monotonic()
    if finder == "whichgpu":
        found = run_whichgpu(name, limit_bytes)
    else:
        command = [sys.executable, __file__, "--one", finder, name, str(limit_bytes)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            found = {"error": done.stderr[-600:]}
            with contextlib.suppress(ValueError, IndexError):
                found = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            found = {"error": f"not done within {TIMEOUT_S} s"}
    return {
        "finder": finder,
        "workload": name,
        "memory_limit_bytes": limit_bytes,
        **found,
        "process_s": round(time.monotonic() - started, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--finders", nargs="*", default=["whichgpu", *PEERS])
    parser.add_argument("--one", nargs=3, metavar=("FINDER", "WORKLOAD", "BYTES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        finder, name, limit_bytes = arguments.one
        print(json.dumps(run_peer(finder, name, int(limit_bytes))))
        return
    if arguments.out is None:
        parser.error("--out is needed")
    rows = []
    for name in arguments.only:
        for finder in arguments.finders:
            row = run_one(finder, name, CASES[name])
            rows.append(row)
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            told = row.get("error") or f"{row['answer']} after {row['attempts']} attempts, {row['search_s']} s"
            print(f"{name:28} {finder:20} {told}; {row['process_s']} s in all", flush=True)


if __name__ == "__main__":
    main()
