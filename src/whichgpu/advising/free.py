"""What machines that cost nothing do of the workloads, and in how many sessions and weeks a run ends there.

Of a machine with several cards one is counted: what they do together was neither foretold nor measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from math import ceil

import msgspec

from whichgpu import text
from whichgpu.advice import ORDER
from whichgpu.advising import limits
from whichgpu.advising.prices import is_named
from whichgpu.advising.records import CardAdvice, Empty, FreeAdvice, Relaxation
from whichgpu.advising.wishes import HOURS_A_WEEK, Wishes
from whichgpu.free_machines import FreeMachine
from whichgpu.runs import S_AN_HOUR

_HOURS_A_MONTH = 24 * 365.25 / 12


def services(machines: Iterable[FreeMachine]) -> list[str]:
    """The names of the services."""
    return sorted({machine.service for machine in machines})


def free_advice(
    machines: Sequence[FreeMachine],
    cards: Sequence[CardAdvice],
    wishes: Wishes,
    reason: Callable[[CardAdvice], str],
    day: date,
    wanted_card: Callable[[CardAdvice], bool] = lambda _: True,
) -> tuple[FreeAdvice, ...]:
    """Each machine with its card that was ranked: those that train most first, then the quickest.

    `wanted_card` says which cards are wished for; machines with another one are left out.
    """
    by_id = {card.id: card for card in cards if not card.unmeasured}
    wanted = [
        machine
        for machine in machines
        if not wishes.providers or any(is_named(machine.service, one) for one in wishes.providers)
    ]
    found = []
    for machine in wanted:
        ranked = [by_id[gpu] for gpu in machine.gpus if gpu in by_id]
        if ranked:  # where the source leaves the form of the card open, the slower one is meant
            card = min(ranked, key=lambda one: (one.trains, one.relative_speed or 0.0))
            if wanted_card(card):
                found.append(_one(machine, card, wishes, reason(card), day))
    deadline = wishes.deadline_hours
    if deadline is not None:
        found = [one for one in found if one.enough and one.weeks is not None and one.weeks * HOURS_A_WEEK <= deadline]

    def key(one: FreeAdvice) -> tuple[object, ...]:
        known = one.weeks is not None
        return (
            not one.open_to_new,
            ORDER[one.tier],
            -one.trains,
            known and not one.enough,
            not known,
            one.weeks or 0.0,
            one.service,
        )

    return tuple(sorted(found, key=key))


def none_free(
    machines: Sequence[FreeMachine],
    cards: Sequence[CardAdvice],
    wishes: Wishes,
    day: date,
    names: Mapping[str, str],
) -> Empty:
    """Why no free machine meets all wishes, and what to leave out; `names` are those of the cards, by identifier."""
    if not machines:
        cure = "free machines are known of today alone; leave it out"
        return Empty(wish=f"--as-of {day}", left=0, relaxations=(Relaxation(wish=f"--as-of {day}", cure=cure),))
    hardware = limits.of_hardware(wishes)
    given = [wish.flag for wish in hardware]
    cures: dict[str, str] = {}

    def left(wishes: Wishes, wanted: Sequence[limits.Wish]) -> tuple[FreeAdvice, ...]:
        return free_advice(machines, cards, wishes, lambda _: "", day, lambda card: not limits.meets(card, wanted))

    for wish in hardware:
        if found := left(wishes, [one for one in hardware if one is not wish]):
            cures[wish.flag] = f"leave it out for {_machines(found)}"
    if wishes.providers:
        given.append(flag := " ".join(f"--provider {one}" for one in wishes.providers))
        if found := left(msgspec.structs.replace(wishes, providers=()), hardware):
            cures[flag] = f"leave it out for {_machines(found)}"
    if wishes.deadline_hours is not None:
        given.append(flag := f"--deadline {limits.hours_in_words(wishes.deadline_hours)}")
        later = left(msgspec.structs.replace(wishes, deadline_hours=None), hardware)
        if spans := [(one.weeks * HOURS_A_WEEK, one.service) for one in later if one.enough and one.weeks is not None]:
            hours, service = min(spans)
            cures[flag] = f"the least is {limits.hours_in_words(hours)} ({service})"
        elif later:
            cures[flag] = "no free machine gives enough hours for the run; rent or buy with --rent or --buy"
    if wishes.gpus:
        given.append(flag := " ".join(f"--gpu {one}" for one in wishes.gpus))
        there = sorted({names[gpu] for machine in machines for gpu in machine.gpus if gpu in names})
        cures[flag] = f"free machines have {', '.join(there)}"
    if not cures:
        cures[" ".join(given)] = "leaving out one of them is not enough; leave out several"
    return Empty(
        wish=" ".join(given),
        left=0,
        relaxations=tuple(Relaxation(wish=flag, cure=cure) for flag, cure in cures.items()),
    )


def _machines(found: Sequence[FreeAdvice], most: int = 3) -> str:
    names = list(dict.fromkeys(f"{one.gpu} at {one.service}" for one in found))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _one(machine: FreeMachine, card: CardAdvice, wishes: Wishes, reason: str, day: date) -> FreeAdvice:
    workloads = card.speed
    fits = tuple(name for name in workloads if name not in card.fails and card.supported)
    seconds = card.run.seconds if card.run is not None and fits else None
    hours = seconds / S_AN_HOUR if seconds is not None else None
    weeks = _weeks(hours, machine, wishes) if hours is not None and _is_told(machine, hours) else None
    session = machine.max_session_hours
    enough = None if hours is None else machine.total_hours is None or hours <= machine.total_hours
    sessions = ceil(hours / session) if hours is not None and session else None
    return FreeAdvice(
        service=machine.service,
        plan=machine.plan,
        gpu=card.gpu,
        cards=machine.count,
        trains=len(fits),
        tier=card.tier if card.supported else "poor",
        fits=fits,
        fails=tuple(name for name in workloads if name not in fits),
        session_hours=session,
        weekly_hours=machine.weekly_hours,
        monthly_hours=machine.monthly_hours,
        total_hours=machine.total_hours,
        enough=enough,
        open_to_new=machine.open_to_new,
        card_required=machine.card_required,
        stale=machine.stale(day),
        run_seconds=seconds,
        sessions=sessions,
        weeks=weeks,
        unattended=machine.runs_unattended,
        persistent=machine.persistent_storage,
        note=machine.note,
        source=machine.source,
        date=machine.date,
        confidence=machine.confidence,
        reason=", ".join([reason, *_words(machine, sessions, weeks, enough)]),
    )


def _is_told(machine: FreeMachine, hours: float) -> bool:
    """Whether a run of so many hours ends in one session, or it is known how many hours there are."""
    given = (machine.weekly_hours, machine.monthly_hours, machine.total_hours)
    return any(limit is not None for limit in given) or hours <= (machine.max_session_hours or 0.0)


def _weeks(hours: float, machine: FreeMachine, wishes: Wishes) -> float:
    """Weeks on the clock until so many hours are over: what a week or a month gives is whole when the run begins."""
    ends = [hours * HOURS_A_WEEK / (wishes.hours_per_week or HOURS_A_WEEK)]
    for quota, every in ((machine.weekly_hours, HOURS_A_WEEK), (machine.monthly_hours, _HOURS_A_MONTH)):
        if quota is not None:
            used_up = ceil(hours / quota) - 1  # how often it is waited for the next one
            ends.append(used_up * every + hours - used_up * quota)
    return max(ends) / HOURS_A_WEEK


def _words(machine: FreeMachine, sessions: int | None, weeks: float | None, enough: bool | None) -> Iterator[str]:
    if machine.count > 1:
        yield f"one of its {machine.count} cards"
    if machine.max_session_hours:
        yield f"sessions of {machine.max_session_hours:g} h"
    if machine.weekly_hours:
        yield f"{machine.weekly_hours:g} h a week"
    if machine.monthly_hours:
        yield f"{machine.monthly_hours:g} h a month"
    if machine.total_hours:
        yield f"{machine.total_hours:g} h in all"
    if enough is False:
        yield "which is not enough for your run"
    elif sessions is not None:
        yield f"{text.format_count(sessions)} session{'s' * (sessions != 1)} for your run"
    if weeks is not None and weeks > 1:
        yield text.format_weeks(weeks)
    if weeks is None and sessions is not None:
        yield "how often it may be used is not published"
    yield "runs unattended" if machine.runs_unattended else "needs somebody at the browser"
    if not machine.open_to_new:
        yield "closed to who has no account"
