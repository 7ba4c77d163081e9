"""StyleGAN on FFHQ: 1024 x 1024, generator and discriminator, logistic loss with R1, fp32, an Adam for each.

Settings: the StyleGAN row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with https://github.com/NVlabs/stylegan,
train.py: non-saturating logistic loss, R1 with weight 10 in every step, style mixing in nine of ten, Adam with betas 0
and 0.99, epsilon 1e-8 and learning rate 3e-3, a moving average of the generator's weights.
Model: Karras et al., "A Style-Based Generator Architecture for Generative Adversarial Networks", figure 1 and appendix C,
https://arxiv.org/abs/1812.04948, configuration F; section 2 gives the generator 26.2 million parameters. The
discriminator is that of Karras et al., "Progressive Growing of GANs", table 2, https://arxiv.org/abs/1710.10196 (23.1
million).
A step trains the discriminator and then the generator, each on images generated afresh.
Differences: the last stage of progressive growing, when all layers are at work and nothing is blended in; all styles are
mixed at a random layer; convolution and resampling are one operator at every size, where the original has two below 128;
the discriminator's deviation is over the whole batch, where the original takes groups of 4 and stops on other batches.
Options: those of every adapter, `size` (a power of two), `width` (channels at most, 512), `mapping` (layers, 8).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.adversarial import Adversarial, Networks
from whichgpu.zoo.options import Options, read_settings, refuse_adversarial
from whichgpu.zoo.training import make_workload, random_images

NAME = "stylegan"
SETTINGS = {"precision": "fp32", "optimizer": "adam", "size": "1024"}
LATENT = 512
SMALLEST = 8
R1_WEIGHT = 10.0
GAIN = 2**0.5


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="images",
        default_batch_size=4,
        description="StyleGAN, image generation",
    )


def make_recipe(options: Mapping[str, str]) -> Adversarial:
    """Networks, data and losses of the workload."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = refuse_adversarial(NAME, read_settings(reader))
    size, width, mapping = reader.count("size", 1024), reader.count("width", 512), reader.count("mapping", 8)
    reader.finish()
    if size < SMALLEST or size & (size - 1):
        raise WorkloadError(f"{NAME}: size={size} is not a power of two of {SMALLEST} or more")

    def make_networks() -> Networks:
        generator, average = Generator(size, width, mapping), Generator(size, width, mapping).requires_grad_(False)
        average.load_state_dict(generator.state_dict())
        return Networks(generator=generator, discriminator=Discriminator(size, width), average=average)

    return Adversarial(
        where=NAME,
        settings=settings,
        make_model=make_networks,
        make_batch=lambda count, device, dtype: random_images((count, 3, size, size), device, dtype),
        train=train,
        optimizer_arguments={"lr": 3e-3, "betas": (0.0, 0.99), "eps": 1e-8},
        sizes={"size": size},
    )


# ---- the step ----


def train(
    networks: Networks, images: torch.Tensor, generator: torch.optim.Optimizer, discriminator: torch.optim.Optimizer
) -> torch.Tensor:
    """One update of the discriminator, one of the generator, and the moving average; the generator's loss."""
    networks.generator.requires_grad_(False)
    discriminator_loss(networks, images).backward()
    discriminator.step()
    discriminator.zero_grad()
    networks.generator.requires_grad_(True)

    networks.discriminator.requires_grad_(False)
    loss = F.softplus(-networks.discriminator(networks.generator(*latents(images)))).mean()
    loss.backward()
    generator.step()
    generator.zero_grad()
    networks.discriminator.requires_grad_(True)
    with torch.no_grad():
        for mean, weight in zip(networks.average.parameters(), networks.generator.parameters(), strict=True):
            mean.lerp_(weight, 1e-3)
    return loss.detach()


def discriminator_loss(networks: Networks, images: torch.Tensor) -> torch.Tensor:
    """Logistic loss with the squared gradient at real images (R1)."""
    fake = networks.discriminator(networks.generator(*latents(images)))
    images = images.detach().requires_grad_(True)
    real = networks.discriminator(images)
    (slope,) = torch.autograd.grad(real.sum(), images, create_graph=True)
    penalty = slope.square().sum(dim=(1, 2, 3))
    return (F.softplus(fake) + F.softplus(-real)).mean() + R1_WEIGHT / 2 * penalty.mean()


