"""The command `whichgpu rank`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from whichgpu.arguments import TIMEOUT_S
from whichgpu.commands.options import (
    WORKLOAD,
    Baseline,
    Currency,
    DatasetSize,
    Epochs,
    HostSpeed,
    Json,
    NoCache,
    OwnFiles,
    Samples,
    Sets,
    Timeout,
)
from whichgpu.commands.output import end_partial, print_record
from whichgpu.commands.progress import SLOW, progress
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from whichgpu.advice import Sort


def rank(
    workloads: Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD...]", help=WORKLOAD)] = None,
    sets: Sets = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only this card; may be repeated. Default: all.")
    ] = None,
    baseline: Baseline = None,
    host_speed: HostSpeed = None,
    samples: Samples = None,
    epochs: Epochs = None,
    dataset_size: DatasetSize = None,
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="BY", help="Order within equal verdicts: price (to buy), speed or memory."),
    ] = "price",
    currency: Currency = "USD",
    own_files: OwnFiles = None,
    timeout: Timeout = TIMEOUT_S,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Which cards train these workloads, and at what price?

    Prints the largest batch of each workload on each card of the catalogue that CUDA runs on (* where not even batch size 1
    fits; cards with the same batches share a column), then the cards in three tiers with dated prices to buy
    and to rent, the cheapest that trains all first, and the fastest cards, predicted. Cards that cannot run it at all
    come last, with the reason.
    """
    from whichgpu import api  # noqa: PLC0415
    from whichgpu.sets import expand  # noqa: PLC0415

    with progress(SLOW) as on_progress:
        report = api.rank(
            expand(workloads or (), sets or ()),
            gpus=gpu or None,
            baseline=baseline,
            host_speed=host_speed,
            samples=samples,
            epochs=epochs,
            dataset_size=dataset_size,
            sort=_sort(sort),
            currency=currency,
            cache=not no_cache,
            partial=True,
            on_progress=on_progress,
            timeout_s=timeout,
        )
    from whichgpu import render  # noqa: PLC0415

    print_record(report, json, lambda console: render.print_rank(report, console))
    end_partial(report.missing)


def _sort(words: str) -> Sort:
    if words not in ("price", "speed", "memory"):
        raise InputError(f"--sort {words}: say price, speed or memory")
    return cast("Sort", words)
