"""Half of a catalogue's replays in a second process: the same answers, and nothing left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from synthetic import TRAINING, make_trace

from whichgpu import advice, catalogue, sharing, trace_cache
from whichgpu import trace as traces
from whichgpu.capability import CLASSES
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor
from whichgpu.sharing import Helper
from whichgpu.trace_cache import Origin
from whichgpu.tracing import Tracer
from whichgpu.workload import WorkloadRef, parse


@pytest.fixture
def ref(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkloadRef:
    """A workload whose traces lie in the cache, so that nobody makes one."""
    monkeypatch.setenv("WHICHGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sharing, "_WORTH_EVENTS", 0)
    workload = parse("bert-base")
    with Tracer(workload, cache=trace_cache.cache_directory()) as tracer:
        for name in CLASSES[:1]:
            for size in (4, 8, 67):
                made = make_trace(TRAINING, size, capability=name, workload=workload.text, facts={"same_for": CLASSES})
                path = tmp_path / "made.trace"
                traces.save(made, path)
                assert tracer._cache is not None
                tracer._cache.write(tracer._key(size, name), path, Origin.empty(time.time()))
    return workload


def answers(ref: WorkloadRef, helper: Helper) -> dict[str, advice.Largest]:
    """The largest batches on every card."""
    found = {}
    with Predictor(ref, cache=True, on_progress=None) as predictor:
        for card in helper.in_turn(predictor, cards()):
            assert card.id not in found
            found[card.id] = advice.largest(card, predictor.estimate(card.capability), context_bytes(), ())
    return found


def cards() -> list[catalogue.Gpu]:
    """Every card that the question is about."""
    return [card for card in catalogue.load().gpus if card.cuda]


def forget() -> None:
    """Remove the answers that were kept."""
    for path in trace_cache.cache_directory().rglob("*.answers"):
        path.unlink()


@pytest.fixture(autouse=True)
def no_children() -> Iterator[None]:
    """No process outlives a test."""
    yield
    assert [] == psutil.Process().children(recursive=True)


def test_two_processes_answer_as_one(ref: WorkloadRef) -> None:
    """Every card comes once, and its answer is that of a single process."""
    with Helper(processors=1) as alone:
        expected = answers(ref, alone)
    forget()

    with Helper(processors=2) as helper:
        found = answers(ref, helper)
        assert helper._process is not None

    assert expected == found
    assert {card.id for card in cards()} == set(found)


def test_what_the_second_process_answered_is_kept(ref: WorkloadRef) -> None:
    """The same question asked again starts no process, as all answers lie on disk."""
    with Helper(processors=2) as helper:
        expected = answers(ref, helper)
    with Helper(processors=2) as helper:
        assert expected == answers(ref, helper)
        assert helper._process is None


@pytest.mark.parametrize(
    "script",
    [
        "import sys; sys.exit(3)",
        "import os, sys; os.write(int(sys.argv[2]), b'nonsense\\n'); sys.stdin.read()",
        'import os, sys; os.write(int(sys.argv[2]), b\'{"error": "no"}\\n\'); sys.stdin.read()',
    ],
    ids=["dies", "nonsense", "error"],
)
def test_a_second_process_that_fails_changes_nothing(ref: WorkloadRef, script: str) -> None:
    """Where the second process dies, talks nonsense or has an error, every card is answered here."""
    with Helper(processors=1) as alone:
        expected = answers(ref, alone)
    forget()

    with Helper([sys.executable, "-c", script], processors=2) as helper:
        assert expected == answers(ref, helper)


def test_a_second_process_that_cannot_start_changes_nothing(ref: WorkloadRef, tmp_path: Path) -> None:
    """Where there is no such program, every card is answered here."""
    with Helper([str(tmp_path / "nothing")], processors=2) as helper:
        assert len(cards()) == len(answers(ref, helper))


def test_an_interrupt_ends_the_second_process(ref: WorkloadRef) -> None:
    """Ctrl-C while the second process works leaves none behind."""

    def ask() -> None:
        slow = Helper([sys.executable, "-c", "input(); input()"], processors=2)
        with slow as helper, Predictor(ref, cache=True, on_progress=None) as predictor:
            for _ in helper.in_turn(predictor, cards()):
                assert [] != psutil.Process().children()
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask()


def test_requests_survive_the_pipe(ref: WorkloadRef) -> None:
    """What one side encodes the other decodes."""
    request = sharing.Request(workload=ref, exact=True, gpus=("h100-sxm5-80gb",), batch_size=8)
    assert request == msgspec.json.decode(msgspec.json.encode(request), type=sharing.Request)


def test_a_failure_in_the_second_process_is_said(ref: WorkloadRef) -> None:
    """A request that cannot be answered comes back as an error and not as an end of the process."""
    request = sharing.Request(workload=ref, exact=False, gpus=("no such card",), batch_size=None)
    said = sharing.Answering().answer(request).error
    assert said is not None
    assert "no such card" in said
