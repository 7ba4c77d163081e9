"""`fit` and `explain` from end to end, with made-up traces in place of the tracing process."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_up_tracer import World
from synthetic import MIB, TRAINING, Call, Made

import whichgpu
from whichgpu import api, catalogue, outlook, tracers
from whichgpu.errors import CatalogueError, DataDependentError, InputError, StepError, WorkloadError
from whichgpu.outlook import ANNOUNCED
from whichgpu.overheads import context_bytes

GIB = 1 << 30


# ---- fit ------------------------------------------------------------------------------------------------


def test_every_card_of_the_catalogue_is_answered(world: World) -> None:
    """Without names there is one row for every CUDA card, in the catalogue's order."""
    report = whichgpu.fit("bert-base", batch_size=8)

    assert [card.name for card in catalogue.load().gpus if card.cuda] == [row.gpu for row in report.gpus]
    assert ("bert-base", 8, "predicted") == (report.workload, report.batch_size, report.basis)
    assert ("fake", True, False) == (report.trace.kind, report.trace.affine, report.trace.cached)
    assert report.trace.seconds > 0


def test_a_limit_says_whose_rules_it_goes_by(world: World) -> None:
    """A limit is not a card: the card whose rules hold is named, by default the H200."""
    for gpus, card in ((None, "H200"), (["T4", "A10"], "T4")):
        report = api.fit("bert-base", batch_size=8, gpus=gpus, memory_limit_bytes=GIB)
        assert [True] == [f"rules of the {card}" in note for note in report.notes if "limit:" in note]
    assert not any("limit:" in note for note in api.fit("bert-base", gpus=["T4"]).notes)


def test_a_step_that_ignores_its_batch_size_is_told(world: World) -> None:
    """Where memory does not grow with the batch, the largest batch is the end of the search, and that is said."""
    world.calls["resnet50"] = [Call((Made(MIB, 0),))]
    for report in (api.fit("resnet50", gpus=["T4"]), api.rank(["resnet50"])):
        assert any("1,048,576" in note for note in report.notes)
    assert not any("1,048,576" in note for note in api.fit("bert-base", gpus=["T4"]).notes)


def test_one_name_in_place_of_a_list_is_told(world: World) -> None:
    """A name is no list of letters."""
    with pytest.raises(InputError, match="gpus='T4' is no list of cards"):
        api.fit("bert-base", gpus="T4")
    with pytest.raises(InputError, match="'bert-base' is no list of workloads"):
        api.rank("bert-base")


def test_the_default_batch_size_is_the_workloads(world: World) -> None:
    """What the workload itself names is used when nothing is asked for."""
    world.facts = {"default_batch_size": 24}

    assert 24 == api.fit("bert-base", gpus=["H200"]).batch_size


def test_named_cards_are_answered_in_the_order_given(world: World) -> None:
    """Aliases resolve, the order stays, and each row has its own card's memory and context."""
    report = api.fit("bert-base", batch_size=8, gpus=["4090", "h200"])
    cards = [catalogue.load().find(name) for name in ("RTX 4090", "H200")]

    assert [(card.name, card.memory_bytes) for card in cards] == [(row.gpu, row.memory_bytes) for row in report.gpus]
    assert [context_bytes() for card in cards] == [row.context_bytes for row in report.gpus]


def test_a_card_named_twice_is_answered_once(world: World) -> None:
    """Several names of one card are one question."""
    report = api.fit("bert-base", gpus=["4090", "RTX 4090", "H200", "4090"])
    assert ["RTX 4090", "H200 SXM 141GB"] == [row.gpu for row in report.gpus]


