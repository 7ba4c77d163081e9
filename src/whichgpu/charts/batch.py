"""The picture of the largest batch against memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichgpu.charts import figure as pictures
from whichgpu.charts.figure import LABEL, MARKS, SERIES
from whichgpu.charts.records import BatchChart
from whichgpu.charts.value import spaced
from whichgpu.charts.words import below_title, title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def batch_figure(chart: BatchChart) -> Figure:
    """Memory to the right, the largest batch upwards, a curve for each series with its name beside it."""
    drawn = pictures.new_figure(10.5, 7.2)
    pictures.title(drawn, title_of(chart), below_title(chart))
    axes = pictures.place(drawn, 0.75, 0.95, 7.9, 5.15)
    axes.set_xscale("log")
    axes.set_yscale("log")
    pictures.axis_titles(axes, "Memory of the card, as sold (GB)", "")
    points = [point for one in chart.series for point in one.points]
    sizes = sorted({point.memory_gb for point in points})
    axes.set_xlim(sizes[0] * 0.88, sizes[-1] * 1.12)
    bottom = 0.8 * min(point.low or point.value / 2 for point in points)
    axes.set_ylim(bottom, 1.35 * max(point.value for point in points))
    pictures.ticks(axes.xaxis, spaced(sizes), str)
    pictures.log_ticks(axes.yaxis, lambda value: f"{value:,g}")
    ends = []
    for number, one in enumerate(chart.series):
        colour, mark = SERIES[number % len(SERIES)], MARKS[number % len(MARKS)]
        xs, ys = [point.memory_gb for point in one.points], [point.value for point in one.points]
        axes.fill_between(xs, [max(point.low, bottom) for point in one.points], ys, color=colour, alpha=0.15, lw=0)
        axes.plot(xs, ys, color=colour, marker=mark, markersize=6, linewidth=2, markeredgecolor="white")
        ends.append((ys[-1], one.name, colour))
    if chart.baseline is not None:
        axes.axhline(1, color=pictures.GREY, linewidth=1, zorder=1)
    pictures.end_labels(axes, ends, LABEL)
    pictures.source(drawn, chart.source)
    return drawn
