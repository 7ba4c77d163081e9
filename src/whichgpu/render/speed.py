"""Predicted speeds: a card's in two lines, and a table of cards, the fastest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from whichgpu import text
from whichgpu.render.common import add_column, dense_table, narrow_if_needed, print_section
from whichgpu.speed.record import PredictedSpeed
from whichgpu.speed_accuracy import SpeedAccuracy

SHOWN = 12
_USUAL = 76  # below this, what limits a card is left to --json
_LIMITS = {"compute": "arithmetic", "memory": "memory", "host": "the host"}
Row = tuple[str, PredictedSpeed | None, float | None]  # card, its speed, and that as a ratio to the baseline's


def speed_facts(found: PredictedSpeed, ratio: float | None, baseline: str | None, note: str) -> list[tuple[str, str]]:
    """A card's speed, as titles with what is said of them."""
    size = text.format_count(found.batch_size)
    rate = f"{format_rate(found.samples_per_s)} samples/s at batch size {size}, predicted"
    spread = f"between {format_rate(found.samples_per_s_low)} and {format_rate(found.samples_per_s_high)}"
    times = f", {ratio:.2f} times the {baseline}" if ratio is not None and baseline is not None else ""
    step = f"{text.format_duration(found.step_s)} (80 %: {text.format_duration(found.step_low_s)} to {text.format_duration(found.step_high_s)})"
    facts = [("speed", f"{rate}: {spread}{times}"), ("step time", f"{step}; limited by {_LIMITS[found.limit]}")]
    return [*facts, ("", note)] if note else facts


def print_speeds(title: str, rows: Iterable[Row], baseline: str | None, console: Console) -> None:
    """The fastest cards, each at its own largest batch; nothing where no speed is known."""
    known = [(gpu, found, ratio) for gpu, found, ratio in rows if found is not None]
    if not known:
        return
    known.sort(key=lambda row: -row[1].samples_per_s)
    shown = known[:SHOWN]
    table = dense_table()
    table.add_column("\nCard", overflow="fold")
    limits = console.width >= _USUAL
    for column in ("\nBatch>", "Samples\na second>", "80 %\nbetween>", "\nStep>", *(["Limited\nby"] * limits)):
        add_column(table, column)
    compared = any(ratio is not None for _, _, ratio in shown)
    if compared:
        add_column(table, "Re-\nlative>")
    for gpu, found, ratio in shown:
        ends = f"{format_rate(found.samples_per_s_low)} to {format_rate(found.samples_per_s_high)}"
        cells = [
            text.format_count(found.batch_size),
            format_rate(found.samples_per_s),
            ends,
            text.format_duration(found.step_s),
        ]
        table.add_row(gpu, *cells, *([_LIMITS[found.limit]] * limits), *_ratio(ratio, compared))
    narrow_if_needed(table, console)
    print_section(title, "bold", table, console)
    console.print()
    console.print(_words(len(known), baseline if compared else None))


def _words(known: int, baseline: str | None) -> str:
    rest = f" The {SHOWN} fastest of {known}; --json has all." if known > SHOWN else ""
    one = f" Relative: the {baseline} is 1." if baseline is not None else ""
    return f"Predicted, each card at its own largest batch.{one}{rest}"


def _ratio(ratio: float | None, compared: bool) -> Sequence[str]:
    if not compared:
        return ()
    return (text.UNKNOWN if ratio is None else f"{ratio:.2f}",)


def format_rate(rate: float) -> str:
    """Three digits: "1,230", "45.6", "0.789", "3.64 M"."""
    if rate >= 999_500:
        return text.format_operations(round(rate))
    return text.format_rate(float(f"{rate:.3g}"))


def print_speed_accuracy(report: SpeedAccuracy, console: Console) -> None:
    """Print the bars, then the errors by table."""
    bars = dense_table()
    bars.add_column("Bar", overflow="fold")
    for column in ("Wanted", "Reached"):
        bars.add_column(column, overflow="fold")
    bars.add_column("")
    for bar in report.bars:
        bars.add_row(bar.title, bar.wanted, bar.reached, "met" if bar.met else "missed")
    print_section("How good are the predicted speeds?", "bold", bars, console)
    table = dense_table()
    table.add_column("Step times", overflow="fold")
    for column in ("Steps>", "Median\nerror>", "90 %\nbelow>"):
        add_column(table, column)
    for row in report.errors:
        title = f"{row.title} (fitted to)" if row.fitted else row.title
        table.add_row(title, text.format_count(row.steps), f"{row.median:.1%}", f"{row.percentile_90:.1%}")
    print_section("Errors, predicted against measured or published", "bold", table, console)
    console.print()
    console.print(f"Fitted on {report.date} to: {'; '.join(report.fitted_on)}. No constant belongs to a model.")
