"""Speeds in the answers of `fit` and `rank`, with made-up traces: which cards have one, and what is said of the others."""

from __future__ import annotations

import msgspec
import pytest
from made_up_tracer import World
from synthetic import MIB, Call, Made

import whichgpu
from whichgpu import catalogue
from whichgpu.catalogue import Catalogue
from whichgpu.speed.record import PredictedSpeed


def lacking(name: str, monkeypatch: pytest.MonkeyPatch, **figures: object) -> None:
    """The catalogue, in which a card lacks some figures."""
    known = catalogue.load()
    card = known.find(name)
    gpus = [msgspec.structs.replace(one, **figures) if one.id == card.id else one for one in known.gpus]
    monkeypatch.setattr(catalogue, "load", lambda: Catalogue(gpus, known.offers))


def test_each_supported_card_has_a_speed_at_its_largest_batch(world: World) -> None:
    """The batch of a speed is the card's own largest, and the baseline's ratio is 1."""
    report = whichgpu.fit("bert-base")
    rows = [row for row in report.gpus if row.speed is not None]

    assert "Quadro RTX 8000" == report.baseline
    assert len(rows) > 50
    assert [row.max_batch_size for row in rows] == [row.speed.batch_size for row in rows if row.speed is not None]
    assert [1.0] == [row.relative_speed for row in rows if row.gpu == report.baseline]
    assert all(bool(row.speed_missing) == (row.speed is None) for row in report.gpus)


def test_any_card_can_be_the_baseline(world: World) -> None:
    """It need not be among those asked about."""
    whole = whichgpu.fit("bert-base", gpus=["T4", "A40"], baseline="A40")
    alone = whichgpu.fit("bert-base", gpus=["T4"], baseline="A40")

    assert "A40" == whole.baseline == alone.baseline
    assert whole.gpus[0] == alone.gpus[0]
    assert 1.0 == whole.gpus[1].relative_speed
    assert whichgpu.fit("bert-base", gpus=["T4"]).baseline is None


def test_rank_and_fit_say_the_same(world: World) -> None:
    """One speed of a card for a workload, whoever asks."""
    fit = {row.gpu: (row.speed, row.relative_speed) for row in whichgpu.fit("bert-base").gpus}
    rank = whichgpu.rank(["bert-base"])

    assert fit == {row.gpu: (row.speed["bert-base"], row.relative_speed["bert-base"]) for row in rank.gpus}


def test_a_dtype_that_a_card_lacks_is_no_silent_float32(world: World) -> None:
    """A card without bfloat16 has no speed of such a step, and is no baseline of one either."""
    world.facts = {"dtypes": ["bfloat16", "float32"]}
    report = whichgpu.fit("bert-base", gpus=["T4", "A40"], baseline="T4")
    turing, ampere = report.gpus

    assert (None, "not supported") == (turing.speed, turing.speed_missing)
    assert any("bfloat16" in note for note in turing.notes)
    assert isinstance(ampere.speed, PredictedSpeed)
    assert ampere.relative_speed is None
    assert report.baseline is None
    assert any("T4" in note and "bfloat16" in note for note in report.notes)


def test_halves_without_tensor_cores_are_said_to_be_emulated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards that store halves and compute in float32 say so, others say nothing."""
    lacking("T4", monkeypatch, fp16_tflops=None)
    world.facts = {"dtypes": ["float16", "float32"]}
    emulating, other = whichgpu.fit("bert-base", gpus=["T4", "A40"]).gpus

    assert "float16 at the speed of float32" in emulating.speed_note
    assert "" == other.speed_note


def test_a_figure_that_is_missing_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is answered all the same, and the reason stands in the row and in the notes."""
    lacking("T4", monkeypatch, sm_count=None, fp32_tflops=None)
    report = whichgpu.fit("bert-base", gpus=["T4"])
    (row,) = report.gpus
    ranked = whichgpu.rank(["bert-base"], gpus=["T4"])

    assert row.max_batch_size > 0
    assert row.speed is None
    assert "fp32_tflops and sm_count are unknown" in row.speed_missing
    assert any("no speed is predicted of T4" in note for note in report.notes)
    assert any("no speed is predicted of T4" in note for note in ranked.notes)
    assert "fp32_tflops and sm_count" in ranked.gpus[0].speed_missing["bert-base"]


def test_a_step_without_work_for_the_gpu_has_no_speed(world: World) -> None:
    """Nothing is divided by a time of nothing."""
    world.calls["bert-base"] = [Call((Made(0, MIB),), name="aten.empty.memory_format")]
    report = whichgpu.fit("bert-base", gpus=["T4"], baseline="T4")

    assert report.gpus[0].speed is None
    assert "the step runs no operator on the GPU" == report.gpus[0].speed_missing
    assert report.baseline is None


def test_a_limit_has_no_speed(world: World) -> None:
    """A limited allocator is no card."""
    limit, card = whichgpu.fit("bert-base", gpus=["T4"], memory_limit_bytes=4 << 30).gpus

    assert (None, "a limit is no card") == (limit.speed, limit.speed_missing)
    assert card.speed is not None


def test_a_batch_that_does_not_fit_has_no_speed(world: World) -> None:
    """Where not even one sample fits, that is the reason."""
    world.calls["bert-base"] = [Call((Made(200 << 30, MIB),))]
    (row,) = whichgpu.fit("bert-base", gpus=["T4"]).gpus

    assert (None, "not even batch size 1 fits") == (row.speed, row.speed_missing)
