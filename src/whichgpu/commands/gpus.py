"""The command `whichgpu gpus`: the cards of the catalogue, or those of a name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from whichgpu.commands.options import Json, OwnFiles
from whichgpu.commands.output import print_record
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whichgpu.catalogue import Gpu


def gpus(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only cards with this in their name.")] = "",
    own_files: OwnFiles = None,
    json: Json = False,
) -> None:
    """List the cards of the catalogue."""
    from whichgpu import catalogue, render  # noqa: PLC0415

    cards = _named(catalogue.load().gpus, name)
    if not cards:
        raise InputError(f"no card has {name!r} in its name; `whichgpu gpus` lists them all")
    print_record(cards, json, lambda console: render.print_gpus(cards, console))


def _named(cards: Sequence[Gpu], words: str) -> list[Gpu]:
    """The cards with all words in their names: numbers as whole ones, so that 80GB is not in 180GB, or else in part."""
    patterns = [re.escape(word) for word in words.casefold().split()]
    whole = [rf"(?<!\d){word}" if word[0].isdigit() else word for word in patterns]
    whole = [rf"{word}(?!\d)" if word[-1].isdigit() else word for word in whole]
    found = (
        [card for card in cards if all(re.search(one, _names(card)) for one in wanted)] for wanted in (whole, patterns)
    )
    return next(filter(None, found), [])


def _names(card: Gpu) -> str:
    return " ".join((card.name, card.id, *card.aliases)).casefold()
