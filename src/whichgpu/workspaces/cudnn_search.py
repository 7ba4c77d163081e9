"""The workspace of a search for the fastest engine, which `torch.backends.cudnn.benchmark` asks for.

The first time that a process meets a problem, PyTorch takes the largest workspace of all engines that cuDNN lists, runs each
of them in it, gives it back and empties the allocator's cache (aten/src/ATen/native/cudnn/Conv_v8.cpp,
`get_plans_from_find`). Engines that transform their operands (Fourier, Winograd) need by far the most: those for a
gradient of deep layers several gigabytes, whatever the batch size. The first step then reserves more than all later ones.

What the largest needs follows from formulas again: those of `cudnn`, and those of the Fourier transforms, which agree with
what cuDNN 9.19 listed on an H200 to the byte. Decision trees lead to one of them, fitted as the others are
(tools/fit_convolutions.py), and the answers that they get wrong are kept beside them.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from whichgpu.workspaces import cudnn
from whichgpu.workspaces.cudnn import Problem

_FLOAT, _COMPLEX = 4, 8  # bytes
_LEAST_TRANSFORM = 16  # numbers along one axis
_TILE = 32
_PLAIN = (1.0, 2.0, 4.0)
FORMULAS = (*cudnn.FORMULAS, "transforms", "tiled transforms", *(f"{share:g} of all, not padded" for share in _PLAIN))


@lru_cache(maxsize=16384)
def largest_workspace_bytes(problem: Problem) -> int:
    """Bytes of the largest workspace of all engines that cuDNN lists for a problem."""
    table = cudnn.table()
    return cudnn.by_rules(problem, table.search_answers, table.search_trees, needs(problem), "all, padded")


def needs(problem: Problem) -> list[int]:
    """Bytes of the workspace under each of FORMULAS."""
    plain = sum(map(prod, (problem.input, problem.weight, problem.output))) * problem.item_bytes
    return [*cudnn.needs(problem), _transforms(problem), _tiled(problem), *(int(share * plain) for share in _PLAIN)]


def _planes(problem: Problem) -> tuple[int, int, int]:
    """Images of one channel in the input, filters of one channel, and images of one channel in the output."""
    return prod(problem.input[:2]), prod(problem.weight[:2]), prod(problem.output[:2])


def _spectrum_bytes(numbers: int) -> int:
    """A square image's Fourier transform, of which half is kept."""
    return numbers * (numbers // 2 + 1) * _COMPLEX


def _transforms(problem: Problem) -> int:
    """Whole images transformed, in two buffers that take two operands and the third in turn."""
    source, weight, result = _planes(problem)
    numbers = _LEAST_TRANSFORM
    while numbers < max(size + 2 * pad for size, pad in zip(problem.input[2:], problem.padding, strict=True)):
        numbers *= 2
    pairs = {
        "forward": (source + weight, result, prod(problem.weight)),
        "filter": (source + result, weight, prod(problem.output)),
        "data": (result + weight, source, 0),
    }
    both, third, copied = pairs[problem.direction]
    return copied * _FLOAT + 2 * max(both, third) * _spectrum_bytes(numbers)


def _tiled(problem: Problem) -> int:
    """Tiles transformed; with a stride, images and filters are taken apart into one for each of its phases before."""
    source, weight, result = _planes(problem)
    phases = prod(problem.stride)
    taps = [-(-size // step) for size, step in zip(problem.weight[2:], problem.stride, strict=True)]
    sizes = [-(-size // step) for size, step in zip(problem.input[2:], problem.stride, strict=True)]
    tiles = 1 if all(size + tap - 1 <= _TILE for size, tap in zip(sizes, taps, strict=True)) else 2
    found = _spectrum_bytes(_TILE) * (phases * weight + tiles * (phases * source + result))
    if phases > 1:
        apart = phases * weight * prod(taps) + prod(problem.input)
        found += _FLOAT * (apart + result * prod(size + 1 for size in problem.output[2:]))
    return found
