"""Which cards meet which wishes, and where none meets all: which wish left nothing, and by how much to relax it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from whichgpu import text
from whichgpu.advising.costs import elapsed_hours
from whichgpu.advising.records import CardAdvice, Empty, Relaxation
from whichgpu.advising.wishes import Wishes
from whichgpu.runs import S_AN_HOUR

Money = Callable[[float], str]


class Wish(NamedTuple):
    """One wish: whether a card meets it, and what it would take for the nearest of several that do not."""

    flag: str
    holds: Callable[[CardAdvice], bool]
    cure: Callable[[Sequence[CardAdvice]], str]


def of_hardware(wishes: Wishes) -> list[Wish]:
    """Wishes about the card itself."""
    found: list[Wish] = []
    for flag, wanted, own in (
        ("--vendor", wishes.vendors, "vendor"),
        ("--architecture", wishes.architectures, "architecture"),
        ("--form", wishes.forms, "form"),
    ):
        if wanted:
            found.append(_one_of(flag, wanted, own))
    if (least := wishes.min_memory_bytes) is not None:
        found.append(
            Wish(
                f"--min-memory {_memory(least)}",
                lambda card: _sold_bytes(card) >= least,
                lambda cards: f"the most is {text.format_memory_class(*_most(cards))} ({_largest(cards).gpu})",
            )
        )
    if (most := wishes.max_power_w) is not None:
        found.append(
            Wish(
                f"--max-power {most:g}",
                lambda card: card.tdp_w is not None and card.tdp_w <= most,
                lambda cards: _nearest(cards, lambda card: card.tdp_w, lambda watts: f"{watts:g} W"),
            )
        )
    return found


def of_price(wishes: Wishes, money: Money) -> list[Wish]:
    """Wishes about how to come by a card, what it may cost and how long a run may take."""
    found: list[Wish] = []
    names = [f"--{word}" for word in (wishes.market, wishes.condition) if word]
    names += [f"--provider {one}" for one in wishes.providers] + [f"--region {one}" for one in wishes.regions]
    words = " ".join(([f"--{wishes.way}"] if wishes.way else []) + names)
    if words:
        found.append(
            Wish(words, lambda card: _can_be_had(card, wishes), lambda cards: f"leave it out for {_names(cards)}")
        )
    if (hours := wishes.deadline_hours) is not None:
        found.append(
            Wish(
                f"--deadline {hours_in_words(hours)}",
                lambda card: _elapsed(card, wishes) is not None and _sure(_elapsed(card, wishes)) <= hours,
                lambda cards: _nearest(cards, lambda card: _elapsed(card, wishes), hours_in_words),
            )
        )
    if (budget := wishes.budget_usd) is not None:
        found.append(
            Wish(
                f"--budget {money(budget)}",
                lambda card: _cost(card, wishes) is not None and _sure(_cost(card, wishes)) <= budget,
                lambda cards: _nearest(cards, lambda card: _cost(card, wishes), money),
            )
        )
    return found


def in_budget(card: CardAdvice, way: Literal["buy", "rent"], wishes: Wishes) -> bool:
    """Whether a card can be had in one way for what may be spent; where no run is asked about, the budget is about no rent."""
    if wishes.budget_usd is None:
        return True
    if way == "buy":
        return card.buy is not None and card.buy.usd <= wishes.budget_usd
    return wishes.samples is None or _sure(card.run.rent_usd if card.run is not None else None) <= wishes.budget_usd


def can_train(workloads: int, wishes: Wishes) -> Wish:
    """That a card trains at least something, at the batch size that is wished for."""
    at = f" at batch size {text.format_count(wishes.batch_size)}" if wishes.batch_size else ""
    what = "the workload" if workloads == 1 else "any of the workloads"
    return Wish(
        f"training {what}{at}",
        lambda card: card.trains > 0 and card.supported and not card.unmeasured,
        _train_cure,
    )


def meets(card: CardAdvice, wishes: Sequence[Wish]) -> tuple[str, ...]:
    """The wishes that a card does not meet."""
    return tuple(wish.flag for wish in wishes if not wish.holds(card))


def emptied(cards: Sequence[CardAdvice], wishes: Sequence[Wish]) -> Empty | None:
    """Why no card meets all wishes; None where one does."""
    left = list(cards)
    for wish in wishes:
        rest = [card for card in left if wish.holds(card)]
        if not rest:
            return Empty(
                wish=wish.flag,
                left=len(left),
                relaxations=tuple(_relaxations(cards, wishes, wish, left)) if left else (),
            )
        left = rest
    return None if left else Empty(wish="the cards that were named", left=0, relaxations=())


def _relaxations(
    cards: Sequence[CardAdvice], wishes: Sequence[Wish], last: Wish, left: Sequence[CardAdvice]
) -> Iterator[Relaxation]:
    """What would leave something if it alone were relaxed; where nothing would, by how much the one that left nothing is off."""
    found = False
    # who relaxes this far gets no short list, but is told which of these cards would hold it
    by_memory = [msgspec.structs.replace(card, unmeasured=False) for card in cards if card.unmeasured]
    for wish in wishes:
        others = [card for card in cards if all(one.holds(card) for one in wishes if one is not wish)]
        if others:
            found = True
            yield Relaxation(wish=wish.flag, cure=wish.cure(others))
        elif others := [card for card in by_memory if all(one.holds(card) for one in wishes if one is not wish)]:
            found = True
            vendors = ", ".join(sorted({card.vendor for card in others}))
            cure = f"{wish.cure(others)}, by memory alone: nothing of {vendors} was measured"
            yield Relaxation(wish=wish.flag, cure=cure)
    if not found:
        after = wishes[list(wishes).index(last) + 1 :]
        also = [wish.flag for wish in after if not any(wish.holds(card) for card in left)]
        rest = f"; and {' and '.join(also)} would still leave none" if also else ""
        yield Relaxation(wish=last.flag, cure=last.cure(left) + rest)


def _one_of(flag: str, wanted: tuple[str, ...], own: str) -> Wish:
    keys = {one.casefold() for one in wanted}
    return Wish(
        f"{flag} {' '.join(wanted)}",
        lambda card: str(getattr(card, own)).casefold() in keys,
        lambda cards: f"{', '.join(sorted({str(getattr(card, own)) for card in cards}))} would leave some",
    )


def _train_cure(cards: Sequence[CardAdvice]) -> str:
    if held := [card for card in cards if card.supported and not card.unmeasured]:
        cards = held
    elif software := [card for card in cards if card.trains and not card.supported]:
        return f"the {software[0].gpu} has the memory, but {software[0].problems[0]}"
    near = max(cards, key=lambda card: max(card.max_batch_size.values()))
    batches = ", ".join(f"{name} {text.format_count(size)}" for name, size in near.max_batch_size.items())
    return f"the largest batch of any such card is on the {near.gpu}: {batches}"


def _can_be_had(card: CardAdvice, wishes: Wishes) -> bool:
    if wishes.way == "buy" or (wishes.way is None and wishes.condition):
        return card.buy is not None
    if wishes.way == "rent" or wishes.way is None:
        return card.rent is not None
    return True


def _elapsed(card: CardAdvice, wishes: Wishes) -> float | None:
    return elapsed_hours(card.run, wishes.hours_per_week) if card.run is not None else None


def _cost(card: CardAdvice, wishes: Wishes) -> float | None:
    """What a card costs that the budget is about: its price, or the rent of the run; the less of both where both will do."""
    rent = card.run.rent_usd if card.run is not None else None
    costs = [
        card.buy.usd if card.buy is not None and wishes.way != "rent" else None,
        rent if wishes.way != "buy" else None,
    ]
    return min((cost for cost in costs if cost is not None), default=None)


def _sure(value: float | None) -> float:
    return float("inf") if value is None else value


def hours_in_words(hours: float) -> str:
    """A time as people write it: "36 h", "2 days"."""
    return text.format_long(S_AN_HOUR * hours)


def _nearest(
    cards: Sequence[CardAdvice], value: Callable[[CardAdvice], float | None], words: Callable[[float], str]
) -> str:
    known = [(found, card.gpu) for card in cards if (found := value(card)) is not None]
    if not known:
        return "it is not known of any card that is left; leave it out"
    least, gpu = min(known)
    return f"the least is {words(least)} ({gpu})"


def _largest(cards: Sequence[CardAdvice]) -> CardAdvice:
    return max(cards, key=lambda card: card.memory_bytes)


def _most(cards: Sequence[CardAdvice]) -> tuple[int, str]:
    largest = _largest(cards)
    return largest.memory_bytes, largest.gpu


def _sold_bytes(card: CardAdvice) -> int:
    """Memory as on the box, which is what people ask for."""
    return text.memory_class_gb(card.memory_bytes, card.gpu) << 30


def _memory(count: int) -> str:
    """A size as people write it: "24GB", or in GiB where that is no whole number."""
    return f"{count // 10**9}GB" if count % 10**9 == 0 else text.format_limit(count)


def _names(cards: Sequence[CardAdvice], most: int = 3) -> str:
    names = [card.gpu for card in cards]
    return ", ".join(names[:most]) + (f" and {len(names) - most} others" if len(names) > most else "")
