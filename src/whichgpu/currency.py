"""Other currencies than the US dollar, in which all prices of the catalogue are.

Rates are the European Central Bank's reference rates of one day, from `data/currency.toml`, or the user's own
(`EUR=1.08`: so many dollars for one unit). Nothing is fetched, and no rate is guessed: a currency without one is refused.

Not covered: the rate of the day on which a price was read, and what banks charge.
"""

from __future__ import annotations

import math
import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from whichgpu.errors import InputError

__all__ = ["DOLLARS", "Rate", "codes", "parse", "rate"]

USD = "USD"


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """What one unit of a currency is worth."""

    code: str
    usd_per_unit: float
    date: str  # of the rate, ISO; empty for one that the user gave, and for the dollar itself
    source: str

    def of_usd(self, usd: float) -> float:
        """An amount of dollars in this currency."""
        return usd / self.usd_per_unit


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    date: str
    source: str
    per_eur: dict[str, float]


def rate(code: str) -> Rate:
    """The rate of a currency of three letters; InputError, with what to write instead, where none is known."""
    wanted = code.strip().upper()
    if wanted == USD:
        return Rate(code=USD, usd_per_unit=1.0, date="", source="the currency of all prices here")
    known = _known()
    if wanted not in known.per_eur:
        example = f"{wanted}=0.03" if re.fullmatch(r"[A-Z]{3}", wanted) else "TWD=0.03"
        raise InputError(
            f'no rate of "{code[:20]}" is known (there are {", ".join(codes())}); '
            f"give one in dollars for one unit, as in --currency {example}"
        )
    per_unit = known.per_eur[USD] / known.per_eur[wanted]
    return Rate(code=wanted, usd_per_unit=per_unit, date=known.date, source=known.source)


def parse(words: str) -> Rate:
    """What `--currency` names: a currency ("EUR"), or one with the user's own rate ("EUR=1.08"); InputError otherwise."""
    code, given, number = words.partition("=")
    if not given:
        return rate(code)
    wanted = code.strip().upper()
    try:
        usd = float(number)
    except ValueError:
        usd = math.nan
    if not re.fullmatch(r"[A-Z]{3}", wanted) or not (math.isfinite(usd) and usd > 0):
        raise InputError(
            f'--currency {words[:40]}: write three letters and the dollars that one unit is worth, as in "EUR=1.08"'
        )
    if wanted == USD:
        if usd != 1:
            raise InputError(f"--currency {words[:40]}: a dollar is worth one dollar; leave the rate out")
        return rate(USD)
    return Rate(code=wanted, usd_per_unit=usd, date="", source="given with --currency")


def codes() -> list[str]:
    """The currencies with a rate."""
    return sorted({*_known().per_eur, USD})


@cache
def _known() -> _File:
    entry = files("whichgpu") / "data" / "currency.toml"
    return msgspec.convert(tomllib.loads(entry.read_text(encoding="utf-8")), _File)


DOLLARS = rate(USD)
