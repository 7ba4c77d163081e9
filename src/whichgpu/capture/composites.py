"""Operators that CUDA splits up differently from the CPU, and the few without a usable meta or CPU kernel.

`Overrides(recorder, target)` registers CUDA's way over PyTorch's composite kernels for as long as it is entered, fills
the recorder's tables, and brings the attention and autocast rules in.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from whichgpu.capture import attention, filled, recurrent, rms_norm
from whichgpu.capture.autocast import Casts
from whichgpu.capture.recorder import Recorder
from whichgpu.capture.recurrent import Recurrent
from whichgpu.capture.target import Target

aten = torch.ops.aten
Tensor = torch.Tensor

_MEAN, _SUM = 1, 2  # at::Reduction


class Overrides:
    """Context manager; removes its registrations on exit."""

    def __init__(self, recorder: Recorder, target: Target) -> None:
        self.recorder = recorder
        self.target = target

    def __enter__(self) -> Overrides:
        self.library = torch.library.Library("aten", "IMPL")
        composite = {
            "scaled_dot_product_attention": attention.make(self.target.capability, self.recorder.same_for),
            "dropout": _dropout,
            "linear": _linear,
            "lstm_cell": recurrent.lstm_cell,
            "gru_cell": recurrent.gru_cell,
            "ctc_loss.Tensor": _ctc_loss,
            "ctc_loss.IntList": _ctc_loss_of_lists,
            "softmax.int": _softmax(aten._softmax.default),
            "log_softmax.int": _softmax(aten._log_softmax.default),
            "one_hot": filled.one_hot,
            "rms_norm": rms_norm.rms_norm,
            "pad_sequence": filled.pad_sequence,
            "_pad_packed_sequence": filled.pad_packed_sequence,
        }
        composite |= Recurrent(self.target.sm_count).overrides()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")  # before torch 2.14
            for name, function in composite.items():
                self.library.impl(name, function, "CompositeImplicitAutograd", allow_override=True)
            # kernels for the CPU, so that autograd takes CUDA's backward instead of that of its parts
            self.library.impl("_fused_rms_norm", rms_norm.in_parts, "CPU")
            self.library.impl("_fused_rms_norm_backward", rms_norm.kernel_backward, "CPU")
            self.casts = Casts()
        self.recorder.hollow_implementations.update(_HOLLOW)
        self.recorder.value_implementations.update(_BY_VALUE)
        self.recorder.decompositions.update(_IN_STEPS)
        self.recorder.allocation_order.update(_ORDER)
        self.plain_clear = torch.clear_autocast_cache

        def clear() -> None:
            self.casts.clear()
            self.plain_clear()

        torch.clear_autocast_cache = clear
        return self

    def __exit__(self, *_: object) -> None:
        torch.clear_autocast_cache = self.plain_clear
        self.casts.close()
        self.library._destroy()


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """`dropout` of aten/src/ATen/native/Dropout.cpp: CUDA takes the fused kernel, which keeps a mask of bytes."""
    if p == 0 or not train or input.numel() == 0:
        return input
    if input.is_cuda and 0 < p < 1:
        return aten.native_dropout(input, p, train)[0]
    if p == 1:
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    noise = torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
    return input * noise


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` of Linear.cpp, which adds the bias to a product in place; not so while a dispatch mode is on."""
    if bias is None:
        return input.matmul(weight.t())
    if input.dim() == 2 and weight.dim() == 2:
        return torch.addmm(bias, input, weight.t())
    if input.is_contiguous() and input.dim() and weight.dim() == 2:
        rows = input.shape[:-1].numel()
        product = torch.addmm(bias, input.view(rows, input.size(-1)), weight.t())
        return product.view(*input.shape[:-1], product.size(1))
    return input.matmul(weight.t()).add_(bias)


def _softmax(kernel: Any) -> Any:
    def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
        """`softmax` of SoftMax.cpp: half to float happens inside CUDA's kernel."""
        if input.is_cuda and input.dtype == torch.float16 and dtype == torch.float32:
            return kernel(input, dim, True)
        return kernel(input if dtype is None else input.to(dtype), dim, False)

    return softmax


def _convolution(input: Tensor, weight: Tensor, *args: Any) -> Tensor:
    """`determine_backend_memory_format` of Convolution.cpp: cuDNN keeps channels last of either."""
    layout = _layout_of_either(input, weight)
    out = aten.convolution.default(input, weight, *args)
    return out if layout == torch.contiguous_format else out.to(memory_format=layout)


def _layout_of_either(input: Tensor, weight: Tensor) -> torch.memory_format:
    layout = suggest_memory_format(input)
    return layout if layout != torch.contiguous_format else suggest_memory_format(weight)


