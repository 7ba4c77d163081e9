"""Reports as text for a person, and as JSON for a program.

Everything shown stands in the record: this module groups, orders and aligns, and computes nothing. In a pipe
the text is plain and 80 columns wide; in a terminal colour helps, but never says anything alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.advice import Basis, Breakdown, FitReport, FitRow, RankReport, RankRow, Tier, TraceInfo

if TYPE_CHECKING:
    from whichgpu.catalogue import Gpu, Price

_BASIS: dict[Basis, str] = {
    "predicted": "predicted (no GPU was used)",
    "measured": "measured on the card",
    "published": "as published by others",
}
_TRACED = {"fake": "with fake tensors", "real-cpu": "with real tensors on the CPU"}
_TIERS: dict[Tier, str] = {
    "all": "Trains all",
    "most": "Trains most (small batches)",
    "poor": "Not a good fit",
}
_DOES_NOT_RUN = "*"
_BAR_WIDTH = 24
_BAR_COLUMNS: tuple[JustifyMethod, ...] = ("left", "right", "right", "left")
_GAP = 2  # between columns: one blank of padding, one of the box
_HARD_BLANK = "\ue000"  # a blank at which Rich does not break a line; it would at U+00A0
_NARROW = 76  # below this, tables of prices do without the padding


def make_console(file: IO[str], width: int | None = None) -> Console:
    """A console that takes names as they are: no markup, no emoji, no guessed highlights."""
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """Print what is printed inside without the blanks that fill up lines, and with names in one piece."""
    with console.capture() as captured:
        yield
    for line in captured.get().splitlines():
        console.file.write(line.rstrip(" ").replace(_HARD_BLANK, " ") + "\n")


def to_json(record: Any) -> str:
    """The record as indented JSON, its keys in the order of its fields."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


# ---- fit ----


def print_fit(report: FitReport, console: Console, *, detailed: bool) -> None:
    """Print a fit report: one block per card when `detailed`, else tables of cards grouped by memory."""
    title = f"{report.workload}, batch size {text.format_count(report.batch_size)}"
    _print_title(title, report.basis, console)
    console.print(f"Traced {_traced(report.trace)}.")
    for row in report.gpus:
        if detailed or row.gpu == "limit":
            _print_card(row, report.batch_size, console)
    if not detailed:
        cards = [row for row in report.gpus if row.gpu != "limit"]
        usable = [row for row in cards if row.supported]
        _print_groups(usable, report.batch_size, console)
        _print_legend([row.max_batch_size for row in cards], console)
        _print_example(usable, console)
        _print_unsupported(
            "largest batch", ((row.notes, f"{row.gpu} {_batch(row.max_batch_size)}") for row in cards), console
        )
    _print_notes(report.notes, console)


def _print_card(row: FitRow, batch_size: int, console: Console) -> None:
    memory = text.format_bytes(row.memory_bytes)
    name = f"Memory limit of {memory}" if row.gpu == "limit" else f"{row.gpu} ({memory})"
    console.print()
    console.print(_verdict(row, name, batch_size))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for note in row.notes:
        facts.add_row("not supported", note)
    facts.add_row("largest batch", _largest(row))
    where = f" in {row.peak_phase}, at {row.peak_op}" if row.peak_op else ""
    if row.fits:
        context = f" (and {text.format_bytes(row.context_bytes)} for the CUDA context)"
        reserved = text.format_bytes(row.peak_reserved_bytes)
        facts.add_row("peak reserved", reserved + (context if row.context_bytes else ""))
        facts.add_row("peak allocated", text.format_bytes(row.peak_allocated_bytes) + where)
    elif row.breakdown is not None:
        needed = sum(count for _, count in _items(row.breakdown))
        facts.add_row("would allocate", text.format_bytes(needed) + where)
    console.print(Padding(facts, (0, 0, 0, 2)))
    if row.breakdown is not None:
        console.print("  held at the peak" if row.fits else "  would be held at the peak")
        console.print(Padding(_bars(row.breakdown, console), (0, 0, 0, 4)))


