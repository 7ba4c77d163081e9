"""Operators as models of 2019 were written: of elementary ones, each of which keeps what its own gradient needs.

Today one operator does the same and keeps less. `WrittenOut` replaces them while a loss is computed, for workloads with the
option `code=2019`. Sources, with what is kept for the backward pass besides the input of the next layer:

    GELU        x * 0.5 * (1 + erf(x / sqrt(2))) in pytorch_pretrained_bert and XLM: x / sqrt(2), x / 2 and 1 + erf
    layer norm  pytorch_pretrained_bert's BertLayerNorm: the deviations twice and the normalised ones; PyTorch 1.0
                (aten/src/ATen/native/Normalization.cpp) by batch norm: the input and the normalised one
    dropout     PyTorch 0.4 (torch/nn/_functions/dropout.py): a mask of the input's type; from 1.0 on one of bytes, as today

Not covered: what cuBLAS, cuDNN and the allocator of those versions took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from whichgpu.errors import WorkloadError
from whichgpu.zoo.options import Options


def read_code(where: str, options: dict[str, str]) -> bool:
    """Take `code` out of the options: whether it says 2019, which then has attention written out too."""
    reader = Options(where, {"code": options.pop("code", "today")})
    old = reader.choice("code", "today", ("today", "2019")) == "2019"
    if old and options.setdefault("attention", "eager") != "eager":
        raise WorkloadError(f"{where}: code=2019 has attention written out; leave attention out")
    return old


class WrittenOut(TorchFunctionMode):
    """While it is entered, operators are those of 2019; `old`: of PyTorch 0.4 and pytorch_pretrained_bert, else of 1.0."""

    def __init__(self, *, old: bool) -> None:
        super().__init__()
        self._replaced: dict[Any, Callable[..., torch.Tensor]] = {
            F.gelu: gelu,
            F.layer_norm: elementary_norm if old else norm_by_batch_norm,
        }
        if old:
            self._replaced[F.dropout] = dropout

    def __torch_function__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Call the operator, or what it was."""
        return self._replaced.get(function, function)(*arguments, **(named or {}))


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
