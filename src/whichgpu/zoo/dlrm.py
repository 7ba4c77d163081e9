"""DLRM on Criteo Terabyte, click prediction: 26 embedding tables of up to 20 million rows, fp32, SGD.

Settings: https://github.com/facebookresearch/dlrm, bench/dlrm_s_criteo_terabyte.sh: embeddings of 64, bottom MLP
13-512-256-64, top MLP 512-512-256-1, at most 20 million rows a table, plain SGD with learning rate 0.1, binary cross
entropy, batches of 128; dlrm_s_pytorch.py: one index a table, sparse gradients of the tables, products of all pairs of
vectors. Rows of the tables are those of the data set as MLPerf counts them with at most 40 million
(https://github.com/mlcommons/training, recommendation_v2), cut to 20 million: 104 million rows, 6.7 billion parameters.
Indices are drawn evenly; real ones repeat, so that less memory is touched but no less is held.
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


class Dlrm(nn.Module):
    """Dense features through an MLP, sparse ones through tables, products of all pairs, and an MLP on top."""

    def __init__(self, rows: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, dim, mode="sum", sparse=True) for count in rows)
        self.bottom = _mlp(DENSE, *BOTTOM, dim, last=nn.ReLU())
        vectors = len(rows) + 1
        self.top = _mlp(dim + vectors * (vectors - 1) // 2, *TOP)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        """The logit of a click."""
        bottom = self.bottom(dense)
        bags = [table(column, offsets) for table, column in zip(self.tables, indices, strict=True)]
        vectors = torch.stack([bottom, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


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
    if settings.optimizer not in ("sgd", "adagrad") or settings.weight_decay or settings.clip:
        raise WorkloadError(
            f"{NAME}: the tables' sparse gradients allow optimizer=sgd or adagrad, without decay or clip"
        )
    rows = tuple(min(count, most) for count in ROWS)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        dense = torch.rand(count, DENSE, device=device, dtype=dtype)
        indices = torch.stack([torch.randint(0, size, (count,), device=device) for size in rows])
        clicks = torch.randint(0, 2, (count,), device=device).to(dtype)
        return dense, indices, torch.arange(count, device=device), clicks

    recipe = Recipe(
        where=NAME,
        settings=settings,
        make_model=lambda: Dlrm(rows, dim),
        make_batch=make_batch,
        compute_loss=lambda model, batch: F.binary_cross_entropy_with_logits(model(*batch[:3]), batch[3]),
        optimizer_arguments={"lr": 0.1, "momentum": 0.0},
    )
    description = "DLRM recommendation model with large embeddings"
    return make_workload(recipe, unit="samples", description=description, default_batch_size=128)
