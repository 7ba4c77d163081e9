"""Packs traces of the truth set into the test data: two batch sizes of each step, in one small file.

    python tools/pack_truth.py --traces DIR

DIR is what tools/trace_truth.py wrote, with the versions of PyTorch and the model libraries that the measurements were made
with (tools/truth/data/environment.json). Steps that do not follow their batch size are left out.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import msgspec

from compare_truth import load_scaling
from truth import CASES
from whichgpu.scaling import Scaled

PACKED = Path(__file__).parent.parent / "tests" / "data" / "truth"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True)
    arguments = parser.parse_args()
    PACKED.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        found = None if case.compiled else load_scaling(case.name, arguments.traces)
        scaled = found.at(8) if found is not None and found.affine else None
        if not isinstance(scaled, Scaled) or scaled.curved:
            print(f"left out: {case.name}")
            continue
        data = msgspec.msgpack.encode([scaled.low, scaled.high])
        (PACKED / f"{case.name}.xz").write_bytes(lzma.compress(data, preset=9))


if __name__ == "__main__":
    main()
