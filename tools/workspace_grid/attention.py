"""Attention: which backend PyTorch picks by itself, and what each backend takes in forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from workspace_grid.points import BF16, F16, F32, Make, Point

F = torch.nn.functional
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip


def mask_of(
    make: Make, kind: str, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype
) -> torch.Tensor | None:
    if kind == "bool":
        return torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=make.device)
    if kind == "bool_keys":
        return torch.ones(batch, 1, 1, keys, dtype=torch.bool, device=make.device)
    if kind == "float":
        return make(batch, 1, queries, keys, dtype=dtype)
    if kind == "float_full":
        return make(batch, heads, queries, keys, dtype=dtype)
    if kind == "float_2d":
        return make(queries, keys, dtype=dtype)
    if kind == "float_grad":
        return make(batch, heads, queries, keys, dtype=dtype).requires_grad_()
    return None


def point(label: str, dtype: torch.dtype, batch: int, heads: int, queries: int, keys: int, width: int, *, kv_heads: int = 0,
          mask: str = "", causal: bool = False, dropout: float = 0.0, grad: bool = True, backend: str = "",
          transposed: bool = True, value_width: int = 0) -> Point:  # fmt: skip
    def build(device: str) -> Callable[[], Any]:
        make = Make(device)

        def tensor(h: int, length: int, w: int) -> torch.Tensor:
            if transposed:  # as a projection leaves it: batch, length, heads, width
                return make(batch, length, h, w, dtype=dtype).transpose(1, 2)
            return make(batch, h, length, w, dtype=dtype)

        q = tensor(heads, queries, width).requires_grad_(grad)
        k = tensor(kv_heads or heads, keys, width).requires_grad_(grad)
        v = tensor(kv_heads or heads, keys, value_width or width).requires_grad_(grad)
        bias = mask_of(make, mask, batch, heads, queries, keys, dtype)

        def run() -> Any:
            def attend() -> torch.Tensor:
                return F.scaled_dot_product_attention(q, k, v, bias, dropout, causal, enable_gqa=bool(kv_heads))

            if backend:
                with sdpa_kernel(BACKENDS[backend]):
                    out = attend()
            else:
                out = attend()
            if grad:
                out.backward(torch.ones_like(out))
                q.grad = k.grad = v.grad = None
            return out

        return run

    settings = {"choice": [str(dtype), batch, heads, queries, keys, width, kv_heads, mask, causal, dropout, grad]}
    return Point(f"attention/{backend or 'default'}/{label}", build, settings)


def choices() -> Iterator[Point]:
    """What PyTorch picks: every combination at one size, then a few other sizes."""
    for dtype in (F32, F16, BF16):
        for width in (8, 16, 24, 32, 40, 64, 72, 80, 96, 100, 112, 128, 160, 192, 256, 320, 512):
            for mask, causal in (("", False), ("", True), ("bool", False), ("float", False)):
                for dropout in (0.0, 0.1):
                    for grad in (True, False):
                        yield point(
                            "choice",
                            dtype,
                            2,
                            4,
                            128,
                            128,
                            width,
                            mask=mask,
                            causal=causal,
                            dropout=dropout,
                            grad=grad,
                        )
        for mask in ("bool_keys", "float_full", "float_2d", "float_grad"):
            yield point("mask", dtype, 2, 4, 128, 128, 64, mask=mask)
            yield point("mask", dtype, 2, 4, 197, 197, 64, mask=mask)
            yield point("mask", dtype, 2, 4, 100, 77, 64, mask=mask)
        for kv_heads in (1, 2):
            for mask in ("", "bool"):
                for causal in (False, True):
                    if not (mask and causal):
                        yield point("grouped", dtype, 2, 8, 256, 256, 64, kv_heads=kv_heads, mask=mask, causal=causal)
        yield point("contiguous", dtype, 2, 4, 128, 128, 64, transposed=False)
        yield point("cross", dtype, 2, 4, 128, 77, 64)
        yield point("cross", dtype, 2, 4, 1, 77, 64)
        yield point("value_width", dtype, 2, 4, 128, 128, 128, value_width=64)
        yield point("one", dtype, 1, 1, 1, 1, 64)


def sizes() -> Iterator[Point]:
    for backend in ("flash", "efficient", "cudnn", "math"):
        for dtype in (BF16, F16, F32):
            if dtype == F32 and backend in ("flash", "cudnn"):
                continue
            for width in (32, 64, 80, 96, 128, 192, 256):
                for batch, heads, queries, keys in ((1, 1, 64, 64), (2, 12, 197, 197), (8, 12, 512, 512), (4, 16, 1024, 1024),
                                                    (1, 8, 4096, 4096), (1, 2, 8192, 8192), (2, 4, 1000, 77), (3, 5, 33, 65),
                                                    (64, 12, 128, 128), (2, 8, 1, 300), (256, 3, 49, 49)):  # fmt: skip
                    if backend == "math" and batch * heads * queries * keys > 6e7:
                        continue
                    for causal in (False, True):
                        if causal and queries != keys:
                            continue
                        yield point("size", dtype, batch, heads, queries, keys, width, causal=causal, backend=backend)
            for mask in ("bool", "float", "float_2d", "float_full", "float_grad"):
                for queries in (128, 197):
                    if backend not in ("flash",):
                        yield point("masked", dtype, 4, 8, queries, queries, 64, mask=mask, backend=backend)
            yield point("dropout", dtype, 4, 8, 256, 256, 64, dropout=0.1, backend=backend)
            yield point("grouped", dtype, 2, 32, 512, 512, 128, kv_heads=8, causal=True, backend=backend)
            yield point("contiguous", dtype, 4, 8, 256, 256, 64, transposed=False, backend=backend)


def points() -> list[Point]:
    return [*choices(), *sizes()]
