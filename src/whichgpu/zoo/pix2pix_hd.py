"""Pix2PixHD on Cityscapes: label maps to images of 2048 x 1024, local enhancer on the global generator, fp32, Adam.

Settings: the Pix2Pix HD row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with https://github.com/NVIDIA/pix2pixHD,
train.py --netG local --ngf 32 --num_D 3 --resize_or_crop none with instance features: 35 labels, instance edges, three
channels of features that an encoder makes of the image and averages over each instance; least-squares loss, feature
matching with weight 10, perceptual loss over VGG-19 with weight 10, Adam with betas 0.5 and 0.999 and learning rate 2e-4.
Model: Wang et al., "High-Resolution Image Synthesis and Semantic Manipulation with Conditional GANs", sections 3.2 to 3.5
and appendix A, https://arxiv.org/abs/1711.11585. VGG-19: torchvision. Size: about 183 million parameters for the generator
(Liu et al., "Learning to Predict Layout-to-image Conditional Convolutions", table 4, https://arxiv.org/abs/1910.06809).
One forward pass makes both losses, and the generator is updated before the discriminator, as there.
Differences: generator and enhancer are trained together, as in the original after its tenth epoch; instance means are
computed for all instances at once, where the original loops over them; label and instance maps are random blocks.
Options: those of every adapter, `size` (height; twice as wide), `labels`, `instances` (an image), `width` (channels of
the enhancer, 32), `blocks` (residual blocks of the global generator, 9).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import vgg19

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.adversarial import Adversarial, Networks
from whichgpu.zoo.options import Options, read_settings, refuse_adversarial
from whichgpu.zoo.training import make_workload, random_images

NAME = "pix2pix-hd"
SETTINGS = {"precision": "fp32", "optimizer": "adam", "size": "1024"}
FEATURES = 3  # channels of instance features
ENCODER_WIDTH, DISCRIMINATOR_WIDTH = 16, 64
SCALES = 3  # discriminators
HALVINGS = 4  # of the global generator and of the encoder
STEP = 2 * 2**HALVINGS  # what the height is a multiple of
BLOCK = 32  # pixels of a side of the smallest region of one label
MATCHING_WEIGHT = PERCEPTUAL_WEIGHT = 10.0
VGG_SLICES = ((2, 1 / 32), (7, 1 / 16), (12, 1 / 8), (21, 1 / 4), (30, 1.0))  # end of each slice, and its weight


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="images",
        default_batch_size=1,
        description="Pix2PixHD, label map to image",
    )


def make_recipe(options: Mapping[str, str]) -> Adversarial:
    """Networks, data and losses of the workload."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = refuse_adversarial(NAME, read_settings(reader))
    size, width, blocks = reader.count("size", 1024), reader.count("width", 32), reader.count("blocks", 9)
    labels, instances = reader.count("labels", 35), reader.count("instances", 32)
    reader.finish()
    if size % STEP or size < 2 * STEP:
        raise WorkloadError(f"{NAME}: size={size} is not a multiple of {STEP} of {2 * STEP} or more")

    def make_networks() -> Networks:
        return Networks(
            generator=Generator(labels + 1 + FEATURES, width, blocks, instances),
            discriminator=Discriminators(labels + 1 + 3),
            perceptual=Perceptual(),
        )

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {
            "labels": random_regions(count, labels, size, device),
            "instances": random_regions(count, instances, size, device),
            "images": random_images((count, 3, size, 2 * size), device, dtype),
        }

    def train(networks: Networks, batch: dict[str, torch.Tensor], *optimizers: torch.optim.Optimizer) -> torch.Tensor:
        return update(networks, *losses(networks, labels, **batch), *optimizers)

    return Adversarial(
        where=NAME,
        settings=settings,
        make_model=make_networks,
        make_batch=make_batch,
        train=train,
        optimizer_arguments={"lr": 2e-4, "betas": (0.5, 0.999)},
        sizes={"size": size},
    )


