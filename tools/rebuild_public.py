"""Rebuilds published training speeds as what their steps ask of a card, and keeps them for tools/fit_speed.py.

    python tools/rebuild_public.py --data FOLDER

FOLDER holds lambda2019_raw_throughput_by_batch.csv and lambda_pytorch.csv. A row is rebuilt from a workload of the zoo at its own
batch size, precision and attention; rows whose card the catalogue does not know, or whose settings are not known, are left out
and counted. Also keeps the steps that were measured on an H200, those that are held out from every fit apart. Needs PyTorch and the zoo's libraries; minutes.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from compare_speed import Demands, kept_steps, measured_here
from speed.steps import FILE, Step, load, save
from whichgpu import catalogue
from whichgpu.errors import WhichGpuError
from whichgpu.speed.asked import Cost
from whichgpu.speed.step_time import Demand

_EAGER = "attention=eager"  # written out, as it was before 2023
_LARGE = f"bert-finetune?hidden_size=1024&num_hidden_layers=24&num_attention_heads=16&intermediate_size=4096&{_EAGER}"
_CODE = "code=2019"  # the operators of the implementation that was timed, its fp16 and its optimizer, where a workload has them
# published name -> workload, samples of a published batch unit; whether the rate counts samples; sentences are as long as those
# of the training set, where `code=2019` has those of the first, made-up batch
OF_2019 = {
    "NasNet Large": (f"nasnet-large?{_CODE}", 1.0, True),
    "DeepLabv3": ("deeplabv3", 1.0, True),
    "Pix2Pix HD": ("pix2pix-hd", 1.0, True),
    "StyleGAN": ("stylegan", 1.0, True),
    "MaskRCNN": (f"mask-rcnn?{_CODE}", 1.0, True),
    "BERT Base": (f"bert-base?{_CODE}", 1.0, True),
    "BERT Finetune": (f"bert-finetune?{_CODE}", 1.0, True),
    "MT-DNN": (f"mt-dnn?{_CODE}", 1.0, True),
    "Transformer Big": (f"transformer-big?{_CODE}&seq=32", 1 / 32, False),
    "Conv. Seq2Seq": (f"conv-seq2seq?{_CODE}&seq=32", 1 / 32, False),
    "unsupMT": (f"unsup-mt?{_CODE}&seq=32", 1 / 32, False),
}
LATER = {"resnet50": "resnet50?", "bert_base_squad": f"bert-finetune?{_EAGER}", "bert_large_squad": _LARGE}
PRECISIONS = {"fp32": "fp32", "tf32_default": "tf32", "amp_fp16": "fp16"}
PURE_HALF = "pure-bf16&fused=1"  # the same in the other half precision, renamed in what it asks for
# the notes' names of cards that the catalogue has several of
NAMES = {"V100": "V100 PCIe 32GB", "H200 141GB": "H200", "RTX 3080": "RTX 3080 10GB"}


def of_2019(folder: Path) -> Iterator[tuple[str, str, str, int, float, bool]]:
    """Table, card, workload, batch size, rate, and whether it counts samples: the notes behind the article of 2020."""
    with (folder / "lambda2019_raw_throughput_by_batch.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["status"] == "ok" and row["num_gpus"] == "1" and row["model"] in OF_2019:
                workload, samples, counts = OF_2019[row["model"]]
                batch = round(float(row["batch_size"]) * samples)
                yield "Lambda 2019", row["gpu"], workload, batch, float(row["throughput"]), counts


def of_later(folder: Path) -> Iterator[tuple[str, str, str, int, float, bool]]:
    """The same of PyTorch on one card, in containers of 2020 to 2025."""
    with (folder / "lambda_pytorch.csv").open() as stream:
        for row in csv.DictReader(stream):
            base = LATER.get(row["model"])
            if base is None or row["num_gpus"] != "1" or row["flag"]:
                continue
            if row["model"] == "resnet50" and row["precision"] == "FP16":  # of an older script, with other settings
                continue
            precision = PRECISIONS[row["effective_precision"]]
            if row["model"] != "resnet50" and precision == "fp16":
                precision = PURE_HALF  # apex's level O2: weights and activations in fp16, a fused optimizer
            workload = f"{base}{'' if base.endswith('?') else '&'}precision={precision}"
            yield "Lambda 2020-2025", row["gpu"], workload, int(row["batch_size"]), float(row["throughput"]), True


def in_fp16(asked: Demand) -> Demand:
    """The same in the other half precision."""

    def renamed(costs: Mapping[Cost, int]) -> dict[Cost, int]:
        return {cost._replace(pipe="fp16" if cost.pipe == "bf16" else cost.pipe): n for cost, n in costs.items()}

    parts = tuple(part._replace(costs=renamed(part.costs)) for part in asked.parts)
    return Demand(renamed(asked.costs), asked.launches, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    cards = catalogue.load()
    kept: list[Step] = []
    left: Counter[str] = Counter()
    was = {(step.workload, step.batch_size): step.asked for step in load() if step.table.startswith("H200")}
    demands = Demands()
    try:
        for read in (of_2019, of_later):
            for table, name, workload, batch, rate, counts in read(arguments.data):
                try:
                    gpu = cards.find(NAMES.get(name, name))
                    asked = demands.of(workload, batch, gpu.capability)
                    asked = in_fp16(asked) if PURE_HALF in workload else asked
                except WhichGpuError as error:
                    left[str(error)[:100]] += 1
                    continue
                kept.append(
                    Step(table, workload.replace(PURE_HALF, "fp16"), batch, gpu.name, batch / rate, counts, asked)
                )
        for row in [*measured_here(), *kept_steps()]:
            try:
                asked = demands.of(row.workload, row.batch_size)
            except WhichGpuError as error:
                # what was traced before stays: no measurement is lost for want of memory here
                before = was.get((row.workload, row.batch_size))
                if before is None:
                    left[str(error)[:100]] += 1
                    continue
                asked = before
            kept.append(Step(row.source, row.workload, row.batch_size, row.card.name, row.step_s, True, asked))
    finally:
        demands.close()
    save(kept)
    print(f"{len(kept)} rows in {FILE.name}, {FILE.stat().st_size} bytes; left out:")
    for reason, count in left.most_common():
        print(f"  {count:4} {reason}")


if __name__ == "__main__":
    main()
