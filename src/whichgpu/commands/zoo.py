"""The command `whichgpu zoo`."""

from __future__ import annotations

from whichgpu.commands.options import Json, Sets
from whichgpu.commands.output import print_record


def zoo(sets: Sets = None, json: Json = False) -> None:
    """List the workloads that come with whichgpu.

    Parameters; FLOPs of one training step for each sample; settings, as options; and the sets that --set names.
    """
    from whichgpu import render  # noqa: PLC0415
    from whichgpu.zoo_list import entries  # noqa: PLC0415

    found = entries(sets or ())
    print_record(found, json, lambda console: render.print_zoo(found, console))
