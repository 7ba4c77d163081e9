"""Writes the tables of docs/2020.md: predicted largest batches beside those that were published in 2020.

    python tools/compare_2020.py [--check]

The comparison is that of `whichgpu tables max-batch --beside published`. Each workload is predicted as it is in the zoo, and where
it has the option, with the code of 2019; VARIANTS are predicted besides.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whichgpu import render, table_sources, text
from whichgpu.comparison import ComparedCell, ComparedRow, Comparison
from whichgpu.render.common import DOES_NOT_RUN, escaped

PAGE = Path(__file__).parents[1] / "docs" / "2020.md"
CODE = "code=2019"
OF_2019 = (
    "bert-base",
    "bert-finetune",
    "nasnet-large",
    "yolo-v3",
    "mask-rcnn",
    "transformer-big",
    "conv-seq2seq",
    "unsup-mt",
    "mt-dnn",
)
VARIANTS = (
    "mt-dnn?code=2019&seq=384",
    "bert-base?attention=eager&hidden_act=gelu_new",
    "bert-finetune?attention=eager&hidden_act=gelu_new",
)
BEGIN, END = "<!-- {}: written by tools/compare_2020.py -->", "<!-- end of {} -->"


def tables() -> Iterator[tuple[str, str]]:
    """The tables of the page by name, as Markdown, each as soon as it is there."""
    today, old = compare(sets=["2020"]), compare(workloads=[f"{name}?{CODE}" for name in OF_2019])
    yield "set", both(today, old)
    yield "variants", render.table_markdown(compare(workloads=VARIANTS))


def compare(**of: Any) -> Comparison:
    """The comparison of those workloads or sets."""
    found = table_sources.make_table("max-batch", beside="published", **of)
    assert isinstance(found, Comparison)
    return found


def both(today: Comparison, old: Comparison) -> str:
    """Published, predicted for today's code and for that of 2019, in one table, with how many agree before and after."""
    code = {row.workload.partition("?")[0]: row for row in old.rows}
    pairs = [(row, code.get(row.workload, row)) for row in today.rows]
    head = ["workload", "unit", *(card.gpu for card in today.cards), "today agrees", "2019 agrees"]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    lines += [_line(before, after, before.workload in code) for before, after in pairs]
    before, after = (sum(pair[number].agree for pair in pairs) for number in (0, 1))
    ends = sum(cell.agrees and cell.next_tried is None for _, row in pairs for cell in row.cells)
    notes = [
        f"{before} of {today.compared} agree today, {after} with the code of 2019 (or today's, where that is the same), "
        f"{ends} of these where nothing larger was tried",
        f"`{DOES_NOT_RUN}` nothing that was tried fits, or not even batch size 1",
        "**bold**: the prediction is below the batch that ran, or no less than the next one that was tried",
        f"Beside: {today.beside_source} ({today.url}); {today.source}",
    ]
    notes += [
        escaped(note) for note in today.notes if "free for what steps" not in note
    ]  # of the safe batch, not shown
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**Largest batch, published / predicted today / predicted with {CODE}**\n\n{rows}\n\n" + "".join(
        f"- {note}\n" for note in notes
    )


def _line(before: ComparedRow, after: ComparedRow, has_code: bool) -> list[str]:
    cells = [
        " / ".join((_figure(one.published), _predicted(one), *([_predicted(other)] if has_code else ["="])))
        for one, other in zip(before.cells, after.cells, strict=True)
    ]
    counts = [f"{row.agree} of {len(row.cells)}" for row in (before, after)]
    return [f"`{before.workload}`", before.unit, *cells, counts[0], counts[1] if has_code else "="]


def _predicted(cell: ComparedCell) -> str:
    return _figure(cell.predicted) if cell.agrees else f"**{_figure(cell.predicted)}**"


def _figure(value: int) -> str:
    return text.format_exact(value) if value else f"\\{DOES_NOT_RUN}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables into the page, or say that they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    asked = parser.parse_args(arguments)
    before = page = PAGE.read_text(encoding="utf-8")
    for name, table in tables():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n\n{table}\n{end}{tail}"
        print(table, flush=True)
        if not asked.check:
            PAGE.write_text(page, encoding="utf-8")
    sys.exit(asked.check and page != before)


if __name__ == "__main__":
    main()
