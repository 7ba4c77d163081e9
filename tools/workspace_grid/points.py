"""What a grid point is, and short ways to make tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

ATEN = torch.ops.aten
F32, F16, BF16, I64, I32, U8, BOOL = (
    torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
DTYPES = {"fp32": F32, "tf32": F32, "fp16": F16, "bf16": BF16}


@dataclass(frozen=True)
class Point:
    """`build(device)` makes the inputs and returns the function to record."""

    label: str
    build: Callable[[str], Callable[[], Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    lane: str = "ops"


def apply_settings(settings: dict[str, Any]) -> None:
    """PyTorch's numeric switches, with PyTorch's defaults where a point says nothing."""
    torch.backends.cudnn.allow_tf32 = settings.get("conv_tf32", True)
    torch.backends.cuda.matmul.allow_tf32 = settings.get("matmul_tf32", False)
    torch.backends.cudnn.benchmark = settings.get("benchmark", False)
    torch.backends.cudnn.deterministic = settings.get("deterministic", False)
    torch.use_deterministic_algorithms(settings.get("deterministic_algorithms", False), warn_only=True)


class Make:
    """Makes input tensors on one device; zeros, so that no value can be out of a kernel's domain."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, *shape: int, dtype: torch.dtype = F32, layout: str = "contiguous") -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=dtype, device=self.device)
        return to_layout(tensor, layout)

    def ones(self, *shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=self.device)

    def random(self, *shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
        return torch.rand(shape, device=self.device).to(dtype)

    def index(self, high: int, *shape: int, dtype: torch.dtype = I64) -> torch.Tensor:
        return torch.randint(0, high, shape, dtype=dtype, device=self.device)


def to_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "channels_last" and tensor.dim() == 5:
        return tensor.contiguous(memory_format=torch.channels_last_3d)
    return tensor
