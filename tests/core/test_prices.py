"""What a price is on a day, how far to trust it, when it is stale, and which prices are hardly in the right unit."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_catalogue import GPU_TOML, OFFER_TOML, TODAY, make_gpu, make_offer, write_own

from whichgpu import cli, currency
from whichgpu.catalogue import Catalogue, Offer, days, interval, load, prices, shipped, units
from whichgpu.errors import CatalogueError, InputError

SHIPPED = shipped()
USD = st.floats(min_value=0.01, max_value=1e5)


@given(st.lists(USD, min_size=1, max_size=12), st.sampled_from(["buy", "rent", "spot"]), st.integers(0, 4000))
def test_an_interval_holds_the_median_and_widens_with_age(values: list[float], kind: prices.Kind, age: int) -> None:
    """Low, likely and high are in order; older prices move both ends apart and not the middle."""
    low, likely, high = interval(values, kind, age)
    assert 0 < low <= likely * (1 + 1e-9)
    assert likely <= high * (1 + 1e-9)
    older_low, older, older_high = interval(values, kind, age + 30)
    assert likely == older == median(values)
    assert older_low <= low
    assert older_high >= high


def test_a_single_fresh_price_has_no_interval_and_an_old_one_the_documented_one() -> None:
    """A price of today is certain; one of four months ago may have moved by exp(drift x 2)."""
    assert (100.0, 100.0, 100.0) == interval([100.0], "buy", 0)
    low, _, high = interval([100.0], "rent", round(4 * 30.4375))
    assert high == pytest.approx(100 * math.exp(2 * prices.RENT_DRIFT), rel=0.01)
    assert low == pytest.approx(100 / math.exp(2 * prices.RENT_DRIFT), rel=0.01)


def test_of_four_prices_or_more_the_middle_half_counts() -> None:
    """One provider far off does not stretch the interval."""
    low, likely, high = interval([1.0, 2.0, 3.0, 100.0], "rent", 0)
    assert (1.75, 2.5) == (low, likely)
    assert high == pytest.approx(27.25)
    assert (1.0, 2.0, 100.0) == interval([1.0, 2.0, 100.0], "rent", 0)


def drifts(kinds: set[str]) -> list[float]:
    """How far each price of the shipped files that was read again had moved, by square root of a month."""
    read: dict[tuple[object, ...], dict[date, list[float]]] = defaultdict(lambda: defaultdict(list))
    for offer in SHIPPED.offers:
        if offer.kind in kinds and not offer.minimum and len(offer.date) > 4:
            whose = (offer.provider, offer.gpus) if offer.rental else (offer.gpus[0], offer.kind)
            read[whose][days.middle(offer.date)].append(float(offer.usd))
    found = []
    for by_day in read.values():
        order = sorted(by_day)
        for one, other in pairwise(order):
            ratio = median(by_day[other]) / median(by_day[one])
            found.append(abs(math.log(ratio)) / math.sqrt(days.months((other - one).days)))
    return sorted(found)


@pytest.mark.parametrize(
    ("kinds", "constant", "least"),
    [({"cloud-on-demand"}, prices.RENT_DRIFT, 70), ({"buy-new", "buy-used"}, prices.BUY_DRIFT, 9)],
)
def test_prices_wander_as_said(kinds: set[str], constant: float, least: int) -> None:
    """Four of five shipped prices that were read twice moved by no more than the constant, within a tenth."""
    found = drifts(kinds)
    assert len(found) >= least
    assert constant == pytest.approx(found[int(len(found) * 0.8)], rel=0.1)


def test_a_price_that_was_read_again_takes_the_place_of_the_earlier_one() -> None:
    """Of a provider only its newest reading counts; another's older one still does."""
    offers = [
        make_offer("9.00", date="2026-08-01"),
        make_offer("1.00", date="2026-11-20"),
        make_offer("2.00", date="2026-11-01"),
        make_offer("4.00", date="2026-06-01", provider="two"),
    ]
    price = Catalogue([make_gpu()], offers).price(make_gpu(), "rent", as_of=TODAY)
    assert price is not None
    assert (2.75, 3) == (price.usd, price.offers)
    assert (11, False) == (price.age_days, price.stale)