def test_a_name_of_two_cards_says_which_was_taken(world: World) -> None:
    """ "A100 80GB" is one with SXM and one with PCIe: the report says which it is about, and how to name the other."""
    words = '"A100 80GB" was taken for the A100 SXM4 80GB; the other is "A100 PCIe 80GB"'
    for report in (
        api.fit("bert-base", gpus=["A100 80GB", "T4"]),
        api.explain("bert-base", gpu="A100 80GB"),
        api.rank(["bert-base"], gpus=["A100 80GB"]),
    ):
        assert 1 == report.notes.count(words)
    assert words not in api.fit("bert-base", gpus=["A100 PCIe 80GB"]).notes


def test_cards_that_are_left_out_are_counted(world: World) -> None:
    """Every card of the catalogue is answered, or said not to be."""
    others = sum(not card.cuda for card in catalogue.load().gpus)
    said = f"{others} cards of the catalogue without CUDA (AMD, Apple, Google, Intel) are left out"
    assert said in api.fit("bert-base").notes
    assert said in api.rank(["bert-base"]).notes
    assert said not in api.fit("bert-base", gpus=["H200"]).notes


def test_only_named_cards_are_ranked(world: World) -> None:
    """A ranking of named cards answers as that of all does, for these; a name that is none of a card with CUDA is told."""
    every = {row.gpu: row for row in api.rank(["bert-base"]).gpus}
    report = api.rank(["bert-base"], gpus=["t4", "RTX 4090", "T4"])
    assert {"T4", "RTX 4090"} == {row.gpu for row in report.gpus}
    assert [every[row.gpu].max_batch_size for row in report.gpus] == [row.max_batch_size for row in report.gpus]
    with pytest.raises(InputError, match="no card of those asked for has CUDA: MI300X"):
        api.rank(["bert-base"], gpus=["MI300X"])
    with pytest.raises(InputError, match="is an empty list"):
        api.rank(["bert-base"], gpus=[])


