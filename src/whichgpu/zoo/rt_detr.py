"""RT-DETR with a ResNet-50 on COCO: 640 x 640 images, fp32, AdamW, with a moving average of the weights.

Settings: https://github.com/lyuwenyu/RT-DETR, rtdetr_pytorch/configs/rtdetr/rtdetr_r50vd_6x_coco.yml with its includes:
AdamW with learning rate 1e-4 (less for the backbone) and weight decay 1e-4 (none for norms and biases of encoder and
decoder), gradients clipped to norm 0.1, a moving average of the weights, 4 images a card, no mixed precision, the
backbone's batch norms frozen, 300 queries and 100 denoising ones. Images there vary from 480 to 800 pixels from batch to
batch; here they keep the 640 of the evaluation. Boxes are matched to queries by scipy, on the CPU.
Read there (optimizer.yml, 2026-12): AdamW, decay, clipping, average; the rate of the backbone differs between its versions.
Not read again: batch and queries. Ours: one image size.
Model: Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", table 2 (42 million parameters),
https://arxiv.org/abs/2304.08069; transformers RTDetrForObjectDetection with its default configuration and 80 classes.
Images have as many and as large objects as COCO's (real_data). Options: those of every adapter, `size`, `data` (COCO) and
any attribute of RTDetrConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import scipy.optimize  # noqa: F401  (the matching needs it: without it the error is to come before the work)
import torch
from transformers import RTDetrForObjectDetection

from whichgpu.workload import Workload
from whichgpu.zoo.hf_models import configure
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.real_data import centred, coco, stacked, usual_boxes
from whichgpu.zoo.training import Recipe, make_workload, random_images

NAME = "rt-detr"
SETTINGS = {
    "precision": "fp32",
    "optimizer": "adamw",
    "weight_decay": "1e-4",
    "clip": "0.1",
    "size": "640",
}
CLASSES = 80


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    size, data = reader.count("size", 640), reader.text("data")
    samples = coco(data, NAME, (size, size)) if data is not None else None
    config = configure({"model_type": "rt_detr", "num_labels": CLASSES}, reader)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        if samples is not None:
            images, boxes = zip(*samples.take(count), strict=True)
            pixels = stacked(list(images), device, dtype, False)
            return {"pixel_values": pixels, "labels": [centred(found, device) for found in boxes]}
        pixels = random_images((count, 3, size, size), device, dtype)
        labels = [centred(usual_boxes(index, device, CLASSES), device) for index in range(count)]
        return {"pixel_values": pixels, "labels": labels}

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: RTDetrForObjectDetection(config),
        make_batch=make_batch,
        compute_loss=lambda model, batch: model(**batch).loss,
        optimizer_arguments={"lr": 1e-4},
        parameter_groups=parameter_groups,
        average=0.9999,
        sizes={"size": size},
    )
    return make_workload(recipe, unit="images", description="RT-DETR R50, object detection", default_batch_size=4)


def parameter_groups(model: torch.nn.Module) -> Iterable[dict[str, Any]]:
    """The backbone, the norms and biases of the rest, which do not decay, and the rest."""
    groups: dict[str, list[torch.nn.Parameter]] = {"backbone": [], "plain": [], "rest": []}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            plain = "norm" in name or name.endswith("bias")
            groups["backbone" if ".backbone." in name else "plain" if plain else "rest"].append(weight)
    return [
        {"params": groups["backbone"], "lr": 1e-5},
        {"params": groups["plain"], "weight_decay": 0.0},
        {"params": groups["rest"]},
    ]
