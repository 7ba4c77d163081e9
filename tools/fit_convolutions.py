"""Fits the decision trees of `whichgpu.workspaces.cudnn` and `cudnn_search`, and keeps the answers that they get wrong.

    python tools/fit_convolutions.py [--check]

Reads what cuDNN's heuristics answer on an H200 (FILES in tools/workspace_grid, from tools/query_cudnn.py) and writes
src/whichgpu/data/convolutions.json.gz. Splits and leaves are chosen so that the error, as a share of the
bytes that a convolution touches, is least; each tree sees other batch sizes, and each cut other features. `--check` instead leaves a fifth of the shapes out and prints the errors on
them; then it compares the package's data with the workspaces that were recorded while convolutions ran
(tools/workspace_grid/measured.jsonl.gz, from tools/measure_workspaces.py).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces import cudnn, cudnn_search
from whichgpu.workspaces.convolution import problems
from whichgpu.workspaces.cudnn import Problem, features

GRID = Path(__file__).parent / "workspace_grid"
TABLE = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "convolutions.json.gz"
SOURCE = "tools/query_cudnn.py on an NVIDIA H200: torch 2.11.0+cu130, cuDNN 9.19, driver 580.159.04, 2026-12-02"
# By the question, and where the convolutions come from: the package's own list; with --shapes, the JSON file that is named
# here. Each file has other batch sizes.
FILES = {
    "heuristics": "--ask top", "dense": "--ask dense", "most": "--ask most", "more": "--ask dense, more_convs",
    "more_batches": "--ask dense, more_convs", "sequences": "--ask dense, sequence_convs", "steps": "--ask dense, step_more_convs",
    "searched": "--ask most, searched_convs", "searched_batches": "--ask most, model_convs",
    "steps_searched": "--ask most, step_more_convs", "zoo_sequences": "--ask full, zoo_sequence_convs",
}  # fmt: skip
DTYPES = {"tf32": "tf32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
TREES = 5  # of each family
BATCHES = 3  # of each shape at most, for one tree
SHARE = 0.6  # of the features that a cut may be made by
DEPTH, LEAST, GAIN = 40, 2, 0.01
LEFT_OUT = 7  # one shape in so many of networks() is for --check only
MOST_AT = 32  # the batch size of `most` in heuristics.jsonl.gz
RARE = 4  # formulas that are best for no more rows are left out
CLOSE_BYTES, CLOSE = 1 << 20, 0.004  # a workspace this near is as good as right: bytes, and share of what is touched
BLOCK_BYTES = 512
FLAT_BYTES, FLAT = 4096, 0.002  # how far an answer may be off the straight piece through its neighbours


Needs = Callable[[Problem], list[int]]


class Row(NamedTuple):
    """One problem with the workspace that it truly takes."""

    problem: Problem
    bytes: int
    size: int  # bytes of the operands


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    # those that the trees see, but whose answers are not kept: drawn at random, or of single training steps
    fitted_only, searched_only = answers("sequences", "steps"), largest_answers("searched", "steps_searched")
    asked, searched = answers("heuristics", "dense"), largest_answers("heuristics", "most", "searched_batches")
    more, left_out = networks()
    if arguments.check:
        check([*asked, *fitted_only], [*searched, *searched_only], left_out)
        return
    trees = fit([*asked, *fitted_only, *more], cudnn.needs, lines=True)
    search_trees = fit([*searched, *searched_only], cudnn_search.needs)
    body = {
        "source": SOURCE, "features": cudnn.FEATURES, "formulas": cudnn.FORMULAS, "trees": trees,
        "answers": exceptions(trees, [*more, *asked, *answers("zoo_sequences")], cudnn.needs), "search_formulas": cudnn_search.FORMULAS,
        "search_trees": search_trees, "search_answers": exceptions(search_trees, searched, cudnn_search.needs),
    }  # fmt: skip
    TABLE.write_bytes(gzip.compress(json.dumps(body, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{len(body['answers'])} and {len(body['search_answers'])} exceptions, {TABLE.stat().st_size} bytes")


# ---- rows ---------------------------------------------------------------------------------------------------------


def answers(*names: str) -> list[list[Row]]:
    """What PyTorch takes: for each problem without its batch size, a row for each batch size, rising."""
    return gathered(
        (record, direction, batch, size)
        for record in records(*names)
        for direction, sizes in zip(directions(record["t"]), record.get("bytes_all", record["bytes"]), strict=True)
        for batch, size in zip(record["n"], sizes, strict=True)
    )


def networks() -> tuple[list[list[Row]], list[list[Row]]]:
    """Those of many more networks: what counts besides, and a seventh of the shapes that is left for a check."""
    asked = answers("more", "more_batches")
    shapes = sorted({shape(rows[0].problem) for rows in asked})
    left_out = set(random.Random(0).sample(shapes, len(shapes) // LEFT_OUT))
    chosen = [shape(rows[0].problem) in left_out for rows in asked]
    return (
        [rows for rows, out in zip(asked, chosen, strict=True) if not out],
        [rows for rows, out in zip(asked, chosen, strict=True) if out],
    )


def largest_answers(*names: str) -> list[list[Row]]:
    """The same for the largest workspace of all engines."""
    return gathered(
        (record, direction, batch, size)
        for record in records(*names)
        for direction, sizes in zip(directions(record["t"]), record.get("most", ((), (), ())), strict=True)
        for batch, size in ([(MOST_AT, sizes)] if "most_at" in record else zip(record["n"], sizes, strict=False))
    )


def records(*names: str) -> Iterator[dict[str, Any]]:
    """The lines of files but for their headers."""
    for name in names:
        path = GRID / f"{name}.jsonl.gz"
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            next(lines)
            yield from map(json.loads, lines)


def gathered(found: Iterable[tuple[dict[str, Any], str, int, int | None]]) -> list[list[Row]]:
    """Rows by problem, each batch size once."""
    by_key: dict[str, dict[int, Row]] = defaultdict(dict)
    for record, direction, batch, size in found:
        if size is not None:
            one = row(asked(record, direction, batch), size)
            by_key[one.problem.key][batch] = one
    return [[rows[batch] for batch in sorted(rows)] for rows in by_key.values()]


def directions(transposed: bool) -> tuple[str, str, str]:
    """Of the plain convolution, for PyTorch's forward pass, input gradient and weight gradient."""
    return ("data", "forward", "filter") if transposed else ("forward", "data", "filter")


