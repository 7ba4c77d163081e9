"""Numbers as words and words as numbers: the only place that formats or parses what a person reads or types.

Memory is shown in binary units (1 GiB = 2^30 bytes), as drivers and PyTorch count it; only the size under which a
card is sold is "24 GB", as on its box.
Not covered: the JSON output, which carries plain numbers with the unit in the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from whichgpu.errors import InputError

UNKNOWN = "-"

_KIB = 1 << 10
_MIB = 1 << 20
_GIB = 1 << 30

# "11g" means GiB, as it does for Docker and the JVM; only a spelt-out "GB" is decimal.
_UNITS = {
    "": 1,
    "b": 1,
    "k": _KIB,
    "kib": _KIB,
    "kb": 1000,
    "m": _MIB,
    "mib": _MIB,
    "mb": 1000**2,
    "g": _GIB,
    "gib": _GIB,
    "gb": 1000**3,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 1000**4,
}
# What GPUs with CUDA have been sold with, in the makers' GB
_SOLD_GB = (*range(1, 13), 16, 18, 20, 24, 28, 32, 40, 48, 64, 72, 80, 94, 96, 141, 180, 186, 270, 279)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]*)", re.IGNORECASE)
_SMALLEST_LIMIT_BYTES = 2 * _MIB  # one segment of PyTorch's caching allocator: nothing fits below it
_LARGEST_LIMIT_BYTES = 1 << 50
_LARGEST_BATCH = 2**31 - 1


def format_bytes(count: int | None) -> str:
    """A memory size in the largest binary unit that gives at least 1: "512 B", "640 MiB", "7.6 GiB"."""
    if count is None:
        return UNKNOWN
    for size, unit in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        # half a step below a unit already rounds up to it: 1023.9 MiB is "1.0 GiB", not "1024 MiB"
        if count >= size - size // 2048:
            return f"{count / size:,.1f} GiB" if size == _GIB else f"{count / size:,.0f} {unit}"
    return f"{count} B"


def format_limit(count: int | None) -> str:
    """A memory limit as it was set: "8 GiB", "10.5 GiB"; one that is no tenth of a GiB as `format_bytes` does."""
    if count is not None and count % _GIB == 0:
        return f"{count // _GIB:,} GiB"
    return format_bytes(count)


def format_range(low: int, high: int) -> str:
    """Two memory sizes: "3.1 and 3.6 GiB", or "990 MiB and 1.0 GiB"."""
    first, last = format_bytes(low), format_bytes(high)
    return f"{first.removesuffix(last[last.index(' ') :])} and {last}"


def memory_class_gb(count: int, card: str = "") -> int:
    """The size that a card with so much memory is sold under, in GB as makers count: 15.6 GiB is 16.

    The name of the card counts where it says so: "GH200 144GB" shows 3 GB less. Otherwise: the driver, error correction and
    the screen keep up to a tenth of what is on the box. Where no size is that near, the memory in whole GiB.
    """
    named = re.search(r"\b(\d+)GB\b", card)
    if named is not None:
        return int(named[1])
    sold = next((size for size in _SOLD_GB if size * _GIB >= count), None)
    return sold if sold is not None and count >= 0.9 * sold * _GIB else max(round(count / _GIB), 1)


def format_memory_class(count: int, card: str = "") -> str:
    """The size that a card is sold under, by which cards are grouped: 25,757,220,864 bytes is "24 GB"."""
    return f"{memory_class_gb(count, card)} GB"


def format_memory_classes(cards: Iterable[tuple[int, str]]) -> str:
    """The sizes of several cards, of which memory and names are given: "24 GB", or "10-12 GB"."""
    sizes = sorted(memory_class_gb(count, card) for count, card in cards)
    return f"{sizes[0]} GB" if sizes[0] == sizes[-1] else f"{sizes[0]}-{sizes[-1]} GB"


def format_seconds(seconds: float | None) -> str:
    """A duration: "80 ms", "1.5 s", "42 s", "2 min 5 s"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_long(seconds: float) -> str:
    """The duration of a run, with three figures at most: "42 s", "35 min", "5.2 h", "3.1 days"."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.995 * size:
            count = seconds / size
            return f"{count:,.1f} {unit}" if count < 9.95 else f"{count:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.2g} s"


def format_duration(seconds: float) -> str:
    """A measured step time with three figures: "0.412 ms", "12.3 ms", "1.25 s"."""
    value, unit = (seconds, "s") if seconds >= 0.9995 else (seconds * 1000, "ms")
    decimals = 3 if value < 0.9995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f} {unit}"


def format_count(count: int | None) -> str:
    """A whole number with thousands separated: "2,048"."""
    return UNKNOWN if count is None else f"{count:,}"


def format_parameters(count: int | None) -> str:
    """A number of weights with three figures: "125 k", "25.6 M", "8.03 B"."""
    return _format_scaled(count, ((10**12, " T"), (10**9, " B"), (10**6, " M"), (10**3, " k")))


def format_operations(count: int | None) -> str:
    """A number of operations with three figures: "24.3 G", "1.25 T"."""
    return _format_scaled(count, ((10**15, " P"), (10**12, " T"), (10**9, " G"), (10**6, " M")))


def _format_scaled(count: int | None, scales: Iterable[tuple[int, str]]) -> str:
    if count is None:
        return UNKNOWN
    for scale, sign in scales:
        if count >= 0.9995 * scale:
            return f"{format_rate(count / scale)}{sign}"
    return format_count(count)


def format_figure(figure: float | None) -> str:
    """A rate from a data sheet, in the unit that its column names: "1,008", "82.6"."""
    if figure is None:
        return UNKNOWN
    return f"{figure:,.0f}" if figure >= 999.5 or figure == round(figure) else f"{figure:,.1f}"


def format_rate(rate: float) -> str:
    """A measured rate with three figures: "1,250", "93.6", "0.412"."""
    decimals = 3 if rate < 0.9995 else 2 if rate < 9.995 else 1 if rate < 99.95 else 0
    return f"{rate:,.{decimals}f}"


def format_ratio(ratio: float) -> str:
    """A ratio to a baseline, which is 1: "0.47", "1.04"."""
    return f"{ratio:,.2f}"


def format_exact(figure: float) -> str:
    """A figure as it was given, with thousands separated: "1,212.38", "15,671", "7.3"."""
    return f"{figure:,}".removesuffix(".0")


def format_share(part: int, whole: int) -> str:
    """`part` of `whole` in whole percent: "42 %"."""
    if whole <= 0:
        return UNKNOWN
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def format_share_of(share: float) -> str:
    """A share in whole percent: "42 %"."""
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def format_percent(share: float) -> str:
    """A share to a tenth of a percent, to a hundredth below 10: "12.5 %", "0.14 %"."""
    percent = 100 * share
    return f"{percent:.1f} %" if percent >= 9.995 else f"{percent:.2f} %"


def format_error(error: float) -> str:
    """A relative error with its sign: "+1.8 %", "-12.5 %"."""
    return f"{100 * error:+.1f} %"


def format_amount(usd: float | None, unit: str = "once") -> str:
    """An amount of US dollars below a title that says so: "1,599"; for an hour's rent "0.34"."""
    if usd is None:
        return UNKNOWN
    return f"{usd:,.2f}" if unit == "hour" or usd < 10 else f"{usd:,.0f}"