def _convolution_backward(grad: Tensor, input: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor | None, ...]:
    """`convolution_backward` of Convolution.cpp: gradients lie as the convolution runs, however theirs comes in."""
    layout = _layout_of_either(input, weight)
    *found, bias = aten.convolution_backward.default(grad, input, weight, *args)
    return (*(None if one is None else one.contiguous(memory_format=layout) for one in found), bias)


def _reduced_in_place(kernel: Any) -> Any:
    """Losses that make room for every element and shrink to a number afterwards: the storage stays (Loss.cpp)."""

    def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = kernel(input, target, *args, **kwargs)
        if out.dim():
            return out
        room = torch.empty(torch.broadcast_shapes(input.shape, target.shape), dtype=out.dtype, device="meta")
        return room.as_strided((), ())

    return loss


def _cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, keeps_sums: bool, *args: Any, **kwargs: Any
) -> Any:
    """`_scaled_dot_product_cudnn_attention`: without a gradient to come, no sums are kept."""
    out = aten._scaled_dot_product_cudnn_attention.default(query, key, value, mask, keeps_sums, *args, **kwargs)
    return out if keeps_sums else (out[0], query.new_empty(0), *out[2:])


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """`ctc_loss.Tensor` of LossCTC.cpp: the lengths are read on the host."""
    lengths = (input_lengths.tolist(), target_lengths.tolist())
    return _ctc_loss_of_lists(log_probs, targets, *lengths, blank, reduction, zero_infinity)


def _ctc_loss_of_lists(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: list[int],
    target_lengths: list[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """`ctc_loss.IntList` of LossCTC.cpp, whose lengths go to where the loss is."""
    batch = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    targets = targets.to(device=log_probs.device, dtype=torch.long)
    loss = aten._ctc_loss(batch, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        zero = torch.zeros((), dtype=loss.dtype, device=loss.device)
        loss = torch.where(loss == float("inf"), zero, loss)
    if reduction == _MEAN:
        lengths = torch.tensor(target_lengths, dtype=loss.dtype, device=loss.device)
        return (loss / lengths.clamp_min(1)).mean()
    if reduction == _SUM:
        return loss.sum()
    return loss if log_probs.dim() == 3 else loss.squeeze(0)


def _ctc_loss_kernel(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """`_ctc_loss` of cuda/LossCTC.cu: loss by sequence, and the table of forward probabilities."""
    steps, batch = log_probs.size(0), log_probs.size(1)
    longest = targets.size(1) if targets.dim() == 2 else max(list(target_lengths))
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, 2 * longest + 1))


def _euclidean_dist(one: Tensor, other: Tensor) -> Tensor:
    """`_euclidean_dist` of Distance.cpp: both sets of points with their norms and ones beside them, one product."""
    norms = one.pow(2).sum(-1, True)
    ones = torch.ones_like(norms)
    if one is other:
        other_norms, other_ones = norms, ones
    else:
        other_norms = other.pow(2).sum(-1, True)
        other_ones = torch.ones_like(other_norms)
    left = torch.cat([one.mul(-2), norms, ones], -1)
    del norms, ones
    right = torch.cat([other, other_ones, other_norms], -1)
    del other_norms, other_ones
    return left.matmul(right.mT).clamp_min_(0).sqrt_()


def _convolution_of_copies(input: Tensor, weight: Tensor, *args: Any) -> Any:
    """`cudnn_convolution_forward`: what is laid out in no order that cuDNN knows is copied, the weight first."""
    if _ordered(input) and _ordered(weight):
        return NotImplemented
    weight, input = (t if _ordered(t) else t.clone(memory_format=torch.contiguous_format) for t in (weight, input))
    return aten.convolution.default(input, weight, *args)


def _ordered(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or suggest_memory_format(tensor) != torch.contiguous_format


_IN_STEPS = {
    "_euclidean_dist": _euclidean_dist,
    "_pack_padded_sequence": recurrent.pack_in_steps,
    "convolution": _convolution_of_copies,
}
_ORDER: dict[str, Any] = {
    "native_dropout": lambda outputs: outputs[::-1],  # Dropout.cu makes the mask first
    # cuDNN's attention makes seed and offset first
    "_scaled_dot_product_cudnn_attention": lambda outputs: sorted(outputs, key=lambda tensor: tensor.numel() > 1),
}

_BY_VALUE = {
    "_pack_padded_sequence": recurrent.pack_padded_sequence,
    "_ctc_loss": _ctc_loss_kernel,
}

_HOLLOW = {
    "_thnn_fused_gru_cell": recurrent.gru_cell_kernel,
    "_thnn_fused_gru_cell_backward": recurrent.gru_cell_kernel_backward,
    "_cudnn_rnn": recurrent.rnn,
    "_fused_rms_norm": rms_norm.shapes,
    "_cudnn_rnn_backward": recurrent.rnn_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn_attention,
    **{
        name: _reduced_in_place(getattr(aten, name).default)
        for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")
    },
}
