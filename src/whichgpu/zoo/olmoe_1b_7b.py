"""OLMoE-1B-7B, a mixture of experts, a step of its pre-training: sequences of 4096 tokens, all in bf16, AdamW.

Settings: Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models", https://arxiv.org/abs/2409.02060, table 10
and appendix B: 64 experts a layer of which each token takes 8, no token dropped, load-balancing loss of weight 0.01,
AdamW (betas 0.9 and 0.95, epsilon 1e-8, weight decay 0.1 on everything), gradients clipped to norm 1. The loss on the
router's normaliser is left out. It was trained on 256 cards with weights and optimizer state in float32; here one card
holds all 6.9 billion parameters, of which a token uses 1.3 billion, and for that weights, gradients and optimizer state are
in bf16. Experts are computed by transformers' grouped products (which take bf16 only), not by the block-sparse kernels of
MegaBlocks used there.
The settings are as remembered from the paper, not read again. Ours: one card, all in bf16, the kernels.
Model: transformers OlmoeForCausalLM with the configuration of allenai/OLMoE-1B-7B-0924. Options: those of `hf:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from whichgpu.workload import Workload
from whichgpu.zoo.hf_models import Plan, make_workload

NAME = "olmoe-1b-7b"
CONFIG = {
    "hidden_size": "2048",
    "num_hidden_layers": "16",
    "num_attention_heads": "16",
    "num_key_value_heads": "16",
    "intermediate_size": "1024",
    "num_experts": "64",
    "num_experts_per_tok": "8",
    "vocab_size": "50304",
    "max_position_embeddings": "4096",
    "output_router_logits": "1",
}
SETTINGS = {"precision": "pure-bf16", "optimizer": "adamw", "weight_decay": "0.1", "clip": "1.0", "seq": "4096"}
OPTIMIZER = {"lr": 4e-4, "betas": (0.9, 0.95), "eps": 1e-8}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    plan = Plan("olmoe", {**CONFIG, **SETTINGS, **options}, where=NAME)
    recipe = replace(plan.recipe(), optimizer_arguments=OPTIMIZER)
    description = "OLMoE-1B-7B mixture of experts, pre-training"
    return make_workload(plan, recipe, name=NAME, description=description, default_batch_size=1)
