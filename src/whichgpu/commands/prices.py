"""The command `whichgpu prices`."""

from __future__ import annotations

from typing import Annotated

import typer

from whichgpu.commands.options import Currency, Json, OwnFiles
from whichgpu.commands.output import print_record

AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of", metavar="DAY", help="Cards and prices as they were then: 2020-02, 2026-06-30; default: today."
    ),
]


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
