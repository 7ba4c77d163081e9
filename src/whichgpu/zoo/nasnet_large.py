"""NASNet-A-Large on ImageNet: 331 x 331 images, 1000 classes, fp32, SGD with momentum 0.9, weight decay 1e-4.

Settings: the NASNet-Large row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with tf_cnn_benchmarks
(https://github.com/chuanli11/benchmarks, a fork of https://github.com/tensorflow/benchmarks): momentum SGD,
weight decay 1e-4, no fp16. The input size is the architecture's own, not stated there.
Model: Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", table 2 (NASNet-A
(6 @ 4032), 88.9 million parameters), https://arxiv.org/abs/1707.07012; timm `nasnetalarge`, which has no
auxiliary head. Options: those of `timm:`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models

MODEL = "nasnetalarge"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "1e-4", "size": "331"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    return timm_models.build(
        MODEL,
        {**SETTINGS, **options},
        name="nasnet-large",
        description="NASNet-A-Large, image classification",
        default_batch_size=8,
    )
