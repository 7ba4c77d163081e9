"""What is chosen, why, and what is said where nothing meets all wishes."""

from __future__ import annotations

import io
import json
from statistics import fmean
from typing import Any

import msgspec
import pytest
from advised import CARDS, PRICES, RENTS, ask, card, market, of, offer, offers, picks, ranking
from made_up_tracer import World

from whichgpu import api, free_machines, published, render
from whichgpu.advice import tier_of
from whichgpu.advising.defaults import POWER_USD_PER_KWH, RESALE
from whichgpu.advising.families import _exponent
from whichgpu.advising.prices import Prices
from whichgpu.advising.records import AdviceReport, CurvePoint
from whichgpu.advising.wishes import Wishes, check
from whichgpu.catalogue import load
from whichgpu.currency import Rate, parse
from whichgpu.errors import InputError, WhichGpuError
from whichgpu.free_machines import FreeMachine

EURO = Rate(code="EUR", usd_per_unit=1.25, date="2026-11-30", source="a bank")


def text_of(report: AdviceReport, **how: bool) -> str:
    """A report as it is printed."""
    file = io.StringIO()
    console = render.make_console(file, width=100)
    with render.trimmed(console):
        render.print_advice(report, console, every=how.get("every", False), why=how.get("why", False))
    return file.getvalue()


# ---- the short list -----------------------------------------------------------------------------------


def test_value_is_work_for_a_dollar() -> None:
    """To buy, most samples a second for the price; to rent, for the price of an hour; fastest and cheapest speak for themselves."""
    for_an_hour = {name: CARDS[name][1] / usd for name, usd in RENTS.items()}
    for_the_price = {name: CARDS[name][1] / usd for name, usd in PRICES.items()}
    expected = {
        "best value to rent": (card(max(for_an_hour, key=for_an_hour.__getitem__)).name, "rent"),
        "best value to buy": (card(max(for_the_price, key=for_the_price.__getitem__)).name, "buy"),
        "fastest": (card("H100 SXM").name, "rent"),
        "cheapest": (card(min(PRICES, key=PRICES.__getitem__)).name, "buy"),
    }
    assert expected == picks(ask())


def test_of_a_run_the_least_rent_is_the_best_value() -> None:
    """Where a run is asked about, what counts is what it costs, from its hours and the price of an hour."""
    cards = market(own=[*offers()[:5], *(o for o in offers()[5:] if "h100" not in o.gpus[0])])
    report = ask(ranking(samples=3_600_000), cards, samples=3_600_000)
    rents = {one.gpu: one.run.rent_usd for one in report.cards if one.run and one.run.rent_usd}
    assert {"RTX 3090": 5 * 0.2, "RTX 4090": 2.5 * 0.4} == pytest.approx(rents, rel=1e-3)
    assert min(rents, key=lambda name: rents[name]) == picks(report)["best value to rent"][0]


def test_nothing_over_the_budget_is_chosen_for_being_under_it_in_another_way() -> None:
    """For 300 USD only the RTX 3060 is to be bought, and for 1.02 nothing, while the run is rented for that on two cards."""
    run = ranking(samples=3_600_000)
    assert {
        "best value to rent": ("RTX 3090", "rent"),
        "best value to buy": (card("RTX 3060").name, "buy"),
        "fastest": (card("H100 SXM").name, "rent"),
        "cheapest": (card("RTX 3060").name, "buy"),
    } == picks(ask(run, samples=3_600_000, budget_usd=300.0))
    assert {"best value to rent": ("RTX 3090", "rent"), "fastest": ("RTX 4090", "rent")} == picks(
        ask(
            run,
            market([offer("H100 SXM", 90, "cloud-on-demand", provider=str(n)) for n in range(3)]),
            samples=3_600_000,
            budget_usd=1.02,
        )
    )


def test_cards_that_fail_at_something_are_not_chosen() -> None:
    """With two workloads the cheapest is the cheapest that trains both."""
    report = ask(ranking(2))
    assert "RTX 3090" == picks(report)["cheapest"][0]
    assert ("most", 1, ("b",)) == (
        of(report, "RTX 3060").tier,
        of(report, "RTX 3060").trains,
        of(report, "RTX 3060").fails,
    )


