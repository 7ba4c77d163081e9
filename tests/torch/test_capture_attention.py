"""Which attention kernel a card takes, and that every way to attention goes through the choice.

The expectations are those of PyTorch's sdp_utils.cpp (CUDA) and sdp_utils_cpp.h at 2.14, case by case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import Tracing
from whichgpu.capture.attention import choose
from whichgpu.trace import Trace

KERNELS = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
}
HALF, BF16, FULL = torch.float16, torch.bfloat16, torch.float32
newer = pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="as of PyTorch 2.14")


def kernels(trace: Trace, step: int = 0) -> list[str]:
    """The attention kernels of one step, in order."""
    names = [op.name.split(".")[1] for op in trace.ops if op.step == step]
    return [KERNELS[name] for name in names if name in KERNELS]


def chosen(
    sm: tuple[int, int],
    dtype: torch.dtype,
    *,
    heads: tuple[int, int] = (4, 4),
    lengths: tuple[int, int] = (16, 16),
    sizes: tuple[int, int] = (64, 64),
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    gqa: bool = False,
    grad: bool = True,
) -> str:
    """The choice for a made-up call; the default one suits every kernel."""
    query = torch.empty(2, heads[0], lengths[0], sizes[0], dtype=dtype, device="meta", requires_grad=grad)
    key = torch.empty(2, heads[1], lengths[1], sizes[0], dtype=dtype, device="meta", requires_grad=grad)
    value = torch.empty(2, heads[1], lengths[1], sizes[1], dtype=dtype, device="meta", requires_grad=grad)
    return choose(query, key, value, mask, dropout, causal, gqa, sm)


@pytest.mark.parametrize(
    ("sm", "by_dtype"),
    [
        ((6, 1), {HALF: "efficient", BF16: "math", FULL: "efficient"}),
        ((7, 0), {HALF: "efficient", BF16: "math", FULL: "efficient"}),
        ((7, 5), {HALF: "efficient", BF16: "math", FULL: "efficient"}),
        ((8, 0), {HALF: "flash", BF16: "flash", FULL: "efficient"}),
        ((8, 6), {HALF: "flash", BF16: "flash", FULL: "efficient"}),
        ((8, 9), {HALF: "flash", BF16: "flash", FULL: "efficient"}),
        ((9, 0), {HALF: "cudnn", BF16: "cudnn", FULL: "efficient"}),
        ((10, 0), {HALF: "cudnn", BF16: "cudnn", FULL: "efficient"}),
        ((12, 0), {HALF: "flash", BF16: "flash", FULL: "efficient"}),
    ],
)
def test_the_plain_call_goes_by_card_and_type(sm: tuple[int, int], by_dtype: dict[torch.dtype, str]) -> None:
    """Turing takes efficient attention and has none for bfloat16; doubles take the math path everywhere."""
    assert by_dtype == {dtype: chosen(sm, dtype) for dtype in by_dtype}
    assert "math" == chosen(sm, torch.float64)


def mask_of(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> torch.Tensor:
    """A mask of the given shape."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


@pytest.mark.parametrize(
    ("call", "ampere", "hopper"),
    [
        ({"mask": mask_of(16, 16)}, "efficient", "cudnn"),
        ({"mask": mask_of(16, 16, dtype=torch.bool)}, "efficient", "cudnn"),
        ({"mask": mask_of(2, 1, 16, 16)}, "efficient", "cudnn"),
        ({"mask": mask_of(1, 1, 1, 16)}, "efficient", "cudnn"),
        ({"mask": mask_of(16, 16, grad=True)}, "efficient", "efficient"),
        ({"mask": mask_of(4, 16, 16)}, "efficient", "efficient"),
        ({"mask": mask_of(16, 1).expand(16, 16)}, "math", "math"),
        ({"causal": True}, "flash", "cudnn"),
        ({"causal": True, "lengths": (8, 16)}, "efficient", "cudnn"),
        ({"dropout": 0.1}, "flash", "flash"),
        ({"dropout": 0.125}, "flash", "cudnn"),
        ({"dropout": 0.125, "lengths": (1, 16)}, "flash", "flash"),
        ({"lengths": (16, 1)}, "flash", "flash"),
        ({"lengths": (0, 16)}, "math", "math"),
        ({"sizes": (60, 60)}, "flash", "flash"),
        ({"sizes": (64, 32)}, "efficient", "cudnn"),
        ({"sizes": (60, 64)}, "math", "math"),
        ({"sizes": (128, 128)}, "flash", "cudnn"),
        ({"sizes": (136, 136)}, "flash", "flash"),
        ({"sizes": (264, 264)}, "efficient", "efficient"),
        ({"sizes": (260, 260)}, "math", "math"),
        ({"heads": (8, 2), "gqa": True}, "flash", "cudnn"),
        ({"heads": (8, 3), "gqa": True}, "math", "math"),
        ({"heads": (8, 2)}, "math", "math"),
    ],
)
def test_the_call_decides_within_a_card(call: dict[str, Any], ampere: str, hopper: str) -> None:
    """Masks, causality, dropout, lengths, head sizes and groups each lead to the kernel that takes them."""
    assert (ampere, hopper) == (chosen((8, 0), BF16, **call), chosen((9, 0), BF16, **call))


