"""Figures of a card in the wrong unit, or that contradict each other: TB/s for GB/s, GiB for bytes, a rate that `no` denies.

A figure is compared with those of the shipped cards, of which it may be a tenth of the least to ten times the largest, and
with the others of the same card. The bounds are wide enough for every shipped card (a test says so).

Not covered: a wrong figure that is as large as some card's. `tests/core/test_catalogue_data.py` looks closer at shipped cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date

from whichgpu.catalogue.days import first
from whichgpu.catalogue.records import Gpu, version

__all__ = ["impossible"]

MARGIN = 10.0  # times the largest of the shipped cards, or below the least
MEMORY_SHARE = (0.8, 1.05)  # of the memory as sold that a driver shows; shipped: 0.91 to 1.00
SHARED_MEMORY_SHARE = (0.7, 1.05)  # the same without CUDA, where the processor keeps its own; shipped: 0.75 to 1.00
RATE_OF_FP32 = (1 / 80, 200.0)  # shipped: 1.0 to 62.5; GeForce cards of Pascal compute in fp16 at 1/64
_BOUNDED = {
    "memory_gib": "GiB",
    "bandwidth_gb_per_s": "GB/s (10^9 bytes)",
    "fp32_tflops": "TFLOPS",
    "sm_count": "SMs",
    "boost_mhz": "MHz",
    "l2_mib": "MiB",
    "tdp_w": "W",
    "pcie_gen": "the generation",
    "launch_price_usd": "USD",
}
_RATES = ("tf32_tflops", "fp16_tflops", "fp16_fp16_accumulate_tflops", "bf16_tflops", "fp8_tflops")


def impossible(gpu: Gpu, shipped: Iterable[Gpu]) -> tuple[str, str] | None:
    """The first field of a card that can hardly be right with what is wrong and what to do; None where all may be right."""
    return next(_problems(gpu, list(shipped)), None)


def _problems(gpu: Gpu, shipped: list[Gpu]) -> Iterator[tuple[str, str]]:
    expected = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    if not expected:
        yield "name", f'"{gpu.name}" has no letter from a to z and no digit to be asked for by; write one with them'
    elif gpu.id != expected:
        yield "id", f'"{gpu.id}" is not the name in lower case with hyphens; write id = "{expected}"'
    if first(gpu.release) > date.today():
        yield "release", f"{gpu.release} is in the future; write the month in which it was first sold"
    yield from _capability(gpu, shipped)
    for field, unit in _BOUNDED.items():
        yield from _bounded(gpu, shipped, field, unit)
    if gpu.nvlink_gb_per_s:
        yield from _bounded(gpu, shipped, "nvlink_gb_per_s", "GB/s in both directions, 0 for none")
    yield from _memory(gpu)
    yield from _rates(gpu, shipped)


def _capability(gpu: Gpu, shipped: list[Gpu]) -> Iterator[tuple[str, str]]:
    if gpu.compute_capability is None:
        if gpu.cuda:
            yield "compute_capability", 'a card of NVIDIA has one; add a line compute_capability = "8.9" with its own'
        return
    known = sorted({version(other.compute_capability) for other in shipped if other.compute_capability})
    # of a known generation: a later minor runs the kernels of an earlier one
    if not known[0][0] <= version(gpu.compute_capability)[0] <= known[-1][0]:
        least, most = (f"{major}.{minor}" for major, minor in (known[0], known[-1]))
        what = f"{gpu.compute_capability} is none of a known generation ({least} to {most})"
        yield "compute_capability", f"{what}; write that of https://developer.nvidia.com/cuda-gpus"


def _bounded(gpu: Gpu, shipped: list[Gpu], field: str, unit: str) -> Iterator[tuple[str, str]]:
    value = getattr(gpu, field)
    if value is None:
        return
    low, high = _range(shipped, field)
    if not low / MARGIN <= value <= high * MARGIN:
        yield field, f"{value:g} is far from all shipped cards ({low:g} to {high:g}); write it in {unit}"


def _range(shipped: list[Gpu], field: str) -> tuple[float, float]:
    values = [value for other in shipped if (value := getattr(other, field))]
    return min(values), max(values)


def _memory(gpu: Gpu) -> Iterator[tuple[str, str]]:
    sold = gpu.memory_gib * 2**30
    low, high = MEMORY_SHARE if gpu.cuda else SHARED_MEMORY_SHARE
    if not low * sold <= gpu.memory_bytes <= high * sold:
        yield (
            "memory_bytes",
            f"{gpu.memory_bytes} is not {low:g} to {high:g} times the memory_gib of {gpu.memory_gib:g} ({sold:.0f} bytes); "
            "write the bytes that the driver shows, or correct memory_gib",
        )


def _rates(gpu: Gpu, shipped: list[Gpu]) -> Iterator[tuple[str, str]]:
    for dtype in gpu.no:
        if getattr(gpu, f"{dtype}_tflops") is not None:
            yield f"{dtype}_tflops", f'a rate beside no = ["{dtype}"]; leave one of the two out'
    least_fp32, _ = _range(shipped, "fp32_tflops")
    for field in _RATES:
        value = getattr(gpu, field)
        if value is None:
            continue
        _, most = _range(shipped, field)
        low, high = least_fp32 / MARGIN * RATE_OF_FP32[0], most * MARGIN
        if not low <= value <= high:
            yield field, f"{value:g} is not between {low:.2g} and {high:g}; write dense TFLOPS"
        elif gpu.fp32_tflops and not RATE_OF_FP32[0] <= value / gpu.fp32_tflops <= RATE_OF_FP32[1]:
            times = f"{value / gpu.fp32_tflops:.3g} times the fp32_tflops of {gpu.fp32_tflops:g}"
            yield field, f"{value:g} is {times}; write both in dense TFLOPS"
