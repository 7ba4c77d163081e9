"""Seconds of kernels on a card, from their costs, the card's rates and fitted constants.

A matrix product is cut into tiles that the processors take in waves, as cuBLAS and cuDNN do: of a few sizes of tiles, and of
cuts along the inner dimension, the quickest is taken, since the libraries choose well. Convolutions are the matrix products that
they are computed as. All else is limited by memory. Arithmetic and memory overlap but for a part.

Constants are natural logarithms (of a share of the peak, of a ratio) or microseconds, by kind of operator and by kind of
arithmetic; how they were fitted, and to what, stands beside them in data/speed.json. Costs are worked out together, as columns:
what depends on their kinds alone is a row of `coefficients`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whichgpu.speed.asked import TENSOR_PIPES, UNALIGNED, Cost
from whichgpu.speed.rates import Rates

Constants = Mapping[str, float]
Floats = NDArray[np.float64]

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
CUTS = (1, 2, 4, 8, 16, 32)
_LEAST_INNER, _MOST_WAVES = 64, 8  # of a cut, and of the tiles that cuts make
_SHARPNESS = 4.0  # of the change between limits; 1 adds them, infinity takes the larger
# multiply-adds that a multiprocessor's tensor cores begin in a clock where nothing is halved (Turing); the faster they are, the
# harder to feed from shared memory, whose width is the same everywhere
_TENSOR_RATES = {"half": 512, "tf32": 256}
_CAP = 10.0  # the same of the power limit, which clocks obey at once
_MANY_LANES = 96  # multiprocessors of 128 lanes share schedulers and registers that feed 64 elsewhere
# whose multiprocessors compute addresses in the lanes of float32; Volta has lanes of their own (its whitepaper of 2017)
_ONE_PIPE = ("Kepler", "Maxwell", "Pascal")
# whose kernels load products through registers, 16 bytes at a time; from Ampere on they copy 4 bytes as well past them
# (`cp.async` in NVIDIA's PTX ISA, compute capability 8.0)
_WIDE_LOADS = (*_ONE_PIPE, "Volta", "Turing")
HALVES = ("fp16", "bf16")
# where nothing was measured, as logarithms: elements a clock and multiprocessor, microseconds that a kernel takes to begin and end
_PACE, _START = 1.8, 0.0


class Columns(NamedTuple):
    """Costs as columns; `sort` says which of `sorts` (kind, arithmetic, whether it is a product) each is."""

    sorts: tuple[tuple[str, str, bool], ...]
    sort: NDArray[np.intp]
    flops: Floats
    bytes: Floats
    kernels: Floats
    units: Floats
    parts: Floats
    groups: Floats
    rows: Floats
    columns: Floats
    inner: Floats


class Coefficients(NamedTuple):
    """What the seconds of costs of one sort on a card follow from; numbers, or columns of them."""

    bandwidth: float | Floats  # bytes a second
    pace: float | Floats  # units a second
    ramp_s: float | Floats
    start_s: float | Floats  # of each kernel
    processors: float | Floats
    smooth: float | Floats
    cache_bytes: float | Floats  # of which little is read again after it left the cache
    gain: float | Floats  # by how much the cache is faster than memory
    rate: float | Floats = 1.0  # FLOP/s of large products
    depth: float | Floats = 0.0  # inner steps that beginning and ending a tile cost
    small: float | Floats = 0.0  # by how much each smaller tile is slower
    exponentials: float | Floats = inf  # of an attention a second
    begin: float | Floats = 0.0  # keys that beginning and ending a block of an attention cost
    layout: float | Floats = inf  # bytes a second of turning tensors, there and back
    other_rate: float | Floats = 0.0  # the same of float32, where cuDNN may take that instead
    other_depth: float | Floats = 0.0
    other_small: float | Floats = 0.0
    other_start_s: float | Floats = 0.0


def columns_of(costs: Iterable[Cost]) -> Columns:
    """Costs as columns."""
    sorts: dict[tuple[str, str, bool], int] = {}
    sort, rows = [], []
    for cost in costs:
        sort.append(sorts.setdefault((cost.kind, cost.pipe, cost.product is not None), len(sorts)))
        product = cost.product or (0, 0, 0, 0)
        rows.append((cost.flops, cost.bytes, cost.kernels, cost.units, cost.parts, *product))
    return Columns(tuple(sorts), np.array(sort, np.intp), *np.array(rows, float).reshape(-1, 9).T)


def sustained_flops(rates: Rates, pipe: str, constants: Constants) -> float:
    """FLOP/s that large products reach: a share of the peak, less where the power limit is in the way."""
    peak = rates.flops[pipe]
    group = "fp32" if pipe == "fp64" else _group(pipe, rates)
    share = exp(constants.get(f"peak.{group}", -0.25) + constants.get(f"peak.{group}.{rates.architecture}", 0.0))
    if group == "fp32" and rates.architecture in _ONE_PIPE:
        share *= exp(constants.get("peak.shared", -0.1))
    elif group == "fp32" and rates.lanes > _MANY_LANES:
        share *= exp(constants.get("peak.lanes", -0.15))
    if group != "fp32":
        share *= _tensor_rate(group, peak, rates) ** -constants.get("peak.rate", 0.3)
    per_watt = exp(
        constants.get("power.fp32", 24.8) + constants.get("power.year", 0.1) * (rates.year - 2018)
        + (0.0 if group == "fp32" else constants.get(f"power.{group}", 1.3))
    )  # fmt: skip
    allowed = per_watt * rates.watts
    reached = peak * share
    return float((reached**-_CAP + allowed**-_CAP) ** (-1 / _CAP))


def _tensor_rate(group: str, peak: float, rates: Rates) -> float:
    """Multiply-adds that a multiprocessor's tensor cores begin in a clock, 1 for those of Turing where nothing is halved."""
    return peak / (2 * rates.multiprocessors * rates.clock_hz * _TENSOR_RATES[group])