def test_where_none_trains_all_those_that_train_most_are_chosen_and_that_is_said() -> None:
    """A workload that no card trains keeps nobody off the list, and the report names it."""
    rows = {name: ((sizes[0], 0), rate) for name, (sizes, rate) in CARDS.items()}
    report = ask(ranking(2, rows=rows))
    assert card("RTX 3060").name == picks(report)["cheapest"][0]
    assert any("no card trains all 2" in note and "without b" in note for note in report.notes)


def test_what_is_owned_is_shown_whatever_it_meets() -> None:
    """A card that somebody has needs no price and no budget, and is not chosen again for its price."""
    report = ask(own=("T4",), budget_usd=300.0, way="buy")
    assert ("T4", "own") == picks(report)["yours"]
    assert card("RTX 3060").name == picks(report)["cheapest"][0]


def test_an_old_price_decides_nothing() -> None:
    """A card that was cheap years ago is not the cheapest now."""
    old = [o for o in offers() if o.kind != "buy-new" or "3060" not in o.gpus[0]]
    report = ask(cards=market(own=[*old, offer("RTX 3060", 100, date="2020-02")]))
    assert of(report, "RTX 3060").buy is not None
    assert "RTX 3090" == picks(report)["cheapest"][0]
    assert "2020-02 (stale)" in of(report, "RTX 3060").reason


def test_unmeasured_vendors_are_never_chosen() -> None:
    """Of AMD's cards the memory is foretold, with a wider interval, and that it is unmeasured is said; they are no pick."""
    rows = {**CARDS, "MI300X": ((500, 40), 0.0)}
    report = ask(ranking(rows=rows), market([offer("MI300X", 1.0)], more=("MI300X",)))
    assert of(report, "MI300X").unmeasured
    assert "nothing of AMD was measured" in of(report, "MI300X").reason
    assert "MI300X" not in {pick.gpu for pick in report.short_list}
    assert "unmeasured" in text_of(report)


# ---- costs --------------------------------------------------------------------------------------------


def test_a_machine_cannot_be_rented_in_part() -> None:
    """A box of two T4 at 0.35 each costs 0.70 an hour, and so does a run on one of them."""
    box = offer("T4", 0.35, "cloud-on-demand", provider="clouds", count=2)
    found = of(ask(ranking(samples=180_000), market([box]), samples=180_000), "T4")
    assert found.rent is not None
    assert (2, 0.70) == (found.rent.cards, pytest.approx(found.rent.usd_per_hour))
    assert found.run is not None
    assert 0.70 == pytest.approx(found.run.rent_usd, rel=1e-3)
    assert "for a machine of 2" in found.reason


def test_whoever_needs_one_card_does_not_rent_eight() -> None:
    """Where single cards are rented out, boxes of eight neither raise nor lower the price."""
    boxes = [offer("RTX 3090", 0.1, "cloud-on-demand", provider=f"farm {n}", count=8) for n in range(3)]
    assert of(ask(), "RTX 3090").rent == of(ask(cards=market(boxes)), "RTX 3090").rent


def test_buying_pays_from_the_hours_at_which_rent_less_power_makes_up_the_loss() -> None:
    """800 USD of which half is had back, against 0.20 an hour less 350 W of power."""
    found = of(ask(hours_per_week=20.0), "RTX 3090").break_even
    assert found is not None
    watts = card("RTX 3090").tdp_w or 0.0
    hours = 800 * (1 - RESALE) / (0.2 - watts / 1000 * POWER_USD_PER_KWH)
    assert (hours, hours / 20) == (pytest.approx(found.hours), pytest.approx(found.weeks))
    never = of(ask(power_usd_per_kwh=5.0), "RTX 3090").break_even
    assert never is not None
    assert never.hours is None


@pytest.mark.parametrize(("condition", "usd"), [(None, 800.0), ("new", 800.0), ("used", 500.0)])
def test_used_and_new_are_told_apart(condition: Any, usd: float) -> None:
    """The condition that is wished for decides which offers count."""
    found = of(ask(cards=market([offer("RTX 3090", 500, "buy-used")]), condition=condition), "RTX 3090").buy
    assert found is not None
    assert usd == found.usd


