"""Packs traces of the truth set into the test data, each step in one small file.

    python tools/pack_truth.py --traces DIR [--only NAMES]

DIR is what tools/trace_truth.py wrote, with the versions of PyTorch and the model libraries that the measurements were made
with (tools/truth/data/environment.json). Of a step that follows its batch size two traces are kept, of others
three, and a fourth as the check where sizes grow with the square.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import msgspec

from truth import CASES
from whichgpu import trace
from whichgpu.errors import TraceError
from whichgpu.scaling import SQUARE_CHECK, Scaled
from whichgpu.trace import Trace

PACKED = Path(__file__).parent.parent / "tests" / "data" / "truth"


def needed(traces: dict[int, Trace]) -> list[Trace]:
    """Two traces where others follow from them, four where they do with the square, else three for a line."""
    fourth = traces.pop(SQUARE_CHECK, None)
    low, high, third = (traces[size] for size in sorted(traces))
    if follows(low, high, third):
        return [low, high]
    try:
        curved = fourth is not None and Scaled(low, high, third).agrees_with(fourth) is None
    except TraceError:
        curved = False
    return [low, high, third, fourth] if fourth is not None and curved else [low, high, third]


def follows(low: Trace, high: Trace, third: Trace) -> bool:
    """Whether every size is affine in the batch size."""
    try:
        return Scaled(low, high).agrees_with(third) is None
    except TraceError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    PACKED.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        paths = {int(path.stem.rpartition("-")[2]): path for path in arguments.traces.glob(f"{case.name}-*.trace")}
        if len(paths) < 3:
            print(f"not traced: {case.name}")
            continue
        data = msgspec.msgpack.encode(needed({size: trace.load(path) for size, path in paths.items()}))
        (PACKED / f"{case.name}.xz").write_bytes(lzma.compress(data, preset=9))


if __name__ == "__main__":
    main()
