"""Writes model_convs.json: every distinct convolution of well-known models, by shape, without its batch size.

Runs the models on the meta device (no weights, no GPU). Needs timm, torchvision and transformers. Run it again
only to add a model: the measurements in data refer to the shapes, not to this list.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from nets import UNet
from torch.utils._python_dispatch import TorchDispatchMode

TIMM = {
    "resnet50": 224, "resnet18": 224, "nasnetalarge": 331, "convnext_tiny": 224, "efficientnet_b0": 224,
    "efficientnet_b4": 380, "vgg16": 224, "vgg19_bn": 224, "vit_base_patch16_224": 224, "mobilenetv3_large_100": 224,
    "mobilenetv2_100": 224, "densenet121": 224, "inception_v3": 299, "inception_resnet_v2": 299, "xception41": 299,
    "resnext50_32x4d": 224, "regnety_032": 224, "swin_tiny_patch4_window7_224": 224, "inception_v4": 299,
    "pnasnet5large": 331, "wide_resnet50_2": 224, "hrnet_w18": 224, "efficientnetv2_rw_s": 288,
}  # fmt: skip


class Collect(TorchDispatchMode):
    """Keeps the arguments of each convolution, the batch left out."""

    def __init__(self, found: dict[str, list[str]], model: str) -> None:
        super().__init__()
        self.found, self.model = found, model

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            x, w, b, stride, padding, dilation, transposed, output_padding, groups = args[:9]
            key = json.dumps([list(x.shape[1:]), list(w.shape), b is not None, list(stride), list(padding),
                              list(dilation), transposed, list(output_padding), groups])  # fmt: skip
            names = self.found.setdefault(key, [])
            if self.model not in names:
                names.append(self.model)
        return func(*args, **(kwargs or {}))


def dcgan() -> torch.nn.Module:
    """The generator of DCGAN at 64 x 64."""
    nn = torch.nn
    layers: list[torch.nn.Module] = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False)]
    for a, b in ((512, 256), (256, 128), (128, 64), (64, 3)):
        layers.append(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False))
    return nn.Sequential(*layers)


def dcgan_discriminator() -> torch.nn.Module:
    """The discriminator of DCGAN at 64 x 64."""
    nn = torch.nn
    pairs = ((3, 64), (64, 128), (128, 256), (256, 512))
    layers: list[torch.nn.Module] = [nn.Conv2d(a, b, 4, 2, 1, bias=False) for a, b in pairs]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0, bias=False))


def main() -> None:
    found: dict[str, list[str]] = {}

    def run(name: str, model: torch.nn.Module, *inputs: torch.Tensor, **named: torch.Tensor) -> None:
        try:
            with Collect(found, name), torch.no_grad():
                model.train()(*inputs, **named)
        except Exception as error:  # a model that fails on meta is left out, and said
            print(name, type(error).__name__, str(error)[:200])

    with torch.device("meta"):
        for name, side in TIMM.items():
            run(name, timm.create_model(name), torch.empty(2, 3, side, side))
        run("dcgan", dcgan(), torch.empty(2, 100, 1, 1))
        run("dcgan_d", dcgan_discriminator(), torch.empty(2, 3, 64, 64))
        run("unet", UNet(64, 5, 2, 3), torch.empty(2, 3, 256, 256))
        run("unet512", UNet(64, 5, 2, 1), torch.empty(2, 1, 512, 512))
        run("unet3d", UNet(32, 4, 3, 1), torch.empty(2, 1, 64, 64, 64))
        run("r3d_18", torchvision.models.video.r3d_18(), torch.empty(2, 3, 16, 112, 112))
        run(
            "deeplabv3",
            torchvision.models.segmentation.deeplabv3_resnet50(weights_backbone=None),
            torch.empty(2, 3, 512, 512),
        )
        run(
            "fcn",
            torchvision.models.segmentation.fcn_resnet50(weights_backbone=None),
            torch.empty(2, 3, 512, 512),
        )
        run("alexnet", torchvision.models.alexnet(), torch.empty(2, 3, 224, 224))
        run("googlenet", torchvision.models.googlenet(init_weights=False), torch.empty(2, 3, 224, 224))
        run("squeezenet", torchvision.models.squeezenet1_1(), torch.empty(2, 3, 224, 224))
        run("shufflenet", torchvision.models.shufflenet_v2_x1_0(), torch.empty(2, 3, 224, 224))
        nn = torch.nn
        run("whisper", nn.Sequential(nn.Conv1d(80, 384, 3, padding=1), nn.Conv1d(384, 384, 3, 2, 1)),
            torch.empty(2, 80, 3000))  # fmt: skip
        widths = [(1, 10, 5), *[(512, 3, 2)] * 4, *[(512, 2, 2)] * 2]
        run("wav2vec2", nn.Sequential(*[nn.Conv1d(c, 512, k, s, bias=False) for c, k, s in widths]),
            torch.empty(2, 1, 160000))  # fmt: skip
        run("wav2vec2_pos", nn.Conv1d(768, 768, 128, padding=64, groups=16), torch.empty(2, 768, 499))
        run("mamba_conv", nn.Conv1d(1536, 1536, 4, padding=3, groups=1536), torch.empty(2, 1536, 1024))
        run("sd_vae", nn.Sequential(*[nn.Conv2d(c, c, 3, padding=1) for c in (128, 128)]),
            torch.empty(2, 128, 256, 256))  # fmt: skip
        for channels, side in ((320, 64), (640, 32), (1280, 16), (1280, 8)):
            run("sd_unet", nn.Conv2d(channels, channels, 3, padding=1), torch.empty(2, channels, side, side))
            run("sd_unet", nn.Conv2d(channels, channels, 3, 2, 1), torch.empty(2, channels, side, side))
            run(
                "sd_unet",
                nn.Conv2d(2 * channels, channels, 3, padding=1),
                torch.empty(2, 2 * channels, side, side),
            )
            run("sd_unet", nn.Conv2d(2 * channels, channels, 1), torch.empty(2, 2 * channels, side, side))
        for side in (32, 28):
            for a, b in ((1, 32), (3, 32), (32, 64), (64, 128), (3, 6), (6, 16), (16, 16), (16, 32)):
                run("small", nn.Conv2d(a, b, 3, padding=1), torch.empty(2, a, side, side))
                run("small", nn.Conv2d(a, b, 5), torch.empty(2, a, side, side))
        run("dit_patch", nn.Conv2d(4, 1152, 2, 2), torch.empty(2, 4, 32, 32))
        run("vit_patch14", nn.Conv2d(3, 1024, 14, 14), torch.empty(2, 3, 224, 224))
        run("vit_patch32", nn.Conv2d(3, 768, 32, 32), torch.empty(2, 3, 224, 224))
        run("videomae", nn.Conv3d(3, 768, (2, 16, 16), (2, 16, 16)), torch.empty(2, 3, 16, 224, 224))

    rows = [[*json.loads(key), names] for key, names in found.items()]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    Path(__file__).with_name("model_convs.json").write_text(f"[\n{lines}\n]\n")
    print(len(rows), "convolutions")


if __name__ == "__main__":
    main()
