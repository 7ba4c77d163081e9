"""Whole runs: their time, energy and rent; the batch with the best throughput; the order of a ranking by speed."""

from __future__ import annotations

from math import ceil

import pytest
from example_reports import rank_report
from hypothesis import given
from hypothesis import strategies as st
from made_up_tracer import World

import whichgpu
from whichgpu import arguments, text
from whichgpu.advice import RankRow
from whichgpu.cli import main
from whichgpu.errors import InputError
from whichgpu.ordering import ordered
from whichgpu.runs import run
from whichgpu.speed.record import PredictedSpeed, speed
from whichgpu.speeds import Speeds, kept_as


@given(samples=st.integers(1, 10**12), batch=st.integers(1, 4096), step_s=st.floats(1e-3, 1e2), usd=st.floats(0.01, 50))
def test_a_run_is_its_steps_at_the_speed(samples: int, batch: int, step_s: float, usd: float) -> None:
    """Time is of whole steps, at least one; energy and rent grow alike, and ends lie around the middle."""
    found = run(samples, speed(batch, step_s, 0.2, "memory"), 350.0, usd)

    assert pytest.approx(ceil(samples / batch) * step_s, rel=2e-3) == found.seconds
    assert found.seconds_low <= found.seconds <= found.seconds_high
    assert found.energy_kwh is not None
    assert found.rent_usd is not None
    assert pytest.approx(found.seconds * 350 / 3.6e6, rel=2e-3) == found.energy_kwh
    assert pytest.approx(found.seconds * usd / 3600, rel=2e-3) == found.rent_usd
    assert pytest.approx(found.seconds_high * usd / 3600, rel=2e-3) == found.rent_high_usd


def test_what_is_unknown_of_a_run_is_none() -> None:
    """Without a price or the board's power there is no rent and no energy, not 0."""
    found = run(10, speed(1, 1.0, 0.2, "memory"), None)

    assert (None, None, None, None) == (found.energy_kwh, found.rent_usd, found.rent_low_usd, found.rent_high_usd)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((1000, 3, None), "either samples, or epochs"),
        ((1000, None, 10), "either samples, or epochs"),
        ((None, 3, None), "the dataset size is missing"),
        ((None, None, 3), "the number of epochs is missing"),
        ((0, None, None), "between 1 and"),
        ((None, -1, 10), "between 1 and"),
        ((1.5, None, None), "whole number"),
        ((True, None, None), "whole number"),
        ((10**16, None, None), "between 1 and"),
    ],
)
def test_contradictions_are_told(given: tuple[object, object, object], words: str) -> None:
    """What does not say one number of samples is the user's error, in one line."""
    with pytest.raises(InputError, match=words):
        arguments.run_samples(*given)


def test_epochs_are_samples() -> None:
    """Epochs over a data set are as many samples; nothing said is nothing asked."""
    assert 3000 == arguments.run_samples(None, 3, 1000)
    assert 7 == arguments.run_samples(7, None, None)
    assert arguments.run_samples(None, None, None) is None


