"""Fits constants of the speed model to measured points: damped Gauss-Newton steps on logarithms of seconds, robust against single
points, with a prior for each constant.

Which constants a point speaks of is found by asking the model itself: `coefficients` is given a mapping that notes what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from speed.sources import Measured
from whichgpu.speed.host import KINDS
from whichgpu.speed.kernels import Columns, Constants, coefficients, columns_of, join, seconds_of, spread
from whichgpu.speed.rates import Rates

Floats = NDArray[np.float64]
Priors = Callable[[str], tuple[float, float]]
STEP = 1e-3  # that constants are moved by, for slopes
LARGE = 0.25  # deviation from which a point counts less
NOISE = 0.2  # of a point of weight 1, in logarithms
LAUNCH = log(30e-6)


class _Noting(dict[str, float]):
    """Constants that note which of them were asked for."""

    def __init__(self, values: Mapping[str, float], priors: Priors) -> None:
        super().__init__(values)
        self._priors = priors
        self.noted: set[str] = set()

    def get(self, name: str, default: float | None = None) -> float:  # type: ignore[override]
        self.noted.add(name)
        return super().get(name, self._priors(name)[0] if default is None else default)

    def __getitem__(self, name: str) -> float:
        return self.get(name)


class _Sort(NamedTuple):
    kind: str
    pipe: str
    product: bool
    card: Rates


class Points:
    """Measured points as columns: each cost on each card once, and how often each part of a point has it."""

    def __init__(self, points: Sequence[Measured], priors: Priors) -> None:
        self.points = points
        self.seconds = np.array([point.seconds for point in points])
        pairs: dict[tuple[str, object], int] = {}
        costs, cards, rows, places, times = [], [], [], [], []
        launched: list[Mapping[str, float]] = []
        part_of: list[int] = []
        for row, point in enumerate(points):
            for counted, launches in point.parts():
                for cost, count in () if point.host else counted:
                    key = (point.card.name, cost)
                    if key not in pairs:
                        pairs[key] = len(pairs)
                        costs.append(cost)
                        cards.append(point.card)
                    rows.append(len(part_of))
                    places.append(pairs[key])
                    times.append(count)
                part_of.append(row)
                launched.append(launches)
        self.part_of = np.array(part_of)
        self.rows, self.places, self.times = np.array(rows), np.array(places), np.array(times, float)
        self.columns, self.sorts = _by_card(columns_of(costs), cards)
        self.asked = [self._asked(sort, priors) for sort in self.sorts]
        self.own = {name: self._own(name) for name in self._names_of_points()}
        self.host = np.array([[launches.get(kind, 0) for kind in KINDS] for launches in launched], float)
        sessions = {points[row].session for row in part_of if points[row].session}
        self.sessions = {
            f"session.{name}": np.array([points[row].session == name for row in part_of]) for name in sorted(sessions)
        }
        self.steps = np.array([point.asked is not None and not point.host for point in points])
        self.of_host = np.array([point.host for point in points])

    @staticmethod
    def _asked(sort: _Sort, priors: Priors) -> set[str]:
        noting = _Noting({}, priors)
        coefficients(*sort, noting)
        return noting.noted

    def _names_of_points(self) -> list[str]:
        found = {f"launch.{point.start}" for point in self.points if point.start}
        return sorted(found | {f"factor.{point.factor}" for point in self.points if point.factor})

    def _own(self, name: str) -> NDArray[np.intp]:
        """The points that a constant of a measurement belongs to."""
        first, _, rest = name.partition(".")
        return np.array([n for n, p in enumerate(self.points) if rest == (p.start if first == "launch" else p.factor)])

    def names(self) -> list[str]:
        """All constants that these points speak of."""
        host = [f"host.{kind}" for kind in KINDS] if self.host.any() else []
        return sorted(set().union(*self.asked)) + host + list(self.own) + list(self.sessions)

    def kernel_seconds(self, constants: Constants, priors: Priors) -> Floats:
        """Seconds of each cost on its card."""
        noting = _Noting(constants, priors)
        return seconds_of(self.columns, spread(self.columns, [coefficients(*sort, noting) for sort in self.sorts]))

    def predicted(self, each: Floats, constants: Constants) -> Floats:
        """Seconds of points, from those of their costs."""
        return self.whole(self.gpu(each), constants)

    def gpu(self, each: Floats) -> Floats:
        """Seconds that the GPU takes for each part."""
        return np.bincount(self.rows, self.times * each[self.places], len(self.part_of))

    def whole(self, gpu: Floats, constants: Constants) -> Floats:
        """Seconds of points, from those that the GPU takes for their parts."""
        launch, factor = np.zeros(len(self.points)), np.ones(len(self.points))
        for name, which in self.own.items():
            if name.startswith("launch."):
                launch[which] = np.exp(constants.get(name, LAUNCH))
            else:
                factor[which] = np.exp(constants.get(name, 0.0))
        microseconds = np.array([constants.get(f"host.{kind}", 0.0) for kind in KINDS])
        host = 1e-6 * self.host @ microseconds
        for name, parts in self.sessions.items():
            host = np.where(parts, host * np.exp(constants.get(name, 0.0)), host)
        step, of_host, of_gpu = (
            np.bincount(self.part_of, seconds, len(self.points)) for seconds in (join(gpu, host), host, gpu)
        )
        return np.where(self.of_host, of_host, np.where(self.steps, step * factor, of_gpu + launch))


def _by_card(columns: Columns, cards: Sequence[Rates]) -> tuple[Columns, list[_Sort]]:
    """Columns whose sorts are told apart by card too."""
    sorts: dict[tuple[int, str], int] = {}
    named: list[_Sort] = []
    sort = np.zeros(len(cards), np.intp)
    for row, (number, card) in enumerate(zip(columns.sort, cards, strict=True)):
        key = (int(number), card.name)
        if key not in sorts:
            sorts[key] = len(named)
            named.append(_Sort(*columns.sorts[number], card))
        sort[row] = sorts[key]
    return columns._replace(sorts=tuple(tuple(one[:3]) for one in named), sort=sort), named


class _Touched(NamedTuple):
    """What a constant has to do with: sorts, costs, and where these stand in points."""

    sorts: list[int]
    costs: NDArray[np.intp]
    columns: Columns
    occurrences: NDArray[np.intp]
    local: NDArray[np.intp]  # of each occurrence, which of `costs`


def _touched(name: str, points: Points) -> _Touched:
    sorts = [number for number, asked in enumerate(points.asked) if name in asked]
    new = np.full(len(points.sorts), -1)
    new[sorts] = np.arange(len(sorts))
    costs = np.flatnonzero(new[points.columns.sort] >= 0)
    place = np.full(len(points.columns.sort), -1)
    place[costs] = np.arange(len(costs))
    occurrences = np.flatnonzero(place[points.places] >= 0)
    some = Columns(
        tuple(points.columns.sorts[number] for number in sorts), new[points.columns.sort[costs]],
        *(column[costs] for column in points.columns[2:]),
    )  # fmt: skip
    return _Touched(sorts, costs, some, occurrences, place[points.places[occurrences]])


class Fitting:
    """One fit."""

    def __init__(self, points: Sequence[Measured], weights: Floats, priors: Priors) -> None:
        self.points, self.weights, self.priors = Points(points, priors), weights, priors
        self.names = self.points.names()
        self.centre, self.width = np.array([priors(name) for name in self.names]).T
        self._touched = {name: _touched(name, self.points) for name in self.names if not self._is_of_points(name)}
        self._target = np.log(self.points.seconds)

    @staticmethod
    def _is_of_points(name: str) -> bool:
        return name.startswith(("host.", "launch.", "factor.", "session."))

    def _constants(self, values: Floats) -> dict[str, float]:
        return dict(zip(self.names, map(float, values), strict=True))

    def deviations(self, values: Floats) -> tuple[Floats, Floats]:
        """Logarithms of predicted by measured, and seconds of each cost."""
        constants = self._constants(values)
        each = self.points.kernel_seconds(constants, self.priors)
        return np.log(self.points.predicted(each, constants)) - self._target, each

    def slopes(self, values: Floats, current: Floats, each: Floats) -> Floats:
        """How deviations change with each constant."""
        gpu = self.points.gpu(each)
        found = np.zeros((len(current), len(values)))
        for number, name in enumerate(self.names):
            moved = values.copy()
            moved[number] += STEP
            constants = self._constants(moved)
            there = gpu
            if not self._is_of_points(name):
                there = gpu + self._change(self._touched[name], constants, each)
            found[:, number] = (np.log(self.points.whole(there, constants)) - self._target - current) / STEP
        return found

    def _change(self, touched: _Touched, constants: Constants, each: Floats) -> Floats:
        noting = _Noting(constants, self.priors)
        rows = [coefficients(*self.points.sorts[number], noting) for number in touched.sorts]
        change = seconds_of(touched.columns, spread(touched.columns, rows)) - each[touched.costs]
        its = touched.occurrences
        weights = self.points.times[its] * change[touched.local]
        return np.bincount(self.points.rows[its], weights, len(self.points.part_of))

    def loss(self, found: Floats, at: Floats) -> float:
        """What is made small."""
        small = np.abs(found)
        robust = np.where(small < LARGE, found**2 / 2, LARGE * (small - LARGE / 2))
        return float(np.sum(self.weights * robust) / NOISE**2 + np.sum(((at - self.centre) / self.width) ** 2) / 2)

    def run(self, rounds: int, say: Callable[[str], None]) -> dict[str, float]:
        """The constants."""
        values, damping = self.centre.copy(), 1e-2
        current, each = self.deviations(values)
        best = self.loss(current, values)
        for number in range(rounds):
            jacobian = self.slopes(values, current, each)
            robust = self.weights * np.where(np.abs(current) < LARGE, 1.0, LARGE / np.maximum(np.abs(current), 1e-9))
            robust /= NOISE**2
            hessian = jacobian.T @ (jacobian * robust[:, None]) + np.diag(1 / self.width**2)
            slope = jacobian.T @ (current * robust) + (values - self.centre) / self.width**2
            for _ in range(6):
                step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -slope)
                there = values + np.clip(step, -1.0, 1.0)
                found, found_each = self.deviations(there)
                reached = self.loss(found, there)
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
        return self._constants(values)
