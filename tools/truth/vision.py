"""Image classifiers, old and new: plain, depthwise, grouped, attention, channels_last, every precision."""

from __future__ import annotations

import copy

import timm
import torch
import torchvision
from torch import nn
from transformers import SwinConfig, SwinForImageClassification


def _batch(device, batch_size, image_size, classes=1000):
    images = torch.randn(batch_size, 3, image_size, image_size, device=device)
    return images, torch.randint(0, classes, (batch_size,), device=device)


def alexnet_sgd_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    model = torchvision.models.alexnet(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def vgg16_sgd_tf32(device, *, image_size=224):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = torchvision.models.vgg16(weights=None, init_weights=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, nesterov=True)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def resnet50_channels_last_fp16(device, *, image_size=224):
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def mobilenet_v3_rmsprop_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v3_large(weights=None).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001, alpha=0.9, momentum=0.9, weight_decay=1e-5)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def efficientnet_b0_ema_channels_last_bf16amp(device, *, image_size=224):
    torch.manual_seed(0)
    model = timm.create_model("efficientnet_b0", drop_path_rate=0.2)
    model = model.to(device).to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def update_average():
        with torch.no_grad():
            for target, source in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                if target.is_floating_point():
                    target.lerp_(source, 0.001)
                else:
                    target.copy_(source)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        images = images.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        update_average()

    return step


def swin_tiny_timm_bf16amp(device):
    torch.manual_seed(0)
    model = timm.create_model("swin_tiny_patch4_window7_224", drop_path_rate=0.2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)

    def step(batch_size):
        images, labels = _batch(device, batch_size, 224)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def swin_tiny_hf_fp32(device):
    torch.manual_seed(0)
    model = SwinForImageClassification(SwinConfig(num_labels=1000)).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        images, labels = _batch(device, batch_size, 224)
        optimizer.zero_grad()
        model(pixel_values=images, labels=labels).loss.backward()
        optimizer.step()

    return step


def deit_small_fused_clip_fp16(device):
    torch.manual_seed(0)
    model = timm.create_model("deit_small_patch16_224").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        images, labels = _batch(device, batch_size, 224)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def densenet121_no_tf32_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    model = torchvision.models.densenet121(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def resnext50_benchmark_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnext50_32x4d(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def mobilenet_v2_benchmark_channels_last_fp16(device, *, image_size=224):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.mobilenet_v2(weights=None).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        images = images.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def resnet34_benchmark_bf16amp(device, *, image_size=224):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet34(weights=None).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def regnety_benchmark_fp32(device, *, image_size=224):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = timm.create_model("regnety_016").to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def resnet18_cifar_adam_forloop_fp32(device, *, image_size=32):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size, 10)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def inception_v3_rmsprop_fp32(device, *, image_size=299):
    torch.manual_seed(0)
    model = torchvision.models.inception_v3(weights=None, init_weights=False).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001, eps=1.0)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs.logits, labels)
        loss = loss + 0.4 * nn.functional.cross_entropy(outputs.aux_logits, labels)
        loss.backward()
        optimizer.step()

    return step


def vit_base_pure_bf16(device):
    torch.manual_seed(0)
    model = timm.create_model("vit_base_patch16_224").to(device, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(batch_size):
        images, labels = _batch(device, batch_size, 224)
        optimizer.zero_grad()
        logits = model(images.bfloat16())
        loss = nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()

    return step


def convnext_small_checkpoint_bf16amp(device, *, image_size=224):
    torch.manual_seed(0)
    model = timm.create_model("convnext_small").to(device)
    model.set_grad_checkpointing(True)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch_size):
        images, labels = _batch(device, batch_size, image_size)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step
