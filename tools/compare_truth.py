"""Predicted against measured memory over the truth set, from traces made by tools/trace_truth.py; needs no PyTorch.

python tools/compare_truth.py --traces DIR [--only NAMES] [--max-batch]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

import truth
from whichgpu import trace
from whichgpu.errors import TraceError
from whichgpu.memory import MemoryModel
from whichgpu.scaling import Scaling, scaling
from whichgpu.tracers import FAKE_BATCH_SIZES, REAL_BATCH_SIZES

DATA = Path(__file__).parent / "truth" / "data"


def load_scaling(name: str, folder: Path) -> Scaling | None:
    """The traces of a case as a function of the batch size; None when it was not traced."""
    sizes = {int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{name}-*.trace")}
    for order in (FAKE_BATCH_SIZES, REAL_BATCH_SIZES):
        if sizes.issuperset(order):
            try:
                return scaling(lambda n: trace.load(folder / f"{name}-{n}.trace"), order)
            except TraceError:  # a further batch size would be needed, which was not traced
                return None
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--max-batch", action="store_true")
    arguments = parser.parse_args()
    measured = {}
    for line in (DATA / "measured.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind_of"] == "measure" and row["kind"] == "ok":
            measured[row["name"], row["batch_size"]] = row
    largest = {row["name"]: row for row in map(json.loads, (DATA / "max_batch.jsonl").read_text().splitlines())}
    errors: list[tuple[float, float, bool]] = []
    for case in truth.CASES:
        if case.compiled or (arguments.only and case.name not in arguments.only):
            continue
        scaled = load_scaling(case.name, arguments.traces)
        held = "H" if case.held_out else " "
        if scaled is None:
            print(f"{case.name:44}{held} not traced")
            continue
        if not scaled.affine:
            print(f"{case.name:44}{held} {scaled.example.kind} not affine: {scaled.reason}")
            continue
        model = MemoryModel(scaled.at, (9, 0))
        for batch_size in case.batch_sizes:
            truth_row = measured[case.name, batch_size]
            result = model.replay(batch_size)
            allocated = result.peak_allocated_bytes / truth_row["peak_allocated_bytes"] - 1
            reserved = result.peak_reserved_bytes / truth_row["peak_reserved_bytes"] - 1
            errors.append((allocated, reserved, case.held_out))
            flag = " <<<" if abs(allocated) > 0.01 or abs(reserved) > 0.03 else ""
            print(
                f"{case.name:44}{held}{batch_size:6}  allocated {allocated:+7.2%}  reserved {reserved:+7.2%}"
                f"  of {truth_row['peak_reserved_bytes'] / 2**30:6.2f} GiB{flag}"
            )
        if arguments.max_batch and case.name in largest:
            row = largest[case.name]
            found = model.largest_batch(row["limit_bytes"])
            print(f"{'':46}largest batch under {row['limit_bytes'] >> 30} GiB: {found}, truly {row['max_batch_size']}")
    for label, rows in (
        ("all", errors),
        ("tuned", [e for e in errors if not e[2]]),
        ("held out", [e for e in errors if e[2]]),
    ):
        if rows:
            print(
                f"{label:9} n={len(rows):4} median |allocated| {median(abs(e[0]) for e in rows):.2%} "
                f"median |reserved| {median(abs(e[1]) for e in rows):.2%} worst {max(abs(e[1]) for e in rows):.2%} "
                f"95th {sorted(abs(e[1]) for e in rows)[int(0.95 * len(rows))]:.2%}"
            )


if __name__ == "__main__":
    main()
