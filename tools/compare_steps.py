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
from whichgpu.speed import constants
from whichgpu.speed.step_time import predict

CONSTANTS = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "speed.json"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
_BASELINE, _NEAR = "Quadro RTX 8000", 0.12
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


def predicted(steps: Iterable[Step], values: dict[str, float]) -> list[Pair]:
    """Each step with its prediction."""
    return [(step, predict(step.asked, card_named(step.card), values).step_s) for step in steps]


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


def page() -> str:
    """docs/speed.md: how near predictions of speed are to what was measured and published."""
    fit = constants.load()
    everything = predicted(load(), fit.constants)
    left = [LeftOut(*json.loads(line)) for line in LEFT_OUT.read_text().splitlines()]
    lines = [*_HEAD, *_fitted_words(fit), "", "## Cards that the fit knows nothing of", "", *_OUT_WORDS, ""]
    for nearness, what in (("card", "the card left out"), ("architecture", "its whole architecture left out")):
        rows = [row for row in left if row.nearness == nearness]
        lines += [f"With {what}:", "", *_TABLE_HEAD]
        lines += [
            _line(table, [(row.seconds, row.predicted) for row in rows if row.table == table and row.counts_samples])
            for table in dict.fromkeys(row.table for row in rows)
        ]
        held = [abs(log(row.predicted / row.seconds)) <= _width(fit, nearness) for row in rows if row.counts_samples]
        lines += [
            "",
            f"Within the interval that is given for such a card: {sum(held) / len(held):.0%} of {len(held)}.",
            "",
        ]
    lines += ["## Cards that were fitted to", "", *_FITTED_WORDS, "", *_TABLE_HEAD]
    for table in dict.fromkeys(step.table for step, _ in everything):
        rows_of = [
            (step.seconds, seconds) for step, seconds in everything if step.table == table and step.counts_samples
        ]
        lines.append(_line(table, rows_of))
    right, wrong = orders([pair for pair in everything if not pair[0].table.startswith("H200")])
    share = right / (right + wrong)
    lines += ["", f"Of two cards that differ by more than 15 % at the same batch, the order is right in {right:,} of "]
    lines[-1] += f"{right + wrong:,} pairs ({share:.1%})."
    lines += ["", "## Relative to the Quadro RTX 8000, 2020", "", *_RELATIVE_WORDS, "", *_relative(everything)]
    return "\n".join(lines) + "\n"


_HEAD = [
    "# How near predictions of speed are",
    "",
    "Written by `python tools/compare_steps.py --write`. No command shows predicted speeds yet.",
    "",
]
_OUT_WORDS = [
    "Each step is rebuilt at its own batch size and precision. Cards are left out in groups, with all their operators and steps,",
    "and so are whole architectures. The rules of the model (which copies, which kernels) were made with these tables in sight, and",
    "the width of the interval is one figure that was read off them; the constants were not.",
]
_FITTED_WORDS = [
    "`Lambda 2020-2025`, some of it on an H200, and `H200 truth` are fitted to; the others are not. `Lambda 2019` ran TensorFlow 1.13, PyTorch 0.4 and 1.0:",
    "its seconds are those of other implementations. `H200 held out` and `H200 truth` are steps of the truth set, `H200 bench` is",
    "`whichgpu bench` on ready workloads.",
]
_RELATIVE_WORDS = [
    "Published, then predicted, each card at its own largest published batch; * where they differ by more than 0.12. Not shown by",
    "a measurement: MT-DNN's optimizer of 2019 went over its 400 tensors one by one, which small batches pay for most and ours does",
    "not; the other stars are not explained. Yolo v3 has no public notes.",
]
_TABLE_HEAD = ["| table | steps | median error | 90th percentile |", "|---|---:|---:|---:|"]


def _fitted_words(fit: constants.Fit) -> list[str]:
    sources = "; ".join(fit.fitted_on)
    return [
        f"{len(fit.constants)} constants were fitted on {fit.date} to {fit.points:,} points ({sources}), of {len(fit.cards)} cards.",
        "None of them belongs to a model.",
    ]


def _width(fit: constants.Fit, nearness: str) -> float:
    return fit.spread["architecture" if nearness == "card" else "none"]


def _line(table: str, rows: list[tuple[float, float]]) -> str:
    errors = [abs(seconds / measured - 1) for measured, seconds in rows]
    high = f"{quantiles(errors, n=10)[-1]:.1%}" if len(errors) > 1 else ""
    return f"| {table} | {len(errors)} | {median(errors):.1%} | {high} |" if errors else f"| {table} | 0 | | |"


def _relative(pairs: list[Pair]) -> list[str]:
    largest: dict[str, dict[str, tuple[int, float, float]]] = {}
    for step, seconds in pairs:
        if step.table != "Lambda 2019":
            continue
        cards = largest.setdefault(step.workload.partition("?")[0], {})
        if step.card not in cards or cards[step.card][0] < step.batch_size:
            cards[step.card] = (step.batch_size, step.batch_size / step.seconds, step.batch_size / seconds)
    names = [card for card in dict.fromkeys(card for cards in largest.values() for card in cards) if "V100" not in card]
    lines = ["| workload | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for workload, cards in largest.items():
        cells = [_cell(cards.get(name), cards[_BASELINE]) for name in names]
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    return lines


def _cell(card: tuple[int, float, float] | None, baseline: tuple[int, float, float]) -> str:
    if card is None:
        return ""
    published, seen = card[1] / baseline[1], card[2] / baseline[2]
    return f"{published:.2f} {seen:.2f}" + ("*" if abs(published - seen) > _NEAR else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--write", action="store_true", help="write docs/speed.md instead")
    arguments = parser.parse_args()
    if arguments.write:
        PAGE.write_text(page())
        return
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
