"""What every report shares: consoles, JSON, titles, tables, notes and lists of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.advice import Basis, TraceInfo
from whichgpu.currency import Rate
from whichgpu.intervals import Verdict

BASIS: dict[Basis, str] = {
    "predicted": "predicted (no GPU was used)",
    "measured": "measured on the card",
    "published": "as published by others",
}
_TRACED = {"fake": "with fake tensors", "real-cpu": "with real tensors on the CPU"}
DOES_NOT_RUN = "*"
AT_LEAST = "+"
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "fits": ("fits", "green"),
    "likely": ("likely fits", "yellow"),
    "tight": ("is tight", "yellow"),
    "no": ("does not fit", "yellow"),
}
_NARROWEST, _USUAL_WIDTH, _WIDEST = 20, 80, 100_000
_FOLDED = 8  # a column that breaks inside of words becomes no narrower
_HARD_BLANK = "\ue000"  # a blank at which Rich does not break a line; it would at U+00A0
_SOFT_BREAK = "\x1f"  # no character at all, but Rich takes it for a blank and may break a line there


def make_console(file: IO[str], width: int | None = None) -> Console:
    """A console that takes names as they are: no markup, no emoji, no guessed highlights.

    A width of nothing (COLUMNS=0) is taken for the usual one.
    """
    console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
    if console.width < _NARROWEST:
        console.width = _NARROWEST if console.width > 0 else _USUAL_WIDTH
    return console


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """Print what is printed inside without the blanks that fill up lines, and with names in one piece."""
    with console.capture() as captured:
        yield
    for line in captured.get().splitlines():
        console.file.write(line.replace(_SOFT_BREAK, "").rstrip(" ").replace(_HARD_BLANK, " ") + "\n")


def bar(share: float, width: int, *, ascii_only: bool = False, least: int = 0) -> str:
    """A bar of so much of a width, to an eighth of a letter; of what is there at all at least so many of these."""
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        return "#" * max(round(share * width), least if share else 0)
    whole, eighths = divmod(max(round(share * width * 8), least if share else 0), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def to_json(record: Any) -> str:
    """The record as indented JSON, its keys in the order of its fields."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def print_title(title: str, basis: Basis, console: Console) -> None:
    """Print the first line of a report: what it says, and on which basis."""
    console.print(Text.assemble((title, "bold"), f": {BASIS[basis]}"))


def traced(trace: TraceInfo) -> str:
    """How and when a workload was traced, in words."""
    how = _TRACED[trace.kind]
    when = "earlier and cached" if trace.cached else f"in {text.format_seconds(trace.seconds)}"
    version = f" (torch {trace.torch_version})" if trace.torch_version else ""
    return f"{how} {when}{version}"


def traced_at(trace: TraceInfo) -> str:
    """How a workload was traced and at which batch sizes, as a sentence."""
    sizes = ", ".join(map(text.format_count, trace.batch_sizes))
    plural = "s" * (len(trace.batch_sizes) != 1)
    return f"Traced {traced(trace)}" + (f", at batch size{plural} {sizes}." if sizes else ".")


def format_asked(batch_size: int, is_default: bool) -> str:
    """The batch size that a report is about, and whether nobody asked about one."""
    return f"{text.format_count(batch_size)}{' (the default)' if is_default else ''}"


def print_interrupted(missing: Sequence[str], console: Console) -> None:
    """Say which workloads are not answered, as it was interrupted before."""
    if missing:
        plural = "s are" if len(missing) > 1 else " is"
        console.print(
            Text.assemble(
                ("Interrupted", "bold yellow"), f": {len(missing)} workload{plural} missing here: {listed(missing)}."
            )
        )


def exchanged(money: Rate) -> str:
    """By which rate amounts are shown in another currency, after a blank; empty for dollars."""
    if money.code == "USD":
        return ""
    return f" 1 {money.code} is {money.usd_per_unit:g} USD ({money.date or money.source})."


def print_section(title: str, style: str, table: Table, console: Console) -> None:
    """Print a table under its title."""
    console.print()
    console.print(Text(title, f"bold {style}" if style != "bold" else style))
    print_whole(table, console)


