"""Compares `whichgpu bench` with other batch finders on a real GPU: answer, attempts, seconds.

    python tools/compare_batch_finders.py --out comparison.json [--only WORKLOAD ...] [--finders NAME ...] [--seconds S]

Every finder runs in a fresh Python, on the same training step under the same limit of PyTorch's allocator, with its own
defaults where it has them. `search_s` is the search alone; `total_s` is everything, imports and building the model
included (for whichgpu: tracing too, with an empty cache). An attempt is one batch size that a finder tries. While one
finder searches, the next one's Python imports its libraries, without touching the GPU.

Needs lightning, accelerate and batch-probe besides whichgpu. The file is written after each run, and what stands in it
without an error is not run again: after a kill, or when `--seconds` are over, the same command carries on.
`python tools/compare_batch_finders.py --table comparison.json` prints the Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from whichgpu.worker_side import Lines

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
STEPS = 3  # of each attempt: Lightning's own number, and whichgpu's
TIMEOUT_S = 90.0  # for a search
LOAD_TIMEOUT_S = 120.0


# ---- the finders ------------------------------------------------------------------------------------------


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
            self.optimizers().step()  # Lightning counts its own optimizers' steps, and would never stop without one

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.unused], lr=0.0)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Rows(), batch_size=self.batch_size)

    return Module()


def find_with_lightning(step: Callable[[int], Any], mode: str, accelerator: str = "gpu") -> int:
    import lightning
    from lightning.pytorch.tuner import Tuner

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator=accelerator,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            max_epochs=1,
            default_root_dir=folder,
        )
        return Tuner(trainer).scale_batch_size(lightning_module(step), mode=mode, steps_per_trial=STEPS) or 0


def find_with_accelerate(step: Callable[[int], Any]) -> int:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=ACCELERATE_START)
    def train(batch_size: int) -> int:
        for _ in range(STEPS):
            step(batch_size)
        return batch_size

    return train()


def find_with_batch_probe(step: Callable[[int], Any]) -> int:
    from batch_probe import probe

    def work(batch_size: int) -> None:
        for _ in range(STEPS):
            step(batch_size)

    return probe(work, low=1, high=PROBE_HIGH, headroom=0.0, backend="torch", verbose=False)


# Name -> distribution, what to import before the clock starts, and the search.
PEERS: dict[str, tuple[str, str, Callable[[Callable[[int], Any]], int]]] = {
    "lightning power": ("lightning", "lightning.pytorch.tuner", lambda step: find_with_lightning(step, "power")),
    "lightning binsearch": (
        "lightning",
        "lightning.pytorch.tuner",
        lambda step: find_with_lightning(step, "binsearch"),
    ),
    "accelerate": ("accelerate", "accelerate.utils", find_with_accelerate),
    "batch-probe": ("batch-probe", "batch_probe", find_with_batch_probe),
}
FINDERS = ("whichgpu", *PEERS)


# ---- one peer, in a Python of its own ---------------------------------------------------------------------


def serve_peer(finder: str, name: str, limit_bytes: int) -> None:
    """Import everything, say so, wait for the word, search, and print how it went."""
    started = time.monotonic()
    import importlib

    import torch
    import torch._dynamo

    from whichgpu import workload
    from whichgpu.bench_worker.card import exact_fraction

    package, module, find = PEERS[finder]
    importlib.import_module(module)
    loaded = workload.load(workload.parse(name))
    loading_s = time.monotonic() - started
    print(json.dumps({"ready": True}), flush=True)
    if not sys.stdin.readline():
        return
    told = time.monotonic()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(exact_fraction(limit_bytes, total))
    step = loaded.setup(torch.device("cuda", 0))
    tried: list[int] = []

    def counted(batch_size: int) -> None:
        if not tried or tried[-1] != batch_size:
            tried.append(batch_size)
        step(batch_size)
        torch.cuda.synchronize()

    searching = time.monotonic()
    answer = find(counted)
    ended = time.monotonic()
    found = {
        "answer": answer,
        "attempts": len(tried),
        "tried": tried,
        "search_s": round(ended - searching, 2),
        "total_s": round(loading_s + ended - told, 2),
        "version": metadata.version(package),
    }
    print(json.dumps(found), flush=True)


@dataclass
class Peer:
    """A peer's process, as its starter sees it."""

    process: subprocess.Popen[bytes]
    answers: Lines
    log: IO[bytes]

    @classmethod
    def start(cls, finder: str, name: str, limit_bytes: int) -> Peer:
        log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        command = [sys.executable, __file__, "--one", finder, name, str(limit_bytes)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        return cls(process, Lines(process.stdout.fileno()), log)

    def search(self) -> dict[str, Any]:
        """Give it the word and wait for its answer."""
        if not self._said("ready", LOAD_TIMEOUT_S):
            return {"error": self._error(LOAD_TIMEOUT_S)}
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        found = self._said("answer", TIMEOUT_S)
        if not found:
            return {"error": self._error(TIMEOUT_S)}
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()

    def _said(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The next line with a key; empty when none comes."""
        deadline = time.monotonic() + timeout_s
        while True:
            while not self.answers.pending():
                ready = select.select([self.answers.fd], [], [], max(deadline - time.monotonic(), 0.0))[0]
                if not ready or not self.answers.fill():
                    return {}
            with contextlib.suppress(ValueError):
                said = json.loads(self.answers.next() or "")
                if isinstance(said, dict) and key in said:
                    return said

    def _error(self, timeout_s: float) -> str:
        if self.process.poll() is None:
            return f"not done within {timeout_s:g} s"
        self.log.seek(0)
        return last_line(self.log.read().decode(errors="replace"))


# ---- whichgpu ---------------------------------------------------------------------------------------------


def run_whichgpu(name: str, limit_bytes: int) -> dict[str, Any]:
    """`whichgpu bench` as a user would run it, with nothing cached or on record."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--time-budget", "0", "--results", f"{folder}/results.sqlite", "--json"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "whichgpu", "bench", name, "--memory-limit", str(limit_bytes), *options],
                env={**os.environ, "WHICHGPU_CACHE": folder},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S + LOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done within {TIMEOUT_S + LOAD_TIMEOUT_S:g} s"}
    try:
        report = json.loads(done.stdout)
        row = report["rows"][0]
    except (ValueError, LookupError):
        return {"error": last_line(done.stderr)}
    if row["max_batch_size"] is None:
        return {"error": f"{row['outcome']}: {row['message']}"}
    keys = ("attempts", "predicted_max_batch_size", "exact")
    return {
        "answer": row["max_batch_size"],
        **{key: row[key] for key in keys},
        "search_s": round(row["search_s"], 2),
        "total_s": round(time.monotonic() - started, 2),
        "version": "from source",
    }


def last_line(words: str) -> str:
    return next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "it said nothing")[:300]


