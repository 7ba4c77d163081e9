"""Small training steps of many kinds, each a `setup(device) -> step(batch_size)` as users write them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[int], Any]


class ConvNet(nn.Module):
    """Convolutions, batch norm, pooling, a residual, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU())
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The network."""
        x = self.stem(x)
        x = self.pool(x + self.body(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def images(batch_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A made-up batch."""
    return torch.randn(batch_size, 3, 16, 16, device=device), torch.randint(0, 10, (batch_size,), device=device)


def convnet(device: torch.device) -> Step:
    """A convolutional network with momentum."""
    model = ConvNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def step(batch_size: int) -> None:
        x, y = images(batch_size, device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def channels_last(device: torch.device) -> Step:
    """The same in channels_last."""
    model = ConvNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(batch_size: int) -> None:
        x, y = images(batch_size, device)
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y).backward()
        optimizer.step()

    return step


def mlp_with(optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> Callable[[torch.device], Step]:
    """An MLP and the given optimizer."""

    def setup(device: torch.device) -> Step:
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
        optimizer = optimizer_of(model.parameters())

        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 32, device=device)
            loss = F.mse_loss(model(x), torch.zeros(batch_size, 4, device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return setup


def transformer(device: torch.device) -> Step:
    """A small encoder on tokens, with clipping."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
    model = nn.Sequential(
        nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 50)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(batch_size: int) -> None:
        tokens = torch.randint(0, 50, (batch_size, 12), device=device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def embeddings(device: torch.device) -> Step:
    """Bags of embeddings."""
    model = nn.Sequential(nn.EmbeddingBag(100, 16, mode="sum"), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), 0.1)

    def step(batch_size: int) -> None:
        ids = torch.randint(0, 100, (batch_size, 5), device=device)
        y = torch.rand(batch_size, 1, device=device)
        F.binary_cross_entropy_with_logits(model(ids), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def checkpointed(use_reentrant: bool) -> Callable[[torch.device], Step]:
    """Blocks whose activations are computed again in the backward pass."""

    def setup(device: torch.device) -> Step:
        blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32)) for _ in range(3)]
        ).to(device)
        optimizer = torch.optim.AdamW(blocks.parameters())

        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 32, device=device, requires_grad=True)
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return setup


def accumulating(device: torch.device) -> Step:
    """Three backward passes a step."""
    model = ConvNet().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch_size: int) -> None:
        for _ in range(3):
            x, y = images(batch_size, device)
            (F.cross_entropy(model(x), y) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def averaged(device: torch.device) -> Step:
    """A moving average of the weights beside the model."""
    model = ConvNet().to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(batch_size: int) -> None:
        x, y = images(batch_size, device)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.01)

    return step


def adversarial(device: torch.device) -> Step:
    """Two networks and two optimizers."""
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
    critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
    makes = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
    judges = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.999))

    def step(batch_size: int) -> None:
        real = torch.randn(batch_size, 16, device=device)
        fake = generator(torch.randn(batch_size, 8, device=device))
        judges.zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        judges.step()
        makes.zero_grad()
        (-critic(fake).mean()).backward()
        makes.step()

    return step


def recurrent(device: torch.device) -> Step:
    """An LSTM."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
            self.head = nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    model = Net().to(device)
    optimizer = torch.optim.RMSprop(model.parameters())

    def step(batch_size: int) -> None:
        F.mse_loss(
            model(torch.randn(batch_size, 7, 8, device=device)), torch.zeros(batch_size, 2, device=device)
        ).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mixed(dtype: torch.dtype, scaled: bool) -> Callable[[torch.device], Step]:
    """Autocast, with a GradScaler where fp16 needs one."""

    def setup(device: torch.device) -> Step:
        model = ConvNet().to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda", init_scale=1.0, enabled=scaled)

        def step(batch_size: int) -> None:
            x, y = images(batch_size, device)
            with torch.autocast("cuda", dtype):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    return setup


STEPS: dict[str, Callable[[torch.device], Step]] = {
    "convnet": convnet,
    "channels last": channels_last,
    "mlp sgd": mlp_with(lambda p: torch.optim.SGD(p, 0.1)),
    "mlp adam foreach": mlp_with(torch.optim.Adam),
    "mlp adam loop": mlp_with(lambda p: torch.optim.Adam(p, foreach=False)),
    "mlp adam fused": mlp_with(lambda p: torch.optim.Adam(p, fused=True)),
    "mlp adamw amsgrad": mlp_with(lambda p: torch.optim.AdamW(p, amsgrad=True)),
    "mlp adamax": mlp_with(torch.optim.Adamax),
    "mlp nadam": mlp_with(torch.optim.NAdam),
    "mlp radam": mlp_with(torch.optim.RAdam),
    "mlp asgd": mlp_with(torch.optim.ASGD),
    "mlp rprop": mlp_with(torch.optim.Rprop),
    "mlp adadelta": mlp_with(torch.optim.Adadelta),
    "mlp adafactor": mlp_with(torch.optim.Adafactor),
    "mlp sgd fused": mlp_with(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True)),
    "transformer": transformer,
    "embeddings": embeddings,
    "checkpointed": checkpointed(False),
    "checkpointed reentrant": checkpointed(True),
    "accumulating": accumulating,
    "averaged": averaged,
    "adversarial": adversarial,
    "recurrent": recurrent,
    "autocast bf16": mixed(torch.bfloat16, False),
    "autocast fp16": mixed(torch.float16, True),
}
