# ruff: noqa: B023
"""The operator grid cut to what fits a short booking: so many points of each family, and a few more operators.

The full grids (`ops`, `attention`) have thousands of points; most of them say the same. Recurrent layers stand
apart (`recurrent_points`), because the first one in a process loads a large library.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from workspace_grid import attention, ops
from workspace_grid.ops import trained
from workspace_grid.points import ATEN, BF16, F16, F32, Make, Point

F = torch.nn.functional
# at most so many points of a label; labels not named get DEFAULT
DEFAULT = 6
QUOTAS = {
    "attention/default/choice": 110, "attention/default/mask": 24, "attention/default/grouped": 12,
    "attention/efficient/size": 50, "attention/flash/size": 40, "attention/cudnn/size": 60, "attention/math/size": 12,
    "gemm": 40, "bmm": 14, "embedding_dense_backward": 70, "search": 64, "select": 48, "reduce": 30, "layer_norm": 39,
    "rms_norm": 30, "group_norm": 24, "batch_norm": 24, "batch_norm_eval": 8, "instance_norm": 10, "embedding_bag": 15,
    "scatter": 12, "scatter_deterministic": 2, "gather_backward": 8, "index_backward": 12, "index_select_backward": 12,
    "cross_entropy": 8, "cross_entropy_smooth": 4, "softmax": 8, "log_softmax": 8, "logsumexp": 8, "bilinear": 8, "bicubic": 8,
    "nearest": 8, "bilinear_aa": 8,
}  # fmt: skip
FIRST = ("search", "embedding_dense_backward", "reduce", "layer_norm", "index_backward", "scatter", "more/")


def more() -> Iterator[Point]:
    """Operators that the other grids leave out."""
    for dtype in (F32, BF16):
        for shape in ((64, 1000), (16, 64, 300), (2000000,), (300, 5)):

            def scans(make: Make, shape=shape, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x = make.random(*shape, dtype=dtype)
                turned = x.transpose(0, -1)

                def run() -> None:
                    for t in (x, turned):
                        attempt(lambda: ATEN.logcumsumexp.default(t, -1))
                        attempt(lambda: ATEN.cumsum.default(t, -1))
                        attempt(lambda: ATEN.cumsum.default(t > 0.5, -1))
                        attempt(lambda: ATEN.sort.default(t, 0, False))
                        attempt(lambda: ATEN.topk.default(t, 2, 0))
                        attempt(lambda: ATEN.prod.default(t))
                        attempt(lambda: ATEN.argmax.default(t, -1))
                        attempt(lambda: ATEN.flip.default(t, [0]))
                        attempt(lambda: ATEN.roll.default(t, [1], [0]))
                        attempt(lambda: ATEN.cummax.default(t, 0))
                        attempt(lambda: ATEN.sum.dim_IntList(t, [-1], False))
                        attempt(lambda: ATEN.sum.dim_IntList(t, [0], False))
                        attempt(lambda: ATEN.var_mean.correction(t, None))
                        attempt(lambda: ATEN.linalg_vector_norm.default(t, 1.0))
                        attempt(lambda: ATEN.repeat_interleave.self_int(t, 2, 0))
                        attempt(lambda: ATEN.unique_consecutive.default(t))
                        attempt(lambda: ATEN.unique_dim.default(t, 0))
                        attempt(lambda: ATEN.max.dim(t, 0))
                        attempt(lambda: ATEN.index_fill.int_Scalar(t, 0, make.index(2, 3), 0.0))

                return run

            yield point("more/scans", scans)
    for rows, count, width in (
        (1000, 500, 1),
        (1000, 5000, 32),
        (40000, 200000, 8),
        (50, 300000, 4),
        (2, 4000, 256),
    ):
        for dtype in (F32, BF16):

            def put(make: Make, rows=rows, count=count, width=width, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x, value, one = (
                    make(rows, width, dtype=dtype),
                    make(count, width, dtype=dtype),
                    make(1, dtype=dtype),
                )
                index, column = make.index(rows, count), make.index(width, count)

                def run() -> None:
                    attempt(lambda: ATEN.index_put.default(x, [index], value, True))
                    attempt(lambda: ATEN.index_put.default(x, [index, column], value[:, 0], True))
                    attempt(lambda: ATEN.index_put.default(x, [index, column], one, True))
                    attempt(lambda: ATEN.index_put.default(x, [None, column], make(1, 1, dtype=dtype), True))
                    attempt(lambda: ATEN.index_put.default(x, [index], one, False))
                    attempt(lambda: ATEN.index_reduce.default(x, 0, index, value, "mean"))
                    attempt(
                        lambda: ATEN.scatter_reduce.two(
                            x, 0, index[:, None].expand(count, width), value, "mean", include_self=False
                        )
                    )
                    attempt(lambda: ATEN.scatter_reduce.two(x, 0, index[:, None].expand(count, width), value, "sum"))
                    attempt(lambda: ATEN.masked_scatter.default(x, x > 0.5, x))
                    attempt(lambda: ATEN.index_add.default(x.t(), 1, index, value.t()))
                    attempt(lambda: ATEN.take.default(x, index))
                    attempt(lambda: ATEN.put.default(x, index, value[:, 0], True))
                    attempt(lambda: ATEN.embedding_renorm_.default(x, index, 1.0, 2.0))
                    attempt(lambda: ATEN.bincount.default(index))
                    attempt(
                        lambda: ATEN.segment_reduce.default(
                            value.float(), "sum", lengths=torch.tensor([count], device=make.device), axis=0
                        )
                    )

                return run

            yield point("more/index_put", put)

    def weight_norm(make: Make) -> Callable[[], Any]:
        return trained(lambda v, g: torch._weight_norm(v, g, 0), make.random(512, 256, 3), make.random(512, 1, 1))

    yield point("more/weight_norm", weight_norm)
    for dtype in (F32, F16, BF16):
        yield point(
            "more/losses",
            lambda make, dtype=dtype: trained(
                _losses, make.random(64, 5000, dtype=dtype), make.random(64, 5000, dtype=dtype)
            ),
        )
        yield point(
            "more/adaptive",
            lambda make, dtype=dtype: trained(_pools, make.random(8, 32, 60, 60, dtype=dtype)),
        )
        yield point("more/turned", lambda make, dtype=dtype: _turned(make, dtype))
        yield point(
            "more/grid3d",
            lambda make, dtype=dtype: trained(
                lambda x, g: F.grid_sample(x, g, align_corners=False),
                make.random(2, 8, 16, 16, 16, dtype=dtype),
                make.random(2, 8, 8, 8, 3, dtype=dtype),
            ),
        )
        yield point(
            "more/trilinear",
            lambda make, dtype=dtype: trained(
                lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
                make.random(2, 8, 16, 16, 16, dtype=dtype),
            ),
        )
        yield point(
            "more/linear1d",
            lambda make, dtype=dtype: trained(
                lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
                make.random(2, 8, 1600, dtype=dtype),
            ),
        )


def attempt(call: Callable[[], Any]) -> None:
    """Some operators lack a dtype or a layout on the GPU; the others of the point are still worth having."""
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return


def point(label: str, build: Callable[[Make], Callable[[], Any]]) -> Point:
    return Point(label, lambda device: build(Make(device)))


def _losses(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        F.kl_div(x, y, reduction="batchmean"), F.cosine_similarity(x, y), F.triplet_margin_loss(x, y, y + 1),
        F.margin_ranking_loss(x, y, torch.ones_like(x)), F.soft_margin_loss(x, y.detach()), F.normalize(x), F.gaussian_nll_loss(x, y, y + 1),
        F.poisson_nll_loss(x, y), F.softplus(x), F.prelu(x, y[0, :1]), torch.logcumsumexp(x, 1), x.prod(1), x.norm(), x.std(), x.cumsum(1),
    )  # fmt: skip


def _pools(x: torch.Tensor) -> Any:
    return (
        F.adaptive_avg_pool2d(x, 7), F.adaptive_max_pool2d(x, 7), F.avg_pool2d(x, 3, 2, 1), F.lp_pool2d(x, 2.0, 2), F.fold(F.unfold(x, 2, stride=2), (60, 60), 2, stride=2),
        F.pixel_unshuffle(x, 2), F.local_response_norm(x, 5), F.interpolate(x, size=(31, 47), mode="bilinear"), F.interpolate(x, size=(31, 47), mode="area"),
        F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), F.fractional_max_pool2d(x, 2, output_size=(20, 20)),
    )  # fmt: skip


def _turned(make: Make, dtype: torch.dtype) -> Callable[[], Any]:
    """Operators on tensors that are not contiguous, and between dtypes and devices."""
    x, w = make.random(64, 96, 128, dtype=dtype), make.random(128, dtype=dtype)
    turned = x.transpose(0, 1)
    image = make.random(8, 32, 28, 28, dtype=dtype).permute(0, 2, 3, 1)
    host = torch.ones(128, 64)

    def run() -> None:
        attempt(lambda: ATEN.native_layer_norm.default(turned, [128], w, w, 1e-5))
        attempt(lambda: ATEN.native_layer_norm.default(image.transpose(1, 3), [28], None, None, 1e-5))
        attempt(lambda: ATEN._softmax.default(turned, -1, False))
        attempt(lambda: ATEN._softmax.default(image, -1, False))
        attempt(lambda: ATEN._log_softmax.default(image, -1, False))
        attempt(lambda: ATEN.gelu.default(turned))
        attempt(lambda: ATEN.bmm.default(turned, turned.transpose(1, 2)))
        attempt(lambda: ATEN.bmm.default(x[:, :, ::2], x[:, :, ::2].transpose(1, 2)))
        attempt(lambda: ATEN.mm.default(turned[:, 0], turned[:, 1].t()))
        attempt(lambda: ATEN.mm.default(x[0, :, ::2], x[1, :, ::2].t()))
        attempt(lambda: ATEN.mm.default(x[0, :1].expand(96, 128), x[1].t()))
        attempt(lambda: ATEN.addmm.default(w[:96], x[0, :, ::2], x[1, :, ::2].t()))
        attempt(lambda: ATEN.baddbmm.default(x[:, :, :96], x, x.transpose(1, 2)))
        attempt(lambda: ATEN.cat.default([turned, turned], 1))
        attempt(lambda: ATEN.cat.default([turned, turned.float()], 1))
        attempt(lambda: ATEN.native_group_norm.default(image.permute(0, 3, 1, 2), None, None, 8, 32, 784, 4, 1e-5))
        attempt(lambda: ATEN.embedding.default(x[0], make.index(96, 10, 20).t()))
        attempt(lambda: ATEN.copy_.default(make(64, 128, dtype=dtype), host.t()))
        attempt(lambda: ATEN._to_copy.default(host.t(), dtype=dtype, device=make.device))
        attempt(lambda: ATEN._to_copy.default(turned, device="cpu"))
        attempt(lambda: ATEN._to_copy.default(turned, dtype=F32))
        attempt(lambda: ATEN.max_pool2d_with_indices.default(image.permute(0, 3, 1, 2), [2, 2]))
        attempt(lambda: ATEN._fused_rms_norm.default(turned, [128], w, 1e-5))
        attempt(lambda: ATEN.glu.default(turned, -1))
        attempt(lambda: ATEN.mean.dim(image, [1, 2]))
        attempt(lambda: ATEN.where.self(turned > 0.5, turned, turned))
        attempt(lambda: ATEN.masked_fill.Scalar(turned, turned > 0.5, 0.0))
        attempt(
            lambda: ATEN.scatter_add.default(turned, 0, make.index(96, 10, 64, 128), make(10, 64, 128, dtype=dtype))
        )

    return run


def recurrent_points() -> list[Point]:
    found = [entry for entry in ops.recurrent() if entry.label.startswith("rnn")]
    random.Random(1).shuffle(found)
    found.sort(key=lambda entry: entry.label not in {"rnn/packed"})
    return found


def points() -> list[Point]:
    """The most telling families first, the others mixed, so that a budget cut short leaves some of each."""
    everything = [*attention.points(), *more(), *(p for p in ops.points() if not p.label.startswith("rnn"))]
    random.Random(0).shuffle(everything)
    taken: dict[str, int] = {}
    first, rest = [], []
    for entry in everything:
        taken[entry.label] = taken.get(entry.label, 0) + 1
        if taken[entry.label] <= QUOTAS.get(entry.label, DEFAULT):
            (first if entry.label.startswith(FIRST) else rest).append(entry)
    return [*first, *rest]
