"""Fits the constants of the speed model to measured operators and writes them as data.

    python tools/fit_speed.py --data FOLDER [--leave-out CARD] [--out FILE]

FOLDER holds the public tables (neusight_kernels.csv.gz, neusight_conv.csv.gz). Least squares of the logarithm of seconds, robust
against single points, each kind of operator on each card with the same weight; a constant that no point speaks for keeps its
prior. Needs numpy, which whichgpu itself does not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from math import log
from pathlib import Path

import numpy as np

from compare_steps import LEFT_OUT, LeftOut, predicted, summary
from speed.sources import (
    H200,
    Measured,
    host_times,
    measured_ops,
    measured_step,
    neusight_convolutions,
    neusight_kernels,
    profiled_steps,
)
from speed.steps import load
from whichgpu.speed.asked import Cost
from whichgpu.speed.host import host_seconds
from whichgpu.speed.kernels import join, kernel_seconds
from whichgpu.speed.rates import Rates

STEPS = ["Lambda 2020-2025", "H200 truth"]
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
    "shape.depth.half": (0.0, 0.5),
    "shape.depth.tf32": (0.0, 0.5),
    "shape.small.half": (0.0, 0.1),
    "shape.small.tf32": (0.0, 0.1),
    "start.half": (0.0, 0.5),
    "start.tf32": (0.0, 0.5),
    "power.fp32": (24.8, 0.5),
    "power.year": (0.1, 0.1),
    "power.tf32": (1.2, 0.3),
    "power.half": (1.9, 0.3),
    "memory.product": (-0.3, 0.3),
    "host.forward": (35.0, 10.0),
    "host.forward_copy": (15.0, 7.0),
    "host.forward_kernel": (30.0, 10.0),
    "host.backward": (25.0, 10.0),
    "host.backward_copy": (15.0, 7.0),
    "host.backward_kernel": (25.0, 10.0),
    "host.optimizer": (20.0, 10.0),
    "host.other": (20.0, 10.0),
    "host.many": (50.0, 50.0),
    "host.tensor": (3.0, 2.0),
    "host.cell": (10.0, 5.0),
}
ARCHITECTURE = 0.25  # how far an architecture may be from the others, in logarithms
KIND = 0.5
FACTOR = 0.08  # how far another framework or implementation may be from ours, for a workload of a public table
HOST_WEIGHT = 0.5  # of the host's time for a step: other work was on its processors
H200_WEIGHT = 3.0  # of its operators: many shapes, today's libraries
PUBLIC_STEP_WEIGHT = 2.0  # of a step that somebody else measured with an implementation like ours
STEP_WEIGHT = 2.0  # of a whole step among operators
# Half the width of the 80 % interval, in logarithms: 80th percentiles seen on an H200's steps that were not fitted, on cards left
# out and on architectures left out, rounded up
SPREAD = {"card": 0.21, "architecture": 0.23, "none": 0.27}
FEW = 3  # of an H200's operators one of so many, where many fits are made
STEP = 1e-3  # that constants are moved by, for slopes
GROUPS = ("half", "tf32")
LARGE = 0.25  # deviation from which a point counts less


def names_in(points: Iterable[Measured]) -> dict[str, tuple[float, float]]:
    """The constants that these points speak of, with their priors."""
    found = dict(PRIORS)
    for point in points:
        if point.factor:
            found[f"factor.{point.factor}"] = (0.0, FACTOR)
        if point.start:
            found[f"launch.{point.start}"] = (log(30e-6), 1.0)
        found[f"bandwidth.{point.card.architecture}"] = (0.0, ARCHITECTURE)
        for cost in point.costs:
            if cost.product is None:
                found[f"memory.{cost.kind}"] = (-0.35, KIND)
                found[f"start.{cost.kind}"] = (0.0, 0.7)
                if cost.units:
                    found[f"units.{cost.kind}"] = (1.8, 2.0)
                continue
            group = "half" if cost.pipe in ("fp16", "bf16") else cost.pipe
            emulated = cost.pipe in point.card.emulated
            found[f"peak.{'fp32' if emulated else group}.{point.card.architecture}"] = (0.0, ARCHITECTURE)
            if cost.kind != "product":
                found[f"product.{cost.kind}"] = (0.0, KIND)
            if group != "fp32":
                found[f"product.{cost.kind}.{group}"] = (0.0, 0.3)
            if cost.kind.startswith(("convolution", "grouped")) and group != "fp32":
                found["memory.layout"] = (-0.3, 0.3)
            if "depthwise" in cost.kind:
                found[f"memory.{cost.kind}"] = (-0.7, 1.0)
    return found


def predicted_seconds(point: Measured, constants: dict[str, float]) -> float:
    """What the model says of a point, the launch that was measured with it included."""
    return _whole(point, _each(point, constants), constants)


def _each(point: Measured, constants: dict[str, float]) -> np.ndarray:
    """Seconds of each cost of a point, as often as it occurs."""
    if point.host:
        return np.zeros(0)
    seconds = (kernel_seconds(cost, point.card, constants) for cost in point.costs)
    return np.fromiter(seconds, float, len(point.costs)) * _times(point)


def _times(point: Measured) -> np.ndarray:
    if point.asked is not None:
        return np.array([*point.asked.costs.values()], float)
    return np.array(point.times or (1.0,) * len(point.costs), float)


def _whole(point: Measured, each: np.ndarray, constants: dict[str, float]) -> float:
    if point.asked is None:
        launch = float(np.exp(constants[f"launch.{point.start}"])) if point.start else 0.0
        return float(each.sum()) + launch
    host_s = host_seconds(point.asked.launches, constants)
    if point.host:
        return host_s
    return join(float(each.sum()), host_s) * float(np.exp(constants.get(f"factor.{point.factor}", 0.0)))


def fit(points: list[Measured], rounds: int = 12, say: Callable[[str], None] = print) -> dict[str, float]:
    """Constants by damped Gauss-Newton steps."""
    priors = names_in(points)
    names = list(priors)
    centre = np.array([priors[name][0] for name in names])
    width = np.array([priors[name][1] for name in names])
    touches = [_touching(name, points) for name in names]
    weights = _weights(points)
    target = np.array([log(point.seconds) for point in points])

    def deviations(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        constants = dict(zip(names, map(float, values), strict=True))
        each = [_each(point, constants) for point in points]
        whole = [log(_whole(point, found, constants)) for point, found in zip(points, each, strict=True)]
        return np.array(whole) - target, each

    def column(number: int, values: np.ndarray, current: np.ndarray, each: list[np.ndarray]) -> np.ndarray:
        """How deviations change with a constant: only the costs that it has to do with are worked out again."""
        found = np.zeros(len(points))
        moved = values.copy()
        moved[number] += STEP
        constants = dict(zip(names, map(float, moved), strict=True))
        for row, which in touches[number].items():
            point, parts = points[row], each[row].copy()
            times = _times(point)
            for place in which:
                parts[place] = times[place] * kernel_seconds(point.costs[place], point.card, constants)
            found[row] = (log(_whole(point, parts, constants)) - target[row] - current[row]) / STEP
        return found

    values, damping = centre.copy(), 1e-2
    current, each = deviations(values)

    def loss(found: np.ndarray, at: np.ndarray) -> float:
        small = np.abs(found)
        robust = np.where(small < LARGE, found**2 / 2, LARGE * (small - LARGE / 2))
        return float(np.sum(weights * robust) / 0.2**2 + np.sum(((at - centre) / width) ** 2) / 2)

    best = loss(current, values)
    for number in range(rounds):
        jacobian = np.stack([column(at, values, current, each) for at in range(len(names))], axis=1)
        robust = weights * np.where(np.abs(current) < LARGE, 1.0, LARGE / np.maximum(np.abs(current), 1e-9)) / 0.2**2
        hessian = jacobian.T @ (jacobian * robust[:, None]) + np.diag(1 / width**2)
        slope = jacobian.T @ (current * robust) + (values - centre) / width**2
        for _ in range(6):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -slope)
            there = values + np.clip(step, -1.0, 1.0)
            found, found_each = deviations(there)
            reached = loss(found, there)
            if reached < best:
                damping = max(damping / 5, 1e-6)
                break
            damping *= 8
        else:
            break
        gained = best - reached
        values, current, each, best = there, found, found_each, reached
        say(f"round {number}: loss {best:.1f}, median |error| {np.median(np.abs(current)):.3f}")
        if gained < 1e-3 * best:
            break
    return dict(zip(names, map(float, values), strict=True))


def _touching(name: str, points: list[Measured]) -> dict[int, list[int]]:
    """Points that a constant has to do with, each with its costs for which that is so."""
    first, _, rest = name.partition(".")
    found: dict[int, list[int]] = {}
    for row, point in enumerate(points):
        if first in ("launch", "factor"):
            if rest == (point.start if first == "launch" else point.factor):
                found[row] = []
        elif first == "host":
            if point.asked is not None:
                found[row] = []
        elif not point.host:
            which = [place for place, cost in enumerate(point.costs) if _speaks(first, rest, cost, point.card)]
            if which:
                found[row] = which
    return found


def _speaks(first: str, rest: str, cost: Cost, card: Rates) -> bool:
    """Whether a constant takes part in a cost on a card."""
    head, _, tail = rest.partition(".")
    if first == "bandwidth":
        return card.architecture == rest
    if first == "ramp" or (first, rest) == ("start", ""):
        return True
    if (first, rest) == ("memory", "layout"):
        return cost.kind.startswith(("conv", "grouped"))
    if first in ("memory", "units", "start", "product") and rest not in GROUPS:
        return head == cost.kind or (first == "memory" and rest == "product" and cost.product is not None)
    if cost.product is None:
        return False
    if first == "peak" and tail:
        return tail == card.architecture
    return True


def _weights(points: list[Measured]) -> np.ndarray:
    """So that each kind on each card counts the same, but more with more points."""
    count: dict[tuple[str, str], int] = {}
    for point in points:
        key = (point.group, point.card.name)
        count[key] = count.get(key, 0) + 1
    return np.array([_weight(point, count[point.group, point.card.name]) for point in points])


def _weight(point: Measured, alike: int) -> float:
    if point.asked is not None:
        ours = STEP_WEIGHT if point.source.startswith("H200") else PUBLIC_STEP_WEIGHT
        return HOST_WEIGHT if point.host else ours
    return (H200_WEIGHT if point.source == H200 else 1.0) * float(alike**-0.5)


def report(points: list[Measured], constants: dict[str, float], title: str) -> None:
    """Errors by kind and card."""
    errors: dict[tuple[str, str], list[float]] = {}
    for point in points:
        known = {f"launch.{point.start}": log(30e-6), f"factor.{point.factor}": 0.0, **constants}
        errors.setdefault((point.group, point.card.name), []).append(
            predicted_seconds(point, known) / point.seconds - 1
        )
    print(title)
    for (group, card), found in sorted(errors.items()):
        size = np.abs(found)
        print(
            f"  {group:28} {card:18} n {len(found):5}  bias {np.median(found):+.3f}  median {np.median(size):.3f}"
            f"  90 % {np.quantile(size, 0.9):.3f}"
        )


def leave_out_in_turn(points: list[Measured], groups: list[set[str]], nearness: str) -> list[LeftOut]:
    """Predictions of steps on cards that the fit knows nothing of: neither their steps nor their operators."""
    steps = [step for step in load() if step.table != "Lambda 2019"]
    found: list[LeftOut] = []
    for out in groups:
        used = [point for point in points if point.card.name not in out]
        pairs = predicted([step for step in steps if step.card in out], fit(used, rounds=5, say=lambda _: None))
        print(time.strftime("%H:%M:%S"), end=" ", flush=True)
        summary(pairs, f"without {', '.join(sorted(out))}")
        found += [LeftOut(*step[:-1], seconds, nearness) for step, seconds in pairs]
    return found


def groups_of(points: list[Measured], folds: int) -> tuple[list[set[str]], list[set[str]]]:
    """Cards that have steps, in so many groups, and by architecture."""
    cards = {point.card.name: point.card.architecture for point in points if point.asked is not None}
    names = sorted(cards)
    whole = {point.card.name: point.card.architecture for point in points}
    by_architecture = [{name for name, its in whole.items() if its == each} for each in sorted(set(cards.values()))]
    return [set(names[fold::folds]) for fold in range(folds)], by_architecture


def main() -> None:
    """Fits, reports and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public tables")
    parser.add_argument(
        "--steps", nargs="*", default=STEPS, help="tables of kept steps that count (default: %(default)s)"
    )
    parser.add_argument("--folds", type=int, help="instead, leave every card out once, in so many groups, and report")
    parser.add_argument("--leave-out", nargs="*", help="cards that are kept out of the fit and reported apart")
    parser.add_argument("--most", type=int, default=120, help="points of each kind on each card (default 120)")
    parser.add_argument(
        "--out", type=Path, help=f"where the constants go; default {OUT.name}, nowhere with --leave-out"
    )
    arguments = parser.parse_args()
    points = [
        *neusight_kernels(arguments.data, arguments.most),
        *neusight_convolutions(arguments.data, 3 * arguments.most),
    ]
    steps = [step for step in load() if step.table in arguments.steps]
    few = FEW if arguments.folds else 1
    points += [*map(measured_step, steps), *[*measured_ops()][::few], *profiled_steps(steps), *host_times(steps)]
    if arguments.folds:
        groups, architectures = groups_of(points, arguments.folds)
        found = leave_out_in_turn(points, groups, "card")
        found += leave_out_in_turn(points, architectures, "architecture")
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
            if not name.startswith(("launch.", "factor."))
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


if __name__ == "__main__":
    main()
