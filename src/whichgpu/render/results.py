"""Measurements on record as a list: one row each, with the number of its environment, and the environments below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from whichgpu import text
from whichgpu.render.common import (
    add_column,
    breakable,
    dense_table,
    print_notes,
    print_title,
    print_whole,
)
from whichgpu.results import Environment, Measurement

_OUTCOMES = {
    "ok": "ok",
    "out_of_memory": "out of memory",
    "cuda_error": "CUDA error",
    "crash": "crash",
    "hang": "hang",
    "busy": "card busy",
    "driver": "driver",
    "step_error": "step error",
}
_WIDE = 100


def print_results(measurements: Sequence[Measurement], console: Console) -> None:
    """Print measurements in the order in which they were made, and what environments they were made in."""
    if not measurements:
        console.print("No measurement on record, or none that was asked for. `whichgpu bench` measures on a GPU.")
        return
    print_title("Measurements", "measured", console)
    environments = list(dict.fromkeys(map(_environment, measurements)))
    table = dense_table(narrow=console.width < _WIDE)
    table.add_column("Workload", overflow="fold", min_width=12)
    titles = ("Env>", "Limit>", "Batch>", "Outcome", "Reserved>", "Rate>", "", "Day")
    shown = titles if console.width >= _WIDE else titles[:-1]  # days are in the JSON, too
    for title in shown:
        add_column(table, title)
    for measurement in measurements:
        row = _row(measurement, environments.index(_environment(measurement)) + 1)
        table.add_row(*row[: len(shown) + 1])
    console.print()
    print_whole(table, console)
    print_notes([f"[{number}] {words}" for number, words in enumerate(environments, 1)], console)


def _row(measurement: Measurement, environment: int) -> tuple[str, ...]:
    rate, limit = measurement.samples_per_second, measurement.memory_limit_bytes
    return (
        breakable(measurement.workload),
        str(environment),
        text.UNKNOWN if limit is None else text.format_limit(limit),
        text.format_count(measurement.batch_size),
        _OUTCOMES[measurement.outcome],
        text.format_bytes(measurement.peak_reserved_bytes),
        text.UNKNOWN if rate is None else text.format_rate(rate * measurement.items_per_sample),
        "" if rate is None else f"{measurement.unit}/s",
        measurement.measured_at[:10],
    )


def _environment(measurement: Measurement) -> str:
    """Everything that a measurement depends on, in words; equal words are equal environments."""
    around: Environment = measurement.environment
    libraries = [f"{name} {version}" for name, version in sorted(around.libraries.items())]
    flags = [f"{name}={str(value).lower()}" for name, value in sorted(around.flags.items())]
    parts = (
        f"{around.gpu} ({text.format_bytes(around.gpu_memory_bytes)}, card {around.gpu_uuid_hash[:8]})",
        f"driver {around.driver}",
        f"CUDA {around.cuda}",
        f"torch {around.torch}",
        f"cuDNN {around.cudnn or text.UNKNOWN}",
        f"Python {around.python}",
        *libraries,
        *flags,
        f"whichgpu {around.whichgpu}",
        f"origin {measurement.origin}",
    )
    return ", ".join(parts)
