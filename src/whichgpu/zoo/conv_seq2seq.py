"""Convolutional sequence to sequence on WMT14 English-German: 15 + 15 convolutional layers, fp32, Nesterov momentum.

Settings: the Conv. Seq2Seq row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with https://github.com/pytorch/fairseq,
fconv_wmt_en_de: encoder and decoder of 9 layers of 512 channels and kernel 3, 4 of 1024 and 3, 2 of 2048 and 1, embeddings
of 768, dropout 0.2, its default optimizer (accelerated gradient, momentum 0.99) with learning rate 0.5, gradients clipped
to norm 0.1 (examples/conv_seq2seq).
Model: Gehring et al., "Convolutional Sequence to Sequence Learning", section 3, https://arxiv.org/abs/1705.03122, with a
vocabulary of 40000 on each side (section 4.1). Size: 216 million parameters (Wu et al., "Pay Less Attention with
Lightweight and Dynamic Convolutions", table 1, https://arxiv.org/abs/1901.10430).
Batch: a sentence pair of `seq` tokens on each side (32 by default; the training set's mean is about 30). The published
unit is fairseq's --max-tokens, the tokens of the longer side of a batch with its padding, so `seq` times the batch size;
speeds are in these tokens.
Differences: PyTorch's Conv1d (cuDNN), where fairseq multiplies a matrix for each place of the kernel; cross entropy without
label smoothing; sentences of one length, without padding. `code=2019` is as fairseq had it: its convolution (torch.conv_tbc) and
loss (fairseq.py), gradients that are kept between steps, an optimizer that goes from weight to weight, and sentences of 128
tokens, as in the made-up batch that its training begins with.
Options: those of every adapter, `seq`, `vocabulary`, `layers` (of the first kind; the second has half of them less one,
the third two), `width` (channels of the first kind, 512), `code` (today or 2019).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from whichgpu.workload import Workload
from whichgpu.zoo.fairseq import FIRST_LENGTH, smoothed_loss
from whichgpu.zoo.options import Options, check_positions, read_settings, refuse_checkpoint
from whichgpu.zoo.training import Recipe, make_workload
from whichgpu.zoo.written_out import read_code

NAME = "conv-seq2seq"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "clip": "0.1", "seq": "32"}
POSITIONS = 1024
DROPOUT = 0.2
HALF = 0.5**0.5  # keeps the variance of a sum of two

Layers = tuple[tuple[int, int], ...]  # channels and kernel of each


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="tokens",
        items_per_sample=recipe.sizes["seq"],
        default_batch_size=64,
        description="Convolutional sequence to sequence, English-German translation",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    given = {**SETTINGS, **options}
    old = read_code(NAME, given)
    if old:
        given = {"foreach": "0", **given, "seq": options.get("seq", str(FIRST_LENGTH))}
    reader = Options(NAME, given)
    settings = refuse_checkpoint(NAME, read_settings(reader))
    sequence, vocabulary = reader.count("seq", 32), reader.count("vocabulary", 40_000)
    width, layers = reader.count("width", 512), reader.count("layers", 9)
    reader.finish()
    check_positions(NAME, sequence, POSITIONS)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = torch.randint(0, vocabulary, (2, count, sequence), device=device)
        return source, target

    return Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: ConvSeq2Seq(vocabulary, width * 3 // 2, shape(width, layers), old),
        make_batch=make_batch,
        compute_loss=compute_old_loss if old else compute_loss,
        keeps_gradients=old,
        optimizer_arguments={"lr": 0.5, "momentum": 0.99, "nesterov": True},
        sizes={"seq": sequence},
    )


def shape(width: int, layers: int) -> Layers:
    """Channels and kernels of the layers of either side."""
    return ((width, 3),) * layers + ((2 * width, 3),) * max(layers // 2, 1) + ((4 * width, 1),) * 2


def compute_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross entropy of every next token."""
    source, target = batch
    return F.cross_entropy(model(source, target.roll(1, dims=1)).flatten(0, 1), target.flatten())


def compute_old_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The same with label smoothing, as fairseq computes it."""
    source, target = batch
    return smoothed_loss(model(source, target.roll(1, dims=1)), target)


class ConvSeq2Seq(nn.Module):
    """Encoder and decoder; logits of every next token. `old`: with the convolutions of fairseq."""

    def __init__(self, vocabulary: int, embedding: int, layers: Layers, old: bool) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, embedding, layers, old)
        self.decoder = Decoder(vocabulary, embedding, layers, old)

    def forward(self, source: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """(sentences, tokens, vocabulary)."""
        return self.decoder(before, *self.encoder(source))


class Embedding(nn.Module):
    """Of tokens and of their positions, added."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(POSITIONS, width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, 0, 0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(sentences, tokens, width)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return F.dropout(self.tokens(tokens) + self.positions(places), DROPOUT, self.training)


