"""The fitted constants of the speed model, as they ship: data/speed.json, written by tools/fit_speed.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants with what they were fitted to."""

    fitted_on: tuple[str, ...]
    points: int  # measured operators
    date: str
    # Half the width of an interval that holds 80 % of the time, in natural logarithms of the step time, by how near the
    # card is to those that the constants were fitted to: "card", "architecture" or "none" of it was among them; "host" where
    # that is the limit, if it is wider.
    spread: dict[str, float]
    cards: tuple[str, ...]  # fitted to
    architectures: tuple[str, ...]
    constants: dict[str, float]


@cache
def load() -> Fit:
    """The constants that ship with this version."""
    text = (files("whichgpu") / "data" / "speed.json").read_bytes()
    return msgspec.json.decode(text, type=Fit)


def half_width(fit: Fit, card: str, architecture: str, limit: str) -> float:
    """Half the width of the interval that holds 80 % of the time, in natural logarithms of the step time; `limit` is what takes
    longest ("compute", "memory" or "host").
    """
    nearness = "card" if card in fit.cards else "architecture" if architecture in fit.architectures else "none"
    return width(fit.spread, nearness, limit == "host")


def width(spread: Mapping[str, float], nearness: str, by_host: bool) -> float:
    """The same by how near a card is ("card", "architecture" or "none" of it fitted to), and whether the host is the limit."""
    return max(spread[nearness], spread["host"]) if by_host else spread[nearness]
