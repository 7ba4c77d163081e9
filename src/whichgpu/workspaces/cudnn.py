"""The workspace that cuDNN takes for a convolution, as its heuristics decide on an H200.

Which engine the heuristics pick follows no formula that we know, but what an engine needs does: nothing; copies of the
operands with channels last, padded to 16 bytes; partial sums of the weight gradient in float32, one an image or one a
split, or one for each of the tiles that an H200 works on at once; operands transformed for Winograd. Five decision trees for
each direction, precision and layout lead from a shape to such formulas, and the median of the bytes counts. They were fitted to
what the heuristics answer about the convolutions of 22,780 shapes and of 280 networks more (cuDNN 9.19 on an H200; the card's
recorded workspaces are the same but for 1 in 100): on networks left out they are right for 85 %, and wrong by 5 % of all bytes
touched. The convolutions of well-known networks that they get wrong are kept beside them as they were answered, by batch
size. With one of its batch sizes left out, 87 % of the kept come out right, and 67 % would by the trees. Both lie in
data/convolutions.json.gz, made by tools/fit_convolutions.py, whose `--check` prints the errors on shapes left out.

For other cards than Hopper and other versions of cuDNN the same table is used; that is not measured.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from functools import cache, lru_cache
from importlib.resources import files
from math import prod
from statistics import median_low
from typing import Any

import msgspec

from whichgpu.workspaces.records import ITEM_BYTES, round_up

LINE = "|line"  # after the family, the trees for sequences: engines are picked by other rules there
Shape = tuple[int, ...]
# First batch size, last, the number of the formula in between, and what comes on top; or, where no formula is right, -1 and
# the bytes at the two
Piece = tuple[int, ...]
Tree = int | list[Any]  # a formula's number, or [feature, threshold, tree up to it, tree above it]

FEATURES = (
    "batch", "in_channels", "out_channels", "groups", "input_pixels", "output_pixels", "kernel_size", "kernel_last",
    "stride", "dilation", "padding", "rank", "in_alignment", "out_alignment", "group_inputs", "group_outputs", "rows",
    "input_bytes", "output_bytes", "weight_bytes", "reduced", "float16", "transposed", "output_tiles", "weight_tiles",
    "macs", "input_last",
)  # fmt: skip
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 33, 36, 40, 44, 48, 52, 56, 66,
          76, 88, 100, 112, 132, 160, 176, 220, 264, 330, 396, 528)  # fmt: skip
BUFFERS = (131072, 0x80000, 0x100000, 2064896, 0x300000, 4128768, 0x600000, 0x780000, 8258048, 0xE00000, 0x1000000,
           0x2000000)  # fmt: skip
# Tiles of a weight gradient, and how many an H200 works on at once: its 132 multiprocessors, or pairs of them
STREAMED = ((128, 128, 132), (64, 64, 132), (128, 64, 132), (256, 128, 132), (128, 256, 66))
SHARES = (0.125, 0.25, 0.5, 0.75, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
FORMULAS = (
    "none", "copies", "copies of input and weight", "copies of input and output", "all, padded", "all",
    "a sum an image", "winograd", "weight", "eight sums an image", "copies and a third",
    *(f"copies and {split} sums" for split in SPLITS), *(f"copies and {size} bytes" for size in BUFFERS),
    *(f"{share:g} of all" for share in SHARES), *(f"copies and tiles of {rows} x {columns}" for rows, columns, _ in STREAMED),
)  # fmt: skip
_WINOGRAD_TILE, _WINOGRAD_STEP = 6, 4
_TAIL_BYTES = 16  # so that a workspace never fits where exactly such operands lay
_CHANNEL_BYTES = 16  # to which the channels of a copy are padded
_DEPTHWISE_SUMS, _DEPTHWISE_CHANNELS = 8, 32
_TILE = 128  # rows and columns that one block of threads works on


class Problem(msgspec.Struct, frozen=True):
    """What cuDNN is asked for. A transposed convolution's forward pass is the input gradient of the plain one, whose
    input and output these are."""

    direction: str  # "forward", "data" (gradient of the input) or "filter" (gradient of the weight)
    input: Shape
    weight: Shape
    output: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int
    dtype: str  # "tf32" for float32 that may be rounded
    channels_last: bool

    @property
    def family(self) -> str:
        """Which trees decide."""
        precision = "half" if self.dtype in ("float16", "bfloat16") else self.dtype
        return f"{self.direction}|{precision}|{'last' if self.channels_last else 'first'}"

    @property
    def item_bytes(self) -> int:
        """Bytes of a number."""
        return ITEM_BYTES.get(self.dtype, 4)

    @property
    def key(self) -> str:
        """The problem without its batch size."""
        parts = (self.input[1:], self.weight, self.output[1:], self.stride, self.padding, self.dilation)
        shapes = ";".join(",".join(map(str, part)) for part in parts)
        return f"{self.direction}|{self.dtype}|{'last' if self.channels_last else 'first'}|{shapes};{self.groups}"


# ---- what an engine may need --------------------------------------------------------------------------------------


def _operands(problem: Problem) -> tuple[list[int], list[int]]:
    """Bytes of input, weight and output as they are, and with channels padded."""
    item, groups = problem.item_bytes, problem.groups
    multiple = max(_CHANNEL_BYTES // item, 1)
    shapes = (problem.input, problem.weight, problem.output)
    plain = [prod(shape) * item for shape in shapes]
    pixels = [prod(shape[2:]) * item for shape in shapes]
    weight = prod(round_up(channels, multiple) for channels in problem.weight[:2])
    if groups > 1:
        weight = prod(problem.weight[:2])
    padded = [
        problem.input[0] * round_up(problem.input[1], multiple) * pixels[0],
        weight * pixels[1],
        problem.input[0] * round_up(problem.output[1], multiple) * pixels[2],
    ]
    return plain, padded


def needs(problem: Problem) -> list[int]:
    """Bytes of the workspace under each of FORMULAS."""
    plain, padded = _operands(problem)
    shapes = (problem.input, problem.weight, problem.output)
    moved = [
        full if full != given or not (problem.channels_last or prod(shape[2:]) == 1 or shape[1] == 1) else 0
        for given, full, shape in zip(plain, padded, shapes, strict=True)
    ]  # an operand that can be used as it lies is not copied
    copies, everything, partial = sum(moved), sum(padded), prod(problem.weight) * 4
    sums, winograd, depthwise = problem.input[0] * partial, _winograd(problem), _depthwise_sums(problem)
    with_copies = [
        copies, moved[0] + moved[1], moved[0] + moved[2], everything, sum(plain), sums, winograd, plain[1], depthwise,
        copies + everything // 3, *[copies + split * partial for split in SPLITS], *[copies + size for size in BUFFERS],
        *[int(share * everything) for share in SHARES], *[copies + _streamed(problem, *tile) for tile in STREAMED],
    ]  # fmt: skip
    exact = (sums, winograd, depthwise)  # of these, sizes come to the byte; others end with a few bytes more
    return [0, *(size and size + _TAIL_BYTES * (size not in exact) for size in with_copies)]


def _winograd(problem: Problem) -> int:
    tiles = problem.output[0] * prod(-(-size // _WINOGRAD_STEP) for size in problem.output[2:])
    elements = tiles * (problem.input[1] + problem.output[1]) + prod(problem.weight[:2])
    return 4 * _WINOGRAD_TILE**2 * elements


def _streamed(problem: Problem, rows: int, columns: int, at_once: int) -> int:
    """Partial sums of the tiles of a weight gradient, where the same tile is summed up in several places (stream-K)."""
    tiles = -(-problem.weight[0] // rows) * -(-problem.weight[1] // columns) * prod(problem.weight[2:])
    places = at_once // tiles
    return tiles * places * rows * columns * 4 if places > 1 else 0


def _depthwise_sums(problem: Problem) -> int:
    channels = round_up(problem.weight[0], _DEPTHWISE_CHANNELS)
    return problem.input[0] * _DEPTHWISE_SUMS * channels * prod(problem.weight[2:]) * 4


# ---- what the trees decide by ---------------------------------------------------------------------------------------


def features(problem: Problem) -> list[int]:
    """The numbers named in FEATURES."""
    item, groups = problem.item_bytes, problem.groups
    multiple = max(_CHANNEL_BYTES // item, 1)
    batch, channels_in = problem.input[:2]
    channels_out = problem.output[1]
    pixels_in, pixels_out, kernel = prod(problem.input[2:]), prod(problem.output[2:]), prod(problem.weight[2:])
    reduced, out = channels_in // groups * kernel, channels_out // groups
    columns = -(-out // _TILE)
    return [
        batch, channels_in, channels_out, groups, pixels_in, pixels_out, kernel, problem.weight[-1],
        prod(problem.stride), max(problem.dilation), max(problem.padding), len(problem.input) - 2,
        _alignment(channels_in, multiple), _alignment(channels_out, multiple), channels_in // groups, out,
        batch * pixels_out, batch * channels_in * pixels_in * item, batch * channels_out * pixels_out * item,
        prod(problem.weight) * item, reduced, int(problem.dtype == "float16"), int(problem.weight[0] == channels_in),
        -(-batch * pixels_out // _TILE) * columns, -(-reduced // _TILE) * columns,
        batch * pixels_out * reduced * channels_out, problem.input[-1],
    ]  # fmt: skip


def _alignment(channels: int, multiple: int) -> int:
    """The largest power of two in a number of channels, at most 8 * multiple; 0 for an odd one."""
    found = 1
    while found < 8 * multiple and channels % (2 * found) == 0:
        found *= 2
    return found if found > 1 else 0


# ---- the answer -----------------------------------------------------------------------------------------------------


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What data/convolutions.json.gz holds."""

    source: str
    features: tuple[str, ...]
    formulas: tuple[str, ...]
    trees: dict[str, list[Tree]]  # by `Problem.family`
    answers: dict[str, list[Piece]]  # exceptions to the trees by `Problem.key`, in order
    # The same for the largest workspace of all engines (see cudnn_search)
    search_formulas: tuple[str, ...] = ()
    search_trees: dict[str, list[Tree]] = {}
    search_answers: dict[str, list[Piece]] = {}


