"""Five steps through torch.compile: measured apart, because AOTAutograd and Inductor decide what is kept."""

from __future__ import annotations

import timm
import torch
import torchvision
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel


def _classifier(device, model, optimizer, image_size, bf16):
    compiled = torch.compile(model, dynamic=False)

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size, device=device)
        labels = torch.randint(0, 1000, (batch_size,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()

    return step


def compiled_resnet18_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _classifier(device, model, optimizer, image_size, bf16=False)


def compiled_vit_small_bf16amp(device, *, name="vit_small_patch16_224"):
    torch.manual_seed(0)
    model = timm.create_model(name).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return _classifier(device, model, optimizer, 224, bf16=True)


def compiled_gpt2_bf16amp(device, *, seq=512, layers=6):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, use_cache=False)
    model = GPT2LMHeadModel(config).to(device)
    model.train()
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def compiled_bert_fp32(device, *, seq=128, layers=6):
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)
    model = BertForSequenceClassification(config).to(device)
    model.train()
    compiled = torch.compile(model, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        labels = torch.randint(0, 2, (batch_size,), device=device)
        optimizer.zero_grad()
        compiled(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()

    return step


def compiled_mlp_whole_step_fp32(device, *, width=2048, layers=8):
    """Forward, loss and backward of a plain network, with a normalisation and an activation worth fusing."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    model = nn.Sequential(*blocks, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    @torch.compile(dynamic=False)
    def loss_of(inputs, labels):
        return nn.functional.cross_entropy(model(inputs), labels)

    def step(batch_size):
        inputs = torch.randn(batch_size, width, device=device)
        labels = torch.randint(0, 10, (batch_size,), device=device)
        optimizer.zero_grad()
        loss_of(inputs, labels).backward()
        optimizer.step()

    return step
