"""The records that `whichgpu bench` answers with; `--json` prints exactly these."""

from __future__ import annotations

from typing import Literal

import msgspec

from whichgpu.results import Outcome

# With fewer steps not even the fastest and the slowest hold the median between them in 95 % of cases.
FEWEST_FOR_INTERVAL = 6


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a workload ran at one batch size."""

    batch_size: int
    step_s: float  # median
    step_low_s: float  # its 95 % interval
    step_high_s: float
    steps: int  # that were timed
    converged: bool  # the interval is within 1 %; else the time budget ended first
    samples_per_second: float
    units_per_second: float
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    power_w: float | None
    energy_per_sample_j: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One workload under one memory limit."""

    workload: str
    memory_limit_bytes: int | None  # None: the whole card
    batch_size: int | None  # that was asked for; None where the largest was searched for
    outcome: Outcome  # ok, or out_of_memory where not even batch 1 fits (or the batch asked for); else what went wrong
    message: str | None
    max_batch_size: int | None  # 0 when not even 1 fits; None when it was not searched for or not found
    exact: bool  # the next batch was run and did not fit (or the maximum was reached)
    stopped_by: Outcome | None  # how the next batch failed
    multiple: int  # the step refuses batch sizes that are not a multiple of this
    predicted_max_batch_size: int | None
    unit: str
    attempts: int  # made in the search now; earlier ones on record are not repeated
    recorded: int  # batch sizes that an earlier run had measured
    search_s: float
    seconds: float  # all together, prediction and speeds included
    speeds: tuple[Speed, ...]  # the largest batch first


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu bench`."""

    basis: Literal["measured"] = "measured"
    gpu: str
    gpu_memory_bytes: int
    compute_capability: str
    driver: str
    torch: str
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...]

    @property
    def answered(self) -> bool:
        """Whether every row has its answer."""
        return all(row.outcome in ("ok", "out_of_memory") for row in self.rows)
