"""NASNet-A-Large on ImageNet: 331 x 331 images, 1000 classes, fp32, SGD with momentum 0.9, weight decay 1e-4.

Settings: the NASNet-Large row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with tf_cnn_benchmarks
(https://github.com/chuanli11/benchmarks, a fork of https://github.com/tensorflow/benchmarks): momentum SGD,
weight decay 1e-4, no fp16. The input size is the architecture's own, not stated there.
Model: Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", table 2 (NASNet-A
(6 @ 4032), 88.9 million parameters), https://arxiv.org/abs/1707.07012; timm `nasnetalarge`, which has no
auxiliary head.
Differences: the original has drop-path, and an auxiliary head (a few megabytes) while it trains. `code=2019` keeps for the
backward pass what TensorFlow does (written_out.py), three quarters of the activations, and runs as a graph, in which a result
is freed after its last use and not at the end of the Python function that made it.
Options: those of `timm:`, `code` (today or 2019).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from whichgpu.workload import Workload
from whichgpu.zoo import timm_models
from whichgpu.zoo.written_out import in_2019, read_code

NAME = "nasnet-large"
MODEL = "nasnetalarge"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "1e-4", "size": "331"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    given = {**SETTINGS, **options}
    old = read_code(NAME, given)
    recipe = timm_models.make_recipe(MODEL, given, NAME)
    in_tensorflow = {
        "make_model": lambda: as_graph(recipe.make_model()),
        "compute_loss": in_2019("tensorflow 1.13", timm_models.compute_loss),
    }
    return timm_models.build(
        MODEL,
        given,
        training=in_tensorflow if old else None,
        name=NAME,
        description="NASNet-A-Large, image classification",
        default_batch_size=8,
    )


def as_graph(model: torch.nn.Module) -> torch.nn.Module:
    """The same layers, in an order of operators in which each frees what nobody reads any more."""
    return fx.GraphModule(model, LayersOnly().trace(model))


class LayersOnly(fx.Tracer):
    """Looks into modules that hold others, and takes all others as operators."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Whether it is an operator."""
        return next(m.children(), None) is None
