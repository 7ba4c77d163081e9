"""Which remedies are tried for a workload, how, and which are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic import TRAINING, Call, Made, make_trace

from whichgpu import workload
from whichgpu.errors import StepError
from whichgpu.remedies import LeftOut, Plan, RemedyName, plans, reason_of

# what a report of one step tries; several at once are tried for advice (what_helps)
ALL = set(RemedyName.__args__) - {"several together"}  # type: ignore[attr-defined]


def planned(name: str, batch_size: int = 8, no_bfloat16: str | None = None, **facts: Any) -> tuple[dict, dict]:
    """The plans and the reasons by remedy, for a made-up trace of a workload."""
    trace = make_trace(facts.pop("calls", TRAINING), 8, kind=facts.pop("kind", "fake"), facts=facts)
    tried, left_out = plans(workload.parse(name), trace, batch_size, no_bfloat16)
    assert ALL == {one.remedy for one in (*tried, *left_out)} or trace.kind != "fake"
    return {plan.remedy: plan for plan in tried}, {one.remedy: one.reason for one in left_out}


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The name of a user's step."""
    (tmp_path / "mine.py").write_text("def setup(device): ...\n")
    return f"{tmp_path}/mine.py"


def test_a_library_is_changed_by_its_options() -> None:
    """A model of a library has an option for most remedies, and its batch is divided from outside."""
    tried, left_out = planned("hf:gpt2?seq=256", sizes={"seq": 256})
    refs = {name: plan.ref for name, plan in tried.items()}
    assert {
        "bf16 autocast": {"seq": "256", "precision": "bf16"},
        "activation checkpointing": {"seq": "256", "checkpoint": "1"},
        "fused optimizer": {"seq": "256", "fused": "1"},
        "smaller samples": {"seq": "128"},
        "gradient accumulation": {"seq": "256"},
    } == {name: ref.options for name, ref in refs.items()}
    assert ("accumulate",) == refs["gradient accumulation"].changes
    assert ["8-bit optimizer"] == list(left_out)


def test_a_step_of_ones_own_is_changed_from_outside(file: str) -> None:
    """A user's file has no options: its step is changed while it is traced, and its samples cannot be."""
    tried, left_out = planned(file)
    assert {
        "bf16 autocast": ("bf16",),
        "activation checkpointing": ("checkpoint",),
        "fused optimizer": ("fused",),
        "gradient accumulation": ("accumulate",),
    } == {name: plan.ref.changes for name, plan in tried.items()}
    assert {"8-bit optimizer", "smaller samples"} == set(left_out)


@pytest.mark.parametrize(("batch_size", "half"), [(2, 1), (7, 4), (8, 4)])
def test_a_divided_batch_is_never_less_than_the_whole(batch_size: int, half: int) -> None:
    """An odd batch counts as two of the larger half, so that nothing is said to fit that does not."""
    plan = planned("hf:gpt2", batch_size)[0]["gradient accumulation"]
    assert (half, 2) == (plan.batch_size(batch_size), plan.batches)


@pytest.mark.parametrize(
    ("name", "remedy", "facts", "said"),
    [
        ("hf:gpt2", "bf16 autocast", {"dtypes": ["float32", "bfloat16"]}, "already"),
        ("hf:gpt2", "bf16 autocast", {"no_bfloat16": "no bfloat16 in hardware"}, "in hardware"),
        ("hf:gpt2?checkpoint", "activation checkpointing", {}, "already"),
        ("hf:gpt2", "fused optimizer", {"optimizer_steps": 0}, "no optimizer"),
        (
            "hf:gpt2",
            "fused optimizer",
            {"calls": (Call((Made(512),), name="aten._fused_adamw_.default"),)},
            "fused already",
        ),
        ("hf:gpt2", "smaller samples", {}, "no option"),
        ("hf:gpt2", "gradient accumulation", {"batch_size": 1}, "one sample"),
        ("hf:gpt2", "gradient accumulation", {"optimizer_steps": 0}, "no optimizer"),
    ],
)
def test_what_makes_no_sense_is_left_out(name: str, remedy: str, facts: dict[str, Any], said: str) -> None:
    """What is on already, what the card cannot do and what there is nothing of is left out with the reason."""
    tried, left_out = planned(name, **facts)
    assert remedy not in tried
    assert said in left_out[remedy]


def test_steps_that_look_at_values_are_not_traced_again() -> None:
    """Tracing with real tensors takes too long to do it for each remedy."""
    tried, left_out = planned("hf:gpt2", kind="real-cpu")
    assert {} == tried
    assert len(left_out) >= 5


def test_the_workload_itself_stays_as_it_is(file: str) -> None:
    """A changed workload has its own key in the cache, and the unchanged one has no changes."""
    ref = workload.parse(file)
    changed = planned(file)[0]["fused optimizer"].ref
    assert () == ref.changes
    assert ref.text == changed.text
    assert msgspec.json.encode(ref) != msgspec.json.encode(changed)


def test_a_reason_does_not_repeat_the_workload() -> None:
    """The name stands in the title of the report."""
    plan = Plan(remedy="fused optimizer", change="fused=1", ref=workload.parse("hf:gpt2?fused"))
    assert "it is so" == reason_of(StepError("hf:gpt2?fused=1: it is so"), plan)
    assert "it is so" == reason_of(StepError("it is so"), plan)
    assert isinstance(LeftOut(remedy="fused optimizer", reason="it is so"), LeftOut)
