"""An explanation: the card, the timeline, what holds the memory at the peak, where the time goes, what remedies would save."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.explanation import ExplainReport, Holder, Span
from whichgpu.remedies import Remedy
from whichgpu.render.common import (
    AT_LEAST,
    DOES_NOT_RUN,
    VERDICTS,
    add_column,
    dense_table,
    format_asked,
    make_table,
    print_notes,
    print_title,
    print_whole,
    traced_at,
)
from whichgpu.render.step_times import print_step_times

_BAR_WIDTH, _BESIDE_BARS = 28, 45  # phase and sizes before a bar, the mark of the peak behind it
_USUAL = 76  # below this, the table of remedies does without the padding
_PHASES = {"setup": "set-up", "other": "between"}
_FIRST_SPANS, _LAST_SPANS = 4, 3  # of a step with many phases, as with gradient accumulation


def print_explain(report: ExplainReport, console: Console) -> None:
    """Print an explanation."""
    batch = format_asked(report.batch_size, report.batch_size_is_default)
    print_title(f"{report.workload}, batch size {batch}", report.basis, console)
    console.print(traced_at(report.trace))
    _print_peaks(report, console)
    _print_timeline(report.timeline, console)
    _print_holders(report, console)
    if report.time is not None:
        print_step_times(report.time, console)
    elif report.time_missing:
        console.print()
        console.print(f"Time of a step: unknown; {report.time_missing}")
    _print_remedies(report, console)
    if report.roofline is not None:
        console.print()
        console.print(f"Roofline drawn into {report.roofline}")
    if report.snapshot is not None:
        console.print()
        console.print(f"Snapshot written to {report.snapshot}; open it at https://docs.pytorch.org/memory_viz")
    print_notes(report.notes, console)


def _print_peaks(report: ExplainReport, console: Console) -> None:
    console.print()
    if report.gpu is not None:
        batch = text.format_count(report.batch_size)
        card = f"{report.gpu} ({text.format_bytes(report.memory_bytes)})"
        said, style = VERDICTS[report.verdict or "no"]
        console.print(Text.assemble((card, "bold"), ": ", (f"batch size {batch} {said}", style)))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    if report.max_batch_size is not None:
        more = " or more (larger ones were not tried)" if report.max_batch_size_at_least else ""
        safe = f"{_batch(report.max_batch_size_safe)} safe, " if report.max_batch_size_safe else ""
        likely = f"{safe}{_batch(report.max_batch_size)}{more or ' likely'}"
        facts.add_row("largest batch", likely if report.max_batch_size else "none")
    context = f" (and {text.format_bytes(report.context_bytes)} for the CUDA context)" if report.context_bytes else ""
    would = "" if report.verdict in ("fits", "likely", None) else "would be "
    facts.add_row("peak reserved", would + text.format_bytes(report.peak_reserved_bytes) + context)
    facts.add_row("peak allocated", f"{would}{text.format_bytes(report.peak_allocated_bytes)}{_where(report)}")
    print_whole(Padding(facts, (0, 0, 0, 2)), console)


def _where(report: ExplainReport) -> str:
    if not report.peak_op:
        return ""
    step = "set-up" if report.peak_step is None else f"{report.peak_phase} of step {report.peak_step + 1}"
    return f" in {step}, at {report.peak_op}"


def _batch(largest: int | None) -> str:
    return DOES_NOT_RUN if largest == 0 else text.format_count(largest)


def _safe_batch(row: ExplainReport | Remedy) -> str:
    """In a table, with a plus where it is the one that the search ended at."""
    more = row.max_batch_size_at_least and row.max_batch_size_safe == row.max_batch_size
    return _batch(row.max_batch_size_safe) + AT_LEAST * more


# ---- the timeline -----------------------------------------------------------------------------------


def _print_timeline(spans: Sequence[Span], console: Console) -> None:
    whole = max((span.most_bytes for span in spans), default=0)
    if not whole:
        return
    console.print()
    console.print(Text("Allocated memory, phase by phase", "bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row("", "most", "at its end", "")
    for step, group in groupby(spans, key=lambda span: span.step):
        if step is not None:
            table.add_row("first step" if step == 0 else "later steps")
        shown, hidden = _shortened(list(group))
        for number, span in enumerate(shown):
            if hidden and number == _FIRST_SPANS:
                table.add_row(f"  ... {hidden} more")
            phase = _PHASES.get(span.phase, span.phase)
            sizes = (text.format_bytes(span.most_bytes), text.format_bytes(span.end_bytes))
            table.add_row(phase if step is None else f"  {phase}", *sizes, _bar(span, whole, console))
    print_whole(Padding(table, (0, 0, 0, 2)), console)


def _shortened(spans: list[Span]) -> tuple[list[Span], int]:
    """The first and last phases of a step with many, and the one with the peak; and how many are not shown."""
    if len(spans) <= _FIRST_SPANS + _LAST_SPANS + 1:
        return spans, 0
    middle = [span for span in spans[_FIRST_SPANS:-_LAST_SPANS] if span.has_peak]
    shown = [*spans[:_FIRST_SPANS], *middle, *spans[-_LAST_SPANS:]]
    return shown, len(spans) - len(shown)


def _bar_width(console: Console) -> int:
    return min(_BAR_WIDTH, max(console.width - _BESIDE_BARS, 8))


def _bar(span: Span, whole: int, console: Console) -> Text:
    """What is left at the end of a phase, and in a lighter shade what it took beyond that; the peak is marked."""
    left, lighter = ("#", "-") if console.options.ascii_only else ("█", "░")
    end = round(_bar_width(console) * span.end_bytes / whole)
    most = round(_bar_width(console) * span.most_bytes / whole)
    return Text.assemble(
        (left * end, "cyan"), (lighter * (most - end), "cyan"), (" < peak" if span.has_peak else "", "bold")
    )


# ---- holders ----------------------------------------------------------------------------------------


def _print_holders(report: ExplainReport, console: Console) -> None:
    if not report.holders:
        return
    console.print()
    console.print(Text("Held at the peak, the largest first", "bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", min_width=20)
    for holder in report.holders:
        share = text.format_share(holder.bytes, report.peak_allocated_bytes)
        table.add_row(text.format_bytes(holder.bytes), share, Text("\n").join(map(Text, _origin(holder))))
    others = report.others
    if others.holders:
        share = text.format_share(others.bytes, report.peak_allocated_bytes)
        table.add_row(text.format_bytes(others.bytes), share, f"all others, {_tensors(others.storages)}")
    print_whole(Padding(table, (0, 0, 0, 2)), console)


def _origin(holder: Holder) -> list[str]:
    """Which tensors they are: category and module, how many, by which operator, from which line."""
    what = holder.category.replace("_", " ")
    first = f"{what} of {holder.module}" if holder.module else what
    count = _tensors(holder.storages)
    if holder.modules > 1:
        count += f" in {text.format_count(holder.modules)} modules"
    made = f"{count}, {holder.op.removeprefix('aten.').removesuffix('.default')}"
    return [first, f"{made}, {holder.source}" if holder.source is not None else made]


def _tensors(count: int) -> str:
    return f"{text.format_count(count)} tensor{'' if count == 1 else 's'}"


# ---- remedies ---------------------------------------------------------------------------------------


def _print_remedies(report: ExplainReport, console: Console) -> None:
    console.print()
    title = f"What the usual remedies would save at batch size {text.format_count(report.batch_size)}"
    console.print(Text(title, "bold"))
    if report.remedies:
        columns = ["Remedy", "Reserved>", "Saved>"] + (["Safe\nbatch>"] if report.gpu is not None else [])
        table = make_table() if console.width >= _USUAL else dense_table(narrow=True)
        for column in columns:
            add_column(table, column)
        table.add_column("\nChange" if report.gpu is not None else "Change", overflow="fold")
        now = ["(as it is)", text.format_bytes(report.peak_reserved_bytes), ""]
        table.add_row(*now, *([_safe_batch(report)] if report.gpu is not None else []), "")
        for remedy in report.remedies:
            cells = [remedy.remedy, text.format_bytes(remedy.peak_reserved_bytes), _saved(remedy)]
            table.add_row(*cells, *([_safe_batch(remedy)] if report.gpu is not None else []), remedy.change)
        print_whole(table, console)
        if report.gpu is not None and 0 in (
            report.max_batch_size_safe,
            *(r.max_batch_size_safe for r in report.remedies),
        ):
            console.print(f"{DOES_NOT_RUN}  not even batch size 1 is safe")
        if any(cell.endswith(AT_LEAST) for cell in (_safe_batch(report), *map(_safe_batch, report.remedies))):
            console.print(f"{AT_LEAST}  at least so many: larger ones were not tried")
    for left_out in report.left_out:
        console.print(f"Not tried: {left_out.remedy} ({left_out.reason})")


def _saved(remedy: Remedy) -> str:
    if remedy.saved_bytes < 0:
        return f"{text.format_bytes(-remedy.saved_bytes)} more"
    return text.format_bytes(remedy.saved_bytes)