def _group(pipe: str, rates: Rates) -> str:
    """Whose constants a kind of arithmetic has on a card."""
    return "fp32" if pipe in rates.emulated else "half" if pipe in HALVES else pipe


def coefficients(kind: str, pipe: str, product: bool, rates: Rates, constants: Constants) -> Coefficients:
    """What the seconds of costs of one sort follow from on a card."""
    share = constants.get("bandwidth", -0.4) + constants.get(f"bandwidth.{rates.architecture}", 0.0)
    bandwidth = rates.bandwidth * exp(share + constants.get(f"memory.{'product' if product else kind}", -0.35))
    pace, ramp_s, smooth = inf, 1e-6 * constants["ramp"], constants["shape.smooth"]
    cache_bytes, gain = (
        rates.cache_bytes * exp(constants.get("cache.size", -0.7)),
        exp(constants.get("cache.gain", -0.7)),
    )
    always = (ramp_s, 0.0, rates.multiprocessors, smooth, cache_bytes, gain)
    if not product:
        pace = exp(constants.get(f"units.{kind}", _PACE)) * rates.multiprocessors * rates.clock_hz
        start_s = 1e-6 * exp(constants.get(f"start.{kind}", _START))
        return Coefficients(bandwidth, pace, *always)._replace(start_s=start_s)
    start_s, rate, depth, small = _arithmetic(kind, pipe, rates, constants)
    found = Coefficients(bandwidth, pace, *always, rate, depth, small)._replace(start_s=start_s)
    if "attention" in kind:
        lanes = exp(constants.get("attention.exponentials", 2.8)) * rates.multiprocessors * rates.clock_hz
        return found._replace(exponentials=lanes, begin=exp(constants.get(f"attention.begin.{kind}", 4.0)))
    if not _turns(kind, pipe, rates):
        return found
    found = found._replace(layout=rates.bandwidth * exp(constants.get("memory.layout", -0.3)) / 2)
    if pipe != "tf32":
        return found
    start_s, rate, depth, small = _arithmetic(kind, "fp32", rates, constants)
    return found._replace(other_start_s=start_s, other_rate=rate, other_depth=depth, other_small=small)