@pytest.mark.parametrize(
    ("kind", "offered", "day", "stale"),
    [
        ("rent", "cloud-on-demand", "2025-12-15", False),
        ("rent", "cloud-on-demand", "2025-11-15", True),
        ("spot", "cloud-spot", "2025-11-15", True),
        ("buy", "buy-used", "2025-07-01", False),
        ("buy", "buy-new", "2025-05-01", True),
    ],
)
def test_a_price_past_its_window_is_stale(kind: prices.Kind, offered: str, day: str, stale: bool) -> None:
    """Twelve months for rents, eighteen for purchases; the condition says dated as well."""
    price = Catalogue([make_gpu()], [make_offer("5", kind=offered, date=day)]).price(make_gpu(), kind, as_of=TODAY)
    assert price is not None
    assert (stale, stale) == (price.stale, "dated" in price.condition)
    assert price.low_usd < price.usd < price.high_usd


def test_the_price_at_launch_is_stale() -> None:
    """It is what the maker asked then."""
    gpu = make_gpu(launch_price_usd=1599.0)
    price = Catalogue([gpu], []).price(gpu, "buy", as_of=TODAY)
    assert price is not None
    assert price.stale


def test_the_least_that_can_be_rented_is_said() -> None:
    """A price of eight cards at once says that fewer cannot be had at it."""
    offers = [make_offer("2", count=8), make_offer("3", count=4, provider="two")]
    price = Catalogue([make_gpu()], offers).price(make_gpu(), "rent", as_of=TODAY)
    assert price is not None
    assert 4 == price.least_count


# ---- the catalogue as it was ------------------------------------------------------------------------------


def test_as_of_knows_nothing_of_later_cards_and_prices() -> None:
    """In February 2020 there is no RTX 3090, and every price is from then."""
    then = SHIPPED.as_of("2020-02")
    assert "RTX 2080 Ti" in {gpu.name for gpu in then.gpus}
    assert all(gpu.release <= "2020-02" for gpu in then.gpus)
    assert then.offers
    assert all(offer.date <= "2020-02-29" for offer in then.offers)
    price = then.price(then.find("RTX 2080 Ti"), "buy")
    assert price is not None
    assert (1150.0, "new", False) == (price.usd, price.condition, price.stale)
    with pytest.raises(CatalogueError, match='no card is called "RTX 3090"'):
        then.find("RTX 3090")


def test_as_of_today_is_the_catalogue() -> None:
    """Nothing is lost by asking about today."""
    now = SHIPPED.as_of("today")
    assert SHIPPED.gpus == now.gpus
    assert SHIPPED.offers == now.offers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("2036", "is in the future"),
        ("tomorrow", "is no day; write"),
        ("2020-13", "is no day"),
        ("20-02", "is no day"),
        ("", "is no day"),
    ],
)
def test_days_that_are_none_are_refused(words: str, said: str) -> None:
    """What to write is said in a line."""
    with pytest.raises(InputError, match=said):
        SHIPPED.as_of(words)


@given(st.dates(date(2016, 1, 1), date(2026, 11, 30)), st.integers(4, 10))
def test_a_date_is_taken_for_its_middle(day: date, length: int) -> None:
    """Year, month or day: the day taken is one that the date may mean, and its age is never negative."""
    words = day.isoformat()[: {4: 4, 5: 7, 6: 7, 7: 7}.get(length, 10)]
    middle = days.middle(words, date(2026, 12, 1))
    assert days.first(words) <= middle <= days.last(words)
    assert middle <= date(2026, 12, 1)
    assert 0 <= days.age_days(words, day, date(2026, 12, 1))


def test_a_month_to_come_ends_today() -> None:
    """Of the current month only the days so far can be meant."""
    assert date(2026, 12, 2) == days.middle("2026-12", date(2026, 12, 3))


# ---- units ------------------------------------------------------------------------------------------------


def known_without(offer: Offer) -> units.Known:
    """The shipped prices without one."""
    return units.Known({g.id: g for g in SHIPPED.gpus}, [o for o in SHIPPED.offers if o is not offer])


def test_no_shipped_price_is_in_the_wrong_unit() -> None:
    """Each price compared with all the others of its card."""
    bad = [(o.provider, o.gpus, units.unlikely(o, known_without(o))) for o in SHIPPED.offers]
    assert [] == [found for found in bad if found[2]]


