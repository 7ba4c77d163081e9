"""Predicted against kept steps (tools/speed/data): errors by table and workload, and how often the order of two cards is right.

    python tools/compare_steps.py [--constants FILE] [--verbose]
    python tools/compare_steps.py --write

The second writes the intervals' widths, docs/speed.md and data/speed_accuracy.json from the constants that ship, the kept steps
and the predictions of left-out cards (tools/fit_speed.py --folds).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from math import exp, log
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import NamedTuple

import msgspec

from speed import timed
from speed.sources import card_named
from speed.steps import Step, load
from whichgpu import catalogue
from whichgpu.speed import constants
from whichgpu.speed.step_time import Demand, StepTime, predict
from whichgpu.speed_accuracy import SpeedAccuracy, SpeedBar, SpeedErrors

CONSTANTS = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "speed.json"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
_BASELINE, _NEAR = "Quadro RTX 8000", 0.12
# bytes a second of cards that are told apart from slow ones; steps that take the same within so much; hardly longer
_FAST, _ALIKE, _LONGER = 6e11, 1.1, 1.7
OLD = "Lambda 2019"  # whose seconds are those of other frameworks
NEARNESSES = ("model", "card", "architecture")  # what was left out
OUT, CARDS_OUT = "H200, steps of models that were left out", "Lambda 2020-2025, card left out"
FILLED = 0.8  # share of a step in which the GPU is busy from which it is the limit
RECORD = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "speed_accuracy.json"
LEFT_OUT = Path(__file__).parent / "speed" / "data" / "left_out.jsonl"  # written by tools/fit_speed.py --folds
NEUSIGHT = Path(__file__).parent / "speed" / "data" / "neusight.jsonl"  # written by tools/compare_neusight.py --refit
SLOWER_HOST = Path(__file__).parent / "speed" / "data" / "h200_steps_slower_host.jsonl"  # of tools/measure_steps.py
BENCHED = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "measurements" / "h200-2026-12.jsonl"
HALF = 0.5
Pair = tuple[Step, float]  # with the predicted seconds


class LeftOut(NamedTuple):
    """A step with what was predicted of it by a fit that knows nothing of its model, its card, or its whole architecture."""

    table: str
    workload: str
    batch_size: int
    card: str
    seconds: float
    counts_samples: bool
    predicted: float
    nearness: str  # of NEARNESSES, or "pair" where two groups of cards were left out together
    by_host: bool  # whether the host is the limit, as predicted
    fit: int = 0  # number of the fit, for predictions by the same one
    by_minute: float = 0.0  # what is predicted for the host's speed of that minute, by its probe
    as_reference: float = 0.0  # what is predicted for a host of speed 1


# whose steps are left out together -> parts of workloads' names; others are alone
FAMILIES = {
    "bert": ("bert", "mt-dnn"), "gpt2": ("gpt2", "math_attention", "long_sequence"), "vit": ("vit", "deit", "distillation"),
    "nasnet": ("nasnet",), "deeplab": ("deeplab",), "pix2pix": ("pix2pix",), "swin": ("swin",), "convnext": ("convnext",),
    "dlrm": ("dlrm",), "graphsage": ("graphsage",), "llama": ("llama", "olmo", "mixtral"),
    "resnet": ("resnet", "resnext", "regnet", "retina", "mask-rcnn"), "mobilenet": ("mobilenet", "efficientnet"),
    "recurrent": ("lstm", "gru"), "transformer": ("transformer",), "diffusion": ("dit-xl", "ddpm"),
}  # fmt: skip


def family(workload: str) -> str:
    """Whose steps a workload's are left out with: those of all its variants and sizes."""
    name = workload.removeprefix("truth:").partition("?")[0]
    return next((found for found, parts in FAMILIES.items() if any(part in name for part in parts)), name)