def asked(record: dict[str, Any], direction: str, batch: int) -> Problem:
    """A line of the file as the package has it."""
    shapes = [(batch, *record["x"]), (batch, *record["y"])]
    source, result = reversed(shapes) if record["t"] else shapes
    stride, padding, dilation = (tuple(record[name]) for name in "spd")
    return Problem(direction, source, tuple(record["w"]), result, stride, padding, dilation, record["g"],
                   DTYPES[record["dtype"]], record["last"])  # fmt: skip


def row(problem: Problem, bytes_: int) -> Row:
    """A problem with its answer."""
    shapes = (problem.input, problem.weight, problem.output)
    return Row(problem, bytes_, sum(int(np.prod(shape)) for shape in shapes) * problem.item_bytes)


def sample(asked: Iterable[list[Row]], draw: random.Random) -> list[Row]:
    """A few batch sizes of each problem."""
    return [row for rows in asked for row in draw.sample(rows, min(len(rows), BATCHES))]


# ---- trees --------------------------------------------------------------------------------------------------------


def fit(asked: list[list[Row]], needs: Needs, *, lines: bool = False) -> dict[str, list[cudnn.Tree]]:
    """The trees of each family; `needs` answers the bytes under each formula. `lines`: those over sequences apart."""
    found: dict[str, list[cudnn.Tree]] = defaultdict(list)
    for number in range(TREES):
        draw = random.Random(number)
        families: dict[str, list[Row]] = defaultdict(list)
        for one in sample(asked, draw):
            line = cudnn.LINE if lines and len(one.problem.input) == 3 else ""
            families[one.problem.family + line].append(one)
        for name, members in sorted(families.items()):
            found[name].append(fit_family(members, needs, draw))
    return found


def fit_family(rows: list[Row], needs: Needs, draw: random.Random) -> cudnn.Tree:
    """One tree."""
    values = np.array([features(one.problem) for one in rows], dtype=np.int64)
    truth = np.array([one.bytes for one in rows], dtype=np.float64)[:, None]
    scale = np.array([one.size for one in rows], dtype=np.float64)[:, None] + truth
    said = np.array([needs(one.problem) for one in rows], dtype=np.float64)
    costs = np.minimum(np.abs(said - truth) / scale, 2.0)
    places, counts = np.unique(costs.argmin(1), return_counts=True)
    formulas = [int(place) for place, count in zip(places, counts, strict=True) if count > RARE] or [int(places[0])]
    # large operands decide about peaks
    costs = costs[:, formulas] * np.clip(scale / 2**24, 0.05, 4.0)
    return grow(values, costs.astype(np.float32), formulas, DEPTH, draw)


