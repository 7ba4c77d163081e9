"""The four tables of 2020 over any workloads and cards: largest batch, throughput, relative speed and verdict.

Plain functions: `Figures` in, a table out. Figures are measured, predicted or published (`measured`, `from_rank`,
`published`), never mixed within one table. A cell comes from one environment; nothing is averaged but what a row of
means says. What the cells mean: a star is a card on which not even batch size 1 fits, a plus behind a batch says that
the next one was not tried, and a dash that nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from statistics import fmean, geometric_mean
from typing import Literal

import msgspec

from whichgpu.advice import Basis, RankReport, RankRow, Tier, tier_of
from whichgpu.batch_sizes import power_of_two_below
from whichgpu.errors import InputError

Kind = Literal["max-batch", "throughput", "relative"]
BASELINE = "Quadro RTX 8000"  # = 1 in the article of 2020


# ---- what is known ------------------------------------------------------------------------------------


class TableCard(msgspec.Struct, frozen=True, kw_only=True):
    """A column: a card, or one limited to less memory, in one environment."""

    name: str  # "RTX 2080 Ti", "H200 limited to 8 GiB"
    gpu: str  # the card's name alone
    gpu_id: str | None  # in the catalogue
    memory_bytes: int | None  # what the driver shows; None where only the size on the box is known
    memory_limit_bytes: int | None = None
    environment: str = ""  # driver, CUDA, torch and origin, in words
    tier: Tier | None = None  # given by the source; None: follows from the figures
    price_usd: float | None = None  # to buy
    price_condition: str = ""
    price_date: str = ""
    note: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A row: a workload as it was run."""

    workload: str  # as the row is titled
    name: str  # as it is asked for
    batch_unit: str
    rate_unit: str
    tried: tuple[int, ...] = ()  # the batch sizes that were tried, where these were only a few
    tried_note: str = ""  # where that is not known for sure
    family: str = ""  # means are over a family
    batch_source: str = ""
    rate_source: str = ""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on a card."""

    max_batch_size: int | None = None  # 0 where not even 1 fits; None: unknown
    max_batch_size_pow2: int | None = None  # None: the power of two below it
    exact: bool = True  # the next larger one did not fit
    exact_pow2: bool = True  # nor the next power of two
    units_per_second: float | None = None
    rate_batch_size: int | None = None  # the batch that the rate was measured at


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a source knows: `figures[line][card]`."""

    basis: Basis
    source: str  # in words, with its date
    url: str = ""
    cards: tuple[TableCard, ...]
    lines: tuple[Line, ...]
    figures: tuple[tuple[Figure, ...], ...]
    notes: tuple[str, ...] = ()
    rate_notes: tuple[str, ...] = ()  # that concern throughput only


