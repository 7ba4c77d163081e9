"""The picture of speeds beside a card's that is 1, the chart of the article of 2020."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichgpu import text
from whichgpu.charts import figure as pictures
from whichgpu.charts.figure import BLACK, GREY, SERIES, SMALL
from whichgpu.charts.records import RelativeBar, RelativeChart
from whichgpu.charts.value import BASIS_MARKS
from whichgpu.charts.words import bases_of, below_title, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR, _GAP = 0.17, 0.12  # inches: height of a bar, and between cards
_ENDS = 0.9  # inches of the axis that the figure behind the longest bar needs


def relative_figure(chart: RelativeChart) -> Figure:
    """Cards down, the fastest first, and a bar for each series."""
    each = _BAR * len(chart.series) + _GAP
    height = each * len(chart.rows)
    drawn = pictures.new_figure(10.5, height + 2.15)
    pictures.title(drawn, title_of(chart), below_title(chart))
    axes = pictures.place(drawn, 2.35, 0.85, 7.85, height)
    axes.set_ylim(height, 0)
    furthest = max(bar.high for row in chart.rows for bar in row.bars if bar is not None)
    axes.set_xlim(0, furthest / (1 - _ENDS / 7.85))
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks([each * (number + 0.5) for number in range(len(chart.rows))], [row.gpu for row in chart.rows])
    axes.tick_params(axis="y", length=0)
    axes.axvline(1, color=BLACK, linewidth=1, zorder=3)
    for number, row in enumerate(chart.rows):
        if row.gpu == chart.baseline:
            axes.get_yticklabels()[number].set_fontweight("bold")
        for place, bar in enumerate(row.bars):
            middle = each * number + _GAP / 2 + _BAR * (place + 0.5)
            _draw(axes, bar, middle, SERIES[place % len(SERIES)])
    marks = pictures.place(drawn, 2.35, 0.85 + height + 0.06, 7.85, 0.22)
    named = [("s", SERIES[place % len(SERIES)], True, name) for place, name in enumerate(chart.series)]
    bases = [(BASIS_MARKS[basis], BLACK, False, basis) for basis in bases_of(chart)]
    pictures.key(marks, [*(named if len(named) > 1 else []), *bases], SMALL)
    pictures.source(drawn, chart.source)
    return drawn


def _draw(axes: Axes, bar: RelativeBar | None, y: float, colour: str) -> None:
    if bar is None:
        axes.text(0.01, y, " does not train all", fontsize=SMALL - 1, color=GREY, va="center")
        return
    axes.barh(y, bar.value, height=_BAR * 0.86, color=colour, zorder=2)
    axes.plot([bar.low, bar.high], [y, y], color=BLACK, linewidth=0.9, alpha=0.7, zorder=4)
    axes.scatter(
        [bar.value], [y], s=15, marker=BASIS_MARKS[bar.basis], facecolors="white", edgecolors=BLACK, linewidths=0.8,
        zorder=5,
    )  # fmt: skip
    axes.annotate(
        text.format_ratio(bar.value), (bar.high, y), xytext=(4, 0), textcoords="offset points", fontsize=SMALL - 1,
        va="center_baseline",
    )  # fmt: skip
