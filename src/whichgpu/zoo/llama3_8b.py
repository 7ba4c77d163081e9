"""Llama-3-8B, full fine-tuning on one card: packed sequences of 4096 tokens, all in bf16, AdamW, checkpointing.

Settings: https://github.com/pytorch/torchtune, recipes/configs/llama3/8B_full.yaml: dtype bf16 (weights, gradients and
optimizer state), fused AdamW with learning rate 2e-5, activation checkpointing of each layer, batch size 2, no
clipping. That recipe shards over several cards; here one card holds it all. Its sequences are as long as the data:
4096 tokens, packed, are those of https://github.com/meta-llama/llama-recipes (configs/training.py: context_length,
batching_strategy). The loss there is computed in chunks; here over all logits at once, as transformers does.
Read there (torchtune, 2026-12): dtype, optimizer, checkpointing, batch, four cards, data that is not packed (alpaca). Ours:
one card, packed sequences of 4096, the loss over all logits.
Model: https://github.com/meta-llama/llama3 (8 billion parameters; config.json of meta-llama/Meta-Llama-3-8B):
transformers LlamaForCausalLM. Options: those of `hf:`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.workload import Workload
from whichgpu.zoo import hf_models

NAME = "llama3-8b"
CONFIG = {
    "hidden_size": "4096",
    "num_hidden_layers": "32",
    "num_attention_heads": "32",
    "num_key_value_heads": "8",
    "intermediate_size": "14336",
    "vocab_size": "128256",
    "max_position_embeddings": "8192",
}
SETTINGS = {"precision": "pure-bf16", "optimizer": "adamw", "fused": "1", "checkpoint": "1", "seq": "4096"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    return hf_models.build(
        "llama",
        {**CONFIG, **SETTINGS, **options},
        name=NAME,
        description="Llama-3-8B, full fine-tuning",
        default_batch_size=2,
    )
