"""Which kernel `F.scaled_dot_product_attention` takes on a CUDA card, and how it is called.

Follows PyTorch's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (`select_sdp_backend` and its checks) and
attention.cpp (`scaled_dot_product_attention`), read at torch 2.11 to 2.14. The choice depends on the target's compute
capability, dtype, mask, dropout, head size and who needs a gradient.

Not covered: nested tensors, FlashAttention 3, builds without flash attention, deterministic mode with cuDNN.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from whichgpu.capability import parse

aten = torch.ops.aten
Tensor = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)
# grouped queries in efficient attention, single keys for many queries, heads of 256 in cuDNN's backward
_SINCE_2_14 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)


def choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
    capability: tuple[int, int],
) -> str:
    """ "cudnn", "flash", "efficient" or "math"."""
    usable = {
        "cudnn": _cudnn,
        "flash": _flash,
        "efficient": _efficient,
    }
    # cuDNN first on Hopper and datacentre Blackwell, where the wheels carry cuDNN > 9.15 (CUDA 13 wheels do);
    # `check_prefer_cudnn_attention`
    prefers_cudnn = capability[0] in (9, 10) and torch.backends.cuda.cudnn_sdp_enabled()
    order = ["cudnn"] if prefers_cudnn else []
    order += ["flash", "efficient"]
    enabled = {
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
    }
    for name in order:
        if enabled[name] and usable[name](query, key, value, mask, dropout_p, is_causal, enable_gqa, capability):
            return name
    return "math"


def _common(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> bool:
    """`check_tensor_shapes`, `check_batch_size_and_num_heads_dense`, `check_nonzero_sequence_lengths_dense`."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not query.dtype == key.dtype == value.dtype:
        return False
    if not query.size(0) == key.size(0) == value.size(0):
        return False
    if 0 in (query.size(2), key.size(2), query.size(0)):
        return False
    heads = query.size(1), key.size(1), value.size(1)
    if grouped:
        return heads[1] == heads[2] and heads[0] % heads[1] == 0
    return heads[0] == heads[1] == heads[2] or (_SINCE_2_14 and heads[1] == heads[2] == 1)


def _last_stride_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, single: bool) -> bool:
    """`check_last_dim_stride_equals_1_dense`; `single`: a head of size 1 may have any stride."""
    if mask is not None and mask.stride(-1) != 1:
        return False
    return all(t.stride(-1) == 1 for t in (query, key, value)) or (single and query.size(-1) == 1)


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _cudnn(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, gqa: bool, sm: Any) -> bool:
    if sm < (8, 0) or query.dtype not in _HALF or not _common(query, key, value, gqa):
        return False
    if dropout_p * 16 != math.floor(dropout_p * 16):  # `check_cudnn_dropout`
        return False
    sizes = query.size(-1), value.size(-1)
    if any(size % 8 for size in sizes) or not _cudnn_takes_heads(sizes, _needs_grad(query, key, value, mask), sm):
        return False
    if key.size(2) == 1 or (dropout_p and query.size(2) == 1):
        return False
    if mask is not None and mask.dim() not in (2, 4):
        return False
    return _last_stride_one(query, key, value, mask, True) and not (mask is not None and mask.requires_grad)


def _cudnn_takes_heads(sizes: tuple[int, int], needs_grad: bool, sm: tuple[int, int]) -> bool:
    """The head sizes in `check_cudnn_tensor_shapes` and `check_cudnn_d256_bprop_head_dim`, for cuDNN after 9.22."""
    if max(sizes) <= 128:
        return True
    if not _SINCE_2_14:
        return sm == (9, 0) and max(sizes) <= 256
    if sm != (9, 0) and sm[0] != 10:
        return False
    return sizes in ((192, 128), (256, 256)) if needs_grad else max(sizes) <= 256


def _flash(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, gqa: bool, sm: Any) -> bool:
    if sm < (8, 0) or query.dtype not in _HALF or mask is not None or not _common(query, key, value, gqa):
        return False
    size = query.size(-1)
    if not size == key.size(-1) == value.size(-1) or size > 256:
        return False
    if is_causal and query.size(2) != key.size(2):
        return False
    consumer = sm in ((8, 6), (8, 7), (8, 9)) or sm[0] == 12
    if consumer and _needs_grad(query, key, value) and size > 192 and not (not dropout_p and size > 224):
        return False
    return _last_stride_one(query, key, value, None, True)


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, gqa: bool, sm: Any
) -> bool:
    allowed = (torch.float32, *_HALF) if sm >= (8, 0) else (torch.float32, torch.float16)
    if query.dtype not in allowed or not _common(query, key, value, gqa and _SINCE_2_14):
        return False
    alignment = _gemm_alignment(query.dtype, sm)
    if query.size(-1) != key.size(-1) or query.size(-1) % alignment or value.size(-1) % alignment:
        return False
    return _last_stride_one(query, key, value, mask, False)


