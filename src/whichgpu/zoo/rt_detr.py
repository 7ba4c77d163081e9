"""RT-DETR with a ResNet-50 on COCO: 640 x 640 images, fp32, AdamW, with a moving average of the weights.

Settings: https://github.com/lyuwenyu/RT-DETR, rtdetr_pytorch/configs/rtdetr/rtdetr_r50vd_6x_coco.yml with its includes:
AdamW with learning rate 1e-4 (1e-5 for the backbone) and weight decay 1e-4 (none for norms and biases of encoder and
decoder), gradients clipped to norm 0.1, a moving average of the weights, 4 images a card, no mixed precision, the
backbone's batch norms frozen, 300 queries and 100 denoising ones. Images there vary from 480 to 800 pixels from batch to
batch; here they keep the 640 of the evaluation. Boxes are matched to queries by scipy, on the CPU.
Model: Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", table 2 (42 million parameters),
https://arxiv.org/abs/2304.08069; transformers RTDetrForObjectDetection with its default configuration and 80 classes.
Options: those of every adapter, `size`, `objects` (an image) and any attribute of RTDetrConfig.
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
from whichgpu.zoo.training import Recipe, make_workload, random_images

NAME = "rt-detr"
SETTINGS = {
    "precision": "fp32",
    "optimizer": "adamw",
    "weight_decay": "1e-4",
    "clip": "0.1",
    "size": "640",
    "objects": "7",
}
CLASSES = 80


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    size, objects = reader.count("size", 640), reader.count("objects", 7)
    config = configure({"model_type": "rt_detr", "num_labels": CLASSES}, reader)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        images = random_images((count, 3, size, size), device, dtype)
        return {"pixel_values": images, "labels": [_target(objects, device) for _ in range(count)]}

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


def _target(objects: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Labels and boxes (centre and sides, as shares of the image's)."""
    centre = torch.rand(objects, 2, device=device) * 0.5 + 0.25
    side = torch.rand(objects, 2, device=device) * 0.4 + 0.05
    labels = torch.randint(0, CLASSES, (objects,), device=device)
    return {"class_labels": labels, "boxes": torch.cat([centre, side], dim=1)}


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
