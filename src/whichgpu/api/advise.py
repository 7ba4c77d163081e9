"""Which cards to buy, to rent or to do without?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import msgspec

from whichgpu import arguments, catalogue, free_machines, workload
from whichgpu import currency as currencies
from whichgpu import host_speed as host_speeds
from whichgpu.advice import RankReport
from whichgpu.advising import advice as advising
from whichgpu.advising import wishes as wished
from whichgpu.advising.records import AdviceReport
from whichgpu.advising.wishes import Wishes
from whichgpu.arguments import TIMEOUT_S
from whichgpu.errors import InputError
from whichgpu.predictor import Progress
from whichgpu.ranking import by_day, ranking, taken_for
from whichgpu.tables import BASELINE
from whichgpu.tracers import falling_back
from whichgpu.what_helps import what_helps_in_words

_PAST = (
    "a day of the past: cards and prices are of that day, and no card is left out because today's PyTorch has no kernels "
    "for it; steps are traced and speeds predicted for today's PyTorch all the same"
)
_FEW = 3  # cards that are named, and workloads, of which it is tried what helps


@falling_back
def advise(
    names: Sequence[str],
    *,
    wishes: Wishes | None = None,
    as_of: str | None = None,
    currency: str = "USD",
    host_speed: float | None = None,
    known: bool = True,
    cache: bool = True,
    partial: bool = False,
    on_progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> AdviceReport:
    """Which cards to buy, to rent or to do without for these workloads?

    `wishes` holds what is wished for, with amounts in US dollars; `as_of` ("2020-02") asks with the cards and prices that were
    known on that day; amounts are shown in `currency`, a code or one with a rate ("EUR=1.08"). Where few cards are named, it
    is also said what would make a workload fit that does not; where only free machines are asked about, only their cards are
    ranked. `host_speed` is that of the machine that the cards stand in, by default the reference's. The other arguments are
    those of `rank`. Raises subclasses of WhichGpuError.
    """
    arguments.check_names(names)
    wishes = wishes or Wishes()
    wished.check(wishes)
    host_speeds.check(host_speed)
    refs = list({ref.text: ref for ref in map(workload.parse, names)}.values())
    everything = catalogue.load()
    cards = everything.as_of(as_of or "today")
    shown_in = currencies.parse(currency)
    _check_days(everything, cards, wishes)
    wished.check_words(wishes, cards.gpus)
    past = cards.day is not None and cards.day < date.today()
    machines = () if past else tuple(free_machines.load())
    # not this host's by default: what is rented or bought does not stand in it
    host, of_host = host_speeds.chosen(host_speed) if host_speed is not None else (host_speeds.REFERENCE_SPEED, "")
    extra = [*taken_for(cards, (*wishes.gpus, *wishes.own)), *filter(None, [of_host]), *([_PAST] if past else [])]

    chosen = advising.chosen(cards, wishes)

    def advice_from(providers: Sequence[str]) -> AdviceReport:
        asked = advising.on_offer(chosen, machines, wishes, providers) or chosen
        found = ranking(
            refs,
            cards,
            asked,
            next((card for card in asked if card.name == BASELINE), None),
            judge=by_day(past),
            samples=wishes.samples,
            known=known,
            host_speed=host,
            cache=cache,
            partial=partial,
            on_progress=on_progress,
        )
        found = msgspec.structs.replace(found, notes=tuple(dict.fromkeys((*extra, *found.notes))))
        left = [] if found.missing else _changes(refs, found, cards, wishes, cache, on_progress)
        return advising.advise(found, cards, wishes, currency=shown_in, machines=machines, changes=left)

    report = advice_from(wishes.providers)
    if wishes.way == "free" and wishes.providers and report.empty is not None and not report.missing:
        return advice_from(())  # other machines may be what to relax for
    return report


def _check_days(everything: catalogue.Catalogue, cards: catalogue.Catalogue, wishes: Wishes) -> None:
    """A card that is named and was not released on that day is told as such, and a day before all cards."""
    for card in everything.find_all((*wishes.own, *wishes.gpus)):
        cards.check_released(card)
        if card.vendor not in advising.PREDICTED:
            raise InputError(f"{card.name}: nothing is predicted of {card.vendor}'s processors; name another card")
    if not advising.chosen(cards, wishes):
        first = min(advising.chosen(everything, wishes), key=lambda card: card.release)
        raise InputError(
            f"no card of the catalogue was released by {cards.day}; the first was the {first.name} in {first.release}: "
            "ask about a later day"
        )


def _changes(
    refs: Sequence[workload.WorkloadRef],
    report: RankReport,
    cards: catalogue.Catalogue,
    wishes: Wishes,
    cache: bool,
    on_progress: Progress | None,
) -> list[str]:
    """What would make workloads fit on the cards that are named, where these are few."""
    named = {card.name: card for card in cards.find_all((*wishes.gpus, *wishes.own))}
    size = wishes.batch_size or 1
    failing = [
        (ref, named[row.gpu])
        for row in report.gpus
        for ref in refs
        if row.gpu in named and named[row.gpu].cuda and row.supported and row.max_batch_size[ref.text] < size
    ]
    if not 0 < len(failing) <= _FEW:
        return []
    return [
        words
        for ref, card in failing
        for words in what_helps_in_words(ref, card, size, cache=cache, on_progress=on_progress)
    ]
