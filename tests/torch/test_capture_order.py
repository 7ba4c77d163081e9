"""What the card writes in place, copies, and in which order it allocates: as recorded on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import Tracing
from whichgpu.capture import rms_norm
from whichgpu.trace import EventKind, Trace

Step = Callable[[int], Any]
KIB = 1 << 10


def born(trace: Trace, phase: str) -> list[tuple[str, int]]:
    """Operator and bytes of each storage made in a phase of the last step, in order."""
    found = []
    last = max(op.step for op in trace.ops)
    for kind, argument in trace.events:
        if kind == EventKind.ALLOC:
            op = trace.ops[trace.storages[argument].op]
            if op.step == last and op.phase == phase:
                found.append((op.name.split(".")[1], trace.storages[argument].bytes))
    return found


def backward_of(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A step that goes back through a function of one activation of 256 KiB."""

    def setup(device: torch.device) -> Step:
        weight = torch.ones(256, 256, device=device, requires_grad=True)

        def step(batch_size: int) -> None:
            loss = function(weight * 2).sum()
            loss.backward()
            weight.grad = None

        return step

    return setup


@pytest.mark.parametrize("kind", ["fake", "real-cpu"])
def test_gradients_that_meet_are_added_in_place(kind: str, tracing: Tracing) -> None:
    """Two paths from one activation: the engine adds into the gradient that came first, since nobody else holds it."""
    names = tracing.op_names(tracing.trace(backward_of(lambda x: x.sin() * x.cos()), steps=1, kind=kind))

    assert "add_" in names
    assert "add" not in names


def test_a_gradient_that_others_hold_is_not_written_to(tracing: Tracing) -> None:
    """One gradient that goes to both operands of a sum is shared: then the sum of gradients is a new tensor."""
    kept = []

    def keep(gradient: torch.Tensor) -> None:
        kept.append(gradient)

    def function(x: torch.Tensor) -> torch.Tensor:
        one = x.sin()
        one.register_hook(keep)
        return (one + x) * x.detach()

    trace = tracing.trace(backward_of(function), steps=1)

    assert ("add", 256 * KIB) in born(trace, "backward")


def test_a_users_own_sum_is_left_alone(tracing: Tracing) -> None:
    """`gradient + gradient` in Python code of a function's backward makes a tensor."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            made = gradient * 2
            return made + made

    trace = tracing.trace(backward_of(lambda x: Twice.apply(x) * x.detach()), steps=1)

    assert ("add", 256 * KIB) in born(trace, "backward")


INTO_ZEROS = {
    "gather": (lambda x: x.gather(0, torch.zeros(1, 256, dtype=torch.long, device=x.device)), "scatter_add_"),
    "max": (lambda x: x.max(0).values, "scatter_"),
    "index_select": (lambda x: x.index_select(0, torch.zeros(1, dtype=torch.long, device=x.device)), "index_add_"),
    "index": (lambda x: x[torch.zeros(1, dtype=torch.long, device=x.device)], "index_put_"),
}


@pytest.mark.parametrize("name", INTO_ZEROS)
def test_scattered_gradients_go_into_the_zeros(name: str, tracing: Tracing) -> None:
    """Backward of gather, max and indexing takes one tensor of the input's size, not two."""
    function, operator = INTO_ZEROS[name]
    trace = tracing.trace(backward_of(function), steps=1)

    assert operator in tracing.op_names(trace)
    assert 2 == [size for _, size in born(trace, "backward")].count(256 * KIB)  # the zeros, and the product's gradient


def test_autocast_casts_the_weight_before_the_input(tracing: Tracing) -> None:
    """GCC evaluates arguments from the last one: the bias is cast first, then the weight, then the input."""

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(256, 512).to(device)

        def step(batch_size: int) -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                layer(torch.rand(batch_size, 256, device=device)).sum().backward()

        return step

    casts = [size for name, size in born(tracing.trace(setup, 64, steps=1), "forward") if name == "_to_copy"]

    assert [512 * 2, 256 * 512 * 2, 64 * 256 * 2] == casts[:3]


def test_dropout_makes_its_mask_first(tracing: Tracing) -> None:
    """`native_dropout` on CUDA: a byte for each element, then the result."""
    trace = tracing.trace(backward_of(lambda x: F.dropout(x, 0.5)), steps=1)

    assert [64 * KIB, 256 * KIB] == [size for name, size in born(trace, "forward") if name == "native_dropout"]


