"""A ranking: the largest batches, workloads down and cards across, then three tiers with prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.advice import RankReport, RankRow, Sort, Tier, is_current
from whichgpu.advising.reasons import format_money
from whichgpu.catalogue import Price
from whichgpu.currency import Rate
from whichgpu.render.common import (
    add_column,
    breakable,
    dense_table,
    exchanged,
    format_batch,
    in_blocks,
    listed,
    longest_piece,
    narrow_if_needed,
    print_interrupted,
    print_legend,
    print_notes,
    print_section,
    print_title,
    print_unsupported,
    print_whole,
    traced,
)
from whichgpu.render.speed import Row, print_runs, print_speeds

_TIERS: dict[Tier, str] = {
    "all": "Trains all",
    "most": "Trains most (small batches)",
    "poor": "Not a good fit",
}
_GAP = 2  # between columns: one blank of padding, one of the box


class _Column(NamedTuple):
    """Cards with the same largest batches, in the order of recommendation."""

    number: int
    batches: tuple[str, ...]
    rows: list[RankRow]

    def memory(self) -> str:
        """What its cards are sold with."""
        return text.format_memory_classes((row.memory_bytes, row.gpu) for row in self.rows)


def print_rank(report: RankReport, console: Console) -> None:
    """Print a ranking: the largest batches, workloads down and cards across, then three tiers with prices.

    Cards with the same batches share a column, and each column's cards are listed below.
    """
    print_title("Largest batch that likely fits, as a power of two", report.basis, console)
    print_interrupted(report.missing, console)
    for workload, trace in report.traces.items():
        console.print(f"{breakable(workload)}: traced {traced(trace)}.")
    columns = _columns(report)
    for block in _blocks(report.workloads, columns, console):
        console.print()
        print_whole(_batch_table(report.workloads, block, console), console)
    if columns:
        _print_members(columns, report.sort, console)
    more = any(any(row.max_batch_size_at_least.values()) for row in report.gpus)
    print_legend(
        [batch for row in report.gpus for name, batch in row.max_batch_size.items() if name not in report.untraced],
        console,
        more=more,
    )
    numbers = {row.gpu: column.number for column in columns for row in column.rows}
    for tier, title in _TIERS.items():
        rows = [row for row in report.gpus if row.tier == tier and row.supported]
        if rows:
            _print_tier(title, rows, numbers, report, console)
    for name in report.workloads:
        rows = [row for row in report.gpus if row.supported]
        speeds = (
            Row(row.gpu, row.speed.get(name), row.best_speed.get(name), row.relative_speed.get(name)) for row in rows
        )
        print_speeds(f"Speed of {breakable(name)}", speeds, report.baseline, console)
        run = f"A run of {text.format_count(report.samples)} samples of {breakable(name)}"
        print_runs(run, ((row.gpu, row.run.get(name), row.rent) for row in rows), console, report.currency)
    if any(row.buy or row.rent for row in report.gpus):
        console.print()
        machines = _MACHINES if any(row.rent and _machine(row.rent) for row in report.gpus) else ""
        console.print(f"{_PRICES}{_ORDERS[report.sort]} {_WORDS}{machines}{exchanged(report.currency)}")
    print_unsupported(
        ", ".join(map(breakable, report.workloads)),
        ((row.notes, _in_brief(row, report)) for row in report.gpus),
        console,
    )
    print_notes(report.notes, console)
    console.print()
    console.print(_first_choice(report))


def _columns(report: RankReport) -> list[_Column]:
    """The supported cards by their batches, the smallest memory first."""
    groups: dict[tuple[int, ...], list[RankRow]] = {}
    for row in report.gpus:
        if row.supported:
            groups.setdefault(tuple(row.max_batch_size_pow2[name] for name in report.workloads), []).append(row)

    def size(group: tuple[tuple[int, ...], list[RankRow]]) -> tuple[int, tuple[int, ...]]:
        return min(text.memory_class_gb(row.memory_bytes, row.gpu) for row in group[1]), group[0]

    ordered = [rows for _, rows in sorted(groups.items(), key=size)]
    return [_Column(n, _batches(rows[0], report.workloads), rows) for n, rows in enumerate(ordered, 1)]


def _batches(row: RankRow, workloads: Iterable[str]) -> tuple[str, ...]:
    """A card's largest powers of two in words, with a plus where the search ended there."""
    at_least = row.max_batch_size_at_least
    return tuple(format_batch(row.max_batch_size_pow2[name], more=at_least.get(name, False)) for name in workloads)


def _blocks(workloads: Sequence[str], columns: Sequence[_Column], console: Console) -> list[list[_Column]]:
    """The columns in blocks that are no wider than the console."""
    widths = (max(len(column.memory()), *map(len, column.batches)) + _GAP for column in columns)
    blocks = in_blocks(widths, console.width - _label_width(workloads, console))
    return [[columns[number] for number in block] for block in blocks]


