"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WORKLOAD = (
    "file.py:function, package.module:function, timm:NAME, torchvision:NAME, hf:NAME or a name from "
    "`whichgpu zoo`; options follow a ?, as in timm:resnet50?precision=fp16."
)
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME",
        help="All workloads of a set: 2020, 2026, vision, language, or a TOML file of your own; may be repeated.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="S", help="Seconds that loading the workload, or one trace, may take."),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="GPU", help="The card whose speed is 1; default: Quadro RTX 8000, where it is among them."
    ),
]
HostSpeed = Annotated[
    float | None,
    typer.Option(
        "--host-speed",
        metavar="X",
        help="Speed of the host, times the reference's; default: this machine's if bench --calibrate-host measured it.",
    ),
]
Samples = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Say what a run of so many samples takes: time, energy.")
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="The same for so many epochs, with --dataset-size.")
]
DatasetSize = Annotated[int | None, typer.Option("--dataset-size", metavar="N", help="Samples of an epoch.")]
Currency = Annotated[
    str,
    typer.Option("--currency", metavar="CODE", help="Amounts are shown in it: EUR, or at your own rate: EUR=1.08."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Trace again, and keep nothing on disk.")]
ResultsFile = Annotated[
    Path | None,
    typer.Option(
        "--results", metavar="FILE", help="The file of results; default: $WHICHGPU_RESULTS or the user's data folder."
    ),
]


def _use_own_files(context: typer.Context, folder: Path | None) -> Path | None:
    """Have the catalogue of this command lie below a lab's own files."""
    if folder is not None:
        from whichgpu import catalogue  # noqa: PLC0415

        context.with_resource(catalogue.using(folder.expanduser()))
    return folder


# Every command that asks the catalogue takes it; it acts by itself, and the command need not hand it on.
OwnFiles = Annotated[
    Path | None,
    typer.Option(
        "--catalogue",
        metavar="DIR",
        help="A folder of your own cards, prices and free machines over the shipped ones; default: $WHICHGPU_CATALOGUE.",
        callback=_use_own_files,
    ),
]
