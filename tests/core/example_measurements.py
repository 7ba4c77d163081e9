"""Made-up measurements for tests of results and tables."""

from __future__ import annotations

from typing import Any

import msgspec

from whichgpu.results import Environment, Measurement

GIB = 1 << 30


def environment(**changes: Any) -> Environment:
    """The environment of an H200."""
    made = Environment(
        gpu="NVIDIA H200",
        gpu_id="h200-sxm-141gb",
        gpu_uuid_hash="0123456789abcdef",
        gpu_memory_bytes=150_110_011_392,
        compute_capability="9.0",
        driver="570.86",
        cuda="13.0",
        torch="2.11.0+cu130",
        cudnn="9.10",
        python="3.11.9",
        libraries={"timm": "1.0.20"},
        flags={"tf32_matmul": False, "allocator": "default"},
        whichgpu="0.1.0",
    )
    return msgspec.structs.replace(made, **changes)


def measurement(batch_size: int = 64, outcome: str = "ok", *, timed: bool = True, **changes: Any) -> Measurement:
    """An attempt at a batch; changes of fields of its environment are taken, too."""
    around = {key: changes.pop(key) for key in list(changes) if key in Environment.__struct_fields__}
    speed = outcome == "ok" and timed
    made = Measurement(
        workload="resnet50",
        workload_hash="a1b2c3d4e5f6",
        batch_size=batch_size,
        memory_limit_bytes=None,
        outcome=outcome,  # type: ignore[arg-type]
        message=None if outcome == "ok" else f"made-up {outcome}",
        peak_allocated_bytes=GIB if outcome == "ok" else None,
        peak_reserved_bytes=2 * GIB if outcome == "ok" else None,
        context_bytes=640 << 20,
        step_s=(0.25, 0.249, 0.251) if speed else None,
        steps=40 if speed else 3,
        converged=True if speed else None,
        unit="images",
        items_per_sample=1,
        samples_per_second=batch_size / 0.25 if speed else None,
        power_w=650.5 if speed else None,
        energy_per_sample_j=2.5 if speed else None,
        sm_clock_mhz=1980.0 if speed else None,
        temperature_c=51.0 if speed else None,
        throttled=(),
        attempt_s=4.5,
        measured_at="2026-11-30T12:00:00Z",
        origin="local",
        environment=environment(**around),
    )
    return msgspec.structs.replace(made, **changes)


def search(largest: int, **changes: Any) -> list[Measurement]:
    """A batch that fits and the next, which does not; none fits where `largest` is 0."""
    fits = [measurement(largest, **changes)] if largest else []
    return [*fits, measurement(largest + 1, "out_of_memory", **changes)]