def foretold(steps: Iterable[Step], values: dict[str, float], host: str = "session") -> list[tuple[Step, StepTime]]:
    """Each step with all that is predicted of it, for a host as fast as its session's, as that was at that minute, or as the
    reference; the values of a fit may say how slow a session's host is.
    """
    found = []
    for step in steps:
        speed, session = 1.0, timed.session_of(step)
        if session and host != "reference":
            slower = values.get(f"session.{session}")
            speed = timed.speeds()[session] if slower is None else exp(-slower)
            speed = timed.speed_at(step, speed) if host == "minute" else speed
        found.append((step, predict(step.asked, card_named(step.card), values, speed)))
    return found


def predicted(steps: Iterable[Step], values: dict[str, float]) -> list[Pair]:
    """Each step with its prediction."""
    return [(step, found.step_s) for step, found in foretold(steps, values)]


def report(pairs: list[Pair]) -> None:
    """Errors by table and workload: as they are, and about one factor for all cards of the row."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for step, seconds in pairs:
        groups.setdefault((step.table, step.workload), []).append((step, seconds))
    for (table, workload), found in groups.items():
        logs = [log(seconds / step.seconds) for step, seconds in found]
        middle = median(logs)
        apart = sorted(abs(error - middle) for error in logs)
        own = f"factor {exp(middle):5.2f}" if found[0][0].counts_samples else "in other units"
        print(
            f"{table:17} {workload[:48]:48} n {len(found):3} {own:14} about it: median {median(apart):.3f}, worst {apart[-1]:.3f}"
        )


def summary(pairs: list[Pair], title: str) -> None:
    """Median and 90th percentile of the error of what counts samples, and right orders of cards."""
    errors = [abs(seconds / step.seconds - 1) for step, seconds in pairs if step.counts_samples]
    if len(errors) < 2:
        return
    right, wrong = orders(pairs)
    order = (
        f", order of two cards right in {right} of {right + wrong} ({right / (right + wrong):.1%})"
        if right + wrong
        else ""
    )
    print(f"{title}: {len(errors)} rows, median {median(errors):.1%}, 90 % {quantiles(errors, n=10)[-1]:.1%}{order}")


def orders(pairs: list[Pair]) -> tuple[int, int]:
    """How often the order of two cards that differ by more than 15 % at the same batch is right, and wrong."""
    rows: dict[tuple[str, str, int], list[Pair]] = {}
    for step, seconds in pairs:
        rows.setdefault((step.table, step.workload, step.batch_size), []).append((step, seconds))
    right = wrong = 0
    for same in rows.values():
        for (one, first), (other, second) in itertools.combinations(same, 2):
            if one.card != other.card and abs(log(one.seconds / other.seconds)) > log(1.15):
                agree = (one.seconds > other.seconds) == (first > second)
                right, wrong = right + agree, wrong + (not agree)
    return right, wrong


def ordered(rows: list[LeftOut]) -> tuple[int, int]:
    """How often the order of two cards is right, and wrong, as predicted by one fit that knows neither.

    Each two groups of cards were left out together once, so that two of one group were so several times: the first fit counts.
    """
    same: dict[tuple[object, ...], list[LeftOut]] = {}
    for row in rows:
        same.setdefault((row.fit, *row[:3]), []).append(row)
    seen: set[tuple[object, ...]] = set()
    right = wrong = 0
    for one, other in (pair for group in same.values() for pair in itertools.combinations(group, 2)):
        key = (one[:5], other[:5])
        if one.card == other.card or abs(log(one.seconds / other.seconds)) <= log(1.15) or key in seen:
            continue
        seen.add(key)
        agree = (one.seconds > other.seconds) == (one.predicted > other.predicted)
        right, wrong = right + agree, wrong + (not agree)
    return right, wrong


def counted(left: Iterable[LeftOut], nearness: str) -> list[LeftOut]:
    """What counts: of models all steps on an H200, of cards and architectures the published ones."""
    rows = [row for row in left if row.nearness == nearness and row.counts_samples and row.table != OLD]
    if nearness != "model":
        return [row for row in rows if not row.table.startswith("H200")]
    return [
        row for row in rows if row.table.startswith("H200") and not row.table.endswith(timed.EARLIER) and steady(row)
    ]


def steady(row: LeftOut) -> bool:
    """Whether its time is right whatever else the host did (`timed.is_steady`)."""
    return timed.is_steady(Step(*row[:6], Demand({}, {})))


def widths(left: Iterable[LeftOut]) -> dict[str, float]:
    """Half the width of the 80 % interval by how near a card is, in logarithms: 80th percentiles of what was left out, those of
    steps that the host limits apart; never narrower where a card is further.
    """
    rows = {nearness: counted(left, nearness) for nearness in NEARNESSES}
    card, architecture, none = (_high([row for row in rows[n] if not row.by_host]) for n in NEARNESSES)
    return {
        "card": round(card, 3),
        "architecture": round(max(card, architecture), 3),
        "none": round(max(card, architecture, none), 3),
        "host": round(_high([row for row in rows["model"] if row.by_host]), 3),
    }


def _high(rows: list[LeftOut]) -> float:
    sizes = [abs(log(row.predicted / row.seconds)) for row in rows]
    return quantiles(sizes, n=5)[-1]


def neusight() -> list[tuple[float, float]]:
    """Measured and predicted seconds of NeuSight's training rows, those of cards that whichgpu answers about."""
    cuda = {card.name for card in catalogue.load().gpus if card.cuda}
    rows = map(json.loads, NEUSIGHT.read_text().splitlines())
    return [(row["seconds"], row["predicted_s"]) for row in rows if card_named(row["card"]).name in cuda]


