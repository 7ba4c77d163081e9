"""Lists of what there is: cards and workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from whichgpu import text
from whichgpu.catalogue import Gpu
from whichgpu.render.common import (
    add_column,
    print_whole,
)


def print_gpus(gpus: Sequence[Gpu], console: Console) -> None:
    """Print the catalogue's cards, the largest memory first."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Card", min_width=12)
    titles = ("Memory>", "Compute>", "Released>", "GB/s>", "fp32\nTFLOPS>", "fp16\nTFLOPS>", "bf16\nTFLOPS>")
    for title in titles:
        add_column(table, title)
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
    print_whole(table, console)
    console.print()
    console.print("Memory as the driver shows it; compute capability; peak rates. Sources: --json.")


def print_zoo(entries: Mapping[str, str], console: Console) -> None:
    """Print the zoo's workloads and what they are."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("Workload", no_wrap=True)
    table.add_column("What it is")
    for name, description in entries.items():
        table.add_row(name, description)
    print_whole(table, console)
