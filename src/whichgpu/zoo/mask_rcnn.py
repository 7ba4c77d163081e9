"""Mask R-CNN with ResNet-101 and a feature pyramid on COCO: 800 x 1333 images, 81 classes, fp32, SGD with momentum.

Settings: the MaskRCNN row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with
https://github.com/facebookresearch/maskrcnn-benchmark, configs/e2e_mask_rcnn_R_101_FPN_1x.yaml: shorter side 800, longer
at most 1333, momentum 0.9, weight decay 1e-4, stem and first stage frozen, batch norm frozen throughout.
Model: He et al., "Mask R-CNN", https://arxiv.org/abs/1703.06870; torchvision's parts (`resnet_fpn_backbone`,
`MaskRCNN`), whose defaults (2000 proposals, 512 sampled boxes an image, a quarter of them objects) are the same as there.
Size: torchvision's R-50 has 44,401,393 parameters
(https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.detection.maskrcnn_resnet50_fpn.html), and
ResNet-101 has 18.99 million more than ResNet-50.
Differences: every image is 800 x 1333, the largest that occurs; 8 objects in each, of sizes as in COCO. Weights are
random, so the last frozen norm of each block scales its branch by 0.2, as trained ones keep the sum in bounds.
Options: those of every adapter, `size` (both sides), `classes`, `objects` (an image), `backbone` (resnet18, 34, 50 or 101).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import FrozenBatchNorm2d, box_convert

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.coco_boxes import OBJECTS, random_boxes
from whichgpu.zoo.options import Options, read_settings, refuse_checkpoint
from whichgpu.zoo.training import Recipe, random_images

NAME = "mask-rcnn"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "1e-4"}
HEIGHT, WIDTH = 800, 1333
BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101")
TRAINED_STAGES = 3  # of five: the stem and the first stage are frozen
BRANCH_SCALE = 0.2


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return Workload(
        name=NAME,
        setup=recipe.setup,
        unit="images",
        default_batch_size=2,
        precision=recipe.settings.precision,
        dtypes=recipe.settings.dtypes,
        description="Mask R-CNN with ResNet-101 and a feature pyramid, instance segmentation",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = refuse_checkpoint(NAME, read_settings(reader))
    size, classes = reader.count("size", 0), reader.count("classes", 81)
    backbone, objects = reader.choice("backbone", "resnet101", BACKBONES), reader.count("objects", OBJECTS)
    reader.finish()
    if settings.precision == "pure-bf16":
        raise WorkloadError(f"{NAME}: torchvision's region operators have no bfloat16 kernels; use precision=bf16")
    if classes < 2:
        raise WorkloadError(f"{NAME}: classes=1 leaves no object beside the background; give 2 or more")
    height, width = (size, size) if size else (HEIGHT, WIDTH)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> Any:
        images = [random_images((3, height, width), device, dtype) for _ in range(count)]
        return images, [make_target(objects, classes, height, width, device) for _ in range(count)]

    return Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: make_model(backbone, classes, height, width),
        make_batch=make_batch,
        compute_loss=lambda model, batch: sum(model(*batch).values()),
        optimizer_arguments={"lr": 2.5e-3},
        parameter_groups=lambda model: [weight for weight in model.parameters() if weight.requires_grad],
    )


def make_model(backbone: str, classes: int, height: int, width: int) -> MaskRCNN:
    """The detector on a backbone whose norms are frozen."""
    features = resnet_fpn_backbone(
        backbone_name=backbone, weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=TRAINED_STAGES
    )
    for block in features.modules():
        if isinstance(block, (BasicBlock, Bottleneck)):
            (block.bn3 if isinstance(block, Bottleneck) else block.bn2).weight.fill_(BRANCH_SCALE)
    return MaskRCNN(features, classes, min_size=height, max_size=width)


def make_target(objects: int, classes: int, height: int, width: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Boxes in pixels, labels and masks of one image."""
    boxes = random_boxes((objects,), device) * torch.tensor([width, height, width, height], device=device)
    return {
        "boxes": box_convert(boxes, "cxcywh", "xyxy"),
        "labels": torch.randint(1, classes, (objects,), device=device),
        "masks": torch.randint(0, 2, (objects, height, width), dtype=torch.uint8, device=device),
    }