def left_alone(row: LeftOut) -> str:
    """What was left out with a step: its model, its card or its architecture."""
    if row.nearness == "model":
        return family(row.workload)
    return row.card if row.nearness == "card" else card_named(row.card).architecture


def inside(left: list[LeftOut], nearness: str) -> list[bool]:
    """Whether each step lies in its interval, with widths from all others: none of its model, card or architecture."""
    known = {"model": "card", "card": "architecture", "architecture": "none"}[nearness]
    rows = counted(left, nearness)
    found: list[bool] = []
    for name in sorted(set(map(left_alone, rows))):
        others = widths([row for row in left if row.nearness != nearness or left_alone(row) != name])
        for row in rows:
            if left_alone(row) == name:
                width = constants.width(others, known, row.by_host)
                found.append(abs(log(row.predicted / row.seconds)) <= width)
    return found


class Found(NamedTuple):
    """All that the page and the record are made of."""

    fit: constants.Fit
    everything: list[Pair]
    left: list[LeftOut]

    @classmethod
    def read(cls) -> Found:
        fit = constants.load()
        left = [LeftOut(*json.loads(line)) for line in LEFT_OUT.read_text().splitlines()]
        return cls(fit, predicted(load(), fit.constants), left)

    def of(self, tables: Iterable[str]) -> list[tuple[float, float]]:
        """Measured and predicted seconds of some tables."""
        wanted = set(tables)
        return [(s.seconds, seconds) for s, seconds in self.everything if s.table in wanted and s.counts_samples]

    def by_gpu(self, limited: bool) -> list[tuple[float, float]]:
        """Of an H200's steps whose models were left out: those whose measured time the GPU fills, or the others."""
        busy = {key: row for key, row in timed.latest().items() if "busy_s" in row}
        found = []
        for step in self.out("model"):
            row = busy.get((step.workload.removeprefix("truth:"), step.batch_size))
            same = row is not None and row["step_s"] == step.seconds
            if same and (row["busy_s"] > FILLED * step.seconds) == limited:
                found.append((step.seconds, step.predicted))
        return found

    def otherwise(self, field: str) -> list[tuple[float, float]]:
        """Measured and predicted seconds of what counts on an H200, for a host that is as fast as another field says."""
        return [(row.seconds, getattr(row, field)) for row in self.out("model")]

    def all_timings(self) -> list[tuple[float, float]]:
        """The same of every timing, each for itself: those of earlier sessions, and those that other work disturbed."""
        return [(row.seconds, row.predicted) for row in self.left if row.nearness == "model" and row.counts_samples]

    def out(self, nearness: str) -> list[LeftOut]:
        """Steps predicted without their model, all of an H200, or those published predicted without card or architecture."""
        return counted(self.left, nearness)