def test_a_launch_price_is_no_price_of_a_used_card() -> None:
    """A card that nobody offers used has no price used, whatever it cost at its launch."""
    assert of(ask(cards=market(own=[]), condition="used"), "RTX 4090").buy is None
    assert of(ask(cards=market(own=[])), "RTX 4090").buy is not None


@pytest.mark.parametrize(
    ("wishes", "usd"),
    [({"market": "spot"}, 0.1), ({"providers": ("two",)}, 0.22), ({"regions": ("tokyo",)}, 0.5), ({}, 0.22)],
)
def test_only_offers_that_are_wished_for_count(wishes: dict[str, Any], usd: float) -> None:
    """Spot or on demand, of some providers, in some regions."""
    more = [
        offer("RTX 3090", 0.1, "cloud-spot", provider="one"),
        offer("RTX 3090", 0.5, "cloud-on-demand", provider="three", region="ap-Tokyo"),
    ]
    found = of(ask(cards=market(more), **wishes), "RTX 3090").rent
    assert found is not None
    assert usd == pytest.approx(found.usd_per_hour)


# ---- wishes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"way": "buy", "market": "spot"}, "--buy and --spot"),
        ({"way": "buy", "providers": ("aws",)}, "--buy and --provider"),
        ({"way": "rent", "condition": "used"}, "--rent and --used"),
        ({"way": "free", "budget_usd": 3.0}, "--free and --budget"),
        ({"way": "free", "market": "spot"}, "--free and --spot"),
        ({"way": "free", "regions": ("us",)}, "--free and --region"),
        ({"deadline_hours": 3.0}, "--deadline is about a run"),
        ({"way": "rent", "budget_usd": 3.0}, "--rent and --budget are about a run"),
        ({"batch_size": 2_000_000}, "2,000,000: the largest batch is looked for up to 1,048,576; `whichgpu fit`"),
        ({"budget_usd": 0.0}, "more than 0"),
        ({"budget_usd": float("inf")}, "--budget inf: it must be a finite amount"),
        ({"budget_usd": float("nan")}, "--budget nan: it must be a finite amount"),
        ({"hours_per_week": 200.0}, "a week has 168"),
        ({"resale": 1.5}, "between 0 and 1"),
        ({"power_usd_per_kwh": -1.0}, "0 or more"),
        ({"max_power_w": float("nan")}, "more than 0"),
    ],
)
def test_wishes_that_contradict_each_other_are_refused(wishes: dict[str, Any], said: str) -> None:
    """One line names both, and what to do."""
    with pytest.raises(InputError, match=said):
        check(Wishes(**wishes))


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"providers": ("onne",)}, "did you mean one"),
        ({"regions": ("mars",)}, "no offer names such a region"),
        ({"own": ("RTX 9999",)}, "no card is called"),
    ],
)
def test_names_that_nobody_has_are_refused(wishes: dict[str, Any], said: str) -> None:
    """A provider, a region or a card is told, with what is near."""
    with pytest.raises(WhichGpuError, match=said):
        ask(**wishes)


@pytest.mark.parametrize(
    ("wishes", "wish", "cure"),
    [
        ({"way": "buy", "budget_usd": 100.0}, "--budget 100 USD", "the least is 250 USD (RTX 3060 12GB)"),
        ({"way": "buy", "budget_usd": 0.001}, "--budget 0.001 USD", "the least is 250 USD (RTX 3060 12GB)"),
        ({"min_memory_bytes": 200 * 10**9}, "--min-memory 200GB", "the most is 80 GB"),
        ({"max_power_w": 10.0}, "--max-power 10", "the least is 70 W (T4)"),
        ({"samples": 3_600_000, "deadline_hours": 0.5}, "--deadline 30 min", "the least is 60 min"),
        ({"batch_size": 4096}, "training the workload at batch size 4,096", "a 300"),
        ({"way": "rent", "market": "spot"}, "--rent --spot", "leave it out for"),
        ({"architectures": ("Ampere",), "min_memory_bytes": 40 * 10**9}, "--min-memory 40GB", "the most is 24 GB"),
    ],
)
def test_an_empty_answer_says_what_to_relax_and_by_how_much(wishes: dict[str, Any], wish: str, cure: str) -> None:
    """The wish that left nothing, and for each that would do alone, how far to go."""
    found = ask(**wishes).empty
    assert found is not None
    assert wish == found.wish
    cures = {one.wish: one.cure for one in found.relaxations}
    assert cure in cures[wish]
    assert f"{wish}: {cures[wish]}" in " ".join(text_of(ask(**wishes)).split())


