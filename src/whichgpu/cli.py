"""The `whichgpu` command: the commands of `commands` put together, and errors made one line and an exit code.

Loads no torch: tracing and measuring happen in worker processes. What is computed is computed by `api`, and what is shown
is laid out by `render`. Exit codes: 0 done, 2 a mistake or an error, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from whichgpu.commands.accuracy import accuracy
from whichgpu.commands.advise import advise
from whichgpu.commands.bench import bench
from whichgpu.commands.chart import chart
from whichgpu.commands.explain import explain
from whichgpu.commands.fit import fit
from whichgpu.commands.free import free
from whichgpu.commands.gpus import gpus
from whichgpu.commands.output import discard_output
from whichgpu.commands.prices import prices
from whichgpu.commands.rank import rank
from whichgpu.commands.results import results_app
from whichgpu.commands.tables import tables
from whichgpu.commands.update import update
from whichgpu.commands.zoo import zoo
from whichgpu.errors import WhichGpuError

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


# in the order of the help, which puts `results`, a group, last
for _command in (fit, explain, rank, advise, bench, gpus, zoo, accuracy, chart, tables, prices, free, update):
    app.command()(_command)
app.add_typer(results_app)


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
