"""GPT-2, the smallest: language modelling on sequences of 1024 tokens, bf16 autocast, AdamW.

Model: Radford et al., "Language Models are Unsupervised Multitask Learners", table 2 (12 layers, width 768,
context 1024), https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf;
transformers GPT2LMHeadModel with its default configuration, 124 million parameters with tied embeddings (the
paper's 117 million were corrected in https://github.com/openai/gpt-2). The optimizer is not in the paper:
AdamW, weight decay 0.1, clipping at 1 and bfloat16 are those of https://github.com/karpathy/nanoGPT
(train.py). Options: those of `hf:`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.workload import Workload
from whichgpu.zoo import hf_models

MODEL = "gpt2"
SETTINGS = {"precision": "bf16", "optimizer": "adamw", "weight_decay": "0.1", "clip": "1.0", "seq": "1024"}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    description = "GPT-2 (124M), language modelling"
    return hf_models.build(MODEL, {**SETTINGS, **options}, name="gpt2", description=description)
