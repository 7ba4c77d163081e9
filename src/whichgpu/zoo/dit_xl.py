"""DiT-XL/2 on ImageNet: latents of 256 x 256 images, TF32, AdamW, with a moving average of the weights.

Settings: https://github.com/facebookresearch/DiT, train.py: AdamW with learning rate 1e-4 and no weight decay, a moving
average of the weights with decay 0.9999, float32 with TF32 allowed, no clipping, a tenth of the class labels dropped, 256
images over all cards. Latents are taken as computed before training; there, a frozen autoencoder computes them in each
step. The loss is that of the predicted noise plus that of the learned variance, the latter as a Gaussian likelihood.
Read there (2026-12): optimizer, average, TF32, batch. Ours: latents that are ready, fused attention.
Model: Peebles and Xie, "Scalable Diffusion Models with Transformers", table 1 (675 million parameters),
https://arxiv.org/abs/2212.09748; written out here, with fused attention in place of timm's.
Options: those of every adapter; `size` (pixels, a multiple of 16), `layers`, `hidden` (a multiple of `heads`), `heads`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

NAME = "dit-xl"
SETTINGS = {"precision": "tf32", "optimizer": "adamw", "weight_decay": "0", "size": "256"}
CHANNELS, PATCH, CLASSES, STEPS, FREQUENCIES = 4, 2, 1000, 1000, 256


class Block(nn.Module):
    """A transformer layer whose norms are shifted, scaled and gated by the condition (adaLN-Zero)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.mlp_norm = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.inputs, self.outputs = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(approximate="tanh"), nn.Linear(4 * hidden, hidden)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        """Attention and MLP, each added to what came in."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(condition)[:, None].chunk(6, dim=-1)
        normed = self.attention_norm(hidden) * (1 + scale) + shift
        query, key, value = self.inputs(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        hidden = hidden + gate * self.outputs(mixed)
        normed = self.mlp_norm(hidden) * (1 + mlp_scale) + mlp_shift
        return hidden + mlp_gate * self.mlp(normed)


class DiT(nn.Module):
    """Predicts noise and variance of latents at a diffusion step, for a class."""

    def __init__(self, latent_size: int, layers: int, hidden: int, heads: int, checkpointed: bool) -> None:
        super().__init__()
        self.side, self.checkpointed = latent_size // PATCH, checkpointed
        self.patches = nn.Conv2d(CHANNELS, hidden, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.randn(1, self.side**2, hidden), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(FREQUENCIES, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.classes = nn.Embedding(CLASSES + 1, hidden)  # the last one stands for a dropped label
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 2 * hidden))
        self.head = nn.Linear(hidden, PATCH * PATCH * 2 * CHANNELS)

    def forward(self, latents: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        """Noise and variance, side by side in the channels."""
        hidden = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(_waves(steps).to(hidden.dtype)) + self.classes(labels)
        for block in self.blocks:
            if self.checkpointed:
                hidden = checkpoint(block, hidden, condition, use_reentrant=False)
            else:
                hidden = block(hidden, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        patches = self.head(self.norm(hidden) * (1 + scale) + shift)
        grid = patches.unflatten(1, (self.side, self.side)).unflatten(-1, (PATCH, PATCH, 2 * CHANNELS))
        return grid.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def _waves(steps: Tensor) -> Tensor:
    half = FREQUENCIES // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=steps.device) / half)
    angles = steps[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    size, layers = reader.count("size", 256), reader.count("layers", 28)
    hidden, heads = reader.count("hidden", 1152), reader.count("heads", 16)
    reader.finish()
    if size % 16 or hidden % heads:
        raise WorkloadError(f"{NAME}: size={size} must be a multiple of 16, hidden={hidden} one of heads={heads}")

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        latents = torch.randn(count, CHANNELS, size // 8, size // 8, device=device, dtype=dtype)
        return (
            latents,
            torch.randint(0, STEPS, (count,), device=device),
            torch.randint(0, CLASSES, (count,), device=device),
        )

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: DiT(size // 8, layers, hidden, heads, settings.checkpoint),
        make_batch=make_batch,
        compute_loss=compute_loss,
        optimizer_arguments={"lr": 1e-4},
        average=0.9999,
        sizes={"size": size},
    )
    return make_workload(
        recipe, unit="images", description="DiT-XL/2, class-conditional image generation", default_batch_size=32
    )


def compute_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Squared error of the noise, plus the likelihood of it under the predicted variance."""
    latents, steps, labels = batch
    noise = torch.randn_like(latents)
    betas = torch.linspace(1e-4, 0.02, STEPS, device=latents.device)
    kept = torch.cumprod(1 - betas, dim=0)[steps, None, None, None].to(latents.dtype)
    noisy = kept.sqrt() * latents + (1 - kept).sqrt() * noise
    dropped = torch.rand(labels.shape, device=labels.device) < 0.1
    output = model(noisy, steps, torch.where(dropped, CLASSES, labels)).float()
    predicted, log_variance = output.chunk(2, dim=1)
    errors = (predicted - noise) ** 2
    likelihood = 0.5 * (errors.detach() * torch.exp(-log_variance) + log_variance)
    return errors.mean() + likelihood.mean() / STEPS
