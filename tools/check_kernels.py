"""Predicted against measured memory inside operators, over the measured grid; needs no PyTorch.

For each operator: how many distinct calls, how many the rules meet, and the largest differences. What counts is how
far an operator's allocations, its outputs with them, rise above what was held before. Convolutions have their own tool.

    python tools/check_kernels.py [--only WORD] [--rows 3]
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whichgpu import workspaces
from whichgpu.trace import Op, Tensor

GRID = Path(__file__).parent / "workspace_grid"
HOPPER = (9, 0)


def block(size: int) -> int:
    return max(-(-size // 512) * 512, 512)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument, lists flattened."""
    if isinstance(value, dict) and "t" in value:
        shape, dtype, stride = value["t"]
        yield Tensor(tuple(shape), dtype, tuple(stride or ()), 0)
    elif isinstance(value, list):
        for one in value:
            yield from tensors(one)


def operator(row: dict[str, Any]) -> Op:
    """The operator of a measured row, as a trace has it."""
    inputs = tuple(one for value in row["a"].values() for one in tensors(value))
    attributes = {name: value for name, value in row["a"].items() if not any(tensors(value))}
    outputs = tuple(Tensor(tuple(o[0]), o[1], tuple(o[2] or ()), 0) for o in row["o"])
    return Op(row["n"], "backward" if "backward" in row["n"] else "forward", 0, inputs, outputs, attributes)


def measured_rise(row: dict[str, Any]) -> int:
    held = highest = 0
    sizes: list[int] = []
    for event in row["e"]:
        if event > 0:
            sizes.append(block(event))
            held += sizes[-1]
            highest = max(highest, held)
        elif event < 0:
            held -= sizes[-event - 1]
    return highest


def predicted_rise(row: dict[str, Any]) -> int:
    """Outputs in the order in which they were allocated, with the temporaries of the rules before and after them."""
    outputs = sorted({output[3] for output in row["o"] if output[3] > 0})
    sizes = [event for event in row["e"] if event > 0]
    found = [one for one in workspaces.temporaries(operator(row), HOPPER) if not one.kept]
    return sum(block(sizes[number - 1]) for number in outputs) + sum(block(one.bytes) for one in found)


def rows(only: str = "") -> Iterator[dict[str, Any]]:
    """Measured calls, each set of arguments once, without first runs (handles and kept workspaces)."""
    seen = set()
    for name in ("measured_kernels", "measured"):
        with gzip.open(GRID / f"{name}.jsonl.gz", "rt") as file:
            for line in file:
                row = json.loads(line)
                if "e" not in row or "n" not in row or row.get("first") or only not in row["n"]:
                    continue
                if "convolution" in row["n"] or not row["n"].startswith("aten."):
                    continue
                key = json.dumps([row["n"], row["a"], row["e"]])
                if key not in seen:
                    seen.add(key)
                    yield row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", type=int, default=2)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for row in rows(arguments.only):
        found[row["n"]].append((predicted_rise(row) - measured_rise(row), row))
    for name, pairs in sorted(found.items(), key=lambda one: -max(abs(pair[0]) for pair in one[1])):
        met = sum(abs(difference) <= 4096 for difference, _ in pairs)
        if met == len(pairs) and not arguments.only:
            continue
        print(f"{name:60} {met:4} of {len(pairs):4} within 4 KiB")
        for difference, row in sorted(pairs, key=lambda pair: -abs(pair[0]))[: arguments.rows]:
            if abs(difference) > 4096:
                shown = " ".join(f"{t.dtype}{list(t.shape)}{list(t.stride) or ''}" for t in operator(row).inputs[:4])
                print(f"    {difference:+12,} {shown[:140]} {str(operator(row).attributes)[:70]} {row['e'][:12]}")


if __name__ == "__main__":
    main()