def test_a_relaxation_is_enough() -> None:
    """Whoever relaxes a wish as far as is said gets an answer."""
    assert ask(way="buy", budget_usd=249.0).empty is not None
    assert ask(way="buy", budget_usd=250.0).empty is None


def test_where_no_wish_alone_is_to_blame_the_others_are_named() -> None:
    """Two wishes that nothing meets are both told."""
    found = ask(way="buy", max_power_w=10.0, budget_usd=1.0).empty
    assert found is not None
    (one,) = found.relaxations
    assert "--max-power 10" == one.wish
    assert "--budget 1.00 USD would still leave none" in one.cure


@pytest.mark.parametrize(
    ("wishes", "left"),
    [
        ({"forms": ("server",)}, {"T4", card("H100 SXM").name}),
        ({"architectures": ("ada",)}, {"RTX 4090"}),
        ({"min_memory_bytes": 24 * 10**9}, {"RTX 3090", "RTX 4090", card("H100 SXM").name}),
        ({"max_power_w": 170.0}, {"T4", card("RTX 3060").name}),
    ],
)
def test_wishes_about_hardware_leave_out_cards(wishes: dict[str, Any], left: set[str]) -> None:
    """What does not meet them is in no tier."""
    assert left == {one.gpu for one in ask(**wishes).cards}


def test_a_batch_size_is_a_wish() -> None:
    """A card trains what fits at that batch size and no less."""
    report = ask(batch_size=60)
    assert {"RTX 3090", "RTX 4090", card("H100 SXM").name} == {one.gpu for one in report.cards if one.trains}
    assert "does not fit batch 60, the largest is 40" == of(report, "RTX 3060").reason


def test_a_wish_that_leaves_cards_by_memory_alone_may_be_relaxed_too() -> None:
    """Of Ada and AMD either may be left out; for AMD's cards it is said that nothing of theirs was measured."""
    rows = {**CARDS, "MI300X": ((500, 30), 0.0)}
    found = ask(ranking(rows=rows), market(more=("MI300X",)), architectures=("Ada",), vendors=("AMD",)).empty
    assert found is not None
    cures = {one.wish: one.cure for one in found.relaxations}
    assert "NVIDIA would leave some" == cures["--vendor AMD"]
    assert "CDNA3 would leave some, by memory alone: nothing of AMD was measured" == cures["--architecture Ada"]


# ---- free machines ------------------------------------------------------------------------------------


def machine(**change: Any) -> FreeMachine:
    """Two T4 for 12 hours at a time and 30 a week."""
    made = FreeMachine(
        id="kaggle",
        service="Kaggle Notebooks",
        plan="free",
        gpus=("t4",),
        count=2,
        max_session_hours=12,
        weekly_hours=30,
        runs_unattended=True,
        card_required=False,
        source="https://example.com",
        date="2026-11",
        confidence="high",
    )
    return msgspec.structs.replace(made, **change)


def test_a_free_machine_is_counted_in_sessions_and_weeks_of_one_card() -> None:
    """100 hours on one of two T4 are 9 sessions of 12 hours: 30 in each of three weeks and 10 in the next; two cards do not halve it."""
    samples = 50 * 3600 * 100
    (found,) = ask(way="free", samples=samples, machines=[machine()]).free
    assert (9, pytest.approx(3 + 10 / 168, rel=1e-3)) == (found.sessions, found.weeks)
    assert "one of its 2 cards" in found.reason
    (one,) = ask(way="free", samples=samples, machines=[machine(count=1)]).free
    assert (found.sessions, found.weeks, found.run_seconds) == (one.sessions, one.weeks, one.run_seconds)


def test_hours_that_are_given_once_may_not_be_enough() -> None:
    """A credit of 75 hours does not last for 100."""
    (found,) = ask(way="free", samples=50 * 3600 * 100, machines=[machine(weekly_hours=None, total_hours=75)]).free
    assert found.enough is False
    assert "not enough for your run" in found.reason


