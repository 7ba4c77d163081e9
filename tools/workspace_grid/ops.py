# ruff: noqa: PLC3002, PLW0108
"""Every other operator: matrix products, normalisation, losses, indexing, sorting, reductions, pooling, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from workspace_grid.points import ATEN, BF16, BOOL, DTYPES, F16, F32, I32, I64, Make, Point

Build = Callable[[Make], Callable[[], Any]]
nn, F = torch.nn, torch.nn.functional


def point(label: str, build: Build, **settings: Any) -> Point:
    return Point(label, lambda device: build(Make(device)), settings)


def trained(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[[], Any]:
    """Forward and backward through autograd, with gradients for the floating-point inputs."""

    def run() -> Any:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        out = function(*leaves)
        outs = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if o.requires_grad]
        torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])
        return out

    return run


def matrix_products() -> Iterator[Point]:
    sizes = ((1, 1, 1), (8, 8, 8), (16, 1000, 2048), (32, 768, 768), (64, 10, 512), (128, 4096, 1024), (512, 768, 3072),
             (1024, 1024, 1024), (2048, 2304, 768), (4096, 4096, 4096), (8192, 50257, 768), (8192, 768, 3072),
             (37, 61, 127), (1, 4096, 4096), (4096, 1, 4096), (4096, 4096, 1), (16, 16, 100000), (64, 64, 1000000),
             (768, 768, 16384), (3072, 768, 8192))  # fmt: skip
    for kind, dtype in DTYPES.items():
        for m, n, k in sizes:
            for transposes in ("nn", "nt", "tn"):

                def build(make: Make, m=m, n=n, k=k, dtype=dtype, transposes=transposes) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                    a = make(k, m, dtype=dtype).t() if transposes[0] == "t" else make(m, k, dtype=dtype)
                    b = make(n, k, dtype=dtype).t() if transposes[1] == "t" else make(k, n, dtype=dtype)
                    bias, matrix = make(n, dtype=dtype), make(m, n, dtype=dtype)

                    def run() -> None:
                        ATEN.mm.default(a, b)
                        ATEN.addmm.default(bias, a, b)
                        ATEN.addmm.default(matrix, a, b)
                        ATEN._addmm_activation.default(bias, a, b, use_gelu=True)

                    return run

                yield point("gemm", build, matmul_tf32=kind == "tf32")
        for batch, m, n, k in (
            (12, 512, 512, 64),
            (96, 1024, 64, 1024),
            (384, 128, 128, 64),
            (8, 1, 1, 64),
            (3, 7, 5, 9),
        ):

            def build_batched(make: Make, batch=batch, m=m, n=n, k=k, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                a, b, c = (
                    make(batch, m, k, dtype=dtype),
                    make(batch, k, n, dtype=dtype),
                    make(batch, m, n, dtype=dtype),
                )
                strided = make(m, batch, k, dtype=dtype).transpose(0, 1)

                def run() -> None:
                    ATEN.bmm.default(a, b)
                    ATEN.baddbmm.default(c, a, b)
                    ATEN.bmm.default(strided, b)
                    ATEN.bmm.default(a, make(batch, n, k, dtype=dtype).transpose(1, 2))

                return run

            yield point("bmm", build_batched, matmul_tf32=kind == "tf32")

        def build_linear(make: Make, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
            x, w, b = make(8, 512, 768, dtype=dtype), make(3072, 768, dtype=dtype), make(3072, dtype=dtype)
            return trained(F.linear, x, w, b)

        yield point("linear", build_linear, matmul_tf32=kind == "tf32")
        yield point(
            "linear_strided",
            lambda make, dtype=dtype: trained(
                F.linear,
                make(512, 8, 768, dtype=dtype).transpose(0, 1),
                make(3072, 768, dtype=dtype),
                make(3072, dtype=dtype),
            ),
        )
    yield point(
        "mv",
        lambda make: (
            lambda: (
                ATEN.mv.default(make(512, 256), make(256)),
                ATEN.dot.default(make(5000), make(5000)),
                ATEN.addmv.default(make(512), make(512, 256), make(256)),
            )
        ),
    )
    for equation, shapes in (
        ("bhid,bhjd->bhij", ((4, 8, 128, 64), (4, 8, 128, 64))),
        ("bij,jk->bik", ((4, 128, 64), (64, 32))),
        ("bhij,bhjd->bihd", ((4, 8, 128, 128), (4, 8, 128, 64))),
        ("ibnd,jbnd->bnij", ((128, 4, 8, 64), (128, 4, 8, 64))),
    ):
        yield point(
            "einsum",
            lambda make, equation=equation, shapes=shapes: trained(
                lambda a, b: torch.einsum(equation, a, b),
                make(*shapes[0], dtype=BF16),
                make(*shapes[1], dtype=BF16),
            ),
        )

    def grouped(make: Make) -> Callable[[], Any]:
        a, b = make(1024, 256, dtype=BF16), make(8, 256, 512, dtype=BF16)
        ends = torch.arange(128, 1025, 128, dtype=I32, device=make.device)
        return lambda: torch._grouped_mm(a, b, offs=ends)

    yield point("grouped_mm", grouped)


def normalisation() -> Iterator[Point]:
    for dtype in (F32, BF16, F16):
        for rows, width in ((1, 768), (33, 768), (512, 768), (4096, 768), (8192, 1024), (65536, 96), (16384, 4096), (200000, 64),
                            (100, 50000), (2048, 8192), (127, 127), (3136, 192), (100352, 128)):  # fmt: skip

            def layer(make: Make, rows=rows, width=width, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x, w, b = make(rows, width, dtype=dtype), make(width, dtype=dtype), make(width, dtype=dtype)

                def run() -> None:
                    out, mean, rstd = ATEN.native_layer_norm.default(x, [width], w, b, 1e-5)
                    ATEN.native_layer_norm_backward.default(out, x, [width], mean, rstd, w, b, [True, True, True])
                    ATEN.native_layer_norm_backward.default(out, x, [width], mean, rstd, w, b, [True, False, False])
                    ATEN.native_layer_norm_backward.default(out, x, [width], mean, rstd, w, None, [True, True, False])

                return run

            yield point("layer_norm", layer)
            yield point(
                "rms_norm",
                lambda make, rows=rows, width=width, dtype=dtype: trained(
                    lambda x, w: F.rms_norm(x, (width,), w, 1e-6),
                    make(rows, width, dtype=dtype),
                    make(width, dtype=dtype),
                ),
            )
            yield point(
                "softmax",
                lambda make, rows=rows, width=width, dtype=dtype: trained(
                    lambda x: F.softmax(x, -1), make(rows, width, dtype=dtype)
                ),
            )
            yield point(
                "log_softmax",
                lambda make, rows=rows, width=width, dtype=dtype: trained(
                    lambda x: F.log_softmax(x, -1, dtype=torch.float32), make(rows, width, dtype=dtype)
                ),
            )
            yield point(
                "logsumexp",
                lambda make, rows=rows, width=width, dtype=dtype: trained(
                    lambda x: torch.logsumexp(x, -1), make(rows, width, dtype=dtype)
                ),
            )
        yield point(
            "softmax_dim1",
            lambda make, dtype=dtype: trained(lambda x: F.softmax(x, 1), make(8, 64, 64, 64, dtype=dtype)),
        )
        for layout in ("contiguous", "channels_last"):
            for n, c, side in (
                (2, 64, 56),
                (32, 64, 56),
                (128, 64, 112),
                (32, 2048, 7),
                (1, 3, 5),
                (256, 512, 14),
                (16, 256, 128),
                (8, 1024, 32),
            ):

                def batch_norm(
                    make: Make, n=n, c=c, side=side, dtype=dtype, layout=layout, training=True
                ) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                    x = make(n, c, side, side, dtype=dtype, layout=layout)
                    mean, var = make(c), make(c)
                    return trained(lambda x, w, b: F.batch_norm(x, mean, var, w, b, training), x, make(c), make(c))

                yield point("batch_norm", batch_norm)
                yield point("batch_norm_eval", lambda make, f=batch_norm: f(make, training=False))
                yield point(
                    "group_norm",
                    lambda make, n=n, c=c, side=side, dtype=dtype, layout=layout: trained(
                        lambda x, w, b: F.group_norm(x, 32 if c % 32 == 0 else 1, w, b),
                        make(n, c, side, side, dtype=dtype, layout=layout),
                        make(c, dtype=dtype),
                        make(c, dtype=dtype),
                    ),
                )
                yield point(
                    "instance_norm",
                    lambda make, n=n, c=c, side=side, dtype=dtype, layout=layout: trained(
                        lambda x: F.instance_norm(x), make(n, c, side, side, dtype=dtype, layout=layout)
                    ),
                )
        yield point(
            "batch_norm_1d",
            lambda make, dtype=dtype: trained(
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
                make(4096, 512, dtype=dtype),
                make(512),
                make(512),
            ),
        )
        yield point(
            "batch_norm_3d",
            lambda make, dtype=dtype: trained(
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
                make(4, 32, 16, 32, 32, dtype=dtype),
                make(32),
                make(32),
            ),
        )
        yield point(
            "dropout",
            lambda make, dtype=dtype: trained(lambda x: F.dropout(x, 0.1), make(512, 768, dtype=dtype)),
        )


def losses() -> Iterator[Point]:
    for dtype in (F32, BF16):
        for rows, classes in ((32, 1000), (8192, 50257), (4096, 32000), (64, 10), (262144, 21)):
            yield point(
                "cross_entropy",
                lambda make, rows=rows, classes=classes, dtype=dtype: (
                    lambda target: trained(lambda x: F.cross_entropy(x, target), make(rows, classes, dtype=dtype))
                )(make.index(classes, rows)),
            )
            yield point(
                "cross_entropy_smooth",
                lambda make, rows=rows, classes=classes, dtype=dtype: (
                    lambda target: trained(
                        lambda x: F.cross_entropy(x, target, label_smoothing=0.1),
                        make(rows, classes, dtype=dtype),
                    )
                )(make.index(classes, rows)),
            )
        yield point(
            "cross_entropy_2d",
            lambda make, dtype=dtype: (
                lambda target: trained(lambda x: F.cross_entropy(x, target), make(4, 21, 256, 256, dtype=dtype))
            )(make.index(21, 4, 256, 256)),
        )
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits", "huber_loss"):
        yield point(
            name,
            lambda make, name=name: (lambda target: trained(lambda x: getattr(F, name)(x, target), make(4096, 1024)))(
                make(4096, 1024)
            ),
        )
    for steps, batch, classes, target in ((50, 16, 30, 10), (1500, 32, 32, 150), (400, 8, 5000, 60)):

        def ctc(make: Make, steps=steps, batch=batch, classes=classes, target=target) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
            labels = make.index(classes - 1, batch, target) + 1
            long = torch.full((batch,), steps, dtype=I64)
            short = torch.full((batch,), target, dtype=I64)
            return trained(lambda x: F.ctc_loss(F.log_softmax(x, 2), labels, long, short), make(steps, batch, classes))

        yield point("ctc_loss", ctc)


def indexing() -> Iterator[Point]:
    for vocabulary in (2, 100, 3000, 30522, 50257, 250000, 1000000):
        for count in (1, 100, 1000, 3072, 3073, 6144, 10000, 32768, 100000, 1000000):
            for dtype, width in ((F32, 64), (BF16, 768)):
                if vocabulary * width > 3e8 or count * width > 3e8:
                    continue

                def dense(
                    make: Make, vocabulary=vocabulary, count=count, dtype=dtype, width=width
                ) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                    index, grad = make.index(vocabulary, count), make(count, width, dtype=dtype)

                    def run() -> None:
                        ATEN.embedding_dense_backward.default(grad, index, vocabulary, -1, False)
                        ATEN.embedding_dense_backward.default(grad, index, vocabulary, 0, False)

                    return run

                yield point("embedding_dense_backward", dense)
    yield point(
        "embedding_scaled",
        lambda make: (lambda i: lambda: ATEN.embedding_dense_backward.default(make(5000, 64), i, 3000, -1, True))(
            make.index(3000, 5000)
        ),
    )
    for mode in (0, 1, 2):
        for sparse in (False, True):
            for bags, length, vocabulary, width in (
                (512, 10, 10000, 64),
                (65536, 4, 1000000, 16),
                (2048, 1, 100000, 128),
            ):

                def bag(
                    make: Make,
                    mode=mode,
                    sparse=sparse,
                    bags=bags,
                    length=length,
                    vocabulary=vocabulary,
                    width=width,
                ) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                    index = make.index(vocabulary, bags * length)
                    offsets = torch.arange(0, bags * length, length, device=make.device)
                    return trained(
                        lambda w: F.embedding_bag(index, w, offsets, mode=("sum", "mean", "max")[mode], sparse=sparse),
                        make(vocabulary, width),
                    )

                if not (sparse and mode == 2):
                    yield point("embedding_bag", bag)
    yield point(
        "embedding_sparse",
        lambda make: (lambda i: trained(lambda w: F.embedding(i, w, sparse=True), make(100000, 64)))(
            make.index(100000, 4096)
        ),
    )
    for rows, width, count in (
        (1000, 64, 100),
        (1000, 64, 5000),
        (100000, 128, 1000000),
        (3000, 1, 3000),
        (64, 256, 200000),
        (50000, 16, 50000),
    ):
        for dtype in (F32, BF16):

            def scatter(make: Make, rows=rows, width=width, count=count, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x, source, index = (
                    make(rows, width, dtype=dtype),
                    make(count, width, dtype=dtype),
                    make.index(rows, count),
                )
                wide = index[:, None].expand(count, width)

                def run() -> None:
                    ATEN.index_put.default(x, [index], source, True)
                    ATEN.index_put.default(x, [index], source, False)
                    ATEN._index_put_impl_.default(x.clone(), [index], source, True, True)
                    ATEN.index_add.default(x, 0, index, source)
                    ATEN.scatter_add.default(x, 0, wide, source)
                    ATEN.scatter_add.default(x, 0, wide.contiguous(), source)
                    ATEN.index_select.default(x, 0, index)
                    ATEN.index.Tensor(x, [index])
                    ATEN.gather.default(x, 0, wide)
                    ATEN.index_copy.default(x, 0, index, source)
                    ATEN.scatter_reduce.two(x, 0, wide, source, "amax")

                return run

            yield point("scatter", scatter)
            yield point("scatter_deterministic", scatter, deterministic_algorithms=True)
            yield point(
                "gather_backward",
                lambda make, rows=rows, width=width, count=count, dtype=dtype: (
                    lambda i: trained(lambda x: torch.gather(x, 0, i), make(rows, width, dtype=dtype))
                )(make.index(rows, count, width)),
            )
            yield point(
                "index_backward",
                lambda make, rows=rows, width=width, count=count, dtype=dtype: (
                    lambda i: trained(lambda x: x[i], make(rows, width, dtype=dtype))
                )(make.index(rows, count)),
            )
            yield point(
                "index_select_backward",
                lambda make, rows=rows, width=width, count=count, dtype=dtype: (
                    lambda i: trained(lambda x: x.index_select(0, i), make(rows, width, dtype=dtype))
                )(make.index(rows, count)),
            )
    yield point(
        "index_two",
        lambda make: (lambda a, b: trained(lambda x: x[a, b], make(128, 512, 64)))(
            make.index(128, 9000), make.index(512, 9000)
        ),
    )
    yield point(
        "index_middle",
        lambda make: (lambda a: trained(lambda x: x[:, a], make(16, 512, 64)))(make.index(512, 700)),
    )
    yield point(
        "masked",
        lambda make: (lambda m: trained(lambda x: x[m], make(400, 3000)))(make.random(400, 3000) > 0.5),
    )
    yield point(
        "masked_3d",
        lambda make: (lambda m: trained(lambda x: x[m], make(8, 512, 768)))(make.random(8, 512) > 0.5),
    )


def searching() -> Iterator[Point]:
    for shape in ((1,), (100,), (1000,), (2048,), (2049,), (4096,), (4097,), (100000,), (3000000,), (8, 1000), (512, 1000), (64, 5000),
                  (16, 100000), (4, 32000), (20000, 7), (128, 128, 128)):  # fmt: skip
        for dtype in (F32, BF16, I64, F16):

            def search(make: Make, shape=shape, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x = make.index(10000, *shape).to(dtype) if dtype == I64 else make.random(*shape, dtype=dtype)
                k = max(1, min(50, shape[-1] // 2))

                def run() -> None:
                    ATEN.sort.default(x, -1, False)
                    ATEN.sort.default(x, -1, True)
                    ATEN.sort.stable(x, stable=True, dim=-1)
                    ATEN.topk.default(x, k)
                    ATEN.topk.default(x, 1)
                    ATEN.cumsum.default(x, -1)
                    ATEN.cumsum.default(x, 0)
                    ATEN.cumprod.default(x, -1)
                    ATEN.argsort.default(x) if hasattr(ATEN, "argsort") else None
                    ATEN.max.dim(x, -1)
                    ATEN.argmax.default(x)
                    ATEN.kthvalue.default(x, 1)
                    ATEN.median.default(x)

                return run

            yield point("search", search)

            def select(make: Make, shape=shape, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x = make.index(3, *shape).to(dtype)
                mask = x > 0

                def run() -> None:
                    ATEN.nonzero.default(x)
                    ATEN.nonzero.default(mask)
                    ATEN.masked_select.default(x, mask)
                    ATEN._unique2.default(x, True, False, False)
                    ATEN._unique2.default(x, True, True, True)
                    ATEN.cummax.default(x, -1)

                return run

            yield point("select", select)

    def draws(make: Make) -> Callable[[], Any]:
        weights, wide = make.random(5000) + 0.1, make.random(64, 32000) + 0.1

        def run() -> None:
            ATEN.multinomial.default(weights, 100, False)
            ATEN.multinomial.default(weights, 1, True)
            ATEN.multinomial.default(wide, 1)
            ATEN.multinomial.default(wide, 20, True)
            for n in (10, 1000, 100000, 1000000):
                ATEN.randperm.default(n, device=make.device)
            ATEN.bernoulli.default(weights.clamp(0, 1))
            ATEN.histc.default(weights, 100)
            ATEN.bincount.default(make.index(100, 5000))
            ATEN.bincount.default(make.index(100, 5000), weights)
            ATEN.searchsorted.Tensor(weights, weights)
            ATEN.bucketize.Tensor(weights, weights)
            ATEN.repeat_interleave.Tensor(make.index(5, 5000))

        return run

    yield point("draws", draws)


def reductions() -> Iterator[Point]:
    for shape in ((1,), (1000,), (100000,), (4000000,), (64000000,), (64, 1000000), (1000000, 64), (4096, 4096), (32, 3, 224, 224),
                  (256, 64, 56, 56), (8, 512, 768), (32768, 768), (65536, 3072), (128, 50257), (2, 7)):  # fmt: skip
        for dtype in (F32, BF16):

            def reduce(make: Make, shape=shape, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                x = make(*shape, dtype=dtype)
                rest = list(range(1, len(shape)))
                others = [i for i in range(len(shape)) if i != 1]

                def run() -> None:
                    for dims in ([], [0], [-1], rest, others):
                        ATEN.sum.dim_IntList(x, dims, True)
                        ATEN.mean.dim(x, dims, True)
                    ATEN.sum.default(x)
                    ATEN.sum.dim_IntList(x, [0], False, dtype=F32)
                    ATEN.mean.default(x)
                    ATEN.linalg_vector_norm.default(x, 2)
                    ATEN.linalg_vector_norm.default(x, 2, [-1])
                    ATEN.var_mean.correction(x, [-1], correction=0)
                    ATEN.var_mean.correction(x, [0], correction=0)
                    ATEN.amax.default(x, [-1])
                    ATEN.amax.default(x, [0])
                    ATEN.max.default(x)
                    ATEN.any.default(x)
                    ATEN.all.default(x > 0)
                    ATEN.std.correction(x, None, correction=1)

                return run

            yield point("reduce", reduce)
    for rows, columns in ((8, 8), (4096, 512), (100, 20000)):
        yield point(
            "cdist",
            lambda make, rows=rows, columns=columns: trained(
                torch.cdist, make.random(rows, 64), make.random(columns // 8, 64)
            ),
        )


def images() -> Iterator[Point]:
    for dtype in (F32, BF16):
        for layout in ("contiguous", "channels_last"):
            for n, c, side in ((32, 64, 112), (8, 256, 56), (2, 3, 224), (64, 512, 14)):

                def make_x(make: Make, n=n, c=c, side=side, dtype=dtype, layout=layout) -> torch.Tensor:  # type: ignore[no-untyped-def]
                    return make(n, c, side, side, dtype=dtype, layout=layout)

                table: dict[str, Callable[[torch.Tensor], Any]] = {
                    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
                    "max_pool_2": lambda x: F.max_pool2d(x, 2),
                    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
                    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, 1),
                    "adaptive_avg_7": lambda x: F.adaptive_avg_pool2d(x, 7),
                    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 7),
                    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
                    "bilinear_aa": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
                    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
                    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
                    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
                    "pad_reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
                    "pad_replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
                    "roll": lambda x: torch.roll(x, (3, 3), (2, 3)),
                    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x * 1,
                    "unfold": lambda x: F.unfold(x, 3),
                    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "flip": lambda x: x.flip(3),
                }  # fmt: skip
                for name, function in table.items():
                    yield point(name, lambda make, f=function, m=make_x: trained(f, m(make)))
            yield point(
                "grid_sample",
                lambda make, dtype=dtype, layout=layout: trained(
                    lambda x, g: F.grid_sample(x, g, align_corners=False),
                    make(4, 64, 64, 64, dtype=dtype, layout=layout),
                    make(4, 32, 32, 2, dtype=dtype),
                ),
            )
    yield point("max_pool3d", lambda make: trained(lambda x: F.max_pool3d(x, 2), make(2, 32, 32, 32, 32)))
    yield point("max_pool1d", lambda make: trained(lambda x: F.max_pool1d(x, 2), make(2, 32, 3200)))
    yield point("prelu", lambda make: trained(F.prelu, make(32, 64, 56, 56), make(64)))
    yield point("glu", lambda make: trained(F.glu, make(32, 64, 512)))
    for count in (2, 5, 64, 200):
        yield point(
            "cat",
            lambda make, count=count: (
                lambda xs: lambda: (ATEN.cat.default(xs), ATEN.cat.default(xs, 1), ATEN.stack.default(xs))
            )([make(64, 32) for _ in range(count)]),
        )


def optimizers() -> Iterator[Point]:
    sets = {
        "two": [(100,), (64, 64)],
        "many": [(64, 64)] * 300,
        "large": [(4096, 4096), (50000, 768)],
        "mixed": [(3,), (1000, 1000), (7, 7)] * 40,
    }
    table: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, 0.1), "sgd_momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4),
        "sgd_fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
        "adamw": lambda p: torch.optim.AdamW(p), "adam": lambda p: torch.optim.Adam(p, weight_decay=0.1),
        "adamw_amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True), "adamw_loop": lambda p: torch.optim.AdamW(p, foreach=False),
        "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True), "adamw_capturable": lambda p: torch.optim.AdamW(p, capturable=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p), "adagrad": lambda p: torch.optim.Adagrad(p), "adamax": lambda p: torch.optim.Adamax(p),
        "adadelta": lambda p: torch.optim.Adadelta(p), "nadam": lambda p: torch.optim.NAdam(p), "radam": lambda p: torch.optim.RAdam(p),
        "adafactor": lambda p: torch.optim.Adafactor(p), "rprop": lambda p: torch.optim.Rprop(p), "asgd": lambda p: torch.optim.ASGD(p),
    }  # fmt: skip
    if hasattr(torch.optim, "Muon"):
        table["muon"] = lambda p: torch.optim.Muon([x for x in p if x.dim() == 2])
    for name, create in table.items():
        for set_name, shapes in sets.items():
            for dtype in (F32, BF16):
                if dtype == BF16 and name not in ("adamw", "adamw_fused", "sgd_momentum"):
                    continue

                def build(make: Make, create=create, shapes=shapes, dtype=dtype) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                    parameters = [make(*shape, dtype=dtype).requires_grad_() for shape in shapes]
                    optimizer = create(parameters)
                    for parameter in parameters:
                        parameter.grad = torch.zeros_like(parameter)

                    def run() -> None:
                        nn.utils.clip_grad_norm_(parameters, 1.0)
                        optimizer.step()

                    return run

                yield point(f"optimizer/{name}/{set_name}", build)

    def scaler(make: Make) -> Callable[[], Any]:
        parameters = [make(64, 64).requires_grad_() for _ in range(300)]
        optimizer = torch.optim.SGD(parameters, 0.1)
        scale = torch.amp.GradScaler(make.device, enabled=make.device == "cuda")

        def run() -> None:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            scale.scale(make(1))
            scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scale.step(optimizer)
            scale.update()

        return run

    yield point("grad_scaler", scaler)


def recurrent() -> Iterator[Point]:
    for kind in ("LSTM", "GRU", "RNN"):
        for dtype in (F32, F16, BF16):
            for steps, batch, size, hidden, layers, both, dropout in (
                (35, 20, 650, 650, 2, False, 0.5), (35, 20, 200, 200, 2, False, 0.0), (128, 32, 512, 512, 1, True, 0.0),
                (128, 64, 256, 256, 2, True, 0.3), (20, 8, 32, 64, 1, False, 0.0), (256, 16, 1024, 1024, 1, False, 0.0),
                (70, 80, 400, 1150, 1, False, 0.0), (70, 128, 300, 512, 3, True, 0.2),
            ):  # fmt: skip

                def build(
                    make: Make,
                    k=kind,
                    d=dtype,
                    t=steps,
                    b=batch,
                    i=size,
                    h=hidden,
                    n=layers,
                    both=both,
                    p=dropout,
                ) -> Callable[[], Any]:  # type: ignore[no-untyped-def]
                    module = getattr(nn, k)(i, h, n, dropout=p, bidirectional=both).to(make.device, d)
                    x = make(t, b, i, dtype=d)

                    def run() -> Any:
                        out, _ = module(x.detach().requires_grad_())
                        out.backward(torch.ones_like(out))
                        return out

                    return run

                yield point(f"rnn/{kind}", build)
        yield point(
            f"rnn_cell/{kind}",
            lambda make, kind=kind: (lambda m, x: trained(lambda x: m(x), x))(
                getattr(nn, f"{kind}Cell")(256, 512).to(make.device), make(64, 256)
            ),
        )

    def packed(make: Make) -> Callable[[], Any]:
        module = nn.LSTM(256, 256, 2, batch_first=True, bidirectional=True).to(make.device)
        x, lengths = make(16, 100, 256), torch.arange(100, 84, -1)
        return trained(lambda x: module(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0].data, x)

    yield point("rnn/packed", packed)


def algebra() -> Iterator[Point]:
    def build(make: Make) -> Callable[[], Any]:
        a = make.random(256, 256) + torch.eye(256, device=make.device) * 300
        batch = make.random(16, 32, 32) + torch.eye(32, device=make.device) * 40
        signal = make.random(16, 16000)

        def run() -> None:
            for x in (a, batch):
                torch.linalg.inv(x)
                torch.linalg.cholesky(x @ x.transpose(-1, -2))
                torch.linalg.solve(x, x)
                torch.linalg.qr(x)
                torch.linalg.svd(x)
                torch.linalg.eigh(x @ x.transpose(-1, -2))
                torch.linalg.det(x)
            torch.fft.rfft(signal)
            torch.fft.fft2(make.random(8, 3, 64, 64))
            torch.stft(signal, 400, 160, return_complex=True, window=torch.ones(400, device=make.device))

        return run

    yield point("algebra", build)


def detection() -> Iterator[Point]:
    def build(make: Make) -> Callable[[], Any]:
        from torchvision import ops

        boxes = make.random(4000, 4)
        boxes[:, 2:] += boxes[:, :2]
        scores, features = make.random(4000), make.random(2, 256, 64, 64)
        rois = torch.cat([torch.zeros(100, 1, device=make.device), boxes[:100] * 30], 1)

        def run() -> None:
            ops.nms(boxes, scores, 0.5)
            ops.batched_nms(boxes, scores, make.index(80, 4000), 0.5)
            ops.box_iou(boxes, boxes[:100])
            trained(lambda x: ops.roi_align(x, rois, 7, 0.25), features)()
            ops.sigmoid_focal_loss(make.random(1000, 80), make.random(1000, 80))

        return run

    yield point("detection", build)


def points() -> list[Point]:
    """All points of this module, families mixed by `measure` as it likes."""
    families = (optimizers, recurrent, images, normalisation, losses, matrix_products, indexing, searching, reductions,
                algebra, detection)  # fmt: skip
    return [entry for family in families for entry in family()]


__all__ = ["BOOL", "points"]
