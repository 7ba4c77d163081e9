"""Reports as text for a person, and as JSON for a program.

Everything shown stands in the record: this module groups, orders and aligns, and computes nothing. In a pipe
the text is plain and 80 columns wide; in a terminal colour helps, but never says anything alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.advice import Basis, Breakdown, FitReport, FitRow, Price, RankReport, RankRow, Tier, TraceInfo

if TYPE_CHECKING:
    from whichgpu.catalogue import Gpu

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
_NARROWEST_CARD = 8  # "RTX 8000" stays on one line


def make_console(file: IO[str], width: int | None = None) -> Console:
    """A console that takes names as they are: no markup, no emoji, no guessed highlights."""
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """Print what is printed inside without the blanks that fill up lines."""
    with console.capture() as captured:
        yield
    for line in captured.get().splitlines():
        console.file.write(line.rstrip(" ") + "\n")


def to_json(record: Any) -> str:
    """The record as indented JSON, its keys in the order of its fields."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


# ---- fit ----


def print_fit(report: FitReport, console: Console, *, detailed: bool) -> None:
    """Print a fit report: one block per card when `detailed`, else tables of cards grouped by memory."""
    _print_title(
        f"{report.workload}, batch size {text.format_count(report.batch_size)}", report.basis, console
    )
    console.print(f"Traced {_traced(report.trace)}.")
    if detailed:
        for row in report.gpus:
            _print_card(row, report.batch_size, console)
    else:
        limits = [row for row in report.gpus if row.gpu == "limit"]
        cards = [row for row in report.gpus if row.gpu != "limit"]
        for row in limits:
            _print_card(row, report.batch_size, console)
        _print_groups(cards, report.batch_size, console)
        _print_example(cards, console)
        _print_card_notes(((row.gpu, row.supported, row.notes) for row in cards), console)
    _print_notes(report.notes, console)


def _print_card(row: FitRow, batch_size: int, console: Console) -> None:
    memory = text.format_bytes(row.memory_bytes)
    name = f"Memory limit of {memory}" if row.gpu == "limit" else f"{row.gpu} ({memory})"
    console.print()
    console.print(_verdict(row, _card(name, row.supported, console), batch_size))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    facts.add_row("largest batch", _largest(row))
    if row.fits:
        context = f" (and {text.format_bytes(row.context_bytes)} for the CUDA context)"
        reserved = text.format_bytes(row.peak_reserved_bytes)
        facts.add_row("peak reserved", reserved + (context if row.context_bytes else ""))
        where = f" in {row.peak_phase}, at {row.peak_op}" if row.peak_op else ""
        facts.add_row("peak allocated", text.format_bytes(row.peak_allocated_bytes) + where)
    for note in row.notes:
        facts.add_row("note", note)
    console.print(Padding(facts, (0, 0, 0, 2)))
    if row.breakdown is not None:
        console.print("  held at the peak")
        console.print(Padding(_bars(row.breakdown, console), (0, 0, 0, 4)))


def _verdict(row: FitRow, name: str, batch_size: int) -> Text:
    if row.fits:
        said, style = f"batch size {text.format_count(batch_size)} fits", "green"
    elif row.max_batch_size:
        said, style = f"batch size {text.format_count(batch_size)} does not fit", "yellow"
    else:
        said, style = "not even batch size 1 fits", "red"
    unsupported = "" if row.supported else ", but not supported"
    return Text.assemble((name, "bold"), ": ", (said, style), unsupported)


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
    missing = sorted((row for row in cards if not row.fits), key=_by_memory, reverse=True)
    if fitting:
        table = _table("Memory>", "Largest\nbatch>", "Power\nof two>", "Peak\nreserved>", "Peak\nallocated>")
        table.add_column("Cards", vertical="bottom")
        for key, names in _merged(fitting, _fitting_cells, console):
            table.add_row(*key, names)
        _print_section(f"Batch size {batch} fits on", "green", table, console)
    if missing:
        table = _table("Memory>", "Largest\nbatch>", "Power\nof two>")
        table.add_column("Cards", vertical="bottom")
        for key, names in _merged(missing, _missing_cells, console):
            table.add_row(*key, names)
        _print_section(f"Batch size {batch} does not fit on", "yellow", table, console)
    _print_legend(
        any(not row.max_batch_size for row in missing), any(not row.supported for row in cards), console
    )


