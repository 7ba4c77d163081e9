"""The command `whichgpu accuracy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from whichgpu.commands.options import Json
from whichgpu.commands.output import print_record
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


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
        print_record(found, json, lambda console: render.print_speed_accuracy(found, console))
        return

    def show(console: Console) -> None:
        if markdown:
            console.file.write(render.to_markdown(report))
        else:
            render.print_accuracy(report, console)

    report = accuracy.report()
    print_record(report, json, show)
