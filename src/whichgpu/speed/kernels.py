"""Seconds of a kernel on a card, from its cost, the card's rates and fitted constants.

A matrix product is cut into tiles that the processors take in waves, as cuBLAS and cuDNN do: of a few sizes of tiles, and of
cuts along the inner dimension, the quickest is taken, since the libraries choose well. Convolutions are the matrix products that
they are computed as. All else is limited by memory. Arithmetic and memory overlap but for a part.

Constants are natural logarithms (of a share of the peak, of a ratio) or seconds, by kind of operator and by kind of arithmetic;
how they were fitted, and to what, stands beside them in data/speed.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp, log

from whichgpu.speed.asked import Cost, Product
from whichgpu.speed.rates import Rates

Constants = Mapping[str, float]

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
CUTS = (1, 2, 4, 8, 16, 32)
_SHARPNESS = 4.0  # of the change between limits; 1 adds them, infinity takes the larger
_MANY_LANES = 96  # multiprocessors of 128 lanes share schedulers and registers that feed 64 elsewhere
HALVES = ("fp16", "bf16")
_PACE, _START = (
    1.8,
    0.0,
)  # where nothing was measured: elements a clock and multiprocessor, microseconds of a launch (logarithms)


def sustained_flops(rates: Rates, pipe: str, constants: Constants) -> float:
    """FLOP/s that large products reach: a share of the peak, less where the power limit is in the way."""
    peak = rates.flops[pipe]
    group = "fp32" if pipe in rates.emulated or pipe == "fp64" else "half" if pipe in HALVES else pipe
    share = exp(constants.get(f"peak.{group}", -0.25) + constants.get(f"peak.{group}.{rates.architecture}", 0.0))
    if group == "fp32" and rates.lanes > _MANY_LANES:
        share *= exp(constants.get("peak.lanes", -0.15))
    per_watt = exp(
        constants.get("power.fp32", 24.8) + constants.get("power.year", 0.1) * (rates.year - 2018)
        + (0.0 if group == "fp32" else constants.get(f"power.{group}", 1.3))
    )  # fmt: skip
    allowed = per_watt * rates.watts
    reached = peak * share
    return float((reached**-_SHARPNESS + allowed**-_SHARPNESS) ** (-1 / _SHARPNESS))


def product_seconds(
    product: Product, flops: float, rate: float, rates: Rates, constants: Constants, group: str = "fp32"
) -> float:
    """Seconds of arithmetic of a product at `rate` FLOP/s of the whole card; `group`: "fp32", "tf32" or "half"."""
    groups, rows, columns, inner = product
    if not (groups and rows and columns and inner):
        return 0.0
    best = float("inf")
    processors = rates.multiprocessors
    depth = exp(
        constants["shape.depth"] + constants.get(f"shape.depth.{group}", 0.0)
    )  # inner steps that beginning and ending a tile cost
    smooth = constants["shape.smooth"]
    small = constants["shape.small"] + constants.get(f"shape.small.{group}", 0.0)
    for number, (high, wide) in enumerate(TILES):
        if best < float("inf") and ((high > 2 * rows and high > 32) or (wide > 2 * columns and wide > 32)):
            continue
        tiles = groups * ceil(rows / high) * ceil(columns / wide)
        slower = exp(-small * number)
        each = 2.0 * high * wide * processors / (rate * slower)
        for cut in CUTS:
            if cut > 1 and (inner / cut < 64 or tiles * cut > 8 * processors):
                break
            waves = tiles * cut / processors
            whole = ceil(waves)
            waves = max(1.0, smooth * waves + (1 - smooth) * whole)
            seconds = waves * each * (inner / cut + depth * (1 if cut == 1 else 2))
            best = min(best, seconds)
    return best * flops / (2.0 * groups * rows * columns * inner)


def memory_seconds(cost: Cost, kind: str, rates: Rates, constants: Constants) -> float:
    """Seconds of a kernel that memory limits: bytes at the share of the bandwidth that the kind reaches, or the time that its
    elements or rows take each, where that is more; processors that get no block wait.
    """
    share = constants.get(f"memory.{kind}", -0.35) + constants.get(f"bandwidth.{rates.architecture}", 0.0)
    seconds = cost.bytes / (rates.bandwidth * exp(share))
    if cost.product is None and cost.units:
        idle = max(1.0, rates.multiprocessors / cost.parts) if cost.parts else 1.0
        pace = exp(constants.get(f"units.{kind}", _PACE)) * rates.multiprocessors * rates.clock_hz
        seconds = join(seconds, idle * cost.units / pace)
    return seconds + constants["ramp"] * 1e-6


def layout_seconds(cost: Cost, rates: Rates, constants: Constants) -> float:
    """Seconds to turn a convolution's tensors so that their channels come last, and back: what tensor cores ask for.

    cuDNN does so wherever the layout is another; depthwise convolutions, float32 and those of one pixel, which are plain products,
    run as they are.
    """
    if not cost.kind.startswith(("convolution", "grouped")) or cost.kind.endswith(("_last", "_1x1")):
        return 0.0
    if cost.pipe not in ("tf32", *HALVES) or cost.pipe in rates.emulated:
        return 0.0
    return 2 * cost.bytes / (rates.bandwidth * exp(constants.get("memory.layout", -0.3)))


def join(first: float, second: float) -> float:
    """Seconds of two limits that overlap."""
    if first <= 0 or second <= 0:
        return max(first, second)
    larger = max(first, second)
    return float(larger * (1 + (min(first, second) / larger) ** _SHARPNESS) ** (1 / _SHARPNESS))


def kernel_seconds(cost: Cost, rates: Rates, constants: Constants) -> float:
    """Seconds on the GPU of a cost, launches left out."""
    if cost.product is None:
        each = 1e-6 * exp(constants.get(f"start.{cost.kind}", _START))
        return memory_seconds(cost, cost.kind, rates, constants) + each * cost.kernels
    layout = layout_seconds(cost, rates, constants)
    seconds = _computed_seconds(cost, cost.product, rates, constants) + layout
    if layout and cost.pipe == "tf32":  # cuDNN may take float32 as it lies, where TF32 is no faster with its copies
        seconds = min(seconds, _computed_seconds(cost._replace(pipe="fp32"), cost.product, rates, constants))
    return seconds


def _computed_seconds(cost: Cost, product: Product, rates: Rates, constants: Constants) -> float:
    """Seconds of arithmetic and of memory, which overlap."""
    group = "fp32" if cost.pipe in rates.emulated else "half" if cost.pipe in HALVES else cost.pipe
    rate = sustained_flops(rates, cost.pipe, constants) * exp(constants.get(f"product.{cost.kind}", 0.0))
    rate *= exp(constants.get(f"product.{cost.kind}.{group}", 0.0))
    times = (
        cost.kernels / 2 if cost.kind == "recurrent" else 1
    )  # one step after the other, a product and its gates each
    if cost.parts:
        arithmetic = cost.flops / rate * _whole_waves(cost.parts / rates.multiprocessors, constants)
    else:
        arithmetic = times * product_seconds(product, cost.flops / times, rate, rates, constants, group)
    kind = cost.kind if f"memory.{cost.kind}" in constants else "product"
    start = 1e-6 * constants["start"] * exp(constants.get(f"start.{group}", 0.0))
    return join(arithmetic, memory_seconds(cost, kind, rates, constants)) + start * cost.kernels


def _whole_waves(waves: float, constants: Constants) -> float:
    """How much longer blocks take than their share, as the last ones leave processors idle."""
    smooth = constants["shape.smooth"]
    return max(1.0, smooth * waves + (1 - smooth) * ceil(waves)) / waves


def limit_of(cost: Cost, rates: Rates, constants: Constants) -> str:
    """ "compute" or "memory": which of the two takes longer at the rates reached."""
    if not cost.flops:
        return "memory"
    rate = sustained_flops(rates, cost.pipe, constants)
    return "compute" if log(cost.flops / rate) > log(max(cost.bytes, 1) / rates.bandwidth) else "memory"
