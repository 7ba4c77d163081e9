"""The command `whichgpu advise`: what is wished for in, one call, advice out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from whichgpu import text
from whichgpu.advising.defaults import POWER_USD_PER_KWH, RESALE
from whichgpu.arguments import TIMEOUT_S, run_samples
from whichgpu.commands.options import WORKLOAD, DatasetSize, Epochs, Json, NoCache, OwnFiles, Samples, Sets, Timeout
from whichgpu.commands.output import end_partial, print_record
from whichgpu.commands.progress import SLOW, progress
from whichgpu.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whichgpu.advising.wishes import Condition, Market

_Names = list[str] | None
Flag = TypeVar("Flag", bound=str)


def advise(
    *,
    workloads: Annotated[_Names, typer.Argument(metavar="[WORKLOAD...]", help=WORKLOAD)] = None,
    sets: Sets = None,
    samples: Samples = None,
    epochs: Epochs = None,
    dataset_size: DatasetSize = None,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", metavar="N", help="Every workload has to fit at this batch size.")
    ] = None,
    buy: Annotated[bool, typer.Option("--buy", help="Only cards to buy.")] = False,
    rent: Annotated[bool, typer.Option("--rent", help="Only cards to rent.")] = False,
    free: Annotated[bool, typer.Option("--free", help="Only machines that cost nothing.")] = False,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="AMOUNT", help="The most that a card, or the rent of the run, may cost."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="The run has to end in this: 48h, 2d, 90min.")
    ] = None,
    hours_per_week: Annotated[
        float | None,
        typer.Option(
            "--hours-per-week", metavar="H", help="How many hours a week the card would be used; default: all."
        ),
    ] = None,
    own: Annotated[_Names, typer.Option("--own", metavar="GPU", help="A card that you have; may be repeated.")] = None,
    gpu: Annotated[
        _Names, typer.Option("--gpu", metavar="NAME", help="Only this card; may be repeated. A line for each.")
    ] = None,
    min_memory: Annotated[
        str | None, typer.Option("--min-memory", metavar="SIZE", help="Memory at least, as on the box: 24GB.")
    ] = None,
    architecture: Annotated[
        _Names, typer.Option("--architecture", metavar="NAME", help="Ada, Ampere, ...; may be repeated.")
    ] = None,
    form: Annotated[
        _Names,
        typer.Option("--form", metavar="NAME", help="desktop, workstation, server or mobile; may be repeated."),
    ] = None,
    vendor: Annotated[
        _Names, typer.Option("--vendor", metavar="NAME", help="NVIDIA, AMD, ...; may be repeated.")
    ] = None,
    max_power: Annotated[
        float | None, typer.Option("--max-power", metavar="W", help="The most power that the board may take.")
    ] = None,
    provider: Annotated[
        _Names, typer.Option("--provider", metavar="NAME", help="Only rented or free there; may be repeated.")
    ] = None,
    region: Annotated[
        _Names,
        typer.Option(
            "--region", metavar="NAME", help="Only rented in a region with this in its name; may be repeated."
        ),
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Rents of machines that may be taken away.")] = False,
    on_demand: Annotated[bool, typer.Option("--on-demand", help="Rents of machines that stay; the default.")] = False,
    used: Annotated[bool, typer.Option("--used", help="Only cards bought used.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Only cards bought new.")] = False,
    power_price: Annotated[
        float | None,
        typer.Option(
            "--power-price", metavar="AMOUNT", help=f"Of a kWh at home; default: {POWER_USD_PER_KWH:g} USD (USA, 2026)."
        ),
    ] = None,
    resale: Annotated[
        float,
        typer.Option("--resale", metavar="SHARE", help="Share of the price that is had back for a bought card."),
    ] = RESALE,
    currency: Annotated[
        str, typer.Option("--currency", metavar="CODE", help="Of all amounts, also those given: EUR, CNY, ...")
    ] = "USD",
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="DAY", help="With the cards and prices of that day: 2020-02; default: today."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="A line for every card.")] = False,
    why: Annotated[bool, typer.Option("--why", help="The source of each figure that is shown.")] = False,
    host_speed: Annotated[
        float | None,
        typer.Option(
            "--host-speed",
            metavar="X",
            help="Speed of the host that the card is in, times the reference's; default: 1.",
        ),
    ] = None,
    catalogue: OwnFiles = None,
    timeout: Timeout = TIMEOUT_S,
    no_cache: NoCache = False,
    json: Json = False,
) -> None:
    """What should I buy, rent, or do without?

    A short list (best value, fastest, cheapest that trains everything, what you own) with the reason of each, then every
    card of the catalogue in three tiers. Prices are dated offers, speeds and batch sizes are predicted where nothing better
    is known, and nothing is fetched. A machine with several cards costs all of them, and one of them is counted. Buying is
    compared with renting by the price, what is had back for the card, and power.
    """
    way: Literal["buy", "rent", "free"] | None = _one_of({"buy": buy, "rent": rent, "free": free})
    market: Market | None = _one_of({"spot": spot, "on-demand": on_demand})
    condition: Condition | None = _one_of({"used": used, "new": new})
    from whichgpu import api  # noqa: PLC0415
    from whichgpu import currency as currencies  # noqa: PLC0415
    from whichgpu.advising.wishes import Wishes  # noqa: PLC0415
    from whichgpu.sets import expand  # noqa: PLC0415

    names = expand(workloads or (), sets or ())
    usd = currencies.parse(currency).usd_per_unit
    wishes = Wishes(
        way=way,
        batch_size=None if batch_size is None else text.parse_batch_size(batch_size),
        samples=run_samples(samples, epochs, dataset_size),
        deadline_hours=None if deadline is None else text.parse_hours(deadline),
        budget_usd=None if budget is None else budget * usd,
        hours_per_week=hours_per_week,
        own=tuple(own or ()),
        gpus=tuple(gpu or ()),
        min_memory_bytes=None if min_memory is None else text.parse_bytes(min_memory),
        architectures=tuple(architecture or ()),
        forms=tuple(form or ()),
        vendors=tuple(vendor or ()),
        max_power_w=max_power,
        providers=tuple(provider or ()),
        regions=tuple(region or ()),
        market=market,
        condition=condition,
        power_usd_per_kwh=POWER_USD_PER_KWH if power_price is None else power_price * usd,
        resale=resale,
    )
    with progress(SLOW) as on_progress:
        report = api.advise(
            names,
            wishes=wishes,
            as_of=as_of,
            currency=currency,
            host_speed=host_speed,
            cache=not no_cache,
            partial=True,
            on_progress=on_progress,
            timeout_s=timeout,
        )
    from whichgpu import render  # noqa: PLC0415

    print_record(report, json, lambda console: render.print_advice(report, console, every=every, why=why))
    end_partial(report.missing)


def _one_of(flags: Mapping[Flag, bool]) -> Flag | None:
    """The flag that was given; InputError for several that exclude each other."""
    given = [name for name, said in flags.items() if said]
    if len(given) > 1:
        raise InputError(f"--{given[0]} and --{given[1]} exclude each other; leave one of them out")
    return given[0] if given else None
