"""A measuring report: one row per workload and memory limit, then speeds at smaller batches, then the card's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from whichgpu import text
from whichgpu.bench_report import FEWEST_FOR_INTERVAL, BenchReport, BenchRow, Speed
from whichgpu.render.common import (
    add_column,
    breakable,
    dense_table,
    format_batch,
    print_legend,
    print_notes,
    print_title,
    print_whole,
)

_FAILED = {
    "cuda_error": "CUDA error",
    "crash": "crashed",
    "hang": "hung",
    "busy": "card is busy",
    "driver": "cannot run",
    "step_error": "step fails",
}
_UNPROVED = "?"


def print_bench(report: BenchReport, console: Console) -> None:
    """Print what was measured: largest batches, speeds, and what went wrong."""
    title = f"{report.gpu} ({text.format_bytes(report.gpu_memory_bytes)}, torch {report.torch}, driver {report.driver})"
    print_title(title, report.basis, console)
    console.print()
    _print_largest(report.rows, console)
    print_legend([row.max_batch_size for row in report.rows if row.max_batch_size is not None], console)
    _print_speeds(report.rows, console)
    _print_readings(report.rows, console)
    print_notes([*_remarks(report.rows), *report.notes], console)


def _print_largest(rows: Sequence[BenchRow], console: Console) -> None:
    table = dense_table()
    table.add_column("Workload", overflow="fold")
    for title in ("Limit>", "Largest\nbatch>", "Predicted>", "Attempts>", "Took>"):
        add_column(table, title)
    for row in rows:
        table.add_row(
            breakable(row.workload),
            _limit(row),
            _largest(row),
            text.format_count(row.predicted_max_batch_size),
            _attempts(row),
            text.format_seconds(row.seconds),
        )
    print_whole(table, console)


def _largest(row: BenchRow) -> str:
    if row.outcome in _FAILED:
        return _FAILED[row.outcome]
    if row.batch_size is not None:
        return f"{text.format_count(row.batch_size)} {'runs' if row.outcome == 'ok' else 'is too large'}"
    if row.max_batch_size is None:
        return text.UNKNOWN
    return format_batch(row.max_batch_size) + ("" if row.exact else _UNPROVED)


def _attempts(row: BenchRow) -> str:
    return f"{row.attempts} (+{row.recorded})" if row.recorded else str(row.attempts)


def _print_speeds(rows: Sequence[BenchRow], console: Console) -> None:
    timed = [(row, speed) for row in rows for speed in row.speeds]
    if not timed:
        return
    console.print()
    table = dense_table()
    table.add_column("Workload", overflow="fold")
    for title in ("Limit>", "Batch>", "Per second>", "Step>", "±>", "Reserved>"):
        add_column(table, title)
    for row, speed in timed:
        table.add_row(
            *_whose(row, speed),
            f"{text.format_figure(speed.units_per_second)} {row.unit}",
            text.format_duration(speed.step_s),
            _spread(speed),
            text.format_bytes(speed.peak_reserved_bytes),
        )
    print_whole(table, console)


# What the driver said of the card while steps were timed: the title of a column and its cells, empty where unknown
_READINGS: tuple[tuple[str, Callable[[Speed], str]], ...] = (
    ("Power\nW>", lambda speed: _figure(speed.power_w, ",.0f")),
    (
        "Energy\nJ/sample>",
        lambda speed: "" if speed.energy_per_sample_j is None else text.format_rate(speed.energy_per_sample_j),
    ),
    ("SM clock\nMHz>", lambda speed: _figure(speed.sm_clock_mhz, ",.0f")),
    ("Hottest\n°C>", lambda speed: _figure(speed.temperature_c, ".0f")),
    ("Slowed by", lambda speed: ", ".join(speed.throttled)),
)


def _print_readings(rows: Sequence[BenchRow], console: Console) -> None:
    """Power, energy, clock, temperature and throttling of each timing, as far as the driver tells."""
    timed = [(row, speed) for row in rows for speed in row.speeds]
    known = [(title, cell) for title, cell in _READINGS if any(cell(speed) for _, speed in timed)]
    if not known:
        return
    console.print()
    table = dense_table()
    table.add_column("Workload", overflow="fold")
    for title in ("Limit>", "Batch>", *(title for title, _ in known)):
        if title.endswith(">"):
            add_column(table, title)
        else:
            table.add_column(title)  # several reasons may take several lines
    for row, speed in timed:
        cells = [cell(speed) or (text.UNKNOWN if title.endswith(">") else "") for title, cell in known]
        table.add_row(*_whose(row, speed), *cells)
    print_whole(table, console)


def _whose(row: BenchRow, speed: Speed) -> tuple[str, str, str]:
    """Workload (once), limit and batch size of a timing."""
    return (
        breakable(row.workload) if speed is row.speeds[0] else "",
        _limit(row),
        text.format_count(speed.batch_size),
    )


def _limit(row: BenchRow) -> str:
    return "card" if row.memory_limit_bytes is None else text.format_limit(row.memory_limit_bytes)


def _figure(figure: float | None, form: str) -> str:
    return f"{figure:{form}}" if figure is not None else ""


def _spread(speed: Speed) -> str:
    """How far the 95 % interval of the median reaches from it; unknown where there are too few steps for one."""
    if speed.steps < FEWEST_FOR_INTERVAL:
        return text.UNKNOWN
    reach = max(speed.step_high_s - speed.step_s, speed.step_s - speed.step_low_s)
    return f"{100 * reach / speed.step_s:.1f} %" if speed.step_s else text.UNKNOWN


def _remarks(rows: Sequence[BenchRow]) -> list[str]:
    """What the tables cannot say."""
    found = []
    for row in rows:
        limit = f" under {text.format_limit(row.memory_limit_bytes)}" if row.memory_limit_bytes is not None else ""
        name = f"{row.workload}{limit}"
        if row.message:
            found.append(f"{name}: {row.message}")
        if row.stopped_by in _FAILED:
            found.append(f"{name}: the next batch does not run out of memory: {_FAILED[row.stopped_by]}")
        if row.multiple > 1:
            found.append(f"{name}: the step takes only multiples of {row.multiple}, so only these were tried")
        for speed in row.speeds:
            where = f"{name}, batch size {text.format_count(speed.batch_size)}"
            if not speed.converged:
                found.append(
                    f"{where}: the time budget ended after {speed.steps} steps, too few to know the step within 1 %"
                )
    return found
