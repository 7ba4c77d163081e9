"""The `whichgpu` command: arguments in, one call, text or JSON out.

Loads no torch: tracing and measuring happen in worker processes. What is computed is computed by `api`, and what is shown
is laid out by `render`; this module only reads arguments and turns errors into one line and an exit code
(0 done, 2 a mistake or an error, 130 interrupted).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from whichgpu import cli_advise, cli_chart, cli_results, cli_update, text
from whichgpu.arguments import TIMEOUT_S
from whichgpu.cli_common import (
    SLOW,
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
    discard_output,
    end_partial,
)
from whichgpu.cli_common import WORKLOAD as _WORKLOAD
from whichgpu.cli_common import print_record as _print
from whichgpu.cli_common import progress as _progress
from whichgpu.errors import InputError, WhichGpuError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from whichgpu.advice import Sort
    from whichgpu.catalogue import Gpu

# Typer keeps a private copy of click since 0.29, so its base of usage errors is reached through a public one.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# A write that fails so is no bug. Files of our own have errors that name them; what is left is standard output.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE}

app = typer.Typer(
    name="whichgpu",
    help="Which GPU can train this model, and how big a batch fits? No GPU is needed to ask; with one, measure.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _whichgpu(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"whichgpu {metadata.version('whichgpu')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command()
def fit(
    *,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help=_WORKLOAD)],
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

    with _progress(SLOW) as on_progress:
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

    _print(report, json, lambda console: render.print_fit(report, console, detailed=bool(gpu)))


@app.command()
def explain(
    *,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help=_WORKLOAD)],
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

    with _progress(SLOW) as on_progress:
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

    _print(report, json, lambda console: render.print_explain(report, console))


@app.command()
def rank(
    workloads: Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD...]", help=_WORKLOAD)] = None,
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

    with _progress(SLOW) as on_progress:
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

    _print(report, json, lambda console: render.print_rank(report, console))
    end_partial(report.missing)


def _calibrate_host(workloads: bool, json: bool) -> None:
    if workloads:
        raise InputError("--calibrate-host measures no workload; ask for it alone")
    from whichgpu import host_speed, render  # noqa: PLC0415

    with _progress() as on_progress:
        on_progress("timing a small step on the CPU")
        found = host_speed.calibrate()
    _print(found, json, lambda console: render.print_host_speed(found, console))


cli_advise.add_to(app)


def _sort(words: str) -> Sort:
    if words not in ("price", "speed", "memory"):
        raise InputError(f"--sort {words}: say price, speed or memory")
    return cast("Sort", words)


@app.command()
def bench(
    *,
    workloads: Annotated[list[str] | None, typer.Argument(metavar="[WORKLOAD...]", help=_WORKLOAD)] = None,
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

    with _progress() as on_progress:
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

    _print(report, json, lambda console: render.print_bench(report, console))
    if not report.answered:
        raise typer.Exit(2)


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


@app.command()
def gpus(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only cards with this in their name.")] = "",
    own_files: OwnFiles = None,
    json: Json = False,
) -> None:
    """List the cards of the catalogue."""
    from whichgpu import catalogue, render  # noqa: PLC0415

    cards = _named(catalogue.load().gpus, name)
    if not cards:
        raise InputError(f"no card has {name!r} in its name; `whichgpu gpus` lists them all")
    _print(cards, json, lambda console: render.print_gpus(cards, console))


@app.command()
def zoo(sets: Sets = None, json: Json = False) -> None:
    """List the workloads that come with whichgpu.

    Parameters; FLOPs of one training step for each sample; settings, as options; and the sets that --set names.
    """
    from whichgpu import render  # noqa: PLC0415
    from whichgpu.zoo_list import entries  # noqa: PLC0415

    found = entries(sets or ())
    _print(found, json, lambda console: render.print_zoo(found, console))


@app.command()
def accuracy(
    what: Annotated[str, typer.Argument(metavar="[WHAT]", help="memory or speed.")] = "memory",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/accuracy.md (memory).")] = False,
    json: Json = False,
) -> None:
    """How good are the predictions?

    Memory: predicted against measured for every training step of the truth set, with the distribution, the bars and whether they are
    met, and the worst cases named. Speed: step times against those measured on an H200 and published of other cards,
    bars that are missed among them. The figures come with the package; nothing is measured or traced.
    """
    if markdown and json:
        raise InputError("--markdown and --json: choose one")
    if what not in ("memory", "speed"):
        raise InputError(f"{what!r} has no accuracy; say memory or speed")
    if what == "speed" and markdown:
        raise InputError("--markdown is for `whichgpu accuracy memory`; the page on speed is docs/speed.md")
    from whichgpu import accuracy, render, speed_accuracy  # noqa: PLC0415

    if what == "speed":
        found = speed_accuracy.report()
        _print(found, json, lambda console: render.print_speed_accuracy(found, console))
        return

    def show(console: Console) -> None:
        if markdown:
            console.file.write(render.to_markdown(report))
        else:
            render.print_accuracy(report, console)

    report = accuracy.report()
    _print(report, json, show)


cli_chart.add_to(app)
cli_results.add_to(app)
cli_update.add_to(app)


def _named(cards: Sequence[Gpu], words: str) -> list[Gpu]:
    """The cards with all words in their names: numbers as whole ones, so that 80GB is not in 180GB, or else in part."""
    patterns = [re.escape(word) for word in words.casefold().split()]
    whole = [rf"(?<!\d){word}" if word[0].isdigit() else word for word in patterns]
    whole = [rf"{word}(?!\d)" if word[-1].isdigit() else word for word in whole]
    found = (
        [card for card in cards if all(re.search(one, _names(card)) for one in wanted)] for wanted in (whole, patterns)
    )
    return next(filter(None, found), [])


def _names(card: Gpu) -> str:
    return " ".join((card.name, card.id, *card.aliases)).casefold()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit; `arguments` defaults to those of the process."""
    if sys.stderr is None:  # closed by whoever started this
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for as long as the process runs)
    if sys.stdout is None:
        sys.exit(_fail("output cannot be written: standard output is closed; send it to a file or to /dev/null", 2))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no error
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminated)
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        code = app(arguments, standalone_mode=False)
    except WhichGpuError as error:
        return _fail(" ".join(str(error).split()), error.exit_code)
    except _UsageError as error:
        return _fail(f"{error.format_message()} (see whichgpu --help)", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        discard_output()
        gone = error.errno == errno.EPIPE  # whoever read the output
        return 0 if gone else _fail(f"output cannot be written: {error.strerror}", 2)
    # newer Typers turn Ctrl-C into this code, older ones into Abort
    return _fail("interrupted", 130, label="") if code == 130 else code or 0


def _check_text(arguments: list[str]) -> None:
    """Bytes that are no text in the locale's encoding can neither be shown nor kept."""
    for argument in arguments:
        if not argument.isascii():
            from whichgpu.workload import check_text  # noqa: PLC0415

            check_text(argument)


def _fail(message: str, code: int, label: str = "error: ") -> int:
    colour = typer.colors.RED if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else None
    with contextlib.suppress(OSError):  # a full disk: the code says it too
        typer.secho(f"{label}{message}", fg=colour, err=True)
    return code


def _terminated(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)  # as an exception, so that the worker is ended and files are removed