def _by_memory(row: FitRow) -> tuple[int, int, str]:
    return round(row.memory_bytes / (1 << 30)), row.max_batch_size, row.gpu


def _fitting_cells(row: FitRow) -> tuple[str, ...]:
    peaks = (text.format_bytes(row.peak_reserved_bytes), text.format_bytes(row.peak_allocated_bytes))
    return (*_missing_cells(row), *peaks)


def _missing_cells(row: FitRow) -> tuple[str, ...]:
    return (
        text.format_memory_class(row.memory_bytes),
        _batch(row.max_batch_size),
        _batch(row.max_batch_size_pow2),
    )


def _merged(
    rows: Iterable[FitRow], cells: Callable[[FitRow], tuple[str, ...]], console: Console
) -> list[tuple[tuple[str, ...], str]]:
    """Rows that read the same become one row with all their cards."""
    return [
        (key, ", ".join(_card(row.gpu, row.supported, console) for row in same))
        for key, same in groupby(rows, key=cells)
    ]


def _print_example(cards: Sequence[FitRow], console: Console) -> None:
    """What holds the memory, on the smallest supported card that fits: on the others it is much the same."""
    fitting = [row for row in cards if row.fits and row.breakdown is not None]
    if not fitting:
        return
    row = min(fitting, key=lambda row: (not row.supported, *_by_memory(row)))
    assert row.breakdown is not None
    console.print()
    console.print(Text(f"Held at the peak ({row.gpu}; in {row.peak_phase}, at {row.peak_op})", "bold"))
    console.print(Padding(_bars(row.breakdown, console), (0, 0, 0, 2)))


# ---- rank ----


def print_rank(report: RankReport, console: Console) -> None:
    """Print a ranking: the largest batches, workloads down and cards across, then three tiers with prices."""
    _print_title("Largest batch that fits, as a power of two", report.basis, console)
    for workload, trace in report.traces.items():
        console.print(f"{workload}: traced {_traced(trace)}.")
    for cards in _blocks(report, console):
        console.print()
        console.print(_batch_table(report, cards, console))
    _print_legend(
        any(not batch for row in report.gpus for batch in row.max_batch_size.values()),
        any(not row.supported for row in report.gpus),
        console,
    )
    for tier, title in _TIERS.items():
        rows = [row for row in report.gpus if row.tier == tier]
        if rows:
            _print_section(title, "bold", _price_table(rows, len(report.workloads), console), console)
    if any(row.buy or row.rent for row in report.gpus):
        console.print()
        console.print("Prices are medians of dated offers; --json lists providers and sources.")
    _print_card_notes(((row.gpu, row.supported, row.notes) for row in report.gpus), console)
    _print_notes(report.notes, console)
    console.print()
    console.print(_first_choice(report))


def _blocks(report: RankReport, console: Console) -> list[list[tuple[RankRow, int]]]:
    """The cards with their column widths, in blocks that are no wider than the console."""
    room = console.width - _label_width(report, console)
    blocks: list[list[tuple[RankRow, int]]] = []
    left = 0
    for row in report.gpus:
        words = [*_card(row.gpu, row.supported, console).split(), text.format_memory_class(row.memory_bytes)]
        cells = [_batch(batch) for batch in row.max_batch_size_pow2.values()]
        width = max(_NARROWEST_CARD, *map(len, words), *map(len, cells))
        if not blocks or left < width + _GAP:
            blocks.append([])
            left = room
        blocks[-1].append((row, width))
        left -= width + _GAP
    return blocks


