"""Answers kept by one question for the next, with made-up traces in place of the tracing process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from made_up_tracer import World

import whichgpu
from whichgpu.errors import DataDependentError

GIB = 1 << 30

QUESTIONS: list[Callable[[], Any]] = [
    lambda: whichgpu.fit("bert-base"),
    lambda: whichgpu.fit("bert-base", batch_size=33, gpus=["H200", "1080 Ti"], memory_limit_bytes=4 * GIB),
    lambda: whichgpu.rank(["bert-base"]),
]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("bucket", [1, 16])
@pytest.mark.parametrize("real", [False, True])
def test_a_kept_answer_is_the_answer(world: World, question: Callable[[], Any], bucket: int, real: bool) -> None:
    """The same question has the same answer from kept answers, and then asks for no trace."""
    world.bucket = bucket
    world.fake_fails = DataDependentError("looks at values") if real else None
    expected = question()
    world.keeps = True
    question()
    asked = len(world.asked)
    answered = question()
    assert asked == len(world.asked)
    assert _without_seconds(expected) == _without_seconds(answered)


def test_kept_answers_serve_another_question(world: World) -> None:
    """A question of which only some answers are kept is answered as if none were."""
    expected = whichgpu.fit("bert-base", batch_size=12)
    world.keeps = True
    whichgpu.fit("bert-base", batch_size=8, gpus=["H200"])
    assert _without_seconds(expected) == _without_seconds(whichgpu.fit("bert-base", batch_size=12))


def test_without_a_cache_no_answer_is_kept_or_used(world: World) -> None:
    """`cache=False` asks for traces each time."""
    world.keeps = True
    whichgpu.fit("bert-base", gpus=["H200"])
    asked = len(world.asked)
    whichgpu.fit("bert-base", gpus=["H200"], cache=False)
    assert asked < len(world.asked)


def _without_seconds(report: Any) -> Any:
    """A report as plain data, without how long tracing took and whether it came from the cache."""
    found = msgspec.to_builtins(report)
    for info in [found["trace"]] if "trace" in found else found["traces"].values():
        info.update(seconds=0.0, cached=False)
    return found
