"""Where each figure of advice comes from, for `--why`: its basis, source and date."""

from __future__ import annotations

from collections.abc import Iterator

from whichgpu import text
from whichgpu.advising.defaults import POWER_SOURCE, POWER_USD_PER_KWH, RESALE, RESALE_SOURCE
from whichgpu.advising.prices import Prices
from whichgpu.advising.reasons import format_money
from whichgpu.advising.records import AdviceReport, CardAdvice, Figure
from whichgpu.catalogue import Catalogue, Gpu, Price

_MEMORY = "the step, traced on this machine (torch {torch}), replayed through a model of PyTorch's allocator; `whichgpu accuracy`"
_SPEED = (
    "the traced step and the card's data sheet; the interval holds about 80 % of the time; `whichgpu accuracy speed`"
)
EVERY = "all"
_FEW = 12  # of so many cards every offer is named; of more, those of the short list, and the others in one line a price


def figures(report: AdviceReport, cards: Catalogue, prices: Prices) -> Iterator[Figure]:
    """The sources of what is said of the cards, and of what holds for all."""
    gpus = {gpu.name: gpu for gpu in cards.gpus}
    torch = next((trace.torch_version for trace in report.traces.values()), "")
    yield from _general(report, torch)
    picked = {pick.gpu for pick in report.short_list}
    closely = len(report.cards) <= _FEW
    for card in report.cards:
        yield from _of_card(card, gpus[card.gpu], report, prices, closely or card.gpu in picked)
    for free in report.free:
        yield Figure(
            about=f"{free.service} {free.plan}",
            what="hours and terms",
            value=f"{free.gpu} x {free.cards}",
            basis=f"published, confidence {free.confidence}",
            source=free.source,
            date=free.date,
        )


def _general(report: AdviceReport, torch: str) -> Iterator[Figure]:
    yield Figure(about=EVERY, what="batch sizes", value="", basis="predicted", source=_MEMORY.format(torch=torch))
    yield Figure(about=EVERY, what="speeds without another source", value="", basis="predicted", source=_SPEED)
    wishes = report.wishes
    asked = wishes.power_usd_per_kwh != POWER_USD_PER_KWH
    yield Figure(
        about=EVERY,
        what="power",
        value=f"{format_money(wishes.power_usd_per_kwh, report.currency)} per kWh",
        basis="given" if asked else "assumed",
        source="--power-price" if asked else POWER_SOURCE,
    )
    asked = wishes.resale != RESALE
    yield Figure(
        about=EVERY,
        what="had back when a card is sold",
        value=f"{wishes.resale:.0%}",
        basis="given" if asked else "assumed",
        source="--resale" if asked else RESALE_SOURCE,
    )
    if report.currency.code != "USD":
        yield Figure(
            about=EVERY,
            what="currency",
            value=f"1 {report.currency.code} = {report.currency.usd_per_unit:g} USD",
            basis="published",
            source=report.currency.source,
            date=report.currency.date,
        )


def _of_card(card: CardAdvice, gpu: Gpu, report: AdviceReport, prices: Prices, closely: bool) -> Iterator[Figure]:
    yield Figure(
        about=card.gpu,
        what="memory",
        value=text.format_bytes(card.memory_bytes),
        basis=gpu.memory_basis,
        source=gpu.memory_source,
        date=gpu.checked,
    )
    if gpu.tdp_w is not None:
        yield Figure(
            about=card.gpu,
            what="power limit and rates",
            value=f"{gpu.tdp_w:g} W",
            basis="data sheet",
            source=gpu.source,
            date=gpu.checked,
        )
    for name, speed in card.speed.items():
        if speed is not None and speed.basis != "predicted":
            yield Figure(
                about=card.gpu,
                what=f"speed of {name}",
                value=f"{text.format_rate(speed.samples_per_s)} samples/s at {text.format_count(speed.batch_size)}",
                basis=speed.basis,
                source=speed.source,
            )
    for price in (card.buy, card.rent.price if card.rent is not None else None):
        if price is not None:
            yield from _offers(gpu, price, report, prices) if closely else [_median(card, price, report)]


def _median(card: CardAdvice, price: Price, report: AdviceReport) -> Figure:
    """A price in one line."""
    usd = format_money(price.usd, report.currency, price.unit)
    return Figure(
        about=card.gpu,
        what="to buy" if price.unit == "once" else "to rent",
        value=f"{usd}, {price.condition}, the median of {price.offers} at {', '.join(price.providers)}",
        basis="offers",
        source=", ".join(price.sources),
        date=text.format_months(price.oldest, price.newest),
    )


def _offers(gpu: Gpu, price: Price, report: AdviceReport, prices: Prices) -> Iterator[Figure]:
    """Each offer that a price is the median of, or the price at launch."""
    what = "to buy" if price.unit == "once" else "to rent"
    if price.condition == "launch":
        yield Figure(
            about=gpu.name,
            what=f"{what}, at launch",
            value=format_money(price.usd, report.currency),
            basis="published",
            source=", ".join(price.sources),
            date=price.newest,
        )
        return
    for offer in prices.behind(gpu, price):
        box = f" a card, in a machine of {offer.count}" if offer.count > 1 else ""
        yield Figure(
            about=gpu.name,
            what=f"{what}, {offer.provider}",
            value=f"{format_money(float(offer.usd), report.currency, price.unit)}{box}",
            basis=offer.kind,
            source=offer.source,
            date=offer.date,
        )
