"""What an operator asks of a GPU: arithmetic, bytes and kernels, from its entry in the trace.

Bytes are those that must cross the memory bus once: elements that an argument repeats (stride 0) count once, rows that are
looked up count and the table behind them does not. What a kernel moves beyond that, and how close it comes to the card's rates,
is a matter of `kernels`. FLOPs follow the trace: a multiply-add counts as two.

Not covered: operators of other libraries but torch's and torchvision's, which count as elementwise; the time that an operator
waits for the host to read a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, prod
from typing import NamedTuple

from whichgpu.trace import Op, Tensor

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "uint64": 8,
    "int32": 4,
    "uint32": 4,
    "int16": 2,
    "uint16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}
# ATen/native/cuda/MultiTensorApply.cuh: how many tensors one launch takes, by the number of lists; blocks and elements of each
_TENSORS_A_LAUNCH = (110, 64, 48, 36, 30)
_BLOCKS_A_LAUNCH, _BLOCK_ELEMENTS = 320, 65536
_WITHOUT_KERNEL = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "is_coalesced",
        "_efficientzerotensor",
    }
)
_FILLS = frozenset({"zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
                    "new_full", "scalar_tensor", "arange"})  # fmt: skip
_LOOK_UPS = frozenset({"embedding", "index_select", "gather", "index", "take", "take_along_dim"})
_SCATTERS = frozenset(
    {"index_add_", "index_add", "scatter_add_", "scatter_add", "scatter_", "scatter", "scatter_reduce", "index_put_", "index_put",
     "index_copy_", "index_copy", "_index_put_impl_", "masked_scatter_", "masked_scatter"}
)  # fmt: skip
# kind of efficiency -> beginnings of operators' names; the first that fits
_KINDS = (
    ("layer_norm_backward", ("native_layer_norm_backward", "_fused_rms_norm_backward")),
    ("layer_norm", ("native_layer_norm", "_fused_rms_norm")),
    ("batch_norm_backward", ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward")),
    ("batch_norm", ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm", "_batch_norm", "batch_norm")),
    ("group_norm_backward", ("native_group_norm_backward",)),
    ("group_norm", ("native_group_norm",)),
    ("softmax_backward", ("_softmax_backward", "_log_softmax_backward")),
    ("softmax", ("_softmax", "_log_softmax", "logsumexp")),
    ("dropout", ("native_dropout", "bernoulli", "rand", "normal_", "uniform_", "exponential_")),
    ("pool_backward", ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
                       "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward")),
    ("pool", ("max_pool", "avg_pool", "_adaptive_avg_pool", "adaptive_max_pool")),
    ("interpolate_backward", ("upsample_bilinear2d_backward", "upsample_nearest2d_backward", "upsample_bicubic2d_backward",
                              "reflection_pad2d_backward", "grid_sampler_2d_backward")),
    ("interpolate", ("upsample_", "reflection_pad", "grid_sampler")),
    ("embedding_backward", ("embedding_dense_backward", "embedding_backward")),
    ("sort", ("sort", "topk", "_unique", "unique", "nonzero", "randperm", "nms", "bincount", "searchsorted", "msort")),
    ("cumulative", ("cumsum", "cumprod", "logcumsumexp")),
    ("reduction", ("sum", "mean", "linalg_vector_norm", "norm", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all",
                   "var", "std", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "prod", "count_nonzero")),
    ("cat", ("cat", "stack")),
)  # fmt: skip
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
_ATTENTION = ("flash", "efficient", "cudnn", "fused", "math")


class Product(NamedTuple):
    """A batch of matrix products of the same size."""

    groups: int
    rows: int
    columns: int
    inner: int


class Cost(NamedTuple):
    """What one kernel, or some of one kind, asks of a GPU."""

    kind: str  # whose efficiency applies
    pipe: str  # arithmetic that it is done in: "fp64", "fp32", "tf32", "fp16" or "bf16"
    flops: float
    bytes: float
    kernels: int
    product: Product | None = None


def costs(op: Op, *, tf32_matmul: bool = False) -> tuple[Cost, ...]:
    """What an operator asks of a GPU; empty where it launches no kernel."""
    base = op.name.split(".")[1] if op.name.count(".") > 1 else op.name
    if base in _WITHOUT_KERNEL:
        return ()
    if base in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "addmv", "mv", "dot", "_scaled_mm"):
        return (_matrix_product(op, base, tf32_matmul),)
    if base in ("convolution", "_convolution", "cudnn_convolution"):
        return (_convolution(op),)
    if base == "convolution_backward":
        return _convolution_backward(op)
    if base.startswith("_scaled_dot_product_") and base.split("_")[4] in _ATTENTION:
        return (_attention(op, base),)
    if base.startswith(("_cudnn_rnn", "_thnn_fused", "miopen_rnn")):
        return _recurrent(op, base)
    if base.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach")):
        return (_many_tensors(op, base),)
    return (_by_memory(op, base),)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, those that it repeats counted once."""
    elements = prod(tensor.shape)
    if 0 in tensor.stride:
        elements = prod(size for size, stride in zip(tensor.shape, tensor.stride, strict=True) if stride)
    return elements * DTYPE_BYTES.get(tensor.dtype, 4)


