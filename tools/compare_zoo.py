"""Predicted against measured memory of the zoo at full size; writes docs/zoo.md.

    python tools/compare_zoo.py [--predict [NAMES]]

The measurements (tools/zoo/measured.jsonl, environment.json) come from tools/measure_zoo.py. `--predict` traces the measured
workloads at the measured batch sizes, which takes PyTorch, the zoo's libraries and minutes, and keeps what is predicted for the
card that was measured in tools/zoo/predicted.jsonl; without it the page is written from what is kept there. Run it again when a
rule or a workload changes; a test says when the page does not follow from the files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from whichgpu import accuracy, text, workload
from whichgpu.intervals import MEASURED
from whichgpu.predictor import Predictor
from whichgpu.trace_cache import installed_version
from whichgpu.zoo import ENTRIES, SETS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "zoo.md"
DATA = ROOT / "tools" / "zoo"
FIGURES = ("low_bytes", "likely_bytes", "high_bytes", "allocated_bytes")


class Peak(accuracy.Point, frozen=True, kw_only=True):
    """A workload at a batch size: what was measured and what is predicted of it."""

    workload: str
    kind: str


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file of data."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def predict(name: str, batch_size: int) -> dict[str, Any]:
    """What is predicted of a workload at a batch size on the card that was measured, with all its memory free."""
    with Predictor(workload.parse(name), cache=True, on_progress=None, exact=True) as predictor:
        predictor.model(MEASURED)
        predictor.check(batch_size, MEASURED)
        estimate = predictor.estimate(MEASURED)
        interval = estimate.interval(batch_size)
        info = predictor.info()
        return {
            "name": name,
            "batch_size": batch_size,
            "low_bytes": interval.low_bytes,
            "likely_bytes": interval.likely_bytes,
            "high_bytes": interval.high_bytes,
            "allocated_bytes": estimate.model.replay(batch_size).peak_allocated_bytes,
            "kind": info.kind,
            "torch": info.torch_version,
            "affine": info.affine,
            # by which PyTorch orders the products of an einsum; without it they are taken as they are written
            "opt_einsum": installed_version("opt_einsum"),
        }


def predict_all(only: Sequence[str]) -> None:
    """Predict what was measured, or some of it, and keep that; what is kept of others stays."""
    path = DATA / "predicted.jsonl"
    kept = {(row["name"], row["batch_size"]): row for row in (rows(path.name) if path.exists() else ())}
    for name, batch_size in _measured():
        if not only or {name, name.partition("?")[0]} & set(only):
            kept[name, batch_size] = predict(name, batch_size)
            print(json.dumps(kept[name, batch_size]), flush=True)
            lines = [json.dumps(kept[key]) + "\n" for key in _measured() if key in kept]
            path.write_text("".join(lines), encoding="utf-8")


def _measured() -> list[tuple[str, int]]:
    """Workloads and batch sizes that ran, in the zoo's order."""
    order = list(ENTRIES)
    ran = {(row["name"], row["batch_size"]) for row in rows("measured.jsonl") if row["kind"] == "ok"}
    return sorted(ran, key=lambda pair: (order.index(pair[0].partition("?")[0]), *pair))


def points() -> list[Peak]:
    """What was measured beside what is predicted."""
    measured = {(row["name"], row["batch_size"]): row for row in rows("measured.jsonl") if row["kind"] == "ok"}
    predicted = {(row["name"], row["batch_size"]): row for row in rows("predicted.jsonl")}
    return [
        Peak(
            workload=key[0],
            batch_size=key[1],
            measured_bytes=measured[key]["peak_reserved_bytes"],
            measured_allocated_bytes=measured[key]["peak_allocated_bytes"],
            kind=predicted[key]["kind"],
            **{figure: predicted[key][figure] for figure in FIGURES},
        )
        for key in _measured()
        if key in predicted
    ]


# ---- the page -----------------------------------------------------------------------------------------


def page() -> str:
    """docs/zoo.md."""
    found = points()
    parts = [_head(found)]
    for name in ("2020", "2026"):
        members = [one for one in found if name in ENTRIES[one.workload.partition("?")[0]].sets]
        parts.append(
            f"## {SETS[name][0].upper()}{SETS[name][1:]} (`--set {name}`)\n\n{_table(members)}\n\n{_summary(members)}"
        )
    return "\n\n".join((*parts, _misses(found), _missing())) + "\n"