@newer
@pytest.mark.parametrize(
    ("sizes", "grad", "hopper"),
    [
        ((256, 256), True, "cudnn"),
        ((192, 128), True, "cudnn"),
        ((192, 192), True, "flash"),
        ((192, 192), False, "cudnn"),
        ((256, 256), False, "cudnn"),
    ],
)
def test_large_heads_go_to_cudnn_where_it_has_a_backward(sizes: tuple[int, int], grad: bool, hopper: str) -> None:
    """On Hopper and datacentre Blackwell only; with gradients for 256, and 192 by 128, alone."""
    assert hopper == chosen((9, 0), BF16, sizes=sizes, grad=grad) == chosen((10, 0), BF16, sizes=sizes, grad=grad)
    assert "cudnn" != chosen((8, 0), BF16, sizes=sizes, grad=grad)


@newer
def test_grouped_queries_and_single_keys_are_taken_by_efficient_attention() -> None:
    """Keys need not be repeated where flash attention cannot be used."""
    assert "efficient" == chosen((8, 0), FULL, heads=(8, 2), gqa=True)
    assert "efficient" == chosen((7, 5), HALF, heads=(8, 2), gqa=True)
    assert "efficient" == chosen((8, 0), BF16, heads=(8, 2), gqa=True, mask=mask_of(16, 16))
    assert "flash" == chosen((8, 0), BF16, heads=(8, 1))
    assert "efficient" == chosen((8, 0), FULL, heads=(8, 1))


@pytest.mark.parametrize(
    ("size", "dropout", "expected"),
    [
        (192, 0.1, "flash"),
        (200, 0.0, "efficient"),
        (224, 0.0, "efficient"),
        (232, 0.0, "flash"),
        (232, 0.1, "efficient"),
    ],
)
@pytest.mark.parametrize("sm", [(8, 6), (8, 9), (12, 0)])
def test_consumer_cards_cannot_train_every_head_size_with_flash(
    sm: tuple[int, int], size: int, dropout: float, expected: str
) -> None:
    """Heads of 193 to 224, and larger ones with dropout, have no backward there; without gradients all go."""
    assert expected == chosen(sm, BF16, sizes=(size, size), dropout=dropout)
    assert "flash" == chosen(sm, BF16, sizes=(size, size), dropout=dropout, grad=False)
    assert "flash" == chosen((8, 0), BF16, sizes=(size, size), dropout=dropout)


@pytest.mark.parametrize(
    ("sm", "dtype", "multiple"),
    [
        ((8, 0), FULL, 4),
        ((8, 0), BF16, 8),
        ((7, 5), HALF, 8),
        ((7, 5), FULL, 1),
        ((6, 1), FULL, 1),
        ((6, 1), HALF, 1),
    ],
)
def test_efficient_attention_needs_aligned_heads(sm: tuple[int, int], dtype: torch.dtype, multiple: int) -> None:
    """A head size that is no multiple goes to the math path; `minimum_gemm_alignment`."""
    mask = mask_of(16, 16, dtype=dtype, grad=True)  # keeps flash and cuDNN out

    assert "efficient" == chosen(sm, dtype, sizes=(16 + multiple, 16 + multiple), mask=mask)
    if multiple > 1:
        odd = 16 + multiple // 2
        assert "math" == chosen(sm, dtype, sizes=(odd, odd), mask=mask)


def test_users_may_forbid_kernels(restore_kernels: None) -> None:
    """`sdpa_kernel` and the older switches are obeyed."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        assert "math" == chosen((9, 0), BF16)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert "efficient" == chosen((9, 0), BF16)
    torch.backends.cuda.enable_cudnn_sdp(False)
    assert "flash" == chosen((9, 0), BF16)


@pytest.fixture
def restore_kernels() -> Iterator[None]:
    """cuDNN's attention is allowed again afterwards."""
    yield
    torch.backends.cuda.enable_cudnn_sdp(True)


# ---- from the user's code -------------------------------------------------------------------------------


def attention_step(work: Callable[[torch.device], Callable[[int], torch.Tensor]]) -> Any:
    """A step that runs `work` and goes backward."""

    def setup(device: torch.device) -> Callable[[int], None]:
        run = work(device)

        def step(batch_size: int) -> None:
            with torch.autocast("cuda", BF16):
                out = run(batch_size)
            out.float().sum().backward()

        return step

    return setup


