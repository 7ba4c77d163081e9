"""The one line that says why a card is where it is: what fits, how fast, how long a run takes, and what it costs, with dates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whichgpu import text
from whichgpu.advice import RankReport, at_least
from whichgpu.advising.records import BreakEven, CardAdvice, Rent, Whole
from whichgpu.advising.wishes import Way, Wishes
from whichgpu.catalogue import Price
from whichgpu.currency import Rate
from whichgpu.speed.record import PredictedSpeed

_MOST_NAMES = 3
_CENT = 0.01


class Reasons:
    """Writes reasons about one ranking in one currency."""

    def __init__(self, report: RankReport, wishes: Wishes, currency: Rate) -> None:
        self._report = report
        self._missing = {row.gpu: row.speed_missing for row in report.gpus}
        self._wishes = wishes
        self._currency = currency

    def money(self, usd: float, unit: str = "once") -> str:
        """An amount in the currency that is asked for: "699 EUR", "0.34 EUR/h"."""
        return format_money(usd, self._currency, unit)

    def of(self, card: CardAdvice, way: Way | None = None) -> str:
        """The reason of a card, for one way to come by it (None: every way that is known)."""
        if not card.supported:
            return "; ".join(card.problems)
        parts = [*self._what_fits(card)]
        if card.trains:
            parts += [*self._how_fast(card), *self._how_long(card), *self._costs(card, way)]
        return ", ".join(parts)

    def _what_fits(self, card: CardAdvice) -> Iterator[str]:
        if len(self._report.workloads) > 1:
            fails = f" (not {_some(card.fails)})" if card.fails else ""
            yield f"trains {card.trains} of {len(self._report.workloads)}{fails}"
            if card.cannot:
                too_large = len(card.fails) - len(card.cannot)
                others = f"{too_large} do{'es' * (too_large == 1)} not fit, " if too_large else ""
                yield f"{others}{len(card.cannot)} cannot run: {'; '.join(card.problems)}"
            if card.unmeasured:
                yield f"by memory alone: nothing of {card.vendor} was measured"
            return
        (name,) = self._report.workloads
        size, safe = card.max_batch_size[name], card.max_batch_size_safe[name]
        sure = f" ({text.format_count(safe)} safe)" if safe < size else ""
        wanted = self._wishes.batch_size
        if not card.trains:
            yield f"does not fit batch {text.format_count(wanted)}" if wanted else "not even batch 1 fits"
            if wanted and size:
                yield f"the largest is {text.format_count(size)}"
            return
        yield f"fits batch {text.format_count(size)}{' or more' if at_least(size) else ''}{sure}"
        if wanted is not None and safe < wanted:
            yield f"so that {text.format_count(wanted)} only likely fits"
        if card.unmeasured:
            yield f"predicted with twice the interval: nothing of {card.vendor} was measured"

    def _how_fast(self, card: CardAdvice) -> Iterator[str]:
        if len(self._report.workloads) == 1:
            (name,) = self._report.workloads
            speed = card.speed[name]
            if speed is not None:
                yield f"{_rate(speed)} {self._unit(name)}/s{_basis(speed)}"
            elif not card.unmeasured and (missing := self._missing.get(card.gpu, {}).get(name)):
                yield missing.removeprefix(f"{card.gpu}: ")
        elif card.relative_speed is not None and len(self._report.gpus) > 1:
            free = "free " if self._wishes.way == "free" else ""
            yield f"{text.format_ratio(card.relative_speed)} of the fastest {free}card's speed"

    def _unit(self, name: str) -> str:
        trace = self._report.traces[name]
        return trace.unit if trace.items_per_sample == 1 else "samples"

    def _how_long(self, card: CardAdvice) -> Iterator[str]:
        if card.run is None:
            return
        runs = "your run" if len(self._report.workloads) == 1 else "your runs"
        yield f"{_span(card.run)} for {runs}"
        if card.run.weeks is not None:
            yield f"{text.format_weeks(card.run.weeks)} at {self._wishes.hours_per_week:g} h a week"

    def _costs(self, card: CardAdvice, way: Way | None) -> Iterator[str]:
        if way in (None, "rent") and card.rent is not None:
            yield self.rented(card.rent, card.run)
        if way in (None, "buy") and card.buy is not None:
            yield self.bought(card.buy)
        if way in (None, "buy", "own") and card.run is not None and card.run.power_usd is not None:
            yield f"{self.money(card.run.power_usd)} of power a run"
        if way == "buy" and card.break_even is not None:
            yield self._pays(card.break_even)
        if way == "buy" and card.form == "server":
            yield "needs a server to sit in"

    def rented(self, rent: Rent, run: Whole | None) -> str:
        """ "4.10 USD rented at the median of 7 providers, 2026-11"."""
        usd, unit = (rent.usd_per_hour, "hour") if run is None or run.rent_usd is None else (run.rent_usd, "once")
        price = rent.price
        whose = (
            f"at the median of {len(price.providers)} providers"
            if len(price.providers) > 1
            else f"at {price.providers[0]}"
        )
        box = f" for a machine of {rent.cards}" if rent.cards > 1 else ""
        spot = " spot" if price.condition.startswith("spot") else ""
        return f"{self.money(usd, unit)} rented{spot}{box} {whose}, {_when(price)}"

    def bought(self, price: Price) -> str:
        """ "699 USD new, 2026-05"."""
        return f"{self.money(price.usd)} {price.condition.removesuffix(', dated')}, {_when(price)}"

    def _pays(self, found: BreakEven) -> str:
        if found.hours is None:
            return "renting is always cheaper, as power alone costs more than the rent"
        weeks = f" ({text.format_weeks(found.weeks)})" if found.weeks is not None else ""
        return f"cheaper than renting it from {text.format_count(round(found.hours))} h on{weeks}"


def format_money(usd: float, currency: Rate, unit: str = "once") -> str:
    """An amount in a currency."""
    own = currency.of_usd(usd)
    # two digits where cents would say nothing
    amount = f"{own:.2g}" if 0 < own < _CENT else text.format_amount(own, unit)
    return f"{amount} {currency.code}{'/h' if unit == 'hour' else ''}"


def _when(price: Price) -> str:
    stale = " (stale)" if price.stale else ""
    return f"{text.format_months(price.oldest, price.newest)}{stale}"


def _rate(speed: PredictedSpeed) -> str:
    return text.format_rate(float(f"{speed.samples_per_s:.3g}"))


def _basis(speed: PredictedSpeed) -> str:
    if speed.basis != "predicted":
        return f" {speed.basis}"
    low, high = (text.format_rate(float(f"{end:.3g}")) for end in (speed.samples_per_s_low, speed.samples_per_s_high))
    return f" ({low} to {high})"


def _span(run: Whole) -> str:
    low, high = text.format_long(run.seconds_low), text.format_long(run.seconds_high)
    return f"{text.format_long(run.seconds)}" + (f" ({low} to {high})" if low != high else "")


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
