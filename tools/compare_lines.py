"""How far the line through small batch sizes is off for steps that look at their data, against the measurements.

python tools/compare_lines.py --traces DIR      (DIR as written by tools/trace_truth.py)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import truth
from whichgpu import trace
from whichgpu.extrapolation import LineModel
from whichgpu.scaling import Single

DATA = Path(__file__).parent / "truth" / "data"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    folder = parser.parse_args().traces
    rows = map(json.loads, (DATA / "measured.jsonl").read_text().splitlines())
    measured = {
        (row["name"], row["batch_size"]): row for row in rows if row["kind_of"] == "measure" and row["kind"] == "ok"
    }
    largest = {row["name"]: row for row in map(json.loads, (DATA / "max_batch.jsonl").read_text().splitlines())}
    for case in truth.CASES:
        traces = {n: folder / f"{case.name}-{n}.trace" for n in (1, 2, 3)}
        if not all(path.exists() for path in traces.values()):
            continue
        loaded = {n: Single(trace.load(path)) for n, path in traces.items()}
        model = LineModel(loaded.__getitem__, (9, 0), (1, 2, 3))
        for batch_size in case.batch_sizes:
            real = measured[case.name, batch_size]["peak_reserved_bytes"]
            middle = model.replay(batch_size).peak_reserved_bytes
            print(
                f"{case.name:40} {batch_size:6}  middle {middle / real - 1:+7.1%}"
                f"  high {model._high(batch_size) / real - 1:+7.1%}"
            )
        if case.name in largest:
            row = largest[case.name]
            found = model.largest_batch(row["limit_bytes"])
            print(f"{'':40} largest batch under {row['limit_bytes'] >> 30} GiB: {found}, truly {row['max_batch_size']}")


if __name__ == "__main__":
    main()
