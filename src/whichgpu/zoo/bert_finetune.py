"""BERT-base fine-tuning on SQuAD v1.1: sequences of 384 tokens, answer start and end, fp32.

Settings: the BERT Finetune row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning): https://github.com/google-research/bert,
run_squad.py with max_seq_length 384, learning rate 3e-5 and the optimizer of optimization.py (see bert_base).
Model: Devlin et al., "BERT", sections 3 and 4.2, https://arxiv.org/abs/1810.04805; transformers
BertForQuestionAnswering with its default configuration. No attention mask is passed. Speed is in sequences.
Differences: as in bert_base.
Options: those of every adapter, `seq`, `attention`, `code` (today or 2019) and any attribute of BertConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from transformers import BertForQuestionAnswering

from whichgpu.workload import Workload
from whichgpu.zoo.bert_base import OPTIMIZER, SETTINGS, parameter_groups
from whichgpu.zoo.hf_models import Plan
from whichgpu.zoo.training import Recipe, make_workload
from whichgpu.zoo.written_out import in_2019, read_code

NAME = "bert-finetune"


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="sequences",
        default_batch_size=12,
        description="BERT-base, fine-tuning on SQuAD question answering",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    given = {**SETTINGS, "seq": "384", "task": "question-answering", **options}
    old = read_code(NAME, given, attention=True)
    plan = Plan("bert", given, where=NAME)
    recipe = plan.recipe()
    return replace(
        recipe,
        compute_loss=in_2019("tensorflow 1.13", compute_loss) if old else recipe.compute_loss,
        make_model=lambda: plan.build_model(BertForQuestionAnswering),
        optimizer_arguments={**OPTIMIZER, "lr": 3e-5},
        parameter_groups=parameter_groups,
    )


def compute_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean of the losses of where an answer starts and where it ends."""
    answer = model(input_ids=batch["input_ids"])
    start = F.cross_entropy(answer.start_logits, batch["start_positions"])
    return (start + F.cross_entropy(answer.end_logits, batch["end_positions"])) / 2
