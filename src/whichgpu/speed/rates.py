"""What a card offers: arithmetic by dtype, bandwidth, processors, power; from the catalogue alone."""

from __future__ import annotations

from typing import NamedTuple

from whichgpu.catalogue import Gpu
from whichgpu.errors import CatalogueError

# Without tensor cores halves are stored in 16 bits and computed in 32: what cuBLAS and cuDNN do there
_PIPES = ("fp32", "tf32", "fp16", "bf16")
# Rate of float64 by that of float32, by compute capability: results per clock of a multiprocessor, from the table of arithmetic
# instructions in NVIDIA's CUDA programming guide; 10.3 from the datasheet of B300 (1.2 of 77 TFLOPS). The tensor cores
# for float64 of 8.0, 9.0 and 10.0, which only products use and which are twice as fast, are left out.
_LEAST_FP64_SHARE = 1 / 64
FP64_SHARE = {
    **dict.fromkeys(("3.5", "3.7"), 1 / 3),
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2", "7.5"), 1 / 32),
    **dict.fromkeys(("6.0", "7.0", "8.0", "9.0", "10.0"), 1 / 2),
    **dict.fromkeys(("8.6", "8.7", "8.9", "10.3", "12.0", "12.1"), 1 / 64),
}


class Rates(NamedTuple):
    """A card in SI units."""

    name: str
    architecture: str
    flops: dict[str, float]  # peak by pipe
    emulated: frozenset[str]  # pipes that the card does not have and computes otherwise
    bandwidth: float  # bytes a second
    multiprocessors: int
    cache_bytes: float
    watts: float
    year: float
    clock_hz: float

    @property
    def lanes(self) -> float:
        """Multiply-adds in float32 that one multiprocessor begins in a clock: 64 or 128."""
        return self.flops["fp32"] / (2 * self.multiprocessors * self.clock_hz)


def rates(gpu: Gpu) -> Rates:
    """The rates of a card; CatalogueError that names the figure that is missing."""
    fp32, processors, watts = gpu.fp32_tflops, gpu.sm_count, gpu.tdp_w
    if fp32 is None or processors is None or watts is None:
        missing = [name for name in ("fp32_tflops", "sm_count", "tdp_w") if getattr(gpu, name) is None]
        raise CatalogueError(f"{gpu.name}: its {' and '.join(missing)} are unknown, so that no speed can be predicted")
    own = {"fp32": fp32, "tf32": gpu.tf32_tflops, "fp16": gpu.fp16_tflops, "bf16": gpu.bf16_tflops}
    flops = {pipe: 1e12 * (own[pipe] or fp32) for pipe in _PIPES}
    flops["fp64"] = flops["fp32"] * FP64_SHARE.get(gpu.compute_capability or "", _LEAST_FP64_SHARE)
    year, month = gpu.release.split("-")
    return Rates(
        name=gpu.name,
        architecture=gpu.architecture,
        flops=flops,
        emulated=frozenset(pipe for pipe in _PIPES if own[pipe] is None),
        bandwidth=1e9 * gpu.bandwidth_gb_per_s,
        multiprocessors=processors,
        cache_bytes=2**20 * (gpu.l2_mib or 4.0),
        watts=watts,
        year=int(year) + (int(month) - 1) / 12,
        clock_hz=1e6 * (gpu.boost_mhz or 1500.0),
    )
