"""ViT-L/16 on ImageNet, fine-tuned after MAE: 224 x 224 images, 1000 classes, fp16 autocast, AdamW.

Settings: https://github.com/facebookresearch/mae, FINETUNE.md (ViT-Large) and main_finetune.py: 32 images a card, AdamW with
weight decay 0.05 (none for biases and norms), learning rates that fall from layer to layer by 0.75 (so each layer has
parameter groups of its own), stochastic depth 0.2, automatic mixed precision with a gradient scaler, no clipping. Mixup
changes labels only and is left out; so is the global average in place of the class token.
Read there (FINETUNE.md, 2026-12): batch, decay, fall of rates, stochastic depth, mixed precision. Ours: what is left out.
Model: Dosovitskiy et al., "An Image is Worth 16x16 Words", table 1 (304 million parameters without the classifier),
https://arxiv.org/abs/2010.11929; timm `vit_large_patch16_224`. Options: those of `timm:`, and `model` (another architecture with
the same settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from timm.optim import param_groups_layer_decay

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models

MODEL = "vit_large_patch16_224"
SETTINGS = {"precision": "fp16", "optimizer": "adamw", "weight_decay": "0.05", "size": "224"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    settings = {"model": MODEL, **SETTINGS, **options}
    return timm_models.build(
        settings.pop("model"),
        settings,
        training={"parameter_groups": parameter_groups},
        drop_path=0.2,
        name="vit-large",
        description="ViT-L/16, image classification",
    )


def parameter_groups(model: torch.nn.Module) -> Iterable[Any]:
    """Two groups a layer: weights, and biases and norms, which do not decay."""
    groups: Iterable[Any] = param_groups_layer_decay(model, layer_decay=0.75)
    return timm_models.own_decay(groups)
