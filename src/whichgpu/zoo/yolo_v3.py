"""YOLOv3 with Darknet-53 on COCO: images of 608 x 608, 80 classes, fp32, SGD with momentum 0.9.

Settings: the Yolo v3 row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), of which only the figures are known: neither code, nor
framework, nor input size. Hence those of https://github.com/pjreddie/darknet, cfg/yolov3.cfg: 608 x 608, nine anchors,
momentum 0.9, weight decay 5e-4, learning rate 1e-3.
Model and loss: Redmon and Farhadi, "YOLOv3: An Incremental Improvement", section 2, https://arxiv.org/abs/1804.02767:
each object goes to the anchor whose shape overlaps it most; boxes that overlap an object by more than half without
being its own are left out; logistic losses for centre, objectness and classes, squared error for the size.
Size: the published yolov3.weights holds 62,001,757 numbers (248,007,048 bytes with a header of 20), which are the
parameters and the running statistics of the norms.
Differences: one size throughout, where the original draws another one every ten batches; 8 objects in every image, of
sizes as in COCO; losses are means over the images, not sums. `code=2019` keeps of each layer what darknet keeps (darknet.py).
Options: those of every adapter, `code` (today or 2019), `size` (a multiple of 32), `classes`, `objects` (an image), `width` (channels of the
first convolution, 32).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo import darknet
from whichgpu.zoo.coco_boxes import OBJECTS, random_boxes
from whichgpu.zoo.options import Options, read_settings, refuse_checkpoint
from whichgpu.zoo.training import Recipe, make_workload, random_images
from whichgpu.zoo.written_out import read_code

NAME = "yolo-v3"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "weight_decay": "5e-4", "size": "608"}
# Widths and heights in pixels, largest first as the scales come (yolov3.cfg)
ANCHORS = (
    ((116.0, 90.0), (156.0, 198.0), (373.0, 326.0)),
    ((30.0, 61.0), (62.0, 45.0), (59.0, 119.0)),
    ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
)
STRIDES = (32, 16, 8)
BLOCKS = (1, 2, 8, 8, 4)  # residual blocks after each halving: Darknet-53
IGNORED_ABOVE = 0.5


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="images",
        default_batch_size=4,
        description="YOLOv3 with Darknet-53, object detection",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    given = {**SETTINGS, **options}
    old = read_code(NAME, given)
    reader = Options(NAME, given)
    settings = refuse_checkpoint(NAME, read_settings(reader))
    size, classes, width = reader.count("size", 608), reader.count("classes", 80), reader.count("width", 32)
    objects = reader.count("objects", OBJECTS)
    reader.finish()
    if size % STRIDES[0]:
        raise WorkloadError(f"{NAME}: size={size} is not a multiple of {STRIDES[0]}")

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {
            "images": random_images((count, 3, size, size), device, dtype),
            "boxes": random_boxes((count, objects), device),
            "labels": torch.randint(0, classes, (count, objects), device=device),
        }

    return Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: Yolo(classes, width, old),
        make_batch=make_batch,
        compute_loss=compute_loss,
        optimizer_arguments={"lr": 1e-3},
        sizes={"size": size},
    )


# ---- the network ----


class Yolo(nn.Module):
    """Darknet-53 and a head at each of three scales, each fed by the one before; `old`: with darknet's layers."""

    def __init__(self, classes: int, width: int, old: bool) -> None:
        super().__init__()
        convolution = functools.partial(convolve, old)
        outputs = len(ANCHORS[0]) * (5 + classes)
        widths = [width * 2 ** (level + 1) for level in range(len(BLOCKS))]
        self.stem = convolution(3, width, 3)
        self.stages = nn.ModuleList(
            stage(old, out // 2, out, blocks) for out, blocks in zip(widths, BLOCKS, strict=True)
        )
        self.necks, self.heads, self.laterals = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for level, channels in enumerate(reversed(widths[-3:])):
            half = channels // 2
            self.necks.append(neck(old, channels if level == 0 else channels + half, half))
            self.heads.append(nn.Sequential(convolution(half, channels, 3), nn.Conv2d(channels, outputs, 1)))
            if level < 2:
                self.laterals.append(nn.Sequential(convolution(half, half // 2, 1), nn.Upsample(scale_factor=2)))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """For each scale (images, anchors, rows, columns, 5 + classes)."""
        features = [self.stem(images)]
        for layer in self.stages:
            features.append(layer(features[-1]))
        hidden, outputs = features.pop(), []
        for level, (layer, head) in enumerate(zip(self.necks, self.heads, strict=True)):
            hidden = layer(hidden)
            grid = head(hidden).unflatten(1, (len(ANCHORS[level]), -1))
            outputs.append(grid.permute(0, 1, 3, 4, 2))
            if level < 2:
                hidden = torch.cat([self.laterals[level](hidden), features.pop()], dim=1)
        return outputs


class Residual(nn.Module):
    """A point-wise convolution to half the channels and a 3 x 3 one back, added to the input."""

    def __init__(self, old: bool, channels: int) -> None:
        super().__init__()
        self.old, half = old, channels // 2
        self.layers = nn.Sequential(convolve(old, channels, half, 1), convolve(old, half, channels, 3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the input's shape."""
        found = self.layers(hidden)
        return darknet.Shortcut.apply(hidden, found) if self.old else hidden + found


def convolve(old: bool, inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, leaky ReLU."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    if old:
        return nn.Sequential(layer, darknet.Norm(outputs))
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1, inplace=True))


def stage(old: bool, inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    """Half the height and width, then residual blocks."""
    return nn.Sequential(convolve(old, inputs, outputs, 3, stride=2), *(Residual(old, outputs) for _ in range(blocks)))


def neck(old: bool, inputs: int, width: int) -> nn.Sequential:
    """Five convolutions, point-wise and 3 x 3 in turn."""
    widths = [inputs, width, 2 * width, width, 2 * width, width]
    return nn.Sequential(*(convolve(old, widths[i], widths[i + 1], 3 if i % 2 else 1) for i in range(5)))


# ---- the loss ----


def compute_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The sum of the losses at the three scales, for each image."""
    boxes, labels = batch["boxes"], batch["labels"]
    anchors = boxes.new_tensor(ANCHORS)
    own = best_anchor(boxes[..., 2:] * batch["images"].shape[-1], anchors.flatten(0, 1))
    total = boxes.new_zeros(())
    for level, grid in enumerate(model(batch["images"])):
        shapes = anchors[level] / batch["images"].shape[-1]
        total = total + scale_loss(grid.float(), shapes, boxes, labels, own - level * len(shapes))
    return total / len(boxes)


def best_anchor(sizes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """For each object the number of the anchor that overlaps it most when both are centred: (images, objects)."""
    both = torch.minimum(sizes.unsqueeze(-2), anchors).prod(-1)
    either = sizes.prod(-1, keepdim=True) + anchors.prod(-1) - both
    return (both / either).argmax(-1)


def scale_loss(
    grid: torch.Tensor, shapes: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, own: torch.Tensor
) -> torch.Tensor:
    """The loss at one scale; `own` is each object's anchor here, or no anchor's number where it is of another scale."""
    rows, columns = grid.shape[2:4]
    matched = ((own >= 0) & (own < len(shapes))).to(grid.dtype)
    anchor = own.clamp(0, len(shapes) - 1)
    place = boxes[..., :2] * boxes.new_tensor([columns, rows])
    column, row = place.long().unbind(-1)
    image = torch.arange(len(boxes), device=boxes.device).unsqueeze(-1).expand_as(own)
    cell = (image, anchor, row, column)

    found = grid[cell]  # (images, objects, 5 + classes)
    centre = F.binary_cross_entropy_with_logits(found[..., :2], place - place.floor(), reduction="none").sum(-1)
    size = (found[..., 2:4] - torch.log(boxes[..., 2:] / shapes[anchor])).square().sum(-1)
    wanted = (labels.unsqueeze(-1) == torch.arange(found.shape[-1] - 5, device=labels.device)).to(grid.dtype)
    classes = F.binary_cross_entropy_with_logits(found[..., 5:], wanted, reduction="none").sum(-1)

    present = torch.zeros_like(grid[..., 4]).index_put_(cell, matched, accumulate=True).clamp_(max=1)
    counted = torch.maximum(present, (overlap(grid, shapes, boxes) <= IGNORED_ABOVE).to(grid.dtype))
    objectness = F.binary_cross_entropy_with_logits(grid[..., 4], present, weight=counted, reduction="sum")
    weight = 2 - boxes[..., 2:].prod(-1)  # small boxes count more
    return objectness + (matched * (weight * (centre + size) + classes)).sum()


@torch.no_grad()
def overlap(grid: torch.Tensor, shapes: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """How far each predicted box overlaps the object that it overlaps most: (images, anchors, rows, columns)."""
    rows, columns = grid.shape[2:4]
    down, right = torch.arange(rows, device=grid.device), torch.arange(columns, device=grid.device)
    corner = torch.stack(torch.meshgrid(right, down, indexing="xy"), dim=-1)
    centre = (grid[..., :2].sigmoid() + corner) / boxes.new_tensor([columns, rows])
    extent = grid[..., 2:4].clamp(max=8).exp() * shapes[:, None, None, :]
    predicted = torch.cat([centre, extent], dim=-1).flatten(1, 3)
    return intersection_over_union(predicted, boxes).amax(-1).unflatten(1, grid.shape[1:4])


def intersection_over_union(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of boxes as centre and size, each with each of the same image: (images, first, second)."""
    one, other = first.unsqueeze(2), second.unsqueeze(1)
    low = torch.maximum(one[..., :2] - one[..., 2:] / 2, other[..., :2] - other[..., 2:] / 2)
    high = torch.minimum(one[..., :2] + one[..., 2:] / 2, other[..., :2] + other[..., 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (one[..., 2:].prod(-1) + other[..., 2:].prod(-1) - both)
