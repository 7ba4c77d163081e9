"""Mamba-2 of 370 million parameters, a step of its pre-training: sequences of 2048 tokens, bf16 autocast, AdamW.

Settings: Dao and Gu, "Transformers are SSMs", https://arxiv.org/abs/2405.21060, sections 9.2 and D.2: sequences of 2048
tokens of the Pile, AdamW (betas 0.9 and 0.95, weight decay 0.1), gradients clipped to norm 1, mixed precision with weights
in float32, no dropout.
The settings are as remembered from the paper, not read again. Ours: the written-out layer.
Model: https://github.com/state-spaces/mamba, configuration of state-spaces/mamba2-370m: 48 layers of width 1024, state of
128, heads of 64, one group, tied embeddings. Which kernel: none of mamba-ssm's. The layer is written out in PyTorch as the
paper's listing 1 does (products within chunks of 64 tokens and between them); the fused Triton kernels keep less.
Options: those of every adapter; `seq` (a multiple of 64), `layers`, `hidden` (a multiple of 32), `vocab`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

NAME = "mamba2-370m"
SETTINGS = {"precision": "bf16", "optimizer": "adamw", "weight_decay": "0.1", "clip": "1.0", "seq": "2048"}
OPTIMIZER = {"lr": 1.5e-3, "betas": (0.9, 0.95)}
STATE, HEAD, EXPAND, KERNEL, CHUNK = 128, 64, 2, 4, 64


class Mixer(nn.Module):
    """The layer of Mamba-2: a short convolution, the state-space model, and a gated norm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = EXPAND * hidden
        self.heads = self.inner // HEAD
        mixed = self.inner + 2 * STATE
        self.inputs = nn.Linear(hidden, self.inner + mixed + self.heads, bias=False)
        self.convolution = nn.Conv1d(mixed, mixed, KERNEL, groups=mixed, padding=KERNEL - 1)
        self.step_bias = nn.Parameter(torch.zeros(self.heads))
        self.log_decay = nn.Parameter(torch.zeros(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.inner, eps=1e-5)
        self.outputs = nn.Linear(self.inner, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """A sequence in, a sequence out."""
        gate, mixed, steps = self.inputs(hidden).split([self.inner, self.inner + 2 * STATE, self.heads], dim=-1)
        mixed = F.silu(self.convolution(mixed.transpose(1, 2))[..., : hidden.shape[1]].transpose(1, 2))
        values, keys, queries = mixed.split([self.inner, STATE, STATE], dim=-1)
        values = values.unflatten(-1, (self.heads, HEAD))
        steps = F.softplus(steps.float() + self.step_bias)
        output = state_space(values * steps[..., None], -steps * self.log_decay.exp(), keys, queries)
        output = (output + values * self.skip[:, None]).flatten(2)
        return self.outputs(self.norm(output * F.silu(gate)))


def state_space(values: Tensor, decays: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """What a linear state puts out: `values` (batch, time, heads, head), `decays` (batch, time, heads) as logarithms.

    `keys` and `queries` (batch, time, state) are shared by the heads. Time is cut into chunks: products within each, and
    one state of each that is handed on.
    """
    values, keys, queries = (part.unflatten(1, (-1, CHUNK)) for part in (values, keys, queries))
    decays = decays.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2)  # batch, heads, chunks, time
    since_start = decays.cumsum(-1)
    scores = (queries @ keys.transpose(-1, -2))[:, None] * segment_sums(decays).exp()
    inside = scores.to(values.dtype) @ values.permute(0, 3, 1, 2, 4)
    until_end = (since_start[..., -1:] - since_start).exp()
    states = torch.einsum("bcln,bhcl,bclhp->bhcpn", keys, until_end, values)
    first = torch.zeros_like(states[:, :, :1])
    between = segment_sums(F.pad(since_start[..., -1], (1, 0))).exp()
    handed_on = torch.einsum("bhzc,bhcpn->bhzpn", between, torch.cat([first, states], dim=2))[:, :, :-1]
    outside = torch.einsum("bcln,bhcpn,bhcl->bhclp", queries, handed_on, since_start.exp())
    return (inside + outside).permute(0, 2, 3, 1, 4).flatten(1, 2)


def segment_sums(decays: Tensor) -> Tensor:
    """Sums of `decays` over every stretch of time, from its end down to its start; minus infinity above the diagonal."""
    length = decays.shape[-1]
    ones = torch.ones(length, length, dtype=torch.bool, device=decays.device)
    spread = decays[..., None].expand(*decays.shape, length).masked_fill(~ones.tril(-1), 0)
    return spread.cumsum(-2).masked_fill(~ones.tril(), float("-inf"))


class Mamba2(nn.Module):
    """A language model of Mamba-2 layers."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, eps=1e-5) for _ in range(layers))
        self.mixers = nn.ModuleList(Mixer(hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next tokens; the embedding serves as the last layer, too."""
        hidden = self.embedding(tokens)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            normed = norm(hidden)
            mixed = checkpoint(mixer, normed, use_reentrant=False) if self.checkpointed else mixer(normed)
            hidden = hidden + mixed
        return F.linear(self.norm(hidden), self.embedding.weight)


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    sequence, layers = reader.count("seq", 2048), reader.count("layers", 48)
    hidden, vocabulary = reader.count("hidden", 1024), reader.count("vocab", 50288)
    reader.finish()
    if sequence % CHUNK or hidden * EXPAND % HEAD:
        raise WorkloadError(f"{NAME}: seq={sequence} must be a multiple of {CHUNK}, hidden={hidden} one of 32")

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: Mamba2(vocabulary, hidden, layers, settings.checkpoint),
        make_batch=lambda count, device, dtype: torch.randint(0, vocabulary, (count, sequence), device=device),
        compute_loss=compute_loss,
        optimizer_arguments=OPTIMIZER,
        sizes={"seq": sequence},
    )
    return make_workload(
        recipe,
        unit="tokens",
        items_per_sample=sequence,
        description="Mamba-2 (370M) state-space model, pre-training",
        default_batch_size=4,
    )


def compute_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross entropy of each next token."""
    logits = model(tokens)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