def random_regions(count: int, kinds: int, size: int, device: torch.device) -> torch.Tensor:
    """Whole numbers below `kinds`, the same within each block of pixels: (images, 1, height, width)."""
    side = min(BLOCK, size)
    blocks = torch.randint(0, kinds, (count, 1, size // side, 2 * size // side), device=device)
    return blocks.repeat_interleave(side, dim=2).repeat_interleave(side, dim=3)


# ---- the step ----


def losses(
    networks: Networks, kinds: int, labels: torch.Tensor, instances: torch.Tensor, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The generator's and the discriminator's, over one and the same generated image."""
    one_hot = torch.zeros(len(labels), kinds, *labels.shape[2:], device=labels.device).scatter_(1, labels, 1.0)
    known = torch.cat([one_hot, edges(instances)], dim=1)
    fake = networks.generator(known, images, instances)
    discriminate = networks.discriminator
    seen_fake = discriminate(torch.cat([known, fake.detach()], dim=1))
    seen_real = discriminate(torch.cat([known, images], dim=1))
    discriminator_loss = (judged(seen_fake, 0.0) + judged(seen_real, 1.0)) / 2
    seen = discriminate(torch.cat([known, fake], dim=1))
    generator_loss = judged(seen, 1.0) + MATCHING_WEIGHT * matching(seen, seen_real)
    return generator_loss + PERCEPTUAL_WEIGHT * networks.perceptual(fake, images), discriminator_loss


def update(
    networks: Networks,
    generator_loss: torch.Tensor,
    discriminator_loss: torch.Tensor,
    generator: torch.optim.Optimizer,
    discriminator: torch.optim.Optimizer,
) -> torch.Tensor:
    """Both updates, the generator's first."""
    for loss, optimizer in ((generator_loss, generator), (discriminator_loss, discriminator)):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return generator_loss.detach()


def edges(instances: torch.Tensor) -> torch.Tensor:
    """One where a pixel and one beside it belong to different instances."""
    found = torch.zeros_like(instances, dtype=torch.bool)
    across = instances[..., 1:] != instances[..., :-1]
    down = instances[..., 1:, :] != instances[..., :-1, :]
    for part, change in ((found[..., 1:], across), (found[..., :-1], across)):
        part.logical_or_(change)
    for part, change in ((found[..., 1:, :], down), (found[..., :-1, :], down)):
        part.logical_or_(change)
    return found.float()


def judged(seen: list[list[torch.Tensor]], wanted: float) -> torch.Tensor:
    """Least-squares loss of the last layer of each discriminator."""
    return sum(F.mse_loss(layers[-1], torch.full_like(layers[-1], wanted)) for layers in seen)


def matching(seen: list[list[torch.Tensor]], real: list[list[torch.Tensor]]) -> torch.Tensor:
    """How far the discriminators' hidden layers are apart."""
    pairs = [pair for one, other in zip(seen, real, strict=True) for pair in list(zip(one, other, strict=True))[:-1]]
    return sum(F.l1_loss(fake, true.detach()) for fake, true in pairs) / SCALES


# ---- the generator ----


class Generator(nn.Module):
    """Encoder of instance features, global generator at half the size, and the enhancer around it."""

    def __init__(self, inputs: int, width: int, blocks: int, instances: int) -> None:
        super().__init__()
        self.instances = instances
        self.encoder = encoder()
        self.global_generator = nn.Sequential(*trunk(inputs, 2 * width, blocks))
        self.enter = nn.Sequential(*convolution(inputs, width, 7), *convolution(width, 2 * width, 3, 2))
        self.leave = nn.Sequential(
            *(Residual(2 * width) for _ in range(3)), *doubling(2 * width, width), *last(width, 3)
        )

    def forward(self, known: torch.Tensor, images: torch.Tensor, instances: torch.Tensor) -> torch.Tensor:
        """Images from labels, edges and the features of the instances."""
        features = mean_of_instances(self.encoder(images), instances, self.instances)
        large = torch.cat([known, features], dim=1)
        small = F.avg_pool2d(large, 3, stride=2, padding=1, count_include_pad=False)
        return self.leave(self.enter(large) + self.global_generator(small))


def mean_of_instances(features: torch.Tensor, instances: torch.Tensor, most: int) -> torch.Tensor:
    """Each pixel's features replaced by the mean over its instance."""
    place = instances.flatten(1).unsqueeze(1).expand(-1, features.shape[1], -1)
    flat = features.flatten(2)
    total = flat.new_zeros(*flat.shape[:2], most).scatter_add(2, place, flat)
    pixels = flat.new_zeros(*flat.shape[:2], most).scatter_add(2, place, torch.ones_like(flat))
    return (total / pixels.clamp(min=1)).gather(2, place).view_as(features)


class Residual(nn.Module):
    """Two 3 x 3 convolutions with instance norm, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *convolution(channels, channels, 3, reflect=True), *convolution(channels, channels, 3, reflect=True)[:-1]
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the input's shape."""
        return hidden + self.layers(hidden)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, *, reflect: bool = False) -> list[nn.Module]:
    """Convolution, instance norm, ReLU; reflected at the border where it is large or `reflect`."""
    norm = [nn.InstanceNorm2d(outputs), nn.ReLU(inplace=True)]
    if size == 7 or reflect:
        return [nn.ReflectionPad2d(size // 2), nn.Conv2d(inputs, outputs, size, stride), *norm]
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2), *norm]


def doubling(inputs: int, outputs: int) -> list[nn.Module]:
    """Twice the height and width."""
    layer = nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)
    return [layer, nn.InstanceNorm2d(outputs), nn.ReLU(inplace=True)]


def last(width: int, channels: int) -> list[nn.Module]:
    """To the channels of an image, between -1 and 1."""
    return [nn.ReflectionPad2d(3), nn.Conv2d(width, channels, 7), nn.Tanh()]


def trunk(inputs: int, width: int, blocks: int) -> list[nn.Module]:
    """Halvings, residual blocks and doublings, without the layer that makes an image of it."""
    layers, widths = convolution(inputs, width, 7), [width * 2**level for level in range(HALVINGS + 1)]
    for level in range(HALVINGS):
        layers += convolution(widths[level], widths[level + 1], 3, 2)
    layers += [Residual(widths[-1]) for _ in range(blocks)]
    for level in reversed(range(HALVINGS)):
        layers += doubling(widths[level + 1], widths[level])
    return layers


def encoder() -> nn.Sequential:
    """From the image to its features."""
    return nn.Sequential(*trunk(3, ENCODER_WIDTH, 0), *last(ENCODER_WIDTH, FEATURES))


# ---- the critics ----


class Discriminators(nn.Module):
    """The same network three times, for the image and its halves; the layers' outputs of each."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(patches(inputs) for _ in range(SCALES))

    def forward(self, images: torch.Tensor) -> list[list[torch.Tensor]]:
        """For each scale the output of each layer; the last is what counts as real or not."""
        seen = []
        for number, layers in enumerate(self.scales):
            if number:
                images = F.avg_pool2d(images, 3, stride=2, padding=1, count_include_pad=False)
            outputs = [images]
            for layer in layers:
                outputs.append(layer(outputs[-1]))
            seen.append(outputs[1:])
        return seen


def patches(inputs: int) -> nn.ModuleList:
    """Five convolutions of 4 x 4, of which each output sees a patch of the image."""
    width = DISCRIMINATOR_WIDTH
    layers = [nn.Sequential(nn.Conv2d(inputs, width, 4, 2, 2), nn.LeakyReLU(0.2, inplace=True))]
    for level, stride in enumerate((2, 2, 1)):
        layer = nn.Conv2d(width * 2**level, width * 2 ** (level + 1), 4, stride, 2)
        layers.append(nn.Sequential(layer, nn.InstanceNorm2d(layer.out_channels), nn.LeakyReLU(0.2, inplace=True)))
    layers.append(nn.Sequential(nn.Conv2d(8 * width, 1, 4, 1, 2)))
    return nn.ModuleList(layers)


class Perceptual(nn.Module):
    """How far two images are apart in the layers of a frozen VGG-19."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = vgg19(weights=None, init_weights=False).features[: VGG_SLICES[-1][0]].requires_grad_(False)

    def forward(self, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """The weighted sum over five layers."""
        with torch.no_grad():
            wanted = self.slices(real)
        pairs = zip(self.slices(fake), wanted, VGG_SLICES, strict=True)
        return sum(weight * F.l1_loss(one, other) for one, other, (_, weight) in pairs)

    def slices(self, images: torch.Tensor) -> list[torch.Tensor]:
        """The outputs at the end of each slice."""
        outputs, begin = [images], 0
        for end, _ in VGG_SLICES:
            outputs.append(self.layers[begin:end](outputs[-1]))
            begin = end
        return outputs[1:]
