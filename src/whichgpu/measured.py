"""Measurements as the figures of tables: which batch is the largest that ran, and how fast it was.

Each cell comes from one environment and is one measurement, the newest; nothing is averaged. Cards are columns, and a card
limited to less memory is a column of its own. Environments that differ in driver, CUDA, torch, cuDNN or origin are columns
of their own, too; so are those that differ in anything else, where two of them would meet in one cell. A workload is one
row for each version of its source, its libraries and the flags that it sets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from whichgpu import text
from whichgpu.results import Environment, Measurement, Outcome
from whichgpu.tables import Figure, Figures, Line, TableCard

_FAILED: frozenset[Outcome] = frozenset({"out_of_memory", "cuda_error", "crash", "hang"})
_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of which a step may want its batch size to be one
_LIMITED = "limited: PyTorch's allocator may take so much and no more; the CUDA context comes on top"
_LIMITED_SPEED = "a card limited to less memory has its own speed, not that of a smaller card"
_NOT_MEASURED = "data loading is not measured: each step makes its own batch on the GPU"


class CardFacts(NamedTuple):
    """What the catalogue says of a card."""

    name: str
    usd: float | None = None
    condition: str = ""
    date: str = ""


class _Place(NamedTuple):
    """What makes a column."""

    gpu: str
    memory_limit_bytes: int | None
    shared: tuple[str, ...]  # environment: always told apart
    rest: tuple[str, ...]  # told apart only where cells would mix


class _Work(NamedTuple):
    """What makes a row."""

    workload: str
    source: str
    libraries: tuple[str, ...]
    flags: tuple[str, ...]
    unit: str
    items_per_sample: int


def figures(measurements: Sequence[Measurement], facts: Mapping[str, CardFacts]) -> Figures:
    """The figures of measurements, which must be in the order in which they were made; `facts` by id of the catalogue."""
    works = list(dict.fromkeys(map(_work, measurements)))
    places = _places(measurements)
    cells: dict[tuple[_Work, _Place], list[Measurement]] = defaultdict(list)
    for measurement, place in zip(measurements, places, strict=True):
        cells[_work(measurement), place].append(measurement)
    example = {place: measurement.environment for measurement, place in zip(measurements, places, strict=True)}
    columns = sorted(
        example, key=lambda place: (place.memory_limit_bytes or example[place].gpu_memory_bytes, str(place))
    )
    found = tuple(tuple(_figure(cells[work, place]) for place in columns) for work in works)
    cards = _cards(columns, example, facts)
    limited = any(place.memory_limit_bytes is not None for place in columns)
    return Figures(
        basis="measured",
        source=_days(measurements),
        cards=cards,
        lines=_lines(works),
        figures=found,
        notes=(*_work_notes(works), *_card_notes(cards), *([_LIMITED] if limited else [])),
        rate_notes=(*_rate_notes(works, columns, cells, cards), *([_LIMITED_SPEED] if limited else [])),
    )


def _days(measurements: Sequence[Measurement]) -> str:
    days = sorted(measurement.measured_at[:10] for measurement in measurements)
    if not days:
        return "no measurements"
    return f"measurements of {days[0]}" + (f" to {days[-1]}" if days[-1] != days[0] else "")


# ---- columns and rows ---------------------------------------------------------------------------------


def _work(measurement: Measurement) -> _Work:
    around = measurement.environment
    return _Work(
        measurement.workload,
        measurement.workload_hash,
        tuple(sorted(f"{name} {version}" for name, version in around.libraries.items())),
        tuple(sorted(f"{name}={value}" for name, value in around.flags.items())),
        measurement.unit or "samples",
        measurement.items_per_sample,
    )


def _places(measurements: Sequence[Measurement]) -> list[_Place]:
    """The column of each measurement: coarse where that mixes no environments, fine elsewhere."""
    coarse = [_place(measurement, fine=False) for measurement in measurements]
    met: dict[tuple[_Place, _Work], set[_Place]] = defaultdict(set)
    for measurement, place in zip(measurements, coarse, strict=True):
        met[place, _work(measurement)].add(_place(measurement, fine=True))
    mixed = {place for (place, _), fine in met.items() if len(fine) > 1}
    return [_place(measurement, fine=place in mixed) for measurement, place in zip(measurements, coarse, strict=True)]


def _place(measurement: Measurement, *, fine: bool) -> _Place:
    around, limit = measurement.environment, measurement.memory_limit_bytes
    rest = (
        f"card {around.gpu_uuid_hash[:8]}",
        text.format_bytes(around.gpu_memory_bytes),
        f"Python {around.python}",
        f"whichgpu {around.whichgpu}",
    )
    return _Place(around.gpu, limit, _shared(measurement), rest if fine else ())


def _shared(measurement: Measurement) -> tuple[str, ...]:
    around = measurement.environment
    cudnn = [f"cuDNN {around.cudnn}"] if around.cudnn else []
    return (
        f"torch {around.torch}",
        f"CUDA {around.cuda}",
        *cudnn,
        f"driver {around.driver}",
        f"origin {measurement.origin}",
    )


def _cards(
    columns: Sequence[_Place], example: Mapping[_Place, Environment], facts: Mapping[str, CardFacts]
) -> tuple[TableCard, ...]:
    cards = []
    for place in columns:
        around, limit = example[place], place.memory_limit_bytes
        known = facts.get(around.gpu_id or "", CardFacts(around.gpu))
        name = known.name if limit is None else f"{known.name} limited to {text.format_limit(limit)}"
        cards.append(
            TableCard(
                name=name,
                gpu=known.name,
                gpu_id=around.gpu_id,
                memory_bytes=around.gpu_memory_bytes,
                memory_limit_bytes=limit,
                environment=", ".join((*place.shared, *place.rest)),
                price_usd=known.usd if limit is None else None,
                price_condition=known.condition if limit is None else "",
                price_date=known.date if limit is None else "",
            )
        )
    return _numbered(cards)


def _numbered(cards: Sequence[TableCard]) -> tuple[TableCard, ...]:
    """Cards of the same name in several environments get a number each."""
    names = [card.name for card in cards]
    environments = list(dict.fromkeys(card.environment for card in cards))
    return tuple(
        msgspec.structs.replace(card, name=f"{card.name} [{environments.index(card.environment) + 1}]")
        if names.count(card.name) > 1
        else card
        for card in cards
    )


def _card_notes(cards: Sequence[TableCard]) -> list[str]:
    """Which environment each column was measured in."""
    by_environment: dict[str, list[str]] = defaultdict(list)
    for card in cards:
        by_environment[card.environment].append(card.name)
    if len(by_environment) == 1:
        return list(by_environment)
    return [
        f"[{number}] {environment}: {', '.join(names)}"
        for number, (environment, names) in enumerate(by_environment.items(), 1)
    ]


def _lines(works: Sequence[_Work]) -> tuple[Line, ...]:
    labels = _labels(works)
    return tuple(
        Line(
            workload=labels[work],
            name=work.workload,
            batch_unit=work.unit if work.items_per_sample == 1 else f"samples of {work.items_per_sample:,} {work.unit}",
            rate_unit=f"{work.unit}/s",
            batch_source="measured",
            rate_source="measured",
        )
        for work in works
    )


def _labels(works: Sequence[_Work]) -> dict[_Work, str]:
    """Each row's name: the workload, with a letter where it was run in several ways."""
    names = [work.workload for work in works]
    seen: dict[str, int] = defaultdict(int)
    labels = {}
    for work in works:
        number = seen[work.workload]
        seen[work.workload] += 1
        labels[work] = f"{work.workload} ({number + 1})" if names.count(work.workload) > 1 else work.workload
    return labels


