"""Ten ordinary training steps: the 19 rows of the first H200 measurements, rebuilt from their descriptions.

Each function answers `setup(device) -> step(batch_size)`. Data is made on the device inside the step.
"""

from __future__ import annotations

import contextlib

import timm
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel


def _context(device, bf16):
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()


def _classifier(device, model, optimizer, image_size, classes, *, bf16):
    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        labels = torch.randint(0, classes, (batch_size,), device=device)
        optimizer.zero_grad()
        with _context(device, bf16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def convnet_fp32(device, *, image_size=64):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _classifier(device, model, optimizer, image_size, 10, bf16=False)


def _bert(device, bf16, seq, layers):
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    model = BertForSequenceClassification(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        labels = torch.randint(0, 2, (batch_size,), device=device)
        optimizer.zero_grad()
        with _context(device, bf16):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()

    return step


def bert128_fp32(device, *, seq=128, layers=12):
    return _bert(device, False, seq, layers)


def bert128_bf16amp(device, *, seq=128, layers=12):
    return _bert(device, True, seq, layers)


def _gpt2(device, bf16, seq, layers):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, use_cache=False)
    model = GPT2LMHeadModel(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        with _context(device, bf16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def gpt2_fp32(device, *, seq=1024, layers=12):
    return _gpt2(device, False, seq, layers)


def gpt2_bf16amp(device, *, seq=1024, layers=12):
    return _gpt2(device, True, seq, layers)


def _timm_sgd(device, name, image_size, bf16):
    torch.manual_seed(0)
    model = timm.create_model(name).to(device)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _classifier(device, model, optimizer, image_size, 1000, bf16=bf16)


def resnet50_fp32(device, *, image_size=224):
    return _timm_sgd(device, "resnet50", image_size, bf16=False)


def resnet50_bf16amp(device, *, image_size=224):
    return _timm_sgd(device, "resnet50", image_size, bf16=True)


def nasnetalarge_fp32(device, *, image_size=331):
    return _timm_sgd(device, "nasnetalarge", image_size, bf16=False)


def _timm_adamw(device, name, image_size, bf16):
    torch.manual_seed(0)
    model = timm.create_model(name).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return _classifier(device, model, optimizer, image_size, 1000, bf16=bf16)


def vit_b_fp32(device):
    return _timm_adamw(device, "vit_base_patch16_224", 224, bf16=False)


def convnext_t_amp(device, *, image_size=224):
    return _timm_adamw(device, "convnext_tiny", image_size, bf16=True)
