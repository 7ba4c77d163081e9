"""What operators ask for that memory limits: bytes, and elements or rows, which some kernels take time each for.

Kernels that PyTorch tells apart are kinds of their own: cuDNN's batch norm and PyTorch's, channels that lie last, sums along rows
and across them, bilinear and nearest interpolation, elements that are spread over others (broadcast).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, prod

from whichgpu.speed.asked import DTYPE_BYTES, Cost, pipe_of, tensor_bytes, total
from whichgpu.trace import Op, Tensor

WITHOUT_KERNEL = frozenset(
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
_COPIES = frozenset({"copy_", "_to_copy", "clone", "contiguous", "convert_element_type"})
_LOOK_UPS = frozenset({"embedding", "index_select", "gather", "index", "take", "take_along_dim"})
_SCATTERS = frozenset(
    {"index_add_", "index_add", "scatter_add_", "scatter_add", "scatter_", "scatter", "scatter_reduce", "index_copy_",
     "index_copy", "masked_scatter_", "masked_scatter"}
)  # fmt: skip
_SORTED_SCATTERS = frozenset({"index_put_", "index_put", "_index_put_impl_"})
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
    ("elementwise", ("native_dropout_backward",)),
    ("random", ("native_dropout", "bernoulli", "rand", "normal_", "uniform_", "exponential_")),
    ("max_pool_backward", ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
                           "adaptive_max_pool2d_backward")),
    ("avg_pool_backward", ("avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward")),
    ("max_pool", ("max_pool", "adaptive_max_pool")),
    ("avg_pool", ("avg_pool", "_adaptive_avg_pool")),
    ("nearest_backward", ("upsample_nearest2d_backward", "reflection_pad2d_backward")),
    ("bilinear_backward", ("upsample_bilinear2d_backward", "upsample_bicubic2d_backward")),
    ("bilinear", ("upsample_bilinear2d", "upsample_bicubic2d")),
    ("nearest", ("upsample_", "reflection_pad")),
    ("embedding_backward", ("embedding_dense_backward", "embedding_backward")),
    ("sort", ("sort", "topk", "_unique", "unique", "nonzero", "randperm", "bincount", "searchsorted", "msort")),
    ("cumulative", ("cumsum", "cumprod", "logcumsumexp")),
    ("reduction", ("sum", "mean", "linalg_vector_norm", "norm", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all",
                   "var", "std", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "prod", "count_nonzero")),
    ("cat", ("cat", "stack")),
    ("roll", ("roll",)),
    ("gelu_backward", ("gelu_backward", "silu_backward")),
    ("gelu", ("gelu", "silu", "sigmoid")),
)  # fmt: skip
_SORTED_ROWS = 3072  # ATen/native/cuda/Embedding.cu: more indices than this are sorted first
NARROW = 256  # elements of a row below which the gradients of a layer norm's weights are summed by another kernel
_PIXELS_A_BLOCK = 1024
_FEW_COLUMNS, _MOST_THREADS = 64, 1024  # of a block of a softmax across memory
_RESIDENT_THREADS = 2048  # of a multiprocessor
_POINTS = 4  # of a region's element where the step leaves their number to its size
_CROWDED = 64  # values for each place
_CHANNELS_AT_ONCE = 2  # that a processor works on, each in a block of its own
_CUDNN_SAMPLES = 880801  # aten/src/ATen/native/Normalization.cpp


def by_memory(op: Op, base: str) -> Cost:
    """An operator that memory limits."""
    if base in _FILLS:
        written = total(op.outputs) or total(op.inputs)
        return _cost("fill", op, written, _elements((*op.outputs, *op.inputs)))
    if base in _COPIES:
        return _copy(op)
    if base.startswith("_embedding_bag"):
        return _bag(op, base)
    if base == "nms":  # a single block decides about one box after the other
        boxes = op.inputs[0].shape[0]
        return _cost("suppression", op, total(op.inputs), boxes, parts=1)
    if base in ("roi_align", "_roi_align_backward"):
        return _regions(op, base)
    if base in _LOOK_UPS:
        rows = max((prod(tensor.shape) for tensor in op.inputs[1:]), default=1)
        return _cost("look_up", op, 2 * total(op.outputs) + total(op.inputs[1:]), rows)
    if base in _SCATTERS or base in _SORTED_SCATTERS:
        return _scatter(op, base)
    if base in ("nll_loss_forward", "nll_loss2d_forward"):
        looked_up = max((prod(t.shape) for t in op.inputs[1:]), default=1)
        return _cost("loss", op, 32 * looked_up, looked_up)
    if base in ("nll_loss_backward", "nll_loss2d_backward", "select_backward", "slice_backward"):
        moved = total(op.outputs) + (total(op.inputs) if base.startswith("s") else 0)
        return _cost("fill", op, moved, _elements(op.outputs), kernels=2)
    if base.startswith("grid_sampler"):  # a thread takes a place, wherever it looks
        backward = "backward" in base
        places = _elements(op.inputs[:1] if backward else op.outputs)
        kind = "bilinear_backward_places" if backward else "bilinear_places"
        return _cost(kind, op, total(op.inputs) + total(op.outputs), places)
    kind = next((kind for kind, starts in _KINDS if base.startswith(starts)), "elementwise")
    moved, units = total(op.inputs) + total(op.outputs), _elements((*op.inputs, *op.outputs))
    return _of_kind(kind, op, moved, units)


def plain(op: Op) -> Cost:
    """An operator of which nothing is known but its tensors."""
    return _cost("elementwise", op, total(op.inputs) + total(op.outputs), _elements((*op.inputs, *op.outputs)))


def _of_kind(kind: str, op: Op, moved: int, units: int) -> Cost:
    """Kinds whose kernels depend on shapes and layouts."""
    if kind == "elementwise":
        return _cost(_elementwise(op), op, moved, units)
    if kind.startswith("layer_norm"):
        shape = op.inputs[1 if kind.endswith("backward") else 0].shape
        narrow = "_narrow" if shape and shape[-1] < NARROW else ""
        return _cost(kind + narrow, op, moved, prod(shape[:-1]))
    if kind.startswith("batch_norm"):
        backward = kind.endswith("backward")
        image = op.inputs[1 if backward and len(op.inputs) > 1 else 0]
        weight = op.inputs[1:2]
        if (
            backward
        ):  # gradient, image, what was kept of the statistics (two), running ones (two or none), and the weight if any
            weight = op.inputs[2:3] if len(op.inputs) % 2 else ()
        kind = ("cudnn_" if by_cudnn(image, weight) else "") + kind + _last(image)
        channels = image.shape[1] if len(image.shape) > 1 else 1
        if op.attributes.get("training", op.attributes.get("train")) is False and not backward:
            return _cost("norm_applied" + _last(image), op, moved, units)  # no statistics: one pass
        return _cost(kind, op, moved, units, parts=0 if kind.endswith("_last") else ceil(channels / _CHANNELS_AT_ONCE))
    if kind == "bilinear" and op.outputs and len(op.outputs[0].shape) == 4:
        last = _last(op.inputs[0])
        pixels = prod(op.outputs[0].shape[2:])  # a thread goes over all channels and images at its pixel
        return _cost(kind + last, op, moved, units, parts=0 if last else ceil(pixels / _PIXELS_A_BLOCK))
    if kind == "bilinear_backward" and _elements(op.inputs) > _CROWDED * _elements(op.outputs):
        return _cost("bilinear_backward_few", op, moved, units)
    if kind.startswith(("max_pool", "avg_pool", "nearest", "bilinear", "group_norm")):
        return _cost(kind + _last(op.inputs[0]), op, moved, units)
    if kind.startswith("softmax") and _across(op):
        return _softmax_across(kind, op, moved)
    if kind == "embedding_backward":
        looked_up = prod(op.inputs[1].shape) if len(op.inputs) > 1 else 1
        return _cost(kind + ("_sorted" if looked_up > _SORTED_ROWS else ""), op, moved, looked_up)
    if kind == "reduction":
        return _cost(_reduction(op), op, moved, units)
    return _cost(kind, op, moved, units)


def _softmax_across(kind: str, op: Op, moved: int) -> Cost:
    """A thread goes along a column, several where columns are few and long (SpatialSoftMax_getBlockSize in
    ATen/native/cuda/SoftMax.cu); few threads take as long as one, which waits for memory at each element.
    """
    shape = op.outputs[0].shape
    dim = int(op.attributes["dim"]) % len(shape)
    length, inner = max(shape[dim], 1), prod(shape[dim + 1 :])
    side_by_side = 1
    if inner <= _FEW_COLUMNS <= length:
        while inner * side_by_side * 2 <= _MOST_THREADS and side_by_side * 2 <= length:
            side_by_side *= 2
    threads = prod(shape) // length * side_by_side / _RESIDENT_THREADS
    steps = ceil(length / side_by_side)
    return _cost(kind + "_columns", op, moved, threads * steps, parts=max(ceil(threads), 1))


def safe_softmax(op: Op) -> tuple[Cost, ...]:
    """A softmax, then rows of minus infinity alone made zero: four kernels (`_safe_softmax` in ATen/native/SoftMax.cpp)."""
    scores, out = op.inputs[0], op.outputs[0]
    elements, rows = prod(scores.shape), prod(scores.shape[:-1])
    return (
        _cost("softmax", op, tensor_bytes(scores) + tensor_bytes(out), elements),
        _cost("elementwise", op, tensor_bytes(scores) + elements, elements),
        _cost("reduction_rows", op, elements + rows, elements),
        _cost("broadcast", op, 2 * tensor_bytes(out), elements),
    )


def _regions(op: Op, base: str) -> Cost:
    """What detectors cut out of feature maps, or its gradient: some points for each element, four neighbours each."""
    cut = op.inputs[0] if "backward" in base else op.outputs[0]
    ratio = op.attributes.get("sampling_ratio", 0)
    points = ratio**2 if isinstance(ratio, int) and ratio > 0 else _POINTS
    kind = "regions_backward" if "backward" in base else "regions"
    moved = 2 * tensor_bytes(cut) + (total(op.outputs) if "backward" in base else 0)
    return _cost(kind, op, moved, prod(cut.shape) * points)


def by_cudnn(image: Tensor, weight: tuple[Tensor, ...]) -> bool:
    """Whether CUDA takes cuDNN's batch norm (`use_cudnn` in aten/src/ATen/native/Normalization.cpp): not for bfloat16, and not
    without weights, as instance norms are.
    """
    few = len(image.shape) > 2 and image.shape[0] <= _CUDNN_SAMPLES
    weighted = bool(weight) and weight[0].shape == image.shape[1:2] and weight[0].dtype == "float32"
    return few and weighted and image.dtype in ("float32", "float16")


def _cost(kind: str, op: Op, moved: int, units: float, kernels: int = 1, parts: int = 0) -> Cost:
    source = max((*op.inputs, *op.outputs), key=tensor_bytes, default=None)
    pipe = pipe_of(source.dtype, False) if source is not None else "fp32"
    return Cost(kind, pipe, float(op.flops), moved, kernels, None, float(units), parts)


def _elements(tensors: Iterable[Tensor]) -> int:
    return max((prod(tensor.shape) for tensor in tensors), default=0)


def _bag(op: Op, base: str) -> Cost:
    """Rows of a table that are added up, or their gradients."""
    rows, width = prod(op.inputs[1].shape), op.inputs[0].shape[-1]
    looked_up = rows * width * DTYPE_BYTES.get(op.inputs[0].dtype, 4) + tensor_bytes(op.inputs[1])
    if "backward" in base:
        return _cost("embedding_backward_sorted", op, looked_up + total(op.outputs), rows)
    return _cost("look_up", op, looked_up + total(op.outputs[:1]), rows)


def _copy(op: Op) -> Cost:
    source = op.inputs[-1] if op.inputs else None
    moved = (tensor_bytes(source) if source is not None else 0) + total(op.outputs)
    kind = "copy"
    if source is not None and op.outputs:
        if _turned(source, op.outputs[0]):
            kind = "transpose" + ("_last" if _last(source) or _last(op.outputs[0]) else "")
        elif source.stride and source.stride != op.outputs[0].stride:
            kind = "copy_strided"
    return _cost(kind, op, moved, _elements(op.outputs or op.inputs))


def _scatter(op: Op, base: str) -> Cost:
    """Values that are put or added where indices say; index_put sorts the indices first."""
    values = max(op.inputs[1:], key=tensor_bytes, default=None)
    touched = total(op.inputs[1:]) + (2 * tensor_bytes(values) if values is not None else 0)
    copied = 0 if base.endswith("_") else 2 * tensor_bytes(op.inputs[0])
    kernels = 1 if base.endswith("_") else 2
    if base not in _SORTED_SCATTERS:
        elements = _elements(op.inputs[1:])
        # many that are added up at few places wait for each other
        kind = "scatter_few" if elements > _CROWDED * prod(op.inputs[0].shape) else "scatter"
        return _cost(kind, op, touched + copied, elements, kernels=kernels)
    # rows stay whole, or else single elements
    whole = values is not None and values.shape[-1:] == op.inputs[0].shape[-1:]
    rows = prod(values.shape[: -1 if whole else None]) if values is not None else 1
    kind = "scatter_sorted" if whole else "scatter_sorted_single"
    return _cost(kind, op, touched + copied, rows, kernels=kernels)


def _elementwise(op: Op) -> str:
    """Plain, or with elements that are spread over others, or that lie in another order."""
    if not op.outputs or not op.inputs:
        return "elementwise"
    size = prod(op.outputs[0].shape)
    if any(0 in tensor.stride or 1 < prod(tensor.shape) < size for tensor in op.inputs):
        return "broadcast"
    return "elementwise_strided" if any(_turned(tensor, op.outputs[0]) for tensor in op.inputs) else "elementwise"


def _across(op: Op) -> bool:
    """Whether a softmax is along another dimension than the last (`host_softmax` in ATen/native/cuda/SoftMax.cu)."""
    dim = op.attributes.get("dim")
    return isinstance(dim, int) and bool(op.outputs) and dim % len(op.outputs[0].shape) < len(op.outputs[0].shape) - 1


def _reduction(op: Op) -> str:
    """Of everything, along the dimension that is dense in memory, or across it."""
    if not op.inputs or not op.outputs or prod(op.outputs[0].shape) <= 1:
        return "reduction"
    dims = op.attributes.get("dim")
    if isinstance(dims, int):
        dims = [dims]
    shape = op.inputs[0].shape
    if not dims or not shape:
        return "reduction"
    inner = _innermost(op.inputs[0])
    return "reduction_rows" if inner in {dim % len(shape) for dim in dims} else "reduction_columns"


def _last(tensor: Tensor) -> str:
    """The end of a kind whose channels come last in memory."""
    return "_last" if len(tensor.stride) > 2 and tensor.stride[1] == 1 and tensor.shape[1] > 1 else ""


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
