"""The formulas that the zoo's operations are counted with, where PyTorch's are left out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import count_zoo
from whichgpu import zoo_list
from whichgpu.zoo import ENTRIES


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_convolutions_cost_thrice_their_forward_pass(kind: type[nn.Module], groups: int) -> None:
    """Each gradient of a convolution takes what the forward pass takes, in groups and transposed too."""
    layer = kind(8, 8, 3, groups=groups)
    images = torch.randn(2, 8, 9, 9, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        layer(images.detach())
    with FlopCounterMode(display=False, custom_mapping=count_zoo.formulas()) as whole:
        layer(images).sum().backward()
    assert 3 * forward.get_total_flops() == whole.get_total_flops()


def test_the_gradient_of_the_first_images_is_not_counted() -> None:
    """Images that need no gradient save that part."""
    with FlopCounterMode(display=False, custom_mapping=count_zoo.formulas()) as counter:
        nn.Conv2d(3, 4, 3, bias=False)(torch.randn(1, 3, 5, 5)).sum().backward()
    assert 2 * (2 * 4 * 3 * 3 * 3 * 3 * 3) == counter.get_total_flops()


def test_grouped_products_cost_as_much_as_one() -> None:
    """Rows are shared out among the groups, so that all together cost what one product of all rows does."""
    rows = torch.randn(8, 16, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(2, 16, 32, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([4, 8], dtype=torch.int32)
    with FlopCounterMode(display=False, custom_mapping=count_zoo.formulas()) as counter:
        output = torch.nn.functional.grouped_mm(rows, weights, offs=ends)
        output.backward(torch.ones_like(output))
    assert 3 * 2 * 8 * 16 * 32 == counter.get_total_flops()


LANGUAGE = {
    "llama3-8b": 8.03e9 - 0.53e9,
    "olmo2-1b": 1.28e9,
    "olmoe-1b-7b": 1.18e9,
    "mamba2-370m": 0.37e9,
    "gpt2": 0.124e9,
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models_cost_six_operations_a_weight_and_token(name: str) -> None:
    """Forward and backward take six operations for each weight that a token meets (eight with checkpointing), and more
    for what is between tokens, which is at most half as much again at these lengths.
    """
    assert name in ENTRIES
    listed = zoo_list.facts()[name]
    rule = (8 if listed.settings.get("checkpoint") else 6) * LANGUAGE[name] * listed.items_per_sample
    assert 0.95 < listed.flops_per_sample / rule < 1.6
