"""What would make a batch fit on a card that it does not fit on, tried with made-up traces of the changed steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up_tracer import World
from synthetic import MIB, TRAINING, Call, Made

from whichgpu import catalogue, workload
from whichgpu.what_helps import what_helps, what_helps_in_words

GIB = 1 << 30
CARD = catalogue.load().find("RTX 3090")
REF = workload.parse("olmo2-1b")


def holding(gibibytes: int) -> Sequence[Call]:
    """A step with so much in weights."""
    return (Call((Made(gibibytes * GIB, 0, "weight"),)), Call((Made(0, MIB),)))


class Steps(dict[str, Sequence[Call]]):
    """Programs by workload; any other change leaves the step as large as it is."""

    def get(self, name: str, default: object = None) -> Sequence[Call]:  # type: ignore[override]
        """The program of a workload."""
        return self[name] if name in self else holding(60)


def test_the_changes_that_are_enough_are_named(world: World) -> None:
    """Where a single change is surely enough, those that are stand in the answer and nothing is tried together."""
    world.calls = Steps({workload.with_options(REF, {"fused": "1"}).text: TRAINING})
    found = what_helps(REF, CARD, 1)
    assert [("fused=1", "fits")] == [(one.change, one.verdict) for one in found]
    assert not any(" " in one.change for one in found)


def test_changes_are_put_together_where_none_is_enough_alone(world: World) -> None:
    """From what changes training least to what changes it most, until one surely fits."""
    both = {"optimizer": "adafactor", "checkpoint": "1"}
    world.calls = Steps({workload.with_options(REF, both).text: TRAINING})
    (found,) = what_helps(REF, CARD, 1)
    assert ("several together", "optimizer=adafactor checkpoint=1") == (found.remedy, found.change)
    (line,) = what_helps_in_words(REF, CARD, 1)
    assert "olmo2-1b on the RTX 3090: with optimizer=adafactor checkpoint=1 batch 1 fits, up to batch" in line
    assert "beside the CUDA context" in line


def test_where_nothing_is_enough_what_needs_least_is_named(world: World) -> None:
    """One change, which is said not to be enough."""
    least = workload.with_options(REF, {"precision": "pure-bf16", "checkpoint": "1"})
    world.calls = Steps({least.text: holding(40)})
    (line,) = what_helps_in_words(REF, CARD, 1)
    assert "with precision=pure-bf16 checkpoint=1 batch 1 still does not fit" in line


@pytest.mark.parametrize(("card", "tried"), [("RTX 3090", True), ("T4", False)])
def test_nothing_is_tried_that_the_card_cannot_compute_in(world: World, card: str, tried: bool) -> None:
    """A card without bfloat16 is not told to use it, however much that would save."""

    class Halved(Steps):
        def get(self, name: str, default: object = None) -> Sequence[Call]:  # type: ignore[override]
            return holding(40 if "bf16" in name else 60)

    world.calls = Halved()
    (found,) = what_helps(workload.parse("bert-base"), catalogue.load().find(card), 1)
    assert tried == ("bf16" in found.change)
