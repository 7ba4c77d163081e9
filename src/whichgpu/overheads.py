"""GPU memory that a training process takes outside PyTorch's allocator: CUDA's context and the libraries' code.

Measured on one card only (data/overheads.toml). Smaller and older cards usually take less, so the measured figure is an
upper bound for them, and "fits" stays on the safe side.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import msgspec


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """One measured context."""

    gpu: str
    start_bytes: int  # after the first CUDA call
    end_bytes: int  # after training steps with cuBLAS and cuDNN: the largest seen
    source: str
    checked: str


@cache
def measured() -> tuple[Overhead, ...]:
    """All measured contexts."""
    raw = tomllib.loads((resources.files("whichgpu") / "data" / "overheads.toml").read_text(encoding="utf-8"))
    return tuple(msgspec.convert(row, Overhead) for row in raw["context"])


def context_bytes() -> int:
    """Bytes to leave free for the context on a card: the largest measured on any card so far."""
    return max(row.end_bytes for row in measured())
