"""OLMo-2-1B, a step of its pre-training: sequences of 4096 tokens, bf16 autocast, AdamW.

Settings: https://github.com/allenai/OLMo, configs/official-0425/OLMo2-1B-stage1.yaml: precision amp_bf16 with weights and
optimizer state in float32, AdamW (betas 0.9 and 0.95, epsilon 1e-8, weight decay 0.1, none for embeddings), gradients
clipped to norm 1, 4 sequences a micro batch, no activation checkpointing, no compilation. Its auxiliary loss on the
softmax's normaliser and its fused loss kernel are left out: the loss is transformers'.
Read there (2026-12): all of the settings; it shards over cards. Ours: one card, the loss.
Model: OLMo et al., "2 OLMo 2 Furious", https://arxiv.org/abs/2501.00656 (1.48 billion parameters); transformers
Olmo2ForCausalLM with the configuration of allenai/OLMo-2-0425-1B. Options: those of `hf:`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from whichgpu.workload import Workload
from whichgpu.zoo.hf_models import Plan, make_workload

NAME = "olmo2-1b"
CONFIG = {
    "hidden_size": "2048",
    "num_hidden_layers": "16",
    "num_attention_heads": "16",
    "num_key_value_heads": "16",
    "intermediate_size": "8192",
    "vocab_size": "100352",
    "max_position_embeddings": "4096",
}
SETTINGS = {"precision": "bf16", "optimizer": "adamw", "weight_decay": "0.1", "clip": "1.0", "seq": "4096"}
OPTIMIZER = {"lr": 4e-4, "betas": (0.9, 0.95), "eps": 1e-8}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    plan = Plan("olmo2", {**CONFIG, **SETTINGS, **options}, where=NAME)
    recipe = replace(plan.recipe(), optimizer_arguments=OPTIMIZER, parameter_groups=parameter_groups)
    return make_workload(plan, recipe, name=NAME, description="OLMo-2-1B, pre-training", default_batch_size=4)


def parameter_groups(model: torch.nn.Module) -> Iterable[dict[str, Any]]:
    """Parameters that decay, and the embeddings, which do not."""
    embeddings = [weight for name, weight in model.named_parameters() if "embed_tokens" in name]
    others = [weight for name, weight in model.named_parameters() if "embed_tokens" not in name]
    return [{"params": others}, {"params": embeddings, "weight_decay": 0.0}]
