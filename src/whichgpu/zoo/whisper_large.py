"""Whisper-large-v3, fine-tuning on transcribed speech: clips of 30 s, fp16 autocast, AdamW, checkpointing.

Settings: https://github.com/huggingface/transformers, examples/pytorch/speech-recognition (Whisper models): fp16, gradient
checkpointing, 16 clips a batch, learning rate 1e-5, gradients clipped to norm 1 (the Trainer's default), AdamW without
weight decay. Every clip is padded to 30 s (3000 frames of 128 Mel bands); transcripts have 225 tokens, the longest that are
generated there. Weights and optimizer state are in float32.
Read there (2026-12): all of the settings, for Whisper-small and accumulated twice. Ours: the large model, transcripts of
the longest length throughout.
Model: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", https://arxiv.org/abs/2212.04356;
transformers WhisperForConditionalGeneration with the configuration of openai/whisper-large-v3 (1.54 billion parameters).
Options: those of `hf:`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.workload import Workload
from whichgpu.zoo import hf_models

NAME = "whisper-large-v3"
CONFIG = {
    "d_model": "1280",
    "encoder_layers": "32",
    "decoder_layers": "32",
    "encoder_attention_heads": "20",
    "decoder_attention_heads": "20",
    "encoder_ffn_dim": "5120",
    "decoder_ffn_dim": "5120",
    "num_mel_bins": "128",
    "vocab_size": "51866",
}
SETTINGS = {
    "precision": "fp16",
    "optimizer": "adamw",
    "weight_decay": "0",
    "clip": "1.0",
    "checkpoint": "1",
    "seq": "225",
}


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    return hf_models.build(
        "whisper",
        {**CONFIG, **SETTINGS, **options},
        name=NAME,
        description="Whisper-large-v3, fine-tuning on transcribed speech",
        default_batch_size=16,
    )
