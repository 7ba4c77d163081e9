"""Reports as text for a person, and as JSON for a program.

Everything shown stands in the record: this package groups, orders and aligns, and computes nothing. In a pipe
the text is plain and 80 columns wide; in a terminal colour helps, but never says anything alone.
"""

from __future__ import annotations

from whichgpu.render.accuracy import print_accuracy, to_markdown
from whichgpu.render.advise import print_advice
from whichgpu.render.bench import print_bench
from whichgpu.render.charts import print_chart
from whichgpu.render.common import make_console, to_json, trimmed
from whichgpu.render.explain import print_explain
from whichgpu.render.fit import print_fit
from whichgpu.render.host_speed import print_host_speed
from whichgpu.render.lists import print_gpus, print_zoo
from whichgpu.render.prices import print_free, print_prices, print_update
from whichgpu.render.rank import print_rank
from whichgpu.render.results import print_results
from whichgpu.render.speed import print_speed_accuracy
from whichgpu.render.tables import print_table, table_csv, table_markdown

__all__ = [
    "make_console",
    "print_accuracy",
    "print_advice",
    "print_bench",
    "print_chart",
    "print_explain",
    "print_fit",
    "print_free",
    "print_gpus",
    "print_host_speed",
    "print_prices",
    "print_rank",
    "print_results",
    "print_speed_accuracy",
    "print_table",
    "print_update",
    "print_zoo",
    "table_csv",
    "table_markdown",
    "to_json",
    "to_markdown",
    "trimmed",
]
