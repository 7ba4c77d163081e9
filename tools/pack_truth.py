"""Packs traces of the truth set into the test data, each step in one small file.

    python tools/pack_truth.py --traces DIR [--only NAMES] [--host-work]

DIR is what tools/trace_truth.py wrote, with the versions of PyTorch and the model libraries that the measurements were made
with (tools/truth/data/environment.json). Of a step that follows its batch size two traces are kept, of others
three, and a fourth where sizes grow with the square or follow from the data. Of those that follow no rule, the ones at the
measured batch sizes come last: the product traces the batch size that it is asked about.

With `--host-work` the packed traces stay as they are, and what newer ones of the same operators know of the host goes into
tools/truth/data/host_work.json.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import msgspec

from predict_truth import HOST_WORK, PACKED, load
from truth import CASES
from whichgpu import trace
from whichgpu.scaling import scaling
from whichgpu.trace import Trace
from whichgpu.tracers import FAKE_BATCH_SIZES, REAL_BATCH_SIZES


def needed(traces: dict[int, Trace], measured: tuple[int, ...]) -> list[Trace]:
    """Two traces where others follow from them, else all that the product asks for, in its order."""
    sizes = next(sizes for sizes in (FAKE_BATCH_SIZES, REAL_BATCH_SIZES) if traces.keys() >= set(sizes))
    asked: list[Trace] = []

    def trace_at(batch_size: int) -> Trace:
        asked.append(traces[batch_size])
        return asked[-1]

    found = scaling(trace_at, sizes)
    if found.affine:
        return asked[:2] if len(asked) == len(sizes) else asked
    made = {one.batch_size for one in asked}
    return [*asked, *(traces[size] for size in measured if size not in made)]


def add_host_work(traces: Path) -> None:
    """What the host does itself in steps whose packed traces have the same operators."""
    found = json.loads(HOST_WORK.read_text()) if HOST_WORK.exists() else {}
    for case in CASES:
        for one in load(case.name) or ():
            path = traces / f"{case.name}-{one.batch_size}.trace"
            made = trace.load(path) if path.exists() else None
            if made is not None and [op.name for op in made.ops] == [op.name for op in one.ops]:
                found.setdefault(case.name, {})[str(one.batch_size)] = made.facts["host_work"]
            elif made is not None:
                print(f"{case.name}: other operators at batch size {one.batch_size}")
    HOST_WORK.write_text(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in found.items()) + "\n}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--host-work", action="store_true", help="only what the host does itself")
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.host_work:
        add_host_work(arguments.traces)
        return
    PACKED.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        paths = {int(path.stem.rpartition("-")[2]): path for path in arguments.traces.glob(f"{case.name}-*.trace")}
        if len(paths) < 3:
            print(f"not traced: {case.name}")
            continue
        traces = {size: trace.load(path) for size, path in paths.items()}
        data = msgspec.msgpack.encode(needed(traces, case.batch_sizes))
        (PACKED / f"{case.name}.xz").write_bytes(lzma.compress(data, preset=9))


if __name__ == "__main__":
    main()
