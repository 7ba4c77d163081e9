"""Steps whose sizes follow from values: masks and boxes that are known, and what a network chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from conftest import Tracing
from whichgpu.capture.choices import NOTE, READ, evenly
from whichgpu.errors import DataDependentError

Step = Callable[[int], Any]
EXPERTS, TOP, WIDTH = 8, 2, 300


def routed(device: torch.device) -> Step:
    """Top-2 of eight experts, each of which gets the tokens that chose it."""
    router, experts = nn.Linear(WIDTH, EXPERTS).to(device), [nn.Linear(WIDTH, 7).to(device) for _ in range(EXPERTS)]

    def step(batch_size: int) -> None:
        hidden = torch.rand(batch_size * 4, WIDTH, device=device) @ torch.rand(WIDTH, WIDTH, device=device)
        for _ in range(12):  # more than is followed
            hidden = torch.cat([hidden, hidden])
        weights, chosen = router(hidden).softmax(-1).topk(TOP, dim=-1)
        total = 0
        for index, expert in enumerate(experts):
            token, slot = torch.nonzero(chosen == index, as_tuple=True)
            total = total + (expert(hidden[token]) * weights[token, slot, None]).sum()
        total.backward()

    return step


def test_every_expert_gets_the_same_share(tracing: Tracing) -> None:
    """Routing traces without values: tokens x 2 / 8 for each expert, and the report says that this was assumed."""
    trace = tracing.trace(routed, 4, steps=1)
    tokens = 4 * 4 * 2**12

    picked = Counter(op.outputs[0].shape for op in trace.ops if op.name == "aten.index.Tensor" and len(op.inputs) == 2)

    assert EXPERTS == picked[tokens * TOP // EXPERTS, WIDTH]
    assert NOTE in trace.notes


@pytest.mark.parametrize(
    ("shape", "dim", "count"), [((6, 2), -1, 4), ((2, 6), 0, 4), ((5, 4), 1, 4), ((3, 5, 1), 1, 5)]
)
def test_choices_are_different_in_a_row_and_even_in_all(shape: tuple[int, ...], dim: int, count: int) -> None:
    """No index comes twice along the dimension that is chosen from, and none more often than others overall."""
    value = evenly(torch.Size(shape), dim, count)
    rows = value.movedim(dim, -1).flatten(0, -2)
    often = torch.bincount(value.flatten(), minlength=count)

    assert torch.Size(shape) == value.shape
    assert all(len(set(row.tolist())) == len(row) for row in rows)
    assert 1 >= int(often.max() - often.min())


def test_hard_examples_are_counted_right(tracing: Tracing) -> None:
    """The three hardest of each row: two sorts of unknown losses leave exactly three, whichever they are."""

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(600, 600).to(device)

        def step(batch_size: int) -> None:
            losses = layer(torch.rand(batch_size, 600, device=device)).detach()
            rank = losses.sort(1, descending=True)[1].sort(1)[1]
            assert 3 * batch_size == losses[rank < 3].numel()

        return step

    tracing.trace(setup, 5, steps=1)


def test_boxes_are_matched_with_anchors(tracing: Tracing) -> None:
    """Anchors of a whole image and boxes drawn in the step are followed, so that their matches are known."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            place = torch.arange(160, device=device, dtype=torch.float32)
            anchors = torch.cartesian_prod(place, place).repeat(9, 1)
            for _ in range(batch_size):
                near = torch.cdist(torch.rand(4, 2, device=device) * 160, anchors, p=1) < 2
                assert 0 < len(torch.where(near)[0]) < 9 * 4 * 16

        return step

    assert (9 * 160 * 160, 2) in {op.outputs[0].shape for op in tracing.trace(setup, 2, steps=1).ops if op.outputs}


@pytest.mark.parametrize("count", [50, 600])
def test_a_mask_that_hardly_counts_lets_everything_pass(count: int, tracing: Tracing) -> None:
    """A few numbers picked by an unknown mask are all taken, and the report says so; many are refused."""

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(600, 600).to(device)

        def step(batch_size: int) -> None:
            out = layer(torch.rand(300, 600, device=device)).detach()
            part = out[:, :count] if count == 600 else out[0, :count]
            assert part.numel() == part[part > 0].numel()

        return step

    if count == 600:
        with pytest.raises(DataDependentError):
            tracing.trace(setup, 2, steps=1)
    else:
        assert any("masks" in note for note in tracing.trace(setup, 2, steps=1).notes)


def test_costs_that_are_read_are_numbers(tracing: Tracing) -> None:
    """Matching on the host gets finite numbers that differ, the same ones each time, and the report says so."""
    seen = []

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(600, 600).to(device)

        def step(batch_size: int) -> None:
            seen.append(layer(torch.rand(batch_size, 600, device=device)).detach().cpu().numpy())

        return step

    trace = tracing.trace(setup, 4, steps=2)

    assert (seen[0] == seen[1]).all()
    assert 1 > seen[0].max() > seen[0].min() >= 0
    assert READ in trace.notes
