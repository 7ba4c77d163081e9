"""The four tables in a terminal, as Markdown and as CSV: workloads down, cards across, or cards by tier.

All three say where the figures come from. A star: not even batch size 1 fits; a plus: at least so many; a dash (in CSV
an empty cell): unknown.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from whichgpu import text
from whichgpu.comparison import Comparison
from whichgpu.render.common import (
    BASIS,
    DOES_NOT_RUN,
    add_column,
    dense_table,
    escaped,
    print_notes,
    print_section,
    print_title,
)
from whichgpu.render.comparison import comparison_csv, comparison_markdown, print_comparison
from whichgpu.render.wide import Wide, print_wide
from whichgpu.tables import Cell, Table, TableRow, TierRow, TierTable

_TITLES = {"max-batch": "Largest batch", "throughput": "Throughput at the largest batch"}
_TIERS = {
    "all": "Trains all",
    "most": "Trains most (small batches)",
    "poor": "Not a good fit",
    None: "Not tried with every workload",
}
_LEGEND = {
    DOES_NOT_RUN: "not even batch size 1 fits",
    "+": "at least so many: the next larger batch was not tried",
    text.UNKNOWN: "not known",
}


class _Grid(NamedTuple):
    """A table in words."""

    head: list[str]
    rows: list[list[str]]
    lead: int  # so many columns come before the figures


def print_table(table: Table | TierTable | Comparison, console: Console) -> None:
    """Print a table for a person, in blocks as wide as the console."""
    if isinstance(table, Comparison):
        print_comparison(table, console)
        return
    print_title(_title(table), table.basis, console)
    console.print(f"Source: {_source(table)}")
    if isinstance(table, TierTable):
        _print_tiers(table, console)
    else:
        print_wide(_wide(table), console)
        _print_legend(table, console)
    print_notes(table.notes, console)


def table_markdown(table: Table | TierTable | Comparison) -> str:
    """The table as Markdown."""
    if isinstance(table, Comparison):
        return comparison_markdown(table)
    grid = _tier_grid(table) if isinstance(table, TierTable) else _grid(table, _cell)
    rule = ["---"] * grid.lead + ["---:"] * (len(grid.head) - grid.lead)
    lines = [f"**{_title(table)}**: {BASIS[table.basis]}. Source: {_source(table)}", ""]
    lines += [f"| {' | '.join(map(escaped, row))} |" for row in (grid.head, rule, *grid.rows)]
    legend = [] if isinstance(table, TierTable) else [f"`{mark}` {meaning}" for mark, meaning in _legend(table)]
    if legend or table.notes:
        lines.append("")
    lines += [f"- {line}" for line in (*legend, *map(escaped, table.notes))]
    return "\n".join(lines) + "\n"


def table_csv(table: Table | TierTable | Comparison) -> str:
    """The table as CSV with plain numbers; every row says on which basis it stands and where it comes from."""
    if isinstance(table, Comparison):
        return comparison_csv(table)
    grid = _tier_grid(table, plain=True) if isinstance(table, TierTable) else _grid(table, _plain_cell, family=True)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    rows = [] if isinstance(table, TierTable) else [*table.rows, *table.means]
    # of a published table, each row says whether it stands in the article or was worked out
    writer.writerow([*grid.head, "basis", "source", *(["row_source"] if rows else [])])
    tails = [[row.source] for row in rows] or [[]] * len(grid.rows)
    writer.writerows([*row, table.basis, _source(table), *tail] for row, tail in zip(grid.rows, tails, strict=True))
    return file.getvalue()


# ---- words --------------------------------------------------------------------------------------------


def _title(table: Table | TierTable) -> str:
    if isinstance(table, TierTable):
        return f"What cards train of {len(table.workloads)} workloads"
    if table.table == "relative":
        return f"Throughput relative to {table.baseline} = 1"
    return _TITLES[table.table] + (", as a power of two" if table.power_of_two else "")


def _source(table: Table | TierTable) -> str:
    return f"{table.source} ({table.url})" if table.url else table.source


def _cell(cell: Cell, table: Table) -> str:
    if cell.value is None:
        return DOES_NOT_RUN if cell.fits is False else text.UNKNOWN
    if table.table == "relative":
        return text.format_ratio(cell.value)
    # a published figure stands as it was published, a measured one with the digits that it is known to
    exact = table.basis == "published" or table.table == "max-batch"
    return (text.format_exact(cell.value) if exact else text.format_rate(cell.value)) + "+" * cell.at_least


def _plain_cell(cell: Cell, table: Table) -> str:
    if cell.value is None:
        return DOES_NOT_RUN if cell.fits is False else ""
    return f"{cell.value:.15g}" + "+" * cell.at_least


def _grid(table: Table, words: Callable[[Cell, Table], str], *, family: bool = False) -> _Grid:
    lead = ["workload", *(["family"] if family else []), "unit"]
    rows = []
    for row in (*table.rows, *table.means):
        name = row.workload if family else _name(row)
        rows.append([name, *([row.family] if family else []), row.unit, *(words(cell, table) for cell in row.cells)])
    return _Grid([*lead, *(card.name for card in table.cards)], rows, len(lead))


def _name(row: TableRow) -> str:
    return f"{row.workload}, {row.family}" if row.family and row.source == "computed" else row.workload


def _tier_grid(table: TierTable, *, plain: bool = False) -> _Grid:
    rows = [
        [
            row.gpu,
            (row.tier or "") if plain else _TIERS[row.tier],
            str(row.trains),
            str(row.tried),
            _price(row, plain),
            row.price_condition,
            row.price_date,
            row.note,
        ]
        for row in table.cards
    ]
    return _Grid(
        ["card", "tier", "trains", "of", "buy_usd" if plain else "Buy USD", "condition", "date", "note"], rows, 2
    )


def _price(row: TierRow, plain: bool = False) -> str:
    if row.price_usd is None:
        return "" if plain else text.UNKNOWN
    return f"{row.price_usd:.15g}" if plain else text.format_amount(row.price_usd)


def _legend(table: Table) -> Iterator[tuple[str, str]]:
    shown = {_cell(cell, table) for row in (*table.rows, *table.means) for cell in row.cells}
    for mark, meaning in _LEGEND.items():
        if any(words.endswith(mark) for words in shown):
            yield mark, meaning


# ---- the terminal -------------------------------------------------------------------------------------


def _labels(table: Table) -> list[str]:
    units = {row.unit for row in table.rows}
    return [
        f"{_name(row)} ({row.unit})" if len(units) > 1 and row.unit else _name(row)
        for row in (*table.rows, *table.means)
    ]


def _corner(table: Table) -> str:
    """What the rows are, and their unit where it is the same in all."""
    units = {row.unit for row in table.rows}
    return f"Workload ({units.pop()})" if len(units) == 1 and table.table != "relative" else "Workload"


def _wide(table: Table) -> Wide:
    rows = (*table.rows, *table.means)
    cells = [[_cell(cell, table) for cell in row.cells] for row in rows]
    return Wide(_corner(table), _labels(table), [card.name for card in table.cards], cells, len(table.rows))


def _print_legend(table: Table, console: Console) -> None:
    legend = list(_legend(table))
    if legend:
        console.print()
    for mark, meaning in legend:
        console.print(f"{mark}  {meaning}")


def _print_tiers(table: TierTable, console: Console) -> None:
    for tier, title in _TIERS.items():
        rows = [row for row in table.cards if row.tier == tier]
        if not rows:
            continue
        grid = dense_table()
        grid.add_column("Card")
        for column in ("Runs>", "Buy USD>", "", ""):
            add_column(grid, column)
        grid.add_column("")
        for row in rows:
            runs = f"{text.format_count(row.trains)}/{text.format_count(row.tried)}"
            grid.add_row(row.gpu, runs, _price(row), row.price_condition, row.price_date, Text(row.note))
        print_section(title, "bold", grid, console)
    console.print()
    console.print(f"Workloads: {', '.join(table.workloads)}")