def _errors(title: str, rows: list[tuple[float, float]], fitted: bool = False) -> SpeedErrors:
    sizes = [abs(seconds / measured - 1) for measured, seconds in rows]
    return SpeedErrors(
        title=title, fitted=fitted, steps=len(sizes), median=round(median(sizes), 4),
        percentile_90=round(quantiles(sizes, n=10)[-1], 4),
    )  # fmt: skip


def record(found: Found) -> SpeedAccuracy:
    """What `whichgpu accuracy speed` answers."""
    out = {n: [(row.seconds, row.predicted) for row in found.out(n)] for n in NEARNESSES}
    held_out = [(row.seconds, row.predicted) for row in found.out("model") if row.table == "H200 held out"]
    errors = [
        _errors(OUT, out["model"]),
        _errors("the same, predicted for the speed of the host in that minute", found.otherwise("by_minute")),
        _errors("the same, predicted for the reference host", found.otherwise("as_reference")),
        _errors("the same, with earlier and disturbed timings beside the latest quiet ones", found.all_timings()),
        _errors("of these, where the GPU is busy 80 % of the time or more", found.by_gpu(True)),
        _errors("of these, where the host or waiting takes more", found.by_gpu(False)),
        _errors("of these, held-out steps of the truth set", held_out),
        _errors(CARDS_OUT, out["card"]),
        _errors("Lambda 2020-2025, architecture left out", out["architecture"]),
        _errors("H200, held-out steps of the truth set, by the whole fit", found.of(["H200 held out"])),
        _errors("H200, ready workloads, again by bench, by the whole fit", found.of(["H200 bench"])),
        _errors("H200, ready workloads", found.of(["H200 zoo"]), fitted=True),
        _errors("H200, the other steps of the truth set", found.of(["H200 truth"]), fitted=True),
        _errors("Lambda 2020-2025", found.of(["Lambda 2020-2025"]), fitted=True),
        _errors("Lambda 2019 (TensorFlow 1.13, PyTorch 0.4 and 1.0)", found.of([OLD])),
    ]
    return SpeedAccuracy(
        date=found.fit.date, fitted_on=found.fit.fitted_on, bars=tuple(_bars(found, errors)), errors=tuple(errors)
    )


def _titled(errors: list[SpeedErrors], title: str) -> SpeedErrors:
    return next(one for one in errors if one.title == title)


def _bars(found: Found, errors: list[SpeedErrors]) -> Iterable[SpeedBar]:
    for title, one, (middle, high) in (
        (OUT, _titled(errors, OUT), (0.07, 0.20)),
        ("cards that were left out of the fit", _titled(errors, CARDS_OUT), (0.12, 0.30)),
    ):
        yield SpeedBar(
            title=title,
            wanted=f"median {middle:.0%}, 90th percentile {high:.0%}",
            reached=f"{one.median:.1%}, {one.percentile_90:.1%}",
            met=one.median <= middle and one.percentile_90 <= high,
        )
    right, wrong = ordered([row for row in found.left if row.nearness == "pair" and not row.table.startswith("H200")])
    share = right / (right + wrong)
    yield SpeedBar(title="order of two cards 15 % apart, both left out", wanted="95 % right", met=share >= 0.95,
              reached=f"{share:.1%} of {right + wrong:,} pairs")  # fmt: skip
    for title, held in (
        ("80 % interval: models left out", inside(found.left, "model")),
        ("80 % interval: cards left out", inside(found.left, "card")),
        ("80 % interval: architectures left out", inside(found.left, "architecture")),
    ):
        share = sum(held) / len(held)
        yield SpeedBar(
            title=title, wanted="75 % to 85 %", reached=f"{share:.0%} of {len(held)}", met=abs(share - 0.8) <= 0.05
        )
    rows = neusight()
    sizes = [abs(predicted_s / measured_s - 1) for measured_s, predicted_s in rows]
    mean, high = fmean(sizes), max(sizes)
    yield SpeedBar(title="NeuSight's training rows on NVIDIA's cards, card left out", wanted="mean 9.8%, 90th percentile 20.1%",
              reached=f"{mean:.1%}, the worst of {len(rows)} {high:.1%}", met=mean < 0.098 and high < 0.201)  # fmt: skip
    count, unexplained, lines = explained(found.everything)
    yield SpeedBar(title="relative speeds of 2020", wanted="every entry within 0.12, or explained", met=not unexplained,
              reached=f"{count - len(lines)} of {count} within, {len(lines) - unexplained} explained")  # fmt: skip


