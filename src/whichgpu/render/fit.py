"""A fit report: one block for each card asked about, or all cards grouped by memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.advice import Breakdown, FitReport, FitRow
from whichgpu.intervals import Verdict
from whichgpu.render.common import (
    VERDICTS,
    add_column,
    bar,
    breakable,
    dense_table,
    format_asked,
    format_batch,
    listed,
    make_table,
    print_legend,
    print_notes,
    print_section,
    print_title,
    print_unsupported,
    print_whole,
    traced_at,
)
from whichgpu.render.speed import Row, print_runs, print_speeds, speed_facts

_BAR_WIDTH = 24
_USUAL = 76  # below this, tables of cards do without the padding
_BAR_COLUMNS: tuple[JustifyMethod, ...] = ("left", "right", "right", "left")


def print_fit(report: FitReport, console: Console, *, detailed: bool) -> None:
    """Print a fit report: one block per card when `detailed`, else tables of cards grouped by memory."""
    size = format_asked(report.batch_size, report.batch_size_is_default)
    title = f"{breakable(report.workload)}, batch size {size}"
    print_title(title, report.basis, console)
    console.print(traced_at(report.trace))
    for row in report.gpus:
        if detailed or row.gpu == "limit":
            _print_card(row, report.batch_size, report.baseline, console)
    if not detailed:
        cards = [row for row in report.gpus if row.gpu != "limit"]
        usable = [row for row in cards if row.supported]
        _print_groups(usable, report.batch_size, console)
        batches = [size for row in cards for size in (row.max_batch_size_safe, row.max_batch_size)]
        print_legend(batches, console, more=any(row.max_batch_size_at_least for row in cards))
        _print_example(usable, console)
        speeds = (Row(row.gpu, row.speed, row.best_speed, row.relative_speed) for row in usable)
        print_speeds("Speed at the largest batch that likely fits", speeds, report.baseline, console)
        run = f"A run of {text.format_count(report.samples)} samples"
        print_runs(run, ((row.gpu, row.run, None) for row in usable), console)
        print_unsupported(
            "largest batch", ((row.notes, f"{row.gpu} {_batch(row, row.max_batch_size)}") for row in cards), console
        )
    print_notes(report.notes, console)


def _print_card(row: FitRow, batch_size: int, baseline: str | None, console: Console) -> None:
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
    if row.peak_reserved_bytes is not None:
        context = f" (and {text.format_bytes(row.context_bytes)} for the CUDA context)"
        reserved = text.format_bytes(row.peak_reserved_bytes)
        ends = text.format_range(row.peak_reserved_low_bytes, row.peak_reserved_high_bytes)
        facts.add_row("peak reserved", f"{reserved}, between {ends}" + (context if row.context_bytes else ""))
        facts.add_row("peak allocated", text.format_bytes(row.peak_allocated_bytes) + where)
    elif row.breakdown is not None:
        needed = sum(count for _, count in _items(row.breakdown))
        facts.add_row("would allocate", text.format_bytes(needed) + where)
    for title, words in speed_facts(row, baseline):
        facts.add_row(title, words)
    print_whole(Padding(facts, (0, 0, 0, 2)), console)
    if row.breakdown is not None:
        console.print("  held at the peak" if row.peak_reserved_bytes is not None else "  would be held at the peak")
        print_whole(Padding(_bars(row.breakdown, console), (0, 0, 0, 4)), console)


def _verdict(row: FitRow, name: str, batch_size: int) -> Text:
    said, style = VERDICTS[row.verdict]
    said = f"batch size {text.format_count(batch_size)} {said}"
    if row.verdict == "no" and not row.max_batch_size:
        said, style = "not even batch size 1 fits", "red"
    elif row.verdict in ("likely", "tight"):
        said += _advice(row)
    if not row.supported:
        said, style = f"not supported; by memory alone {said}", "red"
    return Text.assemble((name, "bold"), ": ", (said, style))


def _advice(row: FitRow) -> str:
    """What to do about a batch that may not fit."""
    smaller = f"take {text.format_count(row.max_batch_size_safe)}, which fits" if row.max_batch_size_safe else ""
    if row.verdict == "likely":
        return f": try it, or {smaller}" if smaller else ": try it; no batch size is safe"
    if smaller:
        return f", and fits only if it takes less than predicted: {smaller}"
    return ", and fits only if it takes less than predicted"


def _largest(row: FitRow) -> str:
    """The largest batches: the safe one, and what likely fits."""
    if not row.max_batch_size:
        return "none"
    largest, safe = text.format_count(row.max_batch_size), text.format_count(row.max_batch_size_safe)
    if row.max_batch_size_at_least and row.max_batch_size_safe == row.max_batch_size:
        return f"{safe} or more (larger ones were not tried)"
    if row.max_batch_size_at_least:
        likely = f"likely {largest} or more (larger ones were not tried)"
    else:
        likely = f"{largest} likely (power of two: {text.format_count(row.max_batch_size_pow2)})"
    return f"{safe} safe, {likely}" if row.max_batch_size_safe else likely


def _batch(row: FitRow, batch_size: int) -> str:
    """A batch in a table, with a plus where it is the one that the search ended at."""
    return format_batch(batch_size, more=row.max_batch_size_at_least and batch_size == row.max_batch_size)


def _bars(held: Breakdown, console: Console) -> Table:
    """What holds the memory, the most first, with a bar for its share."""
    parts = {name.removesuffix("_bytes").replace("_", " "): count for name, count in _items(held)}
    whole = sum(parts.values())
    bars = Table.grid(padding=(0, 2))
    for justify in _BAR_COLUMNS:
        bars.add_column(justify=justify, no_wrap=True)
    for name, count in sorted(parts.items(), key=lambda part: -part[1]):
        if count:
            drawn = bar(count / whole, _BAR_WIDTH, ascii_only=console.options.ascii_only)
            bars.add_row(name, text.format_bytes(count), text.format_share(count, whole), Text(drawn, "cyan"))
    return bars


def _items(held: Breakdown) -> list[tuple[str, int]]:
    return [(name, getattr(held, name)) for name in held.__struct_fields__]


_SECTIONS: dict[Verdict, tuple[str, str]] = {
    "fits": ("fits on", "green"),
    "likely": ("likely fits on (try it, or take the safe batch)", "yellow"),
    "tight": ("is tight on (fits only if it takes less than predicted)", "yellow"),
    "no": ("does not fit on", "yellow"),
}


def _print_groups(cards: Sequence[FitRow], batch_size: int, console: Console) -> None:
    """The cards that fit, the smallest first, then those that do not, the nearest miss first."""
    batch = text.format_count(batch_size)
    fitting = sorted((row for row in cards if row.peak_reserved_bytes is not None), key=_by_memory)
    missing = sorted((row for row in cards if row not in fitting), key=lambda row: (*(-n for n in _size(row)), row.gpu))
    for verdict, (words, style) in _SECTIONS.items():
        rows = [row for row in (*fitting, *missing) if row.verdict == verdict]
        if rows:
            table = make_table() if console.width >= _USUAL else dense_table(narrow=True)
            for title in ("\nSold as>", "Safe\nbatch>", "Likely\nbatch>", "Power\nof two>"):
                add_column(table, title)
            if rows[0].peak_reserved_bytes is not None:
                add_column(table, "Peak\nreserved>")
            table.add_column("\nCards")
            _add_groups(table, rows)
            print_section(f"Batch size {batch} {words}", style, table, console)
    if fitting:
        allocated = _span(row.peak_allocated_bytes for row in fitting)
        ends = text.format_range(
            min(row.peak_reserved_low_bytes for row in fitting), max(row.peak_reserved_high_bytes for row in fitting)
        )
        context = _span(row.context_bytes for row in fitting)
        console.print()
        console.print(
            f"Peak reserved is between {ends}; peak allocated: {allocated}. The safe batch fits even at the high end, the "
            f"likely one as predicted. What counts is the memory that the driver shows, less {context} for the CUDA context."
        )


def _span(counts: Iterable[int | None]) -> str:
    known = [count for count in counts if count is not None]
    ends = dict.fromkeys(map(text.format_bytes, (min(known), max(known))))
    return " to ".join(ends)


def _size(row: FitRow) -> tuple[int, int]:
    return text.memory_class_gb(row.memory_bytes, row.gpu), row.max_batch_size


def _by_memory(row: FitRow) -> tuple[int, int, str, str]:
    return (*_size(row), text.format_bytes(row.peak_reserved_bytes), row.gpu)


def _add_groups(table: Table, rows: Iterable[FitRow]) -> None:
    """Rows that read the same become one row with all their cards; a size stands at the first of its rows.

    Their safe batch is the smallest of them: it fits on each.
    """

    def cells(row: FitRow) -> tuple[str, ...]:
        batches = (_batch(row, row.max_batch_size), _batch(row, row.max_batch_size_pow2))
        return batches if row.peak_reserved_bytes is None else (*batches, text.format_bytes(row.peak_reserved_bytes))

    for size, sold in groupby(rows, key=lambda row: text.format_memory_class(row.memory_bytes, row.gpu)):
        for number, (key, grouped) in enumerate(groupby(sold, key=cells)):
            same = list(grouped)
            safe = min(same, key=lambda row: row.max_batch_size_safe)
            batch = _batch(safe, safe.max_batch_size_safe)
            table.add_row("" if number else size, batch, *key, listed(row.gpu for row in same))


def _print_example(cards: Sequence[FitRow], console: Console) -> None:
    """What holds the memory, on the smallest card that fits: on the others it is much the same."""
    fitting = [row for row in cards if row.peak_reserved_bytes is not None and row.breakdown is not None]
    if not fitting:
        return
    row = min(fitting, key=_by_memory)
    assert row.breakdown is not None
    console.print()
    console.print(Text(f"Held at the peak ({row.gpu}; in {row.peak_phase}, at {row.peak_op})", "bold"))
    print_whole(Padding(_bars(row.breakdown, console), (0, 0, 0, 2)), console)
