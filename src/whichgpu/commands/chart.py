"""The command `whichgpu chart`: an answer of `rank` as bars in the terminal, or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

import typer

from whichgpu.arguments import TIMEOUT_S
from whichgpu.commands.options import WORKLOAD, HostSpeed, Json, NoCache, OwnFiles, Sets, Timeout
from whichgpu.commands.output import print_record
from whichgpu.commands.progress import SLOW, progress
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from whichgpu.advice import RankReport
    from whichgpu.charts.records import Chart, Money

Kind = Literal["value", "relative", "batch"]


def chart(
    *,
    kind: Annotated[str, typer.Argument(metavar="CHART", help="value, relative or batch.")],
    workloads: Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD...]", help=WORKLOAD)] = None,
    sets: Sets = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only this card; may be repeated.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="GPU", help="The card that is 1; default: Quadro RTX 8000."),
    ] = None,
    price: Annotated[
        str, typer.Option("--price", metavar="NAME", help="value: the price to buy, or the rent of an hour.")
    ] = "buy",
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FILE", help="Draw a picture into this .png or .svg file; replaced if it is there."
        ),
    ] = None,
    host_speed: HostSpeed = None,
    own_files: OwnFiles = None,
    timeout: Timeout = TIMEOUT_S,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """Speed for the money, relative speed, or largest batch as a chart.

    value: samples a second for the money against memory, with the cards marked that no other one of today's prices beats in both.
    relative: each card's speed beside the baseline's, the fastest first. batch: the largest batch against memory. The figures are
    those of `whichgpu rank`; up to four workloads are told apart, more are means over image and language models.

    Bars in the terminal, or a picture with --out, which needs matplotlib: pip install 'whichgpu[charts]'.
    """
    if kind not in get_args(Kind):
        raise InputError(f"{kind!r} is no chart; say value, relative or batch")
    if price not in ("buy", "rent"):
        raise InputError(f"--price {price}: say buy or rent")
    if price != "buy" and kind != "value":
        raise InputError(f"--price is for `whichgpu chart value`, not {kind}")
    picture = Path(out).expanduser() if out is not None else None
    from whichgpu import api, tables  # noqa: PLC0415
    from whichgpu.charts import figure, pictures  # noqa: PLC0415
    from whichgpu.charts.records import SINGLE  # noqa: PLC0415
    from whichgpu.sets import expand  # noqa: PLC0415

    if picture is not None:
        figure.check_file(picture)
    names = expand(workloads or (), sets or ())
    unit = baseline or tables.BASELINE
    # the baseline stands in a chart of ratios, whatever cards are asked about
    beside = [unit] if kind == "relative" or len(names) > (SINGLE if kind == "batch" else 1) else []
    with progress(SLOW) as on_progress:
        report = api.rank(
            names,
            gpus=[*_with_cuda(gpu), *beside] if gpu else None,
            baseline=unit,
            host_speed=host_speed,
            cache=not no_cache,
            on_progress=on_progress,
            timeout_s=timeout,
        )
    made = _made(cast("Kind", kind), report, cast("Money", price), named=bool(gpu))
    if picture is not None:
        pictures.draw(made, picture)
    from whichgpu import render  # noqa: PLC0415

    print_record(
        made, json, lambda console: render.print_chart(made, console, None if picture is None else str(picture))
    )


def _with_cuda(names: list[str]) -> list[str]:
    """The names of cards; InputError for one of which nothing can be charted."""
    from whichgpu import catalogue  # noqa: PLC0415

    for card in catalogue.load().find_all(names):
        if not card.cuda:
            raise InputError(f"{card.name} has no CUDA, so that its speed is not known; leave it out")
    return names


def _made(kind: Kind, report: RankReport, price: Money, *, named: bool) -> Chart:
    from whichgpu.charts import records  # noqa: PLC0415

    if kind == "value":
        return records.value_chart(report, price, named=named)
    if kind == "relative":
        return records.relative_chart(report, named=named)
    return records.batch_chart(report)