def page() -> str:
    """docs/speed.md: how near predictions of speed are to what was measured and published."""
    found = Found.read()
    whole = record(found)
    lines = [*_HEAD, *_fitted_words(found.fit), "", "## Bars", "", "| bar | wanted | reached | |", "|---|---|---|---|"]
    lines += [f"| {b.title} | {b.wanted} | {b.reached} | {'met' if b.met else '**missed**'} |" for b in whole.bars]
    lines += [
        "",
        *_BAR_WORDS,
        "",
        *_host_words(),
        "",
        "## Errors",
        "",
        "| step times | fitted to | steps | median | 90th percentile |",
    ]
    lines += ["|---|---|---:|---:|---:|"]
    lines += [
        f"| {e.title} | {'yes' if e.fitted else 'no'} | {e.steps} | {e.median:.1%} | {e.percentile_90:.1%} |"
        for e in whole.errors
    ]
    lines += ["", *_OUT_WORDS, "", *_worst(found), "", "## Relative to the Quadro RTX 8000, 2020", ""]
    lines += [*_RELATIVE_WORDS, "", *_relative(found.everything), "", *explained(found.everything)[2]]
    return "\n".join(lines) + "\n"


def _host_words() -> list[str]:
    """How far hosts differ: the same steps on two machines with the same card and the same kind of processor."""
    first = timed.first()
    rows = [json.loads(line) for line in SLOWER_HOST.read_text().splitlines()]
    both = [(row, first.get((row.get("name", ""), row.get("batch_size", 0)))) for row in rows if "step_s" in row]
    ratios = sorted(
        row["step_s"] / one["step_s"] for row, one in both if one and one.get("busy_s", 0.0) < HALF * one["step_s"]
    )
    every = timed.latest()
    quiet = sum(bool(row.get("quiet")) for row in every.values())
    still = sum("launches_us" in row for row in every.values())
    return [
        f"{quiet} of the H200's {len(every)} timed steps were timed while nothing else ran on its host, {still} of these in a session that stopped all",
        "other processes; the others while models were built there. How fast the host is decides about steps that it limits, and hosts",
        f"differ: on a second machine with an H200, {len(ratios)} steps of which the GPU is busy less than half took {median(ratios):.1f} times as long in the",
        f"median, and up to {ratios[-1]:.1f} times. So the host's speed is a parameter (`bench --calibrate-host`), and the still session's host has",
        f"one, {timed.speeds()['still']:.2f} of the reference's, which each fit finds from the steps that it is fitted to.",
        "",
        "Two kinds of timings are left out of the figures, however near they are: those during which something else ran on the host,",
        f"unless the GPU was busy {timed.BUSY:.0%} of the time, where no quiet one took their place; and those of a single step by",
        f"`whichgpu bench` ({_single_steps()}), which have no spread and",
        "may be the one in which the allocator gave memory back.",
    ]


def _single_steps() -> str:
    """The measurements that have one step only, in words."""
    rows = map(json.loads, BENCHED.read_text().splitlines())
    return ", ".join(
        f"`{row['workload']}` at {row['batch_size']}: {row['step_s'][0]:.1f} s"
        for row in rows
        if row["step_s"] and row["steps"] == 1
    )


def _worst(found: Found) -> list[str]:
    """The H200's steps that are furthest off."""
    rows = sorted(found.out("model"), key=lambda row: -abs(log(row.predicted / row.seconds)))
    lines = ["## The furthest off on the H200", "", "| step | batch | measured | predicted |", "|---|---:|---:|---:|"]
    return [
        *lines,
        *(
            f"| {s.workload.removeprefix('truth:')} | {s.batch_size} | {1e3 * s.seconds:.1f} ms | {1e3 * s.predicted:.1f} ms |"
            for s in rows[:15]
        ),
    ]


