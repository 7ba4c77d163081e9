"""Autocast as on CUDA: dtypes of results, casts of weights kept once a region, regions within regions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import Tracing

HALF = (torch.float16, torch.bfloat16)
DTYPE_OF = {"torch.float32": torch.float32}


def dtype_under(tracing: Tracing, work: Callable[[torch.device], Any], dtype: torch.dtype) -> torch.dtype:
    """dtype of what `work` returns in an autocast region."""
    found = []

    def step_of(device: torch.device) -> Callable[[int], None]:
        def step(batch_size: int) -> None:
            with torch.autocast("cuda", dtype):
                found.append(work(device).dtype)

        return step

    tracing.trace(step_of, steps=1)
    return found[0]


def full(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers on the device."""
    return torch.rand(*shape, device=device, dtype=dtype)


# AT_FORALL_LOWER_PRECISION_FP
LOWER: dict[str, Callable[[torch.device], Any]] = {
    "matmul": lambda d: full(d, 4, 4) @ full(d, 4, 4),
    "mm": lambda d: torch.mm(full(d, 4, 4), full(d, 4, 4)),
    "mv": lambda d: torch.mv(full(d, 4, 4), full(d, 4)),
    "bmm": lambda d: torch.bmm(full(d, 2, 4, 4), full(d, 2, 4, 4)),
    "addmm": lambda d: torch.addmm(full(d, 4), full(d, 4, 4), full(d, 4, 4)),
    "addbmm": lambda d: torch.addbmm(full(d, 4, 4), full(d, 2, 4, 4), full(d, 2, 4, 4)),
    "baddbmm": lambda d: torch.baddbmm(full(d, 2, 4, 4), full(d, 2, 4, 4), full(d, 2, 4, 4)),
    "chain_matmul": lambda d: torch.linalg.multi_dot([full(d, 4, 4)] * 3),
    "einsum": lambda d: torch.einsum("ij,jk->ik", full(d, 4, 4), full(d, 4, 4)),
    "linear": lambda d: F.linear(full(d, 4, 4), full(d, 4, 4), full(d, 4)),
    "conv1d": lambda d: F.conv1d(full(d, 1, 4, 9), full(d, 4, 4, 3)),
    "conv2d": lambda d: F.conv2d(full(d, 1, 4, 9, 9), full(d, 4, 4, 3, 3), full(d, 4)),
    "conv2d same": lambda d: F.conv2d(full(d, 1, 4, 9, 9), full(d, 4, 4, 3, 3), padding="same"),
    "conv3d": lambda d: F.conv3d(full(d, 1, 4, 5, 5, 5), full(d, 4, 4, 3, 3, 3)),
    "conv_transpose2d": lambda d: F.conv_transpose2d(full(d, 1, 4, 9, 9), full(d, 4, 4, 3, 3)),
    "prelu": lambda d: F.prelu(full(d, 4, 4), full(d, 1)),
    "attention": lambda d: F.scaled_dot_product_attention(
        full(d, 1, 2, 8, 16), full(d, 1, 2, 8, 16), full(d, 1, 2, 8, 16)
    ),
    "lstm cell": lambda d: nn.LSTMCell(4, 4).to(d)(full(d, 2, 4))[0],
}
# AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE, with half precision given
HIGHER: dict[str, Callable[[torch.Tensor], Any]] = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: x**2,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "softplus": F.softplus,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "cumsum": lambda x: x.cumsum(0),
    "sum": torch.sum,
    "prod": torch.prod,
    "sum over a dimension": lambda x: x.sum(-1),
    "norm": torch.norm,
    "linalg norm": torch.linalg.vector_norm,
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="sum"),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "with logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(8, dtype=torch.long, device=x.device)),
    "upsample": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2),
}
# in none of CUDA's lists: the type goes through, although the CPU's lists would change some of them
SAME: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "add": lambda x: x + x,
    "mean": torch.mean,
    "dropout": lambda x: F.dropout(x, 0.5),
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None, None], 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None, None, None], (1, 2, 2)),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None, None], 2),
    "pad": lambda x: F.pad(x, (1, 1)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "embedding": lambda x: F.embedding(torch.zeros(2, dtype=torch.long, device=x.device), x),
}


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("dtype", HALF)
def test_products_are_made_in_half_precision(name: str, dtype: torch.dtype, tracing: Tracing) -> None:
    """Operators of CUDA's lower-precision list cast float32 inputs to the region's type."""
    assert dtype == dtype_under(tracing, LOWER[name], dtype)


