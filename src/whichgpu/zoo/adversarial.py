"""The training step of two networks that work against each other, each with an optimizer of its own.

What `training` is for one network; the two are built together, and what a step does with them is the workload's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from whichgpu.zoo.options import Settings
from whichgpu.zoo.training import make_optimizer, move, set_tf32

Optimizer = torch.optim.Optimizer


class Networks(nn.Module):
    """The networks of a workload: `generator` and `discriminator` are trained, further ones are not."""

    def __init__(self, **networks: nn.Module) -> None:
        super().__init__()
        for name, network in networks.items():
            self.add_module(name, network)


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """What a workload contributes; `setup` makes the training step of it."""

    where: str  # the workload's name, for messages
    settings: Settings
    make_model: Callable[[], Networks]
    make_batch: Callable[[int, torch.device, torch.dtype], Any]  # size, device, dtype of floating-point inputs
    train: Callable[[Networks, Any, Optimizer, Optimizer], torch.Tensor]  # updates both; answers a loss, detached
    optimizer_arguments: dict[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def setup(self, device: torch.device | str) -> Callable[[int], torch.Tensor]:
        """Build both networks and their optimizers on `device`; the step returns the generator's loss."""
        device = torch.device(device)
        set_tf32(self.settings.precision)
        networks = move(self.make_model().train(), device, self.settings, False)
        optimizers = [
            make_optimizer(network.parameters(), self.settings, **self.optimizer_arguments)
            for network in (networks.generator, networks.discriminator)
        ]

        def step(batch_size: int) -> torch.Tensor:
            return self.train(networks, self.make_batch(batch_size, device, torch.float32), *optimizers)

        return step