@cache
def table() -> Table:
    """The trees and the answers, read once."""
    raw = gzip.decompress(files("whichgpu").joinpath("data/convolutions.json.gz").read_bytes())
    return msgspec.json.decode(raw, type=Table)


def decide(tree: Tree, values: list[int]) -> int:
    """The formula that a tree leads to."""
    while isinstance(tree, list):
        tree = tree[2] if values[tree[0]] <= tree[1] else tree[3]
    return tree


def by_trees(trees: list[Tree], problem: Problem, under_formulas: list[int]) -> int:
    """The lower median of the bytes that trees say for a problem that has so many under each formula."""
    values = features(problem)
    return median_low([under_formulas[decide(tree, values)] for tree in trees])


@lru_cache(maxsize=16384)
def workspace_bytes(problem: Problem) -> int:
    """Bytes of the workspace that cuDNN takes for a problem."""
    return by_rules(problem, table().answers, table().trees, needs(problem), "copies")


@lru_cache(maxsize=16384)
def fallbacks(problem: Problem) -> tuple[int, ...]:
    """Bytes of the workspaces of engines that PyTorch takes where there is no room for the first one's, falling.

    PyTorch goes through all that the heuristics name until one has room (aten/src/ATen/native/cudnn/Conv_v8.cpp,
    `try_configs`), and keeps that one. The last of them need no workspace, and most others need as much as the first, so
    that what lies between is said by few rules (`_less`). cuDNN 9.19, asked without a card for an H200, names the smaller one
    of them for 79 % of 210 convolutions of networks in TF32, and no other for 18 %.
    """
    first = workspace_bytes(problem)
    if not first:
        return ()
    under_formulas = needs(problem)
    return tuple(
        sorted(
            {
                size
                for name in _less(problem)
                if 0 < (size := under_formulas[FORMULAS.index(name)]) < first - first // 128
            },
            reverse=True,
        )
    )