def print_whole(shown: Table | Padding, console: Console) -> None:
    """Print a table, wider than the console where that would cut something off: a terminal breaks long lines itself."""
    before = console.width
    console.width = max(before, _needed_width(shown, console))
    console.print(shown)
    console.width = before


def in_blocks(widths: Iterable[int], room: int) -> list[list[int]]:
    """Numbers of columns of these widths in blocks that are no wider than `room`, but for single ones that are."""
    blocks: list[list[int]] = []
    left = 0
    for number, width in enumerate(widths):
        if not blocks or left < width:
            blocks.append([])
            left = room
        blocks[-1].append(number)
        left -= width
    return blocks


def escaped(words: str) -> str:
    """Words for a cell or a list of Markdown."""
    return words.replace("|", "\\|").replace("*", "\\*")


def narrow_if_needed(table: Table, console: Console) -> None:
    """Leave one blank between columns instead of two where the console is too narrow for two."""
    if console.measure(table, options=console.options.update(width=_WIDEST)).maximum > console.width:
        table.padding = (0, 0, 0, 0)


def _needed_width(shown: Table | Padding, console: Console) -> int:
    """The width at which only columns that may wrap are narrower than they would like to be."""
    options = console.options.update(width=_WIDEST)
    table = shown.renderable if isinstance(shown, Padding) else shown
    width = console.measure(shown, options=options).maximum
    for column in table.columns if isinstance(table, Table) else ():
        if not column.no_wrap and column.width is None:
            wanted = [console.measure(cell, options=options) for cell in (column.header, *column.cells)]
            words = _FOLDED if column.overflow == "fold" else max(cell.minimum for cell in wanted)
            least = max(column.min_width or 0, words)
            width -= max(max(cell.maximum for cell in wanted) - least, 0)
    return width


def make_table(*titles: str) -> Table:
    """A table whose columns do not wrap; a title that ends in ">" is of a column of numbers."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in titles:
        add_column(table, title)
    return table


def dense_table(*, narrow: bool = False) -> Table:
    """A table with two blanks between columns, or one."""
    padding = (0, 0 if narrow else 1, 0, 0)
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, collapse_padding=True)


def add_column(table: Table, title: str) -> None:
    """Add a column that does not wrap; a title that ends in ">" is of a column of numbers."""
    justify: JustifyMethod = "right" if title.endswith(">") else "left"
    table.add_column(title.rstrip(">"), justify=justify, no_wrap=True)


def print_unsupported(batches: str, cards: Iterable[tuple[tuple[str, ...], str]], console: Console) -> None:
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
        console.print(Padding(listed(held, separator, console.width - 2), (0, 0, 0, 2)))


def print_notes(notes: Sequence[str], console: Console) -> None:
    """Print caveats as a list."""
    if not notes:
        return
    console.print()
    for note in notes:
        line = Table.grid(padding=(0, 1))
        line.add_column()
        line.add_column(overflow="fold")
        line.add_row("-", breakable(note))
        console.print(line)


def print_legend(batches: Iterable[int], console: Console, *, more: bool = False) -> None:
    """Print what the star means, where one of the batches is shown as a star, and the plus where there are `more`."""
    fail = not all(batches)
    if fail or more:
        console.print()
    if fail:
        console.print(f"{DOES_NOT_RUN}  not even batch size 1 fits")
    if more:
        console.print(f"{AT_LEAST}  at least so many: larger ones were not tried")


def listed(items: Iterable[str], separator: str = ", ", width: int = _WIDEST) -> str:
    """Items in a line of a width, which is broken only between them, but for those that are longer."""
    return separator.join(item.replace(" ", _HARD_BLANK) if len(item) < width else item for item in items)


def breakable(name: str, after: str = "?&/") -> str:
    """A workload's name, which is broken between its options or folders rather than inside of a word."""
    return re.sub(f"(?<=[{after}])", _SOFT_BREAK, name)


def longest_piece(name: str) -> int:
    """The width that a name needs at least to be broken only there."""
    return max(map(len, breakable(name).split(_SOFT_BREAK)))


def format_batch(batch_size: int, *, more: bool = False) -> str:
    """A largest batch in a table; a star where not even one sample fits, a plus where larger ones were not tried."""
    return text.format_count(batch_size) + AT_LEAST * more if batch_size else DOES_NOT_RUN
