"""Swin-L on ImageNet, fine-tuned: 224 x 224 images, 1000 classes, fp16 autocast, AdamW.

Settings: https://github.com/microsoft/Swin-Transformer,
configs/swin/swin_large_patch4_window7_224_22kto1k_finetune.yaml with config.py and main.py: AdamW with weight decay 1e-8
(none for biases, norms and position tables), stochastic depth 0.2, gradients clipped to norm 5, automatic mixed precision
with a gradient scaler, 64 images a card. Mixup changes labels only and is left out.
Read there (the yaml, 2026-12): decay, stochastic depth. Not read again: clipping, batch and mixed precision (config.py).
Ours: nothing else.
Model: Liu et al., "Swin Transformer", table 1 (197 million parameters), https://arxiv.org/abs/2103.14030; timm
`swin_large_patch4_window7_224`. Options: those of `timm:`, and `model` (another architecture with
the same settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from timm.optim import param_groups_weight_decay

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models

MODEL = "swin_large_patch4_window7_224"
SETTINGS = {"precision": "fp16", "optimizer": "adamw", "weight_decay": "1e-8", "clip": "5.0", "size": "224"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    settings = {"model": MODEL, **SETTINGS, **options}
    return timm_models.build(
        settings.pop("model"),
        settings,
        training={"parameter_groups": parameter_groups},
        drop_path=0.2,
        name="swin-large",
        description="Swin-L, image classification",
        default_batch_size=64,
    )


def parameter_groups(model: torch.nn.Module) -> Iterable[Any]:
    """Weights, and biases, norms and position tables, which do not decay."""
    tables = [name for name, _ in model.named_parameters() if "relative_position_bias_table" in name]
    return timm_models.own_decay(param_groups_weight_decay(model, no_weight_decay_list=tables))