def _verdict(row: FitRow, name: str, batch_size: int) -> Text:
    if row.fits:
        said, style = f"batch size {text.format_count(batch_size)} fits", "green"
    elif row.max_batch_size:
        said, style = f"batch size {text.format_count(batch_size)} does not fit", "yellow"
    else:
        said, style = "not even batch size 1 fits", "red"
    if not row.supported:
        said, style = f"not supported; by memory alone {said}", "red"
    return Text.assemble((name, "bold"), ": ", (said, style))


def _largest(row: FitRow) -> str:
    if not row.max_batch_size:
        return "none"
    power = text.format_count(row.max_batch_size_pow2)
    return f"{text.format_count(row.max_batch_size)} (power of two: {power})"


def _bars(held: Breakdown, console: Console) -> Table:
    """What holds the memory, the most first, with a bar for its share."""
    parts = {name.removesuffix("_bytes").replace("_", " "): count for name, count in _items(held)}
    whole = sum(parts.values())
    bars = Table.grid(padding=(0, 2))
    for justify in _BAR_COLUMNS:
        bars.add_column(justify=justify, no_wrap=True)
    for name, count in sorted(parts.items(), key=lambda part: -part[1]):
        if count:
            bar = Text(_bar(count / whole, console), "cyan")
            bars.add_row(name, text.format_bytes(count), text.format_share(count, whole), bar)
    return bars


def _bar(share: float, console: Console) -> str:
    if console.options.ascii_only:
        return "#" * round(_BAR_WIDTH * share)
    whole, eighths = divmod(round(8 * _BAR_WIDTH * share), 8)
    return "█" * whole + ("▏▎▍▌▋▊▉"[eighths - 1] if eighths else "")


def _items(held: Breakdown) -> list[tuple[str, int]]:
    return [(name, getattr(held, name)) for name in held.__struct_fields__]


def _print_groups(cards: Sequence[FitRow], batch_size: int, console: Console) -> None:
    """The cards that fit, the smallest first, then those that do not, the nearest miss first."""
    batch = text.format_count(batch_size)
    fitting = sorted((row for row in cards if row.fits), key=_by_memory)
    missing = sorted((row for row in cards if not row.fits), key=lambda row: (*(-n for n in _size(row)), row.gpu))
    for rows, words, style in ((fitting, "fits on", "green"), (missing, "does not fit on", "yellow")):
        if rows:
            table = _table("\nSold as>", "Largest\nbatch>", "Power\nof two>")
            if rows is fitting:
                _add_column(table, "Peak\nreserved>")
            table.add_column("\nCards")
            _add_groups(table, rows)
            _print_section(f"Batch size {batch} {words}", style, table, console)
    if fitting:
        allocated = _span(row.peak_allocated_bytes for row in fitting)
        context = _span(row.context_bytes for row in fitting)
        said = f"Peak allocated: {allocated}. What counts is the memory that the driver shows, less {context} "
        console.print()
        console.print(f"{said}for the CUDA context.")


def _span(counts: Iterable[int | None]) -> str:
    known = [count for count in counts if count is not None]
    ends = dict.fromkeys(map(text.format_bytes, (min(known), max(known))))
    return " to ".join(ends)


def _size(row: FitRow) -> tuple[int, int]:
    return text.memory_class_gb(row.memory_bytes), row.max_batch_size


def _by_memory(row: FitRow) -> tuple[int, int, str, str]:
    return (*_size(row), text.format_bytes(row.peak_reserved_bytes), row.gpu)


def _add_groups(table: Table, rows: Iterable[FitRow]) -> None:
    """Rows that read the same become one row with all their cards; a size stands at the first of its rows."""

    def cells(row: FitRow) -> tuple[str, ...]:
        batches = (_batch(row.max_batch_size), _batch(row.max_batch_size_pow2))
        return (*batches, text.format_bytes(row.peak_reserved_bytes)) if row.fits else batches

    for size, sold in groupby(rows, key=lambda row: text.format_memory_class(row.memory_bytes)):
        for number, (key, same) in enumerate(groupby(sold, key=cells)):
            table.add_row("" if number else size, *key, _listed(row.gpu for row in same))


