"""The command `whichgpu update`: shows what changes in prices, asks, and writes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from whichgpu.commands.options import Json, OwnFiles
from whichgpu.commands.output import print_record
from whichgpu.commands.progress import progress
from whichgpu.errors import InputError


def update(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")] = False,
    own_files: OwnFiles = None,
    json: Json = False,
) -> None:
    """Refresh rental prices through gpuhunt, after showing what changes.

    Needs a network and `pip install 'whichgpu[update]'`. Writes into the user's data folder alone; the prices that come with
    whichgpu stay as they are, and are used again when that file is deleted. Prices to buy and free machines are not refreshed.
    """
    if yes and dry_run:
        raise InputError("--yes and --dry-run: choose one")
    asks = not (yes or dry_run)
    if asks and (json or not sys.stdin.isatty()):
        raise InputError("nobody can be asked here; say --yes to write, or --dry-run to see what would change")
    from whichgpu import gpuhunt_prices, refresh, render  # noqa: PLC0415

    with progress() as on_progress:
        on_progress("fetching prices")
        found = refresh.prepare(gpuhunt_prices.fetch())
    if yes:
        found = refresh.write(found)
    print_record(found, json, lambda console: render.print_update(found, console))
    if asks and typer.confirm(f"Write {len(found.offers)} offers to {found.file}?", err=True):
        refresh.write(found)
        typer.echo("Written.")
    elif asks:
        typer.echo("Nothing was written.")