@pytest.mark.parametrize("name", HIGHER)
def test_sensitive_operators_are_made_in_single_precision(name: str, tracing: Tracing) -> None:
    """Operators of CUDA's float32 lists return float32 for half-precision inputs."""
    for dtype in HALF:
        assert torch.float32 == dtype_under(tracing, lambda d, t=dtype: HIGHER[name](full(d, 8, 8, dtype=t)), dtype)


@pytest.mark.parametrize("name", SAME)
def test_all_other_operators_keep_their_type(name: str, tracing: Tracing) -> None:
    """What CUDA's lists do not name returns the type that it is given."""
    for dtype in (torch.float16, torch.float32):
        assert dtype == dtype_under(tracing, lambda d, t=dtype: SAME[name](full(d, 8, 8, dtype=t)), torch.float16)


def test_rms_norm_is_made_in_single_precision_where_this_pytorch_casts_it_on_cuda(tracing: Tracing) -> None:
    """It joined CUDA's float32 list after torch 2.11; until then its type goes through."""
    casts = "aten::rms_norm" in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    expected = torch.float32 if casts else torch.float16

    found = dtype_under(tracing, lambda d: F.rms_norm(full(d, 8, 8, dtype=torch.float16), (8,)), torch.float16)

    assert expected == found


@pytest.mark.parametrize(
    "work",
    [
        lambda x, y: torch.addcmul(x, x, y),
        lambda x, y: torch.dot(x[0], y[0]),
        torch.atan2,
        lambda x, y: torch.cross(x[:, :3], y[:, :3], dim=1),
        lambda x, y: torch.tensordot(x, y, 1),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.stack([x, y]),
        lambda x, y: F.bilinear(x, y, torch.rand(2, 8, 8, device=x.device, dtype=x.dtype)),
    ],
)
def test_mixed_inputs_go_to_the_widest_type(work: Callable[..., Any], tracing: Tracing) -> None:
    """Operators that need one type take the widest of their inputs."""

    def both(one: torch.dtype, other: torch.dtype) -> torch.dtype:
        return dtype_under(tracing, lambda d: work(full(d, 8, 8, dtype=one), full(d, 8, 8, dtype=other)), torch.float16)

    assert torch.float16 == both(torch.float16, torch.float16)
    assert torch.float32 == both(torch.float16, torch.float32)


def test_doubles_and_integers_are_left_alone(tracing: Tracing) -> None:
    """Autocast touches neither float64 nor integers."""
    assert torch.float64 == dtype_under(
        tracing, lambda d: full(d, 4, 4).double() @ full(d, 4, 4).double(), torch.float16
    )
    assert torch.int64 == dtype_under(tracing, lambda d: torch.ones(4, dtype=torch.long, device=d).sum(), torch.float16)


def test_tensors_of_the_host_are_left_alone(tracing: Tracing) -> None:
    """CUDA's autocast does not reach the CPU, nor the CPU's the GPU."""

    def on_host(device: torch.device) -> torch.Tensor:
        return torch.rand(4, 4) @ torch.rand(4, 4)

    def in_cpu_region(device: torch.device) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", torch.bfloat16):
            return full(device, 4, 4) @ full(device, 4, 4)

    assert torch.float32 == dtype_under(tracing, on_host, torch.float16)
    assert torch.float32 == dtype_under(tracing, in_cpu_region, torch.float16)


# ---- the cache of casts ---------------------------------------------------------------------------------


def casts(tracing: Tracing, step_of: Callable[[nn.Linear, torch.Tensor], None]) -> list[tuple[str, int]]:
    """Births and deaths of half-precision copies of a weight of 4096 elements, in one step."""

    def setup(device: torch.device) -> Callable[[int], None]:
        linear = nn.Linear(64, 64, bias=False).to(device)

        def step(batch_size: int) -> None:
            step_of(linear, torch.rand(3, 64, device=device))

        return step

    events = tracing.memory_events(tracing.trace(setup, steps=1))
    return [event for event in events if event[1] == 64 * 64 * 2]


def test_a_weight_is_cast_once_in_a_region(tracing: Tracing) -> None:
    """Three uses in one region share one cast, which ends with the region."""

    def step(linear: nn.Linear, x: torch.Tensor) -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            for _ in range(3):
                linear(x)

    assert [("+", 8192), ("-", 8192)] == casts(tracing, step)


def test_a_cast_lives_until_the_outermost_region_ends(tracing: Tracing) -> None:
    """Leaving an inner region keeps the cast; it is not made again in the outer one."""

    def step(linear: nn.Linear, x: torch.Tensor) -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            with torch.autocast("cuda", torch.float16):
                linear(x)
            linear(x)
            with torch.autocast("cuda", enabled=False):
                assert linear(x).dtype == torch.float32
            linear(x)

    assert [("+", 8192), ("-", 8192)] == casts(tracing, step)