# ---- the tables ---------------------------------------------------------------------------------------


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in a table."""

    value: float | int | None  # None where it does not fit or is unknown
    fits: bool | None  # False: not even batch size 1; None: unknown
    at_least: bool = False  # a larger batch may fit: it was not tried
    batch_size: int | None = None  # of a throughput: the batch that it was measured at


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, or a mean, over all cards of the table."""

    workload: str
    family: str
    unit: str
    source: str
    cells: tuple[Cell, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Workloads down, cards across; answer of `whichgpu tables max-batch`, `throughput` and `relative`."""

    table: Kind
    basis: Basis
    source: str
    url: str
    baseline: str | None  # the card that is 1
    power_of_two: bool  # batches are shown as the power of two below
    cards: tuple[TableCard, ...]
    rows: tuple[TableRow, ...]
    means: tuple[TableRow, ...]  # over the rows of a family
    notes: tuple[str, ...]


class TierRow(msgspec.Struct, frozen=True, kw_only=True):
    """A card's row of the tiers."""

    gpu: str
    tier: Tier | None  # None where it was not tried with every workload
    trains: int  # how many of the workloads fit at batch size 1 or more
    tried: int  # of how many that is known
    price_usd: float | None
    price_condition: str
    price_date: str
    note: str


class TierTable(msgspec.Struct, frozen=True, kw_only=True):
    """Cards by what they train; answer of `whichgpu tables tiers`."""

    table: Literal["tiers"] = "tiers"
    basis: Basis
    source: str
    url: str
    workloads: tuple[str, ...]
    cards: tuple[TierRow, ...]
    notes: tuple[str, ...]


def max_batch(figures: Figures, *, power_of_two: bool = False) -> Table:
    """The largest batch of each workload on each card, or the largest power of two."""

    def cell(figure: Figure) -> Cell:
        size = figure.max_batch_size
        if not size:
            return _missing(figure)
        if not power_of_two:
            return Cell(value=size, fits=True, at_least=not figure.exact)
        known = figure.max_batch_size_pow2
        return Cell(
            value=power_of_two_below(size) if known is None else known, fits=True, at_least=not figure.exact_pow2
        )

    rows = _rows(figures, cell, lambda line: line.batch_unit, lambda line: line.batch_source)
    return _table("max-batch", figures, rows, power_of_two=power_of_two)


def throughput(figures: Figures) -> Table:
    """Units per second, each card at its own largest batch, or the largest that was timed."""

    def cell(figure: Figure) -> Cell:
        if figure.units_per_second is None:
            return _missing(figure)
        return Cell(value=figure.units_per_second, fits=True, batch_size=figure.rate_batch_size)

    return _table("throughput", figures, _rows(figures, cell, lambda line: line.rate_unit, _rate_source))


def relative(figures: Figures, baseline: str | None = None) -> Table:
    """Throughput as a ratio to the baseline card's, and its means over each family of workloads.

    Without `baseline`: the Quadro RTX 8000 where it is there, or else the card with most figures and most memory.
    """
    number = _baseline(figures, baseline)

    def ratios(line: Sequence[Figure]) -> list[Cell]:
        one = line[number].units_per_second
        return [
            Cell(value=round(figure.units_per_second / one, 4), fits=True, batch_size=figure.rate_batch_size)
            if one and figure.units_per_second is not None
            else _missing(figure)
            for figure in line
        ]

    name = figures.cards[number].name
    rows = [
        TableRow(
            workload=line.workload,
            family=line.family,
            unit=f"ratio to {name}",
            source=line.rate_source,
            cells=tuple(ratios(found)),
        )
        for line, found in zip(figures.lines, figures.figures, strict=True)
    ]
    return _table("relative", figures, rows, baseline=name, means=_means(rows))


def tiers(figures: Figures) -> TierTable:
    """Cards by what they train: all workloads, most of them, or fewer, the cheapest first in each.

    The rule of `whichgpu rank`; a published tier stands as it was published.
    """
    order = {"all": 0, "most": 1, "poor": 2, None: 3}
    rows = [_verdict(card, [line[number] for line in figures.figures]) for number, card in enumerate(figures.cards)]

    def key(row: TierRow) -> tuple[object, ...]:
        cost = row.price_usd if row.price_usd is not None else float("inf")
        return order[row.tier], -row.trains if row.tier != "all" else 0, cost, row.gpu

    return TierTable(
        basis=figures.basis,
        source=figures.source,
        url=figures.url,
        workloads=tuple(line.workload for line in figures.lines),
        cards=tuple(sorted(rows, key=key)),
        notes=figures.notes,
    )


def _predicted(row: RankRow, workload: str) -> Figure:
    exact = not row.max_batch_size_at_least.get(workload, False)
    speed = row.speed.get(workload)
    return Figure(
        units_per_second=speed.samples_per_s if speed is not None else None,
        rate_batch_size=speed.batch_size if speed is not None else None,
        max_batch_size=row.max_batch_size[workload],
        max_batch_size_pow2=row.max_batch_size_pow2[workload],  # near the limit a smaller batch may not fit
        exact=exact,
        exact_pow2=exact,
    )


def from_rank(report: RankReport, gpus: Collection[str] | None = None) -> Figures:
    """A ranking as figures: largest batches, speed at these, tiers and prices.

    Of all cards or those named, those that can run the step at all; the others are left to the notes. InputError where
    none is left.
    """
    asked = [row for row in report.gpus if gpus is None or row.gpu in gpus]
    rows = sorted((row for row in asked if row.supported), key=lambda row: (row.memory_bytes, row.gpu))
    left_out = [f"left out, not supported: {row.gpu} ({'; '.join(row.notes)})" for row in asked if not row.supported]
    if not rows:
        raise InputError(f"no card of those asked for can run it; {'; '.join(left_out[:3])}")
    cards = [
        TableCard(
            name=row.gpu,
            gpu=row.gpu,
            gpu_id=None,
            memory_bytes=row.memory_bytes,
            tier=row.tier,
            price_usd=row.buy.usd if row.buy else None,
            price_condition=row.buy.condition if row.buy else "",
            price_date=row.buy.newest if row.buy else "",
        )
        for row in rows
    ]
    versions = dict.fromkeys(f"torch {trace.torch_version}" for trace in report.traces.values() if trace.torch_version)
    return Figures(
        basis="predicted",
        source=f"steps traced with {', '.join(versions) or 'an unknown torch'}",
        cards=tuple(cards),
        lines=tuple(
            Line(workload=name, name=name, batch_unit="samples", rate_unit="samples/s") for name in report.workloads
        ),
        figures=tuple(tuple(_predicted(row, name) for row in rows) for name in report.workloads),
        notes=(*report.notes, *left_out),
    )


def select(figures: Figures, *, lines: Sequence[int] | None = None, cards: Sequence[int] | None = None) -> Figures:
    """The figures of some lines and some cards, by their numbers, in that order.

    A verdict that the source gave over all its workloads does not hold for some: it then follows from the figures.
    """
    rows = range(len(figures.lines)) if lines is None else lines
    columns = range(len(figures.cards)) if cards is None else cards
    return msgspec.structs.replace(
        figures,
        lines=tuple(figures.lines[row] for row in rows),
        cards=tuple(
            figures.cards[column] if len(rows) == len(figures.lines) else _unjudged(figures.cards[column])
            for column in columns
        ),
        figures=tuple(tuple(figures.figures[row][column] for column in columns) for row in rows),
    )


def _unjudged(card: TableCard) -> TableCard:
    return msgspec.structs.replace(card, tier=None)


# ---- parts --------------------------------------------------------------------------------------------


def _table(
    kind: Kind,
    figures: Figures,
    rows: Sequence[TableRow],
    *,
    baseline: str | None = None,
    power_of_two: bool = False,
    means: Sequence[TableRow] = (),
) -> Table:
    return Table(
        table=kind,
        basis=figures.basis,
        source=figures.source,
        url=figures.url,
        baseline=baseline,
        power_of_two=power_of_two,
        cards=figures.cards,
        rows=tuple(rows),
        means=tuple(means),
        notes=figures.notes if kind == "max-batch" else (*figures.notes, *figures.rate_notes),
    )


def _rows(
    figures: Figures, cell: Callable[[Figure], Cell], unit: Callable[[Line], str], source: Callable[[Line], str]
) -> list[TableRow]:
    return [
        TableRow(
            workload=line.workload,
            family=line.family,
            unit=unit(line),
            source=source(line),
            cells=tuple(map(cell, found)),
        )
        for line, found in zip(figures.lines, figures.figures, strict=True)
    ]


def _rate_source(line: Line) -> str:
    return line.rate_source


def _missing(figure: Figure) -> Cell:
    return Cell(value=None, fits=None if figure.max_batch_size is None else figure.max_batch_size > 0)


def _baseline(figures: Figures, name: str | None) -> int:
    """The number of the card that is 1."""
    names = [card.name for card in figures.cards]
    if not names:
        raise InputError("there is no card to compare with")
    if name is not None:
        return _named(figures.cards, name)
    if BASELINE in names:
        return names.index(BASELINE)

    def known(number: int) -> tuple[int, int]:
        rates = [line[number].units_per_second for line in figures.figures]
        card = figures.cards[number]
        return sum(rate is not None for rate in rates), card.memory_limit_bytes or card.memory_bytes or 0

    return max(range(len(names)), key=known)


def _named(cards: Sequence[TableCard], name: str) -> int:
    """The one card of a name; of several, the whole card rather than one under a limit."""
    wanted = name.casefold()
    for fits in (
        lambda card: card.name.casefold() == wanted,
        lambda card: wanted in (card.gpu.casefold(), card.gpu_id) and card.memory_limit_bytes is None,
        lambda card: wanted in (card.gpu.casefold(), card.gpu_id),
    ):
        found = [number for number, card in enumerate(cards) if fits(card)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"baseline {name!r} may be {' or '.join(cards[n].name for n in found)}: say which")
    raise InputError(f"baseline {name!r} is not in the table; it has {', '.join(card.name for card in cards)}")


_MEANS: tuple[tuple[str, Callable[[Sequence[Cell]], float | None]], ...] = (
    ("arithmetic mean", lambda cells: _mean(fmean, _values(cells))),
    ("geometric mean", lambda cells: _mean(geometric_mean, _values(cells))),
    ("mean with * as 0", lambda cells: _mean(fmean, [cell.value or 0.0 for cell in cells])),
)


def _means(rows: Sequence[TableRow]) -> list[TableRow]:
    """Three means over each family, two over what fits; where something is unknown, none, so that cards stay comparable."""
    found = []
    for family in dict.fromkeys(row.family for row in rows):
        members = [row for row in rows if row.family == family]
        if len(members) < 2:
            continue
        columns = list(zip(*(row.cells for row in members), strict=True))
        for title, mean in _MEANS:
            cells = [
                Cell(value=mean(column) if _known(column) else None, fits=_known(column) or None) for column in columns
            ]
            unit = members[0].unit
            found.append(TableRow(workload=title, family=family, unit=unit, source="computed", cells=tuple(cells)))
    return found


def _known(cells: Sequence[Cell]) -> bool:
    return all(cell.value is not None or cell.fits is False for cell in cells)


def _values(cells: Sequence[Cell]) -> list[float]:
    return [cell.value for cell in cells if cell.value is not None]


def _mean(mean: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return round(mean(values), 4) if values else None


def _verdict(card: TableCard, figures: Sequence[Figure]) -> TierRow:
    known = [figure.max_batch_size for figure in figures if figure.max_batch_size is not None]
    trains = sum(size > 0 for size in known)
    tier: Tier | None = card.tier
    if tier is None and known and len(known) == len(figures):
        tier = tier_of(trains, len(known))
    return TierRow(
        gpu=card.name,
        tier=tier,
        trains=trains,
        tried=len(known),
        price_usd=card.price_usd,
        price_condition=card.price_condition,
        price_date=card.price_date,
        note=card.note,
    )