class GatedConvolution(nn.Module):
    """Dropout, convolution and gate over (sentences, tokens, channels); `causal` sees only what came before."""

    def __init__(self, inputs: int, outputs: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.convolution = weight_norm(nn.Conv1d(inputs, 2 * outputs, kernel), dim=0)
        self.padding = (kernel - 1, 0) if causal else (kernel // 2, kernel // 2)
        self.residual = linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Without the residual."""
        hidden = F.dropout(hidden, DROPOUT, self.training).transpose(1, 2)
        return F.glu(self.convolution(F.pad(hidden, self.padding)), dim=1).transpose(1, 2)


class ProductConvolution(nn.Module):
    """Dropout, convolution and gate as in GatedConvolution; the convolution is a matrix product for each of its places."""

    def __init__(self, inputs: int, outputs: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(kernel, inputs, 2 * outputs) * (4 / (kernel * inputs)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(2 * outputs))
        weight_norm(self, dim=2)
        self.padding, self.later = (kernel - 1, kernel - 1) if causal else (kernel // 2, 0)
        self.residual = linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Without the residual; what would be seen of later tokens is cut off."""
        hidden = F.dropout(hidden, DROPOUT, self.training).transpose(0, 1).contiguous()
        found = torch.conv_tbc(hidden, self.weight, self.bias, self.padding)
        return F.glu(found[: len(found) - self.later], dim=2).transpose(0, 1)


class Encoder(nn.Module):
    """Keys and values for the decoder's attention."""

    def __init__(self, vocabulary: int, embedding: int, layers: Layers, old: bool) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, embedding)
        self.enter, self.leave = linear(embedding, layers[0][0]), linear(layers[-1][0], embedding)
        self.layers = nn.ModuleList(gated(layers, causal=False, old=old))

    def forward(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both (sentences, tokens, embedding)."""
        embedded = self.embedding(source)
        hidden = self.enter(embedded)
        for layer in self.layers:
            hidden = (layer(hidden) + layer.residual(hidden)) * HALF
        keys = self.leave(hidden)
        return keys, (keys + embedded) * HALF


class Attention(nn.Module):
    """One look at the source for each target token."""

    def __init__(self, channels: int, embedding: int) -> None:
        super().__init__()
        self.ask, self.answer = linear(channels, embedding), linear(embedding, channels)

    def forward(
        self, hidden: torch.Tensor, embedded: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """The state with what was seen, scaled by the root of the number of tokens that were averaged."""
        query = (self.ask(hidden) + embedded) * HALF
        weights = torch.bmm(query, keys.transpose(1, 2)).softmax(-1)
        seen = torch.bmm(weights, values) * keys.shape[1] ** 0.5
        return (self.answer(seen) + hidden) * HALF


class Decoder(nn.Module):
    """Causal convolutions, each followed by attention."""

    def __init__(self, vocabulary: int, embedding: int, layers: Layers, old: bool) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, embedding)
        self.enter, self.leave = linear(embedding, layers[0][0]), linear(layers[-1][0], embedding)
        self.layers = nn.ModuleList(gated(layers, causal=True, old=old))
        self.attention = nn.ModuleList(Attention(channels, embedding) for channels, _ in layers)
        self.vocabulary = linear(embedding, vocabulary)

    def forward(self, before: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Logits: (sentences, tokens, vocabulary)."""
        embedded = self.embedding(before)
        hidden = self.enter(embedded)
        for layer, attend in zip(self.layers, self.attention, strict=True):
            hidden = (attend(layer(hidden), embedded, keys, values) + layer.residual(hidden)) * HALF
        return self.vocabulary(F.dropout(self.leave(hidden), DROPOUT, self.training))


def gated(layers: Layers, *, causal: bool, old: bool) -> list[nn.Module]:
    """The convolutions of one side, each as wide as the one before gives."""
    inputs = [layers[0][0], *(channels for channels, _ in layers)]
    layer = ProductConvolution if old else GatedConvolution
    return [layer(inputs[i], channels, kernel, causal) for i, (channels, kernel) in enumerate(layers)]


def linear(inputs: int, outputs: int) -> nn.Module:
    """A linear layer with its weights' norms apart."""
    return weight_norm(nn.Linear(inputs, outputs), dim=0)