def _work_notes(works: Sequence[_Work]) -> list[str]:
    """How rows of the same workload differ."""
    labels = _labels(works)
    notes = []
    for work in works:
        others = [other for other in works if other.workload == work.workload]
        if len(others) > 1:
            said = ({f"source {one.source[:8]}", *one.libraries, *one.flags} for one in others)
            common = set.intersection(*said)
            own = [word for word in (f"source {work.source[:8]}", *work.libraries, *work.flags) if word not in common]
            notes.append(f"{labels[work]}: {', '.join(own) or f'{work.items_per_sample} {work.unit} a sample'}")
    return notes


def _rate_notes(
    works: Sequence[_Work],
    columns: Sequence[_Place],
    cells: Mapping[tuple[_Work, _Place], list[Measurement]],
    cards: Sequence[TableCard],
) -> list[str]:
    """What is to be said of how rates were measured."""
    labels = _labels(works)
    said: dict[str, list[str]] = defaultdict(list)
    for work in works:
        for place, card in zip(columns, cards, strict=True):
            found = cells.get((work, place), [])
            timed, where = _timed(found), f"{labels[work]} on {card.name}"
            largest = _figure(found).max_batch_size
            if timed is None:
                continue
            if timed.batch_size != largest:
                said["timed below the largest batch"].append(f"{where} (at {timed.batch_size:,} of {largest:,})")
            if timed.converged is False:
                said["not known within 1 %, as the time budget ended first"].append(where)
            if timed.throttled:
                said["the card throttled while it was timed"].append(f"{where} ({', '.join(timed.throttled)})")
    return [f"{what}: {', '.join(names)}" for what, names in said.items()] + [_NOT_MEASURED]


# ---- cells --------------------------------------------------------------------------------------------


def _figure(measurements: Sequence[Measurement]) -> Figure:
    """One workload in one environment on one card."""
    by_outcome: dict[Outcome, set[int]] = defaultdict(set)
    for measurement in measurements:
        by_outcome[measurement.outcome].add(measurement.batch_size)
    too_large, refused = by_outcome["out_of_memory"], by_outcome["step_error"]
    # what ran for a few steps and ran out of memory later does not fit
    fit = by_outcome["ok"] - too_large
    failed = set().union(*(by_outcome[outcome] for outcome in _FAILED)) - fit
    multiple = _multiple(fit | too_large, refused)
    if not fit:
        smallest = min(too_large, default=None)
        none_fits = smallest is not None and smallest <= multiple
        return Figure(max_batch_size=0 if none_fits else None)
    largest = max(fit)
    timed = _timed(measurements)
    return Figure(
        max_batch_size=largest,
        exact=largest + multiple in failed,
        exact_pow2=any(largest < size <= 1 << largest.bit_length() for size in failed),
        units_per_second=None if timed is None else (timed.samples_per_second or 0.0) * timed.items_per_sample,
        rate_batch_size=None if timed is None else timed.batch_size,
    )


def _multiple(ran: set[int], refused: set[int]) -> int:
    """Of what batch sizes must be multiples, as far as the step's refusals tell: the smallest that explains them."""
    if not refused:
        return 1
    explains = (m for m in _MULTIPLES if all(size % m == 0 for size in ran) and all(size % m for size in refused))
    return next(explains, 1)


def _timed(measurements: Sequence[Measurement]) -> Measurement | None:
    """The newest timing of the largest batch that was timed and fits."""
    failed = {found.batch_size for found in measurements if found.outcome == "out_of_memory"}
    timed = [
        found
        for found in measurements
        if found.outcome == "ok" and found.samples_per_second is not None and found.batch_size not in failed
    ]
    largest = max((found.batch_size for found in timed), default=None)
    return max((found for found in timed if found.batch_size == largest), key=lambda m: m.measured_at, default=None)
