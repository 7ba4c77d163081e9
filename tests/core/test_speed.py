"""The speed model: what operators cost, what cards offer, and the step that follows from both."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compare_steps
from whichgpu import catalogue, speed_accuracy
from whichgpu.errors import CatalogueError
from whichgpu.speed import constants as fitted
from whichgpu.speed.asked import Cost, Product, tensor_bytes
from whichgpu.speed.costs import costs
from whichgpu.speed.host import host_seconds, launches
from whichgpu.speed.kernels import all_seconds, columns_of, kernel_seconds, limited_by_compute, sustained_flops
from whichgpu.speed.rates import FP64_SHARE, Rates, rates
from whichgpu.speed.step_time import Demand, demand_of, interval_s, predict
from whichgpu.trace import Op, Tensor

CONSTANTS = fitted.load().constants
sizes = st.integers(1, 4096)


def op(name: str, inputs: list[Tensor], outputs: list[Tensor], flops: int = 0, **attributes: object) -> Op:
    """An operator of a forward pass."""
    return Op(f"aten.{name}", "forward", 0, tuple(inputs), tuple(outputs), attributes, flops)


def product(rows: int, inner: int, columns: int, dtype: str = "float32") -> Op:
    """A matrix product."""
    given = [Tensor((rows, inner), dtype), Tensor((inner, columns), dtype)]
    return op("mm.default", given, [Tensor((rows, columns), dtype)], 2 * rows * inner * columns)


def convolution(batch: int = 8, inner: int = 64, outer: int = 128, side: int = 28, **attributes: object) -> list[Op]:
    """A convolution of 3 x 3, forward and backward."""
    image, weight = Tensor((batch, inner, side, side), "float32"), Tensor((outer, inner, 3, 3), "float32")
    out = Tensor((batch, outer, side, side), "float32")
    settings = {"stride": [1, 1], "padding": [1, 1], "groups": 1, "transposed": False, **attributes}
    backward = [image, weight]
    return [
        op("convolution.default", [image, weight], [out], **settings),
        op("convolution_backward.default", [out, image, weight], backward, **settings, output_mask=[True, True, False]),
    ]


def card(name: str = "H200") -> Rates:
    """A card of the catalogue."""
    return rates(catalogue.load().find(name))


def asked(*ops: Op) -> Demand:
    """What some operators ask for."""
    return demand_of(ops)


def test_a_product_costs_two_flops_a_multiply_add_and_each_operand_once() -> None:
    """FLOPs follow the trace's convention, bytes are those of the operands and the result."""
    (cost,) = costs(product(64, 32, 16))

    assert 2 * 64 * 32 * 16 == cost.flops
    assert 4 * (64 * 32 + 32 * 16 + 64 * 16) == cost.bytes
    assert Product(1, 64, 16, 32) == cost.product


def test_products_use_tf32_only_where_the_step_allows_it() -> None:
    """PyTorch's default is float32 for products, and TF32 for convolutions."""
    forward = convolution(allow_tf32=True)[0]

    assert "fp32" == costs(product(8, 8, 8))[0].pipe
    assert "tf32" == costs(product(8, 8, 8), tf32_matmul=True)[0].pipe
    assert "bf16" == costs(product(8, 8, 8, "bfloat16"), tf32_matmul=True)[0].pipe
    assert "tf32" == costs(forward)[0].pipe
    assert "fp32" == costs(convolution(allow_tf32=False)[0])[0].pipe


def test_a_convolution_s_backward_is_two_of_its_forward() -> None:
    """Gradients of image and weight take as many FLOPs each as the forward pass."""
    forward, backward = convolution()
    (one,) = costs(forward)
    first, second = costs(backward)

    assert 2.0 * 8 * 28 * 28 * 128 * 64 * 9 == one.flops
    assert one.flops == first.flops == second.flops
    assert ["convolution_3x3", "convolution_input_3x3", "convolution_weight_3x3"] == [
        c.kind for c in (one, first, second)
    ]


def test_a_gradient_that_nobody_wants_costs_nothing() -> None:
    """The first layer's image needs no gradient."""
    backward = msgspec.structs.replace(
        convolution()[1], attributes={**convolution()[1].attributes, "output_mask": [False, True, False]}
    )

    assert ["convolution_weight_3x3"] == [cost.kind for cost in costs(backward)]


def test_elements_that_a_tensor_repeats_count_once() -> None:
    """An expanded dimension is read once."""
    assert 4 * 10 == tensor_bytes(Tensor((7, 10), "float32", (0, 1)))
    assert 2 * 70 == tensor_bytes(Tensor((7, 10), "bfloat16"))


@given(rows=st.integers(100, 10**6))
def test_looking_up_rows_does_not_cost_the_table(rows: int) -> None:
    """An embedding costs what it looks up, whatever the size of its table."""
    found = op(
        "embedding.default", [Tensor((rows, 64), "float32"), Tensor((8,), "int64")], [Tensor((8, 64), "float32")]
    )

    assert 2 * 8 * 64 * 4 + 8 * 8 == costs(found)[0].bytes


