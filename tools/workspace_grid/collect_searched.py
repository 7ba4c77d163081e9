"""Writes searched_convs.json: plain convolutions of images as networks have them, drawn at random, for `--ask most`.

What the search of cudnn.benchmark takes jumps with the size of images and the number of channels, so that many are needed.
Needs nothing; run it again only to draw others, as measurements refer to the shapes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

DRAWN = 1600
CHANNELS = (1, 3, 4, 8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 224, 240, 256, 288, 320, 384,
            432, 448, 480, 512, 576, 640, 672, 720, 768, 832, 896, 960, 1024, 1280, 1536, 2048)  # fmt: skip
SIDES = (4, 6, 7, 8, 10, 12, 14, 16, 19, 20, 24, 28, 30, 32, 35, 36, 38, 40, 44, 48, 52, 56, 60, 64, 72, 75, 80, 88, 96, 100,
         104, 112, 120, 128, 144, 150, 160, 176, 180, 192, 200, 208, 224, 240, 256, 288, 300, 320, 352, 384, 416, 448, 480,
         512, 608, 640)  # fmt: skip
LARGEST = 1 << 25  # numbers of a sample's input or output


def drawn(count: int) -> Iterator[list[object]]:
    """Lines of the file."""
    draw = random.Random(47)
    made = 0
    while made < count:
        first = draw.choice(CHANNELS)
        second = draw.choice((first, first, 2 * first, max(first // 2, 1), draw.choice(CHANNELS)))
        kernel = draw.choices((1, 2, 3, 4, 5, 7), (4, 1, 12, 1, 2, 2))[0]
        stride = draw.choices((1, 2), (5, 2))[0] if kernel not in (2, 4) else 2
        transposed = kernel in (2, 4) and draw.random() < 0.5
        grouped = kernel in (3, 5) and draw.random() < 0.15
        groups = draw.choice((2, 4, 8, 16, 32)) if grouped else 1
        side = draw.choice(SIDES)
        height = draw.choice((side, side, side, side, max(side * 3 // 4, 1), 2 * side))
        if (
            first % groups
            or second % groups
            or height * side * max(first, second) > LARGEST
            or min(side, height) < kernel
        ):
            continue
        padding = (kernel - 1) // 2 if draw.random() < 0.9 else 0
        weight = [first, second // groups] if transposed else [second, first // groups]
        made += 1
        yield [[first, height, side], [*weight, kernel, kernel], False, [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0],
               groups, ["drawn"]]  # fmt: skip


def main() -> None:
    rows = list({json.dumps(row): row for row in drawn(DRAWN)}.values())
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in rows)
    Path(__file__).with_name("searched_convs.json").write_text(f"[\n{lines}\n]\n")
    print(len(rows), "convolutions")


if __name__ == "__main__":
    main()
