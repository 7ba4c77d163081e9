"""DLRM on Criteo Terabyte, click prediction: 26 embedding tables of up to 20 million rows, fp32, SGD.

Settings: https://github.com/facebookresearch/dlrm, bench/dlrm_s_criteo_terabyte.sh: embeddings of 64, bottom MLP
13-512-256-64, top MLP 512-512-256-1, at most 20 million rows a table, plain SGD with learning rate 0.1, binary cross
entropy, batches of 128; dlrm_s_pytorch.py: one index a table, products of all pairs of vectors. Of the tables only the rows
of a batch have gradients; each is added to its table as soon as the backward pass has it, as FBGEMM's kernels do (the
script keeps sparse gradients until its optimizer takes them). Rows of the tables are those of the data set as MLPerf counts them with at most 40 million
(https://github.com/mlcommons/training, recommendation_v2), cut to 20 million: 104 million rows, 6.7 billion parameters.
Indices are drawn evenly; real ones repeat, so that less memory is touched but no less is held.
Read there (the shell script, 2026-12): widths, most rows, learning rate, loss, batch. Not read again: the counts of rows.
Ours: how gradients of rows are applied, evenly drawn indices.
Model: Naumov et al., "Deep Learning Recommendation Model", https://arxiv.org/abs/1906.00091.
Options: those of every adapter; `rows` (most of a table), `dim` (of embeddings).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.training import Recipe, make_workload

NAME = "dlrm"
SETTINGS = {"precision": "fp32", "optimizer": "sgd", "rows": "20000000", "dim": "64"}
# fmt: off
ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938,
    155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)
# fmt: on
DENSE, BOTTOM, TOP = 13, (512, 256), (512, 512, 256, 1)
LEARNING_RATE = 0.1


class Dlrm(nn.Module):
    """Dense features through an MLP, sparse ones through tables, products of all pairs, and an MLP on top."""

    def __init__(self, rows: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(_table(count, dim)) for count in rows)
        self.bottom = _mlp(DENSE, *BOTTOM, dim, last=nn.ReLU())
        vectors = len(rows) + 1
        self.top = _mlp(dim + vectors * (vectors - 1) // 2, *TOP)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """The logit of a click."""
        looked_up = [_look_up(table, rows) for table, rows in zip(self.tables, indices, strict=True)]
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def _table(rows: int, dim: int) -> Tensor:
    bound = rows**-0.5
    return torch.empty(rows, dim).uniform_(-bound, bound)


@torch.no_grad()
def _look_up(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table, which learns from their gradient as soon as it is there."""
    found = table.index_select(0, rows).requires_grad_()

    @torch.no_grad()
    def learn(found: Tensor) -> None:
        table.index_add_(0, rows, found.grad, alpha=-LEARNING_RATE)
        found.grad = None

    found.register_post_accumulate_grad_hook(learn)
    return found


def _mlp(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([last] if last is not None else []))


def build(options: Mapping[str, str]) -> Workload:
    """The workload; options override the settings."""
    reader = Options(NAME, {**SETTINGS, **options})
    settings = read_settings(reader)
    most, dim = reader.count("rows", 20_000_000), reader.count("dim", 64)
    reader.finish()
    if settings.optimizer != "sgd" or settings.weight_decay or settings.clip or settings.precision == "fp16":
        raise WorkloadError(f"{NAME}: the tables learn by plain SGD; leave optimizer, weight_decay, clip and fp16 out")
    rows = tuple(min(count, most) for count in ROWS)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        dense = torch.rand(count, DENSE, device=device, dtype=dtype)
        indices = torch.stack([torch.randint(0, size, (count,), device=device) for size in rows])
        clicks = torch.randint(0, 2, (count,), device=device).to(dtype)
        return dense, indices, clicks

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: Dlrm(rows, dim),
        make_batch=make_batch,
        compute_loss=lambda model, batch: F.binary_cross_entropy_with_logits(model(*batch[:2]), batch[2]),
        optimizer_arguments={"lr": LEARNING_RATE, "momentum": 0.0},
        parameter_groups=lambda model: [*model.bottom.parameters(), *model.top.parameters()],
    )
    description = "DLRM recommendation model with large embeddings"
    return make_workload(recipe, unit="samples", description=description, default_batch_size=128)
