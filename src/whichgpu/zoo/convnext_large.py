"""ConvNeXt-L on ImageNet: 224 x 224 images, 1000 classes, fp32, AdamW, with a moving average of the weights.

Settings: https://github.com/facebookresearch/ConvNeXt, TRAINING.md (ConvNeXt-L on ImageNet-1K) and main.py: 64 images a card,
AdamW with weight decay 0.05 (none for biases, norms and layer scale), stochastic depth 0.5, a moving average of the
weights, no automatic mixed precision, no clipping. Mixup changes labels only and is left out.
Read there (TRAINING.md, 2026-12): 64 images a card, stochastic depth 0.5, the moving average, mixed precision only on
request. Not read again: weight decay and what it leaves out (main.py). Ours: nothing else.
Model: Liu et al., "A ConvNet for the 2020s", table 1 (198 million parameters), https://arxiv.org/abs/2201.03545; timm
`convnext_large`. Options: those of `timm:`, and `model` (another architecture with
the same settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from timm.optim import param_groups_weight_decay

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models

MODEL = "convnext_large"
SETTINGS = {"precision": "fp32", "optimizer": "adamw", "weight_decay": "0.05", "size": "224"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    settings = {"model": MODEL, **SETTINGS, **options}
    return timm_models.build(
        settings.pop("model"),
        settings,
        training={"parameter_groups": parameter_groups, "average": 0.9999},
        drop_path=0.5,
        name="convnext-large",
        description="ConvNeXt-L, image classification",
        default_batch_size=64,
    )


def parameter_groups(model: torch.nn.Module) -> Iterable[Any]:
    """Weights, and biases and norms, which do not decay."""
    return timm_models.own_decay(param_groups_weight_decay(model))
