"""The picture of speed for the money against memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from whichgpu.advice import Basis
from whichgpu.charts import figure as pictures
from whichgpu.charts.figure import BLACK, BLUE, GREY, SMALL, VERMILLION
from whichgpu.charts.labels import Box, Named, name_points
from whichgpu.charts.records import ValueChart, ValuePoint
from whichgpu.charts.words import bases_of, below_title, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASIS_MARKS: dict[Basis, str] = {"predicted": "o", "measured": "s", "published": "D"}
_SIZE, _FRONT_SIZE = 34, 70  # square points of a mark
_APART = 0.028  # of a card's memory, by which cards with as much stand side by side


def value_figure(chart: ValueChart) -> Figure:
    """Memory to the right, speed for the money upwards; the front is the line at the upper right."""
    drawn = pictures.new_figure(11.5, 7.7)
    pictures.title(drawn, title_of(chart), below_title(chart))
    axes = pictures.place(drawn, 0.75, 1.4, 10.5, 5.35)
    axes.set_xscale("log")
    axes.set_yscale("log")
    pictures.axis_titles(axes, "Memory, as sold (GB)", "")
    sizes = sorted({point.memory_gb for point in chart.points})
    axes.set_xlim(sizes[0] * 0.86, sizes[-1] * 1.2)
    axes.set_ylim(min(point.low for point in chart.points) * 0.85, max(point.high for point in chart.points) * 1.18)
    pictures.ticks(axes.xaxis, spaced(sizes), str)
    pictures.log_ticks(axes.yaxis, lambda value: f"{value:,g}")
    border = _front_line(axes, [point for point in chart.points if point.front])
    named = [_draw(axes, point, x) for point, x in _beside(chart.points)]
    named.sort(key=lambda one: not one.bold)
    left = name_points(axes, named, border)
    _legend(drawn, chart)
    missing = f" Without room for a label: {len(left)}." if left else ""
    pictures.source(drawn, chart.source + missing)
    return drawn


def spaced(sizes: Sequence[int]) -> list[int]:
    """Sizes of memory whose figures do not touch."""
    kept: list[int] = []
    for size in sizes:
        if not kept or size >= 1.13 * kept[-1]:
            kept.append(size)
    return kept


def _beside(points: Sequence[ValuePoint]) -> list[tuple[ValuePoint, float]]:
    """Points with their places: those of about the same value and memory side by side; the front in the middle."""
    found: list[tuple[ValuePoint, float]] = []
    for point in sorted(points, key=lambda one: (not one.front, not one.current, -one.value)):
        near = [
            x for other, x in found if other.memory_gb == point.memory_gb and 0.8 < other.value / point.value < 1.25
        ]
        places = (point.memory_gb * (1 + _APART * shift) for shift in (0, 1, -1, 2, -2, 3, -3))
        free = (x for x in places if all(abs(x - other) > 0.5 * _APART * point.memory_gb for other in near))
        found.append((point, next(free, float(point.memory_gb))))
    return found


def _draw(axes: Axes, point: ValuePoint, x: float) -> Named:
    colour = VERMILLION if point.front else BLUE if point.current else GREY
    size = _FRONT_SIZE if point.front else _SIZE
    if point.low < point.high:
        axes.plot([x, x], [point.low, point.high], color=colour, alpha=0.3, linewidth=1.4, zorder=2)
    axes.scatter(
        [x], [point.value], s=size, marker=BASIS_MARKS[point.basis], facecolors=colour if point.current else "white",
        edgecolors=colour if not point.current else "white", linewidths=1.1 if not point.current else 0.6, zorder=4,
    )  # fmt: skip
    return Named(x, point.value, point.gpu, size**0.5 / 2, bold=point.front)


def _front_line(axes: Axes, front: Sequence[ValuePoint]) -> list[Box]:
    """Draw the border of what can be had: so much memory, or more, at this value. Labels stay clear of it."""
    xs: list[float] = []
    ys: list[float] = []
    for point in sorted(front, key=lambda one: (one.memory_gb, -one.value)):
        if ys:
            xs.append(xs[-1])
            ys.append(point.value)
        xs.append(float(point.memory_gb))
        ys.append(point.value)
    axes.plot(xs, ys, color=VERMILLION, linewidth=1.6, alpha=0.65, zorder=3)
    ends = [axes.transData.transform(place) for place in zip(xs, ys, strict=True)]
    return [
        Box(min(one[0], other[0]), min(one[1], other[1]), max(one[0], other[0]), max(one[1], other[1])).grown(1)
        for one, other in pairwise(ends)
    ]


def _legend(drawn: Figure, chart: ValueChart) -> None:
    """What marks mean, in a line below the picture."""
    axes = pictures.place(drawn, 0.75, 0.6, 10.5, 0.22)
    pictures.key(
        axes,
        [
            ("o", VERMILLION, True, "no card of today's prices has as much memory and more value"),
            ("o", BLUE, True, "price of today"),
            *([("o", GREY, False, "old or launch price")] if not all(p.current for p in chart.points) else []),
            *((BASIS_MARKS[basis], BLACK, True, basis) for basis in bases_of(chart)),
        ],
        SMALL,
    )
