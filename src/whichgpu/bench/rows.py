"""Rows of the report: what a search came to, speeds, and rows of what was not measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from whichgpu.bench_report import BenchRow, Speed
from whichgpu.bench_search import Search
from whichgpu.results import Measurement, Outcome
from whichgpu.workload import WorkloadRef


@dataclass
class Tally:
    """What the row of one limit will say of the way to it."""

    started: float = field(default_factory=time.monotonic)
    attempts: int = 0
    recorded: int = 0
    search_s: float = 0.0
    message: str | None = None
    trouble: Outcome | None = None  # that ended it: busy, driver


def verdict(search: Search, tally: Tally, last: Mapping[int, Outcome]) -> tuple[Outcome, str | None]:
    """The outcome of a row and why."""
    if tally.trouble is not None:
        return tally.trouble, tally.message
    if search.largest:
        return "ok", None if search.exact else f"not proved to be the largest: {tally.message}"
    failures: list[Outcome] = [one for one in last.values() if one not in ("ok", "out_of_memory", "step_error")]
    if failures:
        return failures[-1], tally.message
    if "out_of_memory" in last.values():
        return "out_of_memory", None
    return "step_error", tally.message


def halves(largest: int, count: int) -> Iterator[int]:
    """The batch sizes at which steps are timed: the largest, its half, ..., so many at most."""
    size = largest
    for _ in range(count):
        if size < 1:
            return
        yield size
        size //= 2


def speed(measured: Measurement) -> list[Speed]:
    """The speed that a measurement holds, if it does."""
    if measured.step_s is None or measured.samples_per_second is None:
        return []
    return [
        Speed(
            batch_size=measured.batch_size,
            step_s=measured.step_s[0],
            step_low_s=measured.step_s[1],
            step_high_s=measured.step_s[2],
            steps=measured.steps,
            converged=bool(measured.converged),
            samples_per_second=measured.samples_per_second,
            units_per_second=measured.samples_per_second * measured.items_per_sample,
            peak_allocated_bytes=measured.peak_allocated_bytes,
            peak_reserved_bytes=measured.peak_reserved_bytes,
            power_w=measured.power_w,
            energy_per_sample_j=measured.energy_per_sample_j,
            sm_clock_mhz=measured.sm_clock_mhz,
            temperature_c=measured.temperature_c,
            throttled=measured.throttled,
        )
    ]


def unmeasured(ref: WorkloadRef, limit: int | None, outcome: Outcome, message: str | None) -> BenchRow:
    """A row without figures."""
    return BenchRow(
        workload=ref.text,
        memory_limit_bytes=limit,
        batch_size=None,
        outcome=outcome,
        message=message,
        max_batch_size=None,
        exact=False,
        stopped_by=None,
        multiple=1,
        predicted_max_batch_size=None,
        unit="samples",
        attempts=0,
        recorded=0,
        search_s=0.0,
        seconds=0.0,
        speeds=(),
    )
