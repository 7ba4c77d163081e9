"""Operands that CUDA refuses: some on the host, or of two types, where hollow tensors would let them pass.

Only operators that every step is made of are looked at; where CUDA takes numbers of the host (tensors without dimensions),
so does this. The words are PyTorch's own. Sources: `aten/src/ATen/native/cuda/Blas.cpp`, `native/Convolution.cpp`,
`native/TensorIterator.cpp` and the device checks that torchgen writes (torch 2.14).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor

_POINTWISE = ("add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp", "where", "maximum", "minimum")
ON_ONE_DEVICE = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "embedding", "cat", "stack"),
        *("native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm"),
        *("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
        *_POINTWISE,
        *(f"{name}_" for name in _POINTWISE),
    }
)
OF_ONE_TYPE = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "convolution": (0, 1)}


def check_devices(name: str, tensors: Sequence[Tensor], on_gpu: Callable[[Tensor], bool]) -> None:
    """Raise PyTorch's error for an operator on the GPU with an operand on the host."""
    if name in ON_ONE_DEVICE:
        for tensor in tensors:
            if not on_gpu(tensor) and tensor.dim() and tensor.numel():
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                    f"(when checking the arguments of {name})"
                )


def check_types(name: str, args: Sequence[object]) -> None:
    """Raise PyTorch's error for factors of two types."""
    places = OF_ONE_TYPE.get(name)
    if places is not None:
        one, other = args[places[0]], args[places[1]]
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype != other.dtype:
            if name == "convolution":
                told = f"Input type ({one.dtype}) and weight type ({other.dtype}) should be the same"
            else:
                told = f"expected mat1 and mat2 to have the same dtype, but got: {one.dtype} != {other.dtype}"
            raise RuntimeError(told)


def check_ordinal(device: torch.device) -> None:
    """Raise CUDA's error for a second card: the pretence has one."""
    if device.type == "cuda" and device.index:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal ({device}; a step is traced for one card, which is cuda:0)"
        )