def test_hours_that_nobody_publishes_are_not_taken_for_unlimited() -> None:
    """Of a service without a published quota no weeks are told beyond one session, and one that tells comes first."""
    untold = machine(service="Untold", weekly_hours=None)
    first, second = ask(way="free", samples=50 * 3600 * 100, machines=[untold, machine()]).free
    assert ("Untold", None) == (second.service, second.weeks)
    assert "how often it may be used is not published" in second.reason
    assert first.weeks is not None
    (short,) = ask(way="free", samples=50 * 3600 * 10, machines=[untold]).free
    assert pytest.approx(10 / 168, rel=1e-2) == short.weeks


@pytest.mark.parametrize(
    ("hours", "deadline", "change", "left"),
    [
        (10, 24.0, {}, 1),
        (10, 9.0, {}, 0),
        (40, 170.0, {}, 0),  # 30 hours, then the next week has to come
        (40, 180.0, {}, 1),
        (100, 240.0, {"weekly_hours": None, "total_hours": 75}, 0),
    ],
)
def test_a_deadline_holds_for_free_machines(hours: int, deadline: float, change: dict[str, Any], left: int) -> None:
    """What a week gives may be used up in a day, and what is not enough is never in time."""
    samples = 50 * 3600 * hours
    report = ask(way="free", samples=samples, deadline_hours=deadline, machines=[machine(**change)])
    assert left == len(report.free)


@pytest.mark.parametrize(
    ("wishes", "left"),
    [
        ({"min_memory_bytes": 16 * 10**9}, 1),
        ({"min_memory_bytes": 24 * 10**9}, 0),
        ({"architectures": ("Turing",)}, 1),
        ({"architectures": ("Hopper",)}, 0),
        ({"forms": ("server",)}, 1),
        ({"forms": ("desktop",)}, 0),
        ({"vendors": ("nvidia",)}, 1),
        ({"vendors": ("AMD",)}, 0),
        ({"max_power_w": 70.0}, 1),
        ({"max_power_w": 69.0}, 0),
    ],
)
@pytest.mark.parametrize("way", ["free", None])
def test_wishes_about_the_card_hold_for_free_machines(wishes: dict[str, Any], left: int, way: Any) -> None:
    """A free T4 is no answer to who wishes for another memory, architecture, form, vendor or power."""
    assert left == len(ask(way=way, machines=[machine()], **wishes).free)


@pytest.mark.parametrize(
    ("wishes", "wish", "cure"),
    [
        ({"providers": ("one",)}, "--provider one", "leave it out for T4 at Kaggle Notebooks"),
        ({"vendors": ("AMD",)}, "--vendor AMD", "leave it out for T4 at Kaggle Notebooks"),
        ({"max_power_w": 60.0}, "--max-power 60", "leave it out for T4 at Kaggle Notebooks"),
        (
            {"samples": 50 * 3600 * 10, "deadline_hours": 9.0},
            "--deadline 9.0 h",
            "the least is 10 h (Kaggle Notebooks)",
        ),
    ],
)
def test_where_no_free_machine_is_left_it_is_said_what_to_relax(wishes: dict[str, Any], wish: str, cure: str) -> None:
    """The wish, and the machines there are without it; two wishes that both leave none are told too."""
    report = ask(way="free", machines=[machine()], **wishes)
    printed = " ".join(text_of(report).split())
    assert report.empty is not None
    assert f"No free machine meets all wishes: {wish} leaves none" in printed
    assert f"{wish}: {cure}" in printed
    both = ask(way="free", machines=[machine()], architectures=("Hopper",), forms=("desktop",)).empty
    assert both is not None
    assert ["--architecture Hopper --form desktop"] == [one.wish for one in both.relaxations]
    assert "leave out several" in both.relaxations[0].cure


def test_free_machines_of_the_past_are_not_known() -> None:
    """A day that is asked for is named as what to leave out; a card that no machine has, with those there are."""
    assert "free machines are known of today alone" in text_of(ask(way="free"))
    rows = {"H100 SXM": CARDS["H100 SXM"]}
    named = ask(ranking(rows=rows), way="free", machines=[machine()], gpus=("H100 SXM",))
    assert "--gpu H100 SXM: free machines have T4" in text_of(named)


