"""Convolutions: which problems PyTorch gives to cuDNN, in which order, and what it copies for it.

PyTorch asks for one direction at a time (aten/src/ATen/native/cudnn/ConvShared.cpp): operands that lie otherwise than
the convolution runs are copied, the result is allocated, then the workspace, which is given back before the next
direction begins. Depthwise convolutions in PyTorch's default layout run in PyTorch's own kernels, without workspace, but
for some in float16 (aten/src/ATen/native/Convolution.cpp). What cuDNN takes is in `cudnn`.

With cudnn.benchmark the first operator with a problem also takes what the search for the fastest engine takes
(`cudnn_search`). Then it runs that engine, which only the clock knows; it is taken to be the first that the heuristics name.
"""

from __future__ import annotations

from math import prod
from typing import Any

from msgspec.structs import replace

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces.cudnn import Problem, Shape, fallbacks, workspace_bytes
from whichgpu.workspaces.cudnn_search import largest_workspace_bytes
from whichgpu.workspaces.records import AFTER_LAST, Capability, Rule, Temporary, bytes_of, contiguous_strides
from whichgpu.workspaces.reductions import accumulator_bytes, reduction

_DEPTHWISE_CHANNELS = 32  # from which PyTorch considers cuDNN for depthwise convolutions in float16
_DEPTHWISE_WIDTH = 7
_MASK = [True, True, False]  # which gradients are asked for where the operator does not say


# ---- which problems -------------------------------------------------------------------------------------------------