# ---- all of them ------------------------------------------------------------------------------------------


class Record:
    """The file of runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: list[dict[str, Any]] = []
        self.environment: dict[str, Any] = {}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.runs = kept["runs"]
            self.environment = kept["environment"]

    def answered(self, finder: str, name: str) -> bool:
        return any((finder, name) == (run["finder"], run["workload"]) and "error" not in run for run in self.runs)

    def add(self, run: dict[str, Any]) -> None:
        pair = (run["finder"], run["workload"])
        self.runs = [kept for kept in self.runs if pair != (kept["finder"], kept["workload"])] + [run]
        whole = {"environment": self.environment, "steps_per_attempt": STEPS, "runs": self.runs}
        self.path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def describe_environment() -> dict[str, Any]:
    """The card and the software."""
    code = """
import json, torch
card = torch.cuda.get_device_properties(0)
print(json.dumps({"gpu": card.name, "torch": torch.__version__, "cuda": torch.version.cuda,
                  "cudnn": torch.backends.cudnn.version()}))
"""
    found = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    for package in ("timm", "transformers", "lightning", "accelerate", "batch-probe"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return {**found, "measured": datetime.datetime.now(datetime.UTC).date().isoformat()}


def compare(record: Record, jobs: Sequence[tuple[str, str]], deadline: float) -> None:
    """Run what is not in the record yet, one search at a time; the next peer imports meanwhile."""
    ahead: tuple[int, Peer] | None = None
    try:
        for number, (finder, name) in enumerate(jobs):
            if time.monotonic() > deadline:
                print("the time is over; the same command carries on", flush=True)
                return
            mine = ahead[1] if ahead is not None and ahead[0] == number else None
            if mine is None and finder != "whichgpu":
                mine = Peer.start(finder, name, CASES[name])
            later = next((n for n in range(number + 1, len(jobs)) if jobs[n][0] != "whichgpu"), None)
            if later is not None and (ahead is None or ahead[0] != later):
                ahead = (later, Peer.start(*jobs[later], CASES[jobs[later][1]]))
            if mine is None:
                found = run_whichgpu(name, CASES[name])
            else:
                try:
                    found = mine.search()
                finally:
                    mine.end()
            run = {"finder": finder, "workload": name, "memory_limit_bytes": CASES[name], **found}
            record.add(run)
            print(f"{name:26} {finder:20} {in_words(run)}", flush=True)
    finally:
        if ahead is not None and ahead[1].process.poll() is None:
            ahead[1].end()


def in_words(run: dict[str, Any]) -> str:
    if "error" in run:
        return f"no answer: {run['error']}"
    return f"{run['answer']} after {run['attempts']} attempts, {run['search_s']} s; {run['total_s']} s in all"


def cell(run: dict[str, Any] | None) -> str:
    if run is None:
        return "-"
    if "error" in run:
        return "no answer"
    return f"{run['answer']:,} in {run['attempts']}, {run['search_s']:.1f} s"


def table(path: Path) -> str:
    """The runs as a Markdown table: the answer, attempts and seconds of each finder."""
    record = Record(path)
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for run in record.runs:
        by_name.setdefault(run["workload"], {})[run["finder"]] = run
    finders = [finder for finder in FINDERS if any(finder in runs for runs in by_name.values())]
    lines = [
        f"| workload | limit | {' | '.join(finders)} |",
        f"|---|---:|{'---:|' * len(finders)}",
    ]
    for name, runs in by_name.items():
        limit = next(iter(runs.values()))["memory_limit_bytes"] // GIB
        cells = []
        for finder in finders:
            cells.append(cell(runs.get(finder)))
        lines.append(f"| `{name}` | {limit} GiB | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(CASES), metavar="WORKLOAD")
    parser.add_argument("--finders", nargs="*", default=list(FINDERS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after so many")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("--one", nargs=3, metavar=("FINDER", "WORKLOAD", "BYTES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        finder, name, limit_bytes = arguments.one
        serve_peer(finder, name, int(limit_bytes))
        return
    if arguments.table is not None:
        print(table(arguments.table), end="")
        return
    if arguments.out is None:
        parser.error("--out is needed")
    deadline = time.monotonic() + arguments.seconds
    record = Record(arguments.out)
    record.environment = describe_environment()
    jobs = [
        (finder, name) for name in arguments.only for finder in arguments.finders if not record.answered(finder, name)
    ]
    compare(record, jobs, deadline)


if __name__ == "__main__":
    main()
