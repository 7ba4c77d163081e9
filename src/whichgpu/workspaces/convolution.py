"""Convolutions: the workspaces that cuDNN takes.

cuDNN chooses an algorithm by its own heuristics, and each has its own needs: none at all, a copy of input, output and
weight in another layout (the commonest: exactly their bytes), partial sums of weight gradients. The choice follows no
formula that we know, so it is looked up: the nearest of some 8,800 convolutions measured on an H200 (cuDNN 9.19,
torch 2.11) of the same direction, dtype, layout, kind of groups and kernel, and its share of the bytes of input, output
and weight (data/convolutions.json.gz, made by tools/fit_convolutions.py, whose `--check` prints the error on points
left out: nothing in the median forward, 2 % backward).

For other cards than Hopper, and other versions of cuDNN, the same table is used; that is not measured.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from math import log2, prod

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces.records import ITEM_BYTES, Capability, Rule, Temporary

Class = tuple[str, ...]
Point = tuple[int, ...]

# Of a point; the last column of the table is the share.
COLUMNS = ["batch", "in_channels", "out_channels", "input_size", "kernel_size", "stride", "dilation"]
# How much a factor of two in each counts towards the distance. Kernel, stride and dilation change the algorithm.
_WEIGHTS = (0.5, 1.0, 1.0, 0.7, 2.0, 3.0, 2.0)
_OTHER_DTYPE = 0.5  # distance between float16 and bfloat16
_HALVES = {"float16": "bfloat16", "bfloat16": "float16"}


def describe(op: Op) -> tuple[Class, Point, int] | None:
    """Class and point of a convolution, and the bytes of its input, output and weight; None for what is none."""
    backward = "backward" in op.name
    if len(op.inputs) < (3 if backward else 2):
        return None
    source, weight = (op.inputs[1], op.inputs[2]) if backward else (op.inputs[0], op.inputs[1])
    attributes = op.attributes
    if len(source.shape) < 3 or len(weight.shape) != len(source.shape) or not prod(source.shape):
        return None
    groups, transposed = int(attributes.get("groups", 1)), bool(attributes.get("transposed", False))
    in_channels = source.shape[1]
    out_channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if backward:
        output_elements = prod(op.inputs[0].shape)
        mask = attributes.get("output_mask", [True, True, False])
        direction = "both" if mask[0] else "wgrad"
    else:
        output_elements = source.shape[0] * out_channels * _output_size(op, source, weight, transposed)
        direction = "forward"
    layout = "last" if _channels_last(source) or _channels_last(weight) else "first"
    kind = "one" if groups == 1 else "depthwise" if groups == in_channels else "groups"
    dtype = source.dtype
    if dtype == "float32":
        dtype = "tf32" if attributes.get("allow_tf32", True) else "float32"
    found: Class = (
        direction,
        str(len(source.shape) - 2),
        dtype,
        layout,
        kind,
        "transposed" if transposed else "plain",
        "benchmark" if attributes.get("benchmark", False) else "heuristic",
    )
    point = (
        source.shape[0],
        in_channels,
        out_channels,
        prod(source.shape[2:]),
        prod(weight.shape[2:]),
        prod(_list(attributes, "stride", 1)),
        max(_list(attributes, "dilation", 1)),
    )
    elements = prod(source.shape) + output_elements + prod(weight.shape)
    return found, point, elements * ITEM_BYTES.get(source.dtype, 4)


def _list(attributes: Mapping[str, object], name: str, default: int) -> list[int]:
    value = attributes.get(name)
    return [int(item) for item in value] if isinstance(value, list) and value else [default]


def _output_size(op: Op, source: Tensor, weight: Tensor, transposed: bool) -> int:
    if op.outputs:
        return prod(op.outputs[0].shape[2:])
    sizes = []
    spatial = len(source.shape) - 2
    stride, padding, dilation, more = (
        (_list(op.attributes, name, default) * spatial)[:spatial]
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    for axis in range(spatial):
        size, reach = source.shape[axis + 2], dilation[axis] * (weight.shape[axis + 2] - 1)
        if transposed:
            sizes.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + more[axis] + 1)
        else:
            sizes.append((size + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    return prod(max(size, 1) for size in sizes)


def _channels_last(tensor: Tensor) -> bool:
    return len(tensor.stride) > 2 and tensor.stride[1] == 1 and tensor.shape[1] > 1


def nearest(table: Mapping[Class, Sequence[tuple[Point, float]]], kind: Class, point: Point) -> float:
    """The share of the nearest measured point; 1 (a copy of the operands) where nothing like it was measured."""
    found = [
        (_distance(other, point) + further, share)
        for near, further in _near(kind)
        for other, share in table.get(near, ())
    ]
    return min(found)[1] if found else 1.0


def _near(kind: Class) -> list[tuple[Class, float]]:
    """Classes to look in, with the distance that lies between: the other half precision, then looser ones."""
    same = [(kind, 0.0)]
    if kind[2] in _HALVES:
        same.append(((*kind[:2], _HALVES[kind[2]], *kind[3:]), _OTHER_DTYPE))
    if kind[0] == "wgrad":
        same += [(("both", *other[1:]), further + 4.0) for other, further in list(same)]
    if kind[-1] == "benchmark":
        same += [((*other[:-1], "heuristic"), further + 8.0) for other, further in list(same)]
    return same


def _distance(one: Point, other: Point) -> float:
    return sum(weight * abs(log2(a) - log2(b)) for weight, a, b in zip(_WEIGHTS, one, other, strict=True))


@cache
def _table() -> dict[Class, list[tuple[Point, float]]]:
    raw = json.loads(gzip.decompress(files("whichgpu").joinpath("data/convolutions.json.gz").read_bytes()))
    return {
        tuple(name.split("|")): [(tuple(row[:-1]), row[-1]) for row in rows] for name, rows in raw["classes"].items()
    }


@lru_cache(maxsize=4096)
def _candidates(kind: Class, rest: Point) -> tuple[tuple[float, float, float], ...]:
    """Points that can be nearest at some batch size: (distance but for it, its log2, share)."""
    best: dict[float, tuple[float, float]] = {}  # one point for each batch size that was measured
    for near, further in _near(kind):
        for other, share in _table().get(near, ()):
            apart = further + sum(
                weight * abs(log2(a) - log2(b)) for weight, a, b in zip(_WEIGHTS[1:], other[1:], rest, strict=True)
            )
            at = log2(other[0])
            best[at] = min(best.get(at, (apart, share)), (apart, share))
    return tuple((apart, at, share) for at, (apart, share) in best.items())


def _workspace(op: Op, capability: Capability) -> list[Temporary]:
    described = describe(op)
    if described is None:
        return []
    kind, point, operand_bytes = described
    batch = log2(point[0])
    candidates = _candidates(kind, point[1:])
    if not candidates:
        return [Temporary(operand_bytes)]
    share = min((apart + _WEIGHTS[0] * abs(batch - at), share) for apart, at, share in candidates)[1]
    return [Temporary(int(share * operand_bytes))]


RULES: dict[str, Rule] = {
    "aten.convolution.default": _workspace,
    "aten.convolution_backward.default": _workspace,
}
