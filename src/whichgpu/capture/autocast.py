"""CUDA's autocast rules, applied to CPU tensors.

The operator lists are those of PyTorch's aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32,
AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE, AT_FORALL_PROMOTE), read at torch 2.11. They are
registered over the AutocastCPU kernels, and those that joined the lists later where this PyTorch has them; what the CPU casts
and CUDA does not is passed through unchanged.
Casts of weights are kept until the outermost autocast region ends, as `cached_cast` does.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

LOWER_PRECISION = (
    "_convolution.deprecated _convolution conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding conv_tbc "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum "
    "mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell "
    "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention "
    "scaled_dot_product_attention"
).split()
FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm "
    "nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
    "_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
    "upsample_bicubic2d _upsample_bicubic2d_aa"
).split()
FLOAT32_LATER = ["rms_norm"]  # after torch 2.11
FLOAT32_BY_DTYPE = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
).split()
FLOAT32_APPEND = ("norm.Scalar", "norm.ScalarOpt_dim")
PROMOTE = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()

_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_LOWER = (torch.float16, torch.bfloat16)


class Casts:
    """The cache of weight casts and the registrations; `close` undoes both."""

    def __init__(self) -> None:
        # what the CPU casts and CUDA does not is passed through; asked for before ours are registered
        cast_on_cpu = [
            name.removeprefix("aten::")
            for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
            if name.startswith("aten::")
        ]
        self.library = torch.library.Library("aten", "IMPL")
        self.cache: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}
        float32 = [*FLOAT32, *_later()]
        for names, make in (
            (LOWER_PRECISION, self._lower),
            (float32, self._float32),
            (FLOAT32_BY_DTYPE, self._float32_by_dtype),
            (FLOAT32_APPEND, self._append),
            (PROMOTE, self._promote),
        ):
            for name in names:
                self._register(name, make)
        done = {*LOWER_PRECISION, *float32, *FLOAT32_BY_DTYPE, *FLOAT32_APPEND, *PROMOTE}
        for name in cast_on_cpu:
            if name not in done:
                # not a call: what it consists of must still meet its own rules
                self._register(name, lambda _: torch.library.fallthrough_kernel)

    def close(self) -> None:
        """Remove the registrations."""
        self.library._destroy()
        self.cache.clear()

    def clear(self) -> None:
        """Forget the casts, as at the end of the outermost autocast region."""
        self.cache.clear()

    def _register(self, name: str, make: Any) -> None:
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is None or (overload or "default") not in packet.overloads():
            return  # not in this version of PyTorch
        self.library.impl(name, make(getattr(packet, overload or "default")), "AutocastCPU", allow_override=True)

    # ---- policies -----------------------------------------------------------------------------------

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """`cached_cast` of autocast_mode.cpp: floating-point tensors of the GPU, doubles left alone."""
        if isinstance(value, torch.Tensor):
            if not _eligible(value) or value.dtype == dtype:
                return value
            if not self._may_cache(value, dtype):
                return value.to(dtype)
            found = self.cache.get(id(value))
            if found is not None and found[0]() is value:
                return found[1]
            # inside no_grad the cached copy must still lead back to the weight
            with torch.enable_grad():
                made = value.to(dtype)
            self.cache[id(value)] = (weakref.ref(value), made)
            return made
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(item, dtype) for item in value)
        return value

    def _cast_all(self, args: Any, dtype: torch.dtype) -> list[Any]:
        """Arguments of a call, the last one first: the weight comes before the input on the card (GCC's order)."""
        return [self.cast(value, dtype) for value in reversed(args)][::-1]

    @staticmethod
    def _may_cache(value: torch.Tensor, dtype: torch.dtype) -> bool:
        return (
            dtype in _LOWER
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )

    def _lower(self, func: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            dtype = (
                torch._C.get_autocast_dtype("cpu")
                if hasattr(torch._C, "get_autocast_dtype")
                else torch.get_autocast_dtype("cpu")
            )
            with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
                return func(*self._cast_all(args, dtype), **{k: self.cast(v, dtype) for k, v in kwargs.items()})

        return call

    def _float32(self, func: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
                return func(
                    *self._cast_all(args, torch.float32), **{k: self.cast(v, torch.float32) for k, v in kwargs.items()}
                )

        return call

    def _float32_by_dtype(self, func: Any) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        place = names.index("dtype")

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
                given = kwargs.get("dtype") if len(args) <= place else args[place]
                if given is None and _eligible(args[0]):
                    if len(args) > place:
                        args = (*args[:place], torch.float32, *args[place + 1 :])
                    else:
                        kwargs["dtype"] = torch.float32
                return func(*args, **kwargs)

        return call

    def _append(self, func: Any) -> Any:
        with_dtype = (
            torch.ops.aten.norm.ScalarOpt_dim_dtype
            if "dim" in func._overloadname
            else torch.ops.aten.norm.ScalarOpt_dtype
        )

        def call(value: torch.Tensor, p: Any = 2, *args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
                if _eligible(value):
                    return with_dtype(value, p, *args, **kwargs, dtype=torch.float32)
                return func(value, p, *args, **kwargs)

        return call

    def _promote(self, func: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.float16 if torch.get_autocast_dtype("cpu") == torch.float16 else torch.bfloat16
            for tensor in _tensors((args, tuple(kwargs.values()))):
                if _eligible(tensor) and tensor.dtype == torch.float32:
                    dtype = torch.float32
            with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
                return func(*self._cast_all(args, dtype), **{k: self.cast(v, dtype) for k, v in kwargs.items()})

        return call


def _later() -> list[str]:
    """Those of FLOAT32_LATER that this PyTorch casts on CUDA."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return [name for name in FLOAT32_LATER if has_kernel(f"aten::{name}", torch._C.DispatchKey.AutocastCUDA)]


def _eligible(value: Any) -> bool:
    # `is_eligible`: floating point, not double, on the autocast device
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and value.is_cuda
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
