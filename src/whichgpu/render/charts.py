"""Charts as bars of text, from the records that pictures are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.charts.records import BatchChart, Chart, RelativeChart, ValueChart
from whichgpu.charts.words import bases_of, below_title, title_of
from whichgpu.render.common import add_column, bar, breakable, dense_table, print_notes, print_whole

_WIDEST_BAR, _NARROWEST_BAR = 36, 8
_COLOURS = ("blue", "red", "green", "yellow", "magenta", "cyan", "white")
_MARKS = {"predicted": "", "measured": "m", "published": "p"}
_FRONT = "<"


def print_chart(chart: Chart, console: Console, picture: str | None = None) -> None:
    """Print a chart as bars, or only say where its `picture` is."""
    if picture is not None:
        console.print(f"Drawn into {picture}")
        print_notes(chart.notes, console)
        return
    console.print(Text(breakable(title_of(chart)), "bold"))
    if isinstance(chart, ValueChart):
        console.print(f"{chart.unit[:1].upper()}{chart.unit[1:]}; 80 % intervals of the speed")
        _print_value(chart, console)
    elif isinstance(chart, RelativeChart):
        console.print(below_title(chart).replace("; lines: ", "; "))
        _print_relative(chart, console)
    else:
        assert isinstance(chart, BatchChart)
        console.print(f"{chart.unit[:1].upper()}{chart.unit[1:]}; safe: fits even at the high end of the prediction")
        _print_batch(chart, console)
    console.print()
    for basis in bases_of(chart):
        if _MARKS[basis]:
            console.print(f"{_MARKS[basis]}  {basis}")
    console.print(chart.source)
    print_notes(chart.notes, console)


def _bar(share: float, console: Console, beside: int, colour: str) -> Text:
    width = min(max(console.width - beside, _NARROWEST_BAR), _WIDEST_BAR)
    return Text(bar(share, width, ascii_only=console.options.ascii_only, least=1), colour)


def _table(console: Console, titles: Sequence[str]) -> Table:
    table = dense_table()
    table.add_column(titles[0], overflow="fold")
    for title in titles[1:]:
        add_column(table, title)
    add_column(table, "")
    console.print()
    return table


def _print_value(chart: ValueChart, console: Console) -> None:
    table = _table(console, ["Card", "Sold as>", "USD>", "Value>", "80 % between>"])
    most = max(point.value for point in chart.points)
    unit = "hour" if chart.price == "rent" else "once"
    for point in chart.points:
        ends = "" if point.low == point.high else f"{text.format_rate(point.low)} to {text.format_rate(point.high)}"
        drawn = _bar(point.value / most, console, 64, "red" if point.front else "blue")
        drawn.append(f" {_FRONT}" if point.front else "")
        value = text.format_rate(point.value) + _MARKS[point.basis]
        old = "" if point.current else "~"
        table.add_row(
            point.gpu, f"{point.memory_gb} GB", f"{old}{text.format_amount(point.usd, unit)}", value, ends, drawn
        )
    print_whole(table, console)
    console.print()
    console.print(f"{_FRONT}  no card of today's prices has as much memory and more value")
    if not all(point.current for point in chart.points):
        console.print("~  an old price, or that of the launch")


def _print_relative(chart: RelativeChart, console: Console) -> None:
    several = len(chart.series) > 1
    titles = ["Card", "Sold as>", *(["Of"] if several else []), "Speed>", "80 % between>"]
    table = _table(console, titles)
    most = max(one.value for row in chart.rows for one in row.bars if one is not None)
    longest = max(map(len, chart.series)) + 2 if several else 0
    for row in chart.rows:
        for number, (name, one) in enumerate(zip(chart.series, row.bars, strict=True)):
            first = [row.gpu, f"{row.memory_gb} GB"] if number == 0 else ["", ""]
            of = [name] if several else []
            if one is None:
                table.add_row(*first, *of, text.UNKNOWN, "", "does not train all")
                continue
            ends = "" if one.low == one.high else f"{text.format_rate(one.low)} to {text.format_rate(one.high)}"
            drawn = _bar(one.value / most, console, 56 + longest, _COLOURS[number % len(_COLOURS)])
            table.add_row(*first, *of, text.format_ratio(one.value) + _MARKS[one.basis], ends, drawn)
    print_whole(table, console)


def _print_batch(chart: BatchChart, console: Console) -> None:
    several = len(chart.series) > 1
    table = _table(console, ["Sold as", *(["Of"] if several else []), "Batch>", "Safe>"])
    most = max(point.value for one in chart.series for point in one.points)
    longest = max(len(one.name) for one in chart.series) + 2 if several else 0
    by_size: dict[int, list[tuple[int, float, float]]] = {}
    for number, one in enumerate(chart.series):
        for point in one.points:
            by_size.setdefault(point.memory_gb, []).append((number, point.value, point.low))
    for size, found in sorted(by_size.items()):
        for place, (number, value, low) in enumerate(found):
            of = [chart.series[number].name] if several else []
            drawn = _bar(value / most, console, 34 + longest, _COLOURS[number % len(_COLOURS)])
            table.add_row("" if place else f"{size} GB", *of, _batch(chart, value), _batch(chart, low), drawn)
    print_whole(table, console)


def _batch(chart: BatchChart, value: float) -> str:
    return text.format_ratio(value) if chart.baseline is not None else text.format_count(int(value))
