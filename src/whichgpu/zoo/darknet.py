"""What darknet, the C program that YOLOv3 comes from, keeps of its layers in GPU memory, for `code=2019`.

Source: https://github.com/pjreddie/darknet, src/convolutional_layer.c (make_convolutional_layer) and src/shortcut_layer.c: a
convolution with batch norm has four arrays as large as its result for the whole training: what the convolution gave (x),
the same normalised (x_norm), the result after the leaky ReLU (output) and the gradient (delta); a shortcut has the last two.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SLOPE = 0.1


class Norm(nn.BatchNorm2d):
    """Batch norm and leaky ReLU with darknet's arrays."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """By the batch's own statistics, which the running ones follow."""
        output, mean, variance = NormAndActivation.apply(hidden, self.weight, self.bias, self.eps)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)
        return output


class NormAndActivation(torch.autograd.Function):
    """Batch norm and leaky ReLU; result, mean and variance."""

    @staticmethod
    def forward(
        context: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keeps x, x_norm, output and room for delta."""
        variance, mean = torch.var_mean(hidden, (0, 2, 3), correction=0)
        scale = torch.rsqrt(variance + eps)
        normed = (hidden - mean[:, None, None]).mul_(scale[:, None, None])
        output = F.leaky_relu_((normed * weight[:, None, None]).add_(bias[:, None, None]), SLOPE)
        context.save_for_backward(hidden, normed, output, torch.empty_like(output), weight * scale)
        context.mark_non_differentiable(mean, variance)
        return output, mean, variance

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the input, the weight and the bias."""
        _, normed, output, _, scale = context.saved_tensors
        delta = torch.ops.aten.leaky_relu_backward(gradient, output, SLOPE, True)
        of_bias, of_weight = delta.sum((0, 2, 3)), (delta * normed).sum((0, 2, 3))
        count = delta.numel() // delta.shape[1]
        delta = delta - (of_bias / count)[:, None, None] - normed * (of_weight / count)[:, None, None]
        return delta * scale[:, None, None], of_weight, of_bias, None


class Shortcut(torch.autograd.Function):
    """A sum with room for its delta."""

    @staticmethod
    def forward(context: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Of the inputs' shape."""
        context.save_for_backward(torch.empty_like(one))
        return one + other

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for both."""
        return gradient, gradient
