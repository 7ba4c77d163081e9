"""Lists of what there is: cards and workloads."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from whichgpu import text
from whichgpu.catalogue import Gpu
from whichgpu.render.common import (
    add_column,
    dense_table,
    listed,
    narrow_if_needed,
    print_whole,
)
from whichgpu.zoo_list import ZooEntry


def print_gpus(gpus: Sequence[Gpu], console: Console) -> None:
    """Print the catalogue's cards, the largest memory first."""
    table = dense_table()
    titles = ("Card", "Memory>", "Compute>", "Released>", "GB/s>", "fp32\nTFLOPS>", "fp16\nTFLOPS>", "bf16\nTFLOPS>")
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
    narrow_if_needed(table, console)
    print_whole(table, console)
    console.print()
    console.print("Memory as the driver shows it; compute capability; peak rates. Sources: --json.")


def print_zoo(entries: Sequence[ZooEntry], console: Console) -> None:
    """Print the zoo's workloads: how large they are, how much they compute, what they are; and the sets of them."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("Workload", "Params>", "FLOPs>", "Unit"):
        add_column(table, title)
    table.add_column("What it is")
    for entry in entries:
        table.add_row(
            entry.name,
            text.format_parameters(entry.parameters),
            text.format_operations(entry.flops_per_sample),
            entry.unit or text.UNKNOWN,
            entry.description,
        )
    print_whole(table, console)
    console.print()
    for name in dict.fromkeys(name for entry in entries for name in entry.sets):
        members = listed(entry.name for entry in entries if name in entry.sets)
        console.print(f"--set {name}: {members}")
    console.print()
    console.print(
        "FLOPs of one training step for each sample (for tokens: each sequence): matrix products, convolutions and "
        "attention, forward and backward, a multiply-add being two. All settings: --json."
    )