@pytest.mark.parametrize("factor", [720, 100], ids=["a month", "cents"])
def test_rents_in_the_wrong_unit_are_caught(factor: int) -> None:
    """Of rents on demand all are caught when written for a month, and at least 98 % in cents."""
    rents = [o for o in SHIPPED.offers if o.kind == "cloud-on-demand" and not o.minimum]
    caught = [bool(units.unlikely(wrong(o, factor), known_without(o))) for o in rents]
    assert sum(caught) >= (1.0 if factor == 720 else 0.98) * len(rents)


def test_purchases_in_cents_and_thousands_are_caught() -> None:
    """Every purchase price is caught a hundred times too high, or a thousand too low, but for two with little to compare."""
    bought = [o for o in SHIPPED.offers if not o.rental]
    for factor, missed in (("100", ["p100-pcie-16gb", "v100-sxm2-32gb"]), ("0.001", [])):
        found = [o.gpus[0] for o in bought if not units.unlikely(wrong(o, factor), known_without(o))]
        assert missed == found


def wrong(offer: Offer, factor: int | str) -> Offer:
    """An offer with its price multiplied."""
    import msgspec

    return msgspec.structs.replace(offer, usd=offer.usd * Decimal(factor))


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        ("415", r"offer 1, field usd: 415 is \d{3} times the median of \d+ other rents of the card \(0\.\d+ USD\)"),
        ("57", r"57 is \d{2,3} times the median of"),
        ("0.0005", r"0\.000\d+ times the median of"),
    ],
)
def test_a_lab_hears_of_a_wrong_unit(tmp_path: Path, usd: str, said: str) -> None:
    """A rent of the T4 for a month, in cents or far too low is refused in a line with file, line and cure."""
    (tmp_path / "prices").mkdir()
    text = OFFER_TOML.replace('"mine"', '"t4"').replace("1.25", usd)
    (tmp_path / "prices" / "here.toml").write_text(text, encoding="utf-8")
    with pytest.raises(CatalogueError) as refused:
        _ = load(tmp_path).offers
    assert "here.toml, line 6: offer 1, field usd" in str(refused.value)
    assert re.search(said, str(refused.value))
    assert "write USD for an hour of one card (not a month, a whole machine or cents), or unusual = true" in str(
        refused.value
    )
    (tmp_path / "prices" / "here.toml").write_text(text + "unusual = true\n", encoding="utf-8")
    assert Decimal(usd) in [o.usd for o in load(tmp_path).offers if o.provider == "here"]


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        ('kind = "cloud-on-demand"\nusd = "900"', "not between 0.005 and 25 USD an hour"),
        ('kind = "buy-new"\nusd = "7"', "not between 20 and 500,000 USD"),
    ],
)
def test_a_card_that_nobody_else_prices_has_wide_bounds(tmp_path: Path, offer: str, said: str) -> None:
    """Where nothing is known to compare with, only what no card costs is refused."""
    write_own(tmp_path, offers=OFFER_TOML.replace('kind = "cloud-on-demand"\nusd = "1.25"', offer))
    with pytest.raises(CatalogueError, match=said):
        _ = load(tmp_path).offers


def test_a_rent_is_compared_with_what_the_card_costs(tmp_path: Path) -> None:
    """Without other rents: nobody asks the price of the card for 60 hours."""
    gpus = GPU_TOML + "launch_price_usd = 1500\n"
    write_own(tmp_path, gpus, OFFER_TOML.replace("1.25", "24.99"))
    with pytest.raises(CatalogueError, match="such that 60 hours make up the 1,500 USD that the card costs"):
        _ = load(tmp_path).offers


# ---- whichgpu prices --------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_prices_show_their_age_and_are_called_stale(capsys: pytest.CaptureFixture[str]) -> None:
    """Every price has an interval and an age; what nobody may sell at any more says so."""
    code, out, _ = run(capsys, "prices", "RTX 8000", "T4")
    assert 0 == code
    (line,) = [line for line in out.split("To rent")[0].splitlines() if line.startswith("Quadro RTX 8000")]
    assert "5,500" in line
    assert " y " in line
    assert "stale" in line


