"""Dates as sources give them: "2026", "2026-05" or "2026-05-24"; what is not said may be any day of that year or month.

Nobody can have read a price tomorrow, so what such a date may mean ends today.
"""

from __future__ import annotations

import calendar
import re
from datetime import date

from whichgpu.errors import InputError

__all__ = ["age_days", "asked_day", "first", "last", "middle", "months"]

_DAYS_OF_MONTH = 365.25 / 12


def first(text: str) -> date:
    """The earliest day that a date may mean."""
    year, month, day = _parts(text)
    return date(year, month or 1, day or 1)


def last(text: str) -> date:
    """The latest day that a date may mean."""
    year, month, day = _parts(text)
    month = month or 12
    return date(year, month, day or calendar.monthrange(year, month)[1])


def middle(text: str, today: date | None = None) -> date:
    """The day that a date is taken for: the middle of those it may mean, as far as they are not in the future."""
    begin = first(text)
    return begin + (max(min(last(text), today or date.today()), begin) - begin) // 2


def age_days(text: str, day: date, today: date | None = None) -> int:
    """Whole days from a date to `day`; 0 where it is later."""
    return max((day - middle(text, today)).days, 0)


def months(days: int) -> float:
    """Days as months."""
    return days / _DAYS_OF_MONTH


def asked_day(words: str, today: date | None = None) -> date:
    """The day that somebody asks about: "today", or the last of a date; InputError for no date and for the future."""
    today = today or date.today()
    if words.strip().casefold() == "today":
        return today
    problem = f'"{words[:40]}" is no day; write 2020-02-14, 2020-02, 2020 or today'
    if not re.fullmatch(r"\d{4}(-\d\d){0,2}", words.strip(), re.ASCII):
        raise InputError(problem)
    try:
        begin, day = first(words.strip()), min(last(words.strip()), today)
    except ValueError:
        raise InputError(problem) from None
    if begin > today:
        raise InputError(f"{words.strip()} is in the future (today is {today.isoformat()}); ask about a day that was")
    return day


def _parts(text: str) -> tuple[int, int, int]:
    year, month, day = (*(int(part) for part in text.split("-")), 0, 0)[:3]
    return year, month, day
