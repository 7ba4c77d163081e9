"""The short list: best value, fastest, cheapest that trains everything, and what somebody has already.

Best value to rent is the least rent of the run where one was asked about, and else most work for a dollar of rent; best value to
buy is most work for a dollar of the price. Work is the geometric mean over the workloads of samples a second. Prices that are
stale decide nothing where there is another, and what is over the budget in one way is not chosen for being under it in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from whichgpu.advising.limits import in_budget
from whichgpu.advising.records import CardAdvice, Pick, Role
from whichgpu.advising.wishes import Way, Wishes

Reason = Callable[[CardAdvice, Way | None], str]
Value = Callable[[CardAdvice], float | None]


def short_list(
    candidates: Sequence[CardAdvice], own: Iterable[CardAdvice], wishes: Wishes, reason: Reason
) -> tuple[Pick, ...]:
    """The picks of those that meet all wishes, and the cards that somebody has, whatever they meet."""
    pool = _most_trained(candidates)
    to_rent = _fresh([card for card in pool if in_budget(card, "rent", wishes)], "rent")
    to_buy = _fresh([card for card in pool if in_budget(card, "buy", wishes)], "buy")
    chosen: list[tuple[Role, Way, CardAdvice]] = []
    if wishes.way != "buy":
        chosen += _take("best value to rent", "rent", to_rent, _rent_value)
    if wishes.way != "rent":
        chosen += _take("best value to buy", "buy", to_buy, _buy_value)
    chosen += [
        (role, _way(card, wishes), card) for role, _, card in _take("fastest", "own", _had(pool, wishes), _speed)
    ]
    if wishes.way == "rent":
        chosen += _take("cheapest", "rent", to_rent, lambda card: -card.rent.usd_per_hour if card.rent else None)
    else:
        chosen += _take("cheapest", "buy", to_buy, lambda card: -card.buy.usd if card.buy else None)
    chosen += [("yours", "own", card) for card in own]
    return _merged(chosen, reason)


def _most_trained(cards: Sequence[CardAdvice]) -> list[CardAdvice]:
    most = max((card.trains for card in cards), default=0)
    return [card for card in cards if card.trains == most]


def _take(role: Role, way: Way, pool: Sequence[CardAdvice], value: Value) -> list[tuple[Role, Way, CardAdvice]]:
    """The card of the highest value; none where no value is known."""
    known = [(found, card) for card in pool if (found := value(card)) is not None]
    return [(role, way, max(known, key=lambda pair: pair[0])[1])] if known else []


def _fresh(pool: Sequence[CardAdvice], way: Way) -> list[CardAdvice]:
    """The cards with a price of the day; those with stale ones where there is none."""

    def stale(card: CardAdvice) -> bool:
        price = card.buy if way == "buy" else card.rent.price if card.rent is not None else None
        return price is None or price.stale

    fresh = [card for card in pool if not stale(card)]
    return fresh or list(pool)


def _rent_value(card: CardAdvice) -> float | None:
    if card.rent is None:
        return None
    if card.run is not None and card.run.rent_usd is not None:
        return -card.run.rent_usd
    return None if card.relative_speed is None else card.relative_speed / card.rent.usd_per_hour


def _buy_value(card: CardAdvice) -> float | None:
    return None if card.buy is None or card.relative_speed is None else card.relative_speed / card.buy.usd


def _speed(card: CardAdvice) -> float | None:
    return card.relative_speed


def _had(pool: Sequence[CardAdvice], wishes: Wishes) -> list[CardAdvice]:
    """The cards that can be had in the way that is wished for."""
    if wishes.way == "buy":
        return _fresh([card for card in pool if card.buy is not None], "buy")
    if wishes.way == "rent":
        return _fresh([card for card in pool if card.rent is not None], "rent")
    return [card for card in pool if card.buy is not None or card.rent is not None]


def _way(card: CardAdvice, wishes: Wishes) -> Way:
    """How one comes by a card: as wished, or else within the budget by the price that is not stale, to rent before to buy."""
    if wishes.way is not None:
        return wishes.way
    if not in_budget(card, "buy", wishes):
        return "rent"
    if card.rent is not None and in_budget(card, "rent", wishes) and (not card.rent.price.stale or card.buy is None):
        return "rent"
    return "buy"


def _merged(chosen: Sequence[tuple[Role, Way, CardAdvice]], reason: Reason) -> tuple[Pick, ...]:
    """One pick for each card and way, with all its roles."""
    roles: dict[tuple[str, Way], list[Role]] = {}
    by_key: dict[tuple[str, Way], CardAdvice] = {}
    for role, way, card in chosen:
        roles.setdefault((card.id, way), []).append(role)
        by_key[card.id, way] = card
    return tuple(
        Pick(roles=tuple(found), way=key[1], gpu=by_key[key].gpu, reason=reason(by_key[key], key[1]))
        for key, found in roles.items()
    )