def _label_width(report: RankReport, console: Console) -> int:
    return min(max(map(len, report.workloads), default=0), console.width // 3)


def _batch_table(report: RankReport, cards: Sequence[tuple[RankRow, int]], console: Console) -> Table:
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True
    )
    table.add_column("", width=_label_width(report, console), overflow="fold")
    for row, width in cards:
        name = f"{_card(row.gpu, row.supported, console)}\n{text.format_memory_class(row.memory_bytes)}"
        table.add_column(name, justify="right", width=width, vertical="bottom")
    for workload in report.workloads:
        table.add_row(workload, *(_batch(row.max_batch_size_pow2[workload]) for row, _ in cards))
    return table


def _price_table(rows: Sequence[RankRow], workloads: int, console: Console) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Card", min_width=16)
    for title in ("Memory>", "Runs>", "Buy>", "", "Rent>", ""):
        _add_column(table, title)
    for row in rows:
        table.add_row(
            _card(row.gpu, row.supported, console),
            text.format_memory_class(row.memory_bytes),
            f"{row.trains}/{workloads}",
            *_price(row.buy),
            *_price(row.rent),
        )
    return table


def _price(price: Price | None) -> tuple[str, str]:
    if price is None:
        return text.UNKNOWN, ""
    # what is dated shows by its date, and a rent is on demand unless it says otherwise
    condition = price.condition.removesuffix(", dated").removesuffix(" listing").removesuffix("on-demand")
    return text.format_usd(price.usd, price.unit), f"{condition} {text.format_month(price.newest)}".lstrip()


def _first_choice(report: RankReport) -> Text:
    for row in report.gpus:
        if row.tier == "all" and row.supported:
            offers = [_offer(price) for price in (row.buy, row.rent) if price is not None]
            said = " or ".join(offers) if offers else "no price known"
            return Text.assemble("First choice that trains all: ", (row.gpu, "bold"), f", {said}")
    return Text("No supported card trains all of them.")


def _offer(price: Price) -> str:
    words = text.format_usd(price.usd, price.unit)
    months = text.format_months(price.oldest, price.newest)
    return f"{words} {price.condition} (median of {text.format_count(price.offers)}, {months})"


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
    sizes = "" if trace.affine else "; sizes do not grow in a line, so each batch size was traced"
    return f"{how} {when}{version}{sizes}"


def _print_section(title: str, style: str, table: Table, console: Console) -> None:
    console.print()
    console.print(Text(title, f"bold {style}" if style != "bold" else style))
    console.print(table)


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in titles:
        _add_column(table, title)
    return table


def _add_column(table: Table, title: str) -> None:
    """Add a column that does not wrap; a title that ends in ">" is of a column of numbers."""
    table.add_column(title.rstrip(">"), justify="right" if title.endswith(">") else "left", no_wrap=True)


def _print_card_notes(rows: Iterable[tuple[str, bool, tuple[str, ...]]], console: Console) -> None:
    """Notes that hold for some cards, each once, with the cards that they hold for."""
    holders: dict[str, list[str]] = {}
    for gpu, supported, notes in rows:
        for note in notes:
            holders.setdefault(note, []).append(_card(gpu, supported, console))
    _print_notes([f"{', '.join(cards)}: {note}" for note, cards in holders.items()], console)


def _print_notes(notes: Sequence[str], console: Console) -> None:
    if not notes:
        return
    console.print()
    for note in notes:
        line = Table.grid(padding=(0, 1))
        line.add_row("-", note)
        console.print(line)


def _print_legend(some_do_not_run: bool, some_unsupported: bool, console: Console) -> None:
    if some_do_not_run or some_unsupported:
        console.print()
    if some_do_not_run:
        console.print(f"{_DOES_NOT_RUN}  not even batch size 1 fits")
    if some_unsupported:
        console.print(f"{_mark(console)}  not supported, for the reason given below")


def _batch(batch_size: int) -> str:
    return text.format_count(batch_size) if batch_size else _DOES_NOT_RUN


def _card(name: str, supported: bool, console: Console) -> str:
    return name if supported else f"{name}{_mark(console)}"


def _mark(console: Console) -> str:
    return "!" if console.options.ascii_only else "†"
