"""Mask R-CNN with ResNet-101 and a feature pyramid on COCO: 800 x 1333 images, 81 classes, fp32, SGD with momentum.

Settings: the MaskRCNN row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with
https://github.com/facebookresearch/maskrcnn-benchmark, configs/e2e_mask_rcnn_R_101_FPN_1x.yaml: shorter side 800, longer
at most 1333, momentum 0.9, weight decay 1e-4, stem and first stage frozen, batch norm frozen throughout; 256 anchors,
2000 proposals and 512 sampled boxes an image, at most a quarter of them objects.
Model: He et al., "Mask R-CNN", https://arxiv.org/abs/1703.06870; layers, anchors and pooling are torchvision's, what happens
between them is in detection.py.
Size: torchvision's R-50 has 44,401,393 parameters
(https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.detection.maskrcnn_resnet50_fpn.html), and
ResNet-101 has 18.99 million more than ResNet-50.
Differences: every image is 800 x 1333, the largest that occurs, with 8 objects of sizes as in COCO. As many boxes as may be
sampled always are: 128 of the 512 get a mask, those that are no objects with a weight of 0, which is what must fit. Boxes
are suppressed by any better one that they overlap, also by one that is suppressed itself. Weights are random, so the last
frozen norm of each block scales its branch by 0.2, as trained ones keep the sum in bounds. `code=2019` has what the original adds
on PyTorch 1.0: images of other shapes from step to step, as COCO's are (800 x 1067, 1201 x 800 and 800 x 1333, those of 4:3, 2:3
and 16:9 or more), so that what the allocator keeps of one does not fit the next; gradients that are kept between steps, and an
optimizer that goes from weight to weight. Pooling stays torchvision's.
Options: those of every adapter, `code` (today or 2019), `size` (both sides), `classes`, `objects` and `sampled` (boxes an image),
`backbone` (resnet18, 34, 50 or 101).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.ops import FrozenBatchNorm2d

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo import detection
from whichgpu.zoo.coco_boxes import OBJECTS, random_boxes
from whichgpu.zoo.options import Options, read_settings, refuse_checkpoint
from whichgpu.zoo.training import Recipe, make_workload, random_images
from whichgpu.zoo.written_out import read_code

NAME = "mask-rcnn"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "1e-4"}
HEIGHT, WIDTH = 800, 1333
OF_COCO = ((800, 1067), (1201, 800), (800, 1333))  # rows and columns of one after the other
MULTIPLE = 32  # images are padded to it
BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101")
TRAINED_STAGES = 3  # of five: the stem and the first stage are frozen
BRANCH_SCALE = 0.2
ANCHOR_SIZES = (32, 64, 128, 256, 512)
ASPECT_RATIOS = (0.5, 1.0, 2.0)
CHANNELS = 256
SAMPLED, OBJECTS_SHARE = 512, 4  # boxes an image; a quarter of them may be objects
ANCHORS_SAMPLED = 256
BOX_BINS, MASK_BINS, MASK_SIZE = 7, 14, 28


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="images",
        default_batch_size=2,
        description="Mask R-CNN with ResNet-101 and a feature pyramid, instance segmentation",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    given = {**SETTINGS, **options}
    old = read_code(NAME, given)
    if old:
        given.setdefault("foreach", "0")
    reader = Options(NAME, given)
    settings = refuse_checkpoint(NAME, read_settings(reader))
    size, classes = reader.count("size", 0), reader.count("classes", 81)
    backbone, objects = reader.choice("backbone", "resnet101", BACKBONES), reader.count("objects", OBJECTS)
    sampled = reader.count("sampled", SAMPLED)
    reader.finish()
    if settings.precision == "pure-bf16":
        raise WorkloadError(f"{NAME}: torchvision's region operators have no bfloat16 kernels; use precision=bf16")
    if classes < 2:
        raise WorkloadError(f"{NAME}: classes=1 leaves no object beside the background; give 2 or more")
    if sampled % OBJECTS_SHARE:
        raise WorkloadError(f"{NAME}: sampled={sampled} is not a multiple of {OBJECTS_SHARE}")
    shapes = OF_COCO if old else ((HEIGHT, WIDTH),)
    if size:
        shapes = (
            tuple((size * height // HEIGHT, size * width // HEIGHT) for height, width in OF_COCO)
            if old
            else ((size, size),)
        )

    def make_batch(
        count: int, device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
    ) -> dict[str, torch.Tensor]:
        height, width = shape
        padded = [-(-side // MULTIPLE) * MULTIPLE for side in (height, width)]
        images = random_images((count, 3, *padded), device, dtype)
        scale = images.new_tensor([width, height, width, height])
        return {
            "images": images,
            "boxes": detection.corners(random_boxes((count, objects), device) * scale),
            "labels": torch.randint(1, classes, (count, objects), device=device),
            "masks": torch.randint(0, 2, (count, objects, height, width), dtype=torch.uint8, device=device),
        }

    return OfShapes(
        where=NAME,
        settings=settings,
        make_model=lambda: MaskRcnn(backbone, classes, sampled),
        make_batch=functools.partial(make_batch, shape=shapes[0]),
        shapes=shapes,
        keeps_gradients=old,
        compute_loss=lambda model, batch: model(**batch),
        optimizer_arguments={"lr": 2.5e-3},
        parameter_groups=lambda model: [weight for weight in model.parameters() if weight.requires_grad],
    )


@dataclass(frozen=True, kw_only=True)
class OfShapes(Recipe):
    """A recipe whose images are of each of `shapes` in turn, step by step, beginning with the first in every run."""

    shapes: tuple[tuple[int, int], ...]

    def setup(self, device: torch.device | str) -> Callable[[int], torch.Tensor]:
        """The training step."""
        turns = itertools.cycle(self.shapes)

        def make_batch(*about: Any) -> Any:
            return self.make_batch(*about, shape=next(turns))

        return Recipe.setup(replace(self, make_batch=make_batch), device)


class MaskRcnn(nn.Module):
    """Backbone, proposals, and the heads of boxes and masks; called, the sum of the five losses."""

    def __init__(self, backbone: str, classes: int, sampled: int) -> None:
        super().__init__()
        self.sampled = sampled
        self.features = make_backbone(backbone)
        self.anchors = AnchorGenerator(tuple((size,) for size in ANCHOR_SIZES), (ASPECT_RATIOS,) * len(ANCHOR_SIZES))
        self.propose = RPNHead(CHANNELS, len(ASPECT_RATIOS))
        self.box_head = TwoMLPHead(CHANNELS * BOX_BINS**2, 1024)
        self.box_predictor = FastRCNNPredictor(1024, classes)
        self.mask_head = MaskRCNNHeads(CHANNELS, (CHANNELS,) * 4, 1)
        self.mask_predictor = MaskRCNNPredictor(CHANNELS, CHANNELS, classes)

    def forward(
        self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, masks: torch.Tensor
    ) -> torch.Tensor:
        """Of a batch with the same number of objects in each image; boxes as corners in pixels."""
        features = list(self.features(images).values())
        scores, deltas = self.propose(features)
        anchors = self.anchors(ImageList(images, [tuple(images.shape[-2:])]), features)[0]  # the same for all images
        scores = [detection.by_anchor(score, 1).squeeze(-1).float() for score in scores]
        deltas = [detection.by_anchor(delta, 4).float() for delta in deltas]
        loss = self.proposal_loss(torch.cat(scores, dim=1), torch.cat(deltas, dim=1), anchors, boxes)
        proposals = detection.best_boxes(scores, deltas, anchors, images.shape[-2:])
        chosen = detection.sample(
            torch.cat([proposals, boxes], dim=1), boxes, labels, self.sampled, self.sampled // OBJECTS_SHARE
        )
        pyramid = features[:-1]  # the coarsest is for proposals only
        return loss + self.box_loss(pyramid, chosen, boxes) + self.mask_loss(pyramid, chosen, masks)

    def proposal_loss(
        self, scores: torch.Tensor, deltas: torch.Tensor, anchors: torch.Tensor, boxes: torch.Tensor
    ) -> torch.Tensor:
        """Whether anchors are objects, and where these are."""
        place, own, is_object = detection.sample_anchors(anchors, boxes, ANCHORS_SAMPLED)
        wanted = detection.encode(detection.pick(boxes, own), anchors[place])
        apart = nn.functional.smooth_l1_loss(detection.pick(deltas, place), wanted, beta=1 / 9, reduction="none").sum(
            -1
        )
        found = nn.functional.binary_cross_entropy_with_logits(scores.gather(1, place), is_object)
        return found + (apart * is_object).sum() / is_object.numel()

    def box_loss(self, pyramid: list[torch.Tensor], chosen: detection.Sample, boxes: torch.Tensor) -> torch.Tensor:
        """Which class each box is of, and where the object is."""
        pooled = detection.pool(pyramid, chosen.boxes, BOX_BINS)
        scores, deltas = self.box_predictor(self.box_head(pooled))
        labels = chosen.labels.flatten()
        deltas = deltas.float().unflatten(1, (-1, 4))[torch.arange(len(labels), device=labels.device), labels]
        wanted = detection.encode(detection.pick(boxes, chosen.own), chosen.boxes, detection.BOX_WEIGHTS).flatten(0, 1)
        apart = nn.functional.smooth_l1_loss(deltas, wanted, beta=1 / 9, reduction="none").sum(-1)
        return nn.functional.cross_entropy(scores, labels) + (apart * (labels > 0)).sum() / len(labels)

    def mask_loss(self, pyramid: list[torch.Tensor], chosen: detection.Sample, masks: torch.Tensor) -> torch.Tensor:
        """Which pixels of each box belong to its object."""
        boxes, own, labels = (part[:, : self.sampled // OBJECTS_SHARE] for part in chosen)
        labels = labels.flatten()
        hidden = self.mask_predictor(self.mask_head(detection.pool(pyramid, boxes, MASK_BINS)))
        found = hidden[torch.arange(len(labels), device=labels.device), labels]
        wanted = detection.crop(masks, boxes, own, MASK_SIZE)
        loss = nn.functional.binary_cross_entropy_with_logits(found, wanted, reduction="none").mean((1, 2))
        is_object = (labels > 0).to(loss.dtype)
        return (loss * is_object).sum() / is_object.sum().clamp(min=1)


def make_backbone(name: str) -> nn.Module:
    """A residual network with frozen norms, and the pyramid of its features."""
    features = resnet_fpn_backbone(
        backbone_name=name, weights=None, norm_layer=FrozenBatchNorm2d, trainable_layers=TRAINED_STAGES
    )
    for block in features.modules():
        if isinstance(block, (BasicBlock, Bottleneck)):
            (block.bn3 if isinstance(block, Bottleneck) else block.bn2).weight.fill_(BRANCH_SCALE)
    return features
