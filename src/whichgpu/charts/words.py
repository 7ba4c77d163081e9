"""Titles and legends of the charts in words, the same for pictures and for a terminal."""

from __future__ import annotations

from whichgpu.advice import Basis
from whichgpu.charts.records import BatchChart, Chart, RelativeChart, ValueChart

_BASES: tuple[Basis, ...] = ("predicted", "measured", "published")
_NAMED = 3  # workloads in a title; more are counted


def workloads_of(chart: Chart) -> str:
    """The workloads in a title."""
    names = chart.workloads
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} workloads"


def title_of(chart: Chart) -> str:
    """What a chart shows."""
    if isinstance(chart, ValueChart):
        money = "buy" if chart.price == "buy" else "rent"
        return f"Speed for the money and memory, to {money}: {workloads_of(chart)}"
    if isinstance(chart, RelativeChart):
        return f"Training speed beside the {chart.baseline}: {workloads_of(chart)}"
    return f"Largest batch by memory: {workloads_of(chart)}"


def below_title(chart: Chart) -> str:
    """How it is read, in a line."""
    if isinstance(chart, ValueChart):
        return f"{_first_up(chart.unit)}; lines: 80 % intervals of the speed"
    if isinstance(chart, RelativeChart):
        mean = "; geometric means of each kind" if len(chart.workloads) > len(chart.series) else ""
        return (
            f"{chart.baseline} = 1, each card at its own largest batch{mean}; lines: 80 % intervals of the card's speed"
        )
    mean = "; geometric means of each kind" if chart.baseline is not None else ""
    return f"{_first_up(chart.unit)}{mean}; shaded: down to the batch that fits even at the high end of the prediction"


def bases_of(chart: Chart) -> tuple[Basis, ...]:
    """On what the chart's figures rest, predictions first."""
    if isinstance(chart, ValueChart):
        found = {point.basis for point in chart.points}
    elif isinstance(chart, RelativeChart):
        found = {bar.basis for row in chart.rows for bar in row.bars if bar is not None}
    else:
        assert isinstance(chart, BatchChart)
        found = {"predicted"}
    return tuple(basis for basis in _BASES if basis in found)


def _first_up(words: str) -> str:
    return words[:1].upper() + words[1:]