def _print_example(cards: Sequence[FitRow], console: Console) -> None:
    """What holds the memory, on the smallest card that fits: on the others it is much the same."""
    fitting = [row for row in cards if row.fits and row.breakdown is not None]
    if not fitting:
        return
    row = min(fitting, key=_by_memory)
    assert row.breakdown is not None
    console.print()
    console.print(Text(f"Held at the peak ({row.gpu}; in {row.peak_phase}, at {row.peak_op})", "bold"))
    console.print(Padding(_bars(row.breakdown, console), (0, 0, 0, 2)))


# ---- rank ----


class _Column(NamedTuple):
    """Cards with the same largest batches, in the order of recommendation."""

    number: int
    batches: tuple[int, ...]
    rows: list[RankRow]

    def memory(self) -> str:
        """What its cards are sold with."""
        return text.format_memory_classes(row.memory_bytes for row in self.rows)


def print_rank(report: RankReport, console: Console) -> None:
    """Print a ranking: the largest batches, workloads down and cards across, then three tiers with prices.

    Cards with the same batches share a column, and each column's cards are listed below.
    """
    _print_title("Largest batch that fits, as a power of two", report.basis, console)
    for workload, trace in report.traces.items():
        console.print(f"{workload}: traced {_traced(trace)}.")
    columns = _columns(report)
    for block in _blocks(report.workloads, columns, console):
        console.print()
        console.print(_batch_table(report.workloads, block, console))
    _print_members(columns, console)
    _print_legend([batch for row in report.gpus for batch in row.max_batch_size.values()], console)
    numbers = {row.gpu: column.number for column in columns for row in column.rows}
    for tier, title in _TIERS.items():
        rows = [row for row in report.gpus if row.tier == tier and row.supported]
        if rows:
            _print_tier(title, rows, numbers, len(report.workloads), console)
    if any(row.buy or row.rent for row in report.gpus):
        console.print()
        console.print(_PRICES)
    _print_unsupported(", ".join(report.workloads), ((row.notes, _in_brief(row)) for row in report.gpus), console)
    _print_notes(report.notes, console)
    console.print()
    console.print(_first_choice(report))


def _columns(report: RankReport) -> list[_Column]:
    """The supported cards by their batches, the smallest memory first."""
    groups: dict[tuple[int, ...], list[RankRow]] = {}
    for row in report.gpus:
        if row.supported:
            groups.setdefault(tuple(row.max_batch_size_pow2[name] for name in report.workloads), []).append(row)

    def size(group: tuple[tuple[int, ...], list[RankRow]]) -> tuple[int, tuple[int, ...]]:
        return min(text.memory_class_gb(row.memory_bytes) for row in group[1]), group[0]

    return [_Column(n, *group) for n, group in enumerate(sorted(groups.items(), key=size), 1)]


def _blocks(workloads: Sequence[str], columns: Sequence[_Column], console: Console) -> list[list[_Column]]:
    """The columns in blocks that are no wider than the console."""
    room = console.width - _label_width(workloads, console)
    blocks: list[list[_Column]] = []
    left = 0
    for column in columns:
        width = max(len(column.memory()), *(len(_batch(batch)) for batch in column.batches)) + _GAP
        if not blocks or left < width:
            blocks.append([])
            left = room
        blocks[-1].append(column)
        left -= width
    return blocks