@pytest.mark.parametrize("command", ["fit", "rank"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--samples", "10", "--epochs", "2"], "either samples, or epochs"),
        (["--epochs", "2"], "the dataset size is missing"),
        (["--samples", "many"], "--samples"),
    ],
)
def test_the_command_tells_contradictions(
    command: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, before any work."""
    with pytest.raises(SystemExit) as stopped:
        main([command, "resnet50", *options])
    said = capsys.readouterr().err

    assert 2 == stopped.value.code
    assert words in said
    assert 1 == said.count("\n")


def test_an_unknown_order_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line and from Python."""
    with pytest.raises(SystemExit):
        main(["rank", "resnet50", "--sort", "colour"])
    assert "say price, speed or memory" in capsys.readouterr().err
    with pytest.raises(InputError, match="say price, speed or memory"):
        whichgpu.rank(["resnet50"], sort="colour")  # type: ignore[arg-type]


def test_fit_and_rank_answer_about_a_run(world: World) -> None:
    """The same time and energy; the rent, with its price, is the ranking's."""
    (row,) = whichgpu.fit("bert-base", gpus=["T4"], epochs=2, dataset_size=500).gpus
    report = whichgpu.rank(["bert-base"], gpus=["T4"], samples=1000)
    ranked = report.gpus[0].run["bert-base"]

    assert 1000 == report.samples
    assert row.run is not None
    assert ranked is not None
    assert (row.run.seconds, row.run.energy_kwh, None) == (ranked.seconds, ranked.energy_kwh, row.run.rent_usd)
    assert report.gpus[0].rent is not None
    assert ranked.rent_usd == pytest.approx(ranked.seconds / 3600 * report.gpus[0].rent.usd, rel=2e-3)
    assert whichgpu.fit("bert-base", gpus=["T4"]).gpus[0].run is None


def test_a_run_shorter_than_a_step_is_one_step_of_its_samples(world: World) -> None:
    """Ten samples are a step at batch size 10, and not a part of one at the largest batch."""
    (row,) = whichgpu.fit("bert-base", gpus=["T4"], samples=10).gpus
    assert row.speed is not None
    assert row.run is not None
    assert row.speed.batch_size > row.run.batch_size == 10
    assert 10 * row.speed.step_s / row.speed.batch_size < row.run.seconds < row.speed.step_s
    (two,) = whichgpu.fit("bert-base", gpus=["T4"], samples=row.speed.batch_size + 1).gpus
    assert two.run is not None
    assert pytest.approx(2 * row.speed.step_s, rel=0.2) == two.run.seconds


def verdict(row: RankRow) -> tuple[bool, str, int]:
    """What stays first in any order."""
    return not row.supported, {"all": "0", "most": "1", "poor": "2"}[row.tier], -row.trains if row.tier != "all" else 0


@pytest.mark.parametrize("sort", ["price", "speed", "memory"])
def test_an_order_keeps_verdicts_together(sort: str) -> None:
    """Cards that train more come first in any order, and no card is lost."""
    rows = rank_report().gpus
    rows = tuple(sorted(rows, key=verdict))
    found = ordered(rows, sort)  # type: ignore[arg-type]

    assert sorted(row.gpu for row in rows) == sorted(row.gpu for row in found)
    assert [verdict(row) for row in rows] == [verdict(row) for row in found]


def test_the_fastest_comes_first(world: World) -> None:
    """Samples per second fall, and memory falls, within those that train all."""
    by_speed = [row for row in whichgpu.rank(["bert-base"], sort="speed").gpus if row.supported and row.tier == "all"]
    rates = [(row.best_speed["bert-base"] or row.speed["bert-base"]) for row in by_speed]
    by_memory = [row for row in whichgpu.rank(["bert-base"], sort="memory").gpus if row.supported and row.tier == "all"]

    known = [rate.samples_per_s for rate in rates if rate is not None]
    assert len(known) > 10
    assert sorted(known, reverse=True) == known
    assert sorted((row.memory_bytes for row in by_memory), reverse=True) == [row.memory_bytes for row in by_memory]


class Made:
    """A predictor whose step times are made up: those of powers of two."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.step_times: dict[str, tuple[float, int]] = {}
        self.seconds = seconds

    def follows(self, capability: tuple[int, int]) -> bool:
        """Whether batch sizes follow a line."""
        return True


def best(seconds: dict[int, float], largest: int) -> PredictedSpeed | None:
    """The best throughput on a T4 of made-up step times."""
    from whichgpu import catalogue

    card = catalogue.load().find("T4")
    made = Made(seconds)
    made.step_times = {kept_as(card, size): (time, 0) for size, time in seconds.items()}
    return Speeds(made).best(card, largest)  # type: ignore[arg-type]


def test_the_best_batch_is_told_where_it_is_another() -> None:
    """Where steps grow faster than the batch, a smaller one is the best; where they do not, there is none."""
    grows = {1: 1.0, 2: 1.9, 4: 3.6, 8: 7.0, 16: 20.0, 32: 50.0}
    found = best(grows, 20)

    assert found is not None
    assert 8 == found.batch_size
    assert best({size: 1.0 + size for size in (1, 2, 4, 8, 16, 32)}, 20) is None
    assert best({1: 1.0, 2: 2.0}, 1) is None


def test_own_figures_of_a_card_have_step_times_of_their_own() -> None:
    """A lab that says its T4 has twice the bandwidth does not get the step times kept of the shipped one."""
    import msgspec

    from whichgpu import catalogue

    card = catalogue.load().find("T4")
    faster = msgspec.structs.replace(card, bandwidth_gb_per_s=2 * card.bandwidth_gb_per_s)
    assert kept_as(card, 8) == kept_as(catalogue.load().find("T4"), 8)
    assert kept_as(card, 8) != kept_as(faster, 8)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 s"), (42, "42 s"), (150, "2.5 min"), (2100, "35 min"), (18_720, "5.2 h"), (268_000, "3.1 days")],
)
def test_long_times_are_said_in_the_largest_fitting_unit(seconds: float, words: str) -> None:
    """Nobody wants to read 86,400 s."""
    assert words == text.format_long(seconds)
