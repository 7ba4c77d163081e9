"""Writes the comparison of docs/2020.md between the article's advice and what `whichgpu advise` makes of the data.

    python tools/advise_2020.py [--check]

Asks `whichgpu advise --set 2020 --as-of 2020-02`, and sets its tiers, prices, marks and curves beside the article's, card by card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from statistics import fmean

import numpy as np

from whichgpu import api, catalogue, published
from whichgpu.advising.records import AdviceReport, CardAdvice
from whichgpu.published import PublishedGpu, PublishedWorkload
from whichgpu.sets import expand
from whichgpu.zoo import ENTRIES

PAGE = Path(__file__).parents[1] / "docs" / "2020.md"
BEGIN, END = "<!-- advice: written by tools/advise_2020.py -->", "<!-- end of advice -->"
TIERS = {"all": "all", "most": "most", "poor": "not a good fit"}


def section() -> Iterator[str]:
    """The lines of the section."""
    report = api.advise(expand((), ["2020"]), as_of="2020-02")
    article = published.article()
    cards = {card.id: card for card in report.cards}
    yield "| card | price: article / catalogue | tier: article / predicted | small batches: article / predicted | models that do not run: published / predicted |"
    yield "|---|---|---|---|---|"
    for number, gpu in enumerate(article.gpu):
        yield _line(gpu, number, cards[gpu.id], article.workload)
    others = [card for card in report.cards if card.id not in {gpu.id for gpu in article.gpu} and card.supported]
    yield ""
    for tier, words in TIERS.items():
        named = ", ".join(card.gpu for card in others if card.tier == tier and not card.unmeasured)
        yield f"- other cards of that month, {words}: {named or 'none'}"
    picked = "; ".join(f"{', '.join(pick.roles)}: {pick.gpu}" for pick in report.short_list)
    yield f"- picked then: {picked}"
    yield ""
    yield from _curves(report, article.gpu, article.workload)


def _line(gpu: PublishedGpu, number: int, card: CardAdvice, works: Sequence[PublishedWorkload]) -> str:
    price = card.buy
    own = f"{price.usd:,.0f}" if price is not None else "-"
    not_run = [work.name for work in works if work.max_batch[number] == "*"]
    fails = [(entry.article or name) for name in card.fails if (entry := ENTRIES[name])]
    marks = ("yes" if gpu.tier == "most" else "no", "yes" if card.small_batches else "no")
    return (
        f"| {gpu.name} | {gpu.price_usd:,.0f} / {own} | {TIERS[gpu.tier]} / {TIERS[card.tier]} | {' / '.join(marks)} | "
        f"{', '.join(not_run) or 'none'} / {', '.join(fails) or 'none'} |"
    )


def _curves(report: AdviceReport, gpus: Sequence[PublishedGpu], works: Sequence[PublishedWorkload]) -> Iterator[str]:
    yield "| card | image: published / predicted | language: published / predicted |"
    yield "|---|---|---|"
    means = {family.family: {p.gpu: p.mean_speed for p in family.points} for family in report.families}
    ours = {
        kind: {gpu.name: found.get(gpu.name, 0.0) / found[gpus[-1].name] for gpu in gpus}
        for kind, found in means.items()
    }
    theirs = {kind: _published(gpus, works, kind, zero=True) for kind in ("image", "language")}
    for gpu in gpus:
        cells = (f"{theirs[kind][gpu.name]:.2f} / {ours[kind][gpu.name]:.2f}" for kind in ("image", "language"))
        yield f"| {gpu.name} | {' | '.join(cells)} |"
    yield ""
    yield "| how mean speed grows over the eight cards | image: published / predicted | language: published / predicted |"
    yield "|---|---|---|"
    cells = (f"{_power(gpus, theirs[kind]):.2f} / {_power(gpus, ours[kind]):.2f}" for kind in ("image", "language"))
    yield f"| with the power of memory, `*` as 0 (the steepness of the article's curves) | {' | '.join(cells)} |"
    runs = {kind: _published(gpus, works, kind, zero=False) for kind in ("image", "language")}
    own_runs = {kind: _predicted(report, gpus, works, kind) for kind in ("image", "language")}
    for which, words in ((1, "memory, at the same peak of float32"), (2, "peak of float32, at the same memory")):
        cells = (
            f"{_both(gpus, runs[kind])[which]:.2f} / {_both(gpus, own_runs[kind])[which]:.2f}"
            for kind in ("image", "language")
        )
        yield f"| of the models that run: with the power of {words} | {' | '.join(cells)} |"


def _published(
    gpus: Sequence[PublishedGpu], works: Sequence[PublishedWorkload], family: str, *, zero: bool
) -> dict[str, float]:
    """The mean over a family of the ratios to the last card, by card."""
    found = {}
    for number, gpu in enumerate(gpus):
        rates = [(work.throughput[number], work.throughput[-1]) for work in works if work.family == family]
        ratios = [0.0 if own == "*" else float(own) / float(unit) for own, unit in rates]
        found[gpu.name] = fmean(ratio for ratio in ratios if zero or ratio)
    return found


def _predicted(
    report: AdviceReport, gpus: Sequence[PublishedGpu], works: Sequence[PublishedWorkload], family: str
) -> dict[str, float]:
    """The same of what is predicted, of the models that run."""
    kinds = {work.name: work.family for work in works}
    cards = {card.gpu: card for card in report.cards}
    unit = cards[gpus[-1].name]
    found = {}
    for gpu in gpus:
        speeds = cards[gpu.name].speed
        ratios = [
            own.samples_per_s / other.samples_per_s
            for name, own in speeds.items()
            if kinds[ENTRIES[name].article or ""] == family
            and own is not None
            and (other := unit.speed[name]) is not None
        ]
        found[gpu.name] = fmean(ratios)
    return found


def _power(gpus: Sequence[PublishedGpu], means: dict[str, float]) -> float:
    cards = [catalogue.load().find(gpu.name) for gpu in gpus if means[gpu.name] > 0]
    logs = np.log([means[card.name] for card in cards])
    memory = np.log([card.memory_bytes for card in cards])
    return float(np.polyfit(memory, logs, 1)[0])


def _both(gpus: Sequence[PublishedGpu], means: dict[str, float]) -> list[float]:
    cards = [catalogue.load().find(gpu.name) for gpu in gpus]
    rows = [[1.0, log(card.memory_bytes), log(card.fp32_tflops or 1.0)] for card in cards]
    return [
        float(one) for one in np.linalg.lstsq(np.array(rows), np.log([means[c.name] for c in cards]), rcond=None)[0]
    ]


def main() -> None:
    """Write the section into the page, or say that it differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    head, _, rest = before.partition(BEGIN)
    _, _, tail = rest.partition(END)
    found = "\n".join(section())
    print(found)
    text = f"{head}{BEGIN}\n\n{found}\n\n{END}{tail}"
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
    sys.exit(arguments.check and text != before)


if __name__ == "__main__":
    main()