def test_a_deadline_is_repeated_and_one_caveat_is_one() -> None:
    """What was asked about is told with its deadline."""
    made = msgspec.structs.replace(ranking(samples=100), notes=("a: something",))
    printed = " ".join(text_of(ask(made, samples=100, deadline_hours=48.0)).split())
    assert "Asked about: a run of 100 samples, over in 2.0 days." in printed
    assert "; so is 1 caveat on single workloads" in printed


def test_free_machines_are_told_by_what_they_train() -> None:
    """Each workload that fits there, and each that does not."""
    rows = {**CARDS, "T4": ((50, 0), 50.0)}
    report = ask(ranking(2, rows=rows), way="free", machines=[machine()], providers=("kaggle",))
    (found,) = report.free
    assert (("a",), ("b",)) == (found.fits, found.fails)
    printed = text_of(report)
    assert "trains: a (batch 50, 50.0 samples/s)" in printed
    assert "does not fit: b" in printed


# ---- what is said -------------------------------------------------------------------------------------


def test_the_reason_is_one_line_with_every_figure() -> None:
    """Batch, speed, hours, rent with its basis, price with its date."""
    found = of(ask(ranking(samples=3_600_000), samples=3_600_000), "RTX 3090").reason
    for part in (
        "fits batch 90 (81 safe)",
        "200 images/s (",
        "5.0 h (",
        "1.00 USD rented at the median of 2 providers, 2026-11",
    ):
        assert part in found
    assert "800 USD new, 2026-11" in found
    assert "\n" not in found


def test_where_the_search_ended_the_batch_is_at_least_so_large() -> None:
    """Its end is not the largest batch of a card."""
    found = of(ask(ranking(rows={**CARDS, "T4": ((1 << 20, 1), 50.0)})), "T4").reason
    assert found.startswith("fits batch 1,048,576 or more")


def test_the_reason_says_why_a_speed_is_unknown() -> None:
    """A lab's card without peak rates has a largest batch, and the figures that are missing."""
    made = ranking()
    why = "T4: its fp32_tflops are unknown, so that no speed can be predicted"
    rows = [
        msgspec.structs.replace(row, speed={"a": None}, speed_missing={"a": why}) if row.gpu == "T4" else row
        for row in made.gpus
    ]
    found = of(ask(msgspec.structs.replace(made, gpus=tuple(rows))), "T4").reason
    assert ", its fp32_tflops are unknown, so that no speed can be predicted, " in found


def test_amounts_are_shown_in_the_currency() -> None:
    """800 USD are 640 EUR at 1.25 dollars each, and the rate and its date are said."""
    report = ask(currency=EURO)
    assert "640 EUR new" in of(report, "RTX 3090").reason
    assert "1 EUR is 1.25 USD (2026-11-30)" in " ".join(text_of(report).split())
    bought = of(report, "RTX 3090").buy
    assert bought is not None
    assert 800 == bought.usd


def test_a_rate_of_the_users_own_is_told_as_such() -> None:
    """It has no date: that it was given is said instead."""
    report = ask(currency=parse("EUR=1.25"))
    assert "1 EUR is 1.25 USD (given with --currency)" in " ".join(text_of(report).split())


def test_every_price_that_is_shown_has_its_source() -> None:
    """Each card's memory, price and rent stand among the sources, with a date, and so do the assumptions."""
    report = ask()
    for one in report.cards:
        told = [figure for figure in report.sources if figure.about == one.gpu]
        assert [figure for figure in told if figure.what == "memory" and figure.source]
        for price, what in ((one.buy, "to buy"), (one.rent and one.rent.price, "to rent")):
            behind = [figure for figure in told if figure.what.startswith(what)]
            assert (price is not None) == bool(behind)
            assert all(figure.date and figure.source for figure in behind)
            assert price is None or price.offers == len(behind)
    for what in ("power", "had back when a card is sold", "batch sizes"):
        assert [figure for figure in report.sources if figure.about == "all" and figure.what == what]
    printed = text_of(report, why=True)
    assert "https://example.com/buy-new" in printed
    assert "Energy Information" in printed or "EIA" in printed