def _total(tensors: Iterable[Tensor]) -> int:
    return sum(map(tensor_bytes, tensors))


def pipe_of(dtype: str, tf32: bool) -> str:
    """Which arithmetic a dtype is computed in."""
    if dtype in ("float32", "complex64"):
        return "tf32" if tf32 else "fp32"
    return {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "complex128": "fp64"}.get(dtype, "fp32")


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
    kind = "batched_product" if groups > 1 else "product"
    return Cost(kind, pipe_of(first.dtype, tf32), flops, _total(op.inputs) + _total(op.outputs), 1, product)


def _layout(tensor: Tensor) -> bool:
    """Whether the channels come last in memory."""
    return len(tensor.stride) > 2 and tensor.stride[1] == 1


def _convolution(op: Op) -> Cost:
    image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
    groups, transposed = _settings(op)
    bytes_ = tensor_bytes(image) + tensor_bytes(weight) + tensor_bytes(out)
    passing = _pass(image, weight, out, transposed)
    return _convolving("convolution", passing, op, image, weight, bytes_, groups)


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
        found.append(Cost("reduction", "fp32", 0.0, tensor_bytes(gradient), 1))
    return tuple(found)


def _convolving(kind: str, passing: _Passing, op: Op, image: Tensor, weight: Tensor, bytes_: int, groups: int) -> Cost:
    """One of a convolution's three computations, as the matrix product that it is."""
    batch, in_channels, in_size, out_channels, out_size, kernel = passing
    transposed = bool(op.attributes.get("transposed", False))
    each_in, each_out = max(in_channels // groups, 1), max(out_channels // groups, 1)
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
    tf32 = bool(op.attributes.get("allow_tf32", True))
    pipe = pipe_of(image.dtype, tf32)
    if groups > 1 and each_in == 1:
        return Cost(form.replace("convolution", "depthwise"), pipe, flops, bytes_, 1, product)
    if groups > 1:
        return Cost(form.replace("convolution", "grouped"), pipe, flops, bytes_, 1, product)
    kind = form + _shape(kernel, len(image.shape) - 2, op)
    return Cost(kind + ("_last" if _layout(image) or _layout(weight) else ""), pipe, flops, bytes_, 1, product)


def _shape(kernel: int, dimensions: int, op: Op) -> str:
    """Which of the shapes that libraries treat apart a convolution has, as the end of its kind."""
    if kernel == 1:
        return "_1x1"
    if dimensions == 3:
        return "_3d"
    single = all(size == 1 for name in ("stride", "dilation") for size in op.attributes.get(name, (1,)))
    return "_3x3" if kernel == 9 and dimensions == 2 and single else ""


def _attention(op: Op, base: str) -> Cost:
    backward = base.endswith("_backward")
    query, key = op.inputs[1:3] if backward else op.inputs[:2]
    name = base.split("_")[4]
    kind = f"{name}_attention" + ("_backward" if backward else "")
    rows, size = query.shape[-2], query.shape[-1]
    groups = prod(query.shape[:-2])
    flops = (10.0 if backward else 4.0) * groups * rows * key.shape[-2] * size
    if op.attributes.get("is_causal"):
        flops /= 2
    product = Product(groups, rows, key.shape[-2], size)
    tensors = (*op.inputs[: 5 if backward else 3], *op.outputs[: 3 if backward else 1])
    return Cost(kind, pipe_of(query.dtype, False), flops, _total(tensors), 3 if backward else 1, product)


def _recurrent(op: Op, base: str) -> tuple[Cost, ...]:
    """The products of a recurrent layer: over all steps for its input, step by step for its state."""
    backward = "backward" in base
    if base.startswith("_thnn_fused"):
        return (Cost("elementwise", "fp32", 0.0, _total(op.inputs) + _total(op.outputs), 1),)
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
            found.append(Cost("recurrent", pipe, flops, times * moved, steps, product))
    return tuple(found)


def _many_tensors(op: Op, base: str) -> Cost:
    """An optimizer's operator on lists of tensors: as many launches as its tables of tensors need."""
    lists = _lists(op, base)
    read = _total(op.inputs)
    written = _total(op.outputs) if op.outputs else read // max(lists, 1)
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


def _by_memory(op: Op, base: str) -> Cost:
    """An operator that memory limits."""
    kind = next((kind for kind, starts in _KINDS if base.startswith(starts)), "")
    read, written = _total(op.inputs), _total(op.outputs)
    if base in _FILLS:
        return Cost("fill", "fp32", 0.0, written or read, 1)
    if base in ("copy_", "_to_copy", "clone", "contiguous", "convert_element_type"):
        source = op.inputs[-1] if op.inputs else None
        moved = (tensor_bytes(source) if source is not None else 0) + written
        turned = source is not None and bool(op.outputs) and _turned(source, op.outputs[0])
        return Cost("transpose" if turned else "copy", "fp32", 0.0, moved, 1)
    if base in _LOOK_UPS:
        return Cost("look_up", "fp32", 0.0, 2 * written + _total(op.inputs[1:]), 1)
    if base in _SCATTERS:
        touched = _total(op.inputs[1:]) + 2 * _largest(op.inputs[1:])
        copied = 0 if base.endswith("_") else 2 * tensor_bytes(op.inputs[0])
        return Cost("scatter", "fp32", 0.0, touched + copied, 1 if base.endswith("_") else 2)
    if base in ("nll_loss_forward", "nll_loss2d_forward"):
        return Cost("reduction", "fp32", 0.0, 32 * max((prod(t.shape) for t in op.inputs[1:]), default=1), 1)
    if base in ("nll_loss_backward", "nll_loss2d_backward", "select_backward", "slice_backward"):
        return Cost("fill", "fp32", 0.0, written + (read if base.startswith("s") else 0), 2)
    repeated = any(0 in tensor.stride for tensor in op.inputs)
    turned = bool(op.inputs) and bool(op.outputs) and not kind and _turned(op.inputs[0], op.outputs[0])
    kind = kind or ("transpose" if turned and not repeated else "elementwise")
    return Cost(kind, "fp32", op.flops, read + written, 1)


def _largest(tensors: Iterable[Tensor]) -> int:
    return max(map(tensor_bytes, tensors), default=0)


def _turned(source: Tensor, target: Tensor) -> bool:
    """Whether source and target have another order of dimensions in memory."""
    if source.shape != target.shape or source.stride == target.stride or len(source.shape) < 2:
        return False
    return _innermost(source) != _innermost(target)


def _innermost(tensor: Tensor) -> int:
    """The dimension whose elements are next to each other."""
    wide = [place for place, size in enumerate(tensor.shape) if size > 1]
    if not wide:
        return -1
    if not tensor.stride:
        return wide[-1]
    return min(wide, key=lambda place: (tensor.stride[place], -place))