_HEAD = [
    "# How near predictions of speed are",
    "",
    "Written by `python tools/compare_steps.py --write`; `whichgpu accuracy speed` shows the same figures.",
    "",
]
_BAR_WORDS = [
    "Intervals are counted with widths that were read off other models, cards and architectures only, so that no step counts for its",
    "own. The order of two cards is that of one fit that knows neither. Of NeuSight's twelve training rows nine are of AMD's cards,",
    "about which whichgpu does not answer.",
]
_OUT_WORDS = [
    "Each step is rebuilt at its own batch size and precision. Cards are left out in groups, with all their operators and steps,",
    "and so are whole architectures. Models are left out in groups too, with all their variants and sizes, on every card: what is",
    "said of BERT comes from a fit that saw no BERT. Held-out steps of the truth set are in no fit. The rules of the model (which",
    "copies, which kernels) were made with these tables and with profiles of the H200's steps in sight. Pairs of cards are those of",
    "the same workload and batch size, `Lambda 2019` included.",
]
_RELATIVE_WORDS = [
    "Published, then predicted, each card at its own largest published batch; * where they differ by more than 0.12, with what the",
    "published notes themselves say of it below the table. Steps are rebuilt with the code of 2019 where a workload has it. Yolo v3 has",
    "no public notes.",
]


def _fitted_words(fit: constants.Fit) -> list[str]:
    sources = "; ".join(fit.fitted_on)
    return [
        f"{len(fit.constants)} constants were fitted on {fit.date} to {fit.points:,} points ({sources}), of {len(fit.cards)} cards.",
        "None of them belongs to a model.",
    ]


class Entry(NamedTuple):
    """A card's largest published batch: seconds a step, published and predicted."""

    card: str
    batch_size: int
    published_s: float
    predicted_s: float


def _largest(pairs: list[Pair]) -> dict[str, dict[str, Entry]]:
    """The entries of the table of 2020 by workload and card."""
    found: dict[str, dict[str, Entry]] = {}
    for step, seconds in pairs:
        if step.table == OLD and "V100" not in step.card:
            cards = found.setdefault(step.workload.partition("?")[0], {})
            if step.card not in cards or cards[step.card].batch_size < step.batch_size:
                cards[step.card] = Entry(step.card, step.batch_size, step.seconds, seconds)
    return found


def _ratios(one: Entry, unit: Entry) -> tuple[float, float]:
    """Rates relative to another card's, published and predicted."""
    size = one.batch_size / unit.batch_size
    return size * unit.published_s / one.published_s, size * unit.predicted_s / one.predicted_s


def _far(one: Entry, unit: Entry) -> bool:
    published, seen = _ratios(one, unit)
    return abs(published - seen) > _NEAR


