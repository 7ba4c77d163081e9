"""Segmentation and detection: dense heads, one and two stages, box matching and NMS in training."""

from __future__ import annotations

import math

import torch
import torchvision
from torch import nn
from torchvision.models import detection, segmentation
from transformers import SegformerConfig, SegformerForSemanticSegmentation


def deeplabv3_resnet50_aux_fp32(device, *, image_size=321):
    torch.manual_seed(0)
    model = segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21, aux_loss=True)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        labels = torch.randint(0, 21, (batch_size, image_size, image_size), device=device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs["out"], labels, ignore_index=255)
        loss = loss + 0.5 * nn.functional.cross_entropy(outputs["aux"], labels, ignore_index=255)
        loss.backward()
        optimizer.step()

    return step


def fcn_resnet50_bf16amp(device, *, image_size=384):
    torch.manual_seed(0)
    model = segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=21).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        labels = torch.randint(0, 21, (batch_size, image_size, image_size), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images)["out"], labels)
        loss.backward()
        optimizer.step()

    return step


def segformer_b0_fp32(device, *, image_size=512):
    torch.manual_seed(0)
    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=150)).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        labels = torch.randint(0, 150, (batch_size, image_size, image_size), device=device)
        optimizer.zero_grad()
        model(pixel_values=images, labels=labels).loss.backward()
        optimizer.step()

    return step


def _targets(device, batch_size, image_size, *, boxes=8, classes=91, masks=False):
    targets = []
    for _ in range(batch_size):
        corner = torch.rand(boxes, 2, device=device) * image_size * 0.5
        size = (0.1 + 0.35 * torch.rand(boxes, 2, device=device)) * image_size
        target = {
            "boxes": torch.cat([corner, corner + size], dim=1),
            "labels": torch.randint(1, classes, (boxes,), device=device),
        }
        if masks:
            target["masks"] = (torch.rand(boxes, image_size, image_size, device=device) > 0.5).to(torch.uint8)
        targets.append(target)
    return targets


def _detector(device, model, image_size, *, masks=False, bf16=False):
    model = model.to(device)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step(batch_size):
        images = [torch.rand(3, image_size, image_size, device=device) for _ in range(batch_size)]
        targets = _targets(device, batch_size, image_size, masks=masks)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = sum(model(images, targets).values())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()

    return step


def retinanet_resnet50_fp32(device, *, image_size=512):
    torch.manual_seed(0)
    model = detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=image_size, max_size=image_size
    )
    return _detector(device, model, image_size)


def fcos_resnet50_fp32(device, *, image_size=512):
    torch.manual_seed(0)
    model = detection.fcos_resnet50_fpn(weights=None, weights_backbone=None, min_size=image_size, max_size=image_size)
    return _detector(device, model, image_size)


def ssd300_vgg16_fp32(device, *, image_size=300):
    torch.manual_seed(0)
    model = detection.ssd300_vgg16(weights=None, weights_backbone=None)
    return _detector(device, model, image_size)


def fasterrcnn_resnet50_fp32(device, *, image_size=512):
    torch.manual_seed(0)
    model = detection.fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=image_size, max_size=image_size
    )
    return _detector(device, model, image_size)


def maskrcnn_resnet50_fp32(device, *, image_size=512):
    torch.manual_seed(0)
    model = detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=image_size, max_size=image_size
    )
    return _detector(device, model, image_size, masks=True)


def fasterrcnn_mobilenet_bf16amp(device, *, image_size=512):
    torch.manual_seed(0)
    model = detection.fasterrcnn_mobilenet_v3_large_fpn(
        weights=None, weights_backbone=None, min_size=image_size, max_size=image_size
    )
    return _detector(device, model, image_size, bf16=True)


