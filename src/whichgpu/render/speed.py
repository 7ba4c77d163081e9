"""Predicted speeds: a card's in two lines, and a table of cards, the fastest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console

from whichgpu import text
from whichgpu.advice import FitRow
from whichgpu.catalogue import Price
from whichgpu.currency import DOLLARS, Rate
from whichgpu.render.common import add_column, dense_table, listed, narrow_if_needed, print_section
from whichgpu.runs import Run
from whichgpu.speed.record import PredictedSpeed
from whichgpu.speed_accuracy import SpeedAccuracy

SHOWN = 12
_USUAL = 76  # below this, what limits a card and how sure a run's time is are left to --json
LIMITS = {"compute": "arithmetic", "memory": "memory", "host": "the host"}
_MARKS = {"predicted": "", "measured": "m", "published": "p"}
_KNOWN = 4  # of the measured and published speeds at other batches that are shown: those of the largest


class Row(NamedTuple):
    """A card in a table of speeds."""

    gpu: str
    speed: PredictedSpeed | None
    best: PredictedSpeed | None = None  # at another batch
    ratio: float | None = None  # to the baseline's


def speed_facts(row: FitRow, baseline: str | None) -> list[tuple[str, str]]:
    """A card's speed, as titles with what is said of them; nothing where it is unknown."""
    found, ratio = row.speed, row.relative_speed
    if found is None:
        return [("speed", row.speed_missing)] if row.supported and row.speed_missing and row.max_batch_size else []
    times = f", {ratio:.2f} times the {baseline}" if ratio is not None and baseline is not None else ""
    step = f"{text.format_duration(found.step_s)}{_ends(found)}; limited by {_limit(found)}"
    facts = [("speed", f"{_at(found)}{times}"), ("step time", step)]
    if (best := row.best_speed) is not None:
        more = text.format_percent(best.samples_per_s / found.samples_per_s - 1)
        facts.append(("fastest batch", f"{_at(best)}, {more} more than at the largest"))
    facts += [("", row.speed_note)] * bool(row.speed_note)
    others = [one for one in row.known_speeds if one.batch_size != found.batch_size]
    facts += [(one.basis, _known(one)) for one in others[-_KNOWN:]]
    if row.run is not None:
        facts.append(("a run", _run_in_words(row.run)))
    return facts


def _limit(found: PredictedSpeed) -> str:
    return LIMITS[found.limit] if found.limit is not None else text.UNKNOWN


def _at(found: PredictedSpeed) -> str:
    """A speed with its batch, basis and interval."""
    said = f"{format_rate(found.samples_per_s)} samples/s at batch size {text.format_count(found.batch_size)}, {found.basis}"
    if found.basis == "predicted":
        return f"{said}: between {format_rate(found.samples_per_s_low)} and {format_rate(found.samples_per_s_high)}"
    return f"{said} ({found.source})"


def _ends(found: PredictedSpeed) -> str:
    if found.basis == "published":
        return ""
    level = "80 %" if found.basis == "predicted" else "95 %"
    return f" ({level}: {text.format_duration(found.step_low_s)} to {text.format_duration(found.step_high_s)})"


def _known(found: PredictedSpeed) -> str:
    rate = format_rate(found.samples_per_s)
    return f"{rate} samples/s at batch size {text.format_count(found.batch_size)} ({found.source})"


def _run_in_words(run: Run) -> str:
    time = text.format_long(run.seconds)
    ends = f"{text.format_long(run.seconds_low)} to {text.format_long(run.seconds_high)}"
    energy = f", at most {format_rate(run.energy_kwh)} kWh for the board" if run.energy_kwh is not None else ""
    batch = text.format_count(run.batch_size)
    return f"{text.format_count(run.samples)} samples take {time} ({ends}) at batch size {batch}{energy}"