def _label_width(workloads: Sequence[str], console: Console) -> int:
    return min(max(map(len, workloads), default=0), console.width // 3)


def _batch_table(workloads: Sequence[str], columns: Sequence[_Column], console: Console) -> Table:
    table = _dense_table(console)
    table.add_column("Column\nSold as", width=max(_label_width(workloads, console), 7), overflow="fold")
    for column in columns:
        _add_column(table, f"{column.number}\n{column.memory()}>")
    for number, workload in enumerate(workloads):
        table.add_row(workload, *(_batch(column.batches[number]) for column in columns))
    return table


def _print_members(columns: Sequence[_Column], console: Console) -> None:
    table = _dense_table(console)
    for title in ("Column>", "Sold as>"):
        _add_column(table, title)
    table.add_column("Cards, the cheapest to buy first")
    for column in columns:
        table.add_row(str(column.number), column.memory(), _listed(row.gpu for row in column.rows))
    console.print()
    console.print(table)


def _print_tier(
    title: str, rows: Sequence[RankRow], numbers: Mapping[str, int], workloads: int, console: Console
) -> None:
    table = _dense_table(console, narrow=console.width < _NARROW)
    table.add_column("\nCard", overflow="fold")
    some_fail = any(row.trains < workloads for row in rows)
    for column in ("\nCol>", *(["\nRuns>"] if some_fail else []), "\nSold as>", "Buy\nUSD>"):
        _add_column(table, column)
    table.add_column("")
    for column in ("", "Rent\nUSD/h>", ""):
        _add_column(table, column)
    for row in rows:
        if row.buy or row.rent:
            runs = [f"{row.trains}/{workloads}"] if some_fail else []
            size = text.format_memory_class(row.memory_bytes)
            table.add_row(row.gpu, str(numbers[row.gpu]), *runs, size, *_buy(row.buy), *_rent(row.rent))
    if table.row_count:
        _print_section(title, "bold", table, console)
    unpriced = [f"{row.gpu} (column {numbers[row.gpu]})" for row in rows if not row.buy and not row.rent]
    if unpriced:
        console.print()
        console.print(f"{title}, no price known: {_listed(unpriced)}")


_PRICES = (
    "Prices are medians of dated offers (providers and sources: --json), and cards are ordered by price "
    "alone: speed is not compared. lowest: of a shop's listings; launch: the maker's price then; dated: no "
    "newer offer is known."
)


def _buy(price: Price | None) -> tuple[str, str, str]:
    if price is None:
        return text.UNKNOWN, "", ""
    return text.format_amount(price.usd, price.unit), _condition(price), text.format_month(price.newest)


def _rent(price: Price | None) -> tuple[str, str]:
    if price is None:
        return text.UNKNOWN, ""
    when = f"{_condition(price)} {text.format_month(price.newest)}".lstrip()
    return text.format_amount(price.usd, price.unit), when


def _condition(price: Price) -> str:
    # a rent is on demand unless it says otherwise
    return price.condition.removesuffix(" listing").removeprefix("on-demand").removeprefix(", ")


def _in_brief(row: RankRow) -> str:
    """A card in a line with others: its batches and what it costs."""
    batches = "/".join(map(_batch, row.max_batch_size_pow2.values()))
    said = [f"{row.gpu} {batches}"]
    for price in (row.buy, row.rent):
        if price is not None:
            words = (text.format_usd(price.usd, price.unit), _condition(price), text.format_month(price.newest))
            said.append(" ".join(filter(None, words)))
    return ", ".join(said)


def _first_choice(report: RankReport) -> Text:
    """The cheapest to buy of today's prices, and the cheapest to rent where that is another card."""
    usable = [row for row in report.gpus if row.tier == "all" and row.supported]
    if not usable:
        return Text("No supported card trains all of them.")
    first = next((row for row in usable if row.buy and _is_current(row.buy)), usable[0])
    rented = [row for row in usable if row.rent and _is_current(row.rent)]
    cheapest = min(rented, key=lambda row: row.rent.usd if row.rent else 0.0, default=first)
    offers = [_offer(price) for price in (first.buy, first.rent) if price is not None]
    said = " or ".join(offers) if offers else "no price known"
    choice = Text.assemble("First choice that trains all: ", (first.gpu, "bold"), f", {said}")
    if cheapest is not first and cheapest.rent is not None:
        choice.append_text(Text.assemble("\nCheapest to rent: ", (cheapest.gpu, "bold"), f", {_offer(cheapest.rent)}"))
    return choice


def _is_current(price: Price) -> bool:
    return not price.condition.endswith("dated") and price.condition != "launch"


def _offer(price: Price) -> str:
    words = text.format_usd(price.usd, price.unit)
    months = text.format_months(price.oldest, price.newest)
    over = f"median of {text.format_count(price.offers)}, " if price.offers > 1 else ""
    by = f", {price.providers[0]}" if price.unit == "hour" and len(price.providers) == 1 else ""
    return f"{words} {price.condition} ({over}{months}{by})"


# ---- lists ----


def print_gpus(gpus: Sequence[Gpu], console: Console) -> None:
    """Print the catalogue's cards, the largest memory first."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Card", min_width=12)
    titles = ("Memory>", "Compute>", "Released>", "GB/s>", "fp32\nTFLOPS>", "fp16\nTFLOPS>", "bf16\nTFLOPS>")
    for title in titles:
        _add_column(table, title)
    for gpu in sorted(gpus, key=lambda gpu: (-gpu.memory_bytes, gpu.name)):
        rates = (gpu.fp32_tflops, gpu.fp16_tflops, gpu.bf16_tflops)
        table.add_row(
            gpu.name,
            text.format_bytes(gpu.memory_bytes),
            gpu.compute_capability or text.UNKNOWN,
            text.format_month(gpu.release),
            text.format_count(round(gpu.bandwidth_gb_per_s)),
            *map(text.format_figure, rates),
        )
    console.print(table)
    console.print()
    console.print("Memory as the driver shows it; compute capability; peak rates. Sources: --json.")


def print_zoo(entries: Mapping[str, str], console: Console) -> None:
    """Print the zoo's workloads and what they are."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("Workload", no_wrap=True)
    table.add_column("What it is")
    for name, description in entries.items():
        table.add_row(name, description)
    console.print(table)


# ---- shared ----


def _print_title(title: str, basis: Basis, console: Console) -> None:
    console.print(Text.assemble((title, "bold"), f": {_BASIS[basis]}"))


def _traced(trace: TraceInfo) -> str:
    how = _TRACED[trace.kind]
    when = "earlier and cached" if trace.cached else f"in {text.format_seconds(trace.seconds)}"
    version = f" (torch {trace.torch_version})" if trace.torch_version else ""
    return f"{how} {when}{version}"


def _print_section(title: str, style: str, table: Table, console: Console) -> None:
    console.print()
    console.print(Text(title, f"bold {style}" if style != "bold" else style))
    console.print(table)


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in titles:
        _add_column(table, title)
    return table


def _dense_table(console: Console, *, narrow: bool = False) -> Table:
    """A table with two blanks between columns, or one."""
    padding = (0, 0 if narrow else 1, 0, 0)
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, collapse_padding=True)


