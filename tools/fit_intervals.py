"""Fits the intervals to the truth set, and writes what follows from them: python tools/fit_intervals.py

Reads the packed traces (tests/data/truth, by tools/pack_truth.py) and the measurements (tools/truth/data), and writes
data/intervals.toml, data/accuracy.json and docs/accuracy.md. Run it after anything changes a prediction.

The spread of each kind of step is the error that 95 % of new steps stay within, by the rank of the errors of the steps that
are not held out (split conformal prediction: the (n + 1) * 0.95-th smallest of n). It is widened until no batch that ran out
of memory is said to fit, and where few steps were measured it has a minimum with a reason. Held-out steps only check.

That rank needs 19 points. With n of them the largest error covers a new step with a chance of n / (n + 1) only, so that the few
steps with cudnn.benchmark cannot say how far off the next one is. Their minimum comes from the many steps with
convolutions, which are predicted once more as if the engines were not known: each convolution takes no workspace, that of the
engine which the heuristics name, or twice that. 95 % of those errors are what a step is off at the most whose engines the
clock decides, as far as the measured steps can tell; whatever they say, it is no less than 15 %.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import get_args

import msgspec

import predict_truth
from predict_truth import DATA, ROOT, Predicted
from whichgpu import accuracy, intervals, workspaces
from whichgpu.accuracy import LargestBatch, Point, Step, Table
from whichgpu.allocator import replay
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import Estimate, Evidence, Spread
from whichgpu.render.accuracy import to_markdown

PACKAGE = ROOT / "src" / "whichgpu"
COVERED = 0.95
GRID = 200  # spreads are multiples of 1/GRID
# What PyTorch's allocator reserves comes in segments: two of kLargeBuffer (20 MiB) more or less are chance.
FLOOR_BYTES = 2 * 20 << 20
DRAWS, FACTORS = 4, (0, 1, 2)  # of each measured point, of workspaces whose engine is taken as unknown
# Low and high ends that are kept however well the measured steps were predicted, and why.
LEAST: dict[Evidence, tuple[float, float, str]] = {
    "plain": (0.02, 0.02, "measured steps, with at least 2 %"),
    # floors from the zoo at full size: YOLO v3 took 14 % more than foretold, StyleGAN 10 % less (tools/zoo)
    "convolutions": (0.10, 0.15, "measured steps and workloads of the zoo, with at least 10 % below and 15 % above"),
    # floors from before cuDNN was asked about them: wav2vec 2.0 took 13 % less, and Conv. Seq2Seq 70 % more (tools/zoo)
    "sequences": (0.15, 0.75, "few steps measured: at least 15 % below and 75 % above"),
    "recurrent": (0.10, 0.10, "few steps measured: at least 10 %"),
    "benchmark": (
        0.15,
        0.15,
        "few steps measured: at least as steps with convolutions are off without knowing engines",
    ),
    "line": (0.25, 0.25, "few steps measured: at least 25 %; the high end is that of the steepest line"),
    "compiled": (0.50, 0.25, "predicted as if not compiled, which usually takes more: at least 50 % below, 25 % above"),
}


def main() -> None:
    steps = list(predict_truth.predicted())
    path = PACKAGE / "data" / "intervals.toml"
    path.write_text(fitted_file(steps), encoding="utf-8")
    intervals._file.cache_clear()
    table = make_table(steps)
    packed = msgspec.json.format(msgspec.json.encode(table), indent=1).decode() + "\n"
    (PACKAGE / "data" / "accuracy.json").write_text(packed, encoding="utf-8")
    (ROOT / "docs" / "accuracy.md").write_text(to_markdown(accuracy.report(table)), encoding="utf-8")


# ---- the fit ----------------------------------------------------------------------------------------------


def fitted_file(steps: list[Predicted]) -> str:
    """data/intervals.toml for the steps that are not held out."""
    environment = json.loads((DATA / "environment.json").read_text(encoding="utf-8"))
    tuned = [step for step in steps if not step.case.held_out]
    with _without_cudnn():
        bare = {step.case.name: step for step in predict_truth.predicted() if not step.case.held_out}
        lighter = {name: [base_bytes(step, size) for size in step.case.batch_sizes] for name, step in bare.items()}
    lines = [
        "# How far the real reserved peak may lie from the likely one, as shares of the likely one, by kind of step.",
        "# Written by tools/fit_intervals.py; how it is fitted is said there.",
        f"# Measured on one {environment['gpu']} (compute capability {environment['capability']}), torch {environment['torch']}, "
        f"{environment['date'][:10]}, on the steps of tools/truth that are not held out.",
        "# high_elsewhere, for cards of another capability: no workspaces of cuDNN were measured there, so that the error of a",
        "# prediction without any of them (the same share of the steps) is added, as independent of the first (root of squares).",
        f"floor_bytes = {FLOOR_BYTES}  # the high end lies at least two segments of the allocator above the likely peak",
    ]
    for evidence in get_args(Evidence):
        rows = [step for step in tuned if step.evidence == evidence]
        low, high, reason = LEAST[evidence]
        if evidence == "benchmark":
            blind = [error for step in tuned if step.evidence == "convolutions" for error in without_engines(step)]
            low, high = max(low, covering([low for low, _ in blind])), max(high, covering([high for _, high in blind]))
        low = max(low, covering([below(step, size) for step in rows for size in step.measured]))
        high = max(high, covering([above(step, size) for step in rows for size in step.measured]))
        high = max([high, *(needed(step) for step in rows)])
        missing = covering(
            [
                max(1 - light / base_bytes(step, size), 0)
                for step in rows
                for size, light in zip(step.case.batch_sizes, lighter[step.case.name], strict=True)
            ]
        )
        lines += [
            "",
            "[[steps]]",
            f'evidence = "{evidence}"',
            f"low = {rounded(min(low, 0.95))}",
            f"high = {rounded(high)}",
            f"high_elsewhere = {rounded(math.hypot(high, missing))}",
            f"points = {sum(len(step.measured) for step in rows)}",
            f'basis = "{reason}"',
        ]
    return "\n".join([*lines, ""])


def covering(errors: list[float]) -> float:
    """The error that a new step stays within with a chance of COVERED, as far as so few can tell; 0 for none."""
    place = min(math.ceil((len(errors) + 1) * COVERED), len(errors))
    return sorted(errors)[place - 1] if errors else 0.0


def base_bytes(step: Predicted, batch_size: int) -> int:
    """What the high end is counted from."""
    if isinstance(step.model, LineModel):
        return step.model.steep_bytes(batch_size)
    return step.model.replay(batch_size).peak_reserved_bytes


def above(step: Predicted, batch_size: int) -> float:
    """By what share more was measured than predicted, beyond the floor."""
    real, base = step.measured[batch_size]["peak_reserved_bytes"], base_bytes(step, batch_size)
    return real / base - 1 if real > base + FLOOR_BYTES else 0.0


def below(step: Predicted, batch_size: int) -> float:
    """By what share less was measured than predicted; of steps on a line, than on the line."""
    real, model = step.measured[batch_size]["peak_reserved_bytes"], step.model
    on_line = isinstance(model, LineModel)
    likely = model.middle_bytes(batch_size) if on_line else model.replay(batch_size).peak_reserved_bytes
    return max(1 - real / likely, 0.0)


def without_engines(step: Predicted) -> Iterator[tuple[float, float]]:
    """By what shares less and more was measured than predicted with each workspace of a convolution drawn anew."""
    for batch_size, measured in step.measured.items():
        program = step.model.program(batch_size)
        for seed in range(DRAWS):
            draw, sizes = random.Random(seed), list(program.sizes)
            for first, alike in {slots[0]: slots for slots in program.instructions.optional.values()}.items():
                if first in program.instructions.instead_of:  # nobody falls back where memory is not limited
                    continue
                factor = draw.choice(FACTORS)
                for slot in alike:
                    sizes[slot] *= factor
            base = replay(program.instructions, sizes, None).peak_reserved_bytes
            yield (
                max(1 - measured["peak_reserved_bytes"] / base, 0.0),
                max(measured["peak_reserved_bytes"] / base - 1, 0.0),
            )


def needed(step: Predicted) -> float:
    """The smallest spread at which no batch that ran out of memory is said to fit."""
    failing = step.out_of_memory()
    share = 0.0
    while failing:
        estimate = Estimate(step.model, Spread(low=0.0, high=share, floor_bytes=FLOOR_BYTES))
        failing = [size for size in failing if estimate.verdict(size, step.largest["limit_bytes"]) == "fits"]
        share += 1 / GRID if failing else 0
    return share


def rounded(share: float) -> float:
    """Up to the grid."""
    return math.ceil(share * GRID - 1e-9) / GRID


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Predictions without what cuDNN takes for itself."""
    kept: dict[str, Callable[..., object]] = dict(workspaces.RULES)
    try:
        for name in kept:
            if "convolution" in name or "cudnn" in name:
                del workspaces.RULES[name]
        yield
    finally:
        workspaces.RULES.clear()
        workspaces.RULES.update(kept)


