"""Predicted against measured end-to-end times of NeuSight's table (forward, and forward with backward).

    python tools/compare_neusight.py --data FOLDER --traces FOLDER [--constants FILE] [--refit]

Traces are made once (minutes) and kept in the second folder. With --refit each row's card is kept out of the fit, with all that
was measured on it, and what is predicted of training rows so is kept for docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from compare_steps import NEUSIGHT
from speed.neusight_steps import EndToEnd, rows, setup_of
from speed.sources import card_named
from whichgpu import trace
from whichgpu.speed.step_time import demand, predict

CONSTANTS = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "speed.json"


def traced(row: EndToEnd, folder: Path) -> trace.Trace:
    """The trace of a row, from the folder or made now."""
    name = f"{row.model}-{row.sequence}-{'train' if row.train else 'inf'}-{row.batch_size}"
    path = folder / f"{name}.trace"
    if not path.exists():
        from whichgpu.capture.run import capture
        from whichgpu.capture.target import Target

        made = capture(name, setup_of(row.model, row.sequence, row.train), row.batch_size, Target.parse("7.0"), steps=2)
        trace.save(made, path)
    return trace.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--refit", action="store_true", help="fit without the row's card, for each card")
    parser.add_argument("--trace-only", action="store_true")
    arguments = parser.parse_args()
    arguments.traces.mkdir(parents=True, exist_ok=True)
    found = list(rows(arguments.data))
    if arguments.trace_only:
        for row in found:
            traced(row, arguments.traces)
            print(row, flush=True)
        sys.exit()
    constants = {"": json.loads(arguments.constants.read_text())["constants"]}
    if arguments.refit:
        from fit_speed import fit, read_points

        points = read_points(arguments.data, 12, few=True)
        found = [row for row in found if row.train]
        for card in {row.card for row in found}:
            used = [point for point in points if point.card.name != card_named(card).name]
            constants[card] = fit(used, rounds=5, say=lambda _: None) if len(used) < len(points) else constants[""]
    errors: dict[str, list[float]] = {}
    kept: list[dict[str, Any]] = []
    for row in found:
        these = constants.get(row.card, constants[""])
        step = predict(demand(traced(row, arguments.traces)), card_named(row.card), these)
        error = step.gpu_s / row.seconds - 1
        kept.append({**row._asdict(), "predicted_s": step.gpu_s})
        for key in ("train" if row.train else "inference", f"{row.card} {'train' if row.train else ''}"):
            errors.setdefault(key, []).append(error)
        print(
            f"{row.card:16} {row.model:11} {row.sequence:5} x {row.batch_size:3} {'train' if row.train else 'inf':5} "
            f"measured {row.seconds * 1e3:8.1f} predicted {step.gpu_s * 1e3:8.1f} ms ({error:+.1%})"
        )
    if arguments.refit:
        NEUSIGHT.write_text("".join(json.dumps(row) + "\n" for row in kept))
    for key, each in errors.items():
        size = [abs(error) for error in each]
        tail = f" 90 % {quantiles(size, n=10)[-1]:.1%}" if len(size) > 1 else ""
        print(
            f"{key:24} n {len(size):3} mean {fmean(size):.1%} median {median(size):.1%}{tail} bias {median(each):+.1%}"
        )


if __name__ == "__main__":
    main()
