"""The zoo: training steps that ship with whichgpu, and the adapters for model libraries.

This file is the table alone, so that listing the zoo imports no torch. Each entry is one file; its docstring
holds the settings and where they come from. The adapters (`timm_models`, `torchvision_models`, `hf_models`)
build any architecture of their library; `training` is the step that all of them share.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a zoo workload lives: `target` is "module:function", a function of its options."""

    target: str
    description: str


ENTRIES: dict[str, Entry] = {
    "bert-base": Entry(
        "whichgpu.zoo.bert_base:build",
        "BERT-base masked-LM and next-sentence pre-training, sequence 128, fp32, AdamW",
    ),
    "bert-finetune": Entry(
        "whichgpu.zoo.bert_finetune:build",
        "BERT-base fine-tuning on SQuAD question answering, sequence 384, fp32, AdamW",
    ),
    "gpt2": Entry(
        "whichgpu.zoo.gpt2:build",
        "GPT-2 (124M) language modelling, sequence 1024, bf16 autocast, AdamW",
    ),
    "nasnet-large": Entry(
        "whichgpu.zoo.nasnet_large:build",
        "NASNet-A-Large image classification, 331 x 331, fp32, SGD with momentum",
    ),
    "resnet50": Entry(
        "whichgpu.zoo.resnet50:build",
        "ResNet-50 image classification, 224 x 224, fp32, SGD with momentum",
    ),
    "vit-base": Entry(
        "whichgpu.zoo.vit_base:build",
        "ViT-B/16 image classification, 224 x 224, fp32, AdamW",
    ),
}
