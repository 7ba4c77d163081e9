"""Another order of the cards of a ranking than by price; what a card trains stays first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from statistics import fmean

from whichgpu.advice import ORDER, RankRow, Sort


def ordered(rows: Sequence[RankRow], sort: Sort) -> tuple[RankRow, ...]:
    """Rows that are in the order of price, in that of `sort` within equal verdicts; what is equal stays as it is.

    "speed": most samples per second, over several workloads in the geometric mean; cards of which some speed is unknown come last.
    "memory": most memory.
    """
    if sort == "price":
        return tuple(rows)
    first = _memory if sort == "memory" else _slowness(rows)

    def key(row: RankRow) -> tuple[object, ...]:
        return (not row.supported, ORDER[row.tier], -row.trains if row.tier != "all" else 0, *first(row))

    return tuple(sorted(rows, key=key))


def _memory(row: RankRow) -> tuple[int, ...]:
    return (-row.memory_bytes,)


def _slowness(rows: Sequence[RankRow]) -> Callable[[RankRow], tuple[int, float]]:
    """How many speeds of what a card trains are unknown, then how slow it is beside the fastest."""
    best: dict[str, float] = {}
    for row in rows:
        for name, rate in _rates(row).items():
            best[name] = max(best.get(name, 0.0), rate)

    def key(row: RankRow) -> tuple[int, float]:
        rates = _rates(row)
        return row.trains - len(rates), fmean(log(best[name] / rate) for name, rate in rates.items()) if rates else 0.0

    return key


def _rates(row: RankRow) -> dict[str, float]:
    """Samples per second by workload, at the batch size with most of them."""
    found = {name: row.best_speed.get(name) or speed for name, speed in row.speed.items()}
    return {name: speed.samples_per_s for name, speed in found.items() if speed is not None}
