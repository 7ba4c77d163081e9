"""Advice from a ranking, a catalogue and somebody's wishes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from whichgpu.advice import RankReport
from whichgpu.advising import cards as joined
from whichgpu.advising import limits, sources
from whichgpu.advising.choice import short_list
from whichgpu.advising.families import families
from whichgpu.advising.free import free_advice, none_free, services
from whichgpu.advising.prices import Prices, is_named, rents
from whichgpu.advising.reasons import Reasons
from whichgpu.advising.records import AdviceReport, CardAdvice, Empty, Pick
from whichgpu.advising.wishes import Wishes
from whichgpu.catalogue import Catalogue, Gpu
from whichgpu.currency import DOLLARS, Rate
from whichgpu.free_machines import FreeMachine


def advise(
    report: RankReport,
    cards: Catalogue,
    wishes: Wishes,
    *,
    currency: Rate = DOLLARS,
    machines: Iterable[FreeMachine] = (),
    changes: Sequence[str] = (),
) -> AdviceReport:
    """What to buy, to rent or to do without.

    `report` ranks the cards of the catalogue that were chosen by `chosen`; `machines` are those that cost nothing;
    `changes` say what would make a workload fit that does not. InputError for a provider or region that nobody has.
    """
    machines = tuple(machines)
    reasons = Reasons(report, wishes, currency)
    prices = Prices(cards, wishes, services(machines))
    found = joined.cards(report, cards.gpus, prices, wishes)
    own = {cards.find(name).id for name in wishes.own}
    asked = [card for card in found if card.id not in own or _is_asked(card, cards, wishes)]
    hardware = limits.of_hardware(wishes)
    wanted = [
        *hardware,
        limits.can_train(len(report.workloads), wishes),
        *limits.of_price(wishes, reasons.money),
    ]
    told = [
        msgspec.structs.replace(card, reason=reasons.of(card), misses=limits.meets(card, wanted[:-1])) for card in found
    ]
    free = (
        free_advice(
            machines,
            told,
            wishes,
            lambda card: reasons.of(card, "free"),
            prices.day,
            lambda card: not limits.meets(card, hardware),
        )
        if wishes.way in (None, "free")
        else ()
    )
    candidates = [card for card in asked if not limits.meets(card, wanted)]
    empty: Empty | None = None
    if wishes.way != "free" and (wishes.way is not None or rents(cards, wishes)):
        empty = limits.emptied(asked, wanted)  # who names a free service alone wished for no card
    if wishes.way == "free" and not free:
        empty = none_free(machines, told, wishes, prices.day, {gpu.id: gpu.name for gpu in cards.gpus})
    picks = () if wishes.way == "free" else short_list(candidates, [c for c in told if c.id in own], wishes, reasons.of)
    shown = [card for card in told if not limits.meets(card, hardware)]
    answer = AdviceReport(
        workloads=report.workloads,
        basis=report.basis,
        as_of=prices.day.isoformat(),
        wishes=wishes,
        currency=currency,
        samples=report.samples,
        traces=report.traces,
        untraced=report.untraced,
        missing=report.missing,
        short_list=picks,
        empty=empty,
        cards=tuple(shown),
        free=free,
        families=families(report.workloads, told, report.baseline),
        changes=tuple(changes),
        sources=(),
        notes=(*_notes(report, told, wishes.way == "free"), *_with_another_build(told, picks, wanted, reasons)),
    )
    return msgspec.structs.replace(answer, sources=tuple(sources.figures(answer, cards, prices)))


def chosen(cards: Catalogue, wishes: Wishes) -> list[Gpu]:
    """The cards of a catalogue to rank: those that are named, or all that PyTorch's memory can be predicted of."""
    named = {cards.find(name).id for name in (*wishes.gpus, *wishes.own)}
    only = bool(wishes.gpus)
    return [card for card in cards.gpus if card.id in named or (not only and card.vendor in PREDICTED)]


def on_offer(
    chosen: Sequence[Gpu], machines: Iterable[FreeMachine], wishes: Wishes, providers: Sequence[str]
) -> list[Gpu]:
    """The cards of the free machines, of these providers if any, where nothing else is asked about; else none."""
    if wishes.way != "free" or wishes.own:
        return []
    named = [one for one in machines if not providers or any(is_named(one.service, name) for name in providers)]
    offered = {gpu for machine in named for gpu in machine.gpus}
    return [card for card in chosen if card.id in offered]


PREDICTED = ("NVIDIA", "AMD", "Intel", "Apple")  # tensor processors allocate otherwise: nothing is said of them


def _is_asked(card: CardAdvice, cards: Catalogue, wishes: Wishes) -> bool:
    """Whether a card is asked about besides being somebody's own."""
    return not wishes.gpus or card.id in {cards.find(name).id for name in wishes.gpus}


def _notes(report: RankReport, cards: Sequence[CardAdvice], free: bool) -> tuple[str, ...]:
    notes = []
    able = [card for card in cards if card.supported and not card.unmeasured]
    most = max((card.trains for card in able), default=0)
    if 0 < most < len(report.workloads) and not free:
        missing = {card.fails for card in able if card.trains == most}
        which = f", without {', '.join(missing.pop())}" if len(missing) == 1 else ", not all of them the same ones"
        notes.append(f"no card trains all {len(report.workloads)}: chosen among those that train {most}{which}")
    return (*notes, *report.notes)


def _with_another_build(
    cards: Sequence[CardAdvice], picks: Sequence[Pick], wanted: Sequence[limits.Wish], reasons: Reasons
) -> Iterator[str]:
    """The cheapest card to buy that only today's PyTorch keeps off the short list, where it is cheaper than what is there."""
    bought = {pick.gpu for pick in picks if "cheapest" in pick.roles and pick.way == "buy"}
    cheapest = min((card.buy.usd for card in cards if card.gpu in bought and card.buy), default=None)
    others = [
        card
        for card in cards
        if not card.supported
        and card.problems
        and card.buy is not None
        and not card.buy.stale
        and all("has no kernels for" in problem and "wheel has them" in problem for problem in card.problems)
        and all(wish.holds(msgspec.structs.replace(card, supported=True)) for wish in wanted)
        and not card.fails
    ]
    found = min(others, key=lambda card: card.buy.usd if card.buy else 0.0, default=None)
    if cheapest is not None and found is not None and found.buy is not None and found.buy.usd < cheapest:
        yield f"cheaper with another build of PyTorch: {found.gpu}, {reasons.bought(found.buy)}; {found.problems[0]}"
