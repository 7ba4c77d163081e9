"""The U-Net of Stable Diffusion XL, fine-tuned: 1024 x 1024 images, fp16 autocast, AdamW, checkpointing.

Settings: https://github.com/huggingface/diffusers, examples/text_to_image/train_text_to_image_sdxl.py and
README_sdxl.md: one image a card, fp16 with a gradient scaler, gradient checkpointing, learning rate 1e-6, weight decay
1e-2, gradients clipped to norm 1, AdamW (in 8 bits there on request, which needs bitsandbytes; here the script's
default). Text embeddings and latents are computed before training, as the script does: only the U-Net is on the card.
Read there (README_sdxl.md, 2026-12): one image a card, fp16, checkpointing, rate; its example has 512 pixels, AdamW in 8
bits and xformers, accumulated 4 times. Ours: 1024 pixels, the size the model was made for, AdamW in full and no
accumulation.
Model: Podell et al., "SDXL", https://arxiv.org/abs/2307.01952 (a U-Net of 2.6 billion parameters); diffusers
UNet2DConditionModel with the configuration of stabilityai/stable-diffusion-xl-base-1.0 (unet/config.json).
Options: those of every adapter; `size` (pixels, a multiple of 32), `width` (channels of the first block, a multiple of
64), `layers` (of the innermost transformers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

NAME = "sdxl-unet"
SETTINGS = {
    "precision": "fp16",
    "optimizer": "adamw",
    "weight_decay": "0.01",
    "clip": "1.0",
    "checkpoint": "1",
    "size": "1024",
}
PROMPT_TOKENS, PROMPT_WIDTH, POOLED_WIDTH = 77, 2048, 1280
STEPS = 1000


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    size, width, layers = reader.count("size", 1024), reader.count("width", 320), reader.count("layers", 10)
    reader.finish()
    if size % 32 or width % 64:
        raise WorkloadError(f"{NAME}: size={size} must be a multiple of 32 and width={width} one of 64")

    def make_model() -> torch.nn.Module:
        model = UNet2DConditionModel(**_config(size, width, layers))
        if settings.checkpoint:
            model.enable_gradient_checkpointing()
        return model

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=make_model,
        make_batch=lambda count, device, dtype: _batch(count, size, device, dtype),
        compute_loss=compute_loss,
        optimizer_arguments={"lr": 1e-6},
        sizes={"size": size},
    )
    description = "U-Net of Stable Diffusion XL, fine-tuning"
    return make_workload(recipe, unit="images", description=description, default_batch_size=1)


def _config(size: int, width: int, layers: int) -> dict[str, Any]:
    return {
        "sample_size": size // 8,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "block_out_channels": (width, 2 * width, 4 * width),
        "layers_per_block": 2,
        "transformer_layers_per_block": (1, 2, layers),
        "attention_head_dim": (width // 64, 2 * width // 64, 4 * width // 64),  # heads, in spite of the name
        "cross_attention_dim": PROMPT_WIDTH,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": POOLED_WIDTH + 6 * 256,
    }


def _batch(count: int, size: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "latents": torch.randn(count, 4, size // 8, size // 8, device=device, dtype=dtype),
        "steps": torch.randint(0, STEPS, (count,), device=device),
        "prompts": torch.randn(count, PROMPT_TOKENS, PROMPT_WIDTH, device=device, dtype=dtype),
        "added": {
            "text_embeds": torch.randn(count, POOLED_WIDTH, device=device, dtype=dtype),
            "time_ids": torch.full((count, 6), float(size), device=device, dtype=dtype),
        },
    }


def compute_loss(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Squared error of the predicted noise, under the model's scaled linear schedule."""
    latents, steps = batch["latents"], batch["steps"]
    noise = torch.randn_like(latents)
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, STEPS, device=latents.device) ** 2
    kept = torch.cumprod(1 - betas, dim=0)[steps, None, None, None].to(latents.dtype)
    noisy = kept.sqrt() * latents + (1 - kept).sqrt() * noise
    predicted = model(noisy, steps, batch["prompts"], added_cond_kwargs=batch["added"], return_dict=False)[0]
    return F.mse_loss(predicted.float(), noise.float())