def test_prices_of_an_earlier_day_in_another_currency(capsys: pytest.CaptureFixture[str]) -> None:
    """The rate, its date and its source stand below; the JSON keeps dollars."""
    _, out, _ = run(capsys, "prices", "2080 ti", "--as-of", "2020-02", "--currency", "EUR")
    assert "Prices as of 2020-02-29, in EUR" in out
    assert "1,029" in out
    assert "1 EUR = 1.1172 USD of 2026-10-30: European Central Bank" in " ".join(out.split())
    _, out, _ = run(capsys, "prices", "2080 ti", "--as-of", "2020-02", "--currency", "EUR=2", "--json")
    found = json.loads(out)
    assert (1150.0, 2.0) == (found["gpus"][0]["buy"]["usd"], found["currency"]["usd_per_unit"])


def test_a_dollar_is_worth_one_dollar() -> None:
    """A rate of the dollar other than 1 would show other prices under its name, and is refused."""
    with pytest.raises(InputError, match="--currency usd=2: a dollar is worth one dollar; leave the rate out"):
        currency.parse("usd=2")
    assert currency.rate("USD") == currency.parse("USD=1.0")


def test_a_card_that_was_not_yet_there_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Before a card's release its prices are refused with the month of that, not as an unknown name."""
    code, _, err = run(capsys, "prices", "--as-of", "2020-02", "3090")
    assert (2, 1) == (code, err.count("\n"))
    assert "RTX 3090 was released in 2020-09, after the day that is asked about" in err


def test_a_day_before_all_prices_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no price is known the answer says so, and explains no columns that are not there."""
    code, out, _ = run(capsys, "prices", "--as-of", "1900")
    assert 0 == code
    assert "No price of that day or an earlier one is known: ask about a later day, or other cards." in " ".join(
        out.split()
    )
    assert "median" not in out


def test_a_labs_files_hold_for_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--catalogue counts for the command that says it, $WHICHGPU_CATALOGUE for all."""
    write_own(tmp_path)
    assert 0 == run(capsys, "prices", "mine", "--catalogue", str(tmp_path))[0]
    assert 2 == run(capsys, "prices", "mine")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHGPU_CATALOGUE", str(tmp_path))
        assert "1.25" in run(capsys, "prices", "mine")[1]
    code, _, err = run(capsys, "gpus", "--catalogue", str(tmp_path / "nowhere"))
    assert (2, 1) == (code, err.count("\n"))
    assert "there is no such folder" in err


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """What was read before counts only while the files are the same."""
    write_own(tmp_path)
    first = load(tmp_path)
    assert first is load(tmp_path)
    write_own(tmp_path, GPU_TOML.replace("my log", "another log"))
    assert "another log" == load(tmp_path).find("mine").memory_source


def test_no_date_of_the_data_is_in_the_future() -> None:
    """Of cards, offers and what they were checked against."""
    tomorrow = date.today() + timedelta(days=1)
    assert all(days.first(offer.date) < tomorrow for offer in SHIPPED.offers)
    assert all(days.first(gpu.checked) < tomorrow for gpu in SHIPPED.gpus)


def test_each_list_of_prices_begins_with_the_cheapest(capsys: pytest.CaptureFixture[str]) -> None:
    """What is to be bought by its price, and what is to be rented by its own."""
    _, out, _ = run(capsys, "prices")
    lists = [[line for line in part.splitlines() if re.search(r"\d-\d", line)] for part in out.split("\nTo ")[1:]]
    assert 3 == len(lists)
    for lines in lists:
        likely = [float(re.findall(r" ([\d,.]+) +[\d,.]+-[\d,.]+ ", line)[0].replace(",", "")) for line in lines]
        assert sorted(likely) == likely
        assert len(likely) > 3


def test_used_prices_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """With --used every price is that of used cards, and nothing is to be rented."""
    _, out, _ = run(capsys, "prices", "--used", "--json")
    rows = json.loads(out)["gpus"]
    assert rows
    assert all(row["buy"]["condition"].startswith("used") and row["rent"] is row["spot"] is None for row in rows)


def test_the_rent_of_a_machine_is_that_of_all_its_cards() -> None:
    """Two cards at 0.35 each cost 0.70 where there is no smaller machine, and larger machines do not count."""
    offers = [make_offer("0.35", count=2), make_offer("0.20", provider="farm", count=8)]
    found = Catalogue([make_gpu()], offers, TODAY).instance_rent(make_gpu())
    assert found is not None
    assert (0.70, 2, 1) == (pytest.approx(found.usd), found.least_count, found.offers)
    assert Catalogue([make_gpu()], [], TODAY).instance_rent(make_gpu()) is None
