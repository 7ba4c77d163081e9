"""U-Nets, 3-D convolutions, GANs with two optimizers, autoencoders, diffusion U-Net and DiT."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import torch
import torchvision
from torch import nn


def _double(conv, norm, inputs, outputs):
    return nn.Sequential(
        conv(inputs, outputs, 3, padding=1, bias=False),
        norm(outputs),
        nn.ReLU(inplace=True),
        conv(outputs, outputs, 3, padding=1, bias=False),
        norm(outputs),
        nn.ReLU(inplace=True),
    )


class _UNet(nn.Module):
    """The usual U-Net in two or three dimensions."""

    def __init__(self, dims, inputs, classes, width, depth, *, transposed=True):
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        norm = nn.BatchNorm2d if dims == 2 else nn.InstanceNorm3d
        up = nn.ConvTranspose2d if dims == 2 else nn.ConvTranspose3d
        widths = [width * 2**i for i in range(depth)]
        self.pool = nn.MaxPool2d(2) if dims == 2 else nn.MaxPool3d(2)
        self.down = nn.ModuleList(_double(conv, norm, a, b) for a, b in itertools.pairwise([inputs, *widths]))
        pairs = list(itertools.pairwise(reversed(widths)))
        if transposed:
            self.up = nn.ModuleList(up(a, b, 2, stride=2) for a, b in pairs)
        else:
            self.up = nn.ModuleList(
                nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), conv(a, b, 1)) for a, b in pairs
            )
        self.merge = nn.ModuleList(_double(conv, norm, 2 * b, b) for _, b in pairs)
        self.head = conv(width, classes, 1)

    def forward(self, hidden):
        skips = []
        for level, block in enumerate(self.down):
            hidden = block(hidden if level == 0 else self.pool(hidden))
            skips.append(hidden)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            hidden = merge(torch.cat([skips.pop(), up(hidden)], dim=1))
        return self.head(hidden)


def unet2d_adam_fp32(device, *, image_size=256, width=64, depth=5):
    torch.manual_seed(0)
    model = _UNet(2, 3, 2, width, depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        labels = torch.randint(0, 2, (batch_size, image_size, image_size), device=device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def unet2d_benchmark_fp32(device, *, image_size=160, width=48, depth=4):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = _UNet(2, 1, 4, width, depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(batch_size):
        images = torch.randn(batch_size, 1, image_size, image_size, device=device)
        labels = torch.randint(0, 4, (batch_size, image_size, image_size), device=device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def unet2d_bilinear_channels_last_bf16amp(device, *, image_size=384, width=32, depth=5):
    torch.manual_seed(0)
    model = _UNet(2, 3, 1, width, depth, transposed=False).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9, foreach=True)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        images = images.to(memory_format=torch.channels_last)
        masks = torch.randint(0, 2, (batch_size, 1, image_size, image_size), device=device).float()
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(images)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, masks)
            probability = logits.sigmoid()
            overlap = 2 * (probability * masks).sum() / (probability.sum() + masks.sum() + 1)
            loss = loss + 1 - overlap
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def unet3d_sgd_fp32(device, *, volume=96, width=16, depth=4):
    torch.manual_seed(0)
    model = _UNet(3, 1, 3, width, depth).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)

    def step(batch_size):
        volumes = torch.randn(batch_size, 1, volume, volume, volume, device=device)
        labels = torch.randint(0, 3, (batch_size, volume, volume, volume), device=device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(volumes), labels)
        loss.backward()
        optimizer.step()

    return step


def r3d18_video_fp16(device, *, frames=16, image_size=112):
    torch.manual_seed(0)
    model = torchvision.models.video.r3d_18(weights=None, num_classes=400).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        clips = torch.randn(batch_size, 3, frames, image_size, image_size, device=device)
        labels = torch.randint(0, 400, (batch_size,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(clips), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _generator(latent, width):
    def up(inputs, outputs, stride, padding):
        return [
            nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
        ]

    return nn.Sequential(
        *up(latent, width * 8, 1, 0),
        *up(width * 8, width * 4, 2, 1),
        *up(width * 4, width * 2, 2, 1),
        *up(width * 2, width, 2, 1),
        nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def _critic(width, norm):
    def down(inputs, outputs):
        return [
            nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False),
            norm(outputs),
            nn.LeakyReLU(0.2, inplace=True),
        ]

    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        *down(width, width * 2),
        *down(width * 2, width * 4),
        *down(width * 4, width * 8),
        nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def dcgan_two_adams_fp32(device, *, width=64, latent=100):
    torch.manual_seed(0)
    generator = _generator(latent, width).to(device)
    critic = _critic(width, nn.BatchNorm2d).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()

    def step(batch_size):
        real = torch.randn(batch_size, 3, 64, 64, device=device)
        ones, zeros = torch.ones(batch_size, device=device), torch.zeros(batch_size, device=device)
        critic.zero_grad()
        bce(critic(real), ones).backward()
        fake = generator(torch.randn(batch_size, latent, 1, 1, device=device))
        bce(critic(fake.detach()), zeros).backward()
        critic_optimizer.step()
        generator.zero_grad()
        bce(critic(fake), ones).backward()
        generator_optimizer.step()

    return step


def wgan_gradient_penalty_fp32(device, *, width=64, latent=128, critic_steps=2):
    torch.manual_seed(0)
    generator = _generator(latent, width).to(device)
    critic = _critic(width, lambda channels: nn.GroupNorm(1, channels)).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))

    def penalty(real, fake):
        mix = torch.rand(real.shape[0], 1, 1, 1, device=device)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean()

    def step(batch_size):
        for _ in range(critic_steps):
            real = torch.randn(batch_size, 3, 64, 64, device=device)
            with torch.no_grad():
                fake = generator(torch.randn(batch_size, latent, 1, 1, device=device))
            critic_optimizer.zero_grad()
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
            loss.backward()
            critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss = -critic(generator(torch.randn(batch_size, latent, 1, 1, device=device))).mean()
        loss.backward()
        generator_optimizer.step()

    return step


def pix2pix_two_scalers_fp16(device, *, image_size=256, width=32):
    torch.manual_seed(0)
    generator = _UNet(2, 3, 3, width, 5).to(device)
    critic = nn.Sequential(
        nn.Conv2d(6, 64, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(64, 128, 4, 2, 1),
        nn.InstanceNorm2d(128),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(128, 256, 4, 2, 1),
        nn.InstanceNorm2d(256),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(256, 1, 4, 1, 1),
    ).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    generator_scaler, critic_scaler = torch.amp.GradScaler(device.type), torch.amp.GradScaler(device.type)

    def step(batch_size):
        source = torch.randn(batch_size, 3, image_size, image_size, device=device)
        target = torch.randn(batch_size, 3, image_size, image_size, device=device)
        with torch.autocast(device.type, dtype=torch.float16):
            made = generator(source)
            real_score = critic(torch.cat([source, target], 1))
            made_score = critic(torch.cat([source, made.detach()], 1))
            critic_loss = ((real_score - 1) ** 2).mean() + (made_score**2).mean()
        critic_optimizer.zero_grad()
        critic_scaler.scale(critic_loss).backward()
        critic_scaler.step(critic_optimizer)
        critic_scaler.update()
        critic.requires_grad_(False)
        with torch.autocast(device.type, dtype=torch.float16):
            score = critic(torch.cat([source, made], 1))
            loss = ((score - 1) ** 2).mean() + 100 * nn.functional.l1_loss(made, target)
        generator_optimizer.zero_grad()
        generator_scaler.scale(loss).backward()
        generator_scaler.step(generator_optimizer)
        generator_scaler.update()
        critic.requires_grad_(True)

    return step


def vqvae_codebook_fp32(device, *, image_size=128, width=128, codes=1024, dim=64):
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(width, width, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(width, dim, 1),
    )
    decoder = nn.Sequential(nn.ConvTranspose2d(dim, width, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1))
    codebook = nn.Embedding(codes, dim)
    model = nn.ModuleList([encoder, decoder, codebook]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        latent = encoder(images).permute(0, 2, 3, 1)
        flat = latent.reshape(-1, dim)
        chosen = torch.cdist(flat, codebook.weight).argmin(dim=1)
        quantized = codebook(chosen).view(latent.shape)
        loss = ((quantized - latent.detach()) ** 2).mean() + 0.25 * ((quantized.detach() - latent) ** 2).mean()
        straight = latent + (quantized - latent).detach()
        loss = loss + nn.functional.mse_loss(decoder(straight.permute(0, 3, 1, 2)), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _timestep_embedding(steps, dim):
    frequencies = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=steps.device) / (dim // 2))
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class _DiffusionBlock(nn.Module):
    def __init__(self, inputs, outputs, embedding, attention):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, 2 * outputs)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        self.attention = attention
        if attention:
            self.norm3, self.qkv = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, 3 * outputs, 1)
            self.project = nn.Conv2d(outputs, outputs, 1)

    def forward(self, hidden, embedding):
        scale, shift = self.time(nn.functional.silu(embedding))[:, :, None, None].chunk(2, dim=1)
        residual = self.conv1(nn.functional.silu(self.norm1(hidden)))
        residual = self.norm2(residual) * (1 + scale) + shift
        hidden = self.skip(hidden) + self.conv2(nn.functional.dropout(nn.functional.silu(residual), 0.1, self.training))
        if not self.attention:
            return hidden
        batch, channels, height, width = hidden.shape
        qkv = self.qkv(self.norm3(hidden)).view(batch, 3, channels // 64, 64, height * width).transpose(3, 4)
        mixed = nn.functional.scaled_dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2])
        return hidden + self.project(mixed.transpose(2, 3).reshape(batch, channels, height, width))


class _DiffusionUNet(nn.Module):
    """A DDPM U-Net: residual blocks with time embedding, self-attention at the lower resolutions."""

    def __init__(self, width, multiples):
        super().__init__()
        embedding = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, current = [width], width
        for level, multiple in enumerate(multiples):
            for _ in range(2):
                self.down.append(_DiffusionBlock(current, width * multiple, embedding, level > 0))
                current = width * multiple
                skips.append(current)
            if level < len(multiples) - 1:
                self.down.append(nn.Conv2d(current, current, 3, stride=2, padding=1))
                skips.append(current)
        self.middle = _DiffusionBlock(current, current, embedding, True)
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(3):
                self.up.append(_DiffusionBlock(current + skips.pop(), width * multiple, embedding, level > 0))
                current = width * multiple
            if level > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Conv2d(current, current, 3, padding=1)))
        self.head = nn.Sequential(nn.GroupNorm(32, current), nn.SiLU(), nn.Conv2d(current, 3, 3, padding=1))

    def forward(self, images, steps):
        embedding = self.time(_timestep_embedding(steps, self.width))
        hidden = self.stem(images)
        skips = [hidden]
        for block in self.down:
            hidden = block(hidden, embedding) if isinstance(block, _DiffusionBlock) else block(hidden)
            skips.append(hidden)
        hidden = self.middle(hidden, embedding)
        for block in self.up:
            if isinstance(block, _DiffusionBlock):
                hidden = block(torch.cat([hidden, skips.pop()], dim=1), embedding)
            else:
                hidden = block(hidden)
        return self.head(hidden)


def _diffusion_step(device, model, optimizer, average, image_size, *, precision):
    noise_level = torch.linspace(1e-4, 0.02, 1000, device=device)
    kept = torch.cumprod(1 - noise_level, dim=0)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        steps = torch.randint(0, 1000, (batch_size,), device=device)
        noise = torch.randn_like(images)
        level = kept[steps][:, None, None, None]
        noisy = level.sqrt() * images + (1 - level).sqrt() * noise
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.mse_loss(model(noisy, steps), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1e-4)

    return step


def ddpm_unet_ema_fp32(device, *, image_size=64, width=128, multiples=(1, 2, 2)):
    torch.manual_seed(0)
    model = _DiffusionUNet(width, multiples).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    return _diffusion_step(device, model, optimizer, average, image_size, precision="fp32")


def ddpm_unet_ema_bf16amp(device, *, image_size=64, width=192, multiples=(1, 2, 3)):
    torch.manual_seed(0)
    model = _DiffusionUNet(width, multiples).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return _diffusion_step(device, model, optimizer, average, image_size, precision="bf16")


class _DitBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, hidden, condition):
        parts = self.modulate(condition)[:, None].chunk(6, dim=-1)
        normed = self.norm1(hidden) * (1 + parts[1]) + parts[0]
        query, key, value = self.qkv(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + parts[2] * self.project(mixed.transpose(1, 2).flatten(2))
        normed = self.norm2(hidden) * (1 + parts[4]) + parts[3]
        return hidden + parts[5] * self.mlp(normed)


class _Dit(nn.Module):
    def __init__(self, dim, heads, layers, size, *, patch=2, channels=4, classes=1000):
        super().__init__()
        tokens = (size // patch) ** 2
        table = np.arange(tokens)[:, None] / 10000 ** (np.arange(dim // 2)[None] / (dim // 2))
        position = np.concatenate([np.sin(table), np.cos(table)], axis=1).astype(np.float32)
        self.register_buffer("position", torch.from_numpy(position)[None])
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.time = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.classes = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(_DitBlock(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.head = nn.Linear(dim, patch * patch * channels)
        self.fold = nn.PixelShuffle(patch)
        self.side = size // patch

    def forward(self, latents, steps, labels):
        hidden = self.embed(latents).flatten(2).transpose(1, 2) + self.position
        condition = self.time(_timestep_embedding(steps, 256)) + self.classes(labels)
        for block in self.blocks:
            hidden = block(hidden, condition)
        grid = self.head(self.norm(hidden)).transpose(1, 2).unflatten(2, (self.side, self.side))
        return self.fold(grid)


def _dit(device, dim, heads, layers, size, *, bf16, **adam):
    torch.manual_seed(0)
    model = _Dit(dim, heads, layers, size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, **adam)

    def step(batch_size):
        latents = torch.randn(batch_size, 4, size, size, device=device)
        labels = torch.randint(0, 1000, (batch_size,), device=device)
        labels = torch.where(torch.rand(batch_size, device=device) < 0.1, 1000, labels)
        time = torch.rand(batch_size, device=device)
        noise = torch.randn_like(latents)
        mixed = torch.lerp(latents, noise, time[:, None, None, None])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            predicted = model(mixed, time * 1000, labels)
            loss = ((predicted.float() - (noise - latents)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def dit_b_bf16amp(device, *, dim=768, heads=12, layers=12, size=32):
    return _dit(device, dim, heads, layers, size, bf16=True)


def dit_s_fused_tf32(device, *, dim=384, heads=6, layers=12, size=32):
    torch.backends.cuda.matmul.allow_tf32 = True
    return _dit(device, dim, heads, layers, size, bf16=False, fused=True)
