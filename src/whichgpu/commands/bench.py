"""The command `whichgpu bench`: measurements on the GPU of this machine, or of how fast its host is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from whichgpu import text
from whichgpu.commands.options import WORKLOAD, Json, OwnFiles, Sets
from whichgpu.commands.output import print_record
from whichgpu.commands.progress import progress
from whichgpu.errors import InputError


def bench(
    *,
    workloads: Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD...]", help=WORKLOAD)] = None,
    sets: Sets = None,
    gpu_index: Annotated[
        int, typer.Option("--gpu-index", metavar="N", help="Which GPU of this machine, as PyTorch numbers them.")
    ] = 0,
    batch_size: Annotated[
        list[str] | None,
        typer.Option(
            "--batch-size", metavar="N", help="Measure only this batch; may be repeated. Default, or auto: the largest."
        ),
    ] = None,
    memory_limit: Annotated[
        list[str] | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Limit PyTorch's allocator to this, as a smaller card would: 8GiB, 11g (GiB); may be repeated.",
        ),
    ] = None,
    power_of_two: Annotated[bool, typer.Option("--power-of-two", help="Try only 1, 2, 4, 8, ...")] = False,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps of each attempt of the search.")] = 3,
    time_budget: Annotated[
        float,
        typer.Option(
            "--time-budget", metavar="S", help="Seconds to time each batch size for, at most; 0 measures no speed."
        ),
    ] = 10.0,
    speeds: Annotated[
        int,
        typer.Option("--speeds", metavar="N", help="At how many batch sizes to time: the largest, its half, ..."),
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", help="Seconds after which an attempt is taken for hung.")
    ] = 300.0,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="Instead of the workload's own: fp32, tf32, fp16, ... (not for files); may be repeated.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer", metavar="NAME", help="Instead of the workload's own: adamw, sgd, ... (not for files)."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Feed real data from this folder: images, COCO, Cityscapes or parallel text (not for files).",
        ),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="Where measurements are kept; default: $WHICHGPU_RESULTS or the user's data folder.",
        ),
    ] = None,
    own_files: OwnFiles = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again what is on record.")] = False,
    calibrate_host: Annotated[
        bool,
        typer.Option(
            "--calibrate-host",
            help="Instead: measure how fast this machine launches operators, which needs no GPU; predicted speeds are then for it.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure on the GPU of this machine: largest batch, memory, speed.

    The search starts from the prediction; each attempt is a process of its own, and the answer is a batch that
    ran while the next one did not. Every attempt is kept: after an interruption the same command carries on.
    The step time is measured until its median is known within 1 %, or the time budget ends. Data loading is not measured, also with --data:
    its first samples are read once and stay in the host's memory.
    """
    if calibrate_host:
        _calibrate_host(bool(workloads or sets), json)
        return
    sizes = _batch_sizes(batch_size or [])
    limits = [text.parse_bytes(limit) for limit in memory_limit or ()]
    options = {"optimizer": optimizer} if optimizer is not None else {}
    if data is not None:
        options["data"] = _data_folder(data)
    from whichgpu import bench as benches  # noqa: PLC0415
    from whichgpu.sets import expand  # noqa: PLC0415

    with progress() as on_progress:
        report = benches.bench(
            expand(workloads or (), sets or ()),
            gpu_index=gpu_index,
            batch_sizes=sizes,
            memory_limits_bytes=limits,
            power_of_two=power_of_two,
            options=options,
            precisions=precision or (),
            steps=steps,
            time_budget_s=time_budget,
            speeds=speeds,
            timeout_s=timeout,
            results_file=Path(results) if results is not None else None,
            again=again,
            on_progress=on_progress,
        )
    from whichgpu import render  # noqa: PLC0415

    print_record(report, json, lambda console: render.print_bench(report, console))
    if not report.answered:
        raise typer.Exit(2)


def _calibrate_host(workloads: bool, json: bool) -> None:
    if workloads:
        raise InputError("--calibrate-host measures no workload; ask for it alone")
    from whichgpu import host_speed, render  # noqa: PLC0415

    with progress() as on_progress:
        on_progress("timing a small step on the CPU")
        found = host_speed.calibrate()
    print_record(found, json, lambda console: render.print_host_speed(found, console))


def _data_folder(words: str) -> str:
    """The folder of `--data` from anywhere, as an option of a workload can say it."""
    if not os.path.isdir(words):
        raise InputError(f"--data {words}: there is no such folder")
    path = os.path.abspath(words)
    if "&" in path:
        raise InputError(f"--data {path}: an & in the path would end the option; rename the folder, or link to it")
    return path


def _batch_sizes(words: list[str]) -> list[int]:
    """The batch sizes to measure; none where the largest is to be searched for."""
    if "auto" in words:
        if len(words) > 1:
            raise InputError("--batch-size auto searches for the largest batch; give either auto or batch sizes")
        return []
    return [text.parse_batch_size(word) for word in words]