def _relative(pairs: list[Pair]) -> list[str]:
    largest = _largest(pairs)
    names = list(dict.fromkeys(name for cards in largest.values() for name in cards))
    lines = ["| workload | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for workload, cards in largest.items():
        cells = [_cell(cards.get(name), cards[_BASELINE]) for name in names]
        lines.append(f"| {workload} | " + " | ".join(cells) + " |")
    return lines


def _cell(card: Entry | None, baseline: Entry) -> str:
    if card is None:
        return ""
    published, seen = _ratios(card, baseline)
    return f"{published:.2f} {seen:.2f}" + ("*" if _far(card, baseline) else "")


def explained(pairs: list[Pair]) -> tuple[int, int, list[str]]:
    """How many entries of 2020 there are, how many are neither near nor explained by the published figures, and the reasons."""
    count = unexplained = 0
    lines: list[str] = []
    for workload, cards in _largest(pairs).items():
        unit = cards[_BASELINE]
        count += len(cards)
        for one in cards.values():
            if _far(one, unit):
                reason = (
                    _by_the_host(one, pairs, workload)
                    or _by_the_baseline(one, cards, unit)
                    or _by_the_batch(one, unit, pairs, workload)
                )
                unexplained += not reason
                lines.append(f"- {workload}, {one.card}: {reason or '**not explained**'}.")
    return count, unexplained, lines


def _by_the_host(one: Entry, pairs: list[Pair], workload: str) -> str:
    """Steps of one size took the same on cards that differ by far, and hardly longer at the card's largest: the host was the limit."""
    smallest = {
        step.card: step.seconds
        for step, _ in pairs
        if step.table == OLD and step.workload.partition("?")[0] == workload and step.batch_size == 1
    }
    fast = [seconds for card, seconds in smallest.items() if card_named(card).bandwidth > _FAST]
    if len(fast) < 3 or max(fast) > _ALIKE * min(fast) or one.published_s > _LONGER * min(smallest.values()):
        return ""
    return (
        f"published steps of one sample take {min(fast):.2f} to {max(fast):.2f} s on {len(fast)} cards alike, and {one.batch_size} "
        f"on this one {one.published_s:.2f} s: the host of 2019 was the limit, so that the ratio is little but that of the batch sizes"
    )


def _by_the_baseline(one: Entry, cards: dict[str, Entry], unit: Entry) -> str:
    """The baseline's own figure differs from those of cards with its processor and memory speed; against these the entry is near."""
    twins = [other for other in cards.values() if other.card != unit.card and _alike(other.card, unit.card)]
    if _alike(one.card, unit.card):
        published, seen = _ratios(one, unit)
        return (
            f"same processor, clock and bandwidth as the baseline ({card_named(one.card).watts:.0f} and "
            f"{card_named(unit.card).watts:.0f} W), yet {published:.2f} of it"
            if abs(seen - 1) < abs(published - 1)
            else ""
        )
    near = [other for other in twins if not _far(one, other)]
    if not near:
        return ""
    published, seen = _ratios(one, near[0])
    return (
        f"{published:.2f} published and {seen:.2f} predicted relative to the {near[0].card}, which has the baseline's processor, "
        f"clock and bandwidth, yet is {_ratios(near[0], unit)[0]:.2f} of it"
    )


def _by_the_batch(one: Entry, unit: Entry, pairs: list[Pair], workload: str) -> str:
    """At the card's own batch, which the baseline ran as well, the two compare as predicted; what differs is how much faster the
    baseline itself gets from there to its own largest batch.
    """
    for step, predicted_s in pairs:
        same = (step.table, step.workload.partition("?")[0], step.card, step.batch_size)
        if same != (OLD, workload, unit.card, one.batch_size):
            continue
        there = Entry(unit.card, one.batch_size, step.seconds, predicted_s)
        if _far(one, there):
            return ""
        (published, seen), (grown, expected) = _ratios(one, there), _ratios(unit, there)
        return (
            f"at its own batch of {one.batch_size}, {published:.2f} published and {seen:.2f} predicted relative to the baseline at the same; "
            f"from there to {unit.batch_size} the baseline itself got {grown:.2f} times as fast, {expected:.2f} predicted"
        )
    return ""


def _alike(one: str, other: str) -> bool:
    first, second = card_named(one), card_named(other)
    return (first.flops["fp32"], first.bandwidth) == (second.flops["fp32"], second.bandwidth)


def write() -> None:
    """The intervals' widths, the page and the record."""
    found = Found.read()
    fit = json.loads(CONSTANTS.read_text())
    fit["spread"] = widths(found.left)
    CONSTANTS.write_text(json.dumps(fit, indent=1) + "\n")
    constants.load.cache_clear()
    PAGE.write_text(page())
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(record(Found.read())), indent=1) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--write", action="store_true", help="write widths, docs/speed.md and its record instead")
    arguments = parser.parse_args()
    if arguments.write:
        write()
        return
    pairs = predicted(load(), json.loads(arguments.constants.read_text())["constants"])
    if arguments.verbose:
        for step, seconds in pairs:
            print(
                f"{step.table} {step.workload[:40]:40} {step.card:22} {step.batch_size:5} {seconds / step.seconds - 1:+.0%}"
            )
    report(pairs)
    for table in dict.fromkeys(step.table for step, _ in pairs):
        summary([pair for pair in pairs if pair[0].table == table], table)


if __name__ == "__main__":
    main()
