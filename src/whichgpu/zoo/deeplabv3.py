"""DeepLabv3+ with Xception-65 on PASCAL VOC: crops of 513 x 513, 21 classes, fp32, SGD with momentum 0.9.

Settings: the DeepLabv3 row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with
https://github.com/tensorflow/models/tree/master/research/deeplab: xception_65, atrous rates 6, 12 and 18, output
stride 16, decoder output stride 4 (which makes it v3+), crops of 513 x 513, no fp16; momentum 0.9 and weight decay 4e-5
are that code's defaults, and the loss is over logits resized to the crop.
Model: Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation", sections 3.1
and 3.2, https://arxiv.org/abs/1802.02611. Backbone: timm `xception65`. Size: Liu et al., "Auto-DeepLab", table 4
(https://arxiv.org/abs/1901.02985) gives 43.48 million parameters with Xception-71.
Differences: the norm after global pooling uses running statistics for a batch of one, which has no variance.
Options: those of every adapter, `size`, `classes`, `backbone` (xception41, xception65 or xception71), `width` (channels
of the pyramid and decoder).
"""

from __future__ import annotations

from collections.abc import Mapping

import timm
import torch
import torch.nn.functional as F
from torch import nn

from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, read_settings, refuse_checkpoint
from whichgpu.zoo.training import Recipe, make_workload, random_images

NAME = "deeplabv3"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "4e-5", "size": "513"}
BACKBONES = ("xception41", "xception65", "xception71")
ATROUS_RATES = (6, 12, 18)  # at output stride 16


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="images",
        default_batch_size=4,
        description="DeepLabv3+ with Xception-65, semantic segmentation",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = refuse_checkpoint(NAME, read_settings(reader))
    size, classes = reader.count("size", 513), reader.count("classes", 21)
    backbone, width = reader.choice("backbone", "xception65", BACKBONES), reader.count("width", 256)
    reader.finish()

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        images = random_images((count, 3, size, size), device, dtype)
        return images, torch.randint(0, classes, (count, size, size), device=device)

    return Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: DeepLab(backbone, classes, width),
        make_batch=make_batch,
        compute_loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer_arguments={"lr": 1e-4},
        sizes={"size": size},
    )


class DeepLab(nn.Module):
    """Xception, the pyramid of atrous convolutions over its last features, and the decoder at stride 4."""

    def __init__(self, backbone: str, classes: int, width: int) -> None:
        super().__init__()
        self.backbone = timm.create_model(backbone, features_only=True, output_stride=16, out_indices=(1, 4))
        shallow, deep = self.backbone.feature_info.channels()
        self.pyramid = AtrousPyramid(deep, width)
        self.reduce = convolution(shallow, 48)
        self.decoder = nn.Sequential(separable(width + 48, width), separable(width, width))
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of every pixel."""
        shallow, deep = self.backbone(images)
        context = resize(self.pyramid(deep), shallow)
        hidden = self.decoder(torch.cat([context, self.reduce(shallow)], dim=1))
        return resize(self.classifier(hidden), images)


class AtrousPyramid(nn.Module):
    """A point-wise convolution, three atrous ones and the image's mean, side by side; then brought together."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        atrous = [separable(channels, width, rate) for rate in ATROUS_RATES]
        self.branches = nn.ModuleList([convolution(channels, width), *atrous])
        self.pooled = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), PooledNorm(width), nn.ReLU(inplace=True))
        self.project = nn.Sequential(convolution((len(self.branches) + 1) * width, width), nn.Dropout(0.1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Features of the same height and width."""
        mean = resize(self.pooled(F.adaptive_avg_pool2d(hidden, 1)), hidden)
        return self.project(torch.cat([mean, *(branch(hidden) for branch in self.branches)], dim=1))


class PooledNorm(nn.BatchNorm2d):
    """Batch norm over one value for each image and channel, which for one image has only its running statistics."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalised, with the batch's statistics where there are any."""
        if len(hidden) > 1:
            return super().forward(hidden)
        return F.batch_norm(hidden, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


def convolution(inputs: int, outputs: int, size: int = 1, **arguments: int) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    padding = arguments.get("dilation", 1) * (size // 2)
    layer = nn.Conv2d(inputs, outputs, size, padding=padding, bias=False, **arguments)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def separable(inputs: int, outputs: int, rate: int = 1) -> nn.Sequential:
    """A depth-wise 3 x 3 convolution and a point-wise one, each with batch norm and ReLU."""
    return nn.Sequential(convolution(inputs, inputs, 3, groups=inputs, dilation=rate), convolution(inputs, outputs))


def resize(hidden: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Bilinear, to the height and width of `like`, with corners aligned as in the original code."""
    return F.interpolate(hidden, like.shape[-2:], mode="bilinear", align_corners=True)
