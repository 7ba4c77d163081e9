"""Convolutions: those of well-known models, sweeps of one parameter at a time, then random ones until time is up."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from workspace_grid.points import ATEN, DTYPES, Make, Point

LIMIT_BYTES = 1 << 30  # of the largest tensor
LIMIT_FLOPS = {
    "fp32": 1.5e11,
    "tf32": 4e11,
    "fp16": 4e11,
    "bf16": 4e11,
}  # forward, so a point takes milliseconds
TRAIN = ((True, True, False),)
MASKS = ((True, True, False), (False, True, False), (True, True, True))


@dataclass(frozen=True)
class Conv:
    batch: int
    channels_in: int
    spatial: tuple[int, ...]
    channels_out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    bias: bool = False
    dtype: str = "tf32"
    layout: str = "contiguous"

    @property
    def weight(self) -> tuple[int, ...]:
        if self.transposed:
            return (self.channels_in, self.channels_out // self.groups, *self.kernel)
        return (self.channels_out, self.channels_in // self.groups, *self.kernel)

    @property
    def output(self) -> tuple[int, ...]:
        sizes = []
        for i, size in enumerate(self.spatial):
            reach = self.dilation[i] * (self.kernel[i] - 1)
            if self.transposed:
                extra = self.output_padding[i] if self.output_padding else 0
                sizes.append((size - 1) * self.stride[i] - 2 * self.padding[i] + reach + 1 + extra)
            else:
                sizes.append((size + 2 * self.padding[i] - reach - 1) // self.stride[i] + 1)
        return (self.batch, self.channels_out, *sizes)

    @property
    def input(self) -> tuple[int, ...]:
        return (self.batch, self.channels_in, *self.spatial)

    def fits(self) -> bool:
        if min(self.output) < 1 or self.channels_in % self.groups or self.channels_out % self.groups:
            return False
        item = 4 if self.dtype in ("fp32", "tf32") else 2
        larger, smaller = (
            max(prod(self.input), prod(self.output)),
            prod(self.input if self.transposed else self.output),
        )
        flops = 2 * smaller * prod(self.weight[1:])
        return larger * item <= LIMIT_BYTES and flops <= LIMIT_FLOPS[self.dtype]


def point(conv: Conv, label: str, masks: tuple[tuple[bool, ...], ...] = TRAIN, **settings: Any) -> Point:
    """Forward, then backward with each mask of (input, weight, bias) gradients."""

    def build(device: str) -> Any:
        make, dtype = Make(device), DTYPES[conv.dtype]
        x = make(*conv.input, dtype=dtype, layout=conv.layout)
        w = make(*conv.weight, dtype=dtype, layout=conv.layout)
        b = make(conv.channels_out, dtype=dtype) if conv.bias else None
        grad = make(*conv.output, dtype=dtype, layout=conv.layout)
        rest = [list(conv.stride), list(conv.padding), list(conv.dilation), conv.transposed,
                list(conv.output_padding or [0] * len(conv.spatial)), conv.groups]  # fmt: skip

        def run() -> None:
            ATEN.convolution.default(x, w, b, *rest)
            for mask in masks:
                sizes = [conv.channels_out] if mask[2] else None
                ATEN.convolution_backward.default(grad, x, w, sizes, *rest, list(mask))

        return run

    settings["conv_tf32"] = conv.dtype != "fp32"
    return Point(f"conv/{label}", build, settings, "conv")


MODELS = Path(__file__).with_name("model_convs.json")


def model_shapes(path: Path = MODELS) -> list[tuple[Conv, list[str]]]:
    rows = json.loads(path.read_text())
    convs = []
    for x, w, bias, stride, padding, dilation, transposed, output_padding, groups, names in rows:
        out = w[1] * groups if transposed else w[0]
        conv = Conv(1, x[0], tuple(x[1:]), out, tuple(w[2:]), tuple(stride), tuple(padding), tuple(dilation),
                    groups, transposed, tuple(output_padding), bias)  # fmt: skip
        convs.append((conv, names))
    return convs


KINDS = (("tf32", "contiguous"), ("bf16", "contiguous"), ("bf16", "channels_last"), ("tf32", "channels_last"),
         ("fp16", "contiguous"), ("fp16", "channels_last"), ("fp32", "contiguous"), ("fp32", "channels_last"))  # fmt: skip
FIRST_MODELS = {"resnet50", "nasnetalarge", "convnext_tiny", "efficientnet_b0", "unet", "vgg16", "dcgan", "dcgan_d",
                "vit_base_patch16_224", "whisper", "wav2vec2", "wav2vec2_pos", "unet3d", "small", "resnet18",
                "sd_unet", "mobilenetv3_large_100"}  # fmt: skip


def of_models(batches: tuple[int, ...], kinds: tuple[tuple[str, str], ...], first: bool) -> Iterator[Point]:
    for dtype, layout in kinds:
        for batch in batches:
            for conv, names in model_shapes():
                if bool(FIRST_MODELS & set(names)) != first:
                    continue
                if layout == "channels_last" and len(conv.spatial) == 1:
                    continue
                sized = replace(conv, batch=batch, dtype=dtype, layout=layout)
                while not sized.fits() and sized.batch > 1:
                    sized = replace(sized, batch=sized.batch // 2)
                masks = ((True, True, sized.bias),)
                if sized.channels_in <= 4:  # an image: its gradient is not asked for
                    masks = ((False, True, sized.bias), *masks)
                yield point(sized, "model", masks)


def square(batch: int, channels: int, out: int, side: int, kernel: int, **more: Any) -> Conv:
    stride, dilation = more.pop("stride", 1), more.pop("dilation", 1)
    padding = more.pop("padding", dilation * (kernel - 1) // 2)
    return Conv(batch, channels, (side, side), out, (kernel, kernel), (stride, stride), (padding, padding),
                (dilation, dilation), **more)  # fmt: skip


def sweeps() -> Iterator[Conv]:
    """One parameter at a time around three centres."""
    for batch, channels, side, kernel in ((32, 64, 56, 3), (16, 256, 14, 3), (32, 128, 28, 1)):
        centre = square(batch, channels, channels, side, kernel)
        for value in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256):
            yield replace(centre, batch=value)
        for value in (3, 4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 320, 512, 768, 1024, 2048):
            yield square(batch, value, value, side, kernel)
            yield square(batch, value, channels, side, kernel)
            yield square(batch, channels, value, side, kernel)
        for value in (
            1,
            2,
            3,
            4,
            5,
            7,
            8,
            10,
            12,
            14,
            16,
            20,
            24,
            28,
            32,
            40,
            48,
            56,
            64,
            80,
            96,
            112,
            128,
            160,
            192,
            224,
            256,
            384,
            512,
        ):
            yield square(batch, channels, channels, value, kernel)
        for value in (1, 2, 3, 4, 5, 7, 9, 11):
            for stride in (1, 2):
                yield square(batch, channels, channels, side, value, stride=stride)
        for value in (2, 4, 6, 12, 18):
            yield square(batch, channels, channels, side, 3, dilation=value)
        for value in (2, 4, 8, 32, channels):
            for kernel_grouped in (3, 5, 7):
                for stride in (1, 2):
                    yield square(batch, channels, channels, side, kernel_grouped, groups=value, stride=stride)
        yield square(batch, channels, channels, side, kernel, bias=True)
        for padding in (0, 1, 2):
            yield square(batch, channels, channels, side, kernel, padding=padding)
        yield Conv(batch, channels, (side, side), channels, (1, 7), (1, 1), (0, 3), (1, 1))
        yield Conv(batch, channels, (side, side), channels, (7, 1), (1, 1), (3, 0), (1, 1))
        yield Conv(batch, channels, (side, 2 * side), channels, (3, 3), (1, 1), (1, 1), (1, 1))


def randoms(count: int, seed: int) -> Iterator[Conv]:
    """Convolutions as people write them, drawn at random."""
    draw = random.Random(seed)
    channels = (
        1,
        3,
        4,
        8,
        16,
        24,
        32,
        40,
        48,
        64,
        80,
        96,
        112,
        128,
        160,
        192,
        256,
        320,
        384,
        512,
        640,
        768,
        1024,
        1536,
        2048,
    )
    made = 0
    while made < count:
        kind = draw.choices(("plain", "depthwise", "grouped", "transposed", "1d", "3d"), (10, 4, 2, 3, 2, 2))[0]
        dims = {"1d": 1, "3d": 3}.get(kind, 2)
        side = draw.choice({1: (50, 100, 499, 1000, 1500, 3000, 16000), 3: (4, 7, 8, 14, 16, 28, 32, 56, 64)}.get(
            dims, (4, 7, 8, 14, 16, 28, 32, 56, 64, 80, 112, 128, 224, 256, 320, 512)))  # fmt: skip
        kernel = draw.choices((1, 2, 3, 4, 5, 7, 9, 11), (6, 1, 12, 2, 3, 2, 1, 1))[0]
        stride = draw.choices((1, 2, 4), (8, 3, 1))[0]
        dilation = draw.choices((1, 2, 6, 12), (16, 2, 1, 1))[0] if kernel == 3 else 1
        padding = draw.choice((0, dilation * (kernel - 1) // 2, dilation * (kernel - 1) // 2))
        first, second = draw.choice(channels), draw.choice(channels)
        groups = 1
        if kind == "depthwise":
            groups = second = first
        elif kind == "grouped":
            groups = draw.choice((2, 4, 8, 16, 32))
        dtype, layout = draw.choice(KINDS)
        batch = draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 256))
        conv = Conv(batch, first, (side,) * dims, second, (kernel,) * dims, (stride,) * dims, (padding,) * dims,
                    (dilation,) * dims, groups, kind == "transposed", (0,) * dims, draw.random() < 0.4, dtype,
                    layout if dims > 1 else "contiguous")  # fmt: skip
        if conv.fits():
            made += 1
            yield conv


def points() -> list[list[Point]]:
    """Batches of points, the most valuable batch first."""
    sweep = list(dict.fromkeys(sweeps()))

    def swept(kinds: tuple[tuple[str, str], ...]) -> Iterator[Point]:
        for dtype, layout in kinds:
            for conv in sweep:
                sized = replace(conv, dtype=dtype, layout=layout)
                if sized.fits():
                    yield point(sized, "sweep")

    def masked() -> Iterator[Point]:
        for conv in sweep[::4]:
            for dtype, layout in KINDS[:4]:
                sized = replace(conv, dtype=dtype, layout=layout, bias=True)
                if sized.fits():
                    yield point(sized, "masks", MASKS)

    def tuned() -> Iterator[Point]:
        for settings in ({"benchmark": True}, {"deterministic": True}):
            label = next(iter(settings))
            for dtype, layout in KINDS[:3]:
                for conv, names in model_shapes():
                    sized = replace(conv, batch=32, dtype=dtype, layout=layout)
                    if {"resnet50", "unet", "convnext_tiny"} & set(names) and sized.fits():
                        yield point(sized, label, **settings)

    return [
        list(of_models((32,), KINDS[:3], True)),
        list(swept(KINDS[:1])),
        list(of_models((8, 128), KINDS[:3], True)),
        [point(conv, "random") for conv in randoms(1000, 1)],
        list(swept(KINDS[1:3])),
        list(of_models((32,), KINDS[:3], False)),
        list(masked()),
        list(tuned()),
        list(of_models((16, 64), KINDS[3:], True)),
        list(of_models((2, 256, 4), KINDS[:3], True)),
        [point(conv, "random") for conv in randoms(4000, 2)],
        list(swept(KINDS[3:])),
        list(of_models((64, 8, 16), KINDS, False)),
        list(of_models((1, 16, 64, 3, 24, 48, 96), KINDS[:3], True)),
        [point(conv, "random") for conv in randoms(8000, 3)],
    ]  # fmt: skip