def test_each_region_casts_anew(tracing: Tracing) -> None:
    """Two regions, two casts, the first gone before the second comes."""

    def step(linear: nn.Linear, x: torch.Tensor) -> None:
        for _ in range(2):
            with torch.no_grad(), torch.autocast("cuda", torch.float16):
                linear(x)

    assert [("+", 8192), ("-", 8192)] * 2 == casts(tracing, step)


def test_without_the_cache_every_use_casts(tracing: Tracing) -> None:
    """`cache_enabled=False` is obeyed."""

    def step(linear: nn.Linear, x: torch.Tensor) -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.float16, cache_enabled=False):
            for _ in range(3):
                linear(x)

    assert [("+", 8192), ("-", 8192)] * 3 == casts(tracing, step)


def test_frozen_weights_and_activations_are_not_kept(tracing: Tracing) -> None:
    """Only leaves that need a gradient are kept in the cache."""

    def step(linear: nn.Linear, x: torch.Tensor) -> None:
        linear.requires_grad_(False)
        with torch.autocast("cuda", torch.float16):
            for _ in range(2):
                linear(x)

    assert [("+", 8192), ("-", 8192)] * 2 == casts(tracing, step)


def test_the_graph_holds_the_cast_until_backward_is_done(tracing: Tracing) -> None:
    """A cast needed for gradients outlives the region, and is freed by the backward pass."""
    places = []

    def step(linear: nn.Linear, x: torch.Tensor) -> None:
        x.requires_grad_()
        with torch.autocast("cuda", torch.float16):
            out = linear(x)
        places.append(out)
        out.float().sum().backward()
        places.clear()

    events = casts(tracing, step)

    assert ("+", 8192) == events[0]
    assert 0 == sum(size if sign == "+" else -size for sign, size in events)


def test_the_weights_gradient_comes_in_single_precision(tracing: Tracing) -> None:
    """The gradient of a float32 weight is float32, after a half-precision one has gone."""

    def setup(device: torch.device) -> Callable[[int], None]:
        linear = nn.Linear(64, 64, bias=False).to(device)

        def step(batch_size: int) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = linear(torch.rand(3, 64, device=device)).float().sum()
            loss.backward()
            assert linear.weight.grad is not None
            assert linear.weight.grad.dtype == torch.float32
            linear.weight.grad = None

        return step

    assert 2 == sum(event == ("+", 16384) for event in tracing.memory_events(tracing.trace(setup, steps=1)))


# ---- own functions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
def test_custom_functions_see_the_types_they_ask_for(old: bool, tracing: Tracing) -> None:
    """`custom_fwd(cast_inputs=...)` casts and switches autocast off; `custom_bwd` runs as the forward did."""
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        forward_of: Any = (
            torch.cuda.amp.custom_fwd if old else lambda **k: torch.amp.custom_fwd(device_type="cuda", **k)
        )
        backward_of: Any = torch.cuda.amp.custom_bwd if old else torch.amp.custom_bwd(device_type="cuda")

        class Product(torch.autograd.Function):
            @staticmethod
            @forward_of(cast_inputs=torch.float32)
            def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x, y)
                seen.append((x.dtype, torch.is_autocast_enabled("cuda")))
                return x @ y

            @staticmethod
            @backward_of
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                x, y = ctx.saved_tensors
                seen.append((grad.dtype, torch.is_autocast_enabled("cuda")))
                return grad @ y.t(), x.t() @ grad

    def setup(device: torch.device) -> Callable[[int], None]:
        def step(batch_size: int) -> None:
            x = torch.rand(4, 4, device=device, requires_grad=True)
            with torch.autocast("cuda", torch.float16), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                out = Product.apply((x @ x), x)
            out.sum().backward()

        return step

    tracing.trace(setup, steps=1)

    assert [(torch.float32, False)] * 2 == seen


def test_questions_about_autocast_are_answered_as_on_cuda(tracing: Tracing) -> None:
    """Whether it is on, and in which type, for "cuda" and for "cpu"."""

    def work(device: torch.device) -> torch.Tensor:
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert torch.amp.is_autocast_available("cuda")
        with torch.autocast("cuda", enabled=False):
            assert not torch.is_autocast_enabled("cuda")
        return full(device, 2, 2) @ full(device, 2, 2)

    assert torch.bfloat16 == dtype_under(tracing, work, torch.bfloat16)
