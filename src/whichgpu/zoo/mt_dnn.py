"""MT-DNN: BERT-large with a head for each of eight GLUE tasks, sequences of 512 tokens, fp32, Adamax.

Settings: the MT-DNN row of "Choosing the Best GPU for Deep Learning in 2020"
(https://lambdalabs.com/blog/choosing-a-gpu-for-deep-learning), measured with https://github.com/namisan/mt-dnn,
scripts/run_mt_dnn.sh: the tasks MNLI, RTE, QQP, QNLI, MRPC, SST-2, CoLA and STS-B, initialised from BERT-large, Adamax
with learning rate 5e-5, gradients clipped to a global norm of 1, sequences of at most 512 tokens.
Model: Liu et al., "Multi-Task Deep Neural Networks for Natural Language Understanding", section 3,
https://arxiv.org/abs/1901.11504: one sentence is classified from the first token, similarity is a regression from it,
and pairs are classified by a stochastic answer network of five steps over both sentences; transformers BertModel in the
shape of BERT-large (340 million parameters: Devlin et al., table 1, https://arxiv.org/abs/1810.04805).
A step is one update with one task's batch; tasks take turns. Speeds are in sequences. A head's optimizer state is there from
the first step on, as it is once each task had its turn: the first gives every other head a gradient of zero.
Differences: every batch is as long as the longest that may occur, since that one decides what fits, where the original
pads to the longest of the batch; QNLI is a pair to classify, as in that code, where the paper ranks; PyTorch's fused
attention and its other fused operators (`attention=eager` has attention written out, `code=2019` all that the original had
on PyTorch 0.4.1: the operators of written_out.py, gradients that are kept between steps, and an optimizer that goes from weight
to weight).
Options: those of every adapter, `seq`, `attention` (sdpa or eager), `code` (today or 2019, which is with attention=eager) and
any attribute of BertConfig.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertModel

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.hf_models import Plan
from whichgpu.zoo.training import Recipe, make_workload
from whichgpu.zoo.written_out import in_2019, read_code

NAME = "mt-dnn"
LARGE = {
    "hidden_size": "1024",
    "num_hidden_layers": "24",
    "num_attention_heads": "16",
    "intermediate_size": "4096",
}
SETTINGS = {"precision": "fp32", "optimizer": "adamax", "clip": "1.0", "seq": "512"}
ANSWER_STEPS = 5


class GlueTask(NamedTuple):
    """What a task's head answers."""

    name: str
    labels: int  # 1: a number
    pair: bool  # of two sentences that are compared word by word


TASKS = (
    GlueTask("mnli", 3, True),
    GlueTask("rte", 2, True),
    GlueTask("qqp", 2, True),
    GlueTask("qnli", 2, True),
    GlueTask("mrpc", 2, True),
    GlueTask("sst", 2, False),
    GlueTask("cola", 2, False),
    GlueTask("stsb", 1, False),
)


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    recipe = make_recipe(options)
    return make_workload(
        recipe,
        unit="sequences",
        default_batch_size=4,
        description="MT-DNN, BERT-large on a mix of GLUE tasks",
    )


def make_recipe(options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    given = {**LARGE, **SETTINGS, "task": "sequence-classification", **options}
    old = read_code(NAME, given, attention=True)
    if old:
        given.setdefault("foreach", "0")
    plan = Plan("bert", given, where=NAME)
    if plan.sequence < 2:
        raise WorkloadError(f"{NAME}: seq=1 has no room for two sentences; give 2 or more")

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        segments = torch.arange(plan.sequence, device=device) >= plan.sequence // 2
        return {
            "tokens": torch.randint(0, plan.config.vocab_size, (count, plan.sequence), device=device),
            "segments": segments.long().expand(count, -1),
            "classes": torch.randint(0, 2, (count,), device=device),
            "scores": torch.rand(count, device=device, dtype=dtype) * 5,
        }

    return Recipe(
        where=NAME,
        settings=plan.settings,
        make_model=lambda: MultiTask(plan.build_model(BertModel)),
        make_batch=make_batch,
        compute_loss=in_2019("pytorch 0.4", compute_loss) if old else compute_loss,
        keeps_gradients=old,
        optimizer_arguments={"lr": 5e-5},
        sizes=plan.sizes(),
    )


def compute_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """That of the next task."""
    return model(**batch)


class MultiTask(nn.Module):
    """BERT and the heads; each call is the loss of the next task in turn."""

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.config.hidden_size
        heads = {
            task.name: PairHead(width, task.labels) if task.pair else SentenceHead(width, task.labels) for task in TASKS
        }
        self.heads = nn.ModuleDict(heads)
        self.turns = itertools.cycle(TASKS)
        self.begun = False

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, classes: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        """Cross entropy, or the squared error where the answer is a number."""
        task = next(self.turns)
        hidden, pooled = self.encoder(tokens, token_type_ids=segments, return_dict=False)
        half = hidden.shape[1] // 2
        head = self.heads[task.name]
        answer = head(hidden[:, :half], hidden[:, half:]) if task.pair else head(pooled)
        loss = F.mse_loss(answer.squeeze(-1), scores) if task.labels == 1 else F.cross_entropy(answer, classes)
        if not self.begun:
            self.begun = True
            loss = loss + 0 * sum(weight.sum() for weight in self.heads.parameters())
        return loss


class SentenceHead(nn.Sequential):
    """From the first token's representation to the answer."""

    def __init__(self, width: int, labels: int) -> None:
        super().__init__(nn.Dropout(0.1), nn.Linear(width, labels))


class PairHead(nn.Module):
    """Stochastic answer network: a state, begun from the second sentence, reads the first one several times."""

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.begin = nn.Linear(width, 1)
        self.ask = nn.Linear(width, width)
        self.read = nn.GRUCell(width, width)
        self.answer = nn.Linear(4 * width, labels)
        self.dropout = nn.Dropout(0.1)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """The mean over the steps, of which some are dropped while training, as log-probabilities."""
        first, second = self.dropout(first), self.dropout(second)
        state = (self.begin(second).softmax(1) * second).sum(1)
        answers = []
        for _ in range(ANSWER_STEPS):
            attention = torch.bmm(first, self.ask(state).unsqueeze(-1)).softmax(1)
            seen = (attention * first).sum(1)
            state = self.read(seen, state)
            both = torch.cat([state, seen, (state - seen).abs(), state * seen], dim=-1)
            answers.append(self.answer(self.dropout(both)).softmax(-1))
        kept = F.dropout(torch.ones(len(first), ANSWER_STEPS, 1, device=first.device), 0.1, self.training)
        mean = (torch.stack(answers, dim=1) * kept).sum(1) / kept.sum(1).clamp(min=1)
        return torch.log(mean + 1e-6)
