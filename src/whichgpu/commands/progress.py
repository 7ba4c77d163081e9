"""What is said on standard error while an answer is worked out."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator

from whichgpu.arguments import TIMEOUT_S

SLOW = f"a step that never ends is ended by --timeout ({TIMEOUT_S:g} s unless set); Ctrl-C ends it now"
_SLOW_S = 60.0
_BAR_WIDTH = 12
_PART = re.compile(r"(\d+) of (\d+)[^:]*: ")


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
