"""What fairseq did in April 2019, for its two workloads with `code=2019`: first batch, loss, and training in fp16.

Source: https://github.com/pytorch/fairseq at 0.6.2: data/language_pair_dataset.py (get_dummy_batch), trainer.py
(dummy_train_step), criterions/label_smoothed_cross_entropy.py, optim/fp16_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from whichgpu.zoo.training import Recipe, make_optimizer, micro_batches, set_tf32

FIRST_LENGTH = 128  # tokens of each sentence of the made-up batch that training begins with, which fills --max-tokens
SMOOTHING = 0.1
LOSS_SCALE = 128.0


def smoothed_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Label smoothing over log-probabilities of the whole vocabulary in float32, which are gathered from and summed."""
    rates = F.log_softmax(logits.flatten(0, -2), dim=-1, dtype=torch.float32)
    own = -rates.gather(-1, wanted.flatten().unsqueeze(-1)).mean()
    others = -rates.sum(-1, keepdim=True).mean()
    return (1 - SMOOTHING) * own + SMOOTHING / rates.shape[-1] * others


@dataclass(frozen=True, kw_only=True)
class Half(Recipe):
    """Weights and gradients in fp16 for the model, and all of them once more in float32, in one row, for the optimizer."""

    def setup(self, device: torch.device | str) -> Callable[[int], torch.Tensor]:
        """Build model and optimizer on `device`; the step returns the last micro batch's loss, detached."""
        device = torch.device(device)
        set_tf32(self.settings.precision)
        model = self.make_model().train().to(device).half()
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        row = torch.nn.Parameter(torch.empty(sum(map(torch.numel, weights)), device=device))
        row.grad = torch.zeros_like(row)
        places = [weight.numel() for weight in weights]
        with torch.no_grad():
            for part, weight in zip(row.split(places), weights, strict=True):
                part.copy_(weight.flatten())
        optimizer = make_optimizer([row], self.settings, **self.optimizer_arguments)

        def step(batch_size: int) -> torch.Tensor:
            for size in micro_batches(batch_size, self.settings.accumulate, self.where):
                loss = self.compute_loss(model, self.make_batch(size, device, torch.float16))
                (loss * (LOSS_SCALE / self.settings.accumulate)).backward()
            with torch.no_grad():
                for part, weight in zip(row.grad.split(places), weights, strict=True):
                    part.copy_(weight.grad.flatten())
                row.grad.mul_(1 / LOSS_SCALE)
                if self.settings.clip is not None:
                    torch.nn.utils.clip_grad_norm_([row], self.settings.clip)
                optimizer.step()
                for part, weight in zip(row.split(places), weights, strict=True):
                    weight.copy_(part.view_as(weight))
                    weight.grad.zero_()
            return loss.detach()

        return step
