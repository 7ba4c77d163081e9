"""Free machines and exchange rates: each row has source and date, and bad ones are refused in a line."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from whichgpu import catalogue, cli, currency, free_machines
from whichgpu.errors import CatalogueError, InputError

ROW = """
[[machine]]
id = "our-cluster"
service = "Our cluster"
plan = "night queue"
gpus = ["t4"]
max_session_hours = 8
runs_unattended = true
card_required = false
source = "the queue's page"
date = "2026-11-30"
confidence = "high"
"""


def test_every_machine_has_a_source_a_date_and_known_cards() -> None:
    """Sources have an address, dates are past, and every card is one of the catalogue with CUDA."""
    known = {gpu.id for gpu in catalogue.shipped().gpus if gpu.cuda}
    machines = free_machines.load()
    assert len(machines) >= 8
    assert len(machines) == len({machine.id for machine in machines})
    for machine in machines:
        assert machine.source.startswith("https://")
        assert machine.date <= date.today().isoformat()
        assert known.issuperset(machine.gpus)


def test_hours_are_possible() -> None:
    """No session is longer than what a week or month gives, and no more than 168 hours are given a week."""
    for machine in free_machines.load():
        given = [h for h in (machine.weekly_hours, machine.monthly_hours, machine.total_hours) if h is not None]
        assert len(given) <= 1
        assert all((machine.max_session_hours or 0) <= hours for hours in given)
        assert machine.weekly_hours is None or machine.weekly_hours <= 168


def test_nothing_keeps_a_session_alive() -> None:
    """No row tells how to go round the terms of a service."""
    words = (Path(free_machines.__file__).parent / "data" / "free_machines.toml").read_text(encoding="utf-8")
    assert not re.search(r"keep.?alive|auto.?click|tunnel|several accounts", words, re.IGNORECASE)


def test_kaggle_gives_two_t4_for_thirty_hours_a_week() -> None:
    """The best known free machine is as its documentation says."""
    (kaggle,) = [machine for machine in free_machines.load() if machine.service == "Kaggle Notebooks"]
    assert (("t4",), 2, 12, 30, True, False) == (
        kaggle.gpus,
        kaggle.count,
        kaggle.max_session_hours,
        kaggle.weekly_hours,
        kaggle.runs_unattended,
        kaggle.card_required,
    )


def test_a_labs_machines_are_added_or_take_a_place(tmp_path: Path) -> None:
    """A new id is added; the id of a shipped one replaces it."""
    (tmp_path / "free_machines.toml").write_text(ROW, encoding="utf-8")
    shipped = len(free_machines.load())
    assert shipped + 1 == len(free_machines.load(tmp_path))
    (tmp_path / "free_machines.toml").write_text(ROW.replace("our-cluster", "kaggle-free"), encoding="utf-8")
    found = free_machines.load(tmp_path)
    assert shipped == len(found)
    assert "Kaggle Notebooks" not in {machine.service for machine in found}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '["t4"]',
            '["t5"]',
            'line 6: machine 1, field gpus: no card has the id "t5"; add it to gpus.toml or correct it',
        ),
        ("= 8", "= -8", "line 7: machine 1, field max_session_hours: expected float > 0.0"),
        ('"high"', '"sure"', "line 12: machine 1, field confidence: invalid enum value 'sure'; say high, low, medium"),
        ("2026-11-30", "2099-01-01", "line 11: machine 1, field date: 2099-01-01 is in the future"),
        ("card_required = false", "", "line 2: machine 1, object missing required field card_required; add a line"),
        ("plan", "plam", "line 2: machine 1, object contains unknown field plam; did you mean plan?"),
        ("= 8", "=", "line 7: field max_session_hours: not valid TOML (Invalid value); correct that line"),
    ],
)
def test_malformed_machines_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A mistake is refused with file, line, field and cure."""
    (tmp_path / "free_machines.toml").write_text(ROW.replace(old, new), encoding="utf-8")
    with pytest.raises(CatalogueError) as refused:
        free_machines.load(tmp_path)
    assert f"free_machines.toml, {said}" in str(refused.value)


def test_old_terms_are_said_to_be_old() -> None:
    """After half a year a row is to be looked up again."""
    machine = free_machines.load()[0]
    assert not machine.stale(date(2026, 12, 1))
    assert machine.stale(date(2027, 6, 1))


def test_free_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    """`whichgpu free` shows hours and age, and all of it as JSON."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["free"])
    out = capsys.readouterr().out
    assert 0 == (ended.value.code or 0)
    (line,) = [line for line in out.splitlines() if line.startswith("Kaggle Notebooks ")]
    assert "2 x T4" in line
    assert "30 a week" in line
    with pytest.raises(SystemExit):
        cli.main(["free", "--json"])
    assert len(free_machines.load()) == len(json.loads(capsys.readouterr().out))


def test_rates_are_of_one_day_with_a_source() -> None:
    """The European Central Bank's, of a past day, the dollar being 1."""
    euro = currency.rate("eur")
    assert "European Central Bank" in euro.source
    assert euro.date <= date.today().isoformat()
    assert 1.0 == currency.rate("USD").usd_per_unit
    for code in currency.codes():
        assert re.fullmatch("[A-Z]{3}", code)
        assert 1e-6 < currency.rate(code).usd_per_unit < 10
    assert currency.rate("CNY").of_usd(1.0) == pytest.approx(7.4326 / 1.1172)


def test_a_rate_may_be_given() -> None:
    """The user's own rate counts, also of a currency that is known."""
    assert 1.08 == currency.parse("EUR=1.08").usd_per_unit
    assert 1000.0 == currency.parse(" twd=0.031 ").of_usd(31)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("XYZ", "as in --currency XYZ=0.03"),
        ("euros", "as in --currency TWD=0.03"),
        ("", 'no rate of "" is known'),
        ("EUR=", "write three letters and the dollars"),
        ("EUR=-1", "write three letters and the dollars"),
        ("EUR=nan", "write three letters and the dollars"),
        ("=1.08", "write three letters and the dollars"),
    ],
)
def test_currencies_without_a_rate_are_refused(words: str, said: str) -> None:
    """Nothing is guessed; what to write is said."""
    with pytest.raises(InputError) as refused:
        currency.parse(words)
    assert said in str(refused.value)
    assert str(refused.value).isprintable()