def test_a_mask_is_added_to_scores_in_place(tracing: Tracing) -> None:
    """Attention written out in PyTorch's own C++ adds its mask to the scores without a copy."""

    def function(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(1, 1, 1024, 64)
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    made = [name for name, size in born(tracing.trace(backward_of(function), steps=1), "forward") if size == 4 << 20]

    assert ["where", "bmm", "_safe_softmax"] == made


def test_attention_without_gradient_keeps_no_sums(tracing: Tracing) -> None:
    """Under no_grad cuDNN's attention has no log-sum-exp, as in the first pass of a checkpoint."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            heads = torch.rand(batch_size, 4, 512, 64, device=device, dtype=torch.bfloat16)
            with torch.no_grad():
                F.scaled_dot_product_attention(heads, heads, heads)

        return step

    (op,) = (op for op in tracing.trace(setup, 2, steps=1).ops if "cudnn_attention" in op.name)

    assert (0,) == op.outputs[1].shape


def test_cudnn_attention_makes_seed_and_offset_first(tracing: Tracing) -> None:
    """Two numbers of the random generator, then the result and the sums that are kept for the backward pass."""

    def setup(device: torch.device) -> Step:
        heads = torch.rand(2, 4, 512, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        return lambda batch_size: F.scaled_dot_product_attention(heads, heads, heads)

    made = born(tracing.trace(setup, 2, steps=1), "forward")

    assert [8, 8, 2 * 4 * 512 * 64 * 2, 2 * 4 * 512 * 4] == [size for name, size in made if "cudnn_attention" in name]


def test_linear_adds_its_bias_in_place_to_the_product_of_a_transposed_input(tracing: Tracing) -> None:
    """What a recurrent layer with batch_first puts out is not contiguous: a product, and no second result for its bias."""

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(64, 32).to(device)
        return lambda batch_size: layer(torch.rand(7, batch_size, 64, device=device).transpose(0, 1))

    made = [name for name, _ in born(tracing.trace(setup, 4, steps=1), "forward")]

    assert ["rand", "clone", "mm"] == made


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss_takes_lengths_of_the_host(reduction: str, lists: bool, tracing: Tracing) -> None:
    """Its lengths lie on the host, as lists or tensors; what it divides by is brought to the GPU."""

    def setup(device: torch.device) -> Step:
        scores = torch.rand(50, 4, 20, device=device, requires_grad=True)
        labels = torch.randint(1, 20, (4, 10), device=device)

        def step(batch_size: int) -> None:
            lengths: Any = ([50] * 4, [10] * 4) if lists else (torch.full((4,), 50), torch.full((4,), 10))
            loss = F.ctc_loss(scores.log_softmax(-1), labels, *lengths, reduction=reduction, zero_infinity=True)
            loss.sum().backward()

        return step

    made = [name for name, _ in born(tracing.trace(setup, 4, steps=1), "forward")]

    assert "_ctc_loss" in made
    assert (reduction == "mean") == ("div" in made)


def test_weights_of_a_recurrent_layer_stay_in_one_buffer(tracing: Tracing) -> None:
    """Moved to the card inside another module, an LSTM is flattened, and its passes copy no weights."""

    def setup(device: torch.device) -> Step:
        model = nn.ModuleDict({"rnn": nn.LSTM(64, 128, 2)}).to(device)

        def step(batch_size: int) -> None:
            model["rnn"](torch.rand(5, batch_size, 64, device=device))[0].sum().backward()

        return step

    trace = tracing.trace(setup, 2, steps=1)
    weights = 4 * sum(parameter.numel() for parameter in nn.LSTM(64, 128, 2).parameters())
    forward = [size for name, size in born(trace, "forward") if name == "_cudnn_rnn"]

    assert "_cudnn_rnn_flatten_weight" in tracing.op_names(trace)
    assert weights not in forward


def test_sequences_are_packed_run_by_run(tracing: Tracing) -> None:
    """Each run of steps with as many rows is copied by itself, and all copies are joined."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            padded = torch.rand(batch_size, 6, 100, device=device).transpose(0, 1)
            packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([6, 4, 4, 1]))
            assert [4, 3, 3, 3, 1, 1] == packed.batch_sizes.tolist()

        return step

    made = [size for name, size in born(tracing.trace(setup, 4, steps=1), "forward") if name != "rand"]

    assert [4 * 100 * 4, 9 * 100 * 4, 15 * 100 * 4] == made  # the last run, of one row, lies in order already


def test_distances_take_the_steps_that_they_take_on_the_card(tracing: Tracing) -> None:
    """Euclidean distances: squares, sums and ones of both sets, both sets beside them, one product."""

    def setup(device: torch.device) -> Step:
        one, other = torch.rand(512, 64, device=device), torch.rand(128, 64, device=device)
        return lambda batch_size: torch.cdist(one, other)

    expected = ["pow", "sum", "ones_like", "pow", "sum", "ones_like", "mul", "cat", "cat", "mm"]

    assert expected == [name for name, _ in born(tracing.trace(setup, steps=1), "forward")]


