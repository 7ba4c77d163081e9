"""Traces every step of the truth set, so that predictions can be compared with the measurements without PyTorch.

    python tools/trace_truth.py --out DIR [--only NAMES] [--jobs 2]

Writes DIR/NAME-BATCH.trace at the three batch sizes that the product itself traces, at a fourth one where sizes may grow
with its square, and at the measured ones where they follow no rule. A case whose traces are there already is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch

import truth
from whichgpu import trace
from whichgpu.capture.run import capture
from whichgpu.capture.target import Target
from whichgpu.errors import DataDependentError, WhichGpuError
from whichgpu.scaling import scaling
from whichgpu.tracers import FAKE_BATCH_SIZES, REAL_BATCH_SIZES

TARGET = Target.parse("9.0")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for library in ("transformers", "timm", "torchvision", "peft"):
        __import__(library)
    cases = truth.find(arguments.only) if arguments.only else truth.CASES
    waiting = [case for case in cases if not (arguments.out / f"{case.name}.done").exists()]
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            case = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(_one(case, arguments.out))
            running[pid] = (case.name, time.monotonic())
        pid, status = os.wait()
        name, started = running.pop(pid)
        print(f"{time.monotonic() - started:6.1f} s  {name}  {'' if status == 0 else f'FAILED ({status})'}", flush=True)


def _one(case: truth.Case, out: Path) -> int:
    try:
        try:
            # the three batch sizes, and further ones where sizes do not follow a straight line
            _trace(case, "fake", FAKE_BATCH_SIZES, out)
        except DataDependentError as error:
            print(f"{case.name}: {error}", flush=True)
            torch.set_num_threads(1)
            _trace(case, "real-cpu", REAL_BATCH_SIZES, out)
    except WhichGpuError as error:
        print(f"{case.name}: {error}", flush=True)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    (out / f"{case.name}.done").touch()
    return 0


def _trace(case: truth.Case, kind: str, batch_sizes: tuple[int, int, int], out: Path) -> None:
    found = scaling(lambda batch_size: _save(case, batch_size, kind, out), batch_sizes)
    if not found.affine:  # the product traces the batch size that it is asked about
        for batch_size in set(case.batch_sizes) - set(batch_sizes):
            _save(case, batch_size, kind, out)


def _save(case: truth.Case, batch_size: int, kind: str, out: Path) -> trace.Trace:
    made = capture(case.name, case.setup(), batch_size, TARGET, kind=kind)
    trace.save(made, out / f"{case.name}-{batch_size}.trace")
    return made


if __name__ == "__main__":
    main()