def format_usd(usd: float | None, unit: str = "once") -> str:
    """An amount of money, "1,599 USD", or a rent, "0.34 USD/h" (`unit` is "once" or "hour")."""
    if usd is None:
        return UNKNOWN
    return f"{format_amount(usd, unit)} USD{'/h' if unit == 'hour' else ''}"


def format_month(date: str) -> str:
    """The year and month of an ISO date: "2026-05-24" is "2026-05"."""
    return date[:7] or UNKNOWN


def format_months(oldest: str, newest: str) -> str:
    """The span between two ISO dates in months: "2026-05", or "2025-11 to 2026-05"."""
    first, last = format_month(oldest), format_month(newest)
    return last if first == last else f"{first} to {last}"


def format_age(days: int) -> str:
    """How long ago something was, shortly: "3 d", "5 mo", "2.5 y"."""
    if days < 61:
        return f"{days} d"
    return f"{days / 30.4375:.0f} mo" if days < 730 else f"{days / 365.25:.1f} y"


def format_weeks(weeks: float) -> str:
    """Weeks to two digits: "0.6 weeks", "3.3 weeks", "120 weeks"."""
    return f"{float(f'{weeks:.2g}'):,g} weeks"


def parse_bytes(words: str) -> int:
    """The bytes that a size such as "8GiB", "8 GB" (10^9), "11g" (GiB) or "8589934592" stands for.

    Raises InputError when it is not a size, or none that a GPU could have.
    """
    match = _SIZE.fullmatch(words.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InputError(f"{_quoted(words)} is not a memory size; write for example 8GiB, 11g or 8589934592")
    # floats are exact for every whole number up to the largest limit
    count = int(min(float(match[1]) * factor, 2.0 * _LARGEST_LIMIT_BYTES))
    if count < _SMALLEST_LIMIT_BYTES:
        unit = "" if match[2] else " (did you forget the unit?)"
        raise InputError(f"{_quoted(words)} of memory is less than any GPU has{unit}; write for example 8GiB")
    if count > _LARGEST_LIMIT_BYTES:
        raise InputError(f"{_quoted(words)} of memory is more than any GPU has; write for example 8GiB")
    return count


_LONGEST_HOURS = 87_660.0
_HOURS = {"min": 1 / 60, "m": 1 / 60, "h": 1.0, "hours": 1.0, "d": 24.0, "days": 24.0, "w": 168.0, "weeks": 168.0}


def parse_hours(words: str) -> float:
    """The hours that a duration such as "48h", "2d", "90min" or "1w" stands for; InputError when it is none."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]+)", words.strip(), re.IGNORECASE | re.ASCII)
    factor = _HOURS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InputError(f"{_quoted(words)} is no duration; write for example 48h, 2d or 90min")
    hours = float(match[1]) * factor
    if not 0 < hours <= _LONGEST_HOURS:
        raise InputError(f"{_quoted(words)}: a duration is more than 0 and at most ten years; write for example 48h")
    return hours


def parse_batch_size(words: str) -> int:
    """The batch size that a person typed; raises InputError unless it is a whole number of at least 1."""
    word = words.strip()
    if re.fullmatch(r"[0-9]+", word) and int(word[:20]) > _LARGEST_BATCH:
        raise InputError(
            f"batch size {_quoted(words)} is more than {_LARGEST_BATCH:,}, the limit; write for example 32"
        )
    if not re.fullmatch(r"[0-9]+", word) or int(word[:20]) < 1:
        raise InputError(f"batch size {_quoted(words)} is not a whole number of at least 1; write for example 32")
    return int(word)


def _quoted(words: str) -> str:
    return repr(words if len(words) <= 40 else words[:37] + "...")
