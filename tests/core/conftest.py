"""Fixtures of the tests that need no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from made_up_tracer import World, tracer_of

from whichgpu import predictor, tracing, workspaces

CONFIRM = predictor.Predictor.confirm


@pytest.fixture(autouse=True)
def _no_results(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement of whoever runs the tests stands in an answer."""
    if "WHICHGPU_RESULTS" not in os.environ:
        monkeypatch.setenv("WHICHGPU_RESULTS", str(tmp_path_factory.getbasetemp() / "no-results.sqlite"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The tracer replaced by a maker of synthetic traces, and no workspaces."""
    found = World()
    monkeypatch.setattr(tracing, "Tracer", tracer_of(found))
    monkeypatch.setattr(workspaces, "RULES", {})
    # no trace at the answer, but where a test is about that
    monkeypatch.setattr(predictor.Predictor, "confirm", lambda *_: False)
    yield found
    assert 0 == found.open


@pytest.fixture
def checking(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which the largest batch of an answer is traced too."""
    monkeypatch.setattr(predictor.Predictor, "confirm", CONFIRM)
    world.keeps = True
    return world
