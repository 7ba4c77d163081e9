"""Predicted largest batches beside published ones, cell by cell, and whether they agree.

The article's measurements tried a few batch sizes a model, so that nothing is known between what ran and the next size
that was tried: a prediction agrees when it lies there, and where not even the smallest ran, when it is below that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from whichgpu.advice import RankReport, RankRow
from whichgpu.errors import InputError
from whichgpu.tables import Figure, Figures, Line, TableCard


class ComparedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on a card, in the published unit; 0 where nothing fits that was tried, or not even one sample."""

    published: int
    next_tried: int | None  # the next size that was tried, and did not run; None: nothing larger was tried
    predicted: int
    agrees: bool


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A workload over all cards."""

    workload: str
    published_as: str  # its name in the article
    unit: str
    tried: tuple[int, ...]
    source: str  # where the published figures come from
    cells: tuple[ComparedCell, ...]
    agree: int  # of the cells


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Workloads down, cards across; answer of `whichgpu tables max-batch --beside published`."""

    table: Literal["max-batch"] = "max-batch"
    basis: Literal["predicted"] = "predicted"
    source: str
    beside: Literal["published"] = "published"
    beside_source: str
    url: str
    cards: tuple[TableCard, ...]
    rows: tuple[ComparedRow, ...]
    compared: int  # cells
    agree: int  # of them
    open_ended: int  # of those that agree: nothing larger was tried, so that no prediction could be too large
    notes: tuple[str, ...]


def compare(report: RankReport, names: Sequence[str], found: Figures) -> Comparison:
    """The ranking's largest batches beside the published figures of the same lines and cards.

    `names` are the cards as the ranking names them, in the order of `found.cards`, and the workloads of the report are in
    the order of `found.lines`. A card that today's PyTorch no longer supports is predicted by its memory alone.
    """
    by_name = {row.gpu: row for row in report.gpus}
    try:
        cards = [by_name[name] for name in names]
    except KeyError as error:
        raise InputError(f"the catalogue ranks no {error.args[0]}, which has published figures") from error
    rows = tuple(
        _row(line, name, [_in_units(report, name, card) for card in cards], figures)
        for line, name, figures in zip(found.lines, report.workloads, found.figures, strict=True)
    )
    cells = [cell for row in rows for cell in row.cells]
    versions = dict.fromkeys(trace.torch_version for trace in report.traces.values())
    return Comparison(
        source=f"steps traced with torch {', '.join(versions)}",
        beside_source=found.source,
        url=found.url,
        cards=found.cards,
        rows=rows,
        compared=len(cells),
        agree=sum(cell.agrees for cell in cells),
        open_ended=sum(cell.agrees and cell.next_tried is None for cell in cells),
        notes=(*_by_memory_alone(cards), *_about_lines(found.lines), *_about_workloads(report), *found.notes),
    )


def next_tried(tried: Sequence[int], ran: int) -> int | None:
    """The next size after the one that ran (0: none) which was tried; None where nothing larger was."""
    return min((size for size in tried if size > ran), default=None)


def _in_units(report: RankReport, name: str, card: RankRow) -> int:
    return card.max_batch_size[name] * report.traces[name].items_per_sample


def _row(line: Line, name: str, predicted: Sequence[int], figures: Sequence[Figure]) -> ComparedRow:
    cells = tuple(_cell(line.tried, one, figure) for one, figure in zip(predicted, figures, strict=True))
    return ComparedRow(
        workload=name,
        published_as=line.name,
        unit=line.batch_unit,
        tried=line.tried,
        source=line.batch_source,
        cells=cells,
        agree=sum(cell.agrees for cell in cells),
    )


def _cell(tried: Sequence[int], predicted: int, figure: Figure) -> ComparedCell:
    ran = figure.max_batch_size or 0
    above = next_tried(tried, ran)
    agrees = ran <= predicted and (above is None or predicted < above)
    return ComparedCell(published=ran, next_tried=above, predicted=predicted, agrees=agrees)


def _by_memory_alone(cards: Sequence[RankRow]) -> list[str]:
    return [
        f"{card.gpu}: predicted by its memory alone; {'; '.join(card.notes)}" for card in cards if not card.supported
    ]


def _about_lines(lines: Sequence[Line]) -> list[str]:
    return [f"{line.name}: {line.tried_note}" for line in lines if line.tried_note]


def _about_workloads(report: RankReport) -> list[str]:
    """The ranking's notes on its workloads, without those on cards that are not shown."""
    return [note for note in report.notes if note.partition(": ")[0] in report.workloads]