def test_memory_alone_launches_no_kernel() -> None:
    """Making an uninitialised tensor is the allocator's work."""
    assert () == costs(op("empty.memory_format", [], [Tensor((8,), "float32")]))


def test_an_optimizer_on_lists_launches_as_its_tables_of_tensors_need() -> None:
    """A launch takes up to 110 tensors of one list; few large tensors need launches for their blocks."""
    many = op("_foreach_mul_.Scalar", [Tensor((16,), "float32")] * 250, [])
    large = op("_foreach_mul_.Scalar", [Tensor((2**26,), "float32")], [])

    assert 3 == costs(many)[0].kernels
    assert 4 == costs(large)[0].kernels
    assert 2 * 250 * 16 * 4 == costs(many)[0].bytes


def test_a_fused_optimizer_moves_less_than_the_same_one_in_steps() -> None:
    """Fused AdamW reads weights, gradients and two states once; foreach goes over them again and again."""
    tensors = [Tensor((1000,), "float32")] * 40
    fused = costs(op("_fused_adamw_.default", [*tensors], []))[0]

    assert 40 * 4000 + 30 * 4000 == fused.bytes


def test_attention_that_looks_back_only_takes_half() -> None:
    """A causal mask halves the work of flash attention."""
    qkv = [Tensor((2, 4, 128, 64), "bfloat16")] * 3
    out = [Tensor((2, 4, 128, 64), "bfloat16")]
    whole = costs(op("_scaled_dot_product_flash_attention.default", qkv, out))[0]
    half = costs(op("_scaled_dot_product_flash_attention.default", qkv, out, is_causal=True))[0]

    assert 4.0 * 2 * 4 * 128 * 128 * 64 == whole.flops
    assert whole.flops / 2 == half.flops


@given(rows=sizes, inner=sizes, columns=sizes)
def test_no_product_is_faster_than_the_card(rows: int, inner: int, columns: int) -> None:
    """Neither the peak rate nor the bandwidth is passed."""
    (cost,) = costs(product(rows, inner, columns))
    seconds = kernel_seconds(cost, card(), CONSTANTS)

    assert seconds >= cost.flops / (1.05 * card().flops["fp32"])
    assert seconds >= cost.bytes / card().bandwidth


@given(rows=sizes, inner=sizes, columns=sizes)
def test_half_precision_on_tensor_cores_is_never_slower(rows: int, inner: int, columns: int) -> None:
    """Fewer bytes and a higher rate, where rows are multiples of 16 bytes; launches were measured to differ by parts of 1 us."""
    single, half = (costs(product(8 * rows, 8 * inner, 8 * columns, dtype))[0] for dtype in ("float32", "bfloat16"))

    assert kernel_seconds(half, card(), CONSTANTS) <= kernel_seconds(single, card(), CONSTANTS) + 0.5e-6


@given(count=st.integers(1, 2**28))
def test_twice_the_bytes_never_take_less(count: int) -> None:
    """Time grows with the size, and at most as fast."""
    one, two = (kernel_seconds(Cost("elementwise", "fp32", 0.0, n, 1), card(), CONSTANTS) for n in (count, 2 * count))

    assert one <= two <= 2 * one


def test_a_card_without_tensor_cores_computes_halves_as_floats() -> None:
    """A GTX 1080 Ti stores halves and computes in float32, which is said and not hidden."""
    old = card("GTX 1080 Ti")

    assert {"fp16", "bf16", "tf32"} == old.emulated
    assert sustained_flops(old, "fp16", CONSTANTS) == sustained_flops(old, "fp32", CONSTANTS)


def test_a_missing_peak_rate_is_named() -> None:
    """Without the figure there is no prediction, and the message says which one it is."""
    gpu = msgspec.structs.replace(catalogue.load().find("T4"), fp32_tflops=None)

    with pytest.raises(CatalogueError, match="T4: its fp32_tflops are unknown"):
        rates(gpu)


def test_shares_add_up_and_the_limit_is_named() -> None:
    """Shares by kind of operator are those of the GPU's time, largest first."""
    large, small = product(8192, 4096, 4096), op("relu.default", [Tensor((64,), "float32")], [Tensor((64,), "float32")])
    step = predict(asked(large, *convolution()), card(), CONSTANTS)

    assert pytest.approx(1.0) == sum(step.shares.values())
    assert sorted(step.shares.values(), reverse=True) == list(step.shares.values())
    assert "compute" == step.limit
    assert "host" == predict(asked(*[small] * 50), card(), CONSTANTS).limit


def test_equal_operators_are_counted_and_cost_the_same_each() -> None:
    """Two of the same take twice the GPU's time of one."""
    one, two = (predict(asked(*[product(512, 512, 512)] * n), card(), CONSTANTS) for n in (1, 2))

    assert pytest.approx(2 * one.gpu_s) == two.gpu_s


