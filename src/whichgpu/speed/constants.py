"""The fitted constants of the speed model, as they ship: data/speed.json, written by tools/fit_speed.py."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants with what they were fitted to."""

    fitted_on: tuple[str, ...]
    points: int  # measured operators
    date: str
    # Half the width of an interval that holds 80 % of the time, in natural logarithms of the step time, by how near the
    # card is to those that the constants were fitted to: "card", "architecture" or "none" of it was among them.
    spread: dict[str, float]
    cards: tuple[str, ...]  # fitted to
    architectures: tuple[str, ...]
    constants: dict[str, float]


@cache
def load() -> Fit:
    """The constants that ship with this version."""
    text = (files("whichgpu") / "data" / "speed.json").read_bytes()
    return msgspec.json.decode(text, type=Fit)


def half_width(fit: Fit, card: str, architecture: str) -> float:
    """Half the width of the interval that holds 80 % of the time, in natural logarithms of the step time."""
    if card in fit.cards:
        return fit.spread["card"]
    return fit.spread["architecture" if architecture in fit.architectures else "none"]