def problems(op: Op) -> list[Problem]:
    """What cuDNN is asked for by an operator, in order; empty where PyTorch's own kernels run."""
    backward = _is_backward(op)
    if len(op.inputs) < (3 if backward else 2):
        return []
    source, weight = op.inputs[1:3] if backward else op.inputs[:2]
    rank = len(source.shape) - 2
    if rank < 1 or len(weight.shape) != rank + 2 or not prod(source.shape):
        return []
    transposed = bool(op.attributes.get("transposed", False))
    result = op.inputs[0].shape if backward else op.outputs[0].shape if op.outputs else _output(op, source, weight)
    first, second = (result, source.shape) if transposed else (source.shape, result)
    stride, padding, dilation = (
        _listed(op.attributes, name, default, rank)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    last, groups = runs_channels_last(source, weight), int(op.attributes.get("groups", 1))
    own = not last and _is_depthwise(source, weight, groups, transposed)
    if own and not _depthwise_by_cudnn(source, weight, stride, dilation):
        return []
    dtype = "tf32" if source.dtype == "float32" and op.attributes.get("allow_tf32", True) else source.dtype
    return [
        Problem(direction, first, weight.shape, second, stride, padding, dilation, groups, dtype, last)
        for direction in _directions(op, backward, transposed)
    ]


def _directions(op: Op, backward: bool, transposed: bool) -> list[str]:
    if not backward:
        return ["data" if transposed else "forward"]
    mask = op.attributes.get("output_mask", _MASK)
    return ["forward" if transposed else "data"] * bool(mask[0]) + ["filter"] * bool(mask[1])


def _is_depthwise(source: Tensor, weight: Tensor, groups: int, transposed: bool) -> bool:
    channels = source.shape[1]
    return not transposed and groups > 1 and groups == channels and weight.shape[0] % channels == 0


def _depthwise_by_cudnn(source: Tensor, weight: Tensor, stride: Shape, dilation: Shape) -> bool:
    """Where PyTorch takes cuDNN for a depthwise convolution in its default layout (cuDNN 8.2 or later)."""
    samples, channels, *space = source.shape
    if source.dtype != "float16" or len(space) > 2 or max(dilation) > 1 or channels < _DEPTHWISE_CHANNELS:
        return False
    flat = len(space) == 1 or space[0] == 1
    step = stride[-1]
    if flat and step == 1:
        return True
    width, size = space[-1], weight.shape[-1]
    square = len(space) == 2 and weight.shape[2] == size and stride[0] == step
    if not square or size not in (1, 3, 5) or width < _DEPTHWISE_WIDTH or step not in (1, 2):
        return False
    if step == 1:
        return True
    if samples == 1:
        return size > 1 or width <= 4 * _DEPTHWISE_WIDTH
    if size == 1:
        return samples <= 16 and channels >= 128 and width <= _DEPTHWISE_WIDTH
    return channels >= 512 or (channels >= 256 and width >= 4 * _DEPTHWISE_WIDTH)


def _listed(attributes: dict[str, Any], name: str, default: int, rank: int) -> Shape:
    value = attributes.get(name)
    numbers = tuple(int(item) for item in value) if isinstance(value, list) and value else (default,)
    return numbers if len(numbers) == rank else numbers[:1] * rank


def _output(op: Op, source: Tensor, weight: Tensor) -> Shape:
    """The output's shape, for operators that come without outputs."""
    rank = len(source.shape) - 2
    stride, padding, dilation, more = (
        _listed(op.attributes, name, default, rank)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    transposed = bool(op.attributes.get("transposed", False))
    sizes = []
    for axis, (size, kernel) in enumerate(zip(source.shape[2:], weight.shape[2:], strict=True)):
        reach = dilation[axis] * (kernel - 1)
        if transposed:
            sizes.append((size - 1) * stride[axis] - 2 * padding[axis] + reach + more[axis] + 1)
        else:
            sizes.append((size + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    channels = weight.shape[1] * int(op.attributes.get("groups", 1)) if transposed else weight.shape[0]
    return (source.shape[0], channels, *(max(size, 1) for size in sizes))


# ---- layouts --------------------------------------------------------------------------------------------------------


def runs_channels_last(source: Tensor, weight: Tensor) -> bool:
    """Whether the convolution runs with channels last: as soon as input or weight lies so.

    An input of one axis is made contiguous first, as it may just be permuted (aten/src/ATen/native/Convolution.cpp).
    """
    return (len(source.shape) > 3 and _suggests_channels_last(source)) or _suggests_channels_last(weight)


def _suggests_channels_last(tensor: Tensor) -> bool:
    """What PyTorch reads from the strides (c10/core/MemoryFormat.h). One axis is run as an image of height 1."""
    if not tensor.stride:
        return False
    shape, stride = list(tensor.shape), list(tensor.stride)
    if len(shape) == 3:
        shape.insert(2, 1)
        stride.insert(2, shape[3] * stride[2])
    if stride[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if stride[axis] < least or (axis == 0 and least == stride[1]):
            return False
        least = stride[axis] * max(shape[axis], 1)
    return True


def _copies(tensors: tuple[Tensor, ...], last: bool, before_output: int) -> list[Temporary]:
    """Copies of tensors that do not lie as the convolution runs."""
    return [Temporary(bytes_of(tensor), before_output) for tensor in tensors if not _lies(tensor, last)]


def _lies(tensor: Tensor, last: bool) -> bool:
    if not last:
        return not tensor.stride
    if tensor.shape[1] == 1 or prod(tensor.shape[2:]) == 1:
        return not tensor.stride or _suggests_channels_last(tensor)
    if not tensor.stride:
        return False
    samples, channels, *space = tensor.shape
    strides = contiguous_strides((samples, *space, channels))
    return all(
        size == 1 or one == other
        for size, one, other in zip(tensor.shape, tensor.stride, (strides[0], strides[-1], *strides[1:-1]), strict=True)
    )


# ---- the rules ------------------------------------------------------------------------------------------------------


def _convolution(op: Op, capability: Capability) -> list[Temporary]:
    asked = problems(op)
    last = bool(asked) and asked[0].channels_last
    found = _copies(op.inputs[:1], last, 0)
    found += _copies(
        op.inputs[1:2], last, AFTER_LAST if asked else 0
    )  # what cuDNN is called with has its result already
    for problem in asked:
        found += [*_search(op, problem, AFTER_LAST), *_workspaces(op, problem, AFTER_LAST)]
    return found


def takes_the_same_on_all(op: Op) -> bool:
    """Whether an operator is a convolution that takes the same on all cards: one that sums up no gradient of a bias.

    What cuDNN takes was asked for one card only, and is said of all.
    """
    return op.name in RULES and not (_is_backward(op) and _sums_bias(op))


def _is_backward(op: Op) -> bool:
    return "backward" in op.name


def _sums_bias(op: Op) -> bool:
    mask = op.attributes.get("output_mask", _MASK)
    return len(mask) > 2 and bool(mask[2])


def _convolution_backward(op: Op, capability: Capability) -> list[Temporary]:
    asked = problems(op)
    if len(op.inputs) < 3:
        return []
    last = bool(asked) and asked[0].channels_last
    found = _copies(op.inputs[:2] if asked else op.inputs[:3], last, 0)
    mask = op.attributes.get("output_mask", _MASK)
    for number, problem in enumerate(asked, 1):
        if number == 1 and mask[0]:  # only the gradient of the input needs the weight, once its own result is there
            found += [replace(copy, freed_before=1) for copy in _copies(op.inputs[2:3], last, 1)]
        found += [*_search(op, problem, number), *_workspaces(op, problem, number)]
    if _sums_bias(op):
        grad = op.inputs[0]
        found += reduction(grad, [0, *range(2, len(grad.shape))], accumulator_bytes(grad.dtype), capability)
    return found


def _search(op: Op, problem: Problem, before_output: int) -> list[Temporary]:
    """The search for the fastest engine, once for each problem and thread."""
    if not op.attributes.get("benchmark"):
        return []
    return [Temporary(largest_workspace_bytes(problem), before_output, optional=True, search=_plan(op, problem))]


def _workspaces(op: Op, problem: Problem, number: int) -> list[Temporary]:
    """The workspace of the engine that is named first, then those of engines that PyTorch falls back on, in order."""
    chain = (workspace_bytes(problem), *fallbacks(problem))
    name = _plan(op, problem)
    return [
        Temporary(
            size,
            number,
            freed_before=number,
            optional=True,
            instead=place > 0,
            plan=f"{name}|{place}" if place else name,
        )
        for place, size in enumerate(chain)
    ]


def _plan(op: Op, problem: Problem) -> str:
    """Under which name PyTorch keeps the engine that ran: by thread, of which the backward pass has one of its own."""
    return f"{op.phase == 'backward'}|{problem.input[0]}|{problem.key}"


RULES: dict[str, Rule] = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