def test_a_faster_host_shortens_what_the_host_limits() -> None:
    """`host_speed` divides the host's time and leaves the GPU's."""
    small = asked(*[product(8, 8, 8)] * 50)
    slow, fast = (predict(small, card(), CONSTANTS, host_speed=speed) for speed in (1.0, 4.0))

    assert slow.host_s / 4 == fast.host_s
    assert slow.gpu_s == fast.gpu_s
    assert fast.step_s < slow.step_s


def test_a_step_without_gpu_work_takes_none() -> None:
    """No operator, no time of the GPU, and no share."""
    step = predict(asked(), card(), CONSTANTS)

    assert (0.0, {}) == (step.gpu_s, step.shares)


def test_lists_of_tensors_cost_the_host_for_each() -> None:
    """An optimizer's operator on more tensors takes the host longer."""
    few, many = (op("_foreach_mul_.Scalar", [Tensor((8,), "float32")] * n, []) for n in (2, 200))

    assert host_seconds(launches([few]), CONSTANTS) < host_seconds(launches([many]), CONSTANTS)


def test_what_limits_a_kernel_follows_from_its_intensity() -> None:
    """A large product is limited by arithmetic, an addition by memory."""
    add = op("add.Tensor", [Tensor((2**24,), "float32")] * 2, [Tensor((2**24,), "float32")])

    both = columns_of([*costs(product(4096, 4096, 4096)), *costs(add)])
    assert [True, False] == limited_by_compute(both, card(), CONSTANTS).tolist()


def test_the_whole_catalogue_is_predicted_in_two_seconds() -> None:
    """A step of a thousand different operators, on every card with CUDA."""
    step = asked(
        *(product(64 + n, 512, 512) for n in range(300)),
        *(op("add.Tensor", [Tensor((1000 + n,), "float32")] * 2, [Tensor((1000 + n,), "float32")]) for n in range(700)),
    )
    cards = [rates(gpu) for gpu in catalogue.load().gpus if gpu.cuda]
    begun = time.process_time()
    for each in cards:
        predict(step, each, CONSTANTS)

    assert time.process_time() - begun < 2.0


def test_every_constant_says_what_it_was_fitted_to() -> None:
    """The shipped fit names its sources and date, and has a spread for every nearness of a card."""
    fit = fitted.load()

    assert fit.fitted_on
    assert fit.points > 1000
    assert fit.date >= "2026-12"
    assert {"card", "architecture", "none", "host"} == set(fit.spread)
    assert 0 < fit.spread["card"] <= fit.spread["architecture"] <= fit.spread["none"]


def test_an_interval_is_wider_the_further_a_card_is_from_the_data() -> None:
    """A card that was measured, one of its architecture, and one of an architecture that nobody measured."""
    fit = fitted.load()
    widths = [
        fitted.half_width(fit, *card, "compute")
        for card in (("T4", "Turing"), ("another", "Turing"), ("another", "of next year"))
    ]
    low, high = interval_s(1.0, widths[0])

    assert sorted(widths) == widths
    assert low < 1.0 < high
    assert pytest.approx(1.0) == low * high


def test_the_page_of_errors_is_what_the_shipped_constants_give() -> None:
    """docs/speed.md was written by the tool from this version's constants and kept steps."""
    assert compare_steps.PAGE.read_text(encoding="utf-8") == compare_steps.page()


def test_the_record_of_errors_is_what_the_shipped_constants_give() -> None:
    """What `whichgpu accuracy speed` answers was written by the tool too."""
    assert compare_steps.record(compare_steps.Found.read()) == speed_accuracy.report()


def test_the_intervals_are_those_of_the_kept_predictions() -> None:
    """The widths that ship are read off steps that were not fitted, and left out cards."""
    found = compare_steps.Found.read()

    assert compare_steps.widths(found.left) == fitted.load().spread


def test_costs_take_the_same_time_alone_as_among_others() -> None:
    """Columns of costs are worked out one by one: products, convolutions of any arithmetic, what memory limits."""
    asked_for = asked(product(64, 300, 70), product(4096, 512, 512, "float16"), *convolution(), *convolution(groups=2))
    every = all_seconds(columns_of(asked_for.costs), card(), CONSTANTS)

    assert [kernel_seconds(cost, card(), CONSTANTS) for cost in asked_for.costs] == pytest.approx(list(every))


def test_double_precision_is_slow_where_the_card_has_little_of_it() -> None:
    """Half of float32 on servers' cards, a 32nd or 64th on others; every card with CUDA has its share."""
    cards = catalogue.load()
    share = {name: rates(cards.find(name)).flops["fp64"] / rates(cards.find(name)).flops["fp32"] for name in _DOUBLE}
    assert pytest.approx(_DOUBLE) == share
    assert {card.compute_capability for card in cards.gpus if card.cuda} <= set(FP64_SHARE)


_DOUBLE = {"A100 SXM4 80GB": 1 / 2, "H100 SXM5 80GB": 1 / 2, "RTX 3090": 1 / 64, "RTX 2080 Ti": 1 / 32, "B300": 1 / 64}
