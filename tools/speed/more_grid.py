"""A second grid of operators for tools/measure_ops.py: what steps were seen to spend time on and the first grid leaves out.

Softmax across memory, convolutions of one and three dimensions, wide depthwise ones, few channels on large images, regions that
detectors cut out, values that are added up at few places, and norms that only apply what they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from speed.grid import BF16, FP16, FP32, Maker, Point

aten = torch.ops.aten

ACROSS = (
    (16, 30000, 256), (48, 30000, 256), (4, 50257, 512), (32, 5000, 64), (8, 1000, 2048), (4, 21, 262144), (8, 151, 16384),
    (2, 19, 524288), (64, 32, 1024), (256, 128, 16),
)  # fmt: skip
# channels in and out, kernel, stride, groups, sides of the image, batch
DIMENSIONS = (
    (3, 64, (3, 7, 7), (1, 2, 2), 1, (16, 112, 112), 8), (64, 64, (3, 3, 3), (1, 1, 1), 1, (16, 56, 56), 8),
    (128, 128, (3, 3, 3), (1, 1, 1), 1, (8, 28, 28), 16), (256, 256, (3, 3, 3), (1, 1, 1), 1, (4, 14, 14), 24),
    (64, 128, (3, 3, 3), (2, 2, 2), 1, (16, 56, 56), 8), (32, 32, (3, 3, 3), (1, 1, 1), 1, (64, 64, 64), 2),
    (32, 64, (3, 3, 3), (1, 1, 1), 1, (32, 32, 32), 2), (1, 32, (3, 3, 3), (1, 1, 1), 1, (96, 96, 96), 2),
    (1, 512, (10,), (5,), 1, (64000,), 4), (512, 512, (3,), (2,), 1, (12799,), 4), (512, 512, (2,), (2,), 1, (1600,), 4),
    (1024, 2048, (3,), (1,), 1, (64,), 64), (512, 1024, (3,), (1,), 1, (32,), 64), (80, 1280, (3,), (1,), 1, (3000,), 8),
    (39, 32, (7, 7), (1, 1), 1, (518, 1030), 1), (16, 3, (7, 7), (1, 1), 1, (518, 1030), 1), (32, 3, (7, 7), (1, 1), 1, (518, 1030), 1),
    (64, 64, (3, 3), (1, 1), 1, (512, 1024), 1), (1024, 1024, (3, 3), (1, 1), 1, (34, 66), 1), (256, 256, (3, 3), (1, 1), 1, (200, 336), 2),
    (3, 64, (11, 11), (4, 4), 1, (224, 224), 256), (64, 192, (5, 5), (1, 1), 1, (27, 27), 256), (48, 64, (5, 5), (1, 1), 1, (35, 35), 32),
    (128, 192, (1, 7), (1, 1), 1, (17, 17), 32), (448, 384, (3, 3), (1, 1), 1, (8, 8), 32), (128, 32, (3, 3), (1, 1), 1, (56, 56), 32),
    (512, 32, (3, 3), (1, 1), 1, (14, 14), 32), (232, 232, (3, 3), (1, 1), 29, (28, 28), 32), (256, 256, (3, 3), (1, 1), 32, (28, 28), 32),
    (96, 96, (7, 7), (1, 1), 96, (56, 56), 32), (192, 192, (7, 7), (1, 1), 192, (56, 56), 32),
    (384, 384, (7, 7), (1, 1), 384, (28, 28), 32), (768, 768, (7, 7), (1, 1), 768, (14, 14), 32),
    (1536, 1536, (7, 7), (1, 1), 1536, (7, 7), 32), (256, 256, (5, 5), (1, 1), 256, (28, 28), 32),
    (728, 728, (3, 3), (1, 1), 728, (33, 33), 8), (168, 168, (5, 5), (2, 2), 168, (83, 83), 32),
)  # fmt: skip


def points(make: Maker) -> list[Point]:
    """All points, those of all groups in turn."""
    found: dict[str, list[Point]] = {}
    for maker in (_across, _convolutions, _regions, _added, _norms, _others):
        for point in maker(make):
            found.setdefault(point.group, []).append(point)
    places = [(rank / len(group), name, point) for name, group in found.items() for rank, point in enumerate(group)]
    return [point for _, _, point in sorted(places, key=lambda place: place[:2])]


def _across(make: Maker) -> Iterator[Point]:
    for outer, wide, inner in ACROSS:
        shape = (make.size(outer), make.size(wide), make.size(inner))
        for dtype in (FP32, BF16):

            def one(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(*shape, dtype=dtype), 1, False

            def back(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(*shape, dtype=dtype), make.normal(*shape, dtype=dtype), 1, dtype

            yield Point("softmax across", aten._log_softmax.default, one)
            yield Point("softmax across backward", aten._log_softmax_backward_data.default, back)


def _convolutions(make: Maker) -> Iterator[Point]:
    for inner, outer, kernel, stride, groups, sides, batch in DIMENSIONS:
        for dtype, last in ((FP32, False), (FP16, False), (FP32, True), (FP16, True)):
            if last and len(sides) != 2:
                continue
            if make.shrink > 1:
                batch, sides = 1, tuple(max(side // make.shrink, 11) for side in sides)  # noqa: PLW2901
            yield from _convolution(make, (batch, inner, *sides), outer, kernel, stride, groups, dtype, last)


def _convolution(
    make: Maker,
    shape: tuple[int, ...],
    outer: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    groups: int,
    dtype: torch.dtype,
    last: bool,
) -> Iterator[Point]:
    padding = [size // 2 for size in kernel]
    settings = ([*stride], padding, [1] * len(kernel), False, [0] * len(kernel), groups)
    to = [
        (side + 2 * pad - size) // step + 1
        for side, pad, size, step in zip(shape[2:], padding, kernel, stride, strict=True)
    ]

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        image = make.normal(*shape, dtype=dtype, channels_last=last)
        return image, make.normal(outer, shape[1] // groups, *kernel, dtype=dtype, channels_last=last)

    def forward() -> tuple[Any, ...]:
        return (*operands(), None, *settings)

    def backward(mask: list[bool]) -> Callable[[], tuple[Any, ...]]:
        def make_backward() -> tuple[Any, ...]:
            gradient = make.normal(shape[0], outer, *to, dtype=dtype, channels_last=last)
            return (gradient, *operands(), None, *settings, mask)

        return make_backward

    name = "depthwise" if groups == shape[1] and groups > 1 else "grouped" if groups > 1 else "conv"
    name += f" {len(kernel)}d"
    yield Point(name, aten.convolution.default, forward)
    for mask in ([False, True, False], [True, False, False]):
        if not (mask[0] and shape[1] <= 3):
            yield Point(f"{name} backward", aten.convolution_backward.default, backward(mask))


def _regions(make: Maker) -> Iterator[Point]:
    import torchvision  # noqa: F401  (registers its operators)

    operators = torch.ops.torchvision
    for channels, height, width, batch, count, size, ratio in (
        (256, 200, 336, 2, 512, 7, 2), (256, 200, 336, 8, 4096, 7, 2), (256, 50, 84, 8, 1024, 14, 2), (256, 100, 168, 2, 256, 14, 2),
        (256, 25, 42, 4, 1000, 7, 2), (512, 38, 50, 4, 512, 7, 0), (1024, 50, 84, 2, 512, 14, 0),
    ):  # fmt: skip
        shape = (batch, channels, height, width)

        def boxes(b: int = batch, h: int = height, w: int = width, n: int = count) -> torch.Tensor:
            corner = torch.rand(n, 2, device=make.device) * 0.7
            sides = corner + 0.05 + torch.rand(n, 2, device=make.device) * 0.25
            scale = torch.tensor([w, h], device=make.device)
            return torch.cat([make.whole(b, n, 1).float(), corner * scale, sides * scale], 1)

        def cut(shape: tuple[int, ...] = shape, s: int = size, r: int = ratio, of: Any = boxes) -> tuple[Any, ...]:
            return make.normal(*shape), of(), 1.0, s, s, r, False

        def back(
            shape: tuple[int, ...] = shape, s: int = size, r: int = ratio, of: Any = boxes, n: int = count
        ) -> tuple[Any, ...]:
            return make.normal(n, shape[1], s, s), of(), 1.0, s, s, *shape, r, False

        yield Point("regions", operators.roi_align.default, cut)
        yield Point("regions backward", operators._roi_align_backward.default, back)


def _added(make: Maker) -> Iterator[Point]:
    """Values that are added up where indices say: at few places or many, single ones or rows."""
    for count, places in ((1 << 21, 32), (1 << 21, 1024), (1 << 21, 1 << 20), (1 << 17, 32), (1 << 23, 256)):

        def add(n: int = count, p: int = places) -> tuple[Any, ...]:
            n = make.size(n)
            return make.normal(3, p), 1, make.whole(p, 3, n), make.normal(3, n)

        yield Point("scatter few", aten.scatter_add.default, add)
    for rows, side, columns in ((2048, 27, 351), (32768, 27, 351), (256, 27, 351), (8192, 64, 2016), (1024, 16, 120)):

        def put(r: int = rows, s: int = side, c: int = columns) -> tuple[Any, ...]:
            r = make.size(r)
            lower = torch.tril_indices(s, s, -1, device=make.device)[:, :c]
            values = make.normal(r, lower.shape[1])
            everything = torch.arange(r, device=make.device)[:, None]
            return torch.zeros(r, s, s, device=make.device), [everything, lower[0][None], lower[1][None]], values, True

        def put_columns(r: int = rows, s: int = side, c: int = columns) -> tuple[Any, ...]:
            target, (_, *where), values, accumulate = put(r, s, c)
            return target, [None, where[0][0], where[1][0]], values, accumulate

        yield Point("index put", aten.index_put_.default, put_columns)
    for rows, width, looked_up, bags in (
        (100000, 64, 131072, 32768), (100000, 64, 16384, 4096), (1000000, 64, 32768, 32768), (30000, 768, 4096, 4096),
    ):  # fmt: skip

        def bag(r: int = rows, w: int = width, n: int = looked_up, b: int = bags) -> tuple[Any, ...]:
            n, b = make.size(n), make.size(b)
            offsets = torch.arange(b, device=make.device) * (n // b)
            return make.normal(make.size(r), w), make.whole(make.size(r), n), offsets

        def rows_added(r: int = rows, w: int = width, n: int = looked_up) -> tuple[Any, ...]:
            return make.normal(make.size(n), w), make.whole(make.size(r), make.size(n)), make.size(r), -1, False

        yield Point("bag", aten._embedding_bag.default, bag)
        yield Point("rows added", aten.embedding_dense_backward.default, rows_added)


def _norms(make: Maker) -> Iterator[Point]:
    for batch, channels, side in (
        (48, 64, 112),
        (48, 256, 56),
        (32, 512, 28),
        (160, 64, 56),
        (8, 2048, 7),
        (2, 64, 400),
    ):
        for dtype in (FP32, FP16, BF16):

            def known(b: int = batch, c: int = channels, s: int = side, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                numbers = (make.normal(c), make.normal(c), make.normal(c), make.normal(c).abs() + 1)
                return make.normal(b, c, make.size(s, 4), make.size(s, 4), dtype=dtype), *numbers, False, 0.1, 1e-5

            yield Point("norm applied", aten.native_batch_norm.default, known)
    for batch, channels, side in ((1, 64, 512), (1, 32, 1024), (4, 64, 256), (16, 128, 64)):

        def alone(b: int = batch, c: int = channels, s: int = side) -> tuple[Any, ...]:
            s = make.size(s, 4)
            return make.normal(1, b * c, s, s), None, None, None, None, True, 0.1, 1e-5

        def alone_back(b: int = batch, c: int = channels, s: int = side) -> tuple[Any, ...]:
            s = make.size(s, 4)
            image = make.normal(1, b * c, s, s)
            numbers = make.normal(b * c), make.normal(b * c).abs()
            return make.normal(1, b * c, s, s), image, None, None, None, *numbers, True, 1e-5, [True, False, False]

        yield Point("instance norm", aten.native_batch_norm.default, alone)
        yield Point("instance norm backward", aten.native_batch_norm_backward.default, alone_back)


def _others(make: Maker) -> Iterator[Point]:
    import torchvision  # noqa: F401  (registers its operators)

    for boxes in (1000, 2000, 4000, 8000):

        def overlapping(n: int = boxes) -> tuple[Any, ...]:
            n = make.size(n)
            corner = torch.rand(n, 2, device=make.device) * 800
            return torch.cat([corner, corner + 20 + torch.rand(n, 2, device=make.device) * 100], 1), make.normal(n), 0.7

        yield Point("suppression", torch.ops.torchvision.nms.default, overlapping)
    for batch, channels, low, high in (
        (10, 256, 1, 41),
        (4, 256, 1, 33),
        (10, 21, 41, 321),
        (4, 21, 33, 513),
        (8, 256, 1, 65),
    ):

        def gradient(b: int = batch, c: int = channels, low: int = low, high: int = high) -> tuple[Any, ...]:
            return make.normal(b, c, high, high), [high, high], [b, c, low, low], False

        yield Point("interpolate backward far", aten.upsample_bilinear2d_backward.default, gradient)
    for batch, side, channels in ((64, 56, 96), (64, 28, 192), (64, 14, 384), (32, 48, 192)):
        for dtype in (FP32, BF16):

            def rolled(b: int = batch, s: int = side, c: int = channels, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(b, s, s, c, dtype=dtype), [-3, -3], [1, 2]

            yield Point("roll", aten.roll.default, rolled)
    for shape in ((32, 6, 1024, 1024), (8, 12, 512, 512), (64, 8, 64, 64)):
        for dtype in (FP32, BF16):

            def scores(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(*map(make.size, shape), dtype=dtype), -1

            yield Point("safe softmax", aten._safe_softmax.default, scores)