def _add_column(table: Table, title: str) -> None:
    """Add a column that does not wrap; a title that ends in ">" is of a column of numbers."""
    justify: JustifyMethod = "right" if title.endswith(">") else "left"
    table.add_column(title.rstrip(">"), justify=justify, no_wrap=True)


def _print_unsupported(batches: str, cards: Iterable[tuple[tuple[str, ...], str]], console: Console) -> None:
    """The cards that cannot run it for some reason, by reason, with what their memory would hold."""
    by_reason: dict[str, list[str]] = {}
    for reasons, card in cards:
        if reasons:
            by_reason.setdefault("; ".join(reasons), []).append(card)
    if not by_reason:
        return
    console.print()
    console.print(Text(f"Not supported ({batches} by memory alone)", "bold"))
    separator = "; " if any(", " in card for held in by_reason.values() for card in held) else ", "
    for reason, held in by_reason.items():
        console.print(f"{reason}:")
        console.print(Padding(_listed(held, separator), (0, 0, 0, 2)))


def _print_notes(notes: Sequence[str], console: Console) -> None:
    if not notes:
        return
    console.print()
    for note in notes:
        line = Table.grid(padding=(0, 1))
        line.add_row("-", note)
        console.print(line)


def _print_legend(batches: Iterable[int], console: Console) -> None:
    if not all(batches):
        console.print()
        console.print(f"{_DOES_NOT_RUN}  not even batch size 1 fits")


def _listed(items: Iterable[str], separator: str = ", ") -> str:
    """Items in a line that is broken only between them."""
    return separator.join(item.replace(" ", _HARD_BLANK) for item in items)


def _batch(batch_size: int) -> str:
    return text.format_count(batch_size) if batch_size else _DOES_NOT_RUN
