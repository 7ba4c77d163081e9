"""What all commands share: their options for output, printing a record, and a spinner."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from whichgpu.arguments import TIMEOUT_S

SLOW = f"a step that never ends is ended by --timeout ({TIMEOUT_S:g} s unless set); Ctrl-C ends it now"
_SLOW_S = 60.0
_BAR_WIDTH = 12
_PART = re.compile(r"(\d+) of (\d+)[^:]*: ")
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


def print_record(record: Any, json: bool, print_text: Callable[[Any], None]) -> None:
    """Print a record as JSON, or by `print_text` on a console."""
    from whichgpu import render  # noqa: PLC0415

    try:
        if json:
            sys.stdout.write(render.to_json(record) + "\n")
        else:
            console = render.make_console(sys.stdout)
            with render.trimmed(console):
                print_text(console)
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read the output is gone: nothing is left to say
        discard_output()


def end_partial(missing: Sequence[str]) -> None:
    """End as after Ctrl-C where what was printed is not all."""
    if missing:
        raise typer.Exit(130)


def discard_output() -> None:
    """Have what is printed, and what could not be printed yet, go nowhere: not even an error on the way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def progress(slow: str = "") -> Iterator[Callable[[str], None]]:
    """A spinner, a bar and the time gone by, on a terminal's stderr; elsewhere a line a minute. `slow` is said once, after one.

    The bar follows lines that begin with their part of the whole, as in "3 of 12, about 5 min left: deeplabv3 on T4". What is
    announced before anything is traced stays to be read.
    """
    from whichgpu.outlook import ANNOUNCED  # noqa: PLC0415

    with _spinner() as spin:
        minutes = _Minutes(slow, loud=spin is None)
        minutes.start()

        def on_progress(line: str) -> None:
            if line.startswith(ANNOUNCED):
                print(line, file=sys.stderr, flush=True)
                return
            minutes.latest = line
            if spin is not None:
                spin(line)

        try:
            yield on_progress
        finally:
            minutes.over.set()


class _Minutes(threading.Thread):
    """Says once a minute what is being done, if `loud`; after the first one also `hint`, if there is one."""

    def __init__(self, hint: str, *, loud: bool) -> None:
        super().__init__(daemon=True)
        self.hint = hint
        self.loud = loud
        self.latest = ""
        self.over = threading.Event()

    def run(self) -> None:
        """Speak until it is over."""
        seconds, hint = 0.0, self.hint
        while not self.over.wait(_SLOW_S):
            seconds += _SLOW_S
            said = [part for part in (self.latest if self.loud else "", hint) if part]
            if said:
                print(f"still at work after {seconds:g} s: {'; '.join(said)}", file=sys.stderr, flush=True)
            hint = ""


@contextlib.contextmanager
def _spinner() -> Iterator[Callable[[str], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    from whichgpu import render  # noqa: PLC0415

    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), BarColumn(_BAR_WIDTH), TimeElapsedColumn(), text)
    with Progress(*columns, console=render.make_console(sys.stderr), transient=True) as progress:
        task = progress.add_task("looking for traces", total=None)

        def show(line: str) -> None:
            part = _PART.match(line)
            progress.update(task, description=line)
            if part is not None:
                progress.update(task, completed=int(part[1]) - 1, total=int(part[2]))

        yield show
