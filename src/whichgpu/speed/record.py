"""The record of a speed, as `fit` and `rank` answer with it: predicted, or measured or published where that is known."""

from __future__ import annotations

from typing import Literal

import msgspec

from whichgpu.speed.step_time import interval_s

Limit = Literal["compute", "memory", "host"]


class PredictedSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """A training step on a card at one batch size; the interval of a prediction holds about 80 % of the time.

    That of a measurement is the median's 95 % interval; a published figure has none: both ends are the figure.
    """

    basis: Literal["measured", "predicted", "published"] = "predicted"
    batch_size: int
    step_s: float
    step_low_s: float
    step_high_s: float
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    # what takes longest, always as predicted: arithmetic, memory bandwidth, or the host that launches kernels
    limit: Limit | None
    source: str = ""  # of a measurement or a published figure, with its date


def speed(batch_size: int, step_s: float, half_width: float, limit: Limit) -> PredictedSpeed:
    """A step time within so much of its logarithm, as a record."""
    low_s, high_s = interval_s(step_s, half_width)
    return PredictedSpeed(
        batch_size=batch_size,
        step_s=_rounded(step_s),
        step_low_s=_rounded(low_s),
        step_high_s=_rounded(high_s),
        samples_per_s=_rounded(batch_size / step_s),
        samples_per_s_low=_rounded(batch_size / high_s),
        samples_per_s_high=_rounded(batch_size / low_s),
        limit=limit,
    )


def _rounded(value: float) -> float:
    """Four digits: more would promise what a prediction does not keep."""
    return float(f"{value:.4g}")
