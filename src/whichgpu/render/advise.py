"""Advice on one screen: the short list with reasons, then every card in three tiers, and with `why` the source of each figure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.advice import Tier
from whichgpu.advising.limits import hours_in_words
from whichgpu.advising.reasons import format_money
from whichgpu.advising.records import AdviceReport, CardAdvice, Empty, Family
from whichgpu.render.common import (
    BASIS,
    add_column,
    bar,
    breakable,
    dense_table,
    exchanged,
    listed,
    narrow_if_needed,
    print_interrupted,
    print_notes,
    print_whole,
    traced,
)

_TIERS: dict[Tier, str] = {
    "all": "Trains all",
    "most": "Trains most",
    "poor": "Not a good fit",
}
_ONE: dict[Tier, str] = {"all": "Trains it", "most": "Trains it", "poor": "Does not train it"}
_FEW_CARDS = 12  # up to so many have a line each
_FEW_WORKLOADS = 3
_BAR = 24
_MOST_SIZES = 8


def print_advice(report: AdviceReport, console: Console, *, every: bool, why: bool) -> None:
    """Print advice; `every`: a line for each card; `why`: the source of each figure, and the caveats of each workload."""
    title = "What to buy, rent, or do without"
    console.print(Text.assemble((title, "bold"), f": {BASIS[report.basis]}; cards and prices as of {report.as_of}"))
    print_interrupted(report.missing, console)
    _print_workloads(report, console)
    _print_short_list(report, console)
    if report.empty is not None:
        _print_empty(report.empty, "free machine" if report.wishes.way == "free" else "card", console)
    _print_changes(report.changes, console)
    _print_free(report, console)
    if report.wishes.way != "free":
        for tier in _TIERS:
            _print_tier(tier, report, every, console)
        _print_apart(report, every, console)
        _print_families(report.families, console, every=every)
        console.print()
        console.print(_legend(report))
    if why:
        _print_sources(report, console)
        print_notes(report.notes, console)
    else:
        own = [note for note in report.notes if not note.startswith(tuple(f"{name}: " for name in report.workloads))]
        rest = len(report.notes) - len(own)
        caveats = f"so is {rest} caveat" if rest == 1 else f"so are {rest} caveats"
        more = f"; {caveats} on single workloads" if rest else ""
        print_notes([*own, f"the source of every figure: --why{more}"], console)


def _print_workloads(report: AdviceReport, console: Console) -> None:
    if len(report.workloads) <= _FEW_WORKLOADS:
        for name in report.workloads:
            trace = report.traces.get(name)
            console.print(f"{breakable(name)}: {f'traced {traced(trace)}' if trace is not None else 'not traced'}.")
    else:
        console.print(f"{len(report.workloads)} workloads: {listed(report.workloads)}.")
    wanted = []
    if report.wishes.batch_size is not None:
        wanted.append(f"at batch size {text.format_count(report.wishes.batch_size)}")
    if report.samples is not None:
        each = " of each" if len(report.workloads) > 1 else ""
        wanted.append(f"a run of {text.format_count(report.samples)} samples{each}")
    if report.wishes.deadline_hours is not None:
        wanted.append(f"over in {hours_in_words(report.wishes.deadline_hours)}")
    if wanted:
        console.print(f"Asked about: {', '.join(wanted)}.")


def _print_short_list(report: AdviceReport, console: Console) -> None:
    for pick in report.short_list:
        roles = ", ".join(pick.roles)
        _print_reason(roles[0].upper() + roles[1:], pick.gpu, pick.reason, console)


def _print_reason(title: str, gpu: str, reason: str, console: Console) -> None:
    console.print()
    console.print(Text.assemble(f"{title}: ", (gpu, "bold")))
    console.print(Padding(reason, (0, 0, 0, 2)))


def _print_empty(empty: Empty, what: str, console: Console) -> None:
    console.print()
    left = f", of {empty.left} that were left before it" if empty.left else ""
    console.print(
        Text.assemble((f"No {what} meets all wishes", "bold"), f": {empty.wish} leaves none{left}. To relax:")
    )
    for one in empty.relaxations:
        console.print(Padding(f"{one.wish}: {one.cure}", (0, 0, 0, 2)))


def _print_changes(changes: Sequence[str], console: Console) -> None:
    if changes:
        console.print()
        console.print(Text("What to change", "bold"))
        for change in changes:
            console.print(Padding(breakable(change), (0, 0, 0, 2)))


def _print_free(report: AdviceReport, console: Console) -> None:
    if not report.free:
        return
    if report.wishes.way != "free":
        first = report.free[0]
        if first.trains:
            _print_reason("For nothing", f"{first.gpu} at {first.service}", f"{first.reason} ({first.date})", console)
        return
    for one in report.free:
        _print_reason(f"{one.service}, {one.plan}", one.gpu, f"{one.reason} ({one.date})", console)
        if len(report.workloads) > 1:
            card = next((card for card in report.cards if card.gpu == one.gpu), None)
            cannot = card.cannot if card is not None else ()
            for words, names in (
                ("trains", [_with_speed(name, card) for name in one.fits]),
                ("does not fit", [name for name in one.fails if name not in cannot]),
                ("cannot run", cannot),
            ):
                if names:
                    console.print(Padding(f"{words}: {listed(names)}", (0, 0, 0, 2)))


def _with_speed(name: str, card: CardAdvice | None) -> str:
    """A workload with the largest batch and the speed on a card: "vit-large (batch 24, 18.3/s)"."""
    if card is None:
        return name
    speed = card.speed.get(name)
    rate = f", {text.format_rate(float(f'{speed.samples_per_s:.3g}'))} samples/s" if speed is not None else ""
    return f"{name} (batch {text.format_count(card.max_batch_size[name])}{rate})"


def _print_tier(tier: Tier, report: AdviceReport, every: bool, console: Console) -> None:
    cards = [card for card in report.cards if card.tier == tier and card.supported and not card.unmeasured]
    if not cards:
        return
    titles = _ONE if len(report.workloads) == 1 else _TIERS
    _print_cards(f"{titles[tier]} ({len(cards)})", cards, report, every, console)


def _print_apart(report: AdviceReport, every: bool, console: Console) -> None:
    """Cards of vendors of which nothing was measured, and those that cannot run it."""
    unmeasured = [card for card in report.cards if card.unmeasured and card.supported]
    for trains, title in (
        (True, "Would hold it by memory alone, unmeasured"),
        (False, "Would not hold it, unmeasured"),
    ):
        cards = [card for card in unmeasured if (card.tier == "all") == trains]
        if cards:
            _print_cards(title, cards, report, every, console)
    reasons: dict[str, list[CardAdvice]] = {}
    for card in report.cards:
        if not card.supported:
            reasons.setdefault("; ".join(card.problems), []).append(card)
    if reasons:
        console.print()
        console.print(Text("Not supported", "bold"))
    for reason, cards in reasons.items():
        console.print(Padding(f"{listed(card.gpu for card in cards)}: {reason}", (0, 0, 0, 2)))


def _print_cards(title: str, cards: Sequence[CardAdvice], report: AdviceReport, every: bool, console: Console) -> None:
    console.print()
    console.print(Text(title, "bold"))
    if every or len(report.cards) <= _FEW_CARDS:
        for card in cards:
            line = Table.grid(padding=(0, 1))
            line.add_column()
            line.add_column(overflow="fold")
            line.add_row(" ", Text.assemble((card.gpu, "bold"), f"{_star(card)}: {card.reason}"))
            console.print(line)
    else:
        briefs = [_in_brief(card, report) for card in cards]
        for priced in (True, False):
            found = [words for words, known in briefs if known == priced]
            said = "" if priced or len(found) == len(cards) else f"no {_condition(report)}price known: "
            if found:
                console.print(Padding(said + listed(found), (0, 0, 0, 2)))


def _condition(report: AdviceReport) -> str:
    """Which prices count, where not all do."""
    return f"{report.wishes.condition} " if report.wishes.condition else ""


def _star(card: CardAdvice) -> str:
    return "*" if card.small_batches and card.trains else ""


def _in_brief(card: CardAdvice, report: AdviceReport) -> tuple[str, bool]:
    """A card in few words, "RTX 3060 12GB 275", with a tilde where the price is stale, and whether a price is known."""
    price = card.buy if report.wishes.way != "rent" else None
    words = f"{card.gpu}{_star(card)}"
    if price is not None:
        return f"{words} {'~' * price.stale}{_amount(price.usd, report)}", True
    if card.rent is not None and report.wishes.way != "buy":
        return f"{words} {'~' * card.rent.price.stale}{_amount(card.rent.usd_per_hour, report, 'hour')}/h", True
    return words, False


def _amount(usd: float, report: AdviceReport, unit: str = "once") -> str:
    return text.format_amount(report.currency.of_usd(usd), unit)


def _print_families(families: Sequence[Family], console: Console, *, every: bool) -> None:
    """The two curves: mean speed by memory, for image and language models; in one line where there are many sizes."""
    if not families:
        return
    console.print()
    names = " and ".join(f"{family.workloads} {family.family}" for family in families)
    console.print(
        Text.assemble(("What memory is worth", "bold"), f": mean speed of the {names} models, * counted as 0")
    )
    means = [_by_memory(family) for family in families]
    gains = [
        f"that of {family.family} models with the power {text.format_ratio(family.memory_exponent)}"
        for family in families
        if family.memory_exponent is not None
    ]
    if gains:
        console.print(Padding(f"over all cards it grows with memory: {' and '.join(gains)}", (0, 0, 0, 2)))
    if len(means[0]) > _MOST_SIZES and not every:
        return
    table = dense_table(narrow=True)
    add_column(table, "Sold as>")
    for family in families:
        add_column(table, f"{family.family.capitalize()}>")
        table.add_column("")
    for size in means[0]:
        cells: list[str] = []
        for mean in means:
            most = max(mean.values(), default=1.0) or 1.0
            cells += (
                [text.format_ratio(mean[size]), bar(mean[size] / most, _BAR, ascii_only=console.options.ascii_only)]
                if size in mean
                else ["-", ""]
            )
        table.add_row(f"{size} GB", *cells)
    narrow_if_needed(table, console)
    print_whole(table, console)


def _by_memory(family: Family) -> dict[int, float]:
    """The mean over the cards that are sold with as much memory, the smallest first."""
    points: dict[int, list[float]] = {}
    for point in family.points:
        points.setdefault(text.memory_class_gb(point.memory_bytes, point.gpu), []).append(point.mean_speed)
    return {size: sum(found) / len(found) for size, found in sorted(points.items())}


def _legend(report: AdviceReport) -> str:
    stars = "*: some workload fits only at smaller batches than its own, or not at all. " * any(
        card.small_batches and card.trains for card in report.cards
    )
    code = report.currency.code
    return (
        f"{stars}Amounts are {code}: the price of the card, or /h to rent it where none is known; ~: an old price.{exchanged(report.currency)} "
        f"What is bought is taken to be sold again for {report.wishes.resale:.0%} of its price, and power to cost "
        f"{format_money(report.wishes.power_usd_per_kwh, report.currency)} a kWh."
    )


def _print_sources(report: AdviceReport, console: Console) -> None:
    console.print()
    console.print(Text("Where the figures come from", "bold"))
    about = None
    for figure in report.sources:
        if figure.about != about:
            about = figure.about
            console.print("every card" if about == "all" else about)
        said = [figure.what, figure.value, figure.basis, figure.date]
        console.print(Padding(f"{', '.join(filter(None, said))}: {figure.source}", (0, 0, 0, 2)))
