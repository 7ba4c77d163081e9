"""BERT-base pre-training: sequences of 128 tokens, 20 masked predictions each, next-sentence head, fp32.

Settings: the BERT Base row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning): https://github.com/google-research/bert,
run_pretraining.py with max_seq_length 128 and max_predictions_per_seq 20, no fp16; optimization.py: Adam with
decoupled weight decay 0.01 (none for biases and LayerNorm), betas 0.9 and 0.999, epsilon 1e-6, gradients
clipped to norm 1. As there, the vocabulary's logits are computed at the 20 masked positions only.
Model: Devlin et al., "BERT", section 3 (uncased L-12 H-768 A-12, 110 million parameters),
https://arxiv.org/abs/1810.04805; transformers BertForPreTraining with its default configuration.
No attention mask is passed: the sequences are full. Speed is in sequences, as in that table.
Differences: PyTorch's fused attention and other operators (`attention=eager` has attention written out, `code=2019` all that the
original keeps for the backward pass in TensorFlow: written_out.py).
Options: those of every adapter, `seq`, `predictions`, `attention`, `code` (today or 2019) and any attribute of BertConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from transformers import BertForPreTraining

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.hf_models import Plan
from whichgpu.zoo.training import Recipe, make_workload
from whichgpu.zoo.written_out import in_2019, read_code

NAME = "bert-base"
OPTIMIZER = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6}
SETTINGS = {"precision": "fp32", "optimizer": "adamw", "weight_decay": "0.01", "clip": "1.0", "seq": "128"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="sequences",
        default_batch_size=32,
        description="BERT-base, masked-LM and next-sentence pre-training",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    own = dict(options)
    old = read_code(NAME, own, attention=True)
    predictions = own.pop("predictions", "20")
    plan = Plan("bert", {**SETTINGS, "task": "masked-lm", **own}, where=NAME)
    if not (predictions.isdigit() and 0 < int(predictions) <= plan.sequence):
        raise WorkloadError(f"{NAME}: predictions={predictions} must be from 1 to the {plan.sequence} tokens")
    masked = int(predictions)
    vocabulary = plan.config.vocab_size

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {
            "tokens": torch.randint(0, vocabulary, (count, plan.sequence), device=device),
            "segments": torch.randint(0, 2, (count, plan.sequence), device=device),
            "positions": torch.randint(0, plan.sequence, (count, masked), device=device),
            "masked_tokens": torch.randint(0, vocabulary, (count, masked), device=device),
            "is_random_next": torch.randint(0, 2, (count,), device=device),
        }

    return Recipe(
        where=NAME,
        settings=plan.settings,
        make_model=lambda: plan.build_model(BertForPreTraining),
        make_batch=make_batch,
        compute_loss=in_2019("tensorflow 1.13", compute_loss) if old else compute_loss,
        optimizer_arguments=OPTIMIZER,
        parameter_groups=parameter_groups,
        sizes=plan.sizes(),
    )


def compute_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Masked-token loss at the masked positions plus next-sentence loss."""
    hidden, pooled = model.bert(batch["tokens"], token_type_ids=batch["segments"], return_dict=False)
    positions = batch["positions"].unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    logits, next_logits = model.cls(hidden.gather(1, positions), pooled)
    masked_loss = F.cross_entropy(logits.flatten(0, 1), batch["masked_tokens"].flatten())
    return masked_loss + F.cross_entropy(next_logits, batch["is_random_next"])


def parameter_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Parameters that decay, and biases and LayerNorm, which do not."""
    groups: tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        groups["bias" in name or "LayerNorm" in name].append(parameter)
    return [{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0}]
