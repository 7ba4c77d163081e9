"""What the runs of all workloads take and cost on a card, and from how many hours on buying it is cheaper than renting.

Time is of the steps alone and one workload after the other. Power is the board at its power limit, which is the most it can
take, without the machine around it, which costs whoever buys but is in a rent. What is lost by buying is the price less what
is had back for the card. Several cards of an instance are paid for and one is used: what two do together is not foretold.
"""

from __future__ import annotations

from collections.abc import Sequence

from whichgpu.advising.records import BreakEven, Rent, Whole
from whichgpu.advising.wishes import HOURS_A_WEEK, Wishes
from whichgpu.catalogue import Price
from whichgpu.runs import S_AN_HOUR, Run


def whole(runs: Sequence[Run | None], rent: Rent | None, wishes: Wishes) -> Whole | None:
    """The runs together; None where there is none, or one is unknown."""
    known = [run for run in runs if run is not None]
    if not known or len(known) < len(runs):
        return None
    seconds, low, high = (sum(getattr(run, end) for run in known) for end in ("seconds", "seconds_low", "seconds_high"))
    energies = [run.energy_kwh for run in known if run.energy_kwh is not None]
    energy = sum(energies) if len(energies) == len(known) else None
    hours = [1 / S_AN_HOUR * end for end in (seconds, low, high)]
    return Whole(
        seconds=seconds,
        seconds_low=low,
        seconds_high=high,
        energy_kwh=energy,
        weeks=hours[0] / wishes.hours_per_week if wishes.hours_per_week else None,
        rent_usd=rent.usd_per_hour * hours[0] if rent else None,
        rent_usd_low=rent.usd_per_hour_low * hours[1] if rent else None,
        rent_usd_high=rent.usd_per_hour_high * hours[2] if rent else None,
        power_usd=energy * wishes.power_usd_per_kwh if energy is not None else None,
    )


def elapsed_hours(run: Whole, hours_per_week: float | None) -> float:
    """Hours on the clock until the runs are over, where a card runs only so many hours a week."""
    hours = run.seconds / S_AN_HOUR
    return hours if hours_per_week is None else hours * HOURS_A_WEEK / hours_per_week


def break_even(buy: Price | None, rent: Rent | None, tdp_w: float | None, wishes: Wishes) -> BreakEven | None:
    """From how many hours on buying is cheaper than renting; None where a price or the power is unknown."""
    if buy is None or rent is None or tdp_w is None:
        return None
    loss = buy.usd * (1 - wishes.resale)
    power = tdp_w / 1000 * wishes.power_usd_per_kwh
    saved = rent.usd_per_hour - power
    hours = loss / saved if saved > 0 else None
    weeks = hours / wishes.hours_per_week if hours is not None and wishes.hours_per_week else None
    return BreakEven(hours=hours, weeks=weeks, loss_usd=loss, power_usd_per_hour=power)
