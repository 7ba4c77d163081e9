"""Printing a record as text or JSON, also to a reader that is gone, and ending where it is not whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer


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
