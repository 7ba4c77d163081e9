"""Predicted against measured for the 19 rows of the first measurements on an H200, traced here and now.

    python tools/compare_reference.py

Unlike `tools/compare_truth.py`, which reads traces that were made for it, this asks `whichgpu.fit` as a user would, with the
PyTorch that is installed. Takes a minute or two.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import truth
import whichgpu

HERE = Path(__file__).parent


def main() -> None:
    reference = {case.name for case in truth.CASES if case.family == "reference"}
    rows = [json.loads(line) for line in (HERE / "truth" / "data" / "measured.jsonl").read_text().splitlines()]
    measured = [row for row in rows if row["name"] in reference and row["kind_of"] == "measure" and row["kind"] == "ok"]
    reserved, allocated = [], []
    print(f"{'Step':20}{'Batch':>6}{'Reserved':>11}{'Allocated':>11}")
    for row in sorted(measured, key=lambda row: (row["name"], row["batch_size"])):
        step = f"{HERE / 'truth' / 'h200_cases.py'}:{row['name']}"
        found = whichgpu.fit(step, batch_size=row["batch_size"], gpus=["H200"]).gpus[0]
        reserved.append(found.peak_reserved_bytes / row["peak_reserved_bytes"] - 1)
        allocated.append(found.peak_allocated_bytes / row["peak_allocated_bytes"] - 1)
        print(f"{row['name']:20}{row['batch_size']:>6}{reserved[-1]:>+11.2%}{allocated[-1]:>+11.2%}", flush=True)
    for name, errors in (("reserved", reserved), ("allocated", allocated)):
        off = [abs(error) for error in errors]
        print(f"{name}: {len(off)} rows, median {median(off):.2%} off, worst {max(off):.2%}")


if __name__ == "__main__":
    main()
