"""Writes sequence_convs.json: convolutions over sequences, of well-known networks and drawn at random.

The networks' are written out from their papers and code (channels, kernel, stride, dilation, groups); the drawn ones have
their kinds of shapes. Needs nothing; run it again only to add a kind, as measurements refer to the shapes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DRAWN = 2400
CHANNELS = (
    1,
    16,
    24,
    32,
    40,
    64,
    80,
    96,
    100,
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
    1280,
    1536,
    2048,
    4096,
)
LENGTHS = (8, 16, 20, 24, 32, 34, 48, 50, 62, 64, 96, 100, 128, 150, 200, 248, 256, 300, 400, 499, 512, 600, 750, 800, 995,
           1000, 1024, 1500, 1600, 2000, 2048, 3000, 4000, 4096, 8000, 8192, 16000, 22050)  # fmt: skip
LARGEST = 1 << 25  # numbers of a sample's input or output


class Wide(NamedTuple):
    """One convolution over a sequence of `length`."""

    length: int
    channels_in: int
    channels_out: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    same: bool = True  # padded to the same length
    name: str = "drawn"


def networks() -> Iterator[Wide]:
    """Convolutions of well-known networks."""
    for length in (20, 34, 50):  # convolutional sequence to sequence: gated, kernels 3, twice as many outputs
        for first, second in ((512, 512), (512, 1024), (1024, 1024), (2048, 2048)):
            yield Wide(length, first, 2 * second, 3, name="conv-seq2seq")
        for first, second, kernel in ((512, 768, 1), (1024, 2048, 1), (2048, 4096, 1), (768, 512, 1)):
            yield Wide(length, first, second, kernel, name="conv-seq2seq")
    for mel, width in ((80, 384), (80, 512), (80, 768), (80, 1024), (80, 1280), (128, 1280)):
        yield Wide(3000, mel, width, 3, name="whisper")
        yield Wide(3000, width, width, 3, 2, name="whisper")
    for length in (400, 800):
        for width, first in ((512, 512), (512, 80)):
            yield Wide(length, first, width, 5, name="tacotron2")
        yield Wide(length, 512, 80, 5, name="tacotron2")
    for width, kernel, length in ((256, 33, 800), (256, 39, 800), (512, 51, 800), (512, 63, 800), (512, 75, 800)):
        yield Wide(length, width, width, kernel, groups=width, name="quartznet")
        yield Wide(length, width, width, 1, name="quartznet")
        yield Wide(length, width, width, kernel, name="jasper")
    for width in (144, 256, 512):
        for length in (200, 400):
            yield Wide(length, width, width, 31, groups=width, name="conformer")
            yield Wide(length, width, 2 * width, 1, name="conformer")
            yield Wide(length, width, width, 1, name="conformer")
    for width, length in ((512, 32), (256, 256), (128, 2048), (64, 4096), (32, 8192)):  # HiFi-GAN
        for kernel, dilation in ((3, 1), (3, 5), (7, 3), (11, 1), (11, 5)):
            yield Wide(length, width, width, kernel, dilation=dilation, name="hifigan")
        yield Wide(length, 2 * width, width, 16 if length < 2048 else 4, 8 if length < 2048 else 2, transposed=True,
                   name="hifigan")  # fmt: skip
    for first, second, kernel, stride, length in ((1, 64, 15, 1, 8192), (64, 128, 41, 2, 8192), (128, 256, 41, 2, 4096),
                                                  (256, 512, 41, 4, 2048), (512, 1024, 41, 4, 512)):  # fmt: skip
        yield Wide(length, first, second, kernel, stride, groups=4 if first > 1 else 1, name="melgan_discriminator")
    for dilation in (1, 2, 4, 16, 64, 256):
        yield Wide(16000, 64, 128, 3, dilation=dilation, name="wavenet")
        yield Wide(2000, 128, 128, 8, dilation=min(dilation, 16), name="temporal_convolutions")
    for first, second, length in ((2, 64, 8000), (64, 128, 2000), (128, 256, 1000), (256, 512, 256), (512, 1024, 64)):
        yield Wide(length, first, second, 8, 4, same=False, name="demucs")
        yield Wide(length, second, 2 * second, 1, name="demucs")
    for first, second, stride, length in (
        (32, 64, 2, 22050),
        (64, 128, 4, 8000),
        (128, 256, 5, 2000),
        (256, 512, 8, 400),
    ):
        yield Wide(length, first, second, 2 * stride, stride, name="encodec")
        yield Wide(length // stride, second, first, 2 * stride, stride, transposed=True, name="encodec")
    for width in (768, 1536, 2048, 3072, 5120):
        for length in (512, 1024, 2048):
            yield Wide(length, width, width, 4, groups=width, name="mamba")
    for first, second, length in ((128, 128, 1000), (128, 256, 500), (256, 512, 250), (512, 512, 125)):
        for kernel in (3, 7, 17):
            yield Wide(length, first, second, kernel, name="resnet1d")


def drawn(count: int) -> Iterator[Wide]:
    """As people write them."""
    draw = random.Random(31)
    made = 0
    while made < count:
        kernel = draw.choices((1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 15, 16, 31, 41, 80, 128), (8, 2, 12, 2, 4, 3, 2, 2, 1, 2, 1, 1, 1, 1, 1, 1))[0]  # fmt: skip
        first, second = draw.choice(CHANNELS), draw.choice(CHANNELS)
        kind = draw.choices(("plain", "depthwise", "grouped", "transposed"), (14, 2, 1, 2))[0]
        groups = {"depthwise": first, "grouped": draw.choice((2, 4, 8, 16))}.get(kind, 1)
        second = first if kind == "depthwise" else second
        stride = draw.choices((1, 2, 4, 5, 8), (10, 4, 1, 1, 1))[0]
        one = Wide(draw.choice(LENGTHS), first, second, kernel, stride, draw.choice((1, 1, 1, 2, 4)) if kernel == 3 else 1,
                   groups, kind == "transposed", draw.random() < 0.75)  # fmt: skip
        usable = first % groups == second % groups == 0 and one.length >= one.dilation * (kernel - 1) + 1
        if usable and one.length * max(first, second) * (stride if one.transposed else 1) <= LARGEST:
            made += 1
            yield one


def row(one: Wide) -> list[object]:
    """A line of the file."""
    padding = one.dilation * (one.kernel - 1) // 2 if one.same else 0
    if one.transposed:
        weight = [one.channels_in, one.channels_out // one.groups, one.kernel]
        padding = min(padding, (one.kernel - one.stride) // 2) if one.kernel > one.stride else 0
    else:
        weight = [one.channels_out, one.channels_in // one.groups, one.kernel]
    return [[one.channels_in, one.length], weight, False, [one.stride], [padding], [one.dilation], one.transposed, [0],
            one.groups, [one.name]]  # fmt: skip


def main() -> None:
    rows = list({json.dumps(row(one)[:-1]): row(one) for one in (*drawn(DRAWN), *networks())}.values())
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in rows)
    Path(__file__).with_name("sequence_convs.json").write_text(f"[\n{lines}\n]\n")
    print(len(rows), "convolutions")


if __name__ == "__main__":
    main()