def functional(device: torch.device) -> Callable[[int], torch.Tensor]:
    """The function itself."""

    def run(batch_size: int) -> torch.Tensor:
        x = torch.rand(batch_size, 2, 16, 32, device=device, requires_grad=True)
        return F.scaled_dot_product_attention(x, x, x)

    return run


def multihead(device: torch.device) -> Callable[[int], torch.Tensor]:
    """torch.nn's attention layer."""
    layer = nn.MultiheadAttention(64, 2, batch_first=True).to(device)

    def run(batch_size: int) -> torch.Tensor:
        x = torch.rand(batch_size, 16, 64, device=device)
        return layer(x, x, x, need_weights=False)[0]

    return run


def encoder(device: torch.device) -> Callable[[int], torch.Tensor]:
    """An encoder layer, with dropout."""
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True).to(device)
    return lambda batch_size: layer(torch.rand(batch_size, 16, 64, device=device))


def decoder(device: torch.device) -> Callable[[int], torch.Tensor]:
    """A decoder layer: attention to itself, causal, and to another sequence."""
    layer = nn.TransformerDecoderLayer(64, 2, 64, batch_first=True, dropout=0.0).to(device)

    def run(batch_size: int) -> torch.Tensor:
        x = torch.rand(batch_size, 16, 64, device=device)
        return layer(
            x,
            x,
            tgt_is_causal=True,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(16, device=device),
        )

    return run


@pytest.mark.parametrize(
    ("work", "ampere", "hopper"),
    [
        (functional, ["flash"], ["cudnn"]),
        (multihead, ["flash"], ["cudnn"]),
        (encoder, ["flash"], ["flash"]),
        (decoder, ["flash", "flash"], ["cudnn", "cudnn"]),
    ],
)
def test_every_way_to_attention_takes_the_cards_kernel(
    work: Any, ampere: list[str], hopper: list[str], tracing: Tracing
) -> None:
    """The function itself, and torch.nn's layers above it, with their backward kernels."""
    for capability, expected in (("8.0", ampere), ("9.0", hopper)):
        trace = tracing.trace(attention_step(work), capability=capability, steps=1)
        names = [op.name.split(".")[1] for op in trace.ops]
        backward = [name for name in names if name.endswith("attention_backward")]

        assert expected == kernels(trace)
        assert len(expected) == len(backward)
        assert "_softmax" not in names


def test_the_math_path_keeps_its_weights(tracing: Tracing) -> None:
    """On Turing bfloat16 attention is made of products and a softmax, with results as large as the scores."""
    trace = tracing.trace(attention_step(functional), 4, capability="7.0", steps=1)
    scores = 4 * 2 * 16 * 16

    assert [] == kernels(trace)
    assert {"bmm", "_softmax"} <= {op.name.split(".")[1].replace("_safe_softmax", "_softmax") for op in trace.ops}
    assert any(storage.bytes in (2 * scores, 4 * scores) for storage in trace.storages)


def test_boolean_masks_become_additive_ones(tracing: Tracing) -> None:
    """`convert_boolean_attn_mask`: a mask of the query's type is made, which the mask itself never has."""

    def work(device: torch.device) -> Callable[[int], torch.Tensor]:
        def run(batch_size: int) -> torch.Tensor:
            x = torch.rand(batch_size, 2, 16, 32, device=device, requires_grad=True)
            mask = torch.ones(batch_size, 1, 16, 16, device=device, dtype=torch.bool)
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

        return run

    trace = tracing.trace(attention_step(work), 4, capability="8.0", steps=1)

    assert ["efficient"] == kernels(trace)
    assert 1 == sum(storage.bytes == 4 * 16 * 16 * 2 for storage in trace.storages)


def test_a_trace_is_shared_by_the_classes_that_choose_alike(tracing: Tracing) -> None:
    """Attention in half precision binds a trace to its classes; Hopper's choice is its own."""
    assert ["9.0"] == tracing.trace(attention_step(functional), capability="9.0", steps=1).facts["same_for"]
    assert ["8.0", "8.6"] == tracing.trace(attention_step(functional), capability="8.0", steps=1).facts["same_for"]


def test_attention_on_the_host_is_left_alone(tracing: Tracing) -> None:
    """Attention of CPU tensors inside a step makes no GPU kernel."""

    def setup(device: torch.device) -> Callable[[int], None]:
        def step(batch_size: int) -> None:
            x = torch.rand(batch_size, 2, 16, 32)
            F.scaled_dot_product_attention(x, x, x)

        return step

    assert () == tracing.trace(setup, steps=1).ops
