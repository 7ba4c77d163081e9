"""Attempts as measurements on record, and what is on record already."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import msgspec

from whichgpu import gpu_status
from whichgpu.bench.environment import same_place
from whichgpu.bench_attempts import Loaded, Said
from whichgpu.results import LOCAL, OUTCOMES, Environment, Measurement, Outcome, Store

_REPEATED = frozenset({"crash", "hang", "busy", "driver"})  # chance, or no fault of the batch: measured again


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """What all measurements of one workload on one card share."""

    workload: str
    loaded: Loaded
    environment: Environment

    def measurement(
        self,
        size: int,
        limit: int | None,
        said: Said,
        used_bytes: int | None,
        readings: gpu_status.Readings | None,
    ) -> Measurement:
        """An attempt with all that is known of it; `used_bytes` of the card were taken before it."""
        readings = readings or gpu_status.Readings()
        outcome: Outcome = said.outcome if said.outcome in OUTCOMES else "driver"  # type: ignore[assignment]
        rate = size / said.step_s[0] if said.step_s is not None and said.step_s[0] > 0 else None
        outside = said.outside_bytes
        return Measurement(
            workload=self.workload,
            workload_hash=self.loaded.workload_hash,
            batch_size=size,
            memory_limit_bytes=limit,
            outcome=outcome,
            message=said.message,
            peak_allocated_bytes=said.peak_allocated_bytes,
            peak_reserved_bytes=said.peak_reserved_bytes,
            context_bytes=max(outside - used_bytes, 0) if outside is not None and used_bytes is not None else None,
            step_s=said.step_s,
            steps=said.steps,
            converged=said.converged,
            unit=self.loaded.unit,
            items_per_sample=self.loaded.items_per_sample,
            samples_per_second=rate,
            power_w=readings.power_w,
            energy_per_sample_j=readings.power_w / rate if readings.power_w is not None and rate else None,
            sm_clock_mhz=readings.sm_clock_mhz,
            temperature_c=readings.temperature_c,
            throttled=readings.throttled,
            attempt_s=said.attempt_s,
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            origin=LOCAL,
            environment=msgspec.structs.replace(
                self.environment, flags=said.flags if said.flags else self.environment.flags
            ),
        )

    def known(self, store: Store, limit: int | None, steps: int) -> dict[int, Measurement]:
        """What is on record for the same workload, environment and limit: by batch size, one with speeds if there is."""
        found: dict[int, Measurement] = {}
        for measured in store.find(workloads=[self.workload], origin=LOCAL):
            if (
                measured.workload_hash == self.loaded.workload_hash
                and measured.memory_limit_bytes == limit
                and measured.outcome not in _REPEATED
                and (measured.outcome != "ok" or measured.step_s is not None or measured.steps >= steps)
                and same_place(measured.environment, self.environment)
            ):
                before = found.get(measured.batch_size)
                if before is None or before.outcome != "ok" or before.step_s is None or measured.outcome != "ok":
                    found[measured.batch_size] = measured
        return found