def _arithmetic(kind: str, pipe: str, rates: Rates, constants: Constants) -> tuple[float, float, float, float]:
    """Of a product: seconds to begin and end, FLOP/s, and what tiles cost."""
    group = _group(pipe, rates)
    start, depth, small = constants["start"], constants["shape.depth"], constants["shape.small"]
    rate = sustained_flops(rates, pipe, constants)
    if kind.endswith(UNALIGNED):
        kind = kind.removesuffix(UNALIGNED)
        if rates.architecture in _WIDE_LOADS:
            rate *= exp(constants.get("product.unaligned", -0.15))
    if kind != "product":
        rate *= exp(constants.get(f"product.{kind}", 0.0))
    if group != "fp32":  # which all constants are about, and these about their differences
        rate *= exp(constants.get(f"product.{kind}.{group}", 0.0))
        if kind.startswith(("convolution", "grouped")):  # which feed them less, so that faster ones help them less
            rate *= _tensor_rate(group, rates.flops[pipe], rates) ** -constants.get("peak.rate.convolution", 0.2)
        start *= exp(constants.get(f"start.{group}", 0.0))
        depth += constants.get(f"shape.depth.{group}", 0.0)
        small += constants.get(f"shape.small.{group}", 0.0)
    return 1e-6 * start, rate, exp(depth), small


def _turns(kind: str, pipe: str, rates: Rates) -> bool:
    """Whether a convolution's tensors are turned so that their channels come last, and back: what tensor cores ask for.

    cuDNN does so wherever the layout is another; depthwise convolutions, float32 and those of one pixel, which are plain products,
    run as they are.
    """
    if not kind.startswith(("convolution", "grouped")) or kind.endswith(("_last", "_1x1", "_1x1_odd")):
        return False
    return pipe in TENSOR_PIPES and pipe not in rates.emulated


def join(first: Floats | float, second: Floats | float) -> Floats:
    """Seconds of two limits that overlap."""
    larger = np.maximum(first, second)
    share = np.minimum(first, second) / np.where(larger > 0, larger, 1.0)
    return np.asarray(larger * (1 + share**_SHARPNESS) ** (1 / _SHARPNESS))


def seconds_of(costs: Columns, given: Coefficients) -> Floats:
    """Seconds on the GPU of each cost, launches left out; `given` has a number, or a column as long, of each coefficient."""
    kept = 1 / (1 + (costs.bytes / given.cache_bytes) ** 2)  # share that is still in the cache, or goes no further
    memory = costs.bytes / (given.bandwidth * (1 + given.gain * kept))
    product = costs.inner > 0
    idle = np.maximum(1.0, given.processors / np.where(costs.parts > 0, costs.parts, inf))
    memory = np.where(product, memory, join(memory, idle * costs.units / given.pace)) + given.ramp_s
    seconds = memory + given.start_s * costs.kernels
    if not product.any():
        return np.asarray(seconds)
    layout = costs.bytes / given.layout
    found = join(_arithmetic_seconds(costs, given), memory) + given.start_s * costs.kernels + layout
    other = given._replace(rate=given.other_rate, depth=given.other_depth, small=given.other_small)
    turned = product & (np.broadcast_to(given.other_rate, product.shape) > 0)
    if turned.any():  # cuDNN may take float32 as it lies, where TF32 is no faster with its copies
        plain = join(_arithmetic_seconds(costs, other), memory) + given.other_start_s * costs.kernels
        found = np.where(turned, np.minimum(found, plain), found)
    return np.where(product, found, seconds)


