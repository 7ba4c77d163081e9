"""Speeds of a workload that are known without a prediction: the user's measurements, packaged ones, and published ones.

A measurement counts for the workload of its name, its options included, on the card that the catalogue takes it for. Files and
packages of the user's are left out: they may have changed since. So are published rates that are no samples per second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec

from whichgpu import published, results, results_exchange, text
from whichgpu.errors import WhichGpuError
from whichgpu.results import Measurement, Store
from whichgpu.speed.record import PredictedSpeed
from whichgpu.workload import WorkloadRef
from whichgpu.zoo import ENTRIES

_UNITS = {"images/s": "images", "sequences/s": "sequences"}  # rates of which a sample is one

Known = dict[str, dict[int, PredictedSpeed]]  # by id of the card and batch size


def known_speeds(ref: WorkloadRef) -> Known:
    """What is known of a workload, by card and batch size: the newest own measurement before packaged ones, these before
    published ones.
    """
    if ref.scheme in ("file", "module"):
        return {}
    found: Known = {}
    for card, speed in (*_published(ref.text), *_measured(ref.text)):  # a later one takes the place of an earlier one
        found.setdefault(card, {})[speed.batch_size] = speed
    return found


def _measured(name: str) -> Iterator[tuple[str, PredictedSpeed]]:
    for origin, found in (("packaged", _packaged(name)), ("own results", _own(name))):
        for one in sorted(found, key=lambda each: each.measured_at):
            if one.outcome == "ok" and one.step_s is not None and one.environment.gpu_id is not None:
                yield one.environment.gpu_id, _from(one, origin)


def _packaged(name: str) -> Iterable[Measurement]:
    return (one for one in results_exchange.packaged() if one.workload == name)


def _own(name: str) -> list[Measurement]:
    path = results.default_path()
    if not os.path.exists(path):
        return []
    try:
        with Store(path, read_only=True) as store:
            return store.find(workloads=[name], outcomes=["ok"])
    except WhichGpuError:  # `whichgpu results` says what is wrong with it; a prediction needs none
        return []


def _from(one: Measurement, origin: str) -> PredictedSpeed:
    assert one.step_s is not None
    middle, low, high = one.step_s
    limit = one.memory_limit_bytes
    limited = f", allocator limited to {text.format_limit(limit)}" if limit is not None else ""
    return PredictedSpeed(
        basis="measured",
        batch_size=one.batch_size,
        step_s=middle,
        step_low_s=low,
        step_high_s=high,
        samples_per_s=one.batch_size / middle,
        samples_per_s_low=one.batch_size / high,
        samples_per_s_high=one.batch_size / low,
        limit=None,
        source=f"{origin}, {one.measured_at[:10]}, torch {one.environment.torch}{limited}",
    )


def _published(name: str) -> Iterator[tuple[str, PredictedSpeed]]:
    entry = ENTRIES.get(name)
    if entry is None or entry.article is None:
        return
    tables = published.figures()
    for line, figures in zip(tables.lines, tables.figures, strict=True):
        if line.name != entry.article or not line.batch_unit.startswith(_UNITS.get(line.rate_unit, "-")):
            continue
        for card, figure in zip(tables.cards, figures, strict=True):
            if figure.units_per_second and figure.rate_batch_size and card.gpu_id:
                yield card.gpu_id, _as_published(figure.rate_batch_size, figure.units_per_second, tables.source)


def _as_published(batch_size: int, rate: float, source: str) -> PredictedSpeed:
    """A published rate; it has no interval."""
    step_s = batch_size / rate
    return PredictedSpeed(
        basis="published",
        batch_size=batch_size,
        step_s=step_s,
        step_low_s=step_s,
        step_high_s=step_s,
        samples_per_s=rate,
        samples_per_s_low=rate,
        samples_per_s_high=rate,
        limit=None,
        source=source,
    )


def at(known: Known, card: str, found: PredictedSpeed | str) -> PredictedSpeed | str:
    """What is known of a card at the batch size of a prediction, or else the prediction."""
    if not isinstance(found, PredictedSpeed):
        return found
    one = known.get(card, {}).get(found.batch_size)
    return found if one is None else msgspec.structs.replace(one, limit=found.limit)