def _head(found: Sequence[Peak]) -> str:
    around = json.loads((DATA / "environment.json").read_text(encoding="utf-8"))
    packages = ", ".join(f"{name} {version}" for name, version in around["packages"].items() if version)
    traced = ", ".join(dict.fromkeys(row["torch"] for row in rows("predicted.jsonl")))
    return f"""# The zoo at full size: predicted against measured

Every workload of the sets 2020 and 2026, as it is in the zoo, was run for five steps on one {around["gpu"]}
({text.format_bytes(around["total_bytes"])}, CUDA {around["cuda"]}), each in a process of its own, and is predicted at the same
batch size from traces without a GPU (torch {traced}). Measured on {around["date"][:10]} with
{packages}.
{_share(found)}

- *Reserved* is what PyTorch takes from the card, which decides whether a batch fits; *allocated* is what tensors hold of it.
- The error is predicted less measured, as a share of what was measured: negative where less was predicted. **Bold**: more than
  5 % off.
- *Interval*: whether the measured reserved peak lies between the predicted low and high end.

No peak was fitted to these; the ends of the interval for convolutions were widened to hold them, so that there *inside* proves nothing.
How the accuracy of predictions is judged in general: [accuracy](accuracy.md).

```sh
python tools/measure_zoo.py --out DIR                   # on a machine with a GPU
python tools/compare_zoo.py --predict                   # without one; writes this page
```"""


def _share(found: Sequence[Peak]) -> str:
    inside, near = sum(one.inside for one in found), sum(abs(one.reserved_error) <= 0.05 for one in found)
    return (
        f"Of {len(found)} peaks {near} are predicted within 5 %, and {inside} lie inside the predicted interval; the median "
        f"error is {_percent(median(abs(one.reserved_error) for one in found))} of reserved and "
        f"{_percent(median(abs(one.allocated_error) for one in found))} of allocated memory."
    )


def _table(found: Iterable[Peak]) -> str:
    lines = [
        "| workload | batch | reserved: measured | predicted | error | allocated: measured | predicted | error | interval |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in found:
        cells = (
            f"`{one.workload}`",
            text.format_count(one.batch_size),
            text.format_bytes(one.measured_bytes),
            text.format_bytes(one.likely_bytes),
            _error(one.reserved_error),
            text.format_bytes(one.measured_allocated_bytes),
            text.format_bytes(one.allocated_bytes),
            _error(one.allocated_error),
            "inside" if one.inside else "**outside**",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _error(error: float) -> str:
    shown = text.format_error(error)
    return f"**{shown}**" if abs(error) > 0.05 else shown


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _summary(found: Sequence[Peak]) -> str:
    worst = max(found, key=lambda one: abs(one.reserved_error))
    return (
        f"Median error {_percent(median(abs(one.reserved_error) for one in found))} of reserved, "
        f"{_percent(median(abs(one.allocated_error) for one in found))} of allocated memory; the worst is {text.format_error(worst.reserved_error)}, "
        f"`{worst.workload}` at {text.format_count(worst.batch_size)}."
    )


def _misses(found: Sequence[Peak]) -> str:
    missed = sorted(
        (one for one in found if not one.inside or abs(one.reserved_error) > 0.05),
        key=lambda one: -abs(one.reserved_error),
    )
    lines = [
        f"- `{one.workload}` at {text.format_count(one.batch_size)}: reserved {text.format_error(one.reserved_error)}, allocated "
        f"{text.format_error(one.allocated_error)}, {'inside' if one.inside else 'outside'} the interval"
        + (", traced with real tensors" if one.kind == "real-cpu" else "")
        for one in missed
    ]
    return "\n".join(["## Misses", "", *(lines or ["None."])])


def _missing() -> str:
    """What was not measured, or did not run."""
    done = {row["name"].partition("?")[0] for row in rows("measured.jsonl") if row["kind"] == "ok"}
    wanted = [name for name, entry in ENTRIES.items() if {"2020", "2026"} & set(entry.sets)]
    lines = [f"- `{name}`: not measured" for name in wanted if name not in done]
    known = {(row["name"], row["batch_size"]) for row in rows("predicted.jsonl")}
    lines += [
        f"- `{name}` at {text.format_count(size)}: not predicted"
        for name, size in _measured()
        if (name, size) not in known
    ]
    lines += [
        f"- `{row['name']}` at {text.format_count(row['batch_size'])}: {row['kind']} ({row.get('detail', '')})"
        for row in rows("measured.jsonl")
        if row["kind"] != "ok"
    ]
    return "\n".join(["## Attempts that failed, and what was not measured or not predicted", "", *(lines or ["None."])])


def main() -> None:
    """Predict if asked to, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", nargs="*", metavar="NAME", help="predict again, all or these workloads")
    arguments = parser.parse_args()
    if arguments.predict is not None:
        predict_all(arguments.predict)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
