"""Tables that others have published, as figures: facts that come with the package, each with its date and source."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import msgspec

from whichgpu.advice import Tier
from whichgpu.tables import Figure, Figures, Line, TableCard

Text = Annotated[str, msgspec.Meta(min_length=1)]
Origin = Literal["article", "raw", "article and raw"]
Batch = Annotated[int, msgspec.Meta(gt=0)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
DoesNotFit = Literal["*"]

_NOT_KNOWN = "which batch sizes were tried is not known; they are taken to be those that ran on any card"


class PublishedGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card of an article, with the price and the verdict given there."""

    name: Text
    id: Text  # in the catalogue
    memory_gb: Annotated[int, msgspec.Meta(gt=0)]  # on the box
    price_usd: Rate
    tier: Tier
    note: str = ""


class PublishedWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of an article; figures in the order of its cards."""

    name: Text
    family: Literal["image", "language"]
    framework: Text | None = None
    precision: Text | None = None
    input: Text
    batch_unit: Text
    max_batch: tuple[Batch | DoesNotFit, ...]
    tried: tuple[Batch, ...] = ()  # batch sizes; empty where that is not known
    max_batch_source: Origin
    rate_unit: Text
    throughput: tuple[Rate | DoesNotFit, ...]
    throughput_source: Origin


class Article(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One article with its tables."""

    title: Text
    publisher: Text
    url: Text
    published: Text
    measured: Text
    raw_url: Text
    raw: Text
    checked: Text
    notes: tuple[Text, ...]
    rate_notes: tuple[Text, ...]
    gpu: tuple[PublishedGpu, ...]
    workload: tuple[PublishedWorkload, ...]


@cache
def article() -> Article:
    """Lambda's article of 2020, whose tables whichgpu carries on."""
    entry = files("whichgpu") / "data" / "published" / "lambda2020.toml"
    return msgspec.convert(tomllib.loads(entry.read_text(encoding="utf-8")), Article)


def figures() -> Figures:
    """The article's figures, as published."""
    found = article()
    raw = sorted({work.name for work in found.workload if "raw" in (work.max_batch_source + work.throughput_source)})
    return Figures(
        basis="published",
        source=f'{found.publisher}, "{found.title}", {found.published}, measured {found.measured}',
        url=found.url,
        cards=tuple(_card(gpu, found.published) for gpu in found.gpu),
        lines=tuple(
            Line(
                workload=work.name,
                name=work.name,
                family=work.family,
                batch_unit=work.batch_unit,
                rate_unit=work.rate_unit,
                tried=work.tried or tuple(sorted({size for size in work.max_batch if size != "*"})),
                tried_note="" if work.tried else _NOT_KNOWN,
                batch_source=work.max_batch_source,
                rate_source=work.throughput_source,
            )
            for work in found.workload
        ),
        figures=tuple(tuple(map(_figure, work.max_batch, work.throughput)) for work in found.workload),
        notes=(
            *found.notes,
            f"not from the article's tables but from the notes of its measurements, in whole or in part: {', '.join(raw)} "
            f"({found.raw_url}: {found.raw})",
        ),
        rate_notes=found.rate_notes,
    )


def _card(gpu: PublishedGpu, published: str) -> TableCard:
    return TableCard(
        name=gpu.name,
        gpu=gpu.name,
        gpu_id=gpu.id,
        memory_bytes=None,
        tier=gpu.tier,
        price_usd=gpu.price_usd,
        price_condition="approximate",
        price_date=published,
        note=gpu.note,
    )


def _figure(batch: int | Literal["*"], rate: float | Literal["*"]) -> Figure:
    size = 0 if batch == "*" else int(batch)
    # of a ladder of batches the largest that ran: nothing says that the next one does not fit, but the next rung
    return Figure(
        max_batch_size=size, units_per_second=None if rate == "*" else float(rate), rate_batch_size=size or None
    )
