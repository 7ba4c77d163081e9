"""Fits the constants of the speed model to measured operators and writes them as data.

    python tools/fit_speed.py --data FOLDER [--leave-out CARD] [--out FILE]
    OMP_NUM_THREADS=1 python tools/fit_speed.py --data FOLDER --most 12 --folds 5 --jobs 2

FOLDER holds the public tables (neusight_kernels.csv.gz, neusight_conv.csv.gz). Least squares of the logarithm of seconds, robust
against single points, each kind of operator on each card with the same weight; a constant that no point speaks for keeps its
prior. Needs numpy, which whichgpu itself does not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from compare_steps import LEFT_OUT, LeftOut, family, foretold, summary
from speed.fitting import LAUNCH, Fitting, Points
from speed.sources import (
    H200,
    Measured,
    card_named,
    host_times,
    measured_ops,
    measured_step,
    neusight_convolutions,
    neusight_kernels,
    profiled_steps,
)
from speed.steps import Step, load
from speed.timed import EARLIER, SPEEDS, is_steady

STEPS = ["Lambda 2020-2025", *(f"H200 {name}{end}" for name in ("truth", "zoo") for end in ("", EARLIER))]
OUT = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "speed.json"
# value, how sure we are of it (standard deviation of the prior)
PRIORS: dict[str, tuple[float, float]] = {
    "ramp": (0.7, 0.5),
    "start": (1.5, 0.5),
    "shape.depth": (4.5, 1.0),
    "shape.smooth": (0.5, 0.3),
    "shape.small": (0.12, 0.1),
    "peak.fp32": (-0.15, 0.3),
    "peak.tf32": (-0.4, 0.3),
    "peak.half": (-0.25, 0.3),
    "peak.lanes": (-0.15, 0.15),
    "peak.shared": (-0.1, 0.15),
    "peak.rate": (0.3, 0.2),
    "peak.rate.convolution": (0.2, 0.2),
    "bandwidth": (-0.4, 0.3),
    "units.suppression": (-6.5, 0.5),  # some 600 clocks from one box to the next, the bits of all others between
    "shape.depth.half": (0.0, 0.5),
    "shape.depth.tf32": (0.0, 0.5),
    "shape.small.half": (0.0, 0.1),
    "shape.small.tf32": (0.0, 0.1),
    "start.half": (0.0, 0.5),
    "start.tf32": (0.0, 0.5),
    "product.unaligned": (-0.15, 0.15),
    "power.fp32": (24.8, 0.5),
    "power.year": (0.1, 0.1),
    "power.tf32": (1.2, 0.3),
    "power.half": (1.9, 0.3),
    "memory.product": (-0.3, 0.3),
    "memory.layout": (-0.3, 0.3),
    "cache.size": (-0.7, 0.4),
    "cache.gain": (-0.7, 0.7),
    "attention.exponentials": (2.8, 0.3),
    "host.forward": (20.0, 10.0),
    "host.forward_copy": (15.0, 7.0),
    "host.forward_product": (25.0, 10.0),
    "host.forward_convolution": (35.0, 10.0),
    "host.forward_norm": (30.0, 10.0),
    "host.forward_attention": (30.0, 10.0),
    "host.backward": (20.0, 10.0),
    "host.backward_copy": (15.0, 7.0),
    "host.backward_product": (20.0, 10.0),
    "host.backward_convolution": (50.0, 15.0),
    "host.backward_norm": (30.0, 10.0),
    "host.backward_attention": (30.0, 10.0),
    "host.module": (10.0, 10.0),
    "host.optimizer": (20.0, 10.0),
    "host.other": (20.0, 10.0),
    "host.many": (50.0, 50.0),
    "host.tensor": (3.0, 2.0),
    "host.cell": (10.0, 5.0),
    "host.wait": (20.0, 10.0),
    "host.made": (3.0, 1.5),
    "host.made_elements": (0.5, 0.3),  # of a thousand
    # 3.2 ns an element in memory that is there (data/host.json), half as much again for memory that is new to the process
    "host.random_elements": (4.7, 0.3),
    "host.uploaded_bytes": (0.1, 0.02),
    # a thread that goes along a column waits some 700 clocks for memory at each element, in each of three passes, or two
    "units.softmax_columns": (-7.6, 0.5),
    "units.softmax_backward_columns": (-7.2, 0.5),
}
ARCHITECTURE = 0.25  # how far an architecture may be from the others, in logarithms
KIND = 0.5
FACTOR = 0.03  # how far another framework or implementation may be from ours, for a workload of a public table
HOST_WEIGHT = 0.5  # of the host's time for a step: other work was on its processors
H200_WEIGHT = 3.0  # of its operators: many shapes, today's libraries
PUBLIC_STEP_WEIGHT = 4.0  # of a step that somebody else measured with an implementation like ours
STEP_WEIGHT = 2.0  # of a whole step among operators
# Half the width of the 80 % interval, in logarithms, until tools/compare_steps.py --write reads it off what was left out
SPREAD = {"card": 0.2, "architecture": 0.2, "none": 0.3, "host": 0.3}
SHARE_WEIGHT = 6.0  # of a class of operators inside a step, times its share of it
ROUNDS = 4  # of each fit without some
FEW = 4  # of an H200's operators one of so many, where many fits are made
# beginnings of the names of constants whose value is not known before -> value, how sure we are of it
RULES: tuple[tuple[str, tuple[float, float]], ...] = (
    ("factor.", (0.0, FACTOR)),
    ("session.", (0.0, 0.5)),  # logarithm of how much slower its host is than the reference
    ("launch.", (LAUNCH, 1.0)),
    ("bandwidth.", (0.0, ARCHITECTURE)),
    ("peak.", (0.0, ARCHITECTURE)),
    ("memory.depthwise", (-0.7, 1.0)),
    ("memory.", (-0.35, KIND)),
    ("start.", (0.0, 0.7)),
    ("units.", (1.8, 2.0)),
    ("product.", (0.0, KIND)),
    ("attention.begin.", (4.0, 0.7)),
)


def prior(name: str) -> tuple[float, float]:
    """A constant's prior: its value and how sure we are of it (standard deviation)."""
    if name in PRIORS:
        return PRIORS[name]
    if name.startswith("product.") and name.count(".") > 1:
        return 0.0, 0.3
    return next(found for start, found in RULES if name.startswith(start))


