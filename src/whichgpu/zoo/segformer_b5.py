"""SegFormer-B5 on Cityscapes: crops of 1024 x 1024, 19 classes, fp32, AdamW.

Settings: https://github.com/NVlabs/SegFormer, local_configs/segformer/B5/segformer.b5.1024x1024.city.160k.py: crop
1024 x 1024, one image a card, AdamW with learning rate 6e-5 and weight decay 0.01 (none for norms), cross entropy over
the labels at full resolution, fp32, no clipping.
Read there (2026-12): crop, batch, optimizer, decay, loss, a head of 768. Ours: one card, so plain instead of synchronized
batch norm.
Model: Xie et al., "SegFormer", tables 1 and 6 (84.7 million parameters), https://arxiv.org/abs/2105.15203; transformers
SegformerForSemanticSegmentation with the configuration of nvidia/segformer-b5-finetuned-cityscapes-1024-1024.
Options: those of every adapter, `size`, `classes`, `data` (Cityscapes) and any attribute of SegformerConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import SegformerForSemanticSegmentation

from whichgpu.workload import Workload
from whichgpu.zoo.hf_models import Plan, make_workload
from whichgpu.zoo.real_data import cityscapes, stacked

NAME = "segformer-b5"
CONFIG = {
    "depths": "[3, 6, 40, 3]",
    "hidden_sizes": "[64, 128, 320, 512]",
    "decoder_hidden_size": "768",
    "drop_path_rate": "0.1",
}
SETTINGS = {
    "precision": "fp32",
    "optimizer": "adamw",
    "weight_decay": "0.01",
    "size": "1024",
    "classes": "19",
}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    given = {"task": "image-classification", **CONFIG, **SETTINGS, **options}
    data = given.pop("data", None)
    plan = Plan("segformer", given, where=NAME)
    own = plan.recipe()
    samples = cityscapes(data, NAME, (plan.size, plan.size)) if data is not None else None

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        if samples is not None:
            images, labels = zip(*samples.take(count), strict=True)
            return {
                "pixel_values": stacked(list(images), device, dtype, False),
                "labels": torch.stack(labels).to(device),
            }
        images = torch.randn((count, 3, plan.size, plan.size), device=device, dtype=dtype)
        labels = torch.randint(0, plan.classes, (count, plan.size, plan.size), device=device)
        return {"pixel_values": images, "labels": labels}

    recipe = replace(
        own,
        make_model=lambda: plan.build_model(SegformerForSemanticSegmentation),
        make_batch=make_batch,
        parameter_groups=parameter_groups,
    )
    description = "SegFormer-B5, semantic segmentation"
    return make_workload(plan, recipe, name=NAME, unit="images", description=description, default_batch_size=1)


def parameter_groups(model: torch.nn.Module) -> Iterable[dict[str, Any]]:
    """Parameters that decay, and norms, which do not."""
    norms = [weight for name, weight in model.named_parameters() if "norm" in name]
    others = [weight for name, weight in model.named_parameters() if "norm" not in name]
    return [{"params": others}, {"params": norms, "weight_decay": 0.0}]
