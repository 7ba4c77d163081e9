"""Machines with a GPU that cost nothing: what their terms give, from `data/free_machines.toml`.

Facts only, each with source, date and how sure it is; terms change without notice, so the age of a row counts as that of a
price does. Nothing here, or made from it, keeps a session alive, clicks, or starts again until a better card comes: a run
that needs more hours than a session has is to be planned in sessions, with checkpoints.

Not covered: TPUs, cards that the catalogue does not have, services that run one request at a time, and trials whose credit
comes without a quota of GPUs. docs/free-machines.md says which were left out.
"""

from __future__ import annotations

import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from whichgpu import catalogue
from whichgpu.catalogue.days import age_days, months
from whichgpu.catalogue.files import Document
from whichgpu.catalogue.records import Count, Day, Positive, Text

__all__ = ["STALE_MONTHS", "FreeMachine", "load"]

STALE_MONTHS = 6  # terms that were read longer ago are said to be old
NAME = "free_machines.toml"


class FreeMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine of one plan. Hours are of the whole machine; None is unpublished or unknown."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    service: Text
    plan: Text
    # ids of the catalogue; several where the source leaves the form open
    gpus: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    count: Count = 1  # cards in the machine
    max_session_hours: Positive | None = None
    weekly_hours: Positive | None = None  # renewed every week
    monthly_hours: Positive | None = None  # renewed every month
    total_hours: Positive | None = None  # given once
    persistent_storage: str = ""  # what stays between sessions; empty where that is unknown
    runs_unattended: bool  # a run goes on, up to a session's hours, without somebody at the browser
    card_required: bool  # a card of payment must be given
    open_to_new: bool = True  # whether one can still sign up
    note: str = ""
    source: Text
    date: Day
    confidence: Literal["high", "medium", "low"]

    def age_days(self, day: datetime.date | None = None) -> int:
        """Days since its terms were read, today or on another day."""
        return age_days(self.date, day or datetime.date.today())

    def stale(self, day: datetime.date | None = None) -> bool:
        """Whether its terms were read too long ago to count on."""
        return months(self.age_days(day)) > STALE_MONTHS


def load(directory: Path | None = None) -> tuple[FreeMachine, ...]:
    """The shipped machines; those of a lab's own folder (as `catalogue.load`) are added, or take the place of one of their id.

    CatalogueError names file, line, field and cure where a file is malformed.
    """
    known = {gpu.id for gpu in catalogue.load(directory).gpus}
    found = _read(files("whichgpu") / "data" / NAME, known)
    own = catalogue.own_folder(directory)
    if own is not None and (own / NAME).is_file():
        found |= _read(own / NAME, known)
    return tuple(found.values())


def _read(entry: Traversable, known: set[str]) -> dict[str, FreeMachine]:
    document = Document(entry)
    found: dict[str, FreeMachine] = {}
    for number, machine in enumerate(document.rows("machine", FreeMachine), 1):
        unknown = set(machine.gpus) - known
        if unknown:
            what = f'no card has the id "{min(unknown)}"; add it to gpus.toml or correct it'
            raise document.error("machine", number, "gpus", what)
        if machine.id in found:
            what = f'"{machine.id}" is the id of an earlier entry too; keep one of them'
            raise document.error("machine", number, "id", what)
        found[machine.id] = machine
    return found