@pytest.mark.parametrize("wishes", [{}, {"market": "spot"}, {"regions": ("us",)}, {"condition": "used"}])
def test_the_offers_that_are_told_are_those_of_the_price(wishes: dict[str, Any]) -> None:
    """Of every shipped price as many offers are named as its median is over, with its lowest and its highest."""
    prices = Prices(load(), Wishes(**wishes))
    for gpu in load().gpus:
        rent = prices.rent(gpu)
        for price in (prices.buy(gpu), rent.price if rent is not None else None):
            if price is not None:
                told = [float(one.usd) for one in prices.behind(gpu, price)]
                assert (price.offers, price.lowest_usd, price.highest_usd) == (len(told), min(told), max(told)), (
                    gpu.name
                )


def test_small_batches_are_marked() -> None:
    """A star where some workload fits only at smaller batches than its own."""
    report = ask(ranking(usual=60))
    marked = {one.gpu for one in report.cards if one.small_batches}
    assert {"T4", card("RTX 3060").name} == marked
    assert "RTX 3060 12GB*" in text_of(report)


def test_software_that_a_card_lacks_is_no_matter_of_memory() -> None:
    """A card without kernels stands apart with the reason; where it would be the cheapest, that is said."""
    why = "PyTorch 2.14 for CUDA 13.0 has no kernels for compute capability 6.1: the CUDA 12.6 wheel has them"
    rows = {**CARDS, "P40": ((90, 3), 50.0)}
    report = ask(ranking(rows=rows, problems={"P40": why}), market([offer("P40", 90)], more=("P40",)))
    assert why == of(report, "P40").reason
    assert "P40" not in {pick.gpu for pick in report.short_list}
    assert any(note.startswith("cheaper with another build of PyTorch: P40, 90 USD new") for note in report.notes)


def test_a_card_that_cannot_run_one_workload_still_runs_the_others() -> None:
    """What lacks bfloat16 for one of two workloads trains the other, and why it does not train both is said."""
    base = ranking(2)
    why = "no bfloat16 in hardware (needs compute capability 8.0)"
    rows = [
        msgspec.structs.replace(row, supported=False, notes=(why,), problems={"b": (why,)}) if row.gpu == "T4" else row
        for row in base.gpus
    ]
    found = of(ask(msgspec.structs.replace(base, gpus=tuple(rows))), "T4")
    assert (True, 1, ("b",), ("b",)) == (found.supported, found.trains, found.fails, found.cannot)
    assert why in found.reason


def test_json_is_the_record() -> None:
    """Reading the JSON back gives the record that was printed."""
    report = ask(ranking(2), own=("T4",), machines=[machine()])
    assert report == msgspec.json.decode(render.to_json(report), type=AdviceReport)


# ---- the article of 2020 ------------------------------------------------------------------------------


def test_the_articles_own_figures_make_its_tiers() -> None:
    """By how many of the twelve models ran on each card in 2020, the rule draws the article's three tiers."""
    article = published.article()
    for number, gpu in enumerate(article.gpu):
        trains = sum(work.max_batch[number] != "*" for work in article.workload)
        assert gpu.tier == tier_of(trains, len(article.workload)), gpu.name


def test_the_prices_of_february_2020_are_the_articles() -> None:
    """The catalogue as of that month has each of its eight cards at its price."""
    cards = load().as_of("2020-02")
    for gpu in published.article().gpu:
        price = cards.price(cards.find(gpu.name), "buy")
        assert price is not None
        assert gpu.price_usd == price.usd


def test_language_models_gain_more_from_memory_in_the_articles_own_figures() -> None:
    """The two curves of the article: over its eight cards, mean speed grows with a higher power of memory for language models."""
    article = published.article()
    gpus = [load().find(gpu.name) for gpu in article.gpu]
    unit = len(gpus) - 1
    exponents = {}
    for family in ("image", "language"):
        rates = [work.throughput for work in article.workload if work.family == family]
        points = [
            CurvePoint(
                gpu=gpu.name,
                memory_bytes=gpu.memory_bytes,
                mean_speed=fmean(0.0 if row[n] == "*" else float(row[n]) / float(row[unit]) for row in rates),
            )
            for n, gpu in enumerate(gpus)
        ]
        exponents[family] = _exponent(points)
    assert {"image": 0.47, "language": 0.85} == pytest.approx(exponents, abs=0.02)


