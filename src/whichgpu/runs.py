"""What a whole training run takes on a card: time, energy and rent, from the speed of its steps.

Time is that of whole steps, as many as it takes to see all samples: a run cannot end within a step. Data loading, evaluation and
checkpoints are not in it. Energy is what the board takes at
its power limit for that time, which is the most it can be; the machine around the card is not in it. Rent is the hourly price by
that time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from whichgpu.speed.record import PredictedSpeed

S_AN_HOUR = 3600.0
_J_A_KWH = 3.6e6


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A training run on one card, at the batch size with most samples per second; ends are those of the speed."""

    basis: Literal["measured", "predicted", "published"]  # of the speed; energy and rent are always predicted from it
    samples: int
    batch_size: int
    seconds: float
    seconds_low: float
    seconds_high: float
    energy_kwh: float | None  # None where the board's power is unknown
    rent_usd: float | None = None  # None where no rent is known, or it was not asked for
    rent_low_usd: float | None = None
    rent_high_usd: float | None = None


def run(samples: int, speed: PredictedSpeed, watts: float | None, usd_an_hour: float | None = None) -> Run:
    """What so many samples take at a speed; a last step that they do not fill takes as long as the others."""
    steps = -(-samples // speed.batch_size)
    # by rates, which measured and published figures are told in
    seconds, low, high = (
        steps * speed.batch_size / rate
        for rate in (speed.samples_per_s, speed.samples_per_s_high, speed.samples_per_s_low)
    )
    hourly = None if usd_an_hour is None else usd_an_hour / S_AN_HOUR
    return Run(
        basis=speed.basis,
        samples=samples,
        batch_size=speed.batch_size,
        seconds=_rounded(seconds),
        seconds_low=_rounded(low),
        seconds_high=_rounded(high),
        energy_kwh=None if watts is None else _rounded(watts * seconds / _J_A_KWH),
        rent_usd=None if hourly is None else _rounded(hourly * seconds),
        rent_low_usd=None if hourly is None else _rounded(hourly * low),
        rent_high_usd=None if hourly is None else _rounded(hourly * high),
    )


def _rounded(value: float) -> float:
    """Four digits, as speeds have."""
    return float(f"{value:.4g}")
