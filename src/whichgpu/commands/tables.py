"""The command `whichgpu tables`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from whichgpu.commands.options import WORKLOAD, NoCache, OwnFiles, ResultsFile, Sets
from whichgpu.commands.output import print_record
from whichgpu.commands.progress import progress
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from whichgpu.comparison import Comparison
    from whichgpu.tables import Table, TierTable

Kind = Literal["max-batch", "throughput", "relative", "tiers"]
Source = Literal["measured", "predicted", "published"]
Format = Literal["terminal", "markdown", "csv", "json"]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
    results: ResultsFile = None,
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
