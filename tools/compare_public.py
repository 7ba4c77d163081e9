"""Predicted against published step times of other cards: what Lambda measured in 2019 at each batch size, and later tables.

    python tools/compare_public.py --data FOLDER [--constants FILE] [--verbose]

FOLDER holds lambda2019_raw_throughput_by_batch.csv and lambda_pytorch.csv. The workloads are rebuilt from the zoo at the row's own
batch and precision; frameworks were others (TensorFlow 1.13, PyTorch 1.0), so that ratios between cards say more than seconds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Iterator
from math import log
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from compare_speed import CONSTANTS, Demands
from whichgpu import catalogue
from whichgpu.errors import WhichGpuError
from whichgpu.speed.rates import rates
from whichgpu.speed.step_time import predict

BASELINE = "Quadro RTX 8000"
# published name -> workload, samples of a published batch unit
WORKLOADS_2019 = {
    "NasNet Large": ("nasnet-large", 1.0),
    "DeepLabv3": ("deeplabv3", 1.0),
    "Pix2Pix HD": ("pix2pix-hd", 1.0),
    "StyleGAN": ("stylegan", 1.0),
    "MaskRCNN": ("mask-rcnn", 1.0),
    "BERT Base": ("bert-base", 1.0),
    "BERT Finetune": ("bert-finetune", 1.0),
    "MT-DNN": ("mt-dnn", 1.0),
    "Transformer Big": ("transformer-big", 1 / 32),
    "Conv. Seq2Seq": ("conv-seq2seq", 1 / 32),
    "unsupMT": ("unsup-mt", 1 / 32),
}
LATER = {
    ("resnet50", "fp32"): "resnet50",
    ("resnet50", "tf32_default"): "resnet50?precision=tf32",
    ("resnet50", "amp_fp16"): "resnet50?precision=fp16",
    ("bert_base_squad", "fp32"): "bert-finetune",
    ("bert_base_squad", "tf32_default"): "bert-finetune?precision=tf32",
    ("bert_base_squad", "amp_fp16"): "bert-finetune?precision=fp16",
}


class Published(NamedTuple):
    """A row that can be rebuilt."""

    table: str
    card: str
    workload: str
    batch_size: int
    per_second: float  # samples, or what else is counted: the same for all cards


def of_2019(folder: Path) -> Iterator[Published]:
    """The notes behind the article of 2020."""
    with (folder / "lambda2019_raw_throughput_by_batch.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["status"] != "ok" or row["num_gpus"] != "1" or row["model"] not in WORKLOADS_2019:
                continue
            workload, samples = WORKLOADS_2019[row["model"]]
            batch = round(float(row["batch_size"]) * samples)
            yield Published("2019", row["gpu"], workload, batch, float(row["throughput"]))


def of_later(folder: Path) -> Iterator[Published]:
    """PyTorch on one card each, in containers of 2020 to 2025."""
    with (folder / "lambda_pytorch.csv").open() as stream:
        for row in csv.DictReader(stream):
            workload = LATER.get((row["model"], row["effective_precision"]))
            if workload is None or row["num_gpus"] != "1" or row["flag"] or row["precision"] == "FP16" and row["model"] == "resnet50":
                continue
            yield Published("2020-25", row["gpu"], workload, int(row["batch_size"]), float(row["throughput"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--constants", type=Path, default=CONSTANTS)
    parser.add_argument("--only", help="one of the tables")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    constants = json.loads(arguments.constants.read_text())["constants"]
    demands = Demands(constants)
    found: dict[str, list[tuple[Published, float]]] = {}
    rows = [row for read in (of_2019, of_later) for row in read(arguments.data)]
    cards = catalogue.load()
    try:
        for row in rows:
            if arguments.only not in (None, row.table):
                continue
            try:
                gpu = cards.find(row.card)
                step = predict(demands.of(row.workload, row.batch_size, gpu.capability), rates(gpu), constants)
            except WhichGpuError as error:
                print(f"left out: {row.card} {row.workload}: {error}"[:160])
                continue
            found.setdefault(f"{row.table} {row.workload}", []).append((row, row.batch_size / step.step_s))
            if arguments.verbose:
                print(
                    f"{row.table:8} {row.workload:30} {row.card:22} {row.batch_size:5} published {row.per_second:9.2f} "
                    f"predicted {row.batch_size / step.step_s:9.2f} gpu {step.gpu_s:.4f} host {step.host_s:.4f} {step.limit}"
                )
    finally:
        demands.close()
    for name, pairs in found.items():
        _report(name, pairs)
    _pairs([pair for pairs in found.values() for pair in pairs])


def _report(name: str, pairs: list[tuple[Published, float]]) -> None:
    """Absolute errors, and errors once one factor for the whole table row is taken out."""
    logs = [log(predicted / row.per_second) for row, predicted in pairs]
    middle = median(logs)
    apart = [abs(error - middle) for error in logs]
    tail = f", 90 % {quantiles(apart, n=10)[-1]:.3f}" if len(apart) > 1 else ""
    print(f"{name:40} n {len(pairs):3} factor {2.718281828**middle:6.3f}; about it: median {median(apart):.3f}{tail}")


def _pairs(pairs: list[tuple[Published, float]]) -> None:
    """How often the order of two cards is right, where they differ by more than 15 %."""
    by_row: dict[tuple[str, str, int], list[tuple[Published, float]]] = {}
    for row, predicted in pairs:
        by_row.setdefault((row.table, row.workload, row.batch_size), []).append((row, predicted))
    right = wrong = 0
    for same in by_row.values():
        for (one, first), (other, second) in itertools.combinations(same, 2):
            if one.card != other.card and abs(log(one.per_second / other.per_second)) > log(1.15):
                agree = (one.per_second > other.per_second) == (first > second)
                right, wrong = right + agree, wrong + (not agree)
    if right + wrong:
        print(f"order of two cards: right in {right} of {right + wrong} pairs ({right / (right + wrong):.1%})")


if __name__ == "__main__":
    main()
