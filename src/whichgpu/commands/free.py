"""The command `whichgpu free`."""

from __future__ import annotations

from whichgpu.commands.options import Json, OwnFiles
from whichgpu.commands.output import print_record


def free(own_files: OwnFiles = None, json: Json = False) -> None:
    """Machines with a GPU that cost nothing, or come with credit: hours, storage, terms.

    Facts from the services' own pages as far as there are any, each with its date. whichgpu keeps no session alive.
    """
    from whichgpu import catalogue, free_machines, render  # noqa: PLC0415

    found = free_machines.load()
    names = {gpu.id: gpu.name for gpu in catalogue.load().gpus}
    print_record(found, json, lambda console: render.print_free(found, names, console))
