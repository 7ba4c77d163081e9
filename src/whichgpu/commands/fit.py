"""The command `whichgpu fit`."""

from __future__ import annotations

from typing import Annotated

import typer

from whichgpu import text
from whichgpu.arguments import TIMEOUT_S
from whichgpu.commands.options import (
    WORKLOAD,
    Baseline,
    DatasetSize,
    Epochs,
    HostSpeed,
    Json,
    NoCache,
    OwnFiles,
    Samples,
    Timeout,
)
from whichgpu.commands.output import print_record
from whichgpu.commands.progress import SLOW, progress


def fit(
    *,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help=WORKLOAD)],
    batch_size: Annotated[
        str | None,
        typer.Option("--batch-size", metavar="N", help="Samples per step; default: the workload's own."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="NAME", help="A card to look at closely; may be repeated."),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Answer for PyTorch's allocator limited to this (8GiB, 11g (GiB), 8GB (10^9), bytes), besides for each --gpu.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            metavar="NAME",
            help="Instead of the workload's own: adamw, sgd, ... (not for files).",
        ),
    ] = None,
    baseline: Baseline = None,
    host_speed: HostSpeed = None,
    samples: Samples = None,
    epochs: Epochs = None,
    dataset_size: DatasetSize = None,
    own_files: OwnFiles = None,
    timeout: Timeout = TIMEOUT_S,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Does a batch fit, and what is the largest that does?

    Says for each card what the peak memory is and what holds it, and how fast it trains at the largest batch, predicted.
    Without --gpu: for every card of the catalogue that CUDA runs on, grouped by the memory that it is sold with. Traces
    are kept in the user's cache directory, or below $WHICHGPU_CACHE.
    """
    size = None if batch_size is None else text.parse_batch_size(batch_size)
    limit = None if memory_limit is None else text.parse_bytes(memory_limit)
    from whichgpu import api  # noqa: PLC0415  (--help stays fast)

    with progress(SLOW) as on_progress:
        report = api.fit(
            workload,
            batch_size=size,
            gpus=gpu or None,
            memory_limit_bytes=limit,
            optimizer=optimizer,
            baseline=baseline,
            host_speed=host_speed,
            samples=samples,
            epochs=epochs,
            dataset_size=dataset_size,
            cache=not no_cache,
            on_progress=on_progress,
            timeout_s=timeout,
        )
    from whichgpu import render  # noqa: PLC0415

    print_record(report, json, lambda console: render.print_fit(report, console, detailed=bool(gpu)))
