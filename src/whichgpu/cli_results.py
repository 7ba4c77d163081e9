"""The commands around what is on record: `whichgpu results` and `whichgpu tables`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from whichgpu.cli_common import WORKLOAD, NoCache, OwnFiles, Sets, print_record, progress
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from whichgpu.comparison import Comparison
    from whichgpu.results import Measurement
    from whichgpu.tables import Table, TierTable

Kind = Literal["max-batch", "throughput", "relative", "tiers"]
Source = Literal["measured", "predicted", "published"]
Format = Literal["terminal", "markdown", "csv", "json"]

results_app = typer.Typer(
    name="results", help="Measurements on record: list, export, import.", rich_markup_mode=None, add_completion=False
)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_File = Annotated[
    Path | None,
    typer.Option(
        "--results", metavar="FILE", help="The file of results; default: $WHICHGPU_RESULTS or the user's data folder."
    ),
]
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


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(results_app)
    app.command(name="tables")(tables)


# ---- whichgpu results ---------------------------------------------------------------------------------


@results_app.callback(invoke_without_command=True)
def _results(
    context: typer.Context,
    workload: _Workloads = None,
    gpu: _Gpus = None,
    outcome: _Outcomes = None,
    origin: _Origin = None,
    results: _File = None,
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
    results: _File = None,
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
    results: _File = None,
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
    results: _File = None,
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


# ---- whichgpu tables ----------------------------------------------------------------------------------


def tables(
    *,
    kind: Annotated[str, typer.Argument(metavar="TABLE", help="max-batch, throughput, relative or tiers.")],
    workloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORKLOAD...]", help=f"Default: all that the source knows. {WORKLOAD}"),
    ] = None,
    sets: Sets = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only this card; may be repeated.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="GPU", help="The card that is 1 in relative; default: Quadro RTX 8000, if there."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="measured, predicted (from traces) or published (in 2020); default: measured, but see below.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option("--beside", metavar="NAME", help="published: predicted largest batches beside those of 2020."),
    ] = None,
    power_of_two: Annotated[
        bool, typer.Option("--power-of-two", help="Show the largest batch as the power of two below it.")
    ] = False,
    results: _File = None,
    own_files: OwnFiles = None,
    output: Annotated[
        str, typer.Option("--format", metavar="NAME", help="terminal, markdown, csv or json.")
    ] = "terminal",
    no_cache: NoCache = False,
    json: _Json = False,
) -> None:
    """The tables of 2020: largest batch, throughput, relative, tiers.

    Workloads down and cards across; * where not even batch size 1 fits, + where the next larger batch was not tried.
    A card limited to less memory is a column of its own. Measured: what is on record, and the measurements that come
    with whichgpu. Published: Lambda's article of 2020, as it was.

    `max-batch --set 2020` without --source shows predicted beside published, as `--beside published` does for any
    workloads that the article has. They agree when the prediction is at least what ran and less than the next batch size
    that was tried; ! marks those that do not.
    """
    _one_of(kind, get_args(Kind), "table")
    chosen = None if source is None else _one_of(source, get_args(Source), "source")
    other = None if beside is None else _one_of(beside, get_args(Source), "source")
    layout = "json" if json else _one_of(output, get_args(Format), "format")
    if json and output not in ("terminal", "json"):
        raise InputError(f"--json and --format {output}: choose one")
    if baseline is not None and kind != "relative":
        raise InputError(f"--baseline is for `whichgpu tables relative`, not {kind}")
    if power_of_two and kind != "max-batch":
        raise InputError(f"--power-of-two is for `whichgpu tables max-batch`, not {kind}")
    from whichgpu import table_sources  # noqa: PLC0415

    with progress() as on_progress:
        table = table_sources.make_table(
            kind,
            workloads or (),
            sets=sets or (),
            gpus=gpu or (),
            source=chosen,
            beside=other,
            baseline=baseline,
            power_of_two=power_of_two,
            results_file=results,
            cache=not no_cache,
            on_progress=on_progress,
        )
    _print_table(table, layout)


def _print_table(table: Table | TierTable | Comparison, layout: str) -> None:
    from whichgpu import render  # noqa: PLC0415

    written = {"markdown": render.table_markdown, "csv": render.table_csv}.get(layout)

    def show(console: Any) -> None:
        if written is None:
            render.print_table(table, console)
        else:
            sys.stdout.write(written(table))

    print_record(table, layout == "json", show)


def _one_of(word: str, words: tuple[str, ...], what: str) -> Any:
    if word not in words:
        raise InputError(f"{word!r} is no {what}; say {', '.join(words[:-1])} or {words[-1]}")
    return word
