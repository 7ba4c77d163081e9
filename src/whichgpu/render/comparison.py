"""Predicted largest batches beside published ones, in a terminal, as Markdown and as CSV.

A cell is "published/predicted"; what disagrees is marked, in a terminal by ! and in Markdown by bold type.
"""

from __future__ import annotations

import csv
import io

from rich.console import Console

from whichgpu import text
from whichgpu.comparison import ComparedCell, ComparedRow, Comparison
from whichgpu.render.common import BASIS, DOES_NOT_RUN, escaped, print_notes, print_title
from whichgpu.render.wide import Wide, print_wide

_TITLE = "Largest batch, published/predicted"
_DISAGREES = "!"
_STAR = "nothing that was tried fits, or not even batch size 1"
_RULE = "below the batch that ran, or no less than the next one that was tried"
_COLUMNS = (
    "workload",
    "published_as",
    "unit",
    "card",
    "published",
    "next_tried",
    "predicted",
    "agrees",
    "source",
    "published_source",
    "row_source",
)


def print_comparison(table: Comparison, console: Console) -> None:
    """Print it for a person, in blocks as wide as the console."""
    print_title(_TITLE, table.basis, console)
    console.print(f"Source: {table.source}")
    console.print(f"Beside: {_published(table)}")
    cells = [[f"{_cell(cell)}{'' if cell.agrees else _DISAGREES}" for cell in row.cells] for row in table.rows]
    agree = [_of(row.agree, len(row.cells)) for row in table.rows]
    rows = [[*shown, count] for shown, count in zip(cells, agree, strict=True)]
    heads = [*(card.name for card in table.cards), "agree"]
    print_wide(Wide("Workload", [_label(row) for row in table.rows], heads, rows, len(rows)), console)
    console.print()
    console.print(_summary(table))
    if _has_star(table):
        console.print(f"{DOES_NOT_RUN}  {_STAR}")
    if table.agree < table.compared:
        console.print(f"{_DISAGREES}  the prediction is {_RULE}")
    print_notes(table.notes, console)


def comparison_markdown(table: Comparison) -> str:
    """It as Markdown."""
    head = ["workload", "unit", *(card.name for card in table.cards), "agree"]
    rule = ["---", "---", *["---:"] * (len(head) - 2)]
    rows = [
        [f"`{row.workload}`", row.unit, *map(_marked, row.cells), _of(row.agree, len(row.cells))] for row in table.rows
    ]
    lines = [f"**{_TITLE}**: {BASIS[table.basis]}. Source: {table.source}. Beside: {_published(table)}", ""]
    lines += [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
    lines += ["", f"- {_summary(table)}"]
    lines += [f"- `{DOES_NOT_RUN}` {_STAR}"] if _has_star(table) else []
    lines += [f"- **bold**: the prediction is {_RULE}"] if table.agree < table.compared else []
    return "\n".join([*lines, *(f"- {escaped(note)}" for note in table.notes)]) + "\n"


def comparison_csv(table: Comparison) -> str:
    """It as CSV with plain numbers, a row for each workload on each card."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in table.rows:
        for card, cell in zip(table.cards, row.cells, strict=True):
            above = "" if cell.next_tried is None else cell.next_tried
            agrees = "true" if cell.agrees else "false"
            figures = (cell.published or DOES_NOT_RUN, above, cell.predicted or DOES_NOT_RUN, agrees)
            names = (row.workload, row.published_as, row.unit, card.name)
            writer.writerow([*names, *figures, table.source, _published(table), row.source])
    return file.getvalue()


# ---- words --------------------------------------------------------------------------------------------


def _published(table: Comparison) -> str:
    return f"{table.beside_source} ({table.url})"


def _label(row: ComparedRow) -> str:
    return f"{row.workload} ({row.unit})"


def _of(part: int, whole: int) -> str:
    return f"{text.format_count(part)} of {text.format_count(whole)}"


def _summary(table: Comparison) -> str:
    open_ended = (
        f", {text.format_count(table.open_ended)} of them where nothing larger was tried" if table.open_ended else ""
    )
    return f"{_of(table.agree, table.compared)} agree{open_ended}"


def _has_star(table: Comparison) -> bool:
    return any(not (cell.published and cell.predicted) for row in table.rows for cell in row.cells)


def _size(size: int) -> str:
    return text.format_count(size) if size else DOES_NOT_RUN


def _cell(cell: ComparedCell) -> str:
    return f"{_size(cell.published)}/{_size(cell.predicted)}"


def _marked(cell: ComparedCell) -> str:
    predicted = escaped(_size(cell.predicted))
    return f"{escaped(_size(cell.published))} / {predicted if cell.agrees else f'**{predicted}**'}"
