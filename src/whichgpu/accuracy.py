"""How good the memory predictions are: predicted against measured, over the truth set.

The figures are packaged (data/accuracy.json, written by tools/fit_intervals.py from the traces and the measurements); this module
adds them up. Errors are relative to what was measured, and negative where less was predicted. Steps that go through
torch.compile are predicted as if they did not, and stand apart: they count in no bar. No torch, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import resources
from math import ceil
from statistics import median

import msgspec


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One step at one batch size, with all the memory of the card."""

    batch_size: int
    low_bytes: int  # the predicted interval of the reserved peak
    likely_bytes: int
    high_bytes: int
    measured_bytes: int
    allocated_bytes: int
    measured_allocated_bytes: int

    @property
    def reserved_error(self) -> float:
        """Of the reserved peak."""
        return self.likely_bytes / self.measured_bytes - 1

    @property
    def allocated_error(self) -> float:
        """Of the allocated peak."""
        return self.allocated_bytes / self.measured_allocated_bytes - 1

    @property
    def inside(self) -> bool:
        """Whether what was measured lies in the predicted interval."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch under a limit of PyTorch's allocator; each was tried in a process of its own."""

    limit_bytes: int
    predicted: int  # the likely one
    predicted_safe: int
    measured: int  # it ran and the next one did not; the lowest such batch, as `predicted` is
    measured_above: tuple[int, ...] = ()  # larger ones of which that was seen too
    out_of_memory: tuple[int, ...]  # batch sizes that were seen to fail
    said_to_fit: tuple[int, ...]  # those of them for which "fits" is said: a wrong answer

    @property
    def error(self) -> float:
        """Of the largest batch."""
        return self.predicted / self.measured - 1

    @property
    def good(self) -> bool:
        """Exact, or at most 2 % lower."""
        return 0.98 * self.measured <= self.predicted <= self.measured

    @property
    def too_high(self) -> bool:
        """More than 1 % and more than one sample higher."""
        return self.predicted > max(1.01 * self.measured, self.measured + 1)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of the truth set."""

    name: str
    family: str
    precision: str
    held_out: bool  # no rule or constant was tuned on it
    compiled: bool
    kind: str  # how it was traced
    evidence: str  # what its interval follows from
    points: tuple[Point, ...]
    largest: LargestBatch | None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The packaged figures."""

    gpu: str
    measured_with: str
    measured_on: str
    traced_with: str
    untraced: tuple[str, ...]  # steps that could not be traced
    steps: tuple[Step, ...]


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of absolute errors."""

    median: float
    percentile_95: float
    worst: float


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one kind."""

    name: str
    steps: int
    points: int
    reserved: Errors
    allocated: Errors
    inside: int  # points whose measured reserved peak lies in the predicted interval