def _arithmetic_seconds(costs: Columns, given: Coefficients) -> Floats:
    """Seconds of the arithmetic of products; those of parts are spread over processors as they are."""
    recurrent = np.array([kind == "recurrent" for kind, *_ in costs.sorts], bool)[costs.sort]
    times = np.where(recurrent, costs.kernels / 2, 1.0)  # one step after the other, a product and its gates each
    with np.errstate(divide="ignore", invalid="ignore"):
        tiled = np.zeros(len(costs.inner))
        products = np.flatnonzero(costs.inner > 0)  # few of all, and each tile is tried with each cut
        tiled[products] = times[products] * _tiled_seconds(
            Columns._make([costs.sorts, *(column[products] for column in costs[1:])]),
            Coefficients(*(np.broadcast_to(one, len(costs.inner))[products] for one in given)),
            (costs.flops / times)[products],
        )
        waves = costs.parts / given.processors
        whole = np.maximum(1.0, given.smooth * waves + (1 - given.smooth) * np.ceil(waves)) / waves
        # a block goes over all keys, and takes an exponential for each pair of rows
        attended = costs.flops * (1 / given.rate + 1 / (4 * costs.inner * given.exponentials))
        attended = attended * (1 + given.begin / costs.columns) * whole
        return np.where(costs.parts > 0, attended, np.nan_to_num(tiled))


def _tiled_seconds(costs: Columns, given: Coefficients, flops: Floats) -> Floats:
    """Seconds of the quickest of all tiles and cuts; `flops` is counted as the trace does, whatever the tiles fill up."""
    groups, rows, columns, inner = costs.groups, costs.rows, costs.columns, costs.inner
    # a row for each tile, then a layer for each cut: arrays are short, so that calls of numpy are what takes time
    number, high, wide = np.array([(i, *tile) for i, tile in enumerate(TILES)], float).T[:, :, None]
    cut = np.array(CUTS, float)[:, None, None]
    tiles = groups * np.ceil(rows / high) * np.ceil(columns / wide)
    each = 2.0 * high * wide * given.processors / (given.rate * np.exp(-given.small * number))
    fits = (high <= np.maximum(2 * rows, TILES[-1][0])) & (wide <= np.maximum(2 * columns, TILES[-1][1])) | (
        number == 0
    )
    waves = tiles * cut / given.processors
    fits = fits & ((cut == 1) | (inner >= _LEAST_INNER * cut) & (waves <= _MOST_WAVES))
    taken = np.maximum(1.0, given.smooth * waves + (1 - given.smooth) * np.ceil(waves))
    seconds = taken * each * (inner / cut + given.depth * np.where(cut == 1, 1, 2))
    best = np.where(fits, seconds, inf).min(axis=(0, 1))
    return np.asarray(best * flops / (2.0 * groups * rows * columns * inner))


def spread(costs: Columns, rows: Sequence[Coefficients]) -> Coefficients:
    """The coefficients of each cost, from those of each sort."""
    return Coefficients(*np.array(rows, float).reshape(len(rows), len(Coefficients._fields)).T[:, costs.sort])


def all_seconds(costs: Columns, rates: Rates, constants: Constants) -> Floats:
    """Seconds of each cost on a card."""
    return seconds_of(costs, spread(costs, [coefficients(*sort, rates, constants) for sort in costs.sorts]))


def kernel_seconds(cost: Cost, rates: Rates, constants: Constants) -> float:
    """Seconds on the GPU of a cost, launches left out."""
    return float(all_seconds(columns_of([cost]), rates, constants)[0])


def limited_by_compute(costs: Columns, rates: Rates, constants: Constants) -> NDArray[np.bool_]:
    """Which costs arithmetic limits, and not memory: whichever takes longer at the rates reached."""
    pipes = [sustained_flops(rates, pipe, constants) if product else inf for _, pipe, product in costs.sorts]
    seconds = costs.flops / np.array(pipes, float)[costs.sort]
    limited: NDArray[np.bool_] = (costs.flops > 0) & (seconds > np.maximum(costs.bytes, 1) / rates.bandwidth)
    return limited
