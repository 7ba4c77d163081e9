"""Compares predicted largest batches with those that were published in 2020; writes the tables of docs/2020.md.

    python tools/compare_2020.py [--check]

The article's measurements tried a few batch sizes a model (LADDERS), so a prediction agrees when it lies at the published
one or above it and below the next that was tried; where not even the smallest ran, below that. Besides the workloads as
they are in the zoo, VARIANTS are predicted: the same models closer to how they were written in 2019.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from whichgpu import api, published, sets, workload
from whichgpu.catalogue import load
from whichgpu.zoo import ENTRIES

PAGE = Path(__file__).parents[1] / "docs" / "2020.md"
# Batch sizes that were tried, in the published unit: lambda.md in the branches lambda* of https://github.com/chuanli11
# (2019-04); of Yolo v3 only the article's figures are known, all of which are powers of two.
LADDERS = {
    "NasNet Large": (4, 8, 16, 32, 64),
    "DeepLabv3": (1, 2, 4, 8, 16),
    "Yolo v3": (2, 4, 8, 16),
    "Pix2Pix HD": (1, 2, 4, 8),
    "StyleGAN": (1, 2, 4, 8, 16),
    "MaskRCNN": (1, 2, 4, 8, 16, 32),
    "Transformer Big": (2000, 3584, 8000, 16000),
    "Conv. Seq2Seq": (2000, 4000, 8000, 16000, 32000),
    "unsupMT": (500, 1000, 2000, 4000, 8000),
    "BERT Base": (8, 16, 32, 64, 128),
    "BERT Finetune": (1, 6, 12, 24, 48),
    "MT-DNN": (1, 2, 4, 8),
}
VARIANTS = {
    "Transformer Big": ("transformer-big?attention=eager&seq=128",),
    "unsupMT": ("unsup-mt?attention=eager", "unsup-mt?attention=eager&seq=256"),
    "BERT Base": ("bert-base?attention=eager", "bert-base?attention=eager&hidden_act=gelu_new"),
    "BERT Finetune": ("bert-finetune?attention=eager", "bert-finetune?attention=eager&hidden_act=gelu_new"),
    "MT-DNN": ("mt-dnn?attention=eager", "mt-dnn?attention=eager&hidden_act=gelu_python"),
}
BEGIN, END = "<!-- {}: written by tools/compare_2020.py -->", "<!-- end of {} -->"


class Row(NamedTuple):
    """A workload over the eight cards, in the published unit; None where nothing fits."""

    model: str
    workload: str
    published: tuple[int | None, ...]
    predicted: tuple[int | None, ...]

    def agrees(self) -> list[bool]:
        """Card by card."""
        return [agrees(LADDERS[self.model], *pair) for pair in zip(self.published, self.predicted, strict=True)]


def agrees(ladder: tuple[int, ...], found: int | None, predicted: int | None) -> bool:
    """Whether the prediction lies between what ran and the next size that was tried."""
    if found is None:
        return predicted is None or predicted < ladder[0]
    larger = [size for size in ladder if size > found]
    return predicted is not None and predicted >= found and (not larger or predicted < larger[0])


def predict(texts: list[str]) -> dict[str, list[int | None]]:
    """Largest likely batch of each workload on the article's cards, in units."""
    report = api.rank(texts)
    names = [load().find(card.id).name for card in published.article().gpu]
    rows = {row.gpu: row for row in report.gpus}
    found = {}
    for text, name in zip(texts, report.workloads, strict=True):
        items = workload.load(workload.parse(text)).items_per_sample
        found[text] = [(rows[gpu].max_batch_size[name] or 0) * items or None for gpu in names]
    return found


def compare() -> tuple[list[Row], list[Row]]:
    """The workloads of the set, and the variants."""
    members = {ENTRIES[name].article: name for name in sets.find("2020").workloads}
    pairs = [(work.name, members[work.name]) for work in published.article().workload]
    variants = [(model, text) for model, texts in VARIANTS.items() for text in texts]
    predicted = predict([text for _, text in (*pairs, *variants)])
    known = {
        work.name: tuple(None if size == "*" else int(size) for size in work.max_batch)
        for work in published.article().workload
    }
    rows = [Row(model, text, known[model], tuple(predicted[text])) for model, text in (*pairs, *variants)]
    return rows[: len(pairs)], rows[len(pairs) :]


def render(rows: list[Row]) -> str:
    """A table: published, then predicted, which is bold where they disagree."""
    cards = [card.name for card in published.article().gpu]
    lines = ["| Workload | " + " | ".join(cards) + " | Agree |", "|---" * (len(cards) + 2) + "|"]
    agreed = 0
    for row in rows:
        cells = []
        for found, predicted, fine in zip(row.published, row.predicted, row.agrees(), strict=True):
            shown = f"{predicted:,}" if predicted else "\\*"
            cells.append(f"{found:,}" if found else "\\*")
            cells[-1] += f" → {shown if fine else f'**{shown}**'}"
        agreed += sum(row.agrees())
        lines.append(f"| `{row.workload}` | " + " | ".join(cells) + f" | {sum(row.agrees())} of {len(cards)} |")
    lines.append(f"\n{agreed} of {len(rows) * len(cards)} cells agree.")
    return "\n".join(lines)


def main() -> None:
    """Write the tables into the page, or say that they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    arguments = parser.parse_args()
    before = text = PAGE.read_text(encoding="utf-8")
    for name, rows in zip(("set", "variants"), compare(), strict=True):
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{render(rows)}\n\n{end}{tail}"
        print(render(rows))
    if arguments.check:
        sys.exit(text != before)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
