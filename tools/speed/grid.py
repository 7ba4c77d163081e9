"""The grid of operators that tools/measure_ops.py times: which operator, on which shapes, in which dtype.

Each point is made by a function without arguments that returns the operator and its arguments; tensors are made on the device
that `make` stands for, so that nothing is held before its turn. Sizes run from where a launch costs more than the work to where
bandwidth or arithmetic is the limit. The points come in an order that covers every kind early: a run that is cut short is a
coarser grid, not a part of one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten
FP32, FP16, BF16, INT64 = torch.float32, torch.float16, torch.bfloat16, torch.int64
HALVES = (FP16, BF16)
FLOATS = (FP32, BF16, FP16)


class Point(NamedTuple):
    """One thing to time."""

    group: str  # kind of operator, for the order and for reading the results
    operator: Any  # an overload of torch.ops
    make: Callable[[], tuple[Any, ...]]  # its arguments, tensors of their own at each call
    tf32: bool = False  # whether matrix products may use TF32
    tf32_convolution: bool = True  # PyTorch's default


class Maker:
    """Makes tensors on a device; `shrink` divides large sizes, for a rehearsal on a CPU."""

    def __init__(self, device: str, shrink: int = 1) -> None:
        self.device, self.shrink = device, shrink

    def size(self, number: int, least: int = 2) -> int:
        return number if self.shrink == 1 else max(min(number, least * 8), number // self.shrink, 1)

    def normal(self, *shape: int, dtype: torch.dtype = FP32, channels_last: bool = False) -> torch.Tensor:
        tensor = torch.randn(shape, device=self.device, dtype=dtype)
        return tensor.contiguous(memory_format=torch.channels_last) if channels_last else tensor

    def whole(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=self.device)


def points(make: Maker, seed: int = 0) -> list[Point]:
    """All points: shuffled within a group, then one group after the other in turn."""
    found: dict[str, list[Point]] = {}
    for maker in (
        _products,
        _batched,
        _convolutions,
        _attention,
        _norms,
        _softmaxes,
        _elementwise,
        _reductions,
        _moving,
        _indexing,
        _optimizers,
        _spatial,
        _others,
    ):
        for point in maker(make):
            found.setdefault(point.group, []).append(point)
    shuffle = random.Random(seed)
    for group in found.values():
        shuffle.shuffle(group)
    places = [(rank / len(group), name, point) for name, group in found.items() for rank, point in enumerate(group)]
    return [point for _, _, point in sorted(places, key=lambda place: place[:2])]


def _precisions() -> tuple[tuple[torch.dtype, bool], ...]:
    return ((FP32, False), (FP32, True), (BF16, False), (FP16, False))


PRODUCTS = (
    # rows, inner, columns: transformers, classifiers, recommenders, LoRA
    *((rows, inner, columns) for rows in (128, 512, 2048, 8192, 32768)
      for inner, columns in ((768, 768), (768, 3072), (3072, 768), (1024, 4096), (4096, 4096), (4096, 14336))),
    *((side, side, side) for side in (64, 128, 256, 512, 1024, 2048, 4096, 8192)),
    (8, 2048, 1000), (64, 2048, 1000), (256, 2048, 1000), (1024, 768, 30522), (4096, 768, 50257), (64, 768, 768),
    (16, 1024, 1024), (1, 4096, 4096), (8192, 4096, 8), (8192, 8, 4096), (8192, 4096, 64), (8192, 64, 4096),
    (2048, 13, 512), (2048, 512, 256), (2048, 256, 64), (32768, 512, 256), (2048, 1, 1024), (256, 25088, 4096),
    (65536, 96, 96), (65536, 96, 384), (262144, 64, 64), (197 * 64, 384, 1536), (197 * 64, 1536, 384),
    (768, 8192, 768), (768, 8192, 3072), (4096, 8192, 4096), (64, 65536, 64), (1000, 256, 2048), (50257, 4096, 768),
    (1023, 765, 771), (4097, 1025, 513),
)  # fmt: skip


def _products(make: Maker) -> Iterator[Point]:
    for number, (rows, inner, columns) in enumerate(PRODUCTS):
        m, k, n = make.size(rows), make.size(inner), make.size(columns)
        for dtype, tf32 in _precisions():
            if dtype is FP16 and number % 2:
                continue

            def plain(m: int = m, k: int = k, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(m, k, dtype=dtype), make.normal(k, n, dtype=dtype)

            def weight(m: int = m, k: int = k, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                bias = make.normal(n, dtype=dtype)
                return bias, make.normal(m, k, dtype=dtype), make.normal(n, k, dtype=dtype).t()

            def gradient(m: int = m, k: int = k, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(k, m, dtype=dtype).t(), make.normal(k, n, dtype=dtype)

            yield Point("mm", aten.mm.default, (plain, gradient)[number % 2], tf32)
            yield Point("addmm", aten.addmm.default, weight, tf32)


BATCHED = (
    *((groups, length, size, length) for groups in (16, 96, 384) for length in (64, 128, 512, 1024) for size in (64,)),
    *((groups, length, length, 64) for groups in (16, 96, 384) for length in (64, 128, 512, 1024)),
    (12, 384, 64, 384), (8, 2048, 128, 2048), (2048, 27, 64, 27), (2048, 49, 32, 49), (512, 64, 64, 64), (8, 1024, 1024, 1024),
    (64, 256, 256, 256), (4096, 8, 64, 8),
)  # fmt: skip


def _batched(make: Maker) -> Iterator[Point]:
    for groups, rows, inner, columns in BATCHED:
        b, m, k, n = make.size(groups), make.size(rows), make.size(inner), make.size(columns)
        for dtype, tf32 in _precisions()[:3]:

            def operands(b: int = b, m: int = m, k: int = k, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(b, m, k, dtype=dtype), make.normal(b, k, n, dtype=dtype)

            yield Point("bmm", aten.bmm.default, operands, tf32)


CONVOLUTIONS = (
    # channels in, channels out, kernel, stride, groups, side
    (3, 64, 7, 2, 1, 224), (3, 64, 3, 1, 1, 224), (3, 32, 3, 2, 1, 224), (3, 768, 16, 16, 1, 224), (3, 96, 4, 4, 1, 224),
    (64, 64, 1, 1, 1, 56), (64, 256, 1, 1, 1, 56), (256, 64, 1, 1, 1, 56), (64, 64, 3, 1, 1, 56), (256, 512, 1, 2, 1, 56),
    (128, 128, 3, 2, 1, 56), (128, 128, 3, 1, 1, 28), (128, 512, 1, 1, 1, 28), (512, 128, 1, 1, 1, 28),
    (256, 256, 3, 1, 1, 14), (256, 1024, 1, 1, 1, 14), (1024, 256, 1, 1, 1, 14), (512, 512, 3, 1, 1, 7), (512, 2048, 1, 1, 1, 7),
    (2048, 512, 1, 1, 1, 7), (512, 512, 3, 2, 1, 14), (256, 256, 3, 1, 1, 56), (512, 512, 3, 1, 1, 28), (64, 128, 3, 1, 1, 112),
    (128, 128, 3, 1, 1, 112), (64, 64, 3, 1, 1, 224), (320, 320, 3, 1, 1, 64), (640, 640, 3, 1, 1, 32), (1280, 1280, 3, 1, 1, 16),
    (192, 192, 3, 1, 192, 56), (384, 384, 7, 1, 384, 14), (96, 96, 7, 1, 96, 56), (32, 32, 3, 1, 32, 112), (144, 144, 3, 2, 144, 56),
    (672, 672, 5, 1, 672, 14), (128, 128, 3, 1, 32, 56), (512, 512, 3, 1, 32, 14), (256, 256, 3, 1, 4, 28), (168, 168, 7, 2, 168, 83),
    (24, 144, 1, 1, 1, 56), (96, 24, 1, 1, 1, 112), (1152, 320, 1, 1, 1, 7), (728, 728, 1, 1, 1, 33), (2048, 256, 1, 1, 1, 65),
    (1024, 512, 5, 1, 1, 14), (512, 512, 4, 2, 1, 32), (32, 32, 3, 1, 1, 256), (16, 16, 3, 1, 1, 512),
)  # fmt: skip


def _convolutions(make: Maker) -> Iterator[Point]:
    for number, (inner, outer, kernel, stride, groups, side) in enumerate(CONVOLUTIONS):
        for rank, batch in enumerate((4, 32, 128)):
            ways = [(FP32, False, True), (FP16, True, True), (BF16, False, True), (FP32, False, False)]
            ways += [(FP32, True, True), (FP16, False, True)]
            # the first two everywhere, the others in turn
            chosen = [*ways[:2], ways[2 + (number + rank) % 4]]
            for dtype, last, tf32 in chosen:
                yield from _convolution(make, inner, outer, kernel, stride, groups, side, batch, dtype, last, tf32)


def _convolution(
    make: Maker,
    inner: int,
    outer: int,
    kernel: int,
    stride: int,
    groups: int,
    side: int,
    batch: int,
    dtype: torch.dtype,
    last: bool,
    tf32: bool,
) -> Iterator[Point]:
    if make.shrink > 1:
        batch, side = 1, max(side // make.shrink, kernel)
    padding = 0 if kernel == stride else kernel // 2
    settings = ([stride, stride], [padding, padding], [1, 1], False, [0, 0], groups)
    shape = (batch, inner, side, side)
    to = (side + 2 * padding - kernel) // stride + 1
    name = "depthwise" if groups == inner and groups > 1 else "grouped" if groups > 1 else "conv"

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        image = make.normal(*shape, dtype=dtype, channels_last=last)
        return image, make.normal(outer, inner // groups, kernel, kernel, dtype=dtype, channels_last=last)

    def forward() -> tuple[Any, ...]:
        return (*operands(), None, *settings)

    def backward(mask: list[bool]) -> Callable[[], tuple[Any, ...]]:
        def make_backward() -> tuple[Any, ...]:
            image, weight = operands()
            gradient = make.normal(batch, outer, to, to, dtype=dtype, channels_last=last)
            return (gradient, image, weight, None, *settings, mask)

        return make_backward

    yield Point(name, aten.convolution.default, forward, False, tf32)
    operator = aten.convolution_backward.default
    masks = [[False, True, False]] if inner == 3 else [[True, True, False]]
    if inner > 3 and tf32 and dtype is not BF16:
        masks.append([True, False, False])
    for mask in masks:
        yield Point(f"{name} backward", operator, backward(mask), False, tf32)


ATTENTION = (
    (8, 12, 128, 64), (64, 12, 128, 64), (4, 12, 1024, 64), (16, 12, 1024, 64), (1, 32, 4096, 128), (2, 32, 2048, 128),
    (64, 12, 197, 64), (256, 6, 197, 64), (4, 8, 4096, 40), (4, 16, 512, 64), (16, 16, 512, 64), (1024, 4, 49, 32),
)  # fmt: skip


def _attention(make: Maker) -> Iterator[Point]:
    if make.device == "cpu":
        return
    for batch, heads, length, size in ATTENTION:
        for causal in (False, True):
            for dtype in HALVES if not causal else (BF16,):
                shape = (batch, heads, length, size)
                yield from _attentions(make, shape, dtype, causal, ("flash", "cudnn", "efficient"))
            if length <= 2048:
                yield from _attentions(make, (batch, heads, length, size), FP32, causal, ("efficient",))


def _attentions(
    make: Maker, shape: tuple[int, ...], dtype: torch.dtype, causal: bool, kinds: tuple[str, ...]
) -> Iterator[Point]:
    def tensors(count: int) -> list[torch.Tensor]:
        batch, heads, length, size = shape  # as the layers hand them over: heads inside the last dimension
        return [make.normal(batch, length, heads, size, dtype=dtype).transpose(1, 2) for _ in range(count)]

    def flash() -> tuple[Any, ...]:
        return (*tensors(3), 0.0, causal, False)

    def flash_backward() -> tuple[Any, ...]:
        gradient, *qkv = tensors(4)
        out, log, a, b, most, most_keys, seed, offset, _ = aten._scaled_dot_product_flash_attention.default(
            *qkv, 0.0, causal, False
        )
        return (gradient, *qkv, out, log, a, b, most, most_keys, 0.0, causal, seed, offset)

    def efficient() -> tuple[Any, ...]:
        return (*tensors(3), None, True, 0.0, causal)

    def efficient_backward() -> tuple[Any, ...]:
        gradient, *qkv = tensors(4)
        made = aten._scaled_dot_product_efficient_attention.default(*qkv, None, True, 0.0, causal)
        return (gradient, *qkv, None, *made, 0.0, [True, True, True, False], causal)

    def cudnn() -> tuple[Any, ...]:
        return (*tensors(3), None, True, 0.0, causal, False)

    def cudnn_backward() -> tuple[Any, ...]:
        gradient, *qkv = tensors(4)
        out, log, a, b, most, most_keys, seed, offset, _ = aten._scaled_dot_product_cudnn_attention.default(
            *qkv, None, True, 0.0, causal, False
        )
        return (gradient, *qkv, out, log, seed, offset, None, a, b, most, most_keys, 0.0, causal)

    table = {
        "flash": (flash, flash_backward),
        "efficient": (efficient, efficient_backward),
        "cudnn": (cudnn, cudnn_backward),
    }
    for kind in kinds:
        forward, backward = table[kind]
        name = f"_scaled_dot_product_{kind}_attention"
        yield Point(f"{kind} attention", getattr(aten, name).default, forward)
        yield Point(f"{kind} attention backward", getattr(aten, name + "_backward").default, backward)


ROWS = (
    (128, 768),
    (1024, 768),
    (8192, 768),
    (32768, 768),
    (2048, 4096),
    (16384, 1024),
    (100352, 192),
    (200000, 96),
    (32768, 256),
)
IMAGES = (
    (4, 64, 112),
    (32, 64, 112),
    (128, 64, 56),
    (32, 256, 56),
    (128, 512, 28),
    (32, 1024, 14),
    (128, 2048, 7),
    (8, 32, 256),
)


def _norms(make: Maker) -> Iterator[Point]:
    for rows, width in ROWS:
        r, w = make.size(rows), make.size(width)
        for dtype in FLOATS[:2]:

            def layer(r: int = r, w: int = w, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return (
                    make.normal(r, w, dtype=dtype),
                    [w],
                    make.normal(w, dtype=dtype),
                    make.normal(w, dtype=dtype),
                    1e-5,
                )

            def layer_backward(r: int = r, w: int = w, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                x, weight, bias = (
                    make.normal(r, w, dtype=dtype),
                    make.normal(w, dtype=dtype),
                    make.normal(w, dtype=dtype),
                )
                _, mean, scale = aten.native_layer_norm.default(x, [w], weight, bias, 1e-5)
                return make.normal(r, w, dtype=dtype), x, [w], mean, scale, weight, bias, [True, True, True]

            yield Point("layer norm", aten.native_layer_norm.default, layer)
            yield Point("layer norm backward", aten.native_layer_norm_backward.default, layer_backward)
    for batch, channels, side in IMAGES:
        b, s = make.size(batch), make.size(side)
        for dtype, last in ((FP32, False), (FP16, True), (BF16, False), (FP32, True)):

            def batched(
                b: int = b, c: int = channels, s: int = s, dtype: torch.dtype = dtype, last: bool = last
            ) -> tuple[Any, ...]:
                state = [make.normal(c) for _ in range(3)] + [make.normal(c).abs()]
                return make.normal(b, c, s, s, dtype=dtype, channels_last=last), *state, True, 0.1, 1e-5

            def batched_backward(
                b: int = b, c: int = channels, s: int = s, dtype: torch.dtype = dtype, last: bool = last
            ) -> tuple[Any, ...]:
                image = make.normal(b, c, s, s, dtype=dtype, channels_last=last)
                gradient = make.normal(b, c, s, s, dtype=dtype, channels_last=last)
                weight, mean, variance = make.normal(c), make.normal(c), make.normal(c).abs()
                means, scales = make.normal(c), make.normal(c).abs()
                return gradient, image, weight, mean, variance, means, scales, True, 1e-5, [True, True, True]

            yield Point("batch norm", aten.native_batch_norm.default, batched)
            yield Point("batch norm backward", aten.native_batch_norm_backward.default, batched_backward)
        for dtype in FLOATS[:2]:

            def grouped(b: int = b, c: int = channels, s: int = s, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                weight, bias = make.normal(c, dtype=dtype), make.normal(c, dtype=dtype)
                return make.normal(b, c, s, s, dtype=dtype), weight, bias, b, c, s * s, 32, 1e-5

            def grouped_backward(
                b: int = b, c: int = channels, s: int = s, dtype: torch.dtype = dtype
            ) -> tuple[Any, ...]:
                image, weight = make.normal(b, c, s, s, dtype=dtype), make.normal(c, dtype=dtype)
                _, mean, scale = aten.native_group_norm.default(image, weight, None, b, c, s * s, 32, 1e-5)
                gradient = make.normal(b, c, s, s, dtype=dtype)
                return gradient, image, mean, scale, weight, b, c, s * s, 32, [True, True, True]

            yield Point("group norm", aten.native_group_norm.default, grouped)
            yield Point("group norm backward", aten.native_group_norm_backward.default, grouped_backward)


SOFTMAXES = (
    (96 * 128, 128),
    (768 * 128, 128),
    (192 * 1024, 1024),
    (49152, 512),
    (1024, 30522),
    (8192, 50257),
    (256, 1000),
    (64, 1000),
)


def _softmaxes(make: Maker) -> Iterator[Point]:
    for rows, width in SOFTMAXES:
        r, w = make.size(rows), make.size(width)
        for dtype in FLOATS[:2]:

            def one(r: int = r, w: int = w, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), -1, False

            def back(r: int = r, w: int = w, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), make.normal(r, w, dtype=dtype), -1, dtype

            yield Point("softmax", aten._softmax.default, one)
            yield Point("softmax backward", aten._softmax_backward_data.default, back)
            if width >= 1000:
                yield Point("log softmax", aten._log_softmax.default, one)
                yield Point("log softmax backward", aten._log_softmax_backward_data.default, back)
        if width >= 1000:

            def loss(r: int = r, w: int = w) -> tuple[Any, ...]:
                return make.normal(r, w), make.whole(w, r), None, 1, -100

            def loss_backward(r: int = r, w: int = w) -> tuple[Any, ...]:
                total = torch.ones((), device=make.device)
                return torch.ones((), device=make.device), make.normal(r, w), make.whole(w, r), None, 1, -100, total

            yield Point("loss", aten.nll_loss_forward.default, loss)
            yield Point("loss backward", aten.nll_loss_backward.default, loss_backward)


COUNTS = tuple(2**power for power in (10, 14, 17, 19, 20, 21, 22, 23, 24, 25, 26, 28))


def _elementwise(make: Maker) -> Iterator[Point]:
    one = (aten.relu.default, aten.gelu.default, aten.silu.default, aten.tanh.default, aten.sigmoid.default, aten.exp.default,
           aten.rsqrt.default, aten.neg.default, aten.relu_.default)  # fmt: skip
    two = (aten.add.Tensor, aten.mul.Tensor, aten.add_.Tensor, aten.div.Tensor, aten.gelu_backward.default,
           aten.silu_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default)  # fmt: skip
    for rank, count in enumerate(COUNTS):
        n = make.size(count)
        for dtype in FLOATS[:2]:

            def first(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return (make.normal(n, dtype=dtype),)

            def both(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), make.normal(n, dtype=dtype)

            def scaled(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), 2.0

            def threshold(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), make.normal(n, dtype=dtype), 0.0

            def dropped(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), 0.1, True

            def dropped_backward(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), make.normal(n) > 0, 1.1

            def fused(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), make.normal(n, dtype=dtype), make.normal(n, dtype=dtype)

            def broadcast(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                width = min(1024, n)
                return make.normal(n // width, width, dtype=dtype), make.normal(width, dtype=dtype)

            # every operator at each second size
            yield from (Point("unary", operator, first) for operator in one[rank % 2 :: 2])
            yield from (Point("binary", operator, both) for operator in two[rank % 2 :: 2])
            yield Point("scalar", aten.mul.Tensor, scaled)
            yield Point("unary", aten.pow.Tensor_Scalar, scaled)
            yield Point("binary", aten.threshold_backward.default, threshold)
            yield Point("broadcast", aten.add.Tensor, broadcast)
            yield Point("dropout", aten.native_dropout.default, dropped)
            yield Point("dropout backward", aten.native_dropout_backward.default, dropped_backward)
            yield Point("ternary", aten.addcmul.default, fused)


def _reductions(make: Maker) -> Iterator[Point]:
    for rows, columns in (
        (1024, 1024),
        (8192, 768),
        (32768, 3072),
        (64, 1000),
        (65536, 64),
        (64, 1048576),
        (4096, 50257),
        (2048, 256),
    ):
        r, c = make.size(rows), make.size(columns)
        for dtype in FLOATS[:2]:
            for axis in (0, 1):

                def along(r: int = r, c: int = c, dtype: torch.dtype = dtype, axis: int = axis) -> tuple[Any, ...]:
                    return make.normal(r, c, dtype=dtype), [axis]

                yield Point("reduction", aten.sum.dim_IntList, along)
                if axis:
                    yield Point("reduction", aten.mean.dim, along)

            def whole(r: int = r, c: int = c, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return (make.normal(r, c, dtype=dtype),)

            yield Point("reduction", aten.sum.default, whole)
            yield Point("reduction", aten.linalg_vector_norm.default, whole)
    for batch, channels, side in IMAGES:

        def image(b: int = batch, c: int = channels, s: int = side) -> tuple[Any, ...]:
            return make.normal(make.size(b), c, make.size(s), make.size(s)), [2, 3]

        def bias(b: int = batch, c: int = channels, s: int = side) -> tuple[Any, ...]:
            return make.normal(make.size(b), c, make.size(s), make.size(s)), [0, 2, 3]

        yield Point("reduction", aten.mean.dim, image)
        yield Point("reduction", aten.sum.dim_IntList, bias)


def _moving(make: Maker) -> Iterator[Point]:
    for rank, count in enumerate(COUNTS[1:]):
        n = make.size(count, 64)
        for source, target in ((FP32, BF16), (BF16, FP32), (FP32, FP16), (INT64, FP32))[: 2 + 2 * (rank % 2)]:

            def cast(n: int = n, source: torch.dtype = source, target: torch.dtype = target) -> tuple[Any, ...]:
                return make.normal(n).to(source), target

            yield Point("cast", torch.ops.prims.convert_element_type.default, cast)
        for dtype in FLOATS[:2]:

            def same(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, dtype=dtype), make.normal(n, dtype=dtype)

            def turned(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                columns = min(1024, n // 16)
                return make.normal(n // columns, columns, dtype=dtype), make.normal(
                    columns, n // columns, dtype=dtype
                ).t()

            def heads(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                length, size = 16, 64
                batch = max(n // (length * size * 4), 1)
                to = make.normal(batch, 4, length, size, dtype=dtype)
                return to, make.normal(batch, length, 4, size, dtype=dtype).transpose(1, 2)

            def layout(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                batch = max(n // (64 * 28 * 28), 1)
                image = make.normal(batch, 64, 28, 28, dtype=dtype)
                return make.normal(batch, 64, 28, 28, dtype=dtype, channels_last=True), image

            def joined(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return [make.normal(n // 2 // 16, 16, dtype=dtype) for _ in range(2)], 1

            def filled(n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return (make.normal(n, dtype=dtype),)

            for maker in (same, turned, heads, layout):
                yield Point("copy", aten.copy_.default, maker)
            yield Point("cat", aten.cat.default, joined)
            yield Point("fill", aten.zero_.default, filled)


def _indexing(make: Maker) -> Iterator[Point]:
    for rows, width, count in ((30522, 768, 4096), (50257, 768, 8192), (128256, 4096, 4096), (100000, 64, 65536), (1000000, 128, 32768),
                               (2708, 16, 10556), (100000, 128, 500000), (512, 768, 1024)):  # fmt: skip
        r, w, n = make.size(rows), make.size(width), make.size(count)
        for dtype in FLOATS[:2]:

            def looked_up(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), make.whole(r, n)

            def looked_up_backward(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(n, w, dtype=dtype), make.whole(r, n), r, -1, False

            def selected(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), 0, make.whole(r, n)

            def indexed(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), [make.whole(r, n)]

            def added(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), 0, make.whole(r, n), make.normal(n, w, dtype=dtype)

            def scattered(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                index = make.whole(r, n)[:, None].expand(n, w)
                return make.normal(r, w, dtype=dtype), 0, index, make.normal(n, w, dtype=dtype)

            def put(r: int = r, w: int = w, n: int = n, dtype: torch.dtype = dtype) -> tuple[Any, ...]:
                return make.normal(r, w, dtype=dtype), [make.whole(r, n)], make.normal(n, w, dtype=dtype), True

            yield Point("embedding", aten.embedding.default, looked_up)
            yield Point("embedding backward", aten.embedding_dense_backward.default, looked_up_backward)
            yield Point("index", aten.index_select.default, selected)
            yield Point("index", aten.index.Tensor, indexed)
            yield Point("scatter", aten.index_add_.default, added)
            yield Point("scatter", aten.scatter_add_.default, scattered)
            yield Point("scatter", aten.index_put_.default, put)


def _optimizers(make: Maker) -> Iterator[Point]:
    # number of tensors, elements of each: a small net, ResNet-50, BERT-base, a large model
    for tensors, count in ((16, 4096), (160, 512), (160, 160_000), (200, 550_000), (150, 2_400_000), (30, 16_000_000)):
        n = make.size(count)
        k = tensors if make.shrink == 1 else 4

        def lists(number: int, n: int = n, k: int = k) -> list[list[torch.Tensor]]:
            return [[make.normal(n) for _ in range(k)] for _ in range(number)]

        def single(n: int = n, k: int = k) -> tuple[Any, ...]:
            return lists(1, n, k)[0], 0.9

        def pair(n: int = n, k: int = k) -> tuple[Any, ...]:
            return tuple(lists(2, n, k))

        def root(n: int = n, k: int = k) -> tuple[Any, ...]:
            return ([tensor.abs() for tensor in lists(1, n, k)[0]],)

        def third(n: int = n, k: int = k) -> tuple[Any, ...]:
            return *lists(3, n, k), 0.1

        def divided(n: int = n, k: int = k) -> tuple[Any, ...]:
            return *lists(3, n, k), [0.1] * k

        def moved(n: int = n, k: int = k) -> tuple[Any, ...]:
            return *lists(2, n, k), 0.1

        def shares(n: int = n, k: int = k) -> tuple[Any, ...]:
            return lists(1, n, k)[0], [1.1] * k

        def adam(n: int = n, k: int = k) -> tuple[Any, ...]:
            weights, gradients, means, squares = lists(4, n, k)
            steps = [torch.ones((), device=make.device) for _ in range(k)]
            return weights, gradients, means, [s.abs() for s in squares], [], steps

        yield Point("foreach", aten._foreach_mul_.Scalar, single)
        yield Point("foreach", aten._foreach_add_.List, pair)
        yield Point("foreach", aten._foreach_sqrt.default, root)
        yield Point("foreach", aten._foreach_addcmul_.Scalar, third)
        yield Point("foreach", aten._foreach_addcdiv_.ScalarList, divided)
        yield Point("foreach", aten._foreach_lerp_.Scalar, moved)
        yield Point("foreach", aten._foreach_div_.ScalarList, shares)
        yield Point("foreach", aten._foreach_norm.Scalar, lambda n=n, k=k: (lists(1, n, k)[0], 2.0))
        if make.device != "cpu":
            yield Point("fused", Fused(), adam)


class Fused:
    """The fused AdamW, whose settings are by name."""

    __name__ = "aten._fused_adamw_.default"
    _schema = aten._fused_adamw_.default._schema

    def __call__(self, *tensors: Any) -> Any:
        return aten._fused_adamw_.default(
            *tensors, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False
        )


def _spatial(make: Maker) -> Iterator[Point]:
    for batch, channels, side in IMAGES:
        b, s = make.size(batch), make.size(side)
        for dtype, last in ((FP32, False), (FP16, True), (BF16, False)):

            def image(
                b: int = b, c: int = channels, s: int = s, dtype: torch.dtype = dtype, last: bool = last
            ) -> torch.Tensor:
                return make.normal(b, c, s, s, dtype=dtype, channels_last=last)

            def pooled(image: Callable[[], torch.Tensor] = image) -> tuple[Any, ...]:
                return image(), [3, 3], [2, 2], [1, 1], [1, 1], False

            def pooled_backward(image: Callable[[], torch.Tensor] = image) -> tuple[Any, ...]:
                x = image()
                out, where = aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1], [1, 1], False)
                return torch.randn_like(out), x, [3, 3], [2, 2], [1, 1], [1, 1], False, where

            def averaged(image: Callable[[], torch.Tensor] = image) -> tuple[Any, ...]:
                return image(), [3, 3], [1, 1], [1, 1], False, True

            def larger(image: Callable[[], torch.Tensor] = image, s: int = s) -> tuple[Any, ...]:
                return image(), [2 * s, 2 * s], False

            def nearest(image: Callable[[], torch.Tensor] = image, s: int = s) -> tuple[Any, ...]:
                return image(), [2 * s, 2 * s]

            def larger_backward(image: Callable[[], torch.Tensor] = image, s: int = s) -> tuple[Any, ...]:
                x = image()
                size = list(x.shape)
                return x, [s, s], [size[0], size[1], s // 2, s // 2], False

            yield Point("pool", aten.max_pool2d_with_indices.default, pooled)
            yield Point("pool backward", aten.max_pool2d_with_indices_backward.default, pooled_backward)
            yield Point("average pool", aten.avg_pool2d.default, averaged)
            if batch * channels * side * side < 2**26:
                yield Point("interpolate", aten.upsample_bilinear2d.default, larger)
                yield Point("interpolate", aten.upsample_nearest2d.default, nearest)
            yield Point("interpolate backward", aten.upsample_bilinear2d_backward.default, larger_backward)


def _others(make: Maker) -> Iterator[Point]:
    for rows, columns, kept in ((1, 1000000, 1000), (128, 4096, 20), (4096, 64, 8), (8, 250000, 1000), (64, 1000, 5)):

        def best(r: int = rows, c: int = columns, k: int = kept) -> tuple[Any, ...]:
            return make.normal(r, make.size(c, 128)), min(k, 64) if make.shrink > 1 else k

        def ordered(r: int = rows, c: int = columns) -> tuple[Any, ...]:
            return make.normal(r, make.size(c)), -1, True

        def along(r: int = rows, c: int = columns) -> tuple[Any, ...]:
            return make.normal(r, make.size(c)), -1

        yield Point("sort", aten.topk.default, best)
        yield Point("sort", aten.sort.default, ordered)
        yield Point("cumulative", aten.cumsum.default, along)
        yield Point("reduction", aten.max.dim, along)
