"""The commands around prices and free machines: `whichgpu prices`, `whichgpu free` and `whichgpu update`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from whichgpu.cli_common import Currency, Json, OwnFiles, print_record, progress
from whichgpu.errors import InputError

AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of", metavar="DAY", help="Cards and prices as they were then: 2020-02, 2026-06-30; default: today."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(name="prices")(prices)
    app.command(name="free")(free)
    app.command(name="update")(update)


def prices(
    gpus: Annotated[
        list[str] | None, typer.Argument(metavar="[GPU...]", help="Only these cards; default: all.")
    ] = None,
    currency: Currency = "USD",
    used: Annotated[bool, typer.Option("--used", help="Only what used cards cost to buy.")] = False,
    as_of: AsOf = None,
    own_files: OwnFiles = None,
    json: Json = False,
) -> None:
    """What cards cost, to buy and to rent for an hour, and how old that is.

    Each price is a median with the interval that it is likely in: how far offers differ, wider the older they are. A price that
    is too old to count on is called stale. Prices come with whichgpu, from `whichgpu update` and from --catalogue; nothing is
    fetched.
    """
    from whichgpu import currency as currencies  # noqa: PLC0415
    from whichgpu import price_list, render  # noqa: PLC0415

    found = price_list.make(gpus or (), currencies.parse(currency), as_of, used=used)
    print_record(found, json, lambda console: render.print_prices(found, console))


def free(own_files: OwnFiles = None, json: Json = False) -> None:
    """Machines with a GPU that cost nothing, or come with credit: hours, storage, terms.

    Facts from the services' own pages as far as there are any, each with its date. whichgpu keeps no session alive.
    """
    from whichgpu import catalogue, free_machines, render  # noqa: PLC0415

    found = free_machines.load()
    names = {gpu.id: gpu.name for gpu in catalogue.load().gpus}
    print_record(found, json, lambda console: render.print_free(found, names, console))


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
