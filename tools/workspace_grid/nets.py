# ruff: noqa: RUF007
"""Networks that no library carries."""

from __future__ import annotations

import torch


class UNet(torch.nn.Module):
    """The U-Net of 2015 with padded convolutions, in two or three dimensions."""

    def __init__(self, base: int, depth: int, dims: int, inputs: int) -> None:
        super().__init__()
        nn = torch.nn
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        up = nn.ConvTranspose2d if dims == 2 else nn.ConvTranspose3d
        self.pool = nn.functional.max_pool2d if dims == 2 else nn.functional.max_pool3d
        widths = [base * 2**i for i in range(depth)]

        def double(a: int, b: int) -> torch.nn.Module:
            return nn.Sequential(conv(a, b, 3, padding=1), nn.ReLU(), conv(b, b, 3, padding=1), nn.ReLU())

        self.down = nn.ModuleList(double(a, b) for a, b in zip([inputs, *widths[:-1]], widths, strict=True))
        self.ups = nn.ModuleList(up(b, a, 2, 2) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.merge = nn.ModuleList(double(2 * a, a) for a in widths[:-1])
        self.head = conv(base, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x, 2))
            kept.append(x)
        for i in reversed(range(len(self.ups))):
            x = self.merge[i](torch.cat([kept[i], self.ups[i](x)], 1))
        return self.head(x)