def grow(values: np.ndarray, costs: np.ndarray, formulas: list[int], depth: int, draw: random.Random) -> cudnn.Tree:
    """A tree over rows of features; `costs` has a column for each formula."""
    totals = costs.sum(0)
    best = int(totals.argmin())
    if depth == 0 or len(values) < 2 * LEAST or totals[best] < GAIN:
        return formulas[best]
    among = draw.sample(range(values.shape[1]), round(SHARE * values.shape[1]))
    found = split(values, costs, totals, among)
    if found is None or found[0] > totals[best] - GAIN:
        return formulas[best]
    _, feature, threshold = found
    low = values[:, feature] <= threshold
    below, above = (grow(values[side], costs[side], formulas, depth - 1, draw) for side in (low, ~low))
    return below if below == above and isinstance(below, int) else [feature, threshold, below, above]


def split(values: np.ndarray, costs: np.ndarray, totals: np.ndarray, among: list[int]) -> tuple[float, int, int] | None:
    """Cost after the best cut by one of these features, the feature and the largest value below it."""
    best: tuple[float, int, int] | None = None
    for feature in among:
        order = np.argsort(values[:, feature], kind="stable")
        column = values[order, feature]
        cuts = np.nonzero(column[1:] != column[:-1])[0]
        cuts = cuts[(cuts + 1 >= LEAST) & (len(column) - cuts - 1 >= LEAST)]
        if not len(cuts):
            continue
        sums = np.cumsum(costs[order], axis=0)[cuts]
        both = sums.min(1) + (totals - sums).min(1)
        place = int(both.argmin())
        if best is None or both[place] < best[0] - 1e-9:
            low, high = int(column[cuts[place]]), int(column[cuts[place] + 1])
            best = (float(both[place]), feature, max(low, min(int((low * high) ** 0.5), high - 1)))
    return best


# ---- answers that are kept ------------------------------------------------------------------------------------------


def exceptions(
    trees: dict[str, list[cudnn.Tree]], asked: Iterable[list[Row]], needs: Needs
) -> dict[str, list[cudnn.Piece]]:
    """Of the problems asked at several batch sizes, those that the trees are off for somewhere."""
    found = {}
    for rows in asked:
        if len(rows) > 1 and not all(close(by_tree(trees, one.problem, needs), one) for one in rows):
            found[rows[0].problem.key] = pieces(rows, needs)
    return found


def close(said: int, one: Row) -> bool:
    """Whether a workspace is as good as right."""
    return abs(said - one.bytes) <= min(CLOSE_BYTES, CLOSE * (one.size + one.bytes)) or max(said, one.bytes) < 1 << 16


def by_tree(trees: dict[str, list[cudnn.Tree]], problem: Problem, needs: Needs) -> int:
    """The bytes that trees say."""
    return cudnn.by_trees(cudnn.trees_of(trees, problem), problem, needs(problem))


def pieces(rows: list[Row], needs: Needs) -> list[cudnn.Piece]:
    """Pieces of neighbouring batch sizes under one formula; where none is right, straight ones through two at least."""
    found: list[cudnn.Piece] = []
    right = [matching(one, needs) for one in rows]
    start = 0
    while start < len(rows):
        end, formulas = start, right[start]
        while end + 1 < len(rows) and bool(formulas) == bool(right[end + 1]):
            if formulas and not shared(formulas, right[end + 1]):
                break
            if not formulas and not straight([(one.problem.input[0], one.bytes) for one in rows[start : end + 2]]):
                break
            end += 1
            formulas = shared(formulas, right[end])
        ends = (rows[start].problem.input[0], rows[end].problem.input[0])
        if formulas:
            found.append((*ends, *min(formulas.items())))
        else:
            found.append((*ends, -1, rows[start].bytes, rows[end].bytes))
        start = end + 1
    return found


def matching(one: Row, needs: Needs) -> dict[int, int]:
    """The formulas that say what an answer is, and by how much it is more."""
    near = max(FLAT_BYTES, FLAT * one.bytes)
    apart = {place: one.bytes - said for place, said in enumerate(needs(one.problem))}
    return {place: more for place, more in apart.items() if abs(more) <= near}


def shared(formulas: dict[int, int], others: dict[int, int]) -> dict[int, int]:
    """The formulas that are right in both, by the same rest to the block of the allocator."""
    return {
        place: more for place, more in formulas.items() if place in others and abs(others[place] - more) < BLOCK_BYTES
    }