def test_second_derivatives_of_a_convolution_copy_what_is_transposed(tracing: Tracing) -> None:
    """A gradient penalty: the weight's part is a convolution of transposed tensors, which cuDNN gets as copies."""

    def setup(device: torch.device) -> Step:
        layer = nn.Conv2d(3, 8, 4, 2, 1, bias=False).to(device)

        def step(batch_size: int) -> None:
            images = torch.rand(batch_size, 3, 32, 32, device=device, requires_grad=True)
            (gradient,) = torch.autograd.grad(F.leaky_relu(layer(images)).sum(), images, create_graph=True)
            gradient.square().sum().backward()

        return step

    trace = tracing.trace(setup, 4, steps=1)
    copies = [size for name, size in born(trace, "backward") if name == "clone"]

    assert [4 * 8 * 16 * 16 * 4, 4 * 3 * 32 * 32 * 4] == copies[:2]
    assert all(
        not tensor.stride for op in trace.ops if op.name == "aten.convolution.default" for tensor in op.inputs[:2]
    )


def test_a_convolutions_gradients_lie_as_it_runs(tracing: Tracing) -> None:
    """Channels last in the output's gradient, as detection heads have it, does not get into the gradients of its inputs."""

    def setup(device: torch.device) -> Step:
        layer = nn.Conv2d(8, 6, 3, padding=1).to(device)

        def step(batch_size: int) -> None:
            images = torch.randn(batch_size, 8, 10, 10, device=device, requires_grad=True)
            scores = layer(images).permute(0, 2, 3, 1).reshape(batch_size, -1, 3)
            (scores * scores.detach().clone()).sum().backward()

        return step

    trace = tracing.trace(setup, 4)
    (backward,) = (op for op in trace.ops if op.name == "aten.convolution_backward.default" and op.step == 0)

    assert backward.inputs[0].stride != ()
    assert [(), ()] == [gradient.stride for gradient in backward.outputs[:2]]


@pytest.mark.parametrize("kind", ["fake", "real-cpu"])
def test_rms_norm_keeps_its_input_and_a_number_for_each_row(kind: str, tracing: Tracing) -> None:
    """One kernel forward and one backward, not the powers, means and products that the CPU takes it apart into."""

    def setup(device: torch.device) -> Step:
        norm = nn.RMSNorm(64).to(device)

        def step(batch_size: int) -> None:
            norm(torch.ones(batch_size, 16, 64, device=device, requires_grad=True) * 2).sum().backward()
            norm.zero_grad()

        return step

    trace = tracing.trace(setup, 4, kind=kind)
    forward, backward = born(trace, "forward"), born(trace, "backward")

    rows = 4 * 16
    assert [("_fused_rms_norm", rows * 64 * 4), ("_fused_rms_norm", rows * 4)] == [
        one for one in forward if "rms" in one[0]
    ]
    assert [("_fused_rms_norm_backward", rows * 64 * 4), ("_fused_rms_norm_backward", 64 * 4)] == [
        one for one in backward if "rms" in one[0]
    ]
    assert not {"pow", "mean", "rsqrt"} & {name for name, _ in forward}


def test_rms_norm_of_two_types_is_taken_apart(tracing: Tracing) -> None:
    """Half-precision input with a float32 weight: CUDA has no kernel for that, and warns that it has not."""

    def setup(device: torch.device) -> Step:
        norm = nn.RMSNorm(64).to(device)

        def step(batch_size: int) -> None:
            norm(torch.ones(batch_size, 64, device=device, dtype=torch.bfloat16)).sum().backward()
            norm.zero_grad()

        return step

    names = {name for name, _ in born(tracing.trace(setup, 4), "forward")}

    assert "rsqrt" in names
    assert "_fused_rms_norm" not in names


@pytest.mark.parametrize("weighted", [True, False])
def test_the_kernels_of_rms_norm_agree_with_autograd(weighted: bool) -> None:
    """Where a step runs with real numbers, its gradients are those of the parts that PyTorch has for the CPU."""
    torch.manual_seed(0)
    rows = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(8, dtype=torch.float64, requires_grad=True) if weighted else None
    gradient = torch.randn(3, 5, 8, dtype=torch.float64)
    expected = F.rms_norm(rows, (8,), weight, 1e-6)
    expected.backward(gradient)

    with torch.no_grad():
        found, inverse = rms_norm.in_parts(rows, (8,), weight, 1e-6)
        to_rows, to_weight = rms_norm.kernel_backward(gradient, rows, (8,), inverse, weight, (True, weighted))

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(to_rows, rows.grad)
    assert (to_weight is None) == (weight is None)
    if weight is not None:
        torch.testing.assert_close(to_weight, weight.grad)
