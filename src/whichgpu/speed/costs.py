"""What an operator asks of a GPU: arithmetic, bytes and kernels, from its entry in the trace.

Bytes are those that must cross the memory bus once: elements that an argument repeats (stride 0) count once, rows that are
looked up count and the table behind them does not. What a kernel moves beyond that, and how close it comes to the card's rates,
is a matter of `kernels`. FLOPs follow the trace: a multiply-add counts as two.

Not covered: operators of other libraries but torch's and torchvision's, which count as elementwise; the time that an operator
waits for the host to read a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, gcd, prod
from typing import NamedTuple

from whichgpu.speed.asked import DTYPE_BYTES, TENSOR_PIPES, UNALIGNED, Cost, Product, pipe_of, tensor_bytes, total
from whichgpu.speed.host import uploaded_bytes
from whichgpu.speed.memory_bound import WITHOUT_KERNEL, by_memory, plain, safe_softmax
from whichgpu.trace import Op, Tensor

# ATen/native/cuda/MultiTensorApply.cuh: how many tensors one launch takes, by the number of lists; blocks and elements of each
_TENSORS_A_LAUNCH = (110, 64, 48, 36, 30)
_BLOCKS_A_LAUNCH, _BLOCK_ELEMENTS = 320, 65536
_FOREACH_LISTS = {
    "add_": 2,
    "sub_": 2,
    "mul_": 2,
    "div_": 2,
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "maximum_": 2,
    "copy_": 2,
}
_TAPS_TO_BEGIN = 5  # of a depthwise kernel, that an element's beginning and end take as long as
_PAIR = 8  # bytes of two elements in float32
_CHANNELS = {"tf32": 4, "fp16": 8, "bf16": 8}  # that tensor cores take at a time: 16 bytes; fewer are filled up
_QUICK_DEPTHWISE = 5
_LEAST_TILED, _TILE_SIDE, _LARGE_IMAGE, _SPARED_CHANNELS = 5, 32, 1 << 19, 32
_FEW_CHANNELS = 4  # that go in: what tensor cores take at once in TF32
_PLAIN_PRODUCTS = ("convolution_1x1", "convolution_input_1x1", "convolution_weight_1x1")
_ATTENTION_ROWS = 64  # that an attention kernel takes at a time; sequences are filled up to a multiple
_ATTENTION = ("flash", "efficient", "cudnn", "fused", "math")


def costs(op: Op, *, tf32_matmul: bool = False) -> tuple[Cost, ...]:
    """What an operator asks of a GPU; empty where it launches no kernel.

    One whose tensors are not those that its name promises, as variants of operators have them, counts as elementwise.
    """
    try:
        return _costs(op, tf32_matmul)
    except (IndexError, ValueError, ZeroDivisionError):
        return (plain(op),)


def _costs(op: Op, tf32_matmul: bool) -> tuple[Cost, ...]:
    base = op.name.split(".")[1] if op.name.count(".") > 1 else op.name
    if base in WITHOUT_KERNEL or uploaded_bytes(op):  # copies from the host take the host's time
        return ()
    if base in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "addmv", "mv", "dot", "_scaled_mm"):
        return (_matrix_product(op, base, tf32_matmul),)
    if base in ("convolution", "_convolution", "cudnn_convolution"):
        return _convolution(op)
    if base == "convolution_backward":
        return _convolution_backward(op)
    if base.startswith("_scaled_dot_product_") and base.split("_")[4] in _ATTENTION:
        return (_attention(op, base),)
    if base.startswith(("_cudnn_rnn", "_thnn_fused", "miopen_rnn")):
        return _recurrent(op, base)
    if base.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach")):
        return (_many_tensors(op, base),)
    if base == "_safe_softmax":
        return safe_softmax(op)
    return (by_memory(op, base),)


def _matrix_product(op: Op, base: str, tf32: bool) -> Cost:
    first, second = op.inputs[-2:] if base != "_grouped_mm" else op.inputs[:2]
    rows = first.shape[-2] if len(first.shape) > 1 else 1
    inner = first.shape[-1]
    columns = second.shape[-1] if len(second.shape) > 1 else 1
    groups = first.shape[0] if len(first.shape) > 2 else 1
    if base == "_grouped_mm":
        experts = second.shape[0] if len(second.shape) > 2 else 1
        rows, groups = max(rows // experts, 1), experts
    product = Product(groups, rows, columns, inner)
    flops = op.flops or 2.0 * groups * rows * columns * inner
    pipe = pipe_of(first.dtype, tf32)
    kind = ("batched_product" if groups > 1 else "product") + alignment((first, second, *op.outputs[:1]), pipe)
    return Cost(kind, pipe, flops, total(op.inputs) + total(op.outputs), 1, product)


def alignment(matrices: Iterable[Tensor], pipe: str) -> str:
    """The end of a product's kind: tensor cores are fed 16 bytes at a time, so that rows of other sizes take slower kernels
    (NVIDIA's guide "Matrix multiplication background", tensor core requirements). Without tensor cores only rows of an odd number
    of elements do, which leave but one to a load (NeuSight's products on five cards).
    """
    aligned = 16
    for matrix in matrices:
        if len(matrix.shape) < 2:
            continue
        rows = max(matrix.stride[-2:]) if matrix.stride else matrix.shape[-1]
        aligned = gcd(aligned, rows * DTYPE_BYTES.get(matrix.dtype, 4))
    if aligned == 16:
        return ""
    if pipe not in TENSOR_PIPES:
        return UNALIGNED if aligned < _PAIR else ""
    return "_even" if aligned > 2 else "_odd"


def _layout(tensor: Tensor) -> bool:
    """Whether the channels come last in memory."""
    return len(tensor.stride) > 2 and tensor.stride[1] == 1


def _convolution(op: Op) -> tuple[Cost, ...]:
    image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
    groups, transposed = _settings(op)
    bytes_ = tensor_bytes(image) + tensor_bytes(weight) + tensor_bytes(out)
    passing = _pass(image, weight, out, transposed)
    found = _convolving("convolution", passing, op, image, weight, bytes_, groups)
    if len(op.inputs) < 3 or (found.kind == "depthwise" and not _layout(image)):
        return (found,)
    # PyTorch adds the bias to what cuDNN leaves (`add_` of _convolution in ATen/native/Convolution.cpp)
    return found, Cost("broadcast", "fp32", 0.0, 2 * tensor_bytes(out), 1, None, float(prod(out.shape)))


def _settings(op: Op) -> tuple[int, bool]:
    return int(op.attributes.get("groups", 1)), bool(op.attributes.get("transposed", False))


class _Passing(NamedTuple):
    """A convolution seen from its direct form: the many-pixel side `wide`, the side that it produces `out`."""

    batch: int
    in_channels: int
    in_size: int
    out_channels: int
    out_size: int
    kernel: int


def _pass(image: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> _Passing:
    first, last = (out, image) if transposed else (image, out)
    return _Passing(
        image.shape[0],
        first.shape[1],
        prod(first.shape[2:]),
        last.shape[1],
        prod(last.shape[2:]),
        prod(weight.shape[2:]),
    )


def _convolution_backward(op: Op) -> tuple[Cost, ...]:
    gradient, image, weight = op.inputs[:3]
    groups, transposed = _settings(op)
    passing = _pass(image, weight, gradient, transposed)
    mask = op.attributes.get("output_mask", [True, True, False])
    bytes_ = tensor_bytes(image) + tensor_bytes(weight) + tensor_bytes(gradient)
    found = []
    if mask[0]:
        found.append(_convolving("convolution_input", passing, op, image, weight, bytes_, groups))
    if mask[1]:
        found.append(_convolving("convolution_weight", passing, op, image, weight, bytes_, groups))
    if mask[2]:
        found.append(Cost("reduction_columns", "fp32", 0.0, tensor_bytes(gradient), 1))
    return tuple(found)


def _convolving(kind: str, passing: _Passing, op: Op, image: Tensor, weight: Tensor, bytes_: int, groups: int) -> Cost:
    """One of a convolution's three computations, as the matrix product that it is."""
    batch, in_channels, in_size, out_channels, out_size, kernel = passing
    transposed = bool(op.attributes.get("transposed", False))
    each_in, each_out = max(in_channels // groups, 1), max(out_channels // groups, 1)
    pipe = pipe_of(image.dtype, bool(op.attributes.get("allow_tf32", True)))
    if groups == 1 and kernel > 1:
        filled = _CHANNELS.get(pipe, 1)
        each_in, in_channels = (-(-channels // filled) * filled for channels in (each_in, in_channels))
    flops = 2.0 * batch * out_size * out_channels * each_in * kernel
    form = (
        kind
        if not transposed
        else {"convolution": "convolution_input", "convolution_input": "convolution"}.get(kind, kind)
    )
    if form == "convolution":
        product = Product(groups, batch * out_size, each_out, each_in * kernel)
    elif form == "convolution_input":
        inner = max(round(flops / (2.0 * batch * in_size * in_channels)), 1)
        product = Product(groups, batch * in_size, each_in, inner)
    else:
        product = Product(groups, each_out, each_in * kernel, batch * out_size)
    if groups > 1 and each_in == 1:
        return _depthwise(form, passing, image, weight, flops, bytes_)
    if groups > 1:
        return Cost(form.replace("convolution", "grouped"), pipe, flops, bytes_, 1, product)
    kind = form + _shape(kernel, len(image.shape) - 2, op)
    if _layout(image) or _layout(weight):
        return Cost(kind + "_last", pipe, flops, bytes_, 1, product)
    if form == "convolution_input" and not transposed and _by_tiles(pipe, image, weight, op):
        tiles = _tiles(image, weight)
        return Cost("convolution_tiles", "fp32", flops, bytes_, tiles, None, float(tiles))
    if kind in _PLAIN_PRODUCTS:
        # with one pixel and the channels first the rows of the product are the pixels of an image
        kind += alignment([Tensor((1, in_size), image.dtype), Tensor((1, out_size), image.dtype)], pipe)
        kind = kind.removesuffix("_even").removesuffix("_odd") + ("_odd" if kind.endswith(("_even", "_odd")) else "")
    elif pipe in TENSOR_PIPES and form != "convolution_input" and weight.shape[1] <= _FEW_CHANNELS and kind == form:
        kind += "_few"
    return Cost(kind, pipe, flops, bytes_, 1, product)


def _by_tiles(pipe: str, image: Tensor, weight: Tensor, op: Op) -> bool:
    """Whether cuDNN computes an image's gradient by Fourier transforms of 32 x 32 tiles, a few launches each, as it was seen to on
    an H200 (the grids of tools/speed, cuDNN 9.19): in float32, for kernels of 5 x 5 and more, where the image is large, and for
    few output channels whatever its size but where 32 channels go in.
    """
    single = all(size == 1 for name in ("stride", "dilation") for size in op.attributes.get(name, (1,)))
    if pipe != "tf32" or len(image.shape) != 4 or min(weight.shape[2:]) < _LEAST_TILED or not single:
        return False
    outer, inner = weight.shape[:2]
    few = 1 < outer < _CHANNELS["tf32"]
    if few and inner == _SPARED_CHANNELS:
        return False
    return outer > 1 and (few or prod(image.shape[2:]) >= _LARGE_IMAGE)


def _tiles(image: Tensor, weight: Tensor) -> int:
    """How many tiles cover an image: each gives all elements that the kernel does not reach out of it for."""
    return prod(
        ceil(size / (_TILE_SIDE - taps + 1)) for size, taps in zip(image.shape[2:], weight.shape[2:], strict=True)
    )


def _depthwise(form: str, passing: _Passing, image: Tensor, weight: Tensor, flops: float, bytes_: int) -> Cost:
    """A convolution of each channel by itself: no product; a thread takes an element and goes over the kernel.

    With channels last cuDNN computes them all, else PyTorch itself but for halves with a kernel of up to 5 x 5 (`use_cudnn_depthwise`
    in ATen/native/Convolution.cpp). cuDNN has quick kernels up to that size, of each precision, and a general one.
    """
    kind = form.replace("convolution", "depthwise")
    large = max(weight.shape[2:], default=1) > _QUICK_DEPTHWISE
    if _layout(image):
        kind += "_last" + ("_float" if image.dtype == "float32" else "") + ("_large" if large else "")
    elif image.dtype == "float16" and not large and len(weight.shape) == 4:
        kind += "_half"
    elements = passing.batch * passing.out_size * passing.out_channels
    if form == "convolution_input":
        elements = passing.batch * passing.in_size * passing.in_channels
    return Cost(kind, "fp32", flops, bytes_, 1, None, float(elements * (passing.kernel + _TAPS_TO_BEGIN)))


def _shape(kernel: int, dimensions: int, op: Op) -> str:
    """Which of the shapes that libraries treat apart a convolution has, as the end of its kind."""
    single = all(size == 1 for name in ("stride", "dilation") for size in op.attributes.get(name, (1,)))
    if kernel == 1:
        return "_1x1" if single else "_1x1_strided"
    if dimensions == 3:
        return "_3d"
    return "_3x3" if kernel == 9 and dimensions == 2 and single else ""


def _attention(op: Op, base: str) -> Cost:
    backward = base.endswith("_backward")
    query, key = op.inputs[1:3] if backward else op.inputs[:2]
    name = base.split("_")[4]
    kind = f"{name}_attention" + ("_backward" if backward else "")
    rows, columns, size = query.shape[-2], key.shape[-2], query.shape[-1]
    groups = prod(query.shape[:-2])
    filled = (-(-length // _ATTENTION_ROWS) * _ATTENTION_ROWS for length in (rows, columns))
    flops = (10.0 if backward else 4.0) * groups * prod(filled) * size
    if op.attributes.get("is_causal"):
        flops /= 2
    tensors = (*op.inputs[: 5 if backward else 3], *op.outputs[: 3 if backward else 1])
    # a block takes some rows of the queries and goes over all keys; backward the other way round
    parts = groups * ceil((columns if backward else rows) / (2 * _ATTENTION_ROWS))
    product = Product(groups, rows, columns, size)
    kernels = 3 if backward else 1
    return Cost(kind, pipe_of(query.dtype, False), flops, total(tensors), kernels, product, parts=parts)


def _recurrent(op: Op, base: str) -> tuple[Cost, ...]:
    """The products of a recurrent layer: over all steps for its input, step by step for its state."""
    backward = "backward" in base
    if base.startswith("_thnn_fused"):
        return (Cost("elementwise", "fp32", 0.0, total(op.inputs) + total(op.outputs), 1),)
    data = op.inputs[0]
    weights = [tensor for tensor in op.inputs[1:] if len(tensor.shape) == 2]
    first = bool(op.attributes.get("batch_first"))
    steps, batch = (
        (data.shape[1], data.shape[0]) if first else (data.shape[0], data.shape[1 if len(data.shape) > 2 else 0])
    )
    times = 3 if backward else 1
    found = []
    for number, weight in enumerate(weights):
        gates, inner = weight.shape
        pipe = pipe_of(weight.dtype, True)
        size = DTYPE_BYTES.get(weight.dtype, 4)
        if number % 2 == 0:
            product = Product(1, steps * batch, gates, inner)
            moved = size * (steps * batch * (gates + inner) + gates * inner)
            found.append(
                Cost("product", pipe, times * 2.0 * steps * batch * gates * inner, times * moved, times, product)
            )
        else:
            product = Product(1, batch, gates, inner)
            moved = size * steps * (batch * (gates + inner) + gates * inner)
            flops = times * 2.0 * steps * batch * gates * inner
            found.append(Cost("recurrent", pipe, flops, times * moved, 2 * steps, product))
    return tuple(found)


def _many_tensors(op: Op, base: str) -> Cost:
    """An optimizer's operator on lists of tensors: as many launches as its tables of tensors need."""
    lists = _lists(op, base)
    read = total(op.inputs)
    written = total(op.outputs) if op.outputs else read // max(lists, 1)
    if base.startswith("_fused_"):
        written = read * max(lists - 1, 1) // max(lists, 1)
    tensors = max(len(op.inputs) // max(lists, 1), 1)
    elements = read // 4 // max(lists, 1)
    blocks = elements // _BLOCK_ELEMENTS + tensors
    most = _TENSORS_A_LAUNCH[min(lists, len(_TENSORS_A_LAUNCH)) - 1]
    kernels = max(ceil(tensors / most), ceil(blocks / _BLOCKS_A_LAUNCH), 1)
    return Cost("fused" if base.startswith("_fused_") else "foreach", "fp32", 0.0, read + written, kernels)


def _lists(op: Op, base: str) -> int:
    if base.startswith("_fused_adam"):
        return 4
    if base.startswith("_fused_"):
        return 3
    if base.startswith("_foreach_addc"):
        return 3
    if base.startswith("_foreach_lerp"):
        return 3 if op.name.endswith("List") else 2
    if op.name.endswith(".List"):
        return _FOREACH_LISTS.get(base.removeprefix("_foreach_"), 2)
    return 1