def fit(points: list[Measured], rounds: int = 12, say: Callable[[str], None] = print) -> dict[str, float]:
    """Constants by damped Gauss-Newton steps."""
    return Fitting(points, _weights(points), prior).run(rounds, say)


def _weights(points: list[Measured]) -> np.ndarray:
    """So that each kind on each card counts the same, but more with more points."""
    count: dict[tuple[str, str], int] = {}
    for point in points:
        key = (point.group, point.card.name)
        count[key] = count.get(key, 0) + 1
    return np.array([_weight(point, count[point.group, point.card.name]) for point in points])


def _weight(point: Measured, alike: int) -> float:
    if point.share:
        return SHARE_WEIGHT * point.share
    if point.asked is not None:
        ours = STEP_WEIGHT if point.source.startswith("H200") else PUBLIC_STEP_WEIGHT
        return HOST_WEIGHT if point.host else ours
    return (H200_WEIGHT if point.source == H200 else 1.0) * float(alike**-0.5)


def report(points: list[Measured], constants: dict[str, float], title: str) -> None:
    """Errors by kind and card."""
    errors: dict[tuple[str, str], list[float]] = {}
    asked = Points(points, prior)
    seconds = asked.predicted(asked.kernel_seconds(constants, prior), constants)
    for point, predicted_s in zip(points, seconds, strict=True):
        errors.setdefault((point.group, point.card.name), []).append(predicted_s / point.seconds - 1)
    print(title)
    for (group, card), found in sorted(errors.items()):
        size = np.abs(found)
        print(
            f"  {group:28} {card:18} n {len(found):5}  bias {np.median(found):+.3f}  median {np.median(size):.3f}"
            f"  90 % {np.quantile(size, 0.9):.3f}"
        )


def without_cards(points: list[Measured], out: set[str], nearness: str) -> list[LeftOut]:
    """Predictions of steps on cards that the fit knows nothing of: neither their steps nor their operators."""
    used = [point for point in points if point.card.name not in out]
    return _predictions([step for step in load() if step.card in out], used, nearness, out)


def without_models(points: list[Measured], out: set[str]) -> list[LeftOut]:
    """Predictions of an H200's steps by a fit that knows nothing of their models, on any card."""
    steps = [step for step in load() if step.table.startswith("H200") and family(step.workload) in out]
    used = [point for point in points if not point.workload or family(point.workload) not in out]
    return _predictions(steps, used, "model", out)


def _predictions(steps: list[Step], used: list[Measured], nearness: str, out: set[str]) -> list[LeftOut]:
    values = fit(used, rounds=ROUNDS, say=lambda _: None)
    whole = foretold(steps, values)
    print(time.strftime("%H:%M:%S"), end=" ", flush=True)
    summary([(step, one.step_s) for step, one in whole], f"{nearness}: without {', '.join(sorted(out))}")
    by_minute, as_reference = (foretold(steps, values, host) for host in ("minute", "reference"))
    return [
        LeftOut(
            *step[:-1],
            one.step_s,
            nearness,
            one.limit == "host",
            by_minute=minute.step_s,
            as_reference=reference.step_s,
        )
        for (step, one), (_, minute), (_, reference) in zip(whole, by_minute, as_reference, strict=True)
    ]


