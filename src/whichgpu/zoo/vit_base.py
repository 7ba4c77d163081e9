"""ViT-B/16 on ImageNet: 224 x 224 images, 1000 classes, fp32, AdamW with weight decay 0.05.

Model: Dosovitskiy et al., "An Image is Worth 16x16 Words", table 1 (86 million parameters),
https://arxiv.org/abs/2010.11929; timm `vit_base_patch16_224`. Optimizer: training on ImageNet alone follows
DeiT (AdamW, weight decay 0.05; table 9), https://arxiv.org/abs/2012.12877. Options: those of `timm:`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models

MODEL = "vit_base_patch16_224"
SETTINGS = {"precision": "fp32", "optimizer": "adamw", "weight_decay": "0.05", "size": "224"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    description = "ViT-B/16, image classification"
    return timm_models.build(MODEL, {**SETTINGS, **options}, name="vit-base", description=description)
