"""The command `whichgpu explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from whichgpu import text
from whichgpu.arguments import TIMEOUT_S
from whichgpu.commands.options import WORKLOAD, HostSpeed, Json, NoCache, OwnFiles, Timeout
from whichgpu.commands.output import print_record
from whichgpu.commands.progress import SLOW, progress
from whichgpu.errors import InputError


def explain(
    *,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help=WORKLOAD)],
    batch_size: Annotated[
        str | None,
        typer.Option("--batch-size", metavar="N", help="Samples per step; default: the workload's own."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            help="A card, to say whether it fits, what the largest batch is, and where time goes.",
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            help="Write the predicted allocations as a PyTorch memory snapshot, for https://docs.pytorch.org/memory_viz.",
        ),
    ] = None,
    roofline: Annotated[
        str | None,
        typer.Option(
            "--roofline", metavar="FILE", help="Draw the step's roofline on the card into a .png or .svg file."
        ),
    ] = None,
    host_speed: HostSpeed = None,
    own_files: OwnFiles = None,
    timeout: Timeout = TIMEOUT_S,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Where do memory and time go, and what would save some?

    Shows the allocated memory over the phases of the step, what holds it at the peak (with the module and the line of
    code that made it), and what the usual remedies would save, each from a trace of the changed step. With --gpu also
    the most expensive operators of a step on that card, predicted, and what limits each. Without: by the rules of the
    H200, and without limit. The picture needs matplotlib: pip install 'whichgpu[charts]'.
    """
    size = None if batch_size is None else text.parse_batch_size(batch_size)
    if gpu and len(gpu) > 1:
        raise InputError(
            f"explain looks at one card, not at {len(gpu)}; give one --gpu, or ask whichgpu fit about several"
        )
    from whichgpu import api  # noqa: PLC0415

    with progress(SLOW) as on_progress:
        report = api.explain(
            workload,
            batch_size=size,
            gpu=gpu[0] if gpu else None,
            snapshot=snapshot,
            roofline=roofline,
            host_speed=host_speed,
            cache=not no_cache,
            on_progress=on_progress,
            timeout_s=timeout,
        )
    from whichgpu import render  # noqa: PLC0415

    print_record(report, json, lambda console: render.print_explain(report, console))