# ---- from the question to the answer ------------------------------------------------------------------


def test_advice_from_end_to_end(world: World) -> None:
    """The whole catalogue is answered; with a day of the past only its cards and prices are."""
    today = api.advise(["bert-base"], wishes=Wishes(samples=10_000))
    then = api.advise(["bert-base"], as_of="2020-02")

    assert {"NVIDIA", "AMD"} <= {one.vendor for one in today.cards}
    assert "Google" not in {one.vendor for one in today.cards}
    assert today.short_list
    assert "2020-02-29" == then.as_of
    assert {"RTX 2080 Ti", "GTX 1080 Ti"} <= {one.gpu for one in then.cards if one.supported}
    assert not {"RTX 3090", "H100 SXM5 80GB"} & {one.gpu for one in then.cards}
    assert () == then.free
    assert json.loads(render.to_json(then))["as_of"] == "2020-02-29"


def test_cards_of_other_vendors_have_twice_the_interval(world: World) -> None:
    """A safe batch on a card of AMD leaves more free than one on a card of NVIDIA of the same memory would."""
    report = api.advise(["bert-base"], wishes=Wishes(gpus=("MI300X", "H200")))
    by_name = {one.vendor: one for one in report.cards}
    shares = {
        vendor: one.max_batch_size_safe["bert-base"] / one.max_batch_size["bert-base"]
        for vendor, one in by_name.items()
    }
    assert shares["AMD"] < shares["NVIDIA"]
    assert by_name["AMD"].speed["bert-base"] is None


def test_a_card_that_was_not_there_yet_is_told(world: World) -> None:
    """Nobody had an RTX 4090 in 2020."""
    with pytest.raises(InputError, match="RTX 4090 was released in 2022-10"):
        api.advise(["bert-base"], wishes=Wishes(own=("RTX 4090",)), as_of="2020-02")
    with pytest.raises(InputError, match="nothing is predicted of Google"):
        api.advise(["bert-base"], wishes=Wishes(gpus=("TPU v3",)))


@pytest.mark.parametrize("day", ["1900", "2013"])
def test_a_day_before_all_cards_is_told(world: World, day: str) -> None:
    """The first card of the catalogue is named, with its month."""
    with pytest.raises(InputError, match=rf"released by {day}-12-31; the first was the .+ in 20\d\d-\d\d"):
        api.advise(["bert-base"], as_of=day)


def test_the_shipped_free_machines_are_answered(world: World) -> None:
    """Every service of the catalogue with a card that is predicted has a line."""
    report = api.advise(["bert-base"], wishes=Wishes(way="free"))
    assert {one.service for one in free_machines.load()} == {one.service for one in report.free}
    assert report.empty is None


def test_who_names_a_free_service_alone_wished_for_no_card(world: World) -> None:
    """Kaggle rents out nothing: no card is said to miss that wish, and only its machines are told."""
    report = api.advise(["bert-base"], wishes=Wishes(providers=("kaggle",)))
    assert report.empty is None
    assert ["kaggle" in one.service.lower() for one in report.free] == [True] * len(report.free)
    assert report.free
    rented = api.advise(["bert-base"], wishes=Wishes(providers=("kaggle",), way="rent"))
    assert rented.empty is not None


def test_rank_and_advise_count_the_same_rent() -> None:
    """Both take the smallest machine with the card, whole, for every card that is rented out."""
    cards = market([offer("T4", 0.35, "cloud-on-demand", count=2)])
    found = Prices(cards, Wishes())
    rents = {gpu.name: (cards.instance_rent(gpu), found.rent(gpu)) for gpu in cards.gpus}
    rented = {name: pair for name, pair in rents.items() if pair[1] is not None}
    assert any(rent.cards > 1 for _, rent in rented.values())
    assert {name: rent.usd_per_hour for name, (_, rent) in rented.items()} == {
        name: price.usd for name, (price, _) in rents.items() if price is not None
    }
