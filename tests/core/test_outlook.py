"""What is said of how long tracing will take."""

from __future__ import annotations

import pytest

from whichgpu import outlook, workload
from whichgpu.outlook import ANNOUNCED, Outlook, expected_seconds
from whichgpu.zoo import ENTRIES

NAMES = ("llama3-8b", "olmo2-1b", "bert-base")
REFS = [workload.parse(name) for name in NAMES]


class Clock:
    """A clock that is put forward by hand."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture(autouse=True)
def _a_minute_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "expected_seconds", lambda _: 60.0)


def test_what_is_to_be_traced_is_announced() -> None:
    """How many of how many, and the sum of what is expected of them; what is kept counts as nothing."""
    said = Outlook(REFS, kept=lambda ref: ref.text == "bert-base").announcement(partial=True)
    assert said.startswith(f"{ANNOUNCED}2 of 3 workloads, about 2 min as on a machine with 2 cores")
    assert said.endswith("; Ctrl-C shows what is known by then")
    assert "Ctrl-C" not in Outlook(REFS, kept=lambda _: False).announcement()
    assert "" == Outlook(REFS, kept=lambda _: True).announcement()


def test_the_quickest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept comes before all that is to be traced, and this in the order of how long it takes."""
    seconds = dict(zip(NAMES, (50.0, 20.0, 70.0), strict=True))
    monkeypatch.setattr(outlook, "expected_seconds", lambda ref: seconds[ref.text])
    found = Outlook(REFS, kept=lambda ref: ref.text == "bert-base")
    assert ["bert-base", "olmo2-1b", "llama3-8b"] == [ref.text for ref in found.refs]


def test_what_is_left_follows_the_clock_and_the_pace_so_far() -> None:
    """A machine that is twice as slow as expected at the first is taken to be so at the others."""
    clock = Clock()
    found = Outlook(REFS, kept=lambda _: False, clock=clock)
    found.begin()
    assert ", about 3 min left" == found.left()
    clock.now = 120.0
    assert ", about 2 min left" == found.left()  # later than expected, and the other two are to come
    found.done()
    found.begin()
    assert ", about 4 min left" == found.left()
    clock.now = 240.0
    found.done()
    found.begin()
    clock.now = 340.0
    assert ", about 20 s left" == found.left()
    clock.now = 350.0
    assert "" == found.left()


def test_what_was_kept_says_nothing_of_the_pace() -> None:
    """A workload that comes from the cache takes no time, and the next one its own."""
    clock = Clock()
    found = Outlook(REFS[:2], kept=lambda ref: ref.text == NAMES[0], clock=clock)
    found.begin()
    clock.now = 1.0
    found.done()
    found.begin()
    assert ", about 60 s left" == found.left()


def test_every_ready_workload_has_a_time_and_others_that_of_a_usual_one() -> None:
    """The table is whole, and what is not in it gets the median."""
    times = [expected_seconds(workload.parse(name)) for name in ENTRIES]
    assert all(seconds > 0 for seconds in times)
    assert min(times) < expected_seconds(workload.parse("hf:gpt2")) < max(times)
