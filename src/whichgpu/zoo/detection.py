"""What a two-stage detector does between its layers, on whole batches: proposals, sampling, pooling.

Every size follows from the batch size alone: a fixed number of boxes is kept and sampled whatever the network finds, so
that a step takes the same memory every time, and the most it may take. Boxes are corners in pixels, (images, boxes, 4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torchvision.ops import roi_align

BEFORE, KEPT = 2000, 2000  # proposals of each level before, and of all levels after suppression
SUPPRESSED_ABOVE = 0.7
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
_LARGEST_STEP = math.log(1000 / 16)
_CANONICAL_SIZE, _CANONICAL_LEVEL = 224, 2  # a box of this size belongs to the third level of the pyramid


class Sample(NamedTuple):
    """Boxes that are learned from, objects first as far as there are any."""

    boxes: torch.Tensor
    own: torch.Tensor  # the object that each overlaps most
    labels: torch.Tensor  # 0: background


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Corners of boxes that are given as centre and size."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def pick(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """`values[image, place]` for each image: (images, places, ...)."""
    return values.gather(1, place.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


def by_anchor(output: torch.Tensor, numbers: int) -> torch.Tensor:
    """A head's output as (images, anchors, numbers)."""
    return output.unflatten(1, (-1, numbers)).permute(0, 3, 4, 1, 2).flatten(1, 3)


def overlap(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Intersection over union of each with each: (images, first, second)."""
    one, other = first.unsqueeze(-2), second.unsqueeze(-3)
    sides = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    both = sides.clamp(min=0).prod(-1)
    return both / (area(one) + area(other) - both).clamp(min=1e-6)


def area(boxes: torch.Tensor) -> torch.Tensor:
    """In square pixels."""
    return (boxes[..., 2:] - boxes[..., :2]).prod(-1)


def encode(
    boxes: torch.Tensor, anchors: torch.Tensor, weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
) -> torch.Tensor:
    """The step from anchors to boxes, as the network answers it."""
    size, anchor_size = (boxes[..., 2:] - boxes[..., :2]), (anchors[..., 2:] - anchors[..., :2]).clamp(min=1e-3)
    shift = ((boxes[..., :2] + size / 2) - (anchors[..., :2] + anchor_size / 2)) / anchor_size
    return torch.cat([shift, torch.log(size / anchor_size)], dim=-1) * boxes.new_tensor(weights)


def decode(deltas: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """The boxes that a step leads to."""
    anchor_size = anchors[..., 2:] - anchors[..., :2]
    centre = anchors[..., :2] + anchor_size / 2 + deltas[..., :2] * anchor_size
    size = anchor_size * deltas[..., 2:].clamp(max=_LARGEST_STEP).exp()
    return corners(torch.cat([centre, size], dim=-1))


@torch.no_grad()
def best_boxes(
    scores: list[torch.Tensor], deltas: list[torch.Tensor], anchors: torch.Tensor, size: torch.Size
) -> torch.Tensor:
    """The best boxes of all levels that do not overlap a better one of their level: (images, KEPT or fewer, 4)."""
    found, ranks, begin = [], [], 0
    for score, delta in zip(scores, deltas, strict=True):
        level = anchors[begin : begin + score.shape[1]]
        begin += score.shape[1]
        best, place = score.topk(min(BEFORE, score.shape[1]), dim=1)
        boxes = decode(pick(delta, place), level[place])
        boxes = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([size[1], size[0]] * 2))
        better = overlap(boxes, boxes).triu_(1).transpose(1, 2)
        ranks.append(best - 1e4 * (better.amax(-1) > SUPPRESSED_ABOVE))
        found.append(boxes)
    rank, boxes = torch.cat(ranks, dim=1), torch.cat(found, dim=1)
    return pick(boxes, rank.topk(min(KEPT, rank.shape[1]), dim=1).indices)


@torch.no_grad()
def sample_anchors(
    anchors: torch.Tensor, boxes: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Anchors that are learned from, half of them objects if there are so many: place, own object, and whether one."""
    shared = overlap(boxes, anchors)  # (images, objects, anchors)
    most, own = shared.max(1)
    best = (shared >= shared.amax(-1, keepdim=True)).any(1)  # of an object, however little they overlap
    positive = (most >= 0.7) | best
    place = ranked(positive, (most < 0.3) & ~best, count, count // 2)
    return place, own.gather(1, place), positive.gather(1, place).float()


@torch.no_grad()
def sample(candidates: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, count: int, objects: int) -> Sample:
    """Proposals that are learned from: `objects` that are, as far as there are any, and others."""
    most, own = overlap(candidates, boxes).max(-1)
    positive = most >= 0.5
    count = min(count, candidates.shape[1])
    place = ranked(positive, ~positive, count, min(objects, count // 2))
    own, is_object = own.gather(1, place), positive.gather(1, place)
    return Sample(pick(candidates, place), own, labels.gather(1, own) * is_object)


def ranked(positive: torch.Tensor, negative: torch.Tensor, count: int, positives: int) -> torch.Tensor:
    """Places of `positives` of the first kind and the rest of the second, at random; (images, count)."""
    chance = torch.rand_like(positive, dtype=torch.float32)
    first = (chance + positive).topk(positives, dim=1).indices
    return torch.cat([first, (chance + negative).topk(count - positives, dim=1).indices], dim=1)


def pool(pyramid: list[torch.Tensor], boxes: torch.Tensor, bins: int) -> torch.Tensor:
    """The features of each box from the level of its size: (all boxes, channels, bins, bins).

    Each level is pooled for all boxes, and what belongs to another level is left out.
    """
    image = torch.arange(len(boxes), device=boxes.device).repeat_interleave(boxes.shape[1])
    regions = torch.cat([image.unsqueeze(-1).to(boxes.dtype), boxes.flatten(0, 1)], dim=1)
    size = area(regions[:, 1:]).clamp(min=1).sqrt()
    level = (torch.log2(size / _CANONICAL_SIZE + 1e-6).floor() + _CANONICAL_LEVEL).clamp(0, len(pyramid) - 1)
    total = None
    for number, features in enumerate(pyramid):
        pooled = roi_align(features, regions, bins, spatial_scale=0.25 / 2**number, sampling_ratio=2)
        pooled = pooled * (level == number).to(pooled.dtype)[:, None, None, None]
        total = pooled if total is None else total + pooled
    return total


@torch.no_grad()
def crop(masks: torch.Tensor, boxes: torch.Tensor, own: torch.Tensor, size: int) -> torch.Tensor:
    """The object's mask within each box: (all boxes, size, size)."""
    first = torch.arange(len(masks), device=masks.device).unsqueeze(-1) * masks.shape[1]
    regions = torch.cat([(first + own).flatten().unsqueeze(-1).to(boxes.dtype), boxes.flatten(0, 1)], dim=1)
    return roi_align(masks.flatten(0, 1).unsqueeze(1).to(boxes.dtype), regions, size, sampling_ratio=-1).squeeze(1)
