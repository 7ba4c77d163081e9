"""Where the memory of a step differs from the card: predicted against measured allocations, operator by operator.

Both sides are the second training step at a case's smaller batch size. Operators that allocate are aligned by name
and by what they allocate; then each pair of runs that could not be matched is listed, the largest difference first.
A difference is an operator's rise: how far its own allocations went above what was held when it began.

    python tools/compare_ops.py --traces DIR NAME ... [--rows 15]

Needs no PyTorch. Only names are compared, so an operator that runs under another name there is a row of its own.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import truth
from compare_truth import load_scaling
from whichgpu.allocator import DEFAULT_CONFIG
from whichgpu.memory import MemoryModel

DATA = Path(__file__).parent / "truth" / "data" / "ops.jsonl.xz"


class Row(NamedTuple):
    """One operator that allocates."""

    place: int
    name: str
    allocated: tuple[int, ...]  # bytes of its blocks, in order
    rise: int
    shown: str


def rounded(size: int) -> int:
    """The block that a request gets, but for what is left over of a larger one."""
    multiple = DEFAULT_CONFIG.block_bytes if hasattr(DEFAULT_CONFIG, "block_bytes") else 512
    return max((size + multiple - 1) // multiple * multiple, multiple)


def rise(changes: Iterable[int]) -> int:
    """The highest point above the start; what was freed before the first allocation does not count."""
    held = highest = 0
    started = False
    for change in changes:
        started = started or change > 0
        if started:
            held += change
            highest = max(highest, held)
    return highest


def measured_rows(record: dict[str, Any], known: set[str]) -> Iterator[Row]:
    """The operators of the card under the names that the trace uses, where one of their callers is in it."""
    for place, number in enumerate(record["order"]):
        kind = record["kinds"][number]
        if not any(size > 0 for size in kind["bytes"]):
            continue
        names = [name.replace("aten::", "") for name in (kind["op"], *reversed(kind["in"]))]
        name = next((one for one in reversed(names) if one in known), names[0])
        shapes = [one for one in kind["inputs"] if isinstance(one, list) and len(one) == 2][:4]
        shown = " < ".join([names[0], *names[1:3]]) + " " + " ".join(f"{dtype}{shape}" for dtype, shape in shapes)
        yield Row(place, name, tuple(size for size in kind["bytes"] if size > 0), rise(kind["bytes"]), shown)


def predicted_rows(name: str, traces: Path, batch_size: int) -> list[Row]:
    """The operators of the predicted second step, with the temporaries of the rules."""
    scaled = load_scaling(name, traces)
    if scaled is None:
        return []
    program = MemoryModel(scaled.at, (9, 0)).program(batch_size)
    source = scaled.at(batch_size)
    rows = []
    ends = [*program.op_at[1:], len(program.instructions)]
    for place, (begin, end, index) in enumerate(zip(program.op_at, ends, program.op_index, strict=True)):
        if source.low.ops[index].step != 1:
            continue
        changes = [
            rounded(program.sizes[one - 1]) if one > 0 else -rounded(program.sizes[-one - 1])
            for one in program.instructions[begin:end]
        ]
        if any(change > 0 for change in changes):
            op = source.op(index, batch_size)
            shown = " ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in op.inputs[:4])
            allocated = tuple(change for change in changes if change > 0)
            base = op.name.split(".")[1]
            rows.append(Row(place, base, allocated, rise(changes), f"{base} {shown}"))
    return rows


def differences(ours: list[Row], theirs: list[Row]) -> list[tuple[int, list[Row], list[Row]]]:
    """Runs of operators that differ and by how many bytes (predicted less measured), largest first."""
    found = []
    matcher = SequenceMatcher(None, [row[1:3] for row in ours], [row[1:3] for row in theirs], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag != "equal":
            found += list(pair_up(ours[a0:a1], theirs[b0:b1]))
    return sorted(found, key=lambda one: -abs(one[0]))


def pair_up(ours: list[Row], theirs: list[Row]) -> Iterator[tuple[int, list[Row], list[Row]]]:
    """Within a run that differs, operators of one name are pairs; the rest stands alone."""
    matcher = SequenceMatcher(None, [row.name for row in ours], [row.name for row in theirs], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            for one, other in zip(ours[a0:a1], theirs[b0:b1], strict=True):
                yield one.rise - other.rise, [one], [other]
        else:
            yield (
                max((row.rise for row in ours[a0:a1]), default=0) - max((row.rise for row in theirs[b0:b1]), default=0),
                ours[a0:a1],
                theirs[b0:b1],
            )


def show(rows: list[Row], side: str) -> None:
    for row in rows[:6]:
        blocks = " ".join(f"{size / 2**20:.2f}" for size in row.allocated[:12])
        print(f"      {side} {row.place:6} {row.shown[:130]} | {blocks} MiB")
    if len(rows) > 6:
        print(f"      {side} ... {len(rows) - 6} more")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=15)
    arguments = parser.parse_args()
    tuned = [case.name for case in truth.CASES if not case.compiled and not case.held_out]
    wanted = set(arguments.names or tuned)
    for line in lzma.decompress(DATA.read_bytes()).decode().splitlines():
        record = json.loads(line)
        if record["name"] not in wanted:
            continue
        ours = predicted_rows(record["name"], arguments.traces, record["batch_size"])
        theirs = list(measured_rows(record, {row.name for row in ours}))
        rows = differences(ours, theirs)
        print(f"{record['name']} at {record['batch_size']}: {len(ours)} / {len(theirs)} operators allocate")
        seen: set[tuple[str, ...]] = set()
        for size, one, other in rows:
            key = tuple(row.shown for row in (*one, *other))
            if key in seen or (len(seen) >= arguments.rows):
                continue
            seen.add(key)
            print(f"  {size / 2**20:+9.2f} MiB")
            show(one, "predicted")
            show(other, "measured ")


if __name__ == "__main__":
    main()