def latents(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two latent vectors for each image, whose styles are mixed."""
    first, second = torch.randn(2, len(images), LATENT, device=images.device, dtype=images.dtype)
    return first, second


# ---- layers ----


class Equalized(nn.Module):
    """A weight that is scaled where it is used, so that all learn at the same pace, and a bias."""

    def __init__(self, *shape: int, gain: float = GAIN, pace: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        fan_in = torch.Size(shape[1:]).numel()
        self.weight = nn.Parameter(torch.randn(shape) / pace)
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None
        self.scale, self.pace = gain * fan_in**-0.5 * pace, pace

    def scaled_bias(self) -> torch.Tensor | None:
        """The bias at its pace."""
        return None if self.bias is None else self.bias * self.pace


class Dense(Equalized):
    """Fully connected."""

    def __init__(self, inputs: int, outputs: int, **arguments: float) -> None:
        super().__init__(outputs, inputs, **arguments)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., outputs)."""
        return F.linear(hidden, self.weight * self.scale, self.scaled_bias())


class Convolution(Equalized):
    """Of odd size; `up` doubles height and width as well, `down` halves them."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int = 3,
        *,
        up: bool = False,
        down: bool = False,
        gain: float = GAIN,
        bias: bool = True,
    ) -> None:
        super().__init__(outputs, inputs, size, size, gain=gain, bias=bias)
        self.up, self.down = up, down

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(images, outputs, height, width)."""
        weight, bias = self.weight * self.scale, self.scaled_bias()
        if self.up:
            return F.conv_transpose2d(hidden, spread(weight.transpose(0, 1)), bias, stride=2, padding=1)
        if self.down:
            return F.conv2d(hidden, spread(weight) / 4, bias, stride=2, padding=1)
        return F.conv2d(hidden, weight, bias, padding=weight.shape[-1] // 2)


def spread(weight: torch.Tensor) -> torch.Tensor:
    """A 3 x 3 kernel as the 4 x 4 one that resamples by two as well."""
    padded = F.pad(weight, (1, 1, 1, 1))
    return padded[..., 1:, 1:] + padded[..., :-1, 1:] + padded[..., 1:, :-1] + padded[..., :-1, :-1]


def blur(hidden: torch.Tensor) -> torch.Tensor:
    """The binomial 3 x 3 filter on each channel."""
    line = hidden.new_tensor([0.25, 0.5, 0.25])
    kernel = torch.outer(line, line).expand(hidden.shape[1], 1, 3, 3)
    return F.conv2d(hidden, kernel, padding=1, groups=hidden.shape[1])


def channels_at(size: int, width: int) -> int:
    """Channels of the layers at a height and width."""
    return max(min(16 * width * 2 // size, width), 1)


# ---- the networks ----


class Generator(nn.Module):
    """Mapping network and synthesis network: images from two latent vectors each, mixed at a random layer."""

    def __init__(self, size: int, width: int, mapping: int) -> None:
        super().__init__()
        self.mapping = nn.ModuleList(Dense(LATENT, LATENT, pace=0.01) for _ in range(mapping))
        sizes = [4 * 2**level for level in range((size // 4).bit_length())]
        self.start = nn.Parameter(torch.ones(1, channels_at(4, width), 4, 4))
        self.layers = nn.ModuleList([StyledLayer(None, channels_at(4, width)), styled(4, width)])
        for before, after in itertools.pairwise(sizes):
            self.layers.extend(
                [StyledLayer(channels_at(before, width), channels_at(after, width)), styled(after, width)]
            )
        self.to_rgb = Convolution(channels_at(size, width), 3, 1, gain=1.0)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """(images, 3, size, size)."""
        styles = [self.map(first), self.map(second)]
        crossover = torch.randint(len(self.layers), (), device=first.device)
        hidden = self.start.expand(len(first), -1, -1, -1)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, torch.where(crossover > number, styles[0], styles[1]))
        return self.to_rgb(hidden)

    def map(self, latent: torch.Tensor) -> torch.Tensor:
        """The latent vector in the space of styles."""
        hidden = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + 1e-8)
        for layer in self.mapping:
            hidden = F.leaky_relu(layer(hidden), 0.2)
        return hidden


class StyledLayer(nn.Module):
    """Convolution (none in the very first layer), noise, bias, leaky ReLU, normalisation, and the style."""

    def __init__(self, inputs: int | None, channels: int, *, up: bool = True) -> None:
        super().__init__()
        self.convolution, self.up = None, up
        if inputs is not None:
            self.convolution = Convolution(inputs, channels, up=up, bias=False)
        self.noise = nn.Parameter(torch.zeros(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))
        self.style = Dense(LATENT, 2 * channels, gain=1.0)

    def forward(self, hidden: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """With the style's mean and deviation."""
        if self.convolution is not None:
            hidden = self.convolution(hidden)
            hidden = blur(hidden) if self.up else hidden
        noise = torch.randn(len(hidden), 1, *hidden.shape[2:], device=hidden.device, dtype=hidden.dtype)
        hidden = F.leaky_relu(hidden + noise * self.noise + self.bias, 0.2)
        deviation, mean = self.style(style)[..., None, None].chunk(2, dim=1)
        return F.instance_norm(hidden, eps=1e-8) * (deviation + 1) + mean


def styled(size: int, width: int) -> StyledLayer:
    """The second layer of a height and width."""
    return StyledLayer(channels_at(size, width), channels_at(size, width), up=False)


class Discriminator(nn.Module):
    """One number for each image."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.from_rgb = Convolution(3, channels_at(size, width), 1)
        sizes = [size // 2**level for level in range((size // 4).bit_length() - 1)]
        self.blocks = nn.ModuleList(Halving(channels_at(at, width), channels_at(at // 2, width)) for at in sizes)
        channels = channels_at(4, width)
        self.last = Convolution(channels + 1, channels)
        self.dense, self.answer = Dense(16 * channels, channels), Dense(channels, 1, gain=1.0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(images, 1)."""
        hidden = F.leaky_relu(self.from_rgb(images), 0.2)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = F.leaky_relu(self.last(with_deviation(hidden)), 0.2)
        return self.answer(F.leaky_relu(self.dense(hidden.flatten(1)), 0.2))


class Halving(nn.Module):
    """A convolution, a blur, and a convolution to half the height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = Convolution(inputs, inputs)
        self.second = Convolution(inputs, outputs, down=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """With twice the channels, up to the most there are."""
        hidden = F.leaky_relu(self.first(hidden), 0.2)
        return F.leaky_relu(self.second(blur(hidden)), 0.2)


def with_deviation(hidden: torch.Tensor) -> torch.Tensor:
    """A further channel: how much the images of the batch differ, on average."""
    apart = hidden - hidden.mean(0, keepdim=True)
    deviation = (apart.square().mean(0, keepdim=True) + 1e-8).sqrt().mean(dim=(1, 2, 3), keepdim=True)
    return torch.cat([hidden, deviation.expand(len(hidden), 1, *hidden.shape[2:])], dim=1)
