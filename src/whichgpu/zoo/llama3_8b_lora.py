"""Llama-3-8B, fine-tuned with LoRA of rank 8: packed sequences of 4096 tokens, all in bf16, AdamW, checkpointing.

Settings: https://github.com/pytorch/torchtune, recipes/configs/llama3/8B_lora_single_device.yaml: dtype bf16, rank 8,
alpha 16, no dropout, adapters on the query, value and output projections and on the three of the MLP, fused AdamW with
learning rate 3e-4 and weight decay 0.01, activation checkpointing, batch size 2 (accumulated 8 times there: say
`accumulate=8` with batch size 16). The adapters are peft's instead of torchtune's.
Read there (2026-12): rank, alpha, places, dropout, optimizer, checkpointing, batch, data that is not packed. Ours: as in
llama3_8b, and no accumulation unless asked for.
Sequence length, loss and model: see llama3_8b. Options: those of `hf:`, and `rank`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from whichgpu.workload import Workload
from whichgpu.zoo import lora
from whichgpu.zoo.hf_models import Plan, make_workload
from whichgpu.zoo.llama3_8b import CONFIG
from whichgpu.zoo.options import Options

NAME = "llama3-8b-lora"
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SETTINGS = {
    "precision": "pure-bf16",
    "optimizer": "adamw",
    "fused": "1",
    "weight_decay": "0.01",
    "checkpoint": "1",
    "seq": "4096",
    "rank": "8",
}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    given = {**CONFIG, **SETTINGS, **options}
    rank = Options(NAME, {"rank": given.pop("rank")}).count("rank", 8)
    plan = Plan("llama", given, where=NAME)

    def make_model() -> torch.nn.Module:
        return lora.add_lora(plan.make_model(), targets=TARGETS, rank=rank, alpha=2 * rank)

    recipe = replace(plan.recipe(), make_model=make_model, parameter_groups=lora.trained)
    return make_workload(plan, recipe, name=NAME, description="Llama-3-8B, fine-tuning with LoRA", default_batch_size=2)
