"""Unsupervised translation, English-French: XLM encoder and decoder of 6 layers of 1024, fp32, Adam.

Settings: the unsupMT row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with https://github.com/facebookresearch/XLM,
section III of its README: --ae_steps en,fr --bt_steps en-fr-en,fr-en-fr --emb_dim 1024 --n_layers 6 --n_heads 8, GELU,
dropout and attention dropout 0.1, Adam with betas 0.9 and 0.98 and learning rate 1e-4, gradients clipped to norm 5.
Model: Lample and Conneau, "Cross-lingual Language Model Pretraining", sections 3 and 5.1, https://arxiv.org/abs/1901.07291,
with 64139 words and learned positions as in the published mlm_enfr_1024
(https://huggingface.co/FacebookAI/xlm-mlm-enfr-1024), of which transformers' XLMModel is the encoder.
A step is one round of four updates, each with a batch of its own: denoising in both languages, then back-translation both
ways, where the model first translates greedily, without gradients and with a cache, and learns to translate that back.
Batch: a sentence of `seq` tokens (32 by default; NewsCrawl's mean is about 30). The published unit is XLM's
--tokens_per_batch, the tokens of each of the four batches, so `seq` times the batch size; speeds count these once a round.
Differences: translations are as long as their source, where the original stops at 1.3 times its length plus 5, or when all
sentences have ended; all sentences are of one length; PyTorch's fused attention and other operators (`attention=eager` has
attention written out; `code=2019` all that the original had on PyTorch 1.0: the operators of written_out.py, translations of its
longest, gradients that are kept between steps, and an optimizer that goes from weight to weight);
noise replaces words, so that it leaves lengths alone; one optimizer for both halves.
Options: those of every adapter, `seq`, `vocabulary`, `layers`, `width` (heads are 128 wide, or the whole where it is
less), `attention` (sdpa or eager), `code` (today or 2019, which is with attention=eager).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, check_positions, read_settings, refuse_checkpoint
from whichgpu.zoo.training import Recipe, make_optimizer, make_step, make_workload, move, set_tf32
from whichgpu.zoo.written_out import in_2019, read_code

NAME = "unsup-mt"
SETTINGS = {"precision": "fp32", "optimizer": "adam", "clip": "5.0", "seq": "32"}
POSITIONS = 512
HEAD = 128
DROPOUT = 0.1
NOISE = 0.1  # share of words that are blanked
BLANK, START = 0, 1  # words
ENGLISH, FRENCH = 0, 1

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Cache = dict[nn.Module, tuple[torch.Tensor, torch.Tensor]]


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="tokens",
        items_per_sample=recipe.sizes["seq"],
        default_batch_size=32,
        description="XLM, unsupervised English-French translation",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and losses of the workload."""
    given = {**SETTINGS, **options}
    old = read_code(NAME, given, attention=True)
    if old:
        given.setdefault("foreach", "0")
    reader = Options(NAME, given)
    settings = refuse_checkpoint(NAME, read_settings(reader))
    sequence, vocabulary = reader.count("seq", 32), reader.count("vocabulary", 64_139)
    width, layers = reader.count("width", 1024), reader.count("layers", 6)
    eager = reader.choice("attention", "sdpa", ("sdpa", "eager")) == "eager"
    reader.finish()
    longest = sequence * 13 // 10 + 5 if old else sequence
    check_positions(NAME, longest, POSITIONS)
    if width % min(width, HEAD):
        raise WorkloadError(f"{NAME}: width={width} is not a multiple of {HEAD}")

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(0, vocabulary, (count, sequence), device=device)

    return Rounds(
        where=NAME,
        settings=settings,
        make_model=lambda: Translator(vocabulary, width, layers, eager),
        make_batch=make_batch,
        compute_loss=denoise(ENGLISH),
        losses=losses(longest, old),
        keeps_gradients=old,
        optimizer_arguments={"lr": 1e-4, "betas": (0.9, 0.98)},
        sizes={"seq": sequence},
    )


# ---- the step ----


@dataclass(frozen=True, kw_only=True)
class Rounds(Recipe):
    """A recipe whose step is a round of four updates, each with a loss of its own."""

    losses: tuple[Loss, ...]

    def setup(self, device: torch.device | str) -> Callable[[int], torch.Tensor]:
        """Build model and optimizer on `device`; the step returns the loss of the round's last update."""
        device = torch.device(device)
        set_tf32(self.settings.precision)
        model = move(self.make_model().train(), device, self.settings, False)
        optimizer = make_optimizer(model.parameters(), self.settings, **self.optimizer_arguments)
        updates = [make_step(replace(self, compute_loss=loss), model, optimizer, device) for loss in self.losses]

        def step(batch_size: int) -> torch.Tensor:
            return [update(batch_size) for update in updates][-1]

        return step


def losses(longest: int, old: bool) -> tuple[Loss, ...]:
    """Those of a round, with translations that are so long; `old`: with the operators of PyTorch 1.0."""
    back = (translate_back(ENGLISH, FRENCH, longest), translate_back(FRENCH, ENGLISH, longest))
    return tuple(in_2019("pytorch 1.0", loss) if old else loss for loss in (denoise(ENGLISH), denoise(FRENCH), *back))


