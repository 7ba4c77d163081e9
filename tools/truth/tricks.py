"""What training loops do besides a plain step: accumulation, leaks, LoRA, LBFGS, evaluation, queues."""

from __future__ import annotations

import collections
import copy

import timm
import torch
import torchvision
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def _batch(device, batch_size, image_size, classes=1000):
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    return images, torch.randint(0, classes, (batch_size,), device=device)


def accumulation_clip_resnet34_fp32(device, *, image_size=224, parts=4):
    torch.manual_seed(0)
    model = torchvision.models.resnet34(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch_size):
        optimizer.zero_grad()
        for _ in range(parts):
            images, labels = _batch(device, batch_size, image_size)
            loss = nn.functional.cross_entropy(model(images), labels) / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def zero_grad_keeps_gradients_vit_fp32(device, *, name="vit_small_patch16_224"):
    torch.manual_seed(0)
    model = timm.create_model(name).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        images, labels = _batch(device, batch_size, 224)
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def losses_kept_alive_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = collections.deque(maxlen=4)
    running = torch.zeros((), device=device)

    def step(batch_size):
        nonlocal running
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        regularizer = sum(parameter.square().sum() for parameter in model.parameters())
        loss.backward()
        optimizer.step()
        running = running + loss + 1e-4 * regularizer
        history.append((logits, loss, images))

    return step


def evaluation_between_steps_resnet34_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    model = torchvision.models.resnet34(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch_size):
        model.train()
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            images, labels = _batch(device, 2 * batch_size, image_size)
            (model(images).argmax(dim=1) == labels).float().mean().item()

    return step


def lbfgs_closure_fp32(device, *, points=4096, width=512):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 1),
    ).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=10)

    def step(batch_size):
        inputs = torch.randn(batch_size * points, 64, device=device)
        wanted = inputs.sin().sum(dim=1, keepdim=True)

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            return loss

        optimizer.step(closure)

    return step


def second_derivatives_fp32(device, *, points=4096, width=256):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 1),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)

    def step(batch_size):
        place = torch.rand(batch_size * points, 2, device=device, requires_grad=True)
        value = model(place)
        (first,) = torch.autograd.grad(value.sum(), place, create_graph=True)
        (second_x,) = torch.autograd.grad(first[:, 0].sum(), place, create_graph=True)
        (second_y,) = torch.autograd.grad(first[:, 1].sum(), place, create_graph=True)
        residual = second_x[:, 0] + second_y[:, 1] - torch.sin(place[:, 0])
        optimizer.zero_grad()
        residual.square().mean().backward()
        optimizer.step()

    return step


def lora_gpt2_bf16amp(device, *, seq=1024, layers=12):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, use_cache=False)
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), lora).to(device)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def lora_llama_frozen_bf16_checkpoint(device, *, seq=1024, layers=12, hidden=1024):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=int(2.75 * hidden),
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=seq,
        use_cache=False,
    )
    base = LlamaForCausalLM(config).to(device, dtype=torch.bfloat16)
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    base.enable_input_require_grads()
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=modules))
    model = model.to(device)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step(batch_size):
        tokens = torch.randint(0, config.vocab_size, (batch_size, seq), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def frozen_backbone_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    backbone = torchvision.models.resnet50(weights=None)
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    backbone.layer4.requires_grad_(True)
    backbone.fc = nn.Linear(2048, 100)
    backbone = backbone.to(device)
    optimizer = torch.optim.AdamW([p for p in backbone.parameters() if p.requires_grad], lr=1e-3)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size, 100)
        optimizer.zero_grad()
        nn.functional.cross_entropy(backbone(images), labels).backward()
        optimizer.step()

    return step


def distillation_teacher_bf16amp(device, *, image_size=224, student="resnet18", teacher="resnet50"):
    torch.manual_seed(0)
    small, large = timm.create_model(student).to(device), timm.create_model(teacher).to(device).eval()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1, momentum=0.9)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            with torch.no_grad():
                target = (large(images) / 4).softmax(-1)
            logits = small(images)
            loss = nn.functional.cross_entropy(logits, labels)
            loss = loss + 16 * nn.functional.kl_div((logits / 4).log_softmax(-1), target, reduction="batchmean")
        loss.backward()
        optimizer.step()

    return step


def moco_queue_momentum_encoder_fp16(device, *, image_size=224, queue_length=16384):
    torch.manual_seed(0)
    encoder = torchvision.models.resnet18(weights=None, num_classes=128).to(device)
    momentum = copy.deepcopy(encoder).requires_grad_(False)
    queue = nn.functional.normalize(torch.randn(128, queue_length, device=device), dim=0)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type)
    place = 0

    def step(batch_size):
        nonlocal place
        first, second = (torch.randn(batch_size, 3, image_size, image_size, device=device) for _ in range(2))
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            query = nn.functional.normalize(encoder(first), dim=1)
            with torch.no_grad():
                for slow, fast in zip(momentum.parameters(), encoder.parameters(), strict=True):
                    slow.mul_(0.999).add_(fast, alpha=0.001)
                key = nn.functional.normalize(momentum(second), dim=1)
            positive = torch.einsum("nc,nc->n", query, key).unsqueeze(-1)
            logits = torch.cat([positive, query @ queue.clone()], dim=1) / 0.07
            loss = nn.functional.cross_entropy(logits, torch.zeros(batch_size, dtype=torch.long, device=device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        end = min(place + batch_size, queue_length)
        queue[:, place:end] = key.T[:, : end - place].float()
        place = end % queue_length

    return step


class _ScaledTanh(torch.autograd.Function):
    """A user's own autograd function that saves its input and its output."""

    @staticmethod
    def forward(ctx, inputs):
        output = 1.7159 * torch.tanh(inputs * 2 / 3)
        ctx.save_for_backward(inputs, output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        _, output = ctx.saved_tensors
        return gradient * (1.7159 * 2 / 3) * (1 - (output / 1.7159) ** 2)


def custom_function_mlp_fp32(device, *, width=4096, layers=6):
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(width, width) for _ in range(layers)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch_size):
        hidden = torch.randn(batch_size, width, device=device)
        wanted = torch.randn(batch_size, width, device=device)
        for layer in model:
            hidden = _ScaledTanh.apply(layer(hidden))
        optimizer.zero_grad()
        nn.functional.mse_loss(hidden, wanted).backward()
        optimizer.step()

    return step


def cuda_literal_resnet18_fp16(device, *, image_size=224):
    """Written for one kind of device only: `.cuda()` and the old names of automatic mixed precision."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    def step(batch_size):
        images = torch.randn(batch_size, 3, image_size, image_size).cuda(non_blocking=True)
        labels = torch.randint(0, 1000, (batch_size,)).cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def cuda_literal_mlp_mixer_fp32(device, *, name="mixer_s16_224"):
    """Asks for the device itself, as most published scripts do."""
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        raise RuntimeError("this script needs a GPU")
    model = timm.create_model(name).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        images = torch.randn(batch_size, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 1000, (batch_size,), device="cuda")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step
