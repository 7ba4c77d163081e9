"""Transformer-big on WMT16 English-German: 6 + 6 layers of 1024, one vocabulary of 32768, fp16, Adam.

Settings: the Transformer Big row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with https://github.com/pytorch/fairseq,
transformer_vaswani_wmt_en_de_big with --share-all-embeddings and --fp16: dropout 0.3, attention dropout 0.1, label
smoothing 0.1, Adam with betas 0.9 and 0.98, a vocabulary of 32768 (examples/scaling_nmt).
Model: Vaswani et al., "Attention Is All You Need", table 3, https://arxiv.org/abs/1706.03762 (213 million parameters with
a vocabulary of about 37000); Ott et al., "Scaling Neural Machine Translation", https://arxiv.org/abs/1806.00187 (210
million with fairseq); transformers MarianMTModel, which is this architecture.
Batch: a sentence pair of `seq` tokens on each side (32 by default; the training set's mean is about 30). The published
unit is fairseq's --max-tokens, the tokens of the longer side of a batch with its padding, so `seq` times the batch size;
speeds are in these tokens.
Differences: autocast with float32 weights, where fairseq has weights in fp16 and a float32 copy; PyTorch's fused
attention and other operators (`attention=eager` has attention written out); sentences of one length, without padding.
`code=2019` is as fairseq had it on PyTorch 1.0: its fp16 and loss (fairseq.py), the operators of written_out.py, and sentences
of 128 tokens, as in the made-up batch that its training begins with.
Options: those of every adapter, `seq`, `vocabulary`, `layers`, `width` (of the embedding; heads are a 64th of it, the
feed-forward layers four times it), `attention` (sdpa or eager), `code` (today or 2019, which is with attention=eager).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from transformers import MarianConfig, MarianMTModel

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.fairseq import FIRST_LENGTH, Half, smoothed_loss
from whichgpu.zoo.options import Options, check_positions, read_settings
from whichgpu.zoo.training import Recipe, make_workload
from whichgpu.zoo.written_out import in_2019, read_code

NAME = "transformer-big"
SETTINGS = {"precision": "fp16", "optimizer": "adam", "seq": "32"}
HEAD = 64
POSITIONS = 1024


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="tokens",
        items_per_sample=recipe.sizes["seq"],
        default_batch_size=64,
        description="Transformer-big, English-German translation",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    given = {**SETTINGS, **options}
    old = read_code(NAME, given, attention=True)
    if old:
        given = {"foreach": "0", **given, "seq": options.get("seq", str(FIRST_LENGTH))}
    reader = Options(NAME, given)
    settings = read_settings(reader)
    if old and settings.precision != "fp16":
        raise WorkloadError(f"{NAME}: code=2019 is in fp16, weights included; leave precision out")
    sequence, vocabulary = reader.count("seq", 32), reader.count("vocabulary", 32768)
    config = make_config(vocabulary, reader.count("width", 1024), reader.count("layers", 6))
    attention = reader.choice("attention", "sdpa", ("sdpa", "eager"))
    reader.finish()
    if config.d_model % HEAD:
        raise WorkloadError(f"{NAME}: width={config.d_model} is not a multiple of {HEAD}")
    check_positions(NAME, sequence, POSITIONS)

    def make_model() -> torch.nn.Module:
        dtype = torch.bfloat16 if settings.precision == "pure-bf16" else torch.float32
        model = MarianMTModel._from_config(config, dtype=dtype, attn_implementation=attention)
        if settings.checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = torch.randint(0, vocabulary, (2, count, sequence), device=device)
        return source, target

    return (Half if old else Recipe)(
        where=NAME,
        settings=settings,
        make_model=make_model,
        make_batch=make_batch,
        compute_loss=in_2019("pytorch 1.0", compute_old_loss) if old else compute_loss,
        optimizer_arguments={"lr": 5e-4, "betas": (0.9, 0.98)},
        sizes={"seq": sequence},
    )


def make_config(vocabulary: int, width: int, layers: int) -> MarianConfig:
    """The architecture as transformers names its parts."""
    sizes = {}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_ffn_dim": 4 * width, f"{side}_attention_heads": width // HEAD}
    return MarianConfig(
        vocab_size=vocabulary,
        d_model=width,
        **sizes,
        max_position_embeddings=POSITIONS,
        activation_function="relu",
        dropout=0.3,
        attention_dropout=0.1,
        activation_dropout=0.0,
        scale_embedding=True,
        pad_token_id=vocabulary - 1,
        eos_token_id=0,
        decoder_start_token_id=vocabulary - 1,
        forced_eos_token_id=None,
        use_cache=False,
    )


def compute_loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross entropy with label smoothing of every next token."""
    source, target = batch
    logits = model(input_ids=source, decoder_input_ids=target.roll(1, dims=1)).logits
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1)


def compute_old_loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The same as fairseq computes it."""
    source, target = batch
    return smoothed_loss(model(input_ids=source, decoder_input_ids=target.roll(1, dims=1)).logits, target)