def denoise(language: int) -> Loss:
    """The loss of restoring sentences that had words blanked."""

    def loss(model: Translator, words: torch.Tensor) -> torch.Tensor:
        noised = torch.where(torch.rand(words.shape, device=words.device) < NOISE, BLANK, words)
        return model(noised, language, words, language)

    return loss


def translate_back(language: int, other: int, longest: int) -> Loss:
    """The loss of translating the model's own translation back to where it came from."""

    def loss(model: Translator, words: torch.Tensor) -> torch.Tensor:
        model.eval()
        translated = model.translate(words, language, other, longest)
        model.train()
        return model(translated, other, words, language)

    return loss


# ---- the model ----


class Translator(nn.Module):
    """Encoder and decoder; called, the loss of one translation."""

    def __init__(self, vocabulary: int, width: int, layers: int, eager: bool) -> None:
        super().__init__()
        self.encoder = Stack(vocabulary, width, layers, eager, decodes=False)
        self.decoder = Stack(vocabulary, width, layers, eager, decodes=True)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, source: torch.Tensor, language: int, target: torch.Tensor, other: int) -> torch.Tensor:
        """Cross entropy of every word of the target."""
        before = torch.cat([torch.full_like(target[:, :1], START), target[:, :-1]], dim=1)
        hidden = self.decoder(before, other, self.encoder(source, language))
        return F.cross_entropy(self.logits(hidden).flatten(0, 1), target.flatten())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of every word, by the decoder's own embeddings."""
        return F.linear(hidden, self.decoder.words.weight, self.bias)

    @torch.no_grad()
    def translate(self, source: torch.Tensor, language: int, other: int, longest: int) -> torch.Tensor:
        """The most likely word after each, so many."""
        encoded, cache = self.encoder(source, language), {}
        words = [torch.full_like(source[:, :1], START)]
        for place in range(longest):
            hidden = self.decoder(words[-1], other, encoded, cache, place)
            words.append(self.logits(hidden).argmax(-1))
        return torch.cat(words[1:], dim=1)


class Stack(nn.Module):
    """Embeddings and layers of one half; `decodes` sees what came before, and the other half."""

    def __init__(self, vocabulary: int, width: int, layers: int, eager: bool, *, decodes: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(POSITIONS, width)
        self.languages = nn.Embedding(2, width)
        for table in (self.words, self.places, self.languages):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, eager, decodes) for _ in range(layers))

    def forward(
        self,
        words: torch.Tensor,
        language: int,
        encoded: torch.Tensor | None = None,
        cache: Cache | None = None,
        place: int = 0,
    ) -> torch.Tensor:
        """(sentences, words, width); with a cache for the words from `place` on, which follow those in it."""
        places = torch.arange(place, place + words.shape[1], device=words.device)
        hidden = self.words(words) + self.places(places) + self.languages(torch.full_like(words, language))
        hidden = F.dropout(self.norm(hidden), DROPOUT, self.training)
        for layer in self.layers:
            hidden = layer(hidden, encoded, cache)
        return hidden


class Layer(nn.Module):
    """Attention to itself, to the other half if there is one, and two linear layers; each added, then normalised."""

    def __init__(self, width: int, eager: bool, decodes: bool) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width, eager, causal=decodes), nn.LayerNorm(width)
        if decodes:
            self.across, self.norm_across = Attention(width, eager, causal=False), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_outer = nn.LayerNorm(width)

    def forward(self, hidden: torch.Tensor, encoded: torch.Tensor | None, cache: Cache | None) -> torch.Tensor:
        """Of the input's shape."""
        hidden = self.norm(hidden + self.drop(self.attention(hidden, hidden, cache)))
        if encoded is not None:
            hidden = self.norm_across(hidden + self.drop(self.across(hidden, encoded, cache)))
        return self.norm_outer(hidden + self.drop(self.outer(F.gelu(self.inner(hidden)))))

    def drop(self, hidden: torch.Tensor) -> torch.Tensor:
        """Dropout while training."""
        return F.dropout(hidden, DROPOUT, self.training)


class Attention(nn.Module):
    """Multi-head attention; a cache holds the keys and values of what came before, or of the other half."""

    def __init__(self, width: int, eager: bool, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.leave = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.eager, self.causal = max(width // HEAD, 1), eager, causal

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """(sentences, words, width)."""
        query = self.split(self.query(hidden))
        key, value = self.look_up(seen, cache)
        causal = self.causal and query.shape[2] > 1
        dropout = DROPOUT if self.training else 0.0
        if self.eager:
            found = written_out(query, key, value, causal, dropout)
        else:
            found = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
        return self.leave(found.transpose(1, 2).flatten(2))

    def look_up(self, seen: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `seen`, after those in the cache; the other half's are computed once."""
        known = None if cache is None else cache.get(self)
        if known is not None and not self.causal:
            return known
        found = self.split(self.key(seen)), self.split(self.value(seen))
        if known is not None:
            found = torch.cat([known[0], found[0]], dim=2), torch.cat([known[1], found[1]], dim=2)
        if cache is not None:
            cache[self] = found
        return found

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(sentences, heads, words, width of a head)."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, dropout: float
) -> torch.Tensor:
    """Attention as products and a softmax, with all weights kept for the backward pass."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return F.dropout(scores.softmax(-1), dropout, dropout > 0) @ value
