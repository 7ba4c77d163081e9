"""Tables with a column for each card, printed in blocks of as many columns as the console is wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console

from whichgpu.render.common import add_column, breakable, dense_table, in_blocks, print_whole

_NARROWEST_HEAD = 8  # names of cards are broken between words above it
_GAP = 2


class Wide(NamedTuple):
    """A table in words."""

    corner: str  # title of the labels
    labels: Sequence[str]  # of the rows
    heads: Sequence[str]  # of the columns
    rows: Sequence[Sequence[str]]
    first: int  # a rule is drawn below so many rows


def print_wide(table: Wide, console: Console) -> None:
    """Print the table's blocks, each below an empty line."""
    for block in _blocks(table, console):
        console.print()
        _print_block(table, block, console)


def _blocks(table: Wide, console: Console) -> list[list[int]]:
    """Numbers of columns in blocks that are no wider than the console."""
    room = console.width - _label_width(table, console) - _GAP
    widths = (
        max(*map(len, _head(head)), *(len(row[number]) for row in table.rows), 1) + _GAP
        for number, head in enumerate(table.heads)
    )
    return in_blocks(widths, room)


def _head(name: str) -> list[str]:
    width = max(_NARROWEST_HEAD, *map(len, name.split()))
    return textwrap.wrap(name, width)


def _label_width(table: Wide, console: Console) -> int:
    return min(max(map(len, [table.corner, *table.labels])), max(console.width * 2 // 5, 12))


def _print_block(table: Wide, block: Sequence[int], console: Console) -> None:
    grid = dense_table()
    heads = [_head(table.heads[number]) for number in block]
    height = max(map(len, heads))
    grid.add_column("\n" * (height - 1) + table.corner, width=_label_width(table, console), overflow="fold")
    for head in heads:
        add_column(grid, "\n" * (height - len(head)) + "\n".join(head) + ">")
    for number, (label, row) in enumerate(zip(table.labels, table.rows, strict=True), 1):
        grid.add_row(breakable(label), *(row[column] for column in block), end_section=number == table.first)
    print_whole(grid, console)
