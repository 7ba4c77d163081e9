"""Which cards train these workloads, and what do they cost?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whichgpu import advice, arguments, catalogue, workload
from whichgpu import currency as currencies
from whichgpu import host_speed as host_speeds
from whichgpu.advice import RankReport, Sort
from whichgpu.api.cards import baseline_card
from whichgpu.arguments import TIMEOUT_S
from whichgpu.errors import InputError
from whichgpu.predictor import Progress
from whichgpu.ranking import ranking, taken_for
from whichgpu.tables import BASELINE
from whichgpu.tracers import falling_back


@falling_back
def rank(
    names: Sequence[str],
    *,
    gpus: Sequence[str] | None = None,
    baseline: str | None = None,
    host_speed: float | None = None,
    samples: int | None = None,
    epochs: int | None = None,
    dataset_size: int | None = None,
    sort: Sort = "price",
    currency: str = "USD",
    known: bool = True,
    cache: bool = True,
    partial: bool = False,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> RankReport:
    """Which cards train these workloads, and what do they cost? Best first.

    `names` is a list; without `gpus` all cards are ranked; `sort` orders cards that train equally many workloads: by
    "price" to buy, by "speed" or by "memory"; amounts are shown in `currency`, as in `advise`. Where a run is asked about,
    its rent is told too. `known=False` predicts also where a measured or published speed is known. `partial=True`: who
    interrupts it gets what is known by then, and `missing` names the rest. The other arguments are those of `fit`. Raises
    subclasses of WhichGpuError.
    """
    arguments.check_names(names)
    arguments.check_gpus(gpus)
    arguments.check_sort(sort)
    shown_in = currencies.parse(currency)
    host_speeds.check(host_speed)
    host, of_host = host_speeds.chosen(host_speed) if known or host_speed is not None else (1.0, "")
    run_samples = arguments.run_samples(samples, epochs, dataset_size)
    refs = list({ref.text: ref for ref in map(workload.parse, names)}.values())
    cards = catalogue.load()
    wanted = None if gpus is None else {card.id for card in cards.find_all(gpus)}
    chosen = [card for card in cards.gpus if card.cuda and (wanted is None or card.id in wanted)]
    unit = baseline_card(cards, baseline) or next((c for c in chosen if c.name == BASELINE), None)
    if not chosen:
        raise InputError(f"no card of those asked for has CUDA: {', '.join(gpus or ())}")
    report = ranking(
        refs,
        cards,
        chosen,
        unit,
        samples=run_samples,
        sort=sort,
        known=known,
        host_speed=host,
        cache=cache,
        partial=partial,
        on_progress=on_progress,
    )
    others = [*filter(None, [of_host]), *(taken_for(cards, gpus) if gpus else advice.left_out(cards.gpus))]
    return msgspec.structs.replace(report, currency=shown_in, notes=tuple(dict.fromkeys((*report.notes, *others))))
