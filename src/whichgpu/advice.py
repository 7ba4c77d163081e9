"""The records that `fit` and `rank` answer with, and how they are made from estimates and the catalogue.

The command line's `--json` prints exactly these records; the Python functions return them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Basis = Literal["measured", "predicted", "published"]
Tier = Literal["all", "most", "poor"]  # trains all, trains most (small batches), not a good fit


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a card costs to buy, or an hour of it to rent: the median over `offers` offers."""

    usd: float
    unit: Literal["once", "hour"]
    condition: str  # "new", "used", "on-demand", "spot"
    offers: int  # how many offers the median is over
    lowest_usd: float
    highest_usd: float
    oldest: str  # date of the oldest offer used, ISO ("2026-05-24" or "2026-05")
    newest: str
    providers: tuple[str, ...]
    sources: tuple[str, ...]


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the workload was traced."""

    kind: Literal["fake", "real-cpu"]
    affine: bool  # sizes at every batch size follow from two traces
    seconds: float  # wall time of tracing; 0.0 when it came from the cache
    cached: bool = False
    torch_version: str = ""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes held at the moment of the allocated peak, by what they are for; they add up to the peak."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    workspaces_bytes: int
    inputs_bytes: int
    buffers_bytes: int


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One card (or one memory limit) against one workload at one batch size."""

    gpu: str
    memory_bytes: int  # what the driver reports, or the limit
    fits: bool
    peak_reserved_bytes: int | None  # at the batch size; None when it does not fit
    peak_allocated_bytes: int | None
    context_bytes: int  # outside PyTorch's allocator: CUDA context and loaded libraries; 0 under a limit
    max_batch_size: int  # 0 when not even batch 1 fits
    max_batch_size_pow2: int
    breakdown: Breakdown | None
    peak_phase: str  # phase at the allocated peak
    peak_op: str  # operator at the allocated peak
    supported: bool  # the installed torch has kernels for the card, and the card has the step's dtypes
    notes: tuple[str, ...]


class FitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu fit`."""

    workload: str
    batch_size: int
    basis: Basis
    trace: TraceInfo
    gpus: tuple[FitRow, ...]
    notes: tuple[str, ...] = ()  # caveats that hold for every card


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One card against all workloads asked for."""

    gpu: str
    memory_bytes: int
    compute_capability: str
    tier: Tier
    trains: int  # how many of the workloads fit at batch 1 or more
    max_batch_size: dict[str, int]  # by workload; 0 is printed as "*"
    max_batch_size_pow2: dict[str, int]
    supported: bool
    buy: Price | None
    rent: Price | None
    notes: tuple[str, ...]


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu rank`; cards are in the order of recommendation."""

    workloads: tuple[str, ...]
    basis: Basis
    traces: dict[str, TraceInfo]
    gpus: tuple[RankRow, ...]
    notes: tuple[str, ...] = ()