def _gemm_alignment(dtype: torch.dtype, sm: tuple[int, int]) -> int:
    """`minimum_gemm_alignment`."""
    half = dtype in _HALF
    alignment = 4 if sm >= (8, 0) else 1
    if sm >= (8, 0) or (sm >= (7, 0) and half):
        alignment = max(alignment, 128 // (16 if half else 32))
    return alignment


def make(capability: tuple[int, int], same_for: set[str]) -> Any:
    """The composite kernel of `scaled_dot_product_attention` as CUDA has it.

    Classes of cards on which another kernel would have been taken are removed from `same_for`.
    """

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        backend = "math"
        if query.is_cuda:
            asked = (query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
            backend = choose(*asked, capability)
            same_for.difference_update({name for name in same_for if choose(*asked, parse(name)) != backend})
        mask = _additive(attn_mask, query.dtype) if attn_mask is not None else None
        if backend == "math":
            return _written_out(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
        logsumexp = _needs_grad(query, key, value)
        if backend == "cudnn":
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, logsumexp, dropout_p, is_causal, False, scale=scale
            )[0]
        if backend == "flash":
            size = query.size(-1)
            scale = 1 / math.sqrt(size) if scale is None else scale
            out = aten._scaled_dot_product_flash_attention(
                _pad(query), _pad(key), _pad(value), dropout_p, is_causal, False, scale=scale
            )[0]
            return out if out.size(-1) == size else out[..., :size]
        if mask is not None:
            mask = _prepare_mask(mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, logsumexp, dropout_p, is_causal, scale=scale
        )[0]

    return attention


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """`_scaled_dot_product_attention_math`; PyTorch's own adds the mask out of place while a dispatch mode is on."""
    dtype = query.dtype
    wide = dtype in _HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    given = [t.to(torch.float32) if wide else t for t in (query, key, value)]  # these live to the end
    factor = math.sqrt(abs(scale) if scale is not None else 1 / math.sqrt(query.size(-1)))
    scaled = given[0] * (-factor if scale is not None and scale < 0 else factor)
    if is_causal:
        ones = torch.ones((scaled.size(-2), given[1].size(-2)), dtype=torch.bool, device=scaled.device)
        mask = _additive(ones.tril(), scaled.dtype)
        del ones
    keys, values = given[1:]
    if enable_gqa:
        keys = keys.repeat_interleave(scaled.size(-3) // keys.size(-3), -3)
        values = values.repeat_interleave(scaled.size(-3) // values.size(-3), -3)
    scores = torch.matmul(scaled, keys.transpose(-2, -1) * factor)
    if mask is not None:
        scores.add_(mask)
    scores = torch._safe_softmax(scores, -1)
    if dropout_p > 0:
        scores = torch.nn.functional.dropout(scores, dropout_p)
    weights = scores.to(dtype)  # the second result comes first, though nobody takes it
    result = torch.matmul(scores, values).to(dtype)
    # C++ lets go of the last one first
    del scores, values, keys, scaled, mask
    while given:
        given.pop()
    del weights
    return result


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`convert_boolean_attn_mask`."""
    if mask.dtype != torch.bool:
        return mask
    low = torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=dtype, device="cpu"), low)


def _pad(tensor: Tensor) -> Tensor:
    """`pad_last_dim<8, false>`."""
    rest = tensor.size(-1) % 8
    return torch.nn.functional.pad(tensor, (0, 8 - rest)) if rest else tensor


def _prepare_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """`preprocess_mask`: padded to an alignment of 8 elements where needed, then expanded."""
    aligned = mask.stride(-1) == 1 and all(step % 8 == 0 for step in mask.stride()[:-1])
    if not aligned:
        size = mask.size(-1)
        mask = torch.nn.functional.pad(mask, (0, 8 - size % 8))[..., :size]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
