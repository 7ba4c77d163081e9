"""Writes the tables of docs/2020.md: predicted largest batches beside those that were published in 2020.

    python tools/compare_2020.py [--check]

The comparison is that of `whichgpu tables max-batch --beside published`. Besides the workloads as they are in the zoo, VARIANTS
are predicted: the same models closer to how they were written in 2019.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whichgpu import render, table_sources

PAGE = Path(__file__).parents[1] / "docs" / "2020.md"
VARIANTS = (
    "transformer-big?attention=eager&seq=128",
    "unsup-mt?attention=eager&seq=46",
    "bert-base?attention=eager&hidden_act=gelu_new",
    "bert-finetune?attention=eager&hidden_act=gelu_new",
    "mt-dnn?attention=eager&hidden_act=gelu_python",
)
BEGIN, END = "<!-- {}: written by tools/compare_2020.py -->", "<!-- end of {} -->"


def tables() -> Iterator[tuple[str, str]]:
    """The tables of the page by name, as Markdown, each as soon as it is there."""
    asked: dict[str, dict[str, Any]] = {"set": {"sets": ["2020"]}, "variants": {"workloads": VARIANTS}}
    for name, of in asked.items():
        yield name, render.table_markdown(table_sources.make_table("max-batch", beside="published", **of))


def main() -> None:
    """Write the tables into the page, or say that they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    arguments = parser.parse_args()
    before = text = PAGE.read_text(encoding="utf-8")
    for name, table in tables():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{table}\n{end}{tail}"
        print(table, flush=True)
        if not arguments.check:
            PAGE.write_text(text, encoding="utf-8")
    sys.exit(arguments.check and text != before)


if __name__ == "__main__":
    main()
