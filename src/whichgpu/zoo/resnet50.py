"""ResNet-50 on ImageNet: 224 x 224 images, 1000 classes, fp32, SGD with momentum 0.9 and weight decay 1e-4.

Settings: He et al., "Deep Residual Learning for Image Recognition", section 3.4, https://arxiv.org/abs/1512.03385
(batch 256 over 8 GPUs; whichgpu asks for one). Model: timm `resnet50`, 25.6 million parameters.
Options: those of `timm:`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models

MODEL = "resnet50"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "1e-4", "size": "224"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    description = "ResNet-50, image classification"
    return timm_models.build(MODEL, {**SETTINGS, **options}, name="resnet50", description=description)
