"""How good the predictions are: as text for a terminal, and as the page docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from whichgpu import text
from whichgpu.accuracy import AccuracyReport, Bar, Group, Step
from whichgpu.render.common import add_column, breakable, dense_table, narrow_if_needed, print_whole

_EVIDENCE = {
    "plain": "no convolutions",
    "convolutions": "convolutions",
    "sequences": "convolutions over sequences",
    "benchmark": "cudnn.benchmark",
    "recurrent": "recurrent (cuDNN)",
    "line": "follows its data",
    "compiled": "torch.compile",
}


class _Table(NamedTuple):
    title: str
    note: str
    columns: Sequence[str]  # a title that ends in ">" is of a column of numbers
    rows: Sequence[Sequence[str]]


def print_accuracy(report: AccuracyReport, console: Console) -> None:
    """Print bars, distribution, worst cases and largest batches."""
    console.print(Text("Predicted against measured memory", "bold"))
    console.print(_basis(report))
    for table in _tables(report):
        console.print()
        console.print(Text(table.title, "bold"))
        shown = dense_table()
        shown.add_column(table.columns[0])
        for column in table.columns[1:]:
            add_column(shown, column)
        for row in table.rows:
            shown.add_row(breakable(row[0], "_"), *row[1:])
        narrow_if_needed(shown, console)
        print_whole(shown, console)
        if table.note:
            console.print(table.note)


def to_markdown(report: AccuracyReport) -> str:
    """The page docs/accuracy.md: the same, and every step."""
    lines = [
        "# How good the predictions are",
        "",
        "Written by `python tools/fit_intervals.py`; do not edit. `whichgpu accuracy` prints the same in short.",
        "",
        _basis(report),
        "",
    ]
    for table in (*_tables(report), _all_steps(report.steps)):
        lines += [f"## {table.title}", "", "| " + " | ".join(title.rstrip(">") for title in table.columns) + " |"]
        lines.append("|" + "|".join("---:" if title.endswith(">") else "---" for title in table.columns) + "|")
        lines += ["| " + " | ".join(row).replace(" *", r" \*") + " |" for row in table.rows]
        lines += ["", *([table.note.replace("*:", r"\*:"), ""] if table.note else [])]
    return "\n".join(lines[:-1]) + "\n"


def _basis(report: AccuracyReport) -> str:
    steps = [step for step in report.steps if not step.compiled]
    return (
        f"{text.format_count(len(steps))} training steps at two batch sizes each, and "
        f"{text.format_count(len(report.steps) - len(steps))} that go through torch.compile. Measured on one "
        f"{report.gpu} ({report.measured_with}) on {report.measured_on}; predicted from traces of {report.traced_with}, made "
        "without a GPU. A third of the steps was held out: nothing was tuned on them. Other cards were not measured."
    )


def _tables(report: AccuracyReport) -> Iterable[_Table]:
    missed = [bar for bar in report.bars if not bar.met]
    yield _Table(
        "Bars",
        f"{text.format_count(len(missed))} of {text.format_count(len(report.bars))} are missed."
        + " Steps through torch.compile count in none." * any(step.compiled for step in report.steps),
        ("What", "Bound>", "Found>", ""),
        [_bar(bar) for bar in report.bars],
    )
    columns = ("", "Steps>", "Median>", "95th>", "Worst>", "Alloc.>", "Inside>")
    yield _Table(
        "Error of the reserved peak",
        "Median, 95th percentile and worst of the absolute error; the median for the allocated peak; how many of the measured "
        "peaks lie inside the predicted interval. Steps through torch.compile are predicted as if not compiled.",
        columns,
        [_group(group, group.name) for group in report.groups],
    )
    yield _Table("By family", "", columns, [_group(group, group.name) for group in report.families])
    yield _Table(
        "By what the interval follows from",
        "",
        columns,
        [_group(group, _EVIDENCE[group.name]) for group in report.evidence],
    )
    yield _worst(report)
    yield _largest(report)


def _bar(bar: Bar) -> tuple[str, ...]:
    def figure(value: float) -> str:
        return text.format_count(round(value)) if bar.unit == "count" else text.format_percent(value)

    bound = f"{'>=' if bar.least else '<='} {figure(bar.bound)}"
    return bar.name, bound, figure(bar.found), "met" if bar.met else "missed"


def _group(group: Group, name: str) -> tuple[str, ...]:
    errors = (group.reserved.median, group.reserved.percentile_95, group.reserved.worst, group.allocated.median)
    inside = f"{text.format_count(group.inside)}/{text.format_count(group.points)}"
    return name, text.format_count(group.steps), *map(text.format_percent, errors), inside


def _worst(report: AccuracyReport) -> _Table:
    rows = [
        (
            f"{one.name}{' *' * one.held_out}",
            text.format_count(one.batch_size),
            text.format_error(one.reserved_error),
            text.format_error(one.allocated_error),
            "yes" if one.inside else "no",
        )
        for one in report.worst
    ]
    note = "All that are off by more than the bar for the worst, or outside their interval. *: held out."
    return _Table("The worst cases", note, ("Step", "Batch>", "Reserved>", "Alloc.>", "Inside"), rows)


def _largest(report: AccuracyReport) -> _Table:
    found = report.largest
    rows = [
        (
            f"{step.name}{' *' * step.held_out}",
            text.format_bytes(step.largest.limit_bytes).replace(".0", ""),
            text.format_count(step.largest.predicted),
            text.format_count(step.largest.predicted_safe),
            f"{text.format_count(step.largest.measured)}{' +' * bool(step.largest.measured_above)}",
            text.format_error(step.largest.error),
        )
        for step in report.steps
        if step.largest is not None
    ]
    note = (
        f"*: held out. +: a larger one ran as well, past one that did not. Each batch was run in a process of its own; the next "
        f"larger one runs out of memory. Exact: {found.exact} of {found.steps}; exact or at most 2 % lower: {found.good}; "
        f"too high: {found.too_high}. The safe batch is {text.format_percent(found.safe_share)} of the true one in the middle. "
        f"Of {found.out_of_memory} batches that ran out of memory, {found.said_to_fit} are said to fit."
    )
    columns = ("Step", "Limit>", "Likely>", "Safe>", "True>", "Error>")
    return _Table("Largest batch under a limit", note, columns, rows)


def _all_steps(steps: Sequence[Step]) -> _Table:
    rows = [
        (
            f"{step.name}{' *' * step.held_out}",
            step.family,
            f"{step.kind}, {_EVIDENCE[step.evidence]}",
            text.format_count(point.batch_size),
            f"{text.format_bytes(point.low_bytes)} to {text.format_bytes(point.high_bytes)}",
            text.format_bytes(point.likely_bytes),
            text.format_bytes(point.measured_bytes),
            text.format_error(point.reserved_error),
            text.format_error(point.allocated_error),
        )
        for step in steps
        for point in step.points
    ]
    columns = ("Step", "Family", "Traced", "Batch>", "Interval>", "Likely>", "Measured>", "Reserved>", "Allocated>")
    return _Table("Every step", "*: held out.", columns, rows)
