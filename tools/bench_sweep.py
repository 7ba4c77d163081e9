"""Run `whichgpu bench` for many workloads under many memory limits, the most telling first, within a given time.

    python tools/bench_sweep.py --results results.sqlite --log sweep.jsonl --seconds 360 [--time-budget S] [WORKLOAD ...]

Without names: the zoo's models of 2020 and those that were its first. First come the limits of most cards of 2020 and of
48 GiB, for workloads that have been measured before, then a few limits for the others, then all the rest; each round is
one call of `whichgpu bench` a workload. What the file of results has answered and timed already, on whatever
card, is left out; a call that the end of the time cuts off has every attempt on record that had ended. The log gets each
call's report as a line of JSON. `--warm GPU` first traces all workloads at once, for machines with cores to spare.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whichgpu import results, workload
from whichgpu.results import Measurement, Store
from whichgpu.zoo import ENTRIES

GIB = 1 << 30
MOST_S = 180.0  # for one call: a workload that takes its time must not take that of all others
LIMITS_GIB = (8, 11, 24, 48, 6, 16, 12, 80, 32, 40)
FIRST = ("bert-base", "bert-finetune", "nasnet-large", "resnet50", "gpt2", "vit-base")


def rounds(names: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Workloads with limits in GiB, the most telling first."""
    known = [name for name in FIRST if name in names]
    others = [name for name in names if name not in known]
    return [
        *((name, LIMITS_GIB[:5]) for name in known),
        *((name, LIMITS_GIB[1:4]) for name in others),
        *((name, LIMITS_GIB) for name in (*known, *others)),
    ]


def usual() -> list[str]:
    return [name for name, entry in ENTRIES.items() if name in FIRST or "2020" in entry.sets]


def is_answered(found: Sequence[Measurement], limit_bytes: int) -> bool:
    """Whether the largest batch under a limit is proved and timed."""
    here = [one for one in found if one.memory_limit_bytes == limit_bytes]
    too_large = {one.batch_size for one in here if one.outcome == "out_of_memory"}
    fit = {one.batch_size for one in here if one.outcome == "ok"} - too_large
    if not fit:
        return 1 in too_large
    timed = {one.batch_size for one in here if one.step_s is not None}
    return max(fit) in timed and max(fit) + 1 in too_large


def open_limits(file: Path, name: str, limits_bytes: Sequence[int]) -> list[int]:
    """The limits that the file has no answer for yet."""
    if not file.exists():
        return list(limits_bytes)
    with Store(file, read_only=True) as store:
        found = store.find(workloads=[workload.parse(name).text], origin=results.LOCAL)
    return [limit for limit in limits_bytes if not is_answered(found, limit)]


def warm(names: Sequence[str], gpu: str) -> list[subprocess.Popen[bytes]]:
    """Trace all workloads for a card at once; bench then finds the traces in the cache."""
    command = [sys.executable, "-m", "whichgpu", "fit"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return [subprocess.Popen([*command, name, "--gpu", gpu], **quiet) for name in names]


def run(name: str, limits: Sequence[int], options: argparse.Namespace, left_s: float) -> str:
    """One call of bench, ended when the time is over; says how it went."""
    command = [sys.executable, "-m", "whichgpu", "bench", name, "--speeds", "1", "--json"]
    command += ["--time-budget", str(options.time_budget), "--results", str(options.results)]
    command += [word for limit in limits for word in ("--memory-limit", str(limit))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=min(left_s, MOST_S))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.communicate()
        return "cut off; what was measured is on record"
    try:
        report = json.loads(out)
    except ValueError:
        return f"failed: {err.strip()[-300:]}"
    with options.log.open("a", encoding="utf-8") as log:
        log.write(json.dumps(report) + "\n")
    return ", ".join(told(row) for row in report["rows"])


def told(row: dict[str, Any]) -> str:
    """A row of a report in a few words."""
    limit = f"{row['memory_limit_bytes'] / GIB:g} GiB"
    if row["outcome"] not in ("ok", "out_of_memory"):
        return f"{limit} {row['outcome']}: {row['message']}"
    proved = "" if row["exact"] else "?"
    foretold = row["predicted_max_batch_size"]
    return f"{limit} {row['max_batch_size']}{proved} ({foretold} foretold, {row['attempts']} tries, {row['seconds']:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=usual(), metavar="WORKLOAD")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--time-budget", type=float, default=4.0)
    parser.add_argument("--warm", metavar="GPU", help="trace for this card first")
    parser.add_argument("--only-warm", action="store_true", help="and do nothing else")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    if options.warm:
        print(f"traced, exit codes {[one.wait() for one in warm(options.names, options.warm)]}", flush=True)
    for name, limits_gib in [] if options.only_warm else rounds(options.names):
        limits = open_limits(options.results, name, [gib * GIB for gib in limits_gib])
        left_s = deadline - time.monotonic()
        if limits and left_s > 15:  # less than a call needs to begin
            print(f"{name}: {run(name, limits, options, left_s)}", flush=True)
    print(f"done with {max(deadline - time.monotonic(), 0.0):.0f} s to spare", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