def straight(points: list[tuple[int, int]]) -> bool:
    """Whether all points lie on the line through the outer two, and it does not fall."""
    (first, low), (last, high) = points[0], points[-1]
    slope = (high - low) / (last - first)
    return slope >= 0 and all(
        abs(low + slope * (batch - first) - size) <= max(FLAT_BYTES, FLAT * size) for batch, size in points
    )


# ---- check --------------------------------------------------------------------------------------------------------


def check(asked: list[list[Row]], searched: list[list[Row]], left_out: list[list[Row]]) -> None:
    """Errors on shapes left out, and against what was recorded."""
    print("by the package, on shapes of other networks that it was not fitted to")
    report([(cudnn.workspace_bytes(one.problem), one) for one in sample(left_out, random.Random(7))])
    for title, all_rows, needs in (("", asked, cudnn.needs), (", the largest", searched, cudnn_search.needs)):
        shapes = sorted({shape(rows[0].problem) for rows in all_rows})
        fifth = set(random.Random(0).sample(shapes, len(shapes) // 5))
        trees = fit(
            [rows for rows in all_rows if shape(rows[0].problem) not in fifth], needs, lines=needs is cudnn.needs
        )
        rows = sample((rows for rows in all_rows if shape(rows[0].problem) in fifth), random.Random(7))
        print(f"by the trees, on shapes left out{title}")
        report([(by_tree(trees, one.problem, needs), one) for one in rows])
    print("by the package, on recorded workspaces")
    report([(cudnn.workspace_bytes(one.problem), one) for one in dict.fromkeys(recorded())])


def shape(problem: Problem) -> tuple[Any, ...]:
    """What stays on one side of a split, whatever the batch size, direction, dtype and layout."""
    return (problem.input[1:], problem.weight, problem.output[1:], problem.stride, problem.dilation)


def report(pairs: list[tuple[int, Row]]) -> None:
    """By family: how far off, as a share of operands and workspace, and of all bytes; and how many are right."""
    families: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    for said, one in pairs:
        families[one.problem.family].append((said, one))
        families["all"].append((said, one))
    print(f"{'family':28}{'n':>7}{'median':>9}{'90th':>9}{'of bytes':>10}{'right':>8}")
    for name, members in sorted(families.items()):
        shares = sorted(abs(said - one.bytes) / (one.size + one.bytes) for said, one in members)
        whole = sum(abs(said - one.bytes) for said, one in members) / sum(one.size + one.bytes for _, one in members)
        right = sum(close(said, one) for said, one in members) / len(members)
        print(
            f"{name:28}{len(members):7}{median(shares):9.4f}{shares[int(0.9 * len(shares))]:9.4f}{whole:10.4f}{right:8.1%}"
        )


def recorded() -> Iterator[Row]:
    """Every problem of the recorded operators, with the workspace that was allocated for it."""
    with gzip.open(GRID / "measured.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            usable = record.get("n", "").startswith("aten.convolution") and record.get("e") is not None
            if not usable or record.get("first") or record["c"].get("benchmark"):
                continue
            if isinstance(record["a"].get("input"), dict):
                asked = problems(as_op(record))
                yield from (row(one, size) for one, size in zip(asked, workspaces(record), strict=False))


def workspaces(record: dict[str, Any]) -> list[int]:
    """Of each result but the bias: what is allocated last after it and freed at once."""
    results = [output[3] for output in record["o"] if output]
    mask = record["a"].get("output_mask", [True])
    found: list[int] = []
    events, number = record["e"], 0
    for place, event in enumerate(events):
        if event <= 0:
            continue
        number += 1
        if number in results:
            found.append(0)
        elif found and not found[-1] and place + 1 < len(events) and events[place + 1] == -number:
            found[-1] = event
    return found[: sum(map(bool, mask[:2]))]


def as_op(record: dict[str, Any]) -> Op:
    """A measured record as the trace has it."""
    tensors = [tensor(value["t"]) for value in record["a"].values() if isinstance(value, dict)]
    attributes = {name: value for name, value in record["a"].items() if not isinstance(value, dict)}
    attributes["allow_tf32"] = bool(record["c"].get("conv_tf32", True))
    attributes["benchmark"] = bool(record["c"].get("benchmark", False))
    outputs = tuple(tensor(output[:3]) if output else Tensor((), "float32") for output in record["o"])
    return Op(record["n"], "forward", 0, tuple(tensors), outputs, attributes)


def tensor(described: list[Any]) -> Tensor:
    """A recorded tensor."""
    shape, dtype, stride = described
    return Tensor(tuple(shape), dtype, tuple(stride or ()))


if __name__ == "__main__":
    main()
