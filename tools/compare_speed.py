"""Predicted against measured step times: what was measured on an H200, and public tables whose settings can be rebuilt.

python tools/compare_speed.py [--constants FILE] [--steps FILE] [--verbose]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import predict_truth
import truth
from speed import timed
from speed.sources import card_named
from whichgpu.predictor import Predictor
from whichgpu.scaling import Scaled, Single
from whichgpu.speed.host import work_of
from whichgpu.speed.rates import Rates
from whichgpu.speed.step_time import Demand, StepTime, demand, predict
from whichgpu.workload import parse

ROOT = Path(__file__).parents[1]
CONSTANTS = ROOT / "src" / "whichgpu" / "data" / "speed.json"


class Row(NamedTuple):
    """A measured step."""

    source: str
    workload: str
    batch_size: int
    card: Rates
    step_s: float


def scaled(source: Scaled | Single, batch_size: int) -> Demand:
    """What a step asks for at a batch size."""
    work = work_of(source.low, source.high, batch_size)
    return demand(source.low, lambda index: source.op(index, batch_size), work=work)


class Demands:
    """What workloads ask for, each traced once."""

    def __init__(self) -> None:
        self._predictors: dict[str, Predictor] = {}

    def of(self, workload: str, batch_size: int, capability: tuple[int, int] = (9, 0)) -> Demand:
        """A zoo workload, or a step of the truth set where the name says so."""
        if workload.startswith("truth:"):
            traces = predict_truth.load(workload.removeprefix("truth:"))
            assert traces is not None
            traces = predict_truth.with_host_work(workload.removeprefix("truth:"), traces)
            by_size = {trace.batch_size: trace for trace in traces}
            if batch_size in by_size:
                return demand(by_size[batch_size])
            return scaled(Scaled(*traces[:2]), batch_size)
        if workload not in self._predictors:
            self._predictors[workload] = Predictor(parse(workload), cache=True, on_progress=None)
        return scaled(self._predictors[workload].source(batch_size, capability), batch_size)

    def close(self) -> None:
        for predictor in self._predictors.values():
            predictor.__exit__(None, None, None)


def measured_here() -> Iterator[Row]:
    """Steps measured on an H200 by `whichgpu bench` and by tools/measure_truth.py --alone."""
    card = card_named("H200 SXM 141GB")
    # what was timed again while nothing else ran on the host counts instead
    again = {key for key, row in timed.latest().items() if row.get("quiet")}
    for line in (ROOT / "src/whichgpu/data/measurements/h200-2026-12.jsonl").read_text().splitlines():
        row = json.loads(line)
        # a single step has no interval, and may be one in which memory was tidied up
        if row["step_s"] and row["steps"] > 1 and (row["workload"], row["batch_size"]) not in again:
            yield Row("H200 bench", row["workload"], row["batch_size"], card, row["step_s"][0])
    for line in (ROOT / "tools/truth/data/alone.jsonl").read_text().splitlines():
        row = json.loads(line)
        if (row["name"], row["batch_size"]) not in again:
            yield Row(_truth_table(row["name"]), "truth:" + row["name"], row["batch_size"], card, row["median_step_s"])


def _truth_table(name: str) -> str:
    """Steps of the truth set that are kept out of every fit have a table of their own."""
    (case,) = truth.find([name])
    return "H200 held out" if case.held_out else "H200 truth"


def measured_steps(path: Path, card: str = "H200 SXM 141GB") -> Iterator[Row]:
    """Steps of tools/measure_steps.py."""
    yield from _of_rows((row for row in map(json.loads, path.read_text().splitlines()) if "step_s" in row), card)


def kept_steps(card: str = "H200 SXM 141GB") -> Iterator[Row]:
    """The kept ones: each as the latest quiet session timed it, then what earlier quiet ones said of the same."""
    yield from _of_rows(timed.latest().values(), card)
    for row in _of_rows(timed.earlier().values(), card):
        yield row._replace(source=row.source + timed.EARLIER)


def _of_rows(rows: Iterable[dict[str, Any]], card: str) -> Iterator[Row]:
    for row in rows:
        of_truth = row["source"] == "truth"
        table = _truth_table(row["name"]) if of_truth else "H200 zoo"
        name = ("truth:" if of_truth else "") + row["name"]
        yield Row(table, name, row["batch_size"], card_named(card), row["step_s"])


def compare(
    rows: list[Row], demands: Demands, constants: dict[str, float], verbose: bool
) -> list[tuple[Row, StepTime]]:
    found = []
    for row in rows:
        try:
            asked = demands.of(row.workload, row.batch_size)
        except Exception as error:
            print(f"{row.workload} {row.batch_size}: {type(error).__name__}: {error}"[:200])
            continue
        step = predict(asked, row.card, constants)
        found.append((row, step))
        if verbose:
            shares = ", ".join(f"{kind} {share:.0%}" for kind, share in list(step.shares.items())[:5])
            print(
                f"{row.workload[:44]:44} {row.batch_size:5} {row.card.name:16} measured {row.step_s * 1e3:8.2f} ms"
                f" predicted {step.step_s * 1e3:8.2f} ({step.step_s / row.step_s - 1:+.0%})"
                f" gpu {step.gpu_s * 1e3:8.2f} host {step.host_s * 1e3:7.2f} {step.limit:7} {shares}"
            )
    return found


def summary(found: list[tuple[Row, StepTime]], title: str) -> None:
    errors = [abs(step.step_s / row.step_s - 1) for row, step in found]
    if len(errors) > 1:
        print(f"{title}: {len(errors)} rows, median {median(errors):.1%}, 90 % {quantiles(errors, n=10)[-1]:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--steps", type=Path, help="steps.jsonl of tools/measure_steps.py, besides what is kept")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    constants = json.loads(arguments.constants.read_text())["constants"]
    demands = Demands()
    rows = list(measured_here())
    if arguments.steps:
        rows += measured_steps(arguments.steps)
    try:
        found = compare(rows, demands, constants, arguments.verbose)
        for source in dict.fromkeys(row.source for row in rows):
            summary([pair for pair in found if pair[0].source == source], source)
    finally:
        demands.close()


if __name__ == "__main__":
    main()