class Largest(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of largest batches, over all steps for which one was searched."""

    steps: int
    exact: int
    good: int  # exact or at most 2 % lower
    too_high: int
    safe_share: float  # median of the safe batch, as a share of the measured one
    out_of_memory: int  # attempts that ran out of memory
    said_to_fit: int


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """What must be reached, and what is."""

    name: str
    bound: float
    found: float
    unit: str  # "share" or "count"
    least: bool  # the bound is a least value, else a most
    met: bool


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is outside the bar for the worst."""

    name: str
    batch_size: int
    held_out: bool
    evidence: str
    reserved_error: float
    allocated_error: float
    inside: bool


class AccuracyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu accuracy`."""

    basis: str
    gpu: str
    measured_with: str
    measured_on: str
    traced_with: str
    bars: tuple[Bar, ...]
    groups: tuple[Group, ...]  # all, those that rules were tuned on, held out, and torch.compile
    families: tuple[Group, ...]
    evidence: tuple[Group, ...]
    largest: Largest
    worst: tuple[Worst, ...]
    steps: tuple[Step, ...]


MEDIAN, PERCENTILE_95, WORST, ALLOCATED = 0.01, 0.03, 0.06, 0.005
GOOD = 0.9
HELD_OUT = 1.5  # the figures of the held-out steps may be so much larger


def load() -> Table:
    """The packaged figures."""
    return msgspec.json.decode((resources.files("whichgpu") / "data" / "accuracy.json").read_bytes(), type=Table)


def report(table: Table | None = None) -> AccuracyReport:
    """Distribution, bars and worst cases of the packaged figures, or of a table."""
    table = load() if table is None else table
    plain = [step for step in table.steps if not step.compiled]
    held_out = [step for step in plain if step.held_out]
    tuned = [step for step in plain if not step.held_out]
    compiled = [step for step in table.steps if step.compiled]
    groups = {"all": plain, "tuned": tuned, "held out": held_out, "torch.compile": compiled}
    return AccuracyReport(
        basis="predicted against measured",
        gpu=table.gpu,
        measured_with=table.measured_with,
        measured_on=table.measured_on,
        traced_with=table.traced_with,
        bars=tuple(_bars(table, plain, held_out)),
        groups=tuple(_group(name, steps) for name, steps in groups.items() if steps),
        families=_by(plain, lambda step: step.family),
        evidence=_by(plain, lambda step: step.evidence),
        largest=_largest(plain),
        worst=tuple(_worst(plain)),
        steps=table.steps,
    )


def _by(steps: Iterable[Step], key: Callable[[Step], str]) -> tuple[Group, ...]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(key(step), []).append(step)
    return tuple(_group(name, members) for name, members in groups.items())


def _group(name: str, steps: list[Step]) -> Group:
    points = [point for step in steps for point in step.points]
    return Group(
        name=name,
        steps=len(steps),
        points=len(points),
        reserved=_errors(point.reserved_error for point in points),
        allocated=_errors(point.allocated_error for point in points),
        inside=sum(point.inside for point in points),
    )


def _errors(errors: Iterable[float]) -> Errors:
    sizes = sorted(map(abs, errors))
    return Errors(median=median(sizes), percentile_95=sizes[max(ceil(0.95 * len(sizes)), 1) - 1], worst=sizes[-1])


def _largest(steps: Iterable[Step]) -> Largest:
    found = [step.largest for step in steps if step.largest is not None]
    return Largest(
        steps=len(found),
        exact=sum(one.predicted == one.measured for one in found),
        good=sum(one.good for one in found),
        too_high=sum(one.too_high for one in found),
        safe_share=median(one.predicted_safe / one.measured for one in found) if found else 0.0,
        out_of_memory=sum(len(one.out_of_memory) for one in found),
        said_to_fit=sum(len(one.said_to_fit) for one in found),
    )


def _bars(table: Table, steps: list[Step], held_out: list[Step]) -> Iterable[Bar]:
    yield _bar("steps that cannot be traced", 0, len(table.untraced), unit="count")
    for label, members, factor in (("", steps, 1.0), ("held out: ", held_out, HELD_OUT)):
        group, largest = _group(label, members), _largest(members)
        yield _bar(f"{label}reserved peak, median error", MEDIAN * factor, group.reserved.median)
        yield _bar(f"{label}reserved peak, 95th percentile", PERCENTILE_95 * factor, group.reserved.percentile_95)
        yield _bar(f"{label}reserved peak, worst error", WORST * factor, group.reserved.worst)
        yield _bar(f"{label}allocated peak, median error", ALLOCATED * factor, group.allocated.median)
        least = 1 - (1 - GOOD) * factor
        yield _bar(
            f"{label}largest batch exact or at most 2 % lower", least, largest.good / max(largest.steps, 1), least=True
        )
        yield _bar(f"{label}largest batch more than 1 % and one sample higher", 0, largest.too_high, unit="count")
    yield _bar('batches that ran out of memory and are said to "fit"', 0, _largest(steps).said_to_fit, unit="count")


def _bar(name: str, bound: float, found: float, *, unit: str = "share", least: bool = False) -> Bar:
    met = found >= bound if least else found <= bound
    return Bar(name=name, bound=bound, found=found, unit=unit, least=least, met=met)


def _worst(steps: Iterable[Step]) -> list[Worst]:
    found = [
        Worst(
            name=step.name,
            batch_size=point.batch_size,
            held_out=step.held_out,
            evidence=step.evidence,
            reserved_error=point.reserved_error,
            allocated_error=point.allocated_error,
            inside=point.inside,
        )
        for step in steps
        for point in step.points
        if abs(point.reserved_error) > WORST or not point.inside
    ]
    return sorted(found, key=lambda one: -abs(one.reserved_error))
