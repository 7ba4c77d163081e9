"""Boxes as they are in COCO, for detectors: how many an image has, and how large they are.

COCO train2017 has 860,001 objects in 118,287 images, 7.3 each. 41 % of them are small (area below 32 x 32 pixels), 34 %
medium (below 96 x 96) and 24 % large (https://cocodataset.org/#detection-eval), in images of about 640 x 480 pixels.
Square roots of areas are drawn from the log-normal distribution with these shares, aspect ratios from 1:2 to 2:1.
"""

from __future__ import annotations

import torch

OBJECTS = 8
_REFERENCE_SIDE = (640 * 480) ** 0.5  # pixels
_MEDIAN_SIDE, _SPREAD = 42.2, 1.218  # exp(3.743); both follow from the shares at 32 and 96 pixels
_SMALLEST, _LARGEST = 0.01, 0.9  # of the image


def random_boxes(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Boxes as centre x, centre y, width, height in shares of the image: (*shape, 4), all of them inside it."""
    side = torch.exp(torch.randn(*shape, 1, device=device) * _SPREAD) * (_MEDIAN_SIDE / _REFERENCE_SIDE)
    ratio = torch.exp2(torch.rand(*shape, 1, device=device) - 0.5)
    extent = torch.cat([side * ratio, side / ratio], dim=-1).clamp(_SMALLEST, _LARGEST)
    centre = extent / 2 + torch.rand(*shape, 2, device=device) * (1 - extent)
    return torch.cat([centre, extent], dim=-1)