def leave_out(points: list[Measured], folds: int, jobs: int) -> list[LeftOut]:
    """Predictions of all that is left out: cards in groups, two groups of cards at a time (for the order of two), architectures,
    models.
    """
    architectures = {name: card.architecture for name, card in ((s.card, card_named(s.card)) for s in load())}
    names = sorted(architectures)
    cards = [set(names[fold::folds]) for fold in range(folds)]
    whole = {point.card.name: point.card.architecture for point in points} | architectures
    families = sorted({family(step.workload) for step in load() if step.table.startswith("H200")})
    asked: list[tuple[Callable[..., list[LeftOut]], tuple[Any, ...]]] = [
        *((without_cards, (points, out, "card")) for out in cards),
        *((without_cards, (points, one | other, "pair")) for one, other in itertools.combinations(cards, 2)),
        *(
            (without_cards, (points, {name for name, its in whole.items() if its == each}, "architecture"))
            for each in sorted(set(architectures.values()))
        ),
        *((without_models, (points, set(families[fold::folds]))) for fold in range(folds)),
    ]
    with ProcessPoolExecutor(jobs) as pool:
        return [row._replace(fit=number) for number, rows in enumerate(pool.map(_call, asked)) for row in rows]


def _call(asked: tuple[Callable[..., list[LeftOut]], tuple[Any, ...]]) -> list[LeftOut]:
    return asked[0](*asked[1])


def read_points(folder: Path, most: int, *, few: bool, tables: Sequence[str] = STEPS) -> list[Measured]:
    """All that constants are fitted to; `few` takes one of `FEW` of the H200's operators."""
    steps = [step for step in load() if step.table in tables and is_steady(step)]
    return [
        *neusight_kernels(folder, most),
        *neusight_convolutions(folder, 3 * most),
        *map(measured_step, steps),
        *[*measured_ops()][:: FEW if few else 1],
        *profiled_steps(steps),
        *host_times(steps),
    ]


def main() -> None:
    """Fits, reports and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public tables")
    parser.add_argument(
        "--steps", nargs="*", default=STEPS, help="tables of kept steps that count (default: %(default)s)"
    )
    parser.add_argument("--folds", type=int, help="instead, leave every card out once, in so many groups, and report")
    parser.add_argument("--jobs", type=int, default=1, help="fits at a time, with --folds")
    parser.add_argument("--leave-out", nargs="*", help="cards that are kept out of the fit and reported apart")
    parser.add_argument("--most", type=int, default=120, help="points of each kind on each card (default 120)")
    parser.add_argument(
        "--out", type=Path, help=f"where the constants go; default {OUT.name}, nowhere with --leave-out"
    )
    arguments = parser.parse_args()
    points = read_points(arguments.data, arguments.most, few=bool(arguments.folds), tables=arguments.steps)
    if arguments.folds:
        found = leave_out(points, arguments.folds, arguments.jobs)
        LEFT_OUT.write_text("".join(json.dumps(row) + "\n" for row in found))
        return
    left = set(arguments.leave_out or ())
    used = [point for point in points if point.card.name not in left]
    apart = [point for point in points if point.card.name in left]
    begun = time.monotonic()
    constants = fit(used)
    print(f"{len(used)} points, {len(constants)} constants, {time.monotonic() - begun:.0f} s")
    report(used, constants, "fitted")
    if apart:
        report(apart, constants, "left out")
    for name, value in constants.items():
        if not name.startswith("launch."):
            print(f"  {name:40} {value:.3f}")
    out = arguments.out or (None if left else OUT)
    if out:
        kept = {
            name: round(value, 5)
            for name, value in sorted(constants.items())
            if not name.startswith(("launch.", "factor.", "session."))
        }
        whole = {
            "fitted_on": sorted({point.source for point in used}),
            "points": len(used),
            "date": time.strftime("%Y-%m-%d"),
            "spread": SPREAD,
            "cards": sorted({point.card.name for point in used}),
            "architectures": sorted({point.card.architecture for point in used}),
            "constants": kept,
        }
        out.write_text(json.dumps(whole, indent=1) + "\n")
    if out == OUT:
        its = {name: value for name, value in constants.items() if name.startswith("session.")}
        speeds = {name.removeprefix("session."): round(float(np.exp(-value)), 4) for name, value in its.items()}
        SPEEDS.write_text(json.dumps(speeds) + "\n")


if __name__ == "__main__":
    main()
