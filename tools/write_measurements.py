"""Write docs/measurements.md from the measurements that come with whichgpu: `python tools/write_measurements.py`.

Takes the packaged measurements, the article of 2020 and the comparison of batch finders (tools/finders, written by
tools/compare_batch_finders.py). Run it after any of these changes; a test says when the page is stale.

What a search foretold is the first batch size that it tried. Its attempts are those that look for the largest batch; one that
times a batch size which ran before is none of them, whether it ends with a time or out of memory.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import compare_batch_finders
from whichgpu import published, results_exchange, text
from whichgpu.bench_report import FEWEST_FOR_INTERVAL
from whichgpu.results import Measurement
from whichgpu.zoo import ENTRIES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "measurements.md"
FINDERS = ROOT / "tools" / "finders" / "h200.json"
GIB = 1 << 30
HOW = {
    "lightning binsearch": "which bisects",
    "batch-probe": "which bisects",
    "lightning power": "which only doubles",
    "accelerate": "which goes down by tenths",
}


class Found(NamedTuple):
    """The largest batch of one workload under one limit, and the way to it."""

    workload: str
    limit_gib: int
    foretold: int
    largest: int
    proved: bool
    attempts: int
    relapsed: tuple[int, ...]  # batch sizes that ran, and ran out of memory when they were timed for longer
    items_per_sample: int
    timed: Measurement | None  # at the largest

    @property
    def error(self) -> float:
        """How far the prediction was off, as a share of the largest."""
        return self.foretold / self.largest - 1 if self.largest else 0.0


class Same(NamedTuple):
    """What 2020 published for cards of one memory size."""

    cards: tuple[str, ...]
    in_items: bool  # the article counts tokens, not samples
    batch: int  # 0: not even the smallest that was tried
    next_tried: int | None


# ---- from measurements to findings ------------------------------------------------------------------------


MOST_ATTEMPTS = 5  # what a search should take at most


def findings(measurements: Sequence[Measurement]) -> list[Found]:
    """One for each workload and limit, in the order in which they were measured."""
    searches: dict[tuple[str, int], list[Measurement]] = {}
    for one in measurements:
        if one.memory_limit_bytes is not None:
            searches.setdefault((one.workload, one.memory_limit_bytes), []).append(one)
    return [_found(name, limit, rows) for (name, limit), rows in searches.items()]


def _found(name: str, limit_bytes: int, rows: Sequence[Measurement]) -> Found:
    attempts: list[Measurement] = []
    relapsed = []
    for one in (one for one in rows if one.step_s is None):
        if not any(one.batch_size == before.batch_size and before.outcome == "ok" for before in attempts):
            attempts.append(one)
        elif one.outcome == "out_of_memory":
            relapsed.append(one.batch_size)
    too_large = {one.batch_size for one in rows if one.outcome == "out_of_memory"}
    fit = {one.batch_size for one in rows if one.outcome == "ok"} - too_large
    largest = max(fit, default=0)
    timed = [one for one in rows if one.step_s is not None and one.batch_size == largest]
    return Found(
        workload=name,
        limit_gib=limit_bytes // GIB,
        foretold=attempts[0].batch_size,
        largest=largest,
        proved=largest + 1 in too_large,
        attempts=len(attempts),
        relapsed=tuple(relapsed),
        items_per_sample=rows[0].items_per_sample,
        timed=timed[-1] if timed else None,
    )


def same_memory(model: str, limit_gib: int) -> Same | None:
    """The published column of the cards with so much memory; None where there is none."""
    article = published.article()
    work = next(work for work in article.workload if work.name == model)
    columns = [(gpu.name, batch) for gpu, batch in zip(article.gpu, work.max_batch, strict=True)]
    chosen = [
        (name, batch) for (name, batch), gpu in zip(columns, article.gpu, strict=True) if gpu.memory_gb == limit_gib
    ]
    if not chosen:
        return None
    assert len({batch for _, batch in chosen}) == 1, f"{model}: cards of {limit_gib} GB differ"
    batch = 0 if chosen[0][1] == "*" else int(chosen[0][1])
    above = [tried for tried in work.tried if tried > batch]
    return Same(
        tuple(name for name, _ in chosen), work.batch_unit.endswith("tokens per batch"), batch, min(above, default=None)
    )


# ---- the page ---------------------------------------------------------------------------------------------


def page() -> str:
    measurements = results_exchange.packaged()
    found = findings(measurements)
    return "\n".join([*head(measurements, found), *against_2020(found), *every_row(found), *finders(), *how()])


def head(measurements: Sequence[Measurement], found: Sequence[Found]) -> list[str]:
    around = measurements[0].environment
    days = sorted({one.measured_at[:10] for one in measurements})
    versions = sorted(
        {f"{name} {version}" for one in measurements for name, version in one.environment.libraries.items()}
    )
    proved = [one for one in found if one.proved]
    outside = [one.context_bytes for one in measurements if one.context_bytes is not None]
    right = [one for one in found if one.foretold == one.largest]
    near = [one for one in found if abs(one.error) <= 0.02]
    attempts = [one.attempts for one in found]
    spread = ", ".join(f"{count} took {number}" for number, count in sorted(Counter(attempts).items()))
    return [
        "# Measured largest batches",
        "",
        "Generated by `tools/write_measurements.py` from the measurements that come with whichgpu.",
        "",
        f"**Measured** with `whichgpu bench` on an {around.gpu} ({text.format_bytes(around.gpu_memory_bytes)}), {days[0]}"
        f"{f' to {days[-1]}' if days[-1] != days[0] else ''}: torch {around.torch}, CUDA {around.cuda},",
        f"cuDNN {around.cudnn}, driver {around.driver}, Python {around.python}, {', '.join(versions)}.",
        "",
        "The limits are emulated: PyTorch's allocator may take exactly so much, and the CUDA context with its libraries comes on top",
        f"(up to {text.format_bytes(max(outside))} here). A card of that size leaves that much less to PyTorch, and its speed is another.",
        "",
        f"- **Exact**: {len(found)} searches over {len({one.workload for one in found})} workloads; in {len(proved)} of them the next"
        " larger batch was run too and ran out of memory.",
        f"- **Attempts**: {statistics.median(attempts):g} in the median, {max(attempts)} at most ({spread}), each in a process of its own.",
        *(
            f"- **Timed for longer**, a batch of {size} of `{one.workload}` under {one.limit_gib} GiB, which had run for a few steps,"
            f" ran out of memory; the search went on and found {one.largest}."
            for one in found
            for size in one.relapsed
        ),
        *(
            f"- **More than {MOST_ATTEMPTS} attempts**, the bound that was set, were {one.attempts} for `{one.workload}` under"
            f" {one.limit_gib} GiB."
            for one in found
            if one.attempts > MOST_ATTEMPTS
        ),
        f"- **Predictions** (where each search started): {len(right)} of {len(found)} were the largest batch to the sample,"
        f" {len(near)} were within 2 %; the furthest was {max((one.error for one in found), key=abs):+.1%} off.",
        "",
    ]


def against_2020(found: Sequence[Found]) -> list[str]:
    """Measured, predicted and published side by side, where the article has the model and a card of that size."""
    rows = []
    for one in found:
        model = ENTRIES[one.workload].article if one.workload in ENTRIES else None
        same = same_memory(model, one.limit_gib) if model is not None else None
        if same is not None:
            items = one.items_per_sample if same.in_items else 1
            ran = f"{same.batch:,}" if same.batch else "\\*"
            failed = "-" if same.next_tried is None else f"{same.next_tried:,}"
            rows.append(
                f"| `{one.workload}` | {one.limit_gib} GiB | {size(one, items)} | {one.foretold * items:,} | {ran} | {failed} | "
                f"{', '.join(same.cards)} |"
            )
    return [
        "## Beside the tables of 2020",
        "",
        "*Published* is the largest batch that ran in [Lambda's article of 2020](https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning)",
        "(measured in April 2019) on cards with that much memory, and *not* the next batch size that was tried there and failed.",
        "Batches are counted as there: samples, or tokens where it counts these.",
        "",
        "| workload | limit | measured | predicted | published | not | cards of 2020 |",
        "|---|---:|---:|---:|---:|---:|---|",
        *sorted(rows, key=_by_workload_and_limit),
        "",
        *EXPLAINED,
        "",
    ]


def _by_workload_and_limit(row: str) -> tuple[str, int]:
    cells = row.split("|")
    return cells[1], int(cells[2].split()[0])


EXPLAINED = """\
[The models of 2020](2020.md) goes through them one by one, with variants that are closer to the code of 2019. In short:

