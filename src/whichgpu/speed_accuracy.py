"""How good the speed predictions are: predicted against measured and published step times, with the bars and whether they are met.

The figures are packaged (data/speed_accuracy.json, written by tools/compare_steps.py); docs/speed.md has the details.
"""

from __future__ import annotations

from importlib import resources

import msgspec


class SpeedBar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar, with what was reached."""

    title: str
    wanted: str
    reached: str
    met: bool


class SpeedErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the relative errors of some step times."""

    title: str
    fitted: bool  # whether constants were fitted to these very steps
    steps: int
    median: float
    percentile_90: float


class SpeedAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu accuracy speed`."""

    date: str
    fitted_on: tuple[str, ...]
    bars: tuple[SpeedBar, ...]
    errors: tuple[SpeedErrors, ...]


def report() -> SpeedAccuracy:
    """The figures that come with this version."""
    data = resources.files("whichgpu").joinpath("data", "speed_accuracy.json").read_bytes()
    return msgspec.json.decode(data, type=SpeedAccuracy)