def print_speeds(title: str, rows: Iterable[Row], baseline: str | None, console: Console) -> None:
    """The fastest cards, each at its own largest batch; nothing where no speed is known."""
    known = [row for row in rows if row.speed is not None]
    known.sort(key=lambda row: -row.speed.samples_per_s if row.speed is not None else 0.0)
    if not known:
        return
    shown = known[:SHOWN]
    table = dense_table()
    table.add_column("\nCard", overflow="fold")
    limits = console.width >= _USUAL
    for column in ("\nBatch>", "Samples\na second>", "80 %\nbetween>", "\nStep>", *(["\nLimit"] * limits)):
        add_column(table, column)
    compared = any(row.ratio is not None for row in shown)
    if compared:
        add_column(table, "Re-\nlative>")
    for row in shown:
        found = row.speed
        assert found is not None
        ends = f"{format_rate(found.samples_per_s_low)} to {format_rate(found.samples_per_s_high)}"
        rate = format_rate(found.samples_per_s) + _MARKS[found.basis]
        cells = [text.format_count(found.batch_size), rate, ends, text.format_duration(found.step_s)]
        table.add_row(row.gpu, *cells, *([_limit(found)] * limits), *_ratio(row.ratio, compared))
    narrow_if_needed(table, console)
    print_section(title, "bold", table, console)
    console.print()
    console.print(_words(len(known), baseline if compared else None) + _better(shown))
    for row in shown:
        if row.speed is not None and row.speed.basis != "predicted":
            console.print(f"{_MARKS[row.speed.basis]}  {row.gpu}: {row.speed.basis} ({row.speed.source})")


def _better(rows: Iterable[Row]) -> str:
    """At which batch sizes cards are faster than at the largest."""
    found = [
        f"{row.gpu} {format_rate(row.best.samples_per_s)} at {text.format_count(row.best.batch_size)}"
        for row in rows
        if row.best is not None
    ]
    return f" Faster at a smaller batch: {listed(found)}." if found else ""


def print_runs(
    title: str,
    runs: Iterable[tuple[str, Run | None, Price | None]],
    console: Console,
    money: Rate = DOLLARS,
) -> None:
    """What a run takes, the cheapest rent first, or the quickest where no rent is known."""
    known = [(gpu, run, rent) for gpu, run, rent in runs if run is not None]
    known.sort(key=lambda row: (row[1].rent_usd is None, row[1].rent_usd or 0.0, row[1].seconds))
    if not known:
        return
    rented = any(run.rent_usd is not None for _, run, _ in known)
    table = dense_table()
    table.add_column("\nCard", overflow="fold")
    spread = console.width >= _USUAL
    for column in ("\nBatch>", "\nTime>", *(["80 %\nbetween>"] * spread), "Energy\nkWh>"):
        add_column(table, column)
    for column in (f"Rent\n{money.code}>", f"{money.code}/h>", "") if rented else ():
        add_column(table, column)
    for gpu, run, rent in known[:SHOWN]:
        ends = f"{text.format_long(run.seconds_low)} to {text.format_long(run.seconds_high)}"
        energy = text.UNKNOWN if run.energy_kwh is None else format_rate(run.energy_kwh)
        cells = [text.format_count(run.batch_size), text.format_long(run.seconds), *([ends] * spread), energy]
        table.add_row(gpu, *cells, *(_rent(run, rent, money) if rented else ()))
    narrow_if_needed(table, console)
    order = "the cheapest rent first" if rented else "the quickest first"
    print_section(f"{title}, {order}", "bold", table, console)
    console.print()
    rest = f" {SHOWN} of {len(known)}; --json has all." if len(known) > SHOWN else ""
    prices = " Rent is the price of an hour (its month beside it) by the time." if rented else ""
    console.print(
        f"Time is that of the steps alone, at the batch with most samples per second; energy is that of the board at its "
        f"power limit, the most it can take.{prices}{rest}"
    )


def _rent(run: Run, rent: Price | None, money: Rate) -> tuple[str, str, str]:
    if run.rent_usd is None or rent is None:
        return text.UNKNOWN, "", ""
    whole, hour = money.of_usd(run.rent_usd), money.of_usd(rent.usd)
    return text.format_amount(whole), text.format_amount(hour, rent.unit), text.format_month(rent.newest)


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
