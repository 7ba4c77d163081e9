"""Operators as the code of 2019 had them, for workloads with the option `code=2019`.

Today one operator does what several did, and keeps less for the backward pass. `WrittenOut` replaces operators while a loss
is computed, by what the framework of the measurements did. What each keeps besides its result, in tensors of its input's size:

    PyTorch 0.4 and pytorch_pretrained_bert (MT-DNN)
        GELU        x * 0.5 * (1 + erf(x / sqrt(2))): x / sqrt(2), x / 2, 1 + erf
        layer norm  BertLayerNorm: the deviations twice, and the normalised ones
        dropout     torch/nn/_functions/dropout.py: a mask of the input's type
    PyTorch 1.0 (XLM, fairseq)
        GELU        as above, in XLM
        layer norm  aten/src/ATen/native/Normalization.cpp, by batch norm: the input and the normalised one
        softmax     in float32, whatever the input is: fairseq and XLM say so
    TensorFlow 1.13 (google-research/bert, tf_cnn_benchmarks): the input of an operator only where its gradient reads it
        GELU        modeling.py: x, tanh(...) and the distribution function (as many with erf, as it was at first)
        layer norm  tf.contrib.layers.layer_norm by tf.nn.batch_normalization: x, and scale / deviation at full size
        dropout     tf.nn.dropout: a mask of the input's type
        loss        modeling.py: log-probabilities and labels as one-hot vectors
        ReLU        equal ones of one tensor are one (the graph's common subexpressions are eliminated)
        mean pool   nothing: AvgPoolGrad reads the shape of its input

Not covered: what cuBLAS and cuDNN of those versions took, and in which order TensorFlow runs what may run at any time.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from whichgpu.errors import WorkloadError
from whichgpu.zoo.options import Options

Framework = Literal["pytorch 0.4", "pytorch 1.0", "tensorflow 1.13"]


def read_code(where: str, options: dict[str, str], *, attention: bool = False) -> bool:
    """Take `code` out of the options: whether it says 2019; with `attention`, it is then written out too."""
    reader = Options(where, {"code": options.pop("code", "today")})
    old = reader.choice("code", "today", ("today", "2019")) == "2019"
    if old and attention and options.setdefault("attention", "eager") != "eager":
        raise WorkloadError(f"{where}: code=2019 has attention written out; leave attention out")
    return old


def in_2019(framework: Framework, loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same loss of the operators of that framework."""

    def computed(*arguments: Any) -> torch.Tensor:
        with WrittenOut(framework):
            return loss(*arguments)

    return computed


class WrittenOut(TorchFunctionMode):
    """While it is entered, operators are those of a framework of 2019."""

    def __init__(self, framework: Framework) -> None:
        super().__init__()
        replaced: dict[Framework, dict[Any, Callable[..., torch.Tensor]]] = {
            "pytorch 0.4": {F.gelu: gelu, F.layer_norm: elementary_norm, F.dropout: dropout},
            "pytorch 1.0": {
                F.gelu: gelu,
                F.layer_norm: norm_by_batch_norm,
                F.softmax: softmax_in_float32,
                torch.isfinite: taken_as_finite,
            },
            "tensorflow 1.13": {
                F.gelu: gelu_by_tanh,
                F.layer_norm: norm_by_scale,
                F.dropout: dropout,
                F.cross_entropy: one_hot_loss,
                F.relu: SharedRelu(),
                F.avg_pool2d: mean_pool,
            },
        }
        self._replaced = replaced[framework]

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Call the operator, or what it was."""
        return self._replaced.get(function, function)(*arguments, **(named or {}))


# ---- PyTorch ----


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Of elementary operators; without the approximation."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def elementary_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Over the last dimension."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return weight * ((x - mean) / torch.sqrt(variance + eps)) + bias


def norm_by_batch_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Over the last dimension: every row is a channel of a batch of one."""
    rows = x.contiguous().view(1, -1, x.shape[-1])
    normed = F.batch_norm(rows, None, None, training=True, eps=eps)
    return torch.addcmul(bias, weight, normed.view_as(x))


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """With a mask of the input's own type."""
    if not training or p == 0:
        return x
    return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)


def softmax_in_float32(x: torch.Tensor, dim: int, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """In float32, then back to the input's type."""
    return torch.softmax(x.float(), dim).type_as(x)


def taken_as_finite(x: torch.Tensor) -> torch.Tensor:
    """Nobody looked: transformers does, in halves."""
    return torch.ones((), dtype=torch.bool)


# ---- TensorFlow ----


def gelu_by_tanh(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """By the normal distribution's approximation."""
    share = 0.5 * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))
    return x * share


def norm_by_scale(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Over the last dimension: x * scale - mean * scale, where scale is as large as x."""
    variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    scale = torch.rsqrt(variance + eps) * weight
    return x * scale + (bias - mean * scale)


def one_hot_loss(logits: torch.Tensor, wanted: torch.Tensor, **_: Any) -> torch.Tensor:
    """Mean cross entropy of classes, as a product with one-hot vectors; without the options of today's."""
    labels = torch.zeros_like(logits).scatter_(-1, wanted.unsqueeze(-1), 1.0)
    return -(torch.log_softmax(logits, -1) * labels).sum(-1).mean()


class SharedRelu:
    """ReLU that is computed once of each tensor, as long as its result lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = {}

    def __call__(self, x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        """Never in place where others read the input."""
        if inplace:
            return torch.relu_(x)
        mine, known = self._known.get(id(x), (None, None))
        result = known() if known is not None and mine is not None and mine() is x else None
        if result is None:
            result = torch.relu(x)
            self._known[id(x)] = weakref.ref(x), weakref.ref(result)
        return result


def mean_pool(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """`avg_pool2d` whose gradient reads no more than the shape of its input."""
    both = [(value, value) if isinstance(value, int) else tuple(value) for value in (kernel_size, padding)]
    steps = kernel_size if stride is None or stride == () else stride
    steps = (steps, steps) if isinstance(steps, int) else tuple(steps)
    return MeanPool.apply(x, (both[0], steps, both[1], ceil_mode, count_include_pad, divisor_override))


class MeanPool(torch.autograd.Function):
    """Of an input that may be freed before the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, how: tuple[Any, ...]) -> torch.Tensor:
        """The means."""
        context.shape, context.how = x.shape, how
        return torch.ops.aten.avg_pool2d(x, *how)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Spread over what each is the mean of; the input's place is taken by one number that is as large."""
        stand_in = gradient.new_zeros(1).expand(context.shape)
        return torch.ops.aten.avg_pool2d_backward(gradient.contiguous(), stand_in, *context.how), None