def _less(problem: Problem) -> tuple[str, ...]:
    """Formulas of engines that need less."""
    dense = problem.groups == 1 and prod(problem.weight[2:]) > 1
    if dense and problem.direction == "forward" and problem.dtype == "tf32" and not problem.channels_last:
        return ("copies", "copies of input and weight")
    return ("copies",)


def by_rules(
    problem: Problem,
    answers: dict[str, list[Piece]],
    trees: dict[str, list[Tree]],
    under_formulas: list[int],
    otherwise: str,
) -> int:
    """Bytes of a problem that has so many under each formula: by an answer kept for it, by the trees of its family, or by
    the formula of that name where there is neither.
    """
    known = answers.get(problem.key)
    if known is not None:
        return recalled(known, problem.input[0], under_formulas)
    family = trees_of(trees, problem)
    return by_trees(family, problem, under_formulas) if family else under_formulas[FORMULAS.index(otherwise)]


def trees_of(trees: dict[str, list[Tree]], problem: Problem) -> list[Tree]:
    """Those that decide about a problem: over a sequence trees of its own where there are any, else those of its family."""
    own = trees.get(problem.family + LINE, []) if len(problem.input) == 3 else []
    return own or trees.get(problem.family, [])


def recalled(pieces: list[Piece], batch: int, under_formulas: list[int]) -> int:
    """What pieces say for a batch size that has so many bytes under each formula.

    Between two pieces it may be either; the longer one is likelier, since an engine that is named for one batch size only
    is an exception.
    """
    place = max(bisect_right(pieces, batch, key=lambda piece: piece[0]) - 1, 0)
    piece = pieces[place]
    if batch > piece[1] and place + 1 < len(pieces):
        after = pieces[place + 1]
        piece = max(piece, after, key=lambda one: one[1] / one[0])
    first, last, formula, *rest = piece
    if formula >= 0:
        return max(under_formulas[formula] + rest[0], 0)
    low, high = rest
    if last > first:
        return max(low + (high - low) * (batch - first) // (last - first), 0)
    return low * batch // first
