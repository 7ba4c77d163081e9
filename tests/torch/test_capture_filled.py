"""New tensors that PyTorch's C++ makes where its input lies are on the card, and the numbers are PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from conftest import Tracing
from whichgpu.capture import filled

Step = Callable[[int], Any]
LENGTHS = ([3], [1, 4, 2], [5, 5, 2, 1], [2, 2])


def test_one_hot_is_pytorchs() -> None:
    """With the classes given or counted, of any shape and of no elements at all."""
    labels = torch.tensor([[2, 0, 1], [0, 0, 3]])

    for count in (-1, 4, 7):
        assert torch.equal(F.one_hot(labels, count), filled.one_hot(labels, count))
    assert F.one_hot(labels[:0], 5).shape == filled.one_hot(labels[:0], 5).shape


@pytest.mark.parametrize(
    ("labels", "count"), [([[0.5]], 3), ([[4]], 4), ([[-1]], 3), ([[1]], 0), ([[1]], -2), ([], -1)]
)
def test_one_hot_refuses_what_pytorch_refuses(labels: list[Any], count: int) -> None:
    """In the same words."""
    tensor = torch.tensor(labels) if labels else torch.empty(0, dtype=torch.int64)
    with pytest.raises(RuntimeError) as expected:
        F.one_hot(tensor, count)

    with pytest.raises(RuntimeError) as actual:
        filled.one_hot(tensor, count)
    assert str(expected.value).splitlines()[0] == str(actual.value)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_sequences_are_pytorchs(lengths: list[int], batch_first: bool, side: str) -> None:
    """Any lengths, padded at either end."""
    sequences = [torch.randn(length, 2) for length in lengths]

    expected = rnn.pad_sequence(sequences, batch_first, 7.0, padding_side=side)
    assert torch.equal(expected, filled.pad_sequence(sequences, batch_first, 7.0, side))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("total", [None, 9])
def test_packed_sequences_are_padded_as_pytorch_does(lengths: list[int], batch_first: bool, total: int | None) -> None:
    """Elements, padding and lengths, also up to a given length."""
    packed = rnn.pack_sequence([torch.randn(length, 2) for length in lengths], enforce_sorted=False)
    values, back = rnn.pad_packed_sequence(
        rnn.PackedSequence(packed.data, packed.batch_sizes), batch_first, 7.0, total_length=total
    )

    padded, found = filled.pad_packed_sequence(packed.data, packed.batch_sizes, batch_first, 7.0, total or -1)
    assert torch.equal(values, padded)
    assert torch.equal(back, found)


def encoded(labels: torch.Tensor) -> torch.Tensor:
    """Labels as rows with a one."""
    return F.one_hot(labels, 7).float()


def padded(labels: torch.Tensor) -> torch.Tensor:
    """Two sequences of labels as one tensor."""
    return rnn.pad_sequence([labels.float(), labels[:2].float()])


def unpacked(labels: torch.Tensor) -> torch.Tensor:
    """Two sequences of labels, packed, and padded again."""
    packed = rnn.pack_padded_sequence(
        labels.float().expand(2, -1).unsqueeze(-1), torch.tensor([4, 2]), batch_first=True
    )
    return rnn.pad_packed_sequence(packed, batch_first=True)[0]


@pytest.mark.parametrize(("make", "bytes_"), [(encoded, 4 * 7 * 8), (padded, 4 * 2 * 4), (unpacked, 4 * 2 * 4)])
def test_what_is_filled_is_on_the_card(
    make: Callable[[torch.Tensor], torch.Tensor], bytes_: int, tracing: Tracing
) -> None:
    """It says so, takes memory there in each step, and meets other tensors of the card."""

    def setup(device: torch.device) -> Step:
        weight = nn.Parameter(torch.ones(1, device=device))

        def step(batch_size: int) -> None:
            made = make(torch.randint(0, 7, (batch_size,), device=device))
            assert made.is_cuda
            torch.add(made, weight).sum().backward()
            weight.grad = None

        return step

    for kind in ("fake", "real-cpu"):
        events = tracing.memory_events(tracing.trace(setup, 4, kind=kind))
        assert 3 <= events.count(("+", bytes_))


def test_gradients_of_gradients_stay_on_the_card(tracing: Tracing) -> None:
    """The penalty of a GAN, through a pooling layer whose second derivative is zero."""

    def setup(device: torch.device) -> Step:
        layer = nn.Conv2d(3, 8, 3, padding=1).to(device)

        def step(batch_size: int) -> None:
            images = torch.randn(batch_size, 3, 16, 16, device=device, requires_grad=True)
            score = F.avg_pool2d(F.leaky_relu(layer(images), 0.2), 2).square().sum()
            (gradient,) = torch.autograd.grad(score, images, create_graph=True)
            assert gradient.is_cuda
            gradient.square().sum().backward()
            assert images.grad is not None
            assert images.grad.is_cuda
            layer.zero_grad()

        return step

    made = tracing.trace(setup, 4)

    assert 6 == made.facts["backward_calls"]
