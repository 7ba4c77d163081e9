"""Turns the measured convolutions into the table that `whichgpu.workspaces.convolution` looks them up in.

    python tools/fit_convolutions.py [--check]

Reads tools/workspace_grid/measured.jsonl.gz (recorded by tools/measure_workspaces.py) and writes
src/whichgpu/data/convolutions.json.gz: for every measured convolution its class, its shape, and the most memory that it
held beyond its results at any moment, as a share of the bytes of input, output and weight. `--check` instead leaves a
fifth of the points out, predicts them from the others and prints the errors.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces import convolution

ROOT = Path(__file__).parent
GRID = ROOT / "workspace_grid" / "measured.jsonl.gz"
TABLE = ROOT.parent / "src" / "whichgpu" / "data" / "convolutions.json.gz"
SOURCE = "tools/measure_workspaces.py on an NVIDIA H200: torch 2.11.0+cu130, cuDNN 9.19, driver 580.159.04, 2026-12-02"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    rows = measured()
    if arguments.check:
        check(rows)
        return
    table: dict[str, list[list[float]]] = defaultdict(list)
    for kind, point, share in sorted(rows):
        table["|".join(map(str, kind))].append([*point, round(share, 4)])
    text = json.dumps({"source": SOURCE, "columns": convolution.COLUMNS, "classes": table}, separators=(",", ":"))
    TABLE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(rows)} points in {len(table)} classes, {TABLE.stat().st_size} bytes")


def measured() -> list[tuple[tuple[str, ...], tuple[int, ...], float]]:
    """Class, point and share of every measured convolution; the last of equal ones."""
    found = {}
    with gzip.open(GRID, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            usable = record.get("n", "").startswith("aten.convolution") and record.get("e") is not None
            if not usable or record.get("first") or not isinstance(record["a"].get("input"), dict):
                continue
            op = as_op(record)
            described = convolution.describe(op)
            if described is not None:
                kind, point, operand_bytes = described
                found[kind, point] = held_beyond_results(record) / operand_bytes
    return [(kind, point, share) for (kind, point), share in found.items()]


def as_op(record: dict[str, Any]) -> Op:
    """A measured record as the trace has it."""
    tensors = [tensor(value["t"]) for value in record["a"].values() if isinstance(value, dict)]
    attributes = {name: value for name, value in record["a"].items() if not isinstance(value, dict)}
    attributes["allow_tf32"] = bool(record["c"].get("conv_tf32", True))
    attributes["benchmark"] = bool(record["c"].get("benchmark", False))
    return Op(record["n"], "forward", 0, tuple(tensors), (), attributes)


def tensor(described: list[Any]) -> Tensor:
    """A recorded tensor."""
    shape, dtype, stride = described
    return Tensor(tuple(shape), dtype, tuple(stride or ()))


def held_beyond_results(record: dict[str, Any]) -> int:
    """The most that the operator held at one moment besides its results."""
    results = {output[3] for output in record["o"] if output}
    held = most = number = 0
    sizes: dict[int, int] = {}
    for event in record["e"]:
        if event > 0:
            number += 1
            sizes[number] = event
            if number not in results:
                held += event
                most = max(most, held)
        elif -event in sizes and -event not in results:
            held -= sizes[-event]
    return most


def check(rows: list[tuple[tuple[str, ...], tuple[int, ...], float]]) -> None:
    """Leave a fifth out and predict it."""
    rows = sorted(rows)
    random.Random(0).shuffle(rows)
    left_out, kept = rows[: len(rows) // 5], rows[len(rows) // 5 :]
    table: dict[tuple[str, ...], list[tuple[tuple[int, ...], float]]] = defaultdict(list)
    for kind, point, share in kept:
        table[kind].append((point, share))
    errors: dict[str, list[float]] = defaultdict(list)
    for kind, point, share in left_out:
        errors[kind[0]].append(abs(convolution.nearest(table, kind, point) - share))
    for direction, found in sorted(errors.items()):
        found.sort()
        quantiles = [found[int(len(found) * q)] for q in (0.5, 0.75, 0.9)]
        print(
            f"{direction:9} n={len(found):5}  |error| as a share of the operands: median {quantiles[0]:.3f}, "
            f"75th {quantiles[1]:.3f}, 90th {quantiles[2]:.3f}"
        )


if __name__ == "__main__":
    main()
