"""A training step of one's own: a small convolutional network, bf16 autocast, AdamW.

whichgpu fit examples/mymodel.py:setup
"""

import torch
import torch.nn.functional as F
from torch import nn


def setup(device):
    """Build model and optimizer on `device`; return the function that runs one training step."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 1000),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size):
        images = torch.randn(batch_size, 3, 64, 64, device=device)
        labels = torch.randint(0, 1000, (batch_size,), device=device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
