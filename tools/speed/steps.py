"""Measured steps with what they ask of a card, in a file, so that fits and comparisons need no PyTorch."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from whichgpu.speed.asked import Cost, Product
from whichgpu.speed.step_time import Demand, Part

FILE = Path(__file__).parent / "data" / "steps.json.xz"


class Step(NamedTuple):
    """A measured or published step; `seconds` is right up to a factor of the workload unless `counts_samples`."""

    table: str
    workload: str
    batch_size: int
    card: str
    seconds: float
    counts_samples: bool
    asked: Demand


def save(steps: list[Step], path: Path = FILE) -> None:
    """Write steps; those that ask for the same share it."""
    demands: dict[str, int] = {}
    rows = []
    for step in steps:
        asked = step.asked
        text = json.dumps([_plain(part) for part in (asked.parts or (Part(asked.costs, asked.launches),))])
        rows.append([*step[:-1], demands.setdefault(text, len(demands))])
    path.parent.mkdir(exist_ok=True)
    whole = json.dumps({"demands": [json.loads(text) for text in demands], "steps": rows}, separators=(",", ":"))
    path.write_bytes(lzma.compress(whole.encode()))


def load(path: Path = FILE) -> list[Step]:
    """The steps that were kept."""
    whole = json.loads(lzma.decompress(path.read_bytes()))
    demands = [_demand(found) for found in whole["demands"]]
    return [Step(*row[:-1], demands[row[-1]]) for row in whole["steps"]]


def _plain(part: Part) -> list[Any]:
    return [[[*cost], times] for cost, times in part.costs.items()] + [{k: n for k, n in part.launches.items() if n}]


def _demand(found: list[list[Any]]) -> Demand:
    parts = tuple(map(_part, found))
    costs: Counter[Cost] = Counter()
    launches: Counter[str] = Counter()
    for part in parts:
        costs.update(part.costs)
        launches.update(part.launches)
    return Demand(dict(costs), dict(launches), parts if len(parts) > 1 else ())


def _part(found: list[Any]) -> Part:
    *pairs, launches = found
    return Part(
        {Cost(*fields)._replace(product=fields[5] and Product(*fields[5])): times for fields, times in pairs}, launches
    )
