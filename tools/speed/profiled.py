"""What operators took inside profiled steps on an H200, by class, beside what these steps ask for by the same class.

A class is a group of operators that a profile and a trace name differently: a trace has `native_batch_norm` where the card ran
`cudnn_batch_norm`. Profiles whose queue ran full are left out: their kernels stand under "Command Buffer Full".
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from speed.steps import Step
from whichgpu.speed.asked import Cost

PROFILES = tuple(
    Path(__file__).parent / "data" / f"{name}.jsonl.xz" for name in ("h200_profiles", "h200_profiles_still")
)
MOST_LOST = 0.01  # of a step's time that stands under no operator
LEAST = 0.003  # of a step's time that a class must have
# class -> beginnings of a profile's names (without aten::), and of kinds of costs; the first that fits
_CLASSES = (
    ("attention backward", ("_flash_attention_backward", "_efficient_attention_backward", "_cudnn_attention_backward",
                            "_scaled_dot_product_flash_attention_backward"),
     ("flash_attention_backward", "efficient_attention_backward", "cudnn_attention_backward")),
    ("attention", ("_flash_attention_forward", "_efficient_attention_forward", "_cudnn_attention_forward",
                   "_scaled_dot_product_flash"), ("flash_attention", "efficient_attention", "cudnn_attention")),
    ("convolution backward", ("convolution_backward", "cudnn_convolution_backward"),
     ("convolution_input", "convolution_weight", "depthwise_input", "depthwise_weight", "grouped_input", "grouped_weight")),
    ("convolution", ("cudnn_convolution", "_conv_depthwise", "conv_depthwise", "slow_conv", "thnn_conv"),
     ("convolution", "depthwise", "grouped")),
    ("product", ("mm", "addmm", "bmm", "baddbmm", "addbmm", "_grouped_mm", "dot", "mv", "addmv"),
     ("product", "batched_product")),
    ("batch norm backward", ("cudnn_batch_norm_backward", "native_batch_norm_backward"),
     ("cudnn_batch_norm_backward", "batch_norm_backward")),
    ("batch norm", ("cudnn_batch_norm", "native_batch_norm"), ("cudnn_batch_norm", "batch_norm", "norm_applied")),
    ("suppression", ("nms",), ("suppression",)),
    ("roll", ("roll",), ("roll",)),
    ("regions backward", ("_roi_align_backward",), ("regions_backward",)),
    ("regions", ("roi_align",), ("regions",)),
    ("layer norm backward", ("native_layer_norm_backward", "_fused_rms_norm_backward"), ("layer_norm_backward",)),
    ("layer norm", ("native_layer_norm", "_fused_rms_norm"), ("layer_norm",)),
    ("recurrent", ("_cudnn_rnn", "_thnn_fused"), ("recurrent",)),
    ("optimizer", ("_foreach", "_fused_adam", "_fused_sgd", "_amp_foreach"), ("foreach", "fused")),
    ("group norm", ("native_group_norm",), ("group_norm",)),
    ("softmax backward", ("_softmax_backward", "_log_softmax_backward"), ("softmax_backward",)),
    ("softmax", ("_softmax", "_log_softmax", "logsumexp"), ("softmax",)),
    ("pool backward", ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
                       "_adaptive_avg_pool2d_backward"), ("max_pool_backward", "avg_pool_backward")),
    ("pool", ("max_pool2d", "max_pool3d", "avg_pool2d", "_adaptive_avg_pool2d"), ("max_pool", "avg_pool")),
    ("interpolation", ("upsample_", "grid_sampler", "reflection_pad"), ("bilinear", "nearest")),
    ("copy", ("copy_",), ("copy", "transpose")),
    ("cat", ("cat",), ("cat",)),
    ("fill", ("fill_",), ("fill",)),
    ("reduction", ("sum", "mean", "linalg_vector_norm", "norm", "max", "min", "amax", "amin", "argmax", "all", "any", "var",
                   "std", "prod"), ("reduction",)),
    ("random", ("native_dropout", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"), ("random",)),
    ("scatter", ("_index_put_impl_", "index_add_", "index_add", "scatter_add_", "scatter_", "scatter_add", "scatter"), ("scatter",)),
    ("embedding backward", ("embedding_dense_backward", "_embedding_bag_dense_backward"), ("embedding_backward",)),
    ("look-up", ("gather", "index", "index_select", "_embedding_bag"), ("look_up",)),
    ("sort", ("sort", "topk", "_unique2", "unique", "nonzero", "randperm", "bincount"), ("sort",)),
    ("elementwise", ("add", "add_", "mul", "mul_", "sub", "sub_", "div", "div_", "threshold_backward", "clamp_min_", "clamp_min",
                     "gelu", "gelu_backward", "silu", "silu_", "silu_backward", "sigmoid", "sigmoid_backward", "tanh",
                     "tanh_backward", "pow", "where", "masked_fill_", "leaky_relu_", "leaky_relu", "leaky_relu_backward", "neg",
                     "native_dropout_backward", "hardswish_", "hardswish_backward", "relu", "relu_", "exp", "log", "sqrt",
                     "rsqrt", "glu", "glu_backward", "clamp", "maximum", "minimum", "eq", "ne", "lt", "gt", "le", "ge",
                     "addcmul_", "addcdiv_", "lerp_", "erf", "abs", "masked_fill", "cos", "sin", "isneginf", "remainder"),
     ("elementwise", "broadcast", "gelu")),
)  # fmt: skip
OTHER = "other"


class ByClass(NamedTuple):
    """What one class of operators took in a step."""

    name: str
    seconds: float
    costs: dict[Cost, int]
    share: float  # of the time of all


def class_of_operator(name: str) -> str:
    """The class of an operator as a profile names it."""
    short = name.rsplit("::", maxsplit=1)[-1]
    for found, starts, _ in _CLASSES:
        if any(short == start or (len(start) > 5 and short.startswith(start)) for start in starts):
            return found
    return OTHER


def class_of_kind(kind: str) -> str:
    """The class of a kind of cost."""
    return next((found for found, _, kinds in _CLASSES if kind.startswith(kinds)), OTHER)


def read(paths: Iterable[Path] = PROFILES) -> dict[tuple[str, int], dict[str, Any]]:
    """Profiles by workload and batch size."""
    rows = [json.loads(line) for path in paths for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
    return {(row["name"], row["batch_size"]): row for row in rows}


def seconds_by_class(profile: dict[str, Any]) -> tuple[dict[str, float], float]:
    """Seconds by class, and those of all kernels."""
    found: dict[str, float] = {}
    for name, _, _, microseconds, _ in profile["operators"]:
        found[class_of_operator(name)] = found.get(class_of_operator(name), 0.0) + microseconds / 1e6
    return found, sum(found.values())


def lost(profile: dict[str, Any]) -> float:
    """The share of a step's time that stands under no operator."""
    every = [(row[0], row[3]) for row in profile["operators"]]
    whole = sum(microseconds for _, microseconds in every)
    outside = ("Command Buffer Full", "Activity Buffer Request")
    return sum(microseconds for name, microseconds in every if name in outside) / whole if whole else 1.0


def by_class(step: Step, profile: dict[str, Any]) -> Iterator[ByClass]:
    """The classes of a profiled step that have a share of it, with what the step asks for; nothing where time was lost."""
    if lost(profile) > MOST_LOST:
        return
    seconds, whole = seconds_by_class(profile)
    for name, taken in seconds.items():
        costs = {cost: times for cost, times in step.asked.costs.items() if class_of_kind(cost.kind) == name}
        if taken > LEAST * whole and costs:
            yield ByClass(name, taken, costs, taken / whole)
