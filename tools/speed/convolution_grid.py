"""A grid of convolutions for tools/measure_ops.py: large kernels with few channels on a side, three dimensions, spread kernels and
transposed ones, of which the other grids have few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from speed.grid import BF16, FP16, FP32, Maker, Point

aten = torch.ops.aten


class Shape(NamedTuple):
    """A convolution; `inner` and `outer` are the channels of what comes in and goes out."""

    batch: int
    inner: int
    outer: int
    sides: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    transposed: bool = False


LARGE = tuple(
    Shape(batch, inner, outer, (high, 2 * high), (kernel, kernel))
    for batch, high in ((1, 1024), (1, 256), (8, 128))
    for inner, outer, kernel in (
        (16, 3, 7), (64, 3, 7), (32, 3, 7), (39, 32, 7), (3, 64, 7), (64, 64, 7), (32, 32, 5), (64, 3, 3), (3, 64, 3), (64, 1, 5),
        (32, 32, 11), (128, 128, 5),
    )
    if batch * high * high * inner * outer < 2.2e9
)  # fmt: skip
DEEP = tuple(
    Shape(batch, inner, outer, (side,) * 3, (kernel,) * 3, stride)
    for batch, inner, outer, side, kernel, stride in (
        (1, 4, 16, 96, 3, 1), (1, 16, 16, 96, 3, 1), (1, 32, 32, 96, 3, 1), (3, 32, 64, 48, 3, 1), (3, 64, 64, 48, 3, 1),
        (1, 64, 128, 24, 3, 1), (3, 128, 128, 24, 3, 1), (2, 256, 256, 12, 3, 1), (2, 32, 64, 64, 3, 2), (2, 16, 3, 96, 1, 1),
        (2, 48, 16, 64, 3, 1), (4, 128, 64, 32, 3, 1),
    )
)  # fmt: skip
SPREAD = tuple(
    Shape(batch, inner, outer, (side, side), (3, 3), 1, dilation)
    for batch, inner, outer, side, dilation in (
        (4, 256, 256, 41, 2), (10, 512, 512, 41, 4), (4, 2048, 256, 41, 12), (4, 2048, 256, 33, 24), (2, 64, 64, 129, 2),
        (16, 512, 512, 19, 6),
    )
)  # fmt: skip
TRANSPOSED = (
    *(
        Shape(batch, inner, outer, (side, side), (kernel, kernel), stride, 1, True)
        for batch, inner, outer, side, kernel, stride in (
            (8, 128, 64, 64, 2, 2), (8, 256, 128, 32, 3, 2), (64, 512, 256, 8, 4, 2), (512, 128, 64, 16, 4, 2), (512, 64, 3, 32, 4, 2),
            (1, 64, 32, 512, 3, 2), (1, 1024, 512, 32, 3, 2), (4, 512, 512, 32, 3, 2), (4, 128, 64, 128, 3, 2), (512, 100, 512, 1, 4, 1),
        )
    ),
    Shape(2, 64, 32, (32,) * 3, (2,) * 3, 2, 1, True),
    Shape(2, 128, 64, (16,) * 3, (2,) * 3, 2, 1, True),
)  # fmt: skip


def points(make: Maker) -> list[Point]:
    """All points, those of all groups in turn."""
    found: dict[str, list[Point]] = {}
    for name, shapes in (("large", LARGE), ("3d", DEEP), ("spread", SPREAD), ("transposed", TRANSPOSED)):
        for shape in shapes:
            for dtype, last in ((FP32, False), (FP16, False), (BF16, True)):
                if last and (len(shape.kernel) != 2 or name == "large"):
                    continue
                for point in _points(make, shape, f"conv {name}", dtype, last):
                    found.setdefault(point.group, []).append(point)
    places = [(rank / len(group), name, point) for name, group in found.items() for rank, point in enumerate(group)]
    return [point for _, _, point in sorted(places, key=lambda place: place[:2])]


def _points(make: Maker, shape: Shape, name: str, dtype: torch.dtype, last: bool) -> Iterator[Point]:
    count = len(shape.kernel)
    sides = tuple(max(side // make.shrink, 1 + shape.dilation * (shape.kernel[0] - 1)) for side in shape.sides)
    if shape.transposed:
        sides = tuple(max(side // make.shrink, 1) for side in shape.sides)
    padding = [shape.dilation * (size // 2) if shape.stride == 1 or size % 2 else 0 for size in shape.kernel]
    if shape.transposed and shape.kernel[0] == 4 and shape.stride == 2:
        padding = [1] * count
    settings = (
        [shape.stride] * count, padding, [shape.dilation] * count, shape.transposed, [int(shape.transposed and shape.kernel[0] == 3)] * count, 1,
    )  # fmt: skip
    batch = shape.batch if make.shrink == 1 else 1

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        image = make.normal(batch, shape.inner, *sides, dtype=dtype, channels_last=last)
        channels = (shape.inner, shape.outer) if shape.transposed else (shape.outer, shape.inner)
        return image, make.normal(*channels, *shape.kernel, dtype=dtype, channels_last=last)

    def forward() -> tuple[Any, ...]:
        return (*operands(), None, *settings)

    def backward(mask: list[bool]) -> Callable[[], tuple[Any, ...]]:
        def make_backward() -> tuple[Any, ...]:
            image, weight = operands()
            result = aten.convolution.default(image, weight, None, *settings)
            return (torch.randn_like(result), image, weight, None, *settings, mask)

        return make_backward

    yield Point(name, aten.convolution.default, forward)
    for mask in ([False, True, False], [True, False, False]):
        yield Point(f"{name} backward", aten.convolution_backward.default, backward(mask))
