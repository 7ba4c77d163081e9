"""Low-rank adapters on a frozen model, by peft, as the fine-tuning entries of the zoo use them.

Weights of the model stand still and take no gradient; of a product with an adapted weight, the input is kept once for the
weight's own product and once for the adapter's. Source: https://github.com/huggingface/peft
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from peft import LoraConfig, get_peft_model


def add_lora(
    model: torch.nn.Module, *, targets: Iterable[str] | str, rank: int, alpha: int, dropout: float = 0.0
) -> torch.nn.Module:
    """The model, frozen, with adapters on the layers whose names end so (or match the pattern), in its own dtype."""
    layers = targets if isinstance(targets, str) else list(targets)
    with warnings.catch_warnings():
        # peft asks transformers for an attribute under its old name (peft 0.21 with transformers 5.24)
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*is_gradient_checkpointing")
        return _adapted(model, layers, rank, alpha, dropout)


def _adapted(model: torch.nn.Module, layers: list[str] | str, rank: int, alpha: int, dropout: float) -> torch.nn.Module:
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=layers)
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The weights that take a gradient: what the optimizer is given."""
    return [weight for weight in model.parameters() if weight.requires_grad]
