"""Prices with their age, free machines, and what an update changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from whichgpu import text
from whichgpu.catalogue import Price
from whichgpu.currency import Rate
from whichgpu.free_machines import FreeMachine
from whichgpu.price_list import PriceList
from whichgpu.refresh import Change, Update
from whichgpu.render.common import add_column, dense_table, listed, narrow_if_needed, print_notes, print_whole

_MOST_CHANGES = 40


def print_prices(found: PriceList, console: Console) -> None:
    """Print what cards cost: likely, between what and what, how old, on which condition."""
    console.print(f"Prices as of {found.as_of}, in {found.currency.code}")
    if not any(row.buy or row.rent or row.spot for row in found.gpus):
        console.print("No price of that day or an earlier one is known: ask about a later day, or other cards.")
        return
    for title, prices in (
        ("To buy", [(row.gpu, row.buy) for row in found.gpus]),
        ("To rent for an hour, on demand", [(row.gpu, row.rent) for row in found.gpus]),
        ("To rent for an hour, spot", [(row.gpu, row.spot) for row in found.gpus]),
    ):
        table = dense_table()
        for column in ("Card", "Likely>", "Between>", "Age>", "Condition", "Offers>"):
            add_column(table, column)
        known = [(price, gpu) for gpu, price in prices if price is not None]
        for price, gpu in sorted(known, key=lambda pair: (pair[0].usd, pair[1])):
            table.add_row(gpu, *_price(price, found.currency))
        if table.row_count:
            narrow_if_needed(table, console)
            console.print()
            console.print(title)
            print_whole(table, console)
    notes = [
        "Likely is the median; the interval is how far offers differ, and the wider the older they are. Providers and sources: "
        "--json.",
        "stale: older than 18 months to buy, 12 to rent, or the price at launch; nobody may sell at that any more.",
    ]
    if any(row.rent or row.spot for row in found.gpus):
        notes.append(
            "A rent is that of one card, or its share of a machine; rank and advise count the smallest machine whole."
        )
    if found.currency.code != "USD":
        day = f" of {found.currency.date}" if found.currency.date else ""
        notes.append(
            f"1 {found.currency.code} = {found.currency.usd_per_unit:.5g} USD{day}: {found.currency.source}. Prices are in "
            "dollars at their source."
        )
    print_notes(notes, console)


def _price(price: Price, currency: Rate) -> tuple[str, ...]:
    low, likely, high = (
        text.format_amount(currency.of_usd(usd), price.unit) for usd in (price.low_usd, price.usd, price.high_usd)
    )
    stale = ", stale" if price.stale else ""
    return likely, f"{low}-{high}", text.format_age(price.age_days), f"{price.condition}{stale}", str(price.offers)


def print_free(machines: Sequence[FreeMachine], names: Mapping[str, str], console: Console) -> None:
    """Print free machines, those without a card of payment first."""
    table = dense_table()
    for title in ("Service", "Cards", "Session\nhours>", "Hours\nof use>", "Unat-\ntended", "Needs\na card", "Age>"):
        add_column(table, title)
    for machine in sorted(machines, key=lambda one: (not one.open_to_new, one.card_required)):
        cards = names.get(machine.gpus[0], machine.gpus[0])
        times = f"{machine.count} x " if machine.count > 1 else ""
        table.add_row(
            machine.service,
            f"{times}{cards}",
            text.format_figure(machine.max_session_hours),
            _hours(machine),
            "yes" if machine.runs_unattended else "no",
            "yes" if machine.card_required else "no",
            text.format_age(machine.age_days()) + ("!" if machine.stale() else ""),
        )
    narrow_if_needed(table, console)
    print_whole(table, console)
    print_notes(
        [
            *dict.fromkeys(
                f"{one.service}, {one.plan}: {one.note}" for one in machines if not one.note.startswith("As on")
            ),
            "-: unpublished. Storage, sources and how sure each row is: --json. Terms change without notice.",
            *(
                ["!: read more than 6 months ago; look it up before you count on it."]
                if any(m.stale() for m in machines)
                else []
            ),
        ],
        console,
    )


def _hours(machine: FreeMachine) -> str:
    for hours, unit in (
        (machine.weekly_hours, "a week"),
        (machine.monthly_hours, "a month"),
        (machine.total_hours, "once"),
    ):
        if hours is not None:
            return f"{hours:g} {unit}"
    return text.UNKNOWN


def print_update(update: Update, console: Console) -> None:
    """Print what an update changes, the largest changes first."""
    known = [change for change in update.changes if change.before_usd is not None]
    new = [change for change in update.changes if change.before_usd is None]
    if known:
        table = dense_table()
        for title in ("Provider", "Card", "", "Before>", "", "Now>", "", "Change>"):
            add_column(table, title)
        for change in known[:_MOST_CHANGES]:
            _add_change(table, change)
        narrow_if_needed(table, console)
        print_whole(table, console)
        console.print()
    more = len(known) - _MOST_CHANGES
    notes = [
        f"{len(update.offers)} offers of {len({offer.provider for offer in update.offers})} providers: {len(known)} prices change, "
        f"{len(new)} are new, {update.unchanged} are the same."
        + (f" {more} smaller changes: --json." if more > 0 else "")
    ]
    if update.missing:
        notes.append(f"Could not be reached, their earlier prices stay: {listed(update.missing)}.")
    if update.unknown:
        notes.append(f"Left out, as the catalogue has no such card: {listed(update.unknown)}.")
    notes += [f"Left out: {words}" for words in update.unlikely[:5]]
    if len(update.unlikely) > 5:
        notes.append(f"{len(update.unlikely) - 5} more prices were left out as hardly right: --json.")
    notes.append(f"Written to {update.file}." if update.written else f"Not written: {update.file}.")
    print_notes(notes, console)


def _add_change(table: Table, change: Change) -> None:
    kind = "spot" if change.kind == "cloud-spot" else "on demand"
    before = change.before_usd or change.after_usd
    table.add_row(
        change.provider,
        change.gpus[0] + (" ..." if len(change.gpus) > 1 else ""),
        kind,
        text.format_amount(before, "hour"),
        text.format_month(change.before_date or ""),
        text.format_amount(change.after_usd, "hour"),
        text.format_month(change.after_date),
        f"{change.after_usd / before - 1:+.0%}",
    )
