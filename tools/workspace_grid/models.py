"""Whole training steps of real models, recorded operator by operator: the layouts and strides people really meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workspace_grid.points import BF16, F16, Point

nn, F = torch.nn, torch.nn.functional
Step = Callable[[str], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]


def timm_model(name: str, batch: int, side: int) -> Step:
    def build(device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
        import timm

        x = torch.randn(batch, 3, side, side, device=device)
        y = torch.randint(0, 1000, (batch,), device=device)
        return timm.create_model(name).to(device), lambda m: F.cross_entropy(m(like(x, m)), y)

    return build


def like(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """The input in the model's layout and dtype, as a user of channels_last or of pure bf16 gives it."""
    x = x.to(next(model.parameters()).dtype)
    if getattr(model, "wants_channels_last", False):
        return x.contiguous(memory_format=torch.channels_last)
    return x


def segmentation(name: str, batch: int, side: int) -> Step:
    def build(device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
        from torchvision.models import segmentation as zoo

        x = torch.randn(batch, 3, side, side, device=device)
        y = torch.randint(0, 21, (batch, side, side), device=device)
        model = getattr(zoo, name)(weights=None, weights_backbone=None).to(device)
        return model, lambda m: F.cross_entropy(m(like(x, m))["out"], y)

    return build


def detection(batch: int) -> Step:
    def build(device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
        from torchvision.models import detection as zoo

        images = [torch.rand(3, 480, 640, device=device) for _ in range(batch)]
        boxes = torch.tensor([[10.0, 20.0, 200.0, 220.0], [50.0, 60.0, 300.0, 400.0]], device=device)
        targets = [{"boxes": boxes, "labels": torch.tensor([1, 2], device=device)} for _ in range(batch)]
        model = zoo.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).to(device)
        return model, lambda m: sum(m(images, targets).values())

    return build


def unet(batch: int, side: int, dims: int, base: int) -> Step:
    def build(device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
        from workspace_grid.nets import UNet

        x = torch.randn(batch, 1, *[side] * dims, device=device)
        y = torch.randint(0, 2, (batch, *[side] * dims), device=device)
        return UNet(base, 4, dims, 1).to(device), lambda m: F.cross_entropy(m(like(x, m) if dims == 2 else x), y)

    return build


def language(kind: str, batch: int, length: int, **more: Any) -> Step:
    def build(device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
        import transformers

        ids = torch.randint(0, 1000, (batch, length), device=device)
        if kind == "t5":
            config = transformers.T5Config(
                vocab_size=32128,
                d_model=256,
                d_ff=1024,
                num_layers=2,
                num_heads=8,
                d_kv=32,
                decoder_start_token_id=0,
            )
            model: Any = transformers.T5ForConditionalGeneration(config)
        elif kind == "whisper":
            config = transformers.WhisperConfig(
                d_model=384, encoder_layers=2, decoder_layers=2, max_target_positions=448
            )
            model = transformers.WhisperForConditionalGeneration(config).to(device)
            sound = torch.randn(batch, 80, 3000, device=device)
            return model, lambda m: m(input_features=sound, labels=ids[:, :64]).loss
        elif kind == "bert":
            config = transformers.BertConfig(num_hidden_layers=2)
            model = transformers.BertForMaskedLM(config)
        elif kind == "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2))
        elif kind == "wav2vec2":
            config = transformers.Wav2Vec2Config(num_hidden_layers=2)
            model = transformers.Wav2Vec2ForSequenceClassification(config).to(device)
            sound, label = (
                torch.randn(batch, 16000, device=device),
                torch.zeros(batch, dtype=torch.long, device=device),
            )
            return model, lambda m: m(input_values=sound, labels=label).loss
        elif kind == "mixtral":
            config = transformers.MixtralConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
                                                num_key_value_heads=2, vocab_size=32000, num_local_experts=4)  # fmt: skip
            model = transformers.MixtralForCausalLM(config)
        else:
            config = transformers.LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=2, num_attention_heads=8,
                                              num_key_value_heads=2, vocab_size=32000)  # fmt: skip
            model = transformers.LlamaForCausalLM(config)
        return model.to(device), lambda m: m(input_ids=ids, labels=ids).loss

    return build


def encoder(batch: int) -> Step:
    def build(device: str) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
        x = torch.randn(batch, 128, 256, device=device)
        padding = torch.zeros(batch, 128, dtype=torch.bool, device=device)
        padding[:, 100:] = True
        return model, lambda m: m(x, src_key_padding_mask=padding).float().pow(2).mean()

    return build


MODES = ("fp32", "autocast_bf16", "autocast_fp16", "bf16", "channels_last_autocast_bf16", "channels_last_fp32", "strict_fp32",
         "benchmark_autocast_fp16")  # fmt: skip


def point(label: str, build: Step, mode: str) -> Point:
    def prepare(device: str) -> Callable[[], Any]:
        model, loss_of = build(device)
        if mode == "bf16":
            model = model.to(BF16)
        if mode.startswith("channels_last"):
            model = model.to(memory_format=torch.channels_last)
            model.wants_channels_last = True  # type: ignore[assignment]
        optimizer = torch.optim.AdamW(model.parameters())
        half = {"autocast_bf16": BF16, "autocast_fp16": F16}.get(
            mode.removeprefix("channels_last_").removeprefix("benchmark_")
        )

        def run() -> None:
            with torch.autocast(device if device != "meta" else "cuda", half or BF16, enabled=half is not None):
                loss = loss_of(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    settings = {"benchmark": mode.startswith("benchmark"), "conv_tf32": mode != "strict_fp32"}
    return Point(f"model/{label}/{mode}", prepare, settings, "model")


def points() -> list[Point]:
    image = [("resnet50", 224), ("nasnetalarge", 331), ("convnext_tiny", 224), ("efficientnet_b0", 224), ("vgg16", 224),
             ("vit_base_patch16_224", 224), ("mobilenetv3_large_100", 224), ("densenet121", 224),
             ("swin_tiny_patch4_window7_224", 224), ("resnext50_32x4d", 224), ("regnety_032", 224), ("inception_v3", 299)]  # fmt: skip
    steps: list[tuple[str, Step, tuple[str, ...]]] = []
    for batch in (16, 4):
        for name, side in image:
            wanted = MODES if name in ("resnet50", "convnext_tiny", "efficientnet_b0") else MODES[:6:2]
            if name in ("vit_base_patch16_224", "swin_tiny_patch4_window7_224"):
                wanted = MODES[:4]
            steps.append(
                (
                    f"{name}/{batch}",
                    timm_model(name, batch if name != "nasnetalarge" else batch // 2, side),
                    wanted,
                )
            )
        steps += [
            (
                f"deeplabv3/{batch // 4}",
                segmentation("deeplabv3_resnet50", max(2, batch // 4), 512),
                MODES[:2],
            ),
            (f"unet/{batch // 4}", unet(max(1, batch // 4), 256, 2, 64), MODES[:2] + MODES[4:6]),
            (f"unet3d/{batch // 4}", unet(max(1, batch // 8), 64, 3, 32), MODES[:2]),
            (f"fasterrcnn/{max(1, batch // 8)}", detection(max(1, batch // 8)), MODES[:2]),
            (f"bert/{batch}", language("bert", batch, 128), MODES[:4]),
            (f"gpt2/{batch}", language("gpt2", batch, 512), MODES[:4]),
            (f"llama/{batch}", language("llama", batch, 512), MODES[:4]),
            (f"t5/{batch}", language("t5", batch, 128), MODES[:2]),
            (f"whisper/{batch}", language("whisper", max(1, batch // 4), 64), MODES[:2]),
            (f"wav2vec2/{batch}", language("wav2vec2", max(1, batch // 4), 64), MODES[:2]),
            (f"mixtral/{batch}", language("mixtral", batch, 128), MODES[1:4:2]),
            (f"encoder/{batch}", encoder(batch), MODES[:2]),
        ]
    half = len(steps) // 2  # the first batch size in every mode first, the modes in turn
    return [
        point(label, step, modes[i])
        for part in (steps[:half], steps[half:])
        for i in range(len(MODES))
        for label, step, modes in part
        if i < len(modes)
    ]