# ---- the table --------------------------------------------------------------------------------------------


def make_table(steps: list[Predicted]) -> Table:
    """Predicted and measured figures of every step."""
    environment = json.loads((DATA / "environment.json").read_text(encoding="utf-8"))
    return Table(
        gpu=environment["gpu"],
        measured_with=f"torch {environment['torch']}, CUDA {environment['cuda']}, cuDNN {environment['cudnn']}",
        measured_on=environment["date"][:10],
        traced_with=", ".join(sorted({f"torch {step.torch}" for step in steps})),
        untraced=tuple(sorted(_names() - {step.case.name for step in steps})),
        steps=tuple(map(_step, steps)),
    )


def _names() -> set[str]:
    return {case.name for case in predict_truth.truth.CASES}


def _step(step: Predicted) -> Step:
    estimate = step.estimate()
    largest = None
    if step.largest is not None:
        limit = step.largest["limit_bytes"]
        failing, (edge, *above) = step.out_of_memory(), step.edges()
        largest = LargestBatch(
            limit_bytes=limit,
            predicted=estimate.largest_batch(limit),
            predicted_safe=estimate.largest_safe_batch(limit),
            measured=edge,
            measured_above=tuple(above),
            out_of_memory=tuple(failing),
            said_to_fit=tuple(size for size in failing if estimate.verdict(size, limit) == "fits"),
        )
    return Step(
        name=step.case.name,
        family=step.case.family,
        precision=step.case.precision,
        held_out=step.case.held_out,
        compiled=step.case.compiled,
        kind=step.kind,
        evidence=step.evidence,
        points=tuple(_point(step, estimate, size) for size in step.case.batch_sizes),
        largest=largest,
    )


def _point(step: Predicted, estimate: Estimate, batch_size: int) -> Point:
    interval = estimate.interval(batch_size)
    return Point(
        batch_size=batch_size,
        low_bytes=interval.low_bytes,
        likely_bytes=interval.likely_bytes,
        high_bytes=interval.high_bytes,
        measured_bytes=step.measured[batch_size]["peak_reserved_bytes"],
        allocated_bytes=step.model.replay(batch_size).peak_allocated_bytes,
        measured_allocated_bytes=step.measured[batch_size]["peak_allocated_bytes"],
    )


if __name__ == "__main__":
    main()
