"""The commands of `whichgpu results`: measurements on record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whichgpu.commands.options import OwnFiles, ResultsFile
from whichgpu.commands.output import print_record
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from whichgpu.results import Measurement


results_app = typer.Typer(
    name="results", help="Measurements on record: list, export, import.", rich_markup_mode=None, add_completion=False
)
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Workloads = Annotated[
    list[str] | None, typer.Option("--workload", metavar="NAME", help="Only of this workload; may be repeated.")
]
_Gpus = Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only on this card; may be repeated.")]
_Outcomes = Annotated[
    list[str] | None,
    typer.Option("--outcome", metavar="NAME", help="Only with this outcome (ok, out_of_memory, ...); may be repeated."),
]
_Origin = Annotated[
    str | None, typer.Option("--origin", metavar="NAME", help="Only from there; what was measured here is local.")
]


@results_app.callback(invoke_without_command=True)
def _results(
    context: typer.Context,
    workload: _Workloads = None,
    gpu: _Gpus = None,
    outcome: _Outcomes = None,
    origin: _Origin = None,
    results: ResultsFile = None,
    own_files: OwnFiles = None,
    json: _Json = False,
) -> None:
    """List the measurements on record.

    One row each, in the order in which they were made, with the number of its environment; the environments stand below.
    Measurements from different environments are never averaged.
    """
    if context.invoked_subcommand is None:
        list_results(workload=workload, gpu=gpu, outcome=outcome, origin=origin, results=results, json=json)
    elif workload or gpu or outcome or origin or results or json:
        raise InputError(f"write the options after `whichgpu results {context.invoked_subcommand}`")


@results_app.command(name="list")
def list_results(
    *,
    workload: _Workloads = None,
    gpu: _Gpus = None,
    outcome: _Outcomes = None,
    origin: _Origin = None,
    results: ResultsFile = None,
    own_files: OwnFiles = None,
    json: _Json = False,
) -> None:
    """List the measurements on record; the same as `whichgpu results`."""
    found = _find(workload, gpu, outcome, origin, results)
    from whichgpu import render  # noqa: PLC0415

    print_record(found, json, lambda console: render.print_results(found, console))


@results_app.command(name="export")
def export_results(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Ends in .csv, .jsonl or .parquet; replaced if it is there.")
    ],
    workload: _Workloads = None,
    gpu: _Gpus = None,
    outcome: _Outcomes = None,
    origin: _Origin = None,
    results: ResultsFile = None,
    own_files: OwnFiles = None,
) -> None:
    """Write measurements with their complete environments into a file to hand on.

    Parquet needs pyarrow: pip install 'whichgpu[parquet]'.
    """
    from whichgpu import results_exchange  # noqa: PLC0415

    found = _find(workload, gpu, outcome, origin, results)
    if not found:
        raise InputError("no measurement on record is like that; nothing was written")
    results_exchange.export_file(found, file)
    typer.echo(f"{_counted(len(found))} written to {file}")


@results_app.command(name="import")
def import_results(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `whichgpu results export` wrote: .csv, .jsonl or .parquet.")
    ],
    origin: Annotated[
        str | None,
        typer.Option("--origin", metavar="NAME", help="Where its local rows were measured; default: the file's name."),
    ] = None,
    results: ResultsFile = None,
) -> None:
    """Add another lab's measurements to those on record.

    Every row is checked, and one bad row keeps the whole file out. Rows that are on record already are left out. Where
    a row comes from is kept.
    """
    from whichgpu import results_exchange  # noqa: PLC0415
    from whichgpu.results import Store, default_path  # noqa: PLC0415

    found = results_exchange.import_file(file, origin)
    with Store(results or default_path()) as store:
        new = len(store.add_new(found))
    known = f"; {_counted(len(found) - new)} on record already" if new < len(found) else ""
    origins = ", ".join(dict.fromkeys(measurement.origin for measurement in found))
    typer.echo(f"{_counted(new)} imported from {origins}{known}")


def _find(
    workloads: list[str] | None,
    gpus: list[str] | None,
    outcomes: list[str] | None,
    origin: str | None,
    file: Path | None,
) -> list[Measurement]:
    from whichgpu import table_sources  # noqa: PLC0415
    from whichgpu.results import OUTCOMES  # noqa: PLC0415

    for outcome in outcomes or ():
        if outcome not in OUTCOMES:
            raise InputError(f"{outcome!r} is no outcome; there is {', '.join(OUTCOMES)}")
    return table_sources.find_results(file, workloads=workloads, gpus=gpus, outcomes=outcomes, origin=origin)


def _counted(number: int) -> str:
    return f"{number:,} measurement{'s' * (number != 1)}"
