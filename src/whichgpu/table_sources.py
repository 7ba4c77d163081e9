"""Where tables get their figures: measurements on record and packaged ones, predictions, or a published article.

Joins `results`, `api` and `published` with the plain functions of `tables`; computes nothing itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from whichgpu import api, catalogue, comparison, measured, published, results, results_exchange, tables, workload
from whichgpu.advice import Basis
from whichgpu.comparison import Comparison
from whichgpu.errors import CatalogueError, InputError, WhichGpuError
from whichgpu.host_speed import REFERENCE_SPEED
from whichgpu.measured import CardFacts
from whichgpu.predictor import Progress
from whichgpu.results import Measurement, Store
from whichgpu.sets import expand
from whichgpu.tables import Figures, Table, TableCard, TierTable
from whichgpu.zoo import ENTRIES


def make_table(
    kind: str,
    workloads: Sequence[str] = (),
    *,
    sets: Sequence[str] = (),
    gpus: Sequence[str] = (),
    source: Basis | None = None,
    beside: Basis | None = None,
    baseline: str | None = None,
    power_of_two: bool = False,
    results_file: Path | None = None,
    cache: bool = True,
    on_progress: Progress | None = None,
) -> Table | TierTable | Comparison:
    """One of the four tables: "max-batch", "throughput", "relative" or "tiers".

    Without `workloads` and `gpus`: all that the source knows; predictions need workloads. Of `sets` the
    source gives those that it has. Without `source`: measurements, but for the largest batches of sets whose every workload
    has published ones, these with the predicted ones `beside`. `baseline` is the card that is
    1 in "relative". `results_file` is for measurements only. Raises subclasses of WhichGpuError.
    """
    if source is None and beside is None and kind == "max-batch" and results_file is None and not power_of_two:
        beside = "published" if not workloads and sets and _all_published(expand((), sets)) else None
    if results_file is not None and (beside or source or "measured") != "measured":
        raise InputError("--results names measurements: leave it out, or say --source measured and no --beside")
    if beside is not None:
        _check_beside(kind, source, beside, power_of_two)
        return _beside_published(workloads, sets, gpus, cache, on_progress)
    source = source or "measured"
    if source == "predicted":
        wanted = [*gpus, *([baseline] if gpus and baseline is not None else [])]
        figures = _predicted(expand(workloads, sets) if sets else workloads, wanted, cache, on_progress)
    else:
        members = expand((), sets) if sets else []
        figures = published.figures() if source == "published" else _measured(results_file)
        figures = tables.select(figures, lines=_lines(figures, workloads, members), cards=_cards(figures.cards, gpus))
    if kind == "max-batch":
        return tables.max_batch(figures, power_of_two=power_of_two)
    if kind == "throughput":
        return tables.throughput(figures)
    if kind == "relative":
        return tables.relative(figures, baseline and _full_name(figures.cards, baseline))
    return tables.tiers(figures)


def find_results(
    path: Path | None,
    *,
    workloads: Sequence[str] | None = None,
    gpus: Sequence[str] | None = None,
    outcomes: Sequence[str] | None = None,
    origin: str | None = None,
) -> list[Measurement]:
    """Measurements on record, in order; none where the usual file is not there yet. ResultsError as of Store.

    Workloads and cards are named as on the command line; cards that the catalogue does not know as the driver does.
    """
    file = path or results.default_path()
    if path is None and not os.path.exists(file):
        return []
    names = None if workloads is None else [name for given in workloads for name in (given, _canonical(given))]
    cards = None if gpus is None else [name for given in gpus for name in (given, _id(given))]
    with Store(file, read_only=True) as store:
        return store.find(workloads=names, gpus=cards, outcomes=outcomes, origin=origin)


def _id(name: str) -> str:
    with contextlib.suppress(CatalogueError):
        return catalogue.load().find(name).id
    return name


def _all_published(names: Sequence[str]) -> bool:
    """Whether the article has a row for every workload, as it is in the zoo."""
    return all(name in ENTRIES and ENTRIES[name].article is not None for name in names)


def _check_beside(kind: str, source: Basis | None, beside: Basis, power_of_two: bool) -> None:
    if kind != "max-batch":
        raise InputError(f"--beside is for `whichgpu tables max-batch`, not {kind}")
    if beside != "published" or source not in (None, "predicted"):
        raise InputError("only predictions are shown beside others, and only beside published ones: --beside published")
    if power_of_two:
        raise InputError("--beside and --power-of-two: choose one")


def _beside_published(
    workloads: Sequence[str], sets: Sequence[str], gpus: Sequence[str], cache: bool, on_progress: Progress | None
) -> Comparison:
    """Predictions for the article's cards beside its figures, of its workloads or variants of them."""
    found = published.figures()
    found = tables.select(found, cards=_cards(found.cards, gpus))
    names = list(workloads) if workloads or sets else _in_the_article()
    members = [name for name in (expand((), sets) if sets else ()) if _lines_of(found, _plain(name))]
    chosen: dict[str, int] = {}
    for name in (*names, *members):
        lines = _lines(found, [_plain(name)], ())
        assert lines is not None
        chosen.setdefault(_canonical(_zoo_name(name)), lines[0])
    if not chosen:
        raise InputError(f"nothing is published of any workload of the set; it has {', '.join(expand((), sets))}")
    found = tables.select(found, lines=list(chosen.values()))
    cards = [catalogue.load().find(card.gpu_id or card.gpu).name for card in found.cards]
    # not by this host: what is published was run on another
    ranked = api.rank(list(chosen), gpus=cards, host_speed=REFERENCE_SPEED, cache=cache, on_progress=on_progress)
    return comparison.compare(ranked, cards, found)


