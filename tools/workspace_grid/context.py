"""What a process takes outside the allocator, and what libraries' handles keep inside it, from a fresh process.

Each order of stages runs in a process of its own, alone on the card: memory of the card in use, minus what the
allocator has reserved, after each stage. The stages name what was used for the first time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from workspace_grid.recorder import Recorder

F = torch.nn.functional
BF16, F16 = torch.bfloat16, torch.float16


def card_used_bytes() -> int | None:
    """Memory of the first card in use by everybody, by nvidia-smi (MiB steps)."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(text.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def _attention(backend: str, dtype: torch.dtype) -> Callable[[], Any]:
    def run() -> None:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        kind = getattr(SDPBackend, backend)
        q = torch.zeros(2, 4, 128, 64, dtype=dtype, device="cuda", requires_grad=True)
        with sdpa_kernel(kind):
            F.scaled_dot_product_attention(q, q, q).sum().backward()

    return run


def _convolution(dtype: torch.dtype, layout: torch.memory_format) -> Callable[[], Any]:
    def run() -> None:
        x = torch.zeros(8, 64, 56, 56, dtype=dtype, device="cuda").contiguous(memory_format=layout).requires_grad_()
        w = torch.zeros(64, 64, 3, 3, dtype=dtype, device="cuda").contiguous(memory_format=layout).requires_grad_()
        F.conv2d(x, w, padding=1).sum().backward()

    return run


def _product(dtype: torch.dtype) -> Callable[[], Any]:
    return lambda: (
        torch.zeros(1024, 1024, dtype=dtype, device="cuda") @ torch.zeros(1024, 1024, dtype=dtype, device="cuda")
    )


def _linear(dtype: torch.dtype) -> Callable[[], Any]:
    def run() -> None:
        layer = torch.nn.Linear(768, 3072, device="cuda", dtype=dtype)
        layer(torch.zeros(512, 768, device="cuda", dtype=dtype, requires_grad=True)).sum().backward()

    return run


def _optimizer(**options: Any) -> Callable[[], Any]:
    def run() -> None:
        parameters = [torch.zeros(64, 64, device="cuda", requires_grad=True) for _ in range(20)]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(parameters, **options)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return run


def _other_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        _product(BF16)()


def _other_thread() -> None:
    thread = threading.Thread(target=_product(BF16))
    thread.start()
    thread.join()


def _batch_norm() -> None:
    x = torch.zeros(8, 64, 56, 56, device="cuda", requires_grad=True)
    F.batch_norm(x, None, None, torch.ones(64, device="cuda"), torch.zeros(64, device="cuda"), True).sum().backward()


def _lstm() -> None:
    module = torch.nn.LSTM(64, 64).cuda()
    module(torch.zeros(10, 8, 64, device="cuda"))[0].sum().backward()


def _losses() -> None:
    x = torch.zeros(64, 1000, device="cuda", requires_grad=True)
    F.cross_entropy(
        F.dropout(F.gelu(F.layer_norm(x, (1000,)))), torch.zeros(64, dtype=torch.long, device="cuda")
    ).backward()


def _embedding() -> None:
    w = torch.zeros(1000, 64, device="cuda", requires_grad=True)
    F.embedding(torch.zeros(5000, dtype=torch.long, device="cuda"), w).sum().backward()


CHANNELS_LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format
STAGES: dict[str, Callable[[], Any]] = {
    "init": lambda: torch.zeros(1, device="cuda"),
    "elementwise": lambda: (torch.zeros(1000, device="cuda") + 1).sum().item(),
    "mm_fp32": _product(torch.float32), "mm_bf16": _product(BF16), "mm_fp16": _product(F16),
    "linear_fp32": _linear(torch.float32), "linear_bf16": _linear(BF16), "linear_fp16": _linear(F16),
    "conv_tf32": _convolution(torch.float32, CONTIGUOUS), "conv_bf16": _convolution(BF16, CONTIGUOUS),
    "conv_bf16_nhwc": _convolution(BF16, CHANNELS_LAST), "batch_norm": _batch_norm, "losses": _losses, "embedding": _embedding,
    "flash": _attention("FLASH_ATTENTION", BF16), "efficient": _attention("EFFICIENT_ATTENTION", torch.float32),
    "cudnn_attention": _attention("CUDNN_ATTENTION", BF16), "math_attention": _attention("MATH", BF16),
    "adamw": _optimizer(), "adamw_fused": _optimizer(fused=True), "lstm": _lstm,
    "sort": lambda: torch.zeros(100000, device="cuda").sort(), "fft": lambda: torch.fft.rfft(torch.zeros(16, 1000, device="cuda")),
    "inverse": lambda: torch.linalg.inv(torch.eye(64, device="cuda")),
    "cholesky": lambda: torch.linalg.cholesky(torch.eye(64, device="cuda")),
    "mm_other_stream": _other_stream, "mm_other_thread": _other_thread,
}  # fmt: skip
ORDERS: dict[str, list[str]] = {
    "gemm_first": ["init", "elementwise", "linear_fp32", "linear_bf16", "linear_fp16", "mm_fp32", "mm_bf16", "losses", "embedding",
                   "adamw", "adamw_fused", "flash", "efficient", "cudnn_attention", "math_attention", "batch_norm", "conv_tf32",
                   "conv_bf16", "conv_bf16_nhwc", "lstm", "sort", "fft", "inverse", "cholesky", "mm_other_stream", "mm_other_thread"],
    "conv_first": ["init", "conv_tf32", "batch_norm", "conv_bf16", "conv_bf16_nhwc", "linear_fp32", "linear_bf16", "adamw"],
    "attention_first": ["init", "flash", "linear_bf16", "losses", "adamw"],
    "cudnn_attention_first": ["init", "cudnn_attention", "mm_bf16"],
    "cublaslt": ["init", "mm_bf16", "linear_bf16", "linear_fp32"],
}  # fmt: skip


def measure(order: str) -> None:
    """Runs one order of stages in this process and prints one JSON line a stage."""
    before = card_used_bytes()
    if order == "cublaslt":
        torch.backends.cuda.preferred_blas_library("cublaslt")
    for stage in ORDERS[order]:
        row: dict[str, Any] = {"context": order, "stage": stage, "card_before_bytes": before}
        try:
            if stage == "init":
                STAGES[stage]()
            else:
                recorder = Recorder("cuda")
                with recorder:
                    STAGES[stage]()
                torch.cuda.synchronize()
                row["kept_ops"] = [r for r in recorder.rows() if _keeps(r)]
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        row |= {"free_bytes": free, "total_bytes": total, "reserved_bytes": torch.cuda.memory_reserved(),
                "allocated_bytes": torch.cuda.memory_allocated(),
                "outside_bytes": total - free - torch.cuda.memory_reserved(), "smi_bytes": card_used_bytes()}  # fmt: skip
        print(json.dumps(row), flush=True)


def _keeps(row: dict[str, Any]) -> bool:
    """Whether the operator left more allocations alive than its outputs hold."""
    events = row["e"] or []
    alive = sum(size > 0 for size in events) - sum(size < 0 for size in events)
    return alive > len({output[3] for output in row["o"]} - {0})


if __name__ == "__main__":
    measure(sys.argv[1])
