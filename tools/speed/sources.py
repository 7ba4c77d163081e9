"""Measured operators and steps that the speed model is fitted and held against, as costs on cards.

Public tables are read from a folder of files (`--data`); measurements on an H200 from files of tools/measure_ops.py.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import random
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from speed import profiled, timed
from speed.steps import Step
from whichgpu import catalogue
from whichgpu.speed.asked import Cost, Product
from whichgpu.speed.costs import alignment, costs
from whichgpu.speed.memory_bound import NARROW
from whichgpu.speed.rates import Rates, rates
from whichgpu.speed.step_time import Demand
from whichgpu.trace import Op, Tensor

# names in public tables -> ids in the catalogue
CARDS = {
    "NVIDIA A100 80GB PCIe": "A100 80GB PCIe",
    "NVIDIA A100-PCIE-40GB": "A100 40GB PCIe",
    "NVIDIA H100 80GB HBM3": "H100 SXM 80GB",
    "NVIDIA L4": "L4",
    "Tesla P100-PCIE-16GB": "P100 PCIe 16GB",
    "Tesla P4": "P4",
    "Tesla T4": "T4",
    "Tesla V100-PCIE-32GB": "V100 PCIe 32GB",
}
NEUSIGHT = "NeuSight (Georgia Institute of Technology, 2025), PyTorch 2.1, CUDA 12.1, fp32 without TF32"


# launches that a queue takes; share of the GPU's time from which a full one may have held the host up
QUEUE, WAITS = 1000, 0.7
_PYTORCHS = {f"cudnn_{kind}": kind for name in ("batch_norm", "batch_norm_backward") for kind in (name, f"{name}_last")}
H200 = "operators on an H200, PyTorch 2.11"
# of the grids of tools/measure_ops.py
H200_OPS = tuple(Path(__file__).parent / "data" / f"{name}.jsonl.xz" for name in ("h200_ops", "h200_ops2", "h200_ops3"))


class Measured(NamedTuple):
    """Seconds of an operator on a card."""

    source: str
    group: str  # kind of operator, for the report
    card: Rates
    costs: tuple[Cost, ...]
    seconds: float
    start: str = ""  # whose launch is in the seconds: a name of a constant that belongs to the measurement alone
    asked: Demand | None = None  # of a whole step; its costs are `costs`
    factor: str = ""  # whose other implementation is in the seconds: likewise
    host: bool = False  # the seconds are those of the host, to queue the step
    times: tuple[int, ...] = ()  # how often each of the costs, where that is not once
    workload: str = ""  # whose step it is, or is part of
    share: float = 0.0  # of a step, that it is a part of
    session: str = ""  # whose host's speed is in the seconds, where that is not the reference's

    def parts(self) -> Iterator[tuple[Iterable[tuple[Cost, int]], Mapping[str, float]]]:
        """The costs, and how often each, with what the host launches, in parts that follow each other."""
        if self.asked is None:
            yield zip(self.costs, self.times or (1,) * len(self.costs), strict=True), {}
            return
        for part in self.asked.parts or (self.asked,):
            yield part.costs.items(), part.launches


@cache
def card_named(name: str) -> Rates:
    """The rates of a card of the catalogue."""
    return rates(catalogue.load().find(CARDS.get(name, name)))


def measured_step(step: Step) -> Measured:
    """A kept step as a point; other implementations differ by a factor for each workload and precision."""
    factor = "" if step.table.startswith("H200") else f"{step.table} {step.workload}"
    card = card_named(step.card)
    return Measured(
        step.table, step.workload, card, tuple(step.asked.costs), step.seconds, asked=step.asked, factor=factor,
        workload=step.workload, session=timed.session_of(step),
    )  # fmt: skip


def neusight_kernels(folder: Path, most: int, seed: int = 0) -> Iterator[Measured]:
    """A sample of NeuSight's operators: at most `most` of each kind on each card."""
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    with gzip.open(folder / "neusight_kernels.csv.gz", "rt") as stream:
        for row in csv.DictReader(stream):
            rows.setdefault((row["op"], row["gpu"]), []).append(row)
    shuffle = random.Random(seed)
    for (name, gpu), found in sorted(rows.items()):
        card = card_named(gpu)
        least = sorted(float(row["latency_ms"]) for row in found)[len(found) // 100] / 1e3
        some = [row for row in found if float(row["latency_ms"]) / 1e3 > 3 * least] or found
        for row in shuffle.sample(some, min(most, len(some))):
            yield Measured(
                NEUSIGHT, name, card, (_neusight_cost(row),), float(row["latency_ms"]) / 1e3, f"{name}@{gpu}"
            )


def _neusight_cost(row: dict[str, str]) -> Cost:
    name = row["op"]
    if name in ("bmm", "linear"):
        groups, rows, columns, inner = (int(float(row[key])) for key in "BMNK")
        product = Product(groups, rows, columns, inner)
        bytes_ = 4 * groups * (rows * inner + inner * columns * (name == "bmm") + rows * columns)
        if name == "linear":
            product = Product(1, groups * rows, columns, inner)
            bytes_ += 4 * inner * columns
        flops = 2.0 * groups * rows * columns * inner
        kind = ("batched_product" if product.groups > 1 else "product") + alignment(
            [Tensor((1, inner), "float32"), Tensor((1, columns), "float32")], "fp32"
        )
        return Cost(kind, "fp32", flops, bytes_, 1, product)
    elements = int(float(row["B"])) * int(float(row["H"]))
    kinds = {"ln": "layer_norm", "softmax": "softmax"}
    reads = 3 if name in ("add", "mul", "div", "pow") else 2
    kind, units = kinds.get(name, "elementwise"), elements
    if name == "ln":
        kind, units = kind + ("_narrow" if float(row["H"]) < NARROW else ""), int(float(row["B"]))
    return Cost(kind, "fp32", 0.0, 4 * reads * elements, 1, units=units)


def neusight_convolutions(folder: Path, most: int, seed: int = 0) -> Iterator[Measured]:
    """A sample of NeuSight's convolutions, all of 3 x 3, forward."""
    rows: dict[str, list[dict[str, str]]] = {}
    with gzip.open(folder / "neusight_conv.csv.gz", "rt") as stream:
        for row in csv.DictReader(stream):
            rows.setdefault(row["Device"], []).append(row)
    shuffle = random.Random(seed)
    for gpu, found in sorted(rows.items()):
        card = card_named(gpu)
        for row in shuffle.sample(found, min(most, len(found))):
            names = ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding")
            batch, inner, outer, kernel, side, stride, padding = (int(float(row[name])) for name in names)
            to = (side + 2 * padding - kernel) // stride + 1
            if to <= 0:
                continue
            op = Op(
                name="aten.convolution.default",
                phase="forward",
                step=0,
                inputs=(
                    Tensor((batch, inner, side, side), "float32"),
                    Tensor((outer, inner, kernel, kernel), "float32"),
                ),
                outputs=(Tensor((batch, outer, to, to), "float32"),),
                attributes={"stride": [stride, stride], "groups": 1, "allow_tf32": False},
            )
            yield Measured(NEUSIGHT, "conv", card, costs(op), float(row["Latency"]) / 1e3, f"conv@{gpu}")


def measured_ops(paths: Iterable[Path] = H200_OPS, card: str = "H200 SXM 141GB") -> Iterator[Measured]:
    """Points of tools/measure_ops.py."""
    where = card_named(card)
    for path in paths:
        with lzma.open(path, "rt") as stream:
            rows = [json.loads(line) for line in stream]
        for row in rows:
            if "warm_us" not in row:
                continue
            found = costs(operator(row), tf32_matmul=row["tf32"])
            # in steps some operands are still in the cache, some are not
            seconds = (row["warm_us"] * row.get("cold_us", row["warm_us"])) ** 0.5 / 1e6
            # called by its name PyTorch's own kernel runs, where a step takes cuDNN's
            found = tuple(cost._replace(kind=_PYTORCHS.get(cost.kind, cost.kind)) for cost in found)
            if found:
                yield Measured(H200, row["group"], where, found, seconds)


def profiled_steps(steps: Iterable[Step]) -> Iterator[Measured]:
    """What classes of operators took inside steps of an H200 that are fitted to."""
    profiles = profiled.read()
    for step in steps:
        profile = profiles.get((step.workload.removeprefix("truth:"), step.batch_size))
        if profile is None:
            continue
        for found in profiled.by_class(step, profile):
            yield Measured(
                step.table, f"in steps: {found.name}", card_named(step.card), tuple(found.costs), found.seconds,
                times=tuple(found.costs.values()), workload=step.workload, share=found.share,
            )  # fmt: skip


def host_times(steps: list[Step]) -> Iterator[Measured]:
    """What a quiet host took to queue steps of an H200 that never wait for the card, and did not for a full queue."""
    for step, row in timed.quiet_rows(steps):
        held_up = row.get("host_s", 0.0) > WAITS * row.get("busy_s", 0.0) and row.get("kernels", 0) > QUEUE
        if step.asked.parts or not row.get("host_s") or held_up:
            continue
        card = card_named(step.card)
        yield Measured(
            step.table, "host", card, tuple(step.asked.costs), row["host_s"], asked=step.asked, host=True,
            workload=step.workload, session=timed.session_of(step),
        )  # fmt: skip


def operator(row: dict[str, Any]) -> Op:
    """A point of the grid as the trace has it."""
    made = [tuple(Tensor(tuple(s), d, tuple(t)) for s, d, t in row[side]) for side in ("in", "out")]
    attributes = dict(row["attributes"])
    if "convolution" in row["op"]:
        attributes["allow_tf32"] = row["tf32_convolution"]
    name = row["op"]
    if not name.startswith(("aten.", "prims.", "torchvision.")):
        name = f"aten.{name}"
    outputs = () if "_foreach" in name and name.split(".")[1].endswith("_") else made[1]
    return Op(name, "forward", 0, made[0], outputs, attributes)
