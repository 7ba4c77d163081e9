"""A chart as a picture in a file."""

from __future__ import annotations

from pathlib import Path

from whichgpu.charts import figure as figures
from whichgpu.charts.batch import batch_figure
from whichgpu.charts.records import BatchChart, Chart, RelativeChart, ValueChart
from whichgpu.charts.relative import relative_figure
from whichgpu.charts.value import value_figure


def draw(chart: Chart, path: Path) -> None:
    """Write a chart as PNG or SVG, as the file's ending says; InputError or MissingExtraError where that cannot be."""
    figures.check_file(path)
    with figures.style():
        if isinstance(chart, ValueChart):
            drawn = value_figure(chart)
        elif isinstance(chart, RelativeChart):
            drawn = relative_figure(chart)
        else:
            assert isinstance(chart, BatchChart)
            drawn = batch_figure(chart)
        figures.save(drawn, path)
