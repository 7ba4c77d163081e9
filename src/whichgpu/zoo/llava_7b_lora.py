"""LLaVA-1.5-7B, a vision-language model, instruction tuning with LoRA: 336 x 336 images, 2048 tokens, bf16, AdamW.

Settings: https://github.com/haotian-liu/LLaVA, scripts/v1_5/finetune_lora.sh: LoRA of rank 128 and alpha 256 with dropout
0.05 on every linear layer of the language model, the projector trained as a whole, the image encoder frozen, bf16,
gradient checkpointing, 16 samples a card, at most 2048 tokens, learning rate 2e-4, no weight decay, gradients clipped to
norm 1 (the Trainer's default). The frozen weights are in bf16 and the trained ones in float32, as DeepSpeed keeps them.
Each sample has one image, of 576 tokens, and is as long as the limit.
Read there (2026-12): ranks, batch, length, rates, decay, checkpointing, ZeRO-3 over four cards of 40 GB. Ours: one card,
every sample of full length, the dtype of frozen weights.
Model: Liu et al., "Improved Baselines with Visual Instruction Tuning", https://arxiv.org/abs/2310.03744: CLIP ViT-L/14 at
336 pixels and Vicuna-7B (7.06 billion parameters); transformers LlavaForConditionalGeneration, its default
configuration with a vocabulary of 32,064.
Options: those of every adapter, `seq`, `rank` and any attribute of LlavaConfig (`text_config.num_hidden_layers=2`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo import lora
from whichgpu.zoo.hf_models import checkpoint, configure
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

NAME = "llava-7b-lora"
TARGETS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
# of llava-hf/llava-1.5-7b-hf: room for the image's token; all else is the default
TEXT = {"model_type": "llama", "vocab_size": 32064}
SETTINGS = {
    "precision": "bf16",
    "optimizer": "adamw",
    "weight_decay": "0",
    "clip": "1.0",
    "checkpoint": "1",
    "seq": "2048",
    "rank": "128",
}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    sequence, rank = reader.count("seq", 2048), reader.count("rank", 128)
    config = configure({"model_type": "llava", "text_config": TEXT}, reader)
    config.text_config.use_cache = False
    size, patch = config.vision_config.image_size, config.vision_config.patch_size
    image_tokens = (size // patch) ** 2
    if sequence <= image_tokens:
        raise WorkloadError(
            f"{NAME}: seq={sequence} leaves no room for text beside the {image_tokens} tokens of an image"
        )

    def make_model() -> torch.nn.Module:
        model = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
        if settings.checkpoint:
            checkpoint(model)
        return tuned(model, rank, torch.bfloat16 if settings.precision == "pure-bf16" else torch.float32)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        image = torch.full((count, image_tokens), config.image_token_id, device=device)
        words = min(config.text_config.vocab_size, config.image_token_id)
        text = torch.randint(0, words, (count, sequence - image_tokens), device=device)
        pixels = torch.randn(count, 3, size, size, device=device, dtype=torch.bfloat16)
        return {"input_ids": torch.cat([image, text], dim=1), "pixel_values": pixels}

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=make_model,
        make_batch=make_batch,
        compute_loss=lambda model, batch: model(**batch, labels=batch["input_ids"]).loss,
        optimizer_arguments={"lr": 2e-4},
        parameter_groups=lora.trained,
        sizes={"seq": sequence},
    )
    description = "LLaVA-1.5-7B vision-language model, instruction tuning with LoRA"
    return make_workload(
        recipe, unit="tokens", items_per_sample=sequence, description=description, default_batch_size=16
    )


def tuned(model: torch.nn.Module, rank: int, dtype: torch.dtype) -> torch.nn.Module:
    """The model with adapters on its language model and a trained projector, what is trained in `dtype`."""
    adapted = lora.add_lora(model, targets=TARGETS, rank=rank, alpha=2 * rank, dropout=0.05)
    for name, weight in adapted.named_parameters():
        if "multi_modal_projector" in name:
            weight.requires_grad = True
    _cast(lora.trained(adapted), dtype)
    return adapted


def _cast(weights: Iterable[torch.nn.Parameter], dtype: torch.dtype) -> None:
    for weight in weights:
        weight.data = weight.data.to(dtype)
