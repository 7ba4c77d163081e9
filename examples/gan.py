"""Two networks and two optimizers in one step: a small GAN, in fp32. Speed is counted in images.

whichgpu fit examples/gan.py --batch-size 64
"""

import torch
import torch.nn.functional as F
from torch import nn

from whichgpu import describe

LATENT = 128


def generator():
    """Noise to 32 x 32 images."""
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 256, 8),
        nn.BatchNorm2d(256),
        nn.ReLU(),
        nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.ConvTranspose2d(128, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator():
    """32 x 32 images to one logit."""
    return nn.Sequential(
        nn.Conv2d(3, 128, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(128, 256, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(256, 1, 8),
        nn.Flatten(0),
    )


@describe(unit="images", name="small GAN", default_batch_size=64)
def setup(device):
    """Build both networks; a step trains the discriminator, then the generator."""
    make, judge = generator().to(device), discriminator().to(device)
    make_optimizer = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step(batch_size):
        real = torch.randn(batch_size, 3, 32, 32, device=device)
        fake = make(torch.randn(batch_size, LATENT, 1, 1, device=device))
        ones, zeros = torch.ones(batch_size, device=device), torch.zeros(batch_size, device=device)

        loss = F.binary_cross_entropy_with_logits(judge(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
        loss.backward()
        judge_optimizer.step()
        judge_optimizer.zero_grad()

        F.binary_cross_entropy_with_logits(judge(fake), ones).backward()
        make_optimizer.step()
        make_optimizer.zero_grad()
        judge_optimizer.zero_grad()

    return step
