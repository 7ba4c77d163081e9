"""How fast this host is, as text."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from whichgpu.host_speed import HostSpeed
from whichgpu.render.common import add_column, dense_table, print_notes, print_whole

_BUSY = 0.75  # share of the processors that others take, from which it is said


def print_host_speed(found: HostSpeed, console: Console) -> None:
    """Print this host's speed and what it was compared with."""
    title = f"This host launches operators {found.host_speed:g} times as fast as the reference"
    console.print(Text.assemble((title, "bold"), ": measured, without a GPU"))
    console.print()
    table = dense_table()
    table.add_column("Microseconds of the small step")
    for title in (*found.reference.launches_us, "Processor"):
        add_column(table, title if title == "Processor" else f"{title}>")
    for name, probe in (("this host", found.probe), ("the reference, of an H200", found.reference)):
        times = [f"{probe.launches_us[phase]:,.0f}" for phase in found.reference.launches_us]
        table.add_row(name, *times, probe.processor)
    print_whole(table, console)
    notes = [f"kept in {found.file}; predicted speeds are for it from now on, --host-speed 1 asks for the reference"]
    if found.probe.torch != found.reference.torch or found.probe.python != found.reference.python:
        here, there = (f"torch {p.torch} on Python {p.python}" for p in (found.probe, found.reference))
        notes.append(f"{here} here, {there} there: the difference counts as the host's")
    if found.probe.load > _BUSY * found.probe.processors:
        notes.append(f"other processes were at work (load {found.probe.load:g}); calibrate again when they are not")
    print_notes(notes, console)