class _Detr(nn.Module):
    """A small DETR: ResNet-18 features, encoder-decoder transformer, object queries."""

    def __init__(self, dim, queries, classes):
        super().__init__()
        backbone = torchvision.models.resnet18(weights=None)
        self.backbone = nn.Sequential(*list(backbone.children())[:-2])
        self.project = nn.Conv2d(512, dim, 1)
        self.transformer = nn.Transformer(dim, 8, 4, 4, 1024, dropout=0.1, batch_first=True)
        self.queries = nn.Parameter(torch.randn(queries, dim))
        self.row = nn.Parameter(torch.randn(64, dim // 2))
        self.column = nn.Parameter(torch.randn(64, dim // 2))
        self.classes = nn.Linear(dim, classes + 1)
        self.boxes = nn.Linear(dim, 4)

    def forward(self, images):
        features = self.project(self.backbone(images))
        height, width = features.shape[-2:]
        position = torch.cat(
            [
                self.column[:width].unsqueeze(0).repeat(height, 1, 1),
                self.row[:height].unsqueeze(1).repeat(1, width, 1),
            ],
            dim=-1,
        ).flatten(0, 1)
        memory = features.flatten(2).transpose(1, 2) + position
        queries = self.queries.unsqueeze(0).expand(images.shape[0], -1, -1)
        hidden = self.transformer(memory, queries)
        return self.classes(hidden), self.boxes(hidden).sigmoid()


def _match(cost):
    """Greedy one-to-one matching on the host: one row of the cost per target."""
    taken, matched = set(), []
    for row in cost.tolist():
        best = min((value, query) for query, value in enumerate(row) if query not in taken)[1]
        taken.add(best)
        matched.append(best)
    return matched


def detr_matching_fp32(device, *, image_size=512, dim=256, queries=100):
    torch.manual_seed(0)
    model = _Detr(dim, queries, 91).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        images = torch.rand(batch_size, 3, image_size, image_size, device=device)
        optimizer.zero_grad()
        logits, boxes = model(images)
        losses = []
        for image, target in enumerate(_targets(device, batch_size, image_size)):
            wanted = target["boxes"] / image_size
            with torch.no_grad():
                cost = torch.cdist(wanted, boxes[image], p=1) - logits[image].softmax(-1)[:, target["labels"]].T
                matched = torch.tensor(_match(cost), device=device)
            classes = torch.full((queries,), 91, dtype=torch.long, device=device)
            classes[matched] = target["labels"]
            losses.append(nn.functional.cross_entropy(logits[image], classes))
            losses.append(nn.functional.l1_loss(boxes[image][matched], wanted))
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    return step


class _OneStage(nn.Module):
    """A YOLO-like detector: strided depthwise backbone, three heads at strides 8, 16, 32."""

    def __init__(self, width, classes):
        super().__init__()

        def stage(inputs, outputs):
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.SiLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs, bias=False),
                nn.BatchNorm2d(outputs),
                nn.SiLU(inplace=True),
                nn.Conv2d(outputs, outputs, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.SiLU(inplace=True),
            )

        self.stem = nn.Sequential(stage(3, width), stage(width, 2 * width))
        self.stages = nn.ModuleList(stage(2**i * width, 2 ** (i + 1) * width) for i in range(1, 4))
        self.heads = nn.ModuleList(nn.Conv2d(2 ** (i + 1) * width, 5 + classes, 1) for i in range(1, 4))

    def forward(self, images):
        hidden, outputs = self.stem(images), []
        for stage, head in zip(self.stages, self.heads, strict=True):
            hidden = stage(hidden)
            outputs.append(head(hidden).flatten(2).transpose(1, 2))
        return torch.cat(outputs, dim=1)


def yolo_boolean_targets_fp16(device, *, image_size=640, width=32, classes=80):
    torch.manual_seed(0)
    model = _OneStage(width, classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.937, nesterov=True)
    scaler = torch.amp.GradScaler(device.type)
    anchors = sum(math.ceil(image_size / stride) ** 2 for stride in (8, 16, 32))

    def step(batch_size):
        images = torch.rand(batch_size, 3, image_size, image_size, device=device)
        positive = torch.rand(batch_size, anchors, device=device) < 0.01
        wanted = torch.rand(batch_size, anchors, 4, device=device)
        labels = torch.randint(0, classes, (batch_size, anchors), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            outputs = model(images)
        outputs = outputs.float()
        objectness = nn.functional.binary_cross_entropy_with_logits(outputs[..., 4], positive.float())
        chosen = outputs[positive]
        overlap = torchvision.ops.generalized_box_iou_loss(
            _corners(chosen[:, :4].sigmoid()), _corners(wanted[positive]), reduction="mean"
        )
        classification = nn.functional.cross_entropy(chosen[:, 5:], labels[positive])
        scaler.scale(objectness + overlap + classification).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _corners(boxes):
    return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:] + 1e-3], dim=1)