def _in_the_article() -> list[str]:
    """The zoo's workloads that the article has a row for."""
    return [name for name, entry in ENTRIES.items() if entry.article is not None]


def _plain(name: str) -> str:
    """A workload's name without its options."""
    return name.partition("?")[0]


def _zoo_name(name: str) -> str:
    """The zoo's name for a workload that is named as in the article; any other as it is."""
    plain, mark, options = name.partition("?")
    titles = {(entry.article or "").casefold(): own for own, entry in ENTRIES.items()}
    return titles.get(plain.casefold(), plain) + mark + options


def _predicted(workloads: Sequence[str], gpus: Sequence[str], cache: bool, on_progress: Progress | None) -> Figures:
    if not workloads:
        raise InputError("name the workloads to predict, as in: whichgpu tables max-batch resnet50 --source predicted")
    # a wrong name is told before the work, not after it
    names = [card.name for card in catalogue.load().find_all(gpus)]
    return tables.from_rank(
        api.rank(workloads, gpus=names or None, known=False, cache=cache, on_progress=on_progress), names or None
    )


def _measured(results_file: Path | None) -> Figures:
    found = [*results_exchange.packaged(), *find_results(results_file)]
    if not found:
        raise InputError(
            "nothing is measured yet: `whichgpu bench` measures on a GPU, `whichgpu results import` reads another lab's "
            "file, and --source predicted or published need neither"
        )
    return measured.figures(found, _facts(found))


def _facts(measurements: Sequence[Measurement]) -> dict[str, CardFacts]:
    """Names and prices of the cards that were measured."""
    cards = catalogue.load()
    ids = {measurement.environment.gpu_id for measurement in measurements}
    facts = {}
    for card in cards.gpus:
        if card.id in ids:
            price = cards.price(card, "buy")
            priced = (price.usd, price.condition, price.newest) if price is not None else ()
            facts[card.id] = CardFacts(card.name, *priced)
    return facts


def _lines(figures: Figures, names: Sequence[str], members: Sequence[str]) -> list[int] | None:
    """The lines of the workloads that were named and of the sets' members.

    InputError for a named one that the source does not have, or when it has none of the sets' members.
    """
    if not names and not members:
        return None
    chosen: dict[int, None] = {}
    for name in names:
        found = _lines_of(figures, name)
        if not found:
            known = list(dict.fromkeys(line.name for line in figures.lines))
            hint = workload.nearest(name, known) or f"; there is {', '.join(known[:12])}"
            raise InputError(f"nothing is {figures.basis} of {name!r}{hint}")
        chosen.update(dict.fromkeys(found))
    chosen.update((number, None) for member in members for number in _lines_of(figures, member))
    if not chosen:
        raise InputError(f"nothing is {figures.basis} of any workload of the set; it has {', '.join(members)}")
    return list(chosen)


def _lines_of(figures: Figures, name: str) -> list[int]:
    wanted = {name.casefold(), _canonical(name).casefold()}
    entry = ENTRIES.get(name)
    if figures.basis == "published" and entry is not None and entry.article is not None:
        wanted.add(entry.article.casefold())
    return [number for number, line in enumerate(figures.lines) if line.name.casefold() in wanted]


def _canonical(name: str) -> str:
    with contextlib.suppress(WhichGpuError):
        return workload.parse(name).text
    return name


def _cards(cards: Sequence[TableCard], names: Sequence[str]) -> list[int] | None:
    """The columns of the cards that were named, in the table's order; InputError for one that it does not have."""
    if not names:
        return None
    chosen: set[int] = set()
    for name in names:
        found = {
            number
            for number, card in enumerate(cards)
            if name.casefold() in (card.name.casefold(), card.gpu.casefold())
        }
        if not found:
            found = _of_the_catalogue(cards, name)
        if not found:
            known = list(dict.fromkeys(card.name for card in cards))
            raise InputError(f"the table has no {name!r}; it has {', '.join(known[:12])}{', ...' * (len(known) > 12)}")
        chosen |= found
    return sorted(chosen)


def _of_the_catalogue(cards: Sequence[TableCard], name: str) -> set[int]:
    """Columns of the card that the catalogue means, or of those with the name in theirs where it knows none."""
    alike = {number for number, column in enumerate(cards) if name.casefold() in column.gpu.casefold()}
    try:
        card = catalogue.load().find(name)
    except CatalogueError:
        if not alike:
            raise
        return alike
    return {
        number for number, column in enumerate(cards) if card.id == column.gpu_id or card.name == column.gpu
    } or alike


def _full_name(cards: Sequence[TableCard], name: str) -> str:
    """A column's name from one that says the card as people do: "h200 limited to 8 GiB"."""
    if name.casefold() in (card.name.casefold() for card in cards):
        return name
    gpu, limited, limit = name.partition(" limited to ")
    with contextlib.suppress(CatalogueError):
        found = catalogue.load().find(gpu).id
        gpu = next((card.gpu for card in cards if card.gpu_id == found), gpu)
    return f"{gpu}{limited}{limit}"
