"""What usually helps when memory runs short, as changed workloads to trace, and the ones that cannot be traced.

A remedy is tried by tracing the changed step, never by a rule of thumb. Workloads of the model libraries and the zoo
change by their own options; other steps are changed from outside (`capture/changes.py`). What cannot be tried by itself
is left out, with the reason. Nothing here traces or predicts: see `api.explain`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from whichgpu.errors import WhichGpuError, WorkloadError
from whichgpu.intervals import Verdict
from whichgpu.trace import Trace
from whichgpu.workload import WorkloadRef, with_options

RemedyName = Literal[
    "bf16 autocast",
    "activation checkpointing",
    "fused optimizer",
    "8-bit optimizer",
    "smaller samples",
    "gradient accumulation",
    "several together",
]
_HALF = {"float16", "bfloat16"}
_OWN_STEP = ("file", "module")  # schemes without options


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What one change would save, from a trace of the changed step."""

    remedy: RemedyName
    change: str  # what was done: "precision=bf16"
    peak_reserved_bytes: int  # with as much memory as it wants, where it does not fit
    peak_allocated_bytes: int
    saved_bytes: int  # of the reserved peak; negative when the change takes more
    verdict: Verdict | None  # None when no card was named
    max_batch_size: int | None  # likely fits; None without a card, or where it was not worked out
    max_batch_size_safe: int | None  # fits even at the high end
    max_batch_size_at_least: bool = False  # the search ended at its upper end: larger ones may fit


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy that was not tried, and why."""

    remedy: RemedyName
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy to try: the changed workload, and how many of its batches make one of the batch that is asked about."""

    remedy: RemedyName
    change: str
    ref: WorkloadRef
    batches: int = 1

    def batch_size(self, asked: int) -> int:
        """The batch size of the changed step that stands for the one asked about."""
        return -(-asked // self.batches)

    def whole(self, batch_size: int | None) -> int | None:
        """The batch that so many samples of the changed step make; None stays unknown."""
        return self.batches * batch_size if batch_size is not None else None


def plans(ref: WorkloadRef, trace: Trace, batch_size: int, no_bfloat16: str | None) -> tuple[list[Plan], list[LeftOut]]:
    """The remedies to try for a workload and those left out, in the order of `RemedyName`.

    `trace` is one of the unchanged step; `no_bfloat16` says why the card cannot compute in bfloat16, None if it can.
    """
    if trace.kind != "fake":
        reason = "the step looks at computed values, and tracing it again with real tensors would take too long"
        tried: list[RemedyName] = ["bf16 autocast", "activation checkpointing", "fused optimizer", "smaller samples"]
        return [], [LeftOut(remedy=name, reason=reason) for name in (*tried, "gradient accumulation")]
    found = [
        _bf16(ref, trace, no_bfloat16),
        _checkpoint(ref),
        _fused(ref, trace),
        LeftOut(remedy="8-bit optimizer", reason="its kernels are no part of PyTorch and cannot be traced"),
        _smaller(ref, trace),
        _accumulate(ref, trace, batch_size),
    ]
    return [one for one in found if isinstance(one, Plan)], [one for one in found if isinstance(one, LeftOut)]


def reason_of(error: WhichGpuError, plan: Plan) -> str:
    """Why a remedy could not be tried, from the error that its trace raised, without the workload's name."""
    words = str(error).removeprefix(f"{plan.ref.text}: ")
    return words.removeprefix(f"{plan.ref.text} cannot be loaded: ")


def _bf16(ref: WorkloadRef, trace: Trace, no_bfloat16: str | None) -> Plan | LeftOut:
    name: RemedyName = "bf16 autocast"
    if _HALF & set(trace.facts.get("dtypes", ())):
        return LeftOut(remedy=name, reason="the step computes in half precision already")
    if no_bfloat16 is not None:
        return LeftOut(remedy=name, reason=no_bfloat16)
    return _plan(name, ref, {"precision": "bf16"}, "bf16", "torch.autocast around forward pass and loss")


def _checkpoint(ref: WorkloadRef) -> Plan | LeftOut:
    name: RemedyName = "activation checkpointing"
    if ref.options.get("checkpoint", "0").lower() in ("1", "true", "on"):
        return LeftOut(remedy=name, reason="it is on already")
    return _plan(name, ref, {"checkpoint": "1"}, "checkpoint", "the model's own switch for it")


def _fused(ref: WorkloadRef, trace: Trace) -> Plan | LeftOut:
    name: RemedyName = "fused optimizer"
    if not trace.facts.get("optimizer_steps", 1):
        return LeftOut(remedy=name, reason="no optimizer of torch.optim steps")
    if any("._fused_" in op.name for op in trace.ops):
        return LeftOut(remedy=name, reason="the optimizer is fused already")
    options = {"fused": "1"} if "foreach" not in ref.options else {"fused": "1", "foreach": "0"}
    return _plan(name, ref, options, "fused", "fused=True for the optimizer")


def _smaller(ref: WorkloadRef, trace: Trace) -> Plan | LeftOut:
    name: RemedyName = "smaller samples"
    if ref.scheme in _OWN_STEP:
        return LeftOut(remedy=name, reason="the step makes its samples itself; make them smaller there")
    sizes = {key: value // 2 for key, value in trace.facts.get("sizes", {}).items() if value >= 2}
    if not sizes:
        return LeftOut(remedy=name, reason="the workload has no option for the size of a sample")
    return _plan(name, ref, {key: str(value) for key, value in sizes.items()}, "", "")


def _accumulate(ref: WorkloadRef, trace: Trace, batch_size: int) -> Plan | LeftOut:
    name: RemedyName = "gradient accumulation"
    if batch_size < 2:
        return LeftOut(remedy=name, reason="a batch of one sample cannot be divided")
    if not trace.facts.get("optimizer_steps", 1):
        return LeftOut(remedy=name, reason="no optimizer of torch.optim steps")
    changed = replace(ref, changes=(*ref.changes, "accumulate"))
    half = -(-batch_size // 2)
    return Plan(remedy=name, change=f"2 micro batches of {half}", ref=changed, batches=2)


def _plan(name: RemedyName, ref: WorkloadRef, options: dict[str, str], change: str, words: str) -> Plan | LeftOut:
    """By options where the workload has them, by a change from outside where it has none."""
    if ref.scheme in _OWN_STEP:
        return Plan(remedy=name, change=words, ref=replace(ref, changes=(*ref.changes, change)))
    try:
        changed = with_options(ref, options)
    except WorkloadError as error:
        return LeftOut(remedy=name, reason=str(error))
    return Plan(remedy=name, change=" ".join(f"{key}={value}" for key, value in options.items()), ref=changed)
