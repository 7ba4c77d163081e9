"""NeuSight's end-to-end rows rebuilt: its models as steps, with attention written out as they had it (transformers of 2023)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CARDS = {
    "Tesla_P100-PCIE-16GB": "P100 PCIe 16GB",
    "Tesla_V100-PCIE-32GB": "V100 PCIe 32GB",
    "Tesla_T4": "T4",
    "Tesla_P4": "P4",
    "NVIDIA_A100-PCIE-40GB": "A100 40GB PCIe",
    "AMD_Instinct_MI100": "MI100",
    "AMD_Instinct_MI210": "MI210",
}
# layers, width, heads
GPT2 = {"gpt2_large": (36, 1280, 20), "gpt3_xl": (24, 3072, 24), "gpt3_27": (32, 2560, 32)}


class EndToEnd(NamedTuple):
    """One measured row."""

    card: str
    model: str
    sequence: int
    batch_size: int
    train: bool
    seconds: float


def rows(folder: Path) -> Iterator[EndToEnd]:
    """The rows that can be rebuilt: no fused operators, no mixture of experts."""
    with (folder / "neusight_e2e.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["option"] or row["model"].startswith("switch"):
                continue
            yield EndToEnd(
                CARDS[row["gpu"]],
                row["model"],
                int(row["sequence_length"]),
                int(row["batch_size"]),
                row["mode"] == "train",
                float(row["measured_ms"]) / 1e3,
            )


def _model(name: str, sequence: int) -> Any:
    import transformers

    eager = {"attn_implementation": "eager", "use_cache": False}
    if name == "bert_large":
        config = transformers.BertConfig(
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            attn_implementation="eager",
        )
        return transformers.BertForPreTraining(config)
    if name == "opt_13":
        config = transformers.OPTConfig(
            hidden_size=2048,
            num_hidden_layers=24,
            num_attention_heads=32,
            ffn_dim=8192,
            word_embed_proj_dim=2048,
            **eager,
        )
        return transformers.OPTForCausalLM(config)
    layers, width, heads = GPT2[name]
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=max(sequence, 1024), **eager
    )
    return transformers.GPT2LMHeadModel(config)


def setup_of(name: str, sequence: int, train: bool) -> Callable[[Any], Callable[[int], None]]:
    """Forward, and backward from the outputs where it trains; no loss, no optimizer."""

    def setup(device: Any) -> Callable[[int], None]:
        import torch

        model = _model(name, sequence).to(device).train(train)

        def step(batch_size: int) -> None:
            tokens = torch.randint(0, 1000, (batch_size, sequence), device=device)
            with torch.set_grad_enabled(train):
                answer = model(tokens)
                outputs = [answer[0], answer[1]] if name == "bert_large" else [answer.logits]
                if train:
                    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
                    model.zero_grad()

        return step

    return setup