def test_progress_of_several_workloads_says_which(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line names its part of the whole, after what is announced of it; of one workload there is none."""
    monkeypatch.setattr(outlook, "expected_seconds", lambda _: 60.0)
    lines: list[str] = []
    api.rank(["bert-base", "resnet50"], gpus=["T4"], on_progress=lines.append)
    assert lines.pop(0).startswith(ANNOUNCED)
    assert {"1 of 2", "2 of 2"} == {line.partition(": ")[0].partition(",")[0] for line in lines}
    lines.clear()
    api.rank(["bert-base"], gpus=["T4"], on_progress=lines.append)
    assert [] == [line for line in lines if line.startswith("1 of")]


def test_an_estimate_for_all_cards_says_that_a_named_one_is_exact(world: World) -> None:
    """The two answers differ, and the note says which to believe."""
    world.bucket = 16
    assert any("(--gpu) is answered exactly" in note for note in api.fit("bert-base").notes)
    assert not any("--gpu" in note for note in api.fit("bert-base", gpus=["H200"]).notes)
    world.bucket = 1
    assert not any("--gpu" in note for note in api.fit("gpt2").notes)


def test_a_limit_stands_first(world: World) -> None:
    """Under a limit the first entry is named "limit", has no context and exactly the limit's memory."""
    report = api.fit("bert-base", batch_size=8, memory_limit_bytes=6 * GIB, gpus=["RTX 3060", "H200"])

    assert ["limit", "RTX 3060"] == [row.gpu.replace(" 12GB", "") for row in report.gpus[:2]]
    assert (6 * GIB, 0) == (report.gpus[0].memory_bytes, report.gpus[0].context_bytes)
    assert {"8.6"} == {capability for _, _, capability in world.asked[:3]}


def test_a_limit_without_a_card_takes_the_rules_of_the_h200(world: World) -> None:
    """Only the limit is answered for, from traces for Hopper."""
    report = api.fit("bert-base", batch_size=8, memory_limit_bytes=6 * GIB)

    assert ["limit"] == [row.gpu for row in report.gpus]
    assert {"9.0"} == {capability for _, _, capability in world.asked}


def test_json_is_what_was_agreed(world: World) -> None:
    """The keys that programs rely on are there, with their types."""
    found = json.loads(msgspec.json.encode(api.fit("bert-base", batch_size=8, memory_limit_bytes=6 * GIB)))

    assert {"workload", "batch_size", "basis", "trace", "gpus"} <= set(found)
    assert {"kind": "fake", "affine": True} == {key: found["trace"][key] for key in ("kind", "affine")}
    assert isinstance(found["trace"]["seconds"], float)
    for row in found["gpus"]:
        assert {
            "gpu",
            "memory_bytes",
            "fits",
            "peak_reserved_bytes",
            "peak_allocated_bytes",
            "context_bytes",
            "max_batch_size",
            "max_batch_size_pow2",
            "breakdown",
            "notes",
        } <= set(row)
        assert isinstance(row["fits"], bool)
        assert row["fits"] == (row["verdict"] == "fits" and row["supported"])
        assert (row["verdict"] in ("fits", "likely")) == isinstance(row["peak_reserved_bytes"], int)
        assert isinstance(row["notes"], list)


def test_cards_of_one_class_share_traces(world: World) -> None:
    """Two cards that dispatch alike need three traces, not six; a third of another class needs three more."""
    api.fit("bert-base", batch_size=8, gpus=["RTX 3090", "RTX 4090"])
    assert [("fake", 4, "8.6"), ("fake", 8, "8.6"), ("fake", 67, "8.6")] == world.asked

    world.asked.clear()
    api.fit("bert-base", batch_size=8, gpus=["RTX 3090", "H200"])
    assert ["8.6"] * 3 + ["9.0"] * 3 == [capability for _, _, capability in world.asked]


def test_classes_that_a_trace_holds_for_share_it(world: World) -> None:
    """A trace that says it holds for other classes is not made again for them."""
    world.same_for = ("9.0", "8.0", "8.6", "7.0", "6.0")
    api.fit("bert-base", batch_size=8)

    assert 3 == len(world.asked)


def test_traces_are_asked_for_ahead(world: World) -> None:
    """While one batch size is traced, the worker knows which come next."""
    api.fit("bert-base", batch_size=8, gpus=["H200"])

    assert [(8, 67), (67,), ()] == world.ahead


def test_the_step_that_looks_at_values_is_traced_with_real_tensors(world: World) -> None:
    """Where hollow tensors cannot go on, real ones do, for every class; the report and its notes say so."""
    world.fake_fails = DataDependentError("nonzero")
    report = api.fit("bert-base", batch_size=8, gpus=["H200", "RTX 3090"])

    assert "real-cpu" == report.trace.kind
    assert ["fake", *["real-cpu"] * 6] == [kind for kind, _, _ in world.asked]
    assert [1, 2, 3] == [size for _, size, _ in world.asked[1:4]]
    assert any("real tensors" in note for note in report.notes)


def test_a_kept_real_trace_saves_the_attempt_with_hollow_tensors(world: World) -> None:
    """Where only real traces are kept, hollow ones failed before and are not tried again."""
    world.held = {("real-cpu", 1, "9.0")}
    api.fit("bert-base", batch_size=8, gpus=["H200"])
    assert {"real-cpu"} == {kind for kind, _, _ in world.asked}

    world.asked.clear()
    world.held |= {("fake", 4, "9.0")}
    api.fit("bert-base", batch_size=8, gpus=["H200"])
    assert {"fake"} == {kind for kind, _, _ in world.asked}


@pytest.mark.parametrize("kind", ["fake", "real-cpu"])
def test_kept_traces_of_a_class_that_dispatches_alike_are_used(world: World, kind: str) -> None:
    """A card whose own class was never traced is answered from the kept traces of one that holds for it."""
    sizes = {"fake": tracers.FAKE_BATCH_SIZES, "real-cpu": tracers.REAL_BATCH_SIZES}[kind]
    world.same_for = ("6.0", "8.6")
    world.held = {(kind, size, "6.0") for size in sizes}
    api.fit("bert-base", batch_size=8, gpus=["RTX 4090"])

    assert {(kind, size, "6.0") for size in sizes} == set(world.asked)


@pytest.mark.parametrize(
    ("same_for", "held"),
    [
        ((), [(4, "6.0"), (8, "6.0"), (67, "6.0")]),
        (("6.0", "8.6"), [(4, "6.0"), (67, "6.0")]),
        (("6.0", "8.6"), [(size, name) for size in (4, 8, 67) for name in ("6.0", "8.6")]),
    ],
)
def test_a_card_is_traced_for_its_own_class_otherwise(
    world: World, same_for: tuple[str, ...], held: list[tuple[int, str]]
) -> None:
    """Kept traces of a class that dispatches otherwise, or some only, are no help; a card's own go first."""
    world.same_for = same_for
    world.held = {("fake", *asked) for asked in held}
    api.fit("bert-base", batch_size=8, gpus=["RTX 4090"])

    assert [("fake", size, "8.6") for size in (4, 8, 67)] == world.asked[-3:]


def test_other_errors_are_not_retried(world: World) -> None:
    """A workload's own mistake is raised as it is, and the tracers are closed."""
    world.fake_fails = WorkloadError("bert-base: step raised")
    with pytest.raises(WorkloadError, match="step raised"):
        api.fit("bert-base", batch_size=8, gpus=["H200"])

    assert 1 == len(world.asked)


def test_sizes_in_steps_are_traced_one_by_one_and_told(world: World) -> None:
    """Padded batches are not affine: each size has a trace of its own, and the answer is exact."""
    world.bucket = 16
    report = api.fit("bert-base", batch_size=40, memory_limit_bytes=3 * GIB, gpus=["H200"])
    row = report.gpus[0]

    assert not report.trace.affine
    assert any("not a straight function" in note for note in report.notes)
    assert row.fits
    assert 0 == row.max_batch_size % 16
    assert row.max_batch_size >= 40
    sizes = [size for _, size, _ in world.asked]
    assert len(sizes) <= len(set(sizes)) + 8  # kept while they are needed


@pytest.mark.parametrize(
    ("runs_at", "expected"),
    [
        (lambda n: n % 2 == 0, (4, 8, 24)),
        (lambda n: n <= 50, (4, 8, 24)),
        (lambda n: n % 8 == 0, (16, 32, 144)),
        (lambda n: n % 16 == 0, (16, 32, 144)),
        (lambda n: n in (16, 32, 48, 64), (16, 32, 64)),
    ],
)
def test_a_step_that_runs_at_some_batch_sizes_only(
    world: World, runs_at: Callable[[int], bool], expected: tuple[int, ...]
) -> None:
    """Other batch sizes are traced where the step raises at the usual ones; the note says so, and nothing else changes."""
    usual = api.fit("bert-base", gpus=["H200"], batch_size=48)
    world.asked.clear()
    world.runs_at = runs_at
    report = api.fit("bert-base", gpus=["H200"], batch_size=48)

    assert usual.gpus == report.gpus
    notes = "; ".join(report.notes)
    assert f"traced at batch sizes {', '.join(map(str, expected))}, since the step fails at others" in notes
    assert "step raised at batch size" in notes
    assert ("are computed by memory alone" in notes) == (not runs_at(67) and max(report.trace.batch_sizes) < 67)
    assert set(expected) <= {size for _, size, _ in world.asked}


def test_the_default_batch_size_is_one_at_which_the_step_ran(world: World) -> None:
    """A step that wants 16 or more samples is not said to fit with 8."""
    world.runs_at = lambda n: n % 16 == 0

    assert 16 == api.fit("bert-base", gpus=["H200"]).batch_size


def test_a_batch_of_many_micro_batches_has_a_sample_for_each(world: World) -> None:
    """Where a batch is split in more parts than are usually traced, larger ones are."""
    report = api.fit("bert-base?accumulate=8", gpus=["H200"])

    assert {32, 64, 536} == {size for _, size, _ in world.asked}
    assert report.batch_size in (32, 64, 536)
    assert () == report.notes


def test_a_larger_batch_may_be_the_first_to_need_real_tensors(world: World) -> None:
    """Values of small tensors are followed, those of larger ones are not: the question is then asked again."""
    world.fake_fails, world.fake_fails_from, world.bucket = DataDependentError("nonzero"), 100, 16
    report = api.fit("bert-base", gpus=["H200"])

    assert "real-cpu" == report.trace.kind
    assert {1, 2, 3} == {size for kind, size, _ in world.asked if kind == "real-cpu"}


@pytest.mark.parametrize(("seconds", "traced"), [(0.5, {1, 2, 3, 40}), (60.0, {1, 2, 3})])
def test_the_batch_that_is_asked_about_is_traced_where_that_is_quick(
    world: World, seconds: float, traced: set[int]
) -> None:
    """With real tensors too, and whatever line others are on; not where the CPU would take too long."""
    world.fake_fails, world.bucket, world.trace_seconds = DataDependentError("nonzero"), 2, seconds
    report = api.fit("bert-base", batch_size=40, gpus=["H200"])

    assert traced == {size for kind, size, _ in world.asked if kind == "real-cpu"}
    world.fake_fails, world.bucket = None, 1
    exact = api.fit("bert-base", batch_size=40, gpus=["H200"])
    same = report.gpus[0].peak_reserved_bytes == exact.gpus[0].peak_reserved_bytes
    assert same == (40 in traced)


def test_a_step_with_real_tensors_may_want_more_than_one_sample(world: World) -> None:
    """Batch normalisation refuses a single sample: pairs are traced then."""
    world.fake_fails = DataDependentError("nonzero")
    world.runs_at = lambda n: n > 1
    api.fit("bert-base", gpus=["H200"])

    assert [2, 4, 6] == [size for _, size, _ in world.asked[2:]]


def test_kept_traces_at_other_batch_sizes_save_the_attempt(world: World) -> None:
    """A repeat does not run into the same failure again."""
    world.runs_at = lambda n: n % 2 == 0
    world.held = {("fake", size, "9.0") for size in (4, 8, 24)}
    report = api.fit("bert-base", gpus=["H200"])

    assert [4, 8, 24] == [size for _, size, _ in world.asked]
    assert ("traced at batch sizes 4, 8, 24, since the step fails at others",) == report.notes


def test_a_step_that_never_runs_is_an_error(world: World) -> None:
    """The first failure is the one that is told, with the other batch sizes that were tried."""
    world.runs_at = lambda _: False
    with pytest.raises(StepError, match=r"batch size 4:.*; of batch sizes 1, 4, 16, 64 it ran at none"):
        api.fit("bert-base", gpus=["H200"])
    assert [4, 16, 64, 1] == [size for _, size, _ in world.asked]


def test_the_batch_size_asked_about_is_tried(world: World) -> None:
    """A step that fails at just the batch size in question is an error, whatever other sizes foretell."""
    world.runs_at = lambda n: n != 48
    with pytest.raises(StepError, match="batch size 48:"):
        api.fit("bert-base", gpus=["H200"], batch_size=48)
    assert api.fit("bert-base", gpus=["H200"], batch_size=49).gpus[0].fits


def test_the_peaks_operator_is_the_one_at_the_batch_size_asked_for(world: World) -> None:
    """Where every batch size is traced by itself, the operator at the peak comes from that trace."""
    world.bucket = 16
    world.calls["bert-base"] = [Call((Made(MIB, MIB),), name="aten.first.default"), *[Call()] * 3]

    assert "aten.first.default" == api.fit("bert-base", batch_size=40, gpus=["H200"]).gpus[0].peak_op


def test_cards_without_the_dtype_are_marked(world: World) -> None:
    """bfloat16 on Turing is told in the card's notes; on Ampere there is nothing to tell."""
    world.facts = {"dtypes": ["bfloat16", "float32"]}
    report = api.fit("bert-base", batch_size=8, gpus=["RTX 2070", "RTX 3090"])

    assert [False, True] == [row.supported for row in report.gpus]
    assert "bfloat16" in report.gpus[0].notes[0]


def test_notes_are_told_once(world: World) -> None:
    """A caveat of the step and one of the cache appear once, whatever the number of classes and tracers."""
    world.facts = {"optimizer_steps": 0}
    world.notes = ["a damaged entry of the trace cache was ignored and rebuilt"]
    report = api.fit("bert-base", batch_size=8)

    assert 3 == len(report.notes) == len(set(report.notes))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 0}, InputError, "batch size 0"),
        ({"batch_size": -3}, InputError, "batch size -3"),
        ({"batch_size": "8"}, InputError, "batch size '8': it must be a whole number"),
        ({"batch_size": 2.5}, InputError, "batch size 2.5: it must be a whole number"),
        ({"batch_size": True}, InputError, "batch size True: it must be a whole number"),
        ({"memory_limit_bytes": "8GiB"}, InputError, "memory limit of '8GiB': it must be a whole number of bytes"),
        ({"memory_limit_bytes": 8e9}, InputError, "whole number of bytes"),
        ({"gpus": "RTX 4090"}, InputError, "is no list of cards; write for example gpus="),
        ({"gpus": []}, InputError, "leave it out for all cards"),
        ({"gpus": [4090]}, InputError, "4090 is no card's name"),
        ({"name": print}, InputError, "a function is no workload's name"),
        ({"name": None}, InputError, "None is no workload's name"),
        ({"memory_limit_bytes": 0}, InputError, "memory limit of 0 bytes"),
        ({"gpus": ["RTX 9999"]}, CatalogueError, "RTX 9999"),
        ({"gpus": ["RX 7900 XTX"]}, CatalogueError, "7900"),
        ({"name": "no/such/file.py:setup"}, WorkloadError, "file.py"),
    ],
)
def test_bad_input_is_refused_before_anything_is_traced(
    world: World, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """One line, naming what was wrong; no trace is made for it."""
    with pytest.raises(error, match=words) as caught:
        api.fit(options.pop("name", "bert-base"), **options)

    assert "\n" not in str(caught.value)
    assert [] == world.asked


# ---- explain --------------------------------------------------------------------------------------------


SAVING = (*TRAINING[:2], Call((Made(0, MIB, "activation"),), name="aten.mm.default"), *TRAINING[3:])


def test_an_explanation_agrees_with_fit(world: World) -> None:
    """The same card and batch size give the same peaks, largest batch and phase of the peak."""
    (row,) = api.fit("bert-base", batch_size=8, gpus=["RTX 3060"]).gpus
    report = whichgpu.explain("bert-base", batch_size=8, gpu="RTX 3060")

    for key in (
        "gpu memory_bytes verdict peak_reserved_bytes peak_allocated_bytes context_bytes max_batch_size "
        "max_batch_size_safe"
    ).split():
        assert getattr(row, key) == getattr(report, key)
    assert (row.peak_phase, row.peak_op) == (report.peak_phase, report.peak_op)


def test_a_remedy_is_what_fit_says_of_the_changed_workload(world: World) -> None:
    """Its peak, what it saves and its largest batch are those of the workload with that option."""
    world.calls = {"bert-base?checkpoint=1": SAVING}
    report = api.explain("bert-base", batch_size=64, gpu="RTX 3060")
    (row,) = api.fit("bert-base?checkpoint=1", batch_size=64, gpus=["RTX 3060"]).gpus
    found = next(remedy for remedy in report.remedies if remedy.remedy == "activation checkpointing")

    assert (row.peak_reserved_bytes, row.max_batch_size) == (found.peak_reserved_bytes, found.max_batch_size)
    assert report.peak_reserved_bytes - found.peak_reserved_bytes == found.saved_bytes
    assert found.saved_bytes > 0


def test_a_divided_batch_counts_twice(world: World) -> None:
    """Gradient accumulation is foretold at half the batch size, and its largest batch is two of these."""
    world.runs_at = lambda batch_size: batch_size != 30
    report = api.explain("bert-base", batch_size=60, gpu="RTX 3060")
    assert "gradient accumulation" in {left_out.remedy for left_out in report.left_out}

    world.runs_at = lambda _: True
    report = api.explain("bert-base", batch_size=60, gpu="RTX 3060")
    (half,) = api.fit("bert-base", batch_size=30, gpus=["RTX 3060"]).gpus
    found = next(remedy for remedy in report.remedies if remedy.remedy == "gradient accumulation")
    assert (half.peak_reserved_bytes, 2 * half.max_batch_size) == (found.peak_reserved_bytes, found.max_batch_size)


def test_without_a_card_memory_has_no_limit(world: World) -> None:
    """There is no largest batch then, and the rules are those of Hopper."""
    report = api.explain("bert-base", batch_size=1 << 20)

    assert [None] * 4 == [report.gpu, report.verdict, report.max_batch_size, report.memory_bytes]
    assert {None} == {remedy.verdict for remedy in report.remedies}
    assert {"9.0"} == {capability for _, _, capability in world.asked}


def test_a_batch_that_does_not_fit_is_explained_all_the_same(world: World) -> None:
    """Holders and peaks are those of a card with room for it, and a note says so."""
    report = api.explain("bert-base", batch_size=4096, gpu="RTX 3060")

    assert "no" == report.verdict
    assert report.peak_reserved_bytes > report.memory_bytes
    assert any("does not fit" in note for note in report.notes)
    assert report.peak_allocated_bytes == sum(held.bytes for held in report.holders) + report.others.bytes


def test_a_snapshot_is_written_where_it_was_asked_for(world: World, tmp_path: Path) -> None:
    """The report names the file, and the file is there."""
    report = api.explain("bert-base", batch_size=8, snapshot=tmp_path / "s.pickle")

    assert str(tmp_path / "s.pickle") == report.snapshot
    assert (tmp_path / "s.pickle").stat().st_size > 0


def test_values_that_cannot_be_explained_are_refused_before_anything_is_traced(world: World, tmp_path: Path) -> None:
    """Batch size 0, an unknown card and a place that cannot be written to."""
    with pytest.raises(InputError, match="1 or more"):
        api.explain("bert-base", batch_size=0)
    with pytest.raises(CatalogueError):
        api.explain("bert-base", gpu="RTX 9999")
    with pytest.raises(InputError, match="is a folder"):
        api.explain("bert-base", snapshot=tmp_path)
    with pytest.raises(InputError, match="whole number"):
        api.explain("bert-base", batch_size=8.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is no card's name"):
        api.explain("bert-base", gpu=["RTX 4090"])  # type: ignore[arg-type]
    assert [] == world.asked


def test_what_cannot_be_foretold_is_explained_from_a_trace_of_its_own(world: World) -> None:
    """A step that looks at values is traced at the batch size asked about, and no remedy is tried."""
    world.fake_fails = DataDependentError("the step branches on a value")
    report = api.explain("bert-base", batch_size=5)

    assert "real-cpu" == report.trace.kind
    assert () == report.remedies
    assert {left_out.reason for left_out in report.left_out}


@pytest.mark.parametrize("workload", ["bert-base", "no-such-workload"])
def test_the_collector_of_garbage_is_left_as_it_was(world: World, workload: str) -> None:
    """Whatever an answer changes of it to be quick, also where the question fails."""
    before = gc.get_threshold()
    with contextlib.suppress(WorkloadError):
        whichgpu.rank([workload])
    assert before == gc.get_threshold()