def _label_width(workloads: Sequence[str], console: Console) -> int:
    whole, piece = (max(map(width, workloads), default=0) for width in (len, longest_piece))
    return max(min(whole, console.width // 3), min(piece, console.width // 2))


def _batch_table(workloads: Sequence[str], columns: Sequence[_Column], console: Console) -> Table:
    table = dense_table()
    table.add_column("Column\nSold as", width=max(_label_width(workloads, console), 7), overflow="fold")
    for column in columns:
        add_column(table, f"{column.number}\n{column.memory()}>")
    for number, workload in enumerate(workloads):
        table.add_row(breakable(workload), *(column.batches[number] for column in columns))
    return table


def _print_members(columns: Sequence[_Column], sort: Sort, console: Console) -> None:
    table = dense_table()
    for title in ("Column>", "Sold as>"):
        add_column(table, title)
    table.add_column(f"Cards, {_BEFORE[sort]}")
    for column in columns:
        table.add_row(str(column.number), column.memory(), listed(row.gpu for row in column.rows))
    console.print()
    print_whole(table, console)


def _print_tier(
    title: str, rows: Sequence[RankRow], numbers: Mapping[str, int], report: RankReport, console: Console
) -> None:
    workloads, money = len(report.workloads), report.currency
    table = dense_table()
    table.add_column("\nCard", overflow="fold")
    some_fail = any(row.trains < workloads for row in rows)
    for column in ("\nCol>", *(["\nRuns>"] if some_fail else []), "\nSold as>", f"Buy\n{money.code}>"):
        add_column(table, column)
    table.add_column("")
    for column in ("", f"Rent\n{money.code}/h>", ""):
        add_column(table, column)
    for row in rows:
        if row.buy or row.rent:
            runs = [f"{row.trains}/{workloads}"] if some_fail else []
            size = text.format_memory_class(row.memory_bytes, row.gpu)
            table.add_row(row.gpu, str(numbers[row.gpu]), *runs, size, *_buy(row.buy, money), *_rent(row.rent, money))
    if table.row_count:
        narrow_if_needed(table, console)
        print_section(title, "bold", table, console)
    unpriced = [f"{row.gpu} (column {numbers[row.gpu]})" for row in rows if not row.buy and not row.rent]
    if unpriced:
        console.print()
        console.print(f"{title}, no price known: {listed(unpriced)}")


_PRICES = "Prices are medians of dated offers (providers and sources: --json), and "
_ORDERS: dict[Sort, str] = {
    "price": "cards are ordered by price alone, those with old prices only after the others: --sort speed orders by speed.",
    "speed": "cards are ordered by predicted samples per second alone: prices do not change the order.",
    "memory": "cards are ordered by memory alone: neither price nor speed changes the order.",
}
_MACHINES = ' "for 2": the smallest machine with the card has two, and both are paid for.'
_WORDS = "lowest: of a shop's listings; launch: the maker's price then; dated: no newer offer is known."
_FIRST: dict[Sort, str] = {"price": "First choice", "speed": "Fastest", "memory": "Most memory"}
_BEFORE: dict[Sort, str] = {
    "price": "the cheapest to buy first",
    "speed": "the fastest first",
    "memory": "the largest first",
}


def _buy(price: Price | None, money: Rate) -> tuple[str, str, str]:
    if price is None:
        return text.UNKNOWN, "", ""
    return text.format_amount(money.of_usd(price.usd), price.unit), _condition(price), text.format_month(price.newest)


def _rent(price: Price | None, money: Rate) -> tuple[str, str]:
    if price is None:
        return text.UNKNOWN, ""
    when = " ".join(filter(None, _about(price)))
    return text.format_amount(money.of_usd(price.usd), price.unit), when


def _condition(price: Price) -> str:
    # a rent is on demand unless it says otherwise
    return price.condition.removesuffix(" listing").removeprefix("on-demand").removeprefix(", ")


def _about(price: Price) -> tuple[str, ...]:
    return _condition(price), _machine(price), text.format_month(price.newest)


def _machine(price: Price) -> str:
    """Of a rent for a machine with several cards, which is paid for whole: "for 2"."""
    return f"for {price.least_count}" if price.unit == "hour" and price.least_count > 1 else ""


def _in_brief(row: RankRow, report: RankReport) -> str:
    """A card in a line with others: its batches and what it costs."""
    known = dict(zip(row.max_batch_size_pow2, _batches(row, row.max_batch_size_pow2), strict=True))
    batches = "/".join({**known, **dict.fromkeys(report.untraced, text.UNKNOWN)}.values())
    said = [f"{row.gpu} {batches}"]
    for price in (row.buy, row.rent):
        if price is not None:
            words = (format_money(price.usd, report.currency, price.unit), *_about(price))
            said.append(" ".join(filter(None, words)))
    return ", ".join(said)


def _first_choice(report: RankReport) -> Text:
    """The cheapest to buy of today's prices, and the cheapest to rent where that is another card."""
    usable = [row for row in report.gpus if row.tier == "all" and row.supported]
    if not usable:
        return Text("No supported card trains all of them.")
    first = usable[0]
    if report.sort == "price":
        first = next((row for row in usable if is_current(row.buy)), first)
    rented = [row for row in usable if is_current(row.rent)]
    cheapest = min(rented, key=lambda row: row.rent.usd if row.rent else 0.0, default=first)
    offers = [_offer(price, report.currency) for price in (first.buy, first.rent) if price is not None]
    said = " or ".join(offers) if offers else "no price known"
    choice = Text.assemble(f"{_FIRST[report.sort]} that trains all: ", (first.gpu, "bold"), f", {said}")
    if cheapest is not first and cheapest.rent is not None:
        choice.append_text(
            Text.assemble("\nCheapest to rent: ", (cheapest.gpu, "bold"), f", {_offer(cheapest.rent, report.currency)}")
        )
    return choice


def _offer(price: Price, money: Rate) -> str:
    words = " ".join(filter(None, (format_money(price.usd, money, price.unit), _machine(price))))
    months = text.format_months(price.oldest, price.newest)
    over = f"median of {text.format_count(price.offers)}, " if price.offers > 1 else ""
    by = f", {price.providers[0]}" if price.unit == "hour" and len(price.providers) == 1 else ""
    return f"{words} {price.condition} ({over}{months}{by})"
