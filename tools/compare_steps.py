"""Predicted against kept steps (tools/speed/data): errors by table and workload, and how often the order of two cards is right.

python tools/compare_steps.py [--constants FILE] [--verbose]
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from speed.sources import card_named
from speed.steps import Step, load
from whichgpu.speed.step_time import predict

CONSTANTS = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "speed.json"
LEFT_OUT = Path(__file__).parent / "speed" / "data" / "left_out.jsonl"  # written by tools/fit_speed.py --folds
Pair = tuple[Step, float]  # with the predicted seconds


class LeftOut(NamedTuple):
    """A step with what was predicted of it by a fit that knows nothing of its card, or of its whole architecture."""

    table: str
    workload: str
    batch_size: int
    card: str
    seconds: float
    counts_samples: bool
    predicted: float
    nearness: str  # "card" or "architecture": what was left out


def predicted(steps: Iterable[Step], constants: dict[str, float]) -> list[Pair]:
    """Each step with its prediction."""
    return [(step, predict(step.asked, card_named(step.card), constants).step_s) for step in steps]


def report(pairs: list[Pair]) -> None:
    """Errors by table and workload: as they are, and about one factor for all cards of the row."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for step, seconds in pairs:
        groups.setdefault((step.table, step.workload), []).append((step, seconds))
    for (table, workload), found in groups.items():
        logs = [log(seconds / step.seconds) for step, seconds in found]
        middle = median(logs)
        apart = sorted(abs(error - middle) for error in logs)
        own = f"factor {exp(middle):5.2f}" if found[0][0].counts_samples else "in other units"
        print(
            f"{table:17} {workload[:48]:48} n {len(found):3} {own:14} about it: median {median(apart):.3f}, worst {apart[-1]:.3f}"
        )


def summary(pairs: list[Pair], title: str) -> None:
    """Median and 90th percentile of the error of what counts samples, and right orders of cards."""
    errors = [abs(seconds / step.seconds - 1) for step, seconds in pairs if step.counts_samples]
    if len(errors) < 2:
        return
    right, wrong = orders(pairs)
    order = (
        f", order of two cards right in {right} of {right + wrong} ({right / (right + wrong):.1%})"
        if right + wrong
        else ""
    )
    print(f"{title}: {len(errors)} rows, median {median(errors):.1%}, 90 % {quantiles(errors, n=10)[-1]:.1%}{order}")


def orders(pairs: list[Pair]) -> tuple[int, int]:
    """How often the order of two cards that differ by more than 15 % at the same batch is right, and wrong."""
    rows: dict[tuple[str, str, int], list[Pair]] = {}
    for step, seconds in pairs:
        rows.setdefault((step.table, step.workload, step.batch_size), []).append((step, seconds))
    right = wrong = 0
    for same in rows.values():
        for (one, first), (other, second) in itertools.combinations(same, 2):
            if one.card != other.card and abs(log(one.seconds / other.seconds)) > log(1.15):
                agree = (one.seconds > other.seconds) == (first > second)
                right, wrong = right + agree, wrong + (not agree)
    return right, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    pairs = predicted(load(), json.loads(arguments.constants.read_text())["constants"])
    if arguments.verbose:
        for step, seconds in pairs:
            print(
                f"{step.table} {step.workload[:40]:40} {step.card:22} {step.batch_size:5} {seconds / step.seconds - 1:+.0%}"
            )
    report(pairs)
    for table in dict.fromkeys(step.table for step, _ in pairs):
        summary([pair for pair in pairs if pair[0].table == table], table)


if __name__ == "__main__":
    main()
