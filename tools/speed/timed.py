"""Steps that were timed on H200s, by session, and how fast the host of a session is.

A step that the host limits takes as long as that host takes: the same steps were slower by 1.3 on one machine than on another with the
same card and processor, and vary on one machine from minute to minute. So a step that was timed in several sessions counts as the
latest quiet one timed it (nothing else ran on its host), and a session's host has a speed, which the fit finds from all its steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from speed.steps import Step

DATA = Path(__file__).parent / "data"
FIRST = DATA / "h200_steps.jsonl"  # 2 and 3 December 2026, on the host that has speed 1
# 3 December 2026: all other processes stopped while a step was timed, the host's speed beside each
STILL = DATA / "h200_steps_still.jsonl"
SPEEDS = DATA / "host_speeds.json"  # of sessions, written by tools/fit_speed.py
EARLIER = ", earlier"  # the end of the table of steps that a later session timed again
OF_PROFILES = ("busy_s", "kernels")
BUSY = 0.9  # share of a step that the GPU is busy from which the host counts for little
Key = tuple[str, int]


def key_of(step: Step) -> Key:
    """Workload, as it is called there, and batch size."""
    return step.workload.removeprefix("truth:"), step.batch_size


@cache
def _rows(path: Path) -> dict[Key, dict[str, Any]]:
    rows = map(json.loads, path.read_text().splitlines())
    return {(row["name"], row["batch_size"]): row for row in rows if "step_s" in row}


@cache
def latest() -> dict[Key, dict[str, Any]]:
    """Rows of tools/measure_steps.py by workload and batch size: the still session's, else the first's; with what a profile said."""
    first = _rows(FIRST)
    again = {
        key: {name: first[key][name] for name in OF_PROFILES if name in first.get(key, {})} | row
        for key, row in _rows(STILL).items()
    }
    return first | again


def first() -> dict[Key, dict[str, Any]]:
    """All rows of the first session, quiet or not."""
    return _rows(FIRST)


def earlier() -> dict[Key, dict[str, Any]]:
    """Quiet rows of the first session that the still one timed again."""
    return {key: row for key, row in _rows(FIRST).items() if row.get("quiet") and key in _rows(STILL)}


def row_of(step: Step) -> dict[str, Any] | None:
    """The row that a step's seconds come from; None for those of `whichgpu bench` and tools/measure_truth.py."""
    rows = _rows(FIRST) if step.table.endswith(EARLIER) else latest()
    row = rows.get(key_of(step)) if step.table.startswith("H200") else None
    return row if row is not None and row["step_s"] == step.seconds else None


def session_of(step: Step) -> str:
    """The session whose host has a speed of its own; "" for the reference."""
    row = row_of(step)
    return "still" if row is not None and "launches_us" in row else ""


def is_steady(step: Step) -> bool:
    """Whether a step's time is right whatever else the host did: the host was quiet, or the GPU was busy nearly all the time."""
    row = row_of(step)
    if row is None or row.get("quiet"):
        return True
    return bool(row.get("busy_s", 0.0) > BUSY * step.seconds)


def quiet_rows(steps: list[Step]) -> Iterator[tuple[Step, dict[str, Any]]]:
    """Steps that were timed while nothing else ran on the host."""
    for step in steps:
        row = row_of(step)
        if row is not None and row.get("quiet"):
            yield step, row


@cache
def speeds() -> dict[str, float]:
    """Speeds of sessions' hosts, times the reference's, as the fit of all found them."""
    found: dict[str, float] = json.loads(SPEEDS.read_text())
    return found


def speed_at(step: Step, session_speed: float) -> float:
    """The host's speed at that minute: the session's, and how much faster than usual its small step was before and after."""
    row = row_of(step)
    if row is None or "launches_us" not in row:
        return session_speed
    return session_speed * _usual() / _launches(row)


@cache
def _usual() -> float:
    return median(map(_launches, _rows(STILL).values()))


def _launches(row: dict[str, Any]) -> float:
    """Microseconds of the small step's phases before and after a step was timed, their geometric mean."""
    return exp(fmean(log(seconds) for probe in row["launches_us"] for seconds in probe.values()))