- **The ladder.** 2020 tried a handful of batch sizes a model, so a published figure is a lower end: the true largest lies below
  the figure under *not*. Here every batch size is a candidate. `whichgpu bench --power-of-two` measures as 2020 did, and `whichgpu tables
  max-batch --power-of-two` shows the measured ones so.
- **The framework.** BERT, NASNet and DeepLabv3 ran in TensorFlow (1.11 or newer, and 1.13), whose allocator took memory in
  doubling steps: early notes of the 2019 measurements show 4, 8 and 16 GiB at once whatever the model asks for, and BERT's
  own README of that time gives 32 sequences of 128, or 12 of 384, as the most for a Titan X of 12 GB
  (<https://github.com/google-research/bert#out-of-memory-issues>). PyTorch's allocator takes what is asked for.
- **How the model is written.** BERT here has fused attention and one kernel for GELU. In 2019 both were written out of elementary
  operators, each of which keeps a result for the backward pass. `bert-base?code=2019` is
  that model, and `whichgpu explain` shows what holds its memory.
- **NASNet** is the exception: here it needs more. timm's network gives each branch of a cell a ReLU of its own over the same
  input and keeps every result for the backward pass, which TensorFlow's graph shares: `nasnet-large?code=2019` does so.
- **Precision** is no difference for these: fp32 then and now. TF32, which the H200 has for convolutions, keeps all tensors
  in 32 bits and changes speed, not memory.
- **The kernels.** cuBLAS keeps up to 32 MiB of workspace twice on this card and 8 MiB on those of 2020, and cuDNN's convolutions take
  other workspaces: tens to hundreds of MiB, which counts on a card of 6 GiB.
""".splitlines()


def size(one: Found, items: int = 1) -> str:
    """The largest batch, in samples or items; marked where the next one was not seen to fail."""
    return ("\\*" if not one.largest else f"{one.largest * items:,}") + ("" if one.proved or not one.largest else "+")


def every_row(found: Iterable[Found]) -> list[str]:
    lines = [
        "## Every search",
        "",
        "`+`: the next larger batch was not tried. Speed is at the largest batch, with the 95 % interval of the median step (or the number",
        "of steps, where the time budget ended after too few for one); data loading is not measured.",
        "",
        "| workload | limit | measured | predicted | off by | attempts | samples/s | step | reserved | power |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in sorted(found, key=lambda one: (one.workload, one.limit_gib)):
        cells = [f"`{one.workload}`", f"{one.limit_gib} GiB", size(one), f"{one.foretold:,}", f"{one.error:+.1%}"]
        lines.append(f"| {' | '.join([*cells, str(one.attempts), *speed(one.timed)])} |")
    return [*lines, ""]


def speed(timed: Measurement | None) -> list[str]:
    """Rate, step time with its interval, memory and power."""
    if timed is None or timed.step_s is None or timed.samples_per_second is None:
        return ["-"] * 4
    median, low, high = timed.step_s
    reach = f"± {max(high - median, median - low) / median:.1%}"
    reserved = timed.peak_reserved_bytes
    return [
        f"{timed.samples_per_second:,.4g}",
        f"{1000 * median:,.4g} ms {reach if timed.steps >= FEWEST_FOR_INTERVAL else f'({timed.steps} steps)'}",
        "-" if reserved is None else text.format_bytes(reserved),
        "-" if timed.power_w is None else f"{timed.power_w:.0f} W",
    ]


def finders() -> list[str]:
    if not FINDERS.exists():
        return []
    record = compare_batch_finders.Record(FINDERS)
    around = record.environment
    versions = [f"{name} {around[name]}" for name in ("lightning", "accelerate", "batch-probe") if name in around]
    return [
        "## Beside other batch finders",
        "",
        f"Measured on an {around['gpu']}, {around['measured']}, torch {around['torch']}, {', '.join(versions)}, each with its own",
        "defaults where it has them, on the same training step under the same limit of PyTorch's allocator. A cell is the answer, the",
        "number of batch sizes that were tried, and the seconds of the search.",
        "",
        *compare_batch_finders.table(FINDERS).splitlines(),
        "",
        *in_short(record),
        *FINDERS_EXPLAINED,
    ]


def in_short(record: compare_batch_finders.Record) -> list[str]:
    """whichgpu's attempts, and its seconds against those of each other finder, where it lost by name."""
    answers = {(run["workload"], run["finder"]): run for run in record.runs if "error" not in run}
    own = [run for run in record.runs if run["finder"] == "whichgpu" and "error" not in run]
    attempts = [run["attempts"] for run in own]
    lines = [
        f"- **whichgpu's attempts**: {statistics.median(attempts):g} in the median, {max(attempts)} at most; the answer is"
        f" proved in {sum(run['exact'] for run in own)} of {len(own)}.",
    ]
    for finder, way in HOW.items():
        pairs = [(run, answers[run["workload"], finder]) for run in own if (run["workload"], finder) in answers]
        slower = [(mine, its) for mine, its in pairs if mine["search_s"] > its["search_s"]]
        lost = "; ".join(
            f"it was slower for `{mine['workload']}`, {mine['search_s']:.1f} s against {its['search_s']:.1f} s"
            for mine, its in slower
        )
        smaller = sum(its["answer"] < mine["answer"] for mine, its in pairs)
        lines.append(
            f"- **Seconds, against {finder}**, {way}: whichgpu was no slower in {len(pairs) - len(slower)} of {len(pairs)}"
            f"{f'; {lost}' if lost else ''}. Its answer was smaller in {smaller}."
        )
    spans = [f"{min(times):.0f} to {max(times):.0f} s for {finder}" for finder, times in _totals(record).items()]
    return [*lines, f"- **In all**, with imports and, for whichgpu, tracing with an empty cache: {', '.join(spans)}."]


def _totals(record: compare_batch_finders.Record) -> dict[str, list[float]]:
    totals: dict[str, list[float]] = {}
    for run in record.runs:
        if "error" not in run:
            totals.setdefault(run["finder"], []).append(run["total_s"])
    return {finder: totals[finder] for finder in compare_batch_finders.FINDERS if finder in totals}


FINDERS_EXPLAINED = """\
- whichgpu's answer ran in a process of its own, and the next larger batch ran out of memory in another; its seconds include
  starting these processes, CUDA in each and moving the model there, but not tracing (its `total_s` in the data does). The others'
  clock starts when the model is on the card and CUDA is up.
- whichgpu ran later on the same day than the others, in a call of its own. Until then each of its attempts built the model anew;
  in one call with the others it took 3.6, 7.0, 8.6, 5.0 and 3.7 s in this order, for gpt2 longer than both that bisect.
- Lightning's `BatchSizeFinder` in `power` mode only knows powers of two; in `binsearch` mode it takes 5 % off what it found.
- accelerate's `find_executable_batch_size` goes down by a tenth from where it is told to start (1,024 here), and stops at the
  first that runs: it never looks above that.
- batch-probe bisects between 1 and 4,096, without headroom here.
- The peers try all batch sizes in one process, after failures in it: what these leave behind counts against the batches after.

The data are in `tools/finders/`, with all batch sizes that were tried; `python tools/compare_batch_finders.py` measures them again.
""".splitlines()


def how() -> list[str]:
    return [
        "",
        "## Measuring it again",
        "",
        "```sh",
        "whichgpu bench bert-base --memory-limit 8GiB --memory-limit 11GiB",
        "whichgpu tables max-batch",
        "```",
        "",
        "All of this page: `tools/bench_on_gpu.sh`, then `tools/import_measurements.py`.",
        "",
    ]


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
