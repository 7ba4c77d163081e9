"""Where the memory of a training step goes: its timeline, and what holds the memory at the peak.

The records that `explain` answers with, and how they are made from a trace and its replay through the allocator. Bytes
are those of the allocator's blocks, so that the holders add up to the allocated peak to the byte.

Storages that come from the same module, operator and line are one holder. Numbers in the paths of modules are taken for
those of repeated layers ("encoder.layer.3.output"): holders that differ in nothing else are folded into one
("encoder.layer.*.output"), which says how many it stands for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from whichgpu.advice import Basis, TraceInfo
from whichgpu.allocator import DEFAULT_CONFIG, CachingAllocator, drive
from whichgpu.intervals import Verdict
from whichgpu.memory import MemoryModel
from whichgpu.module_paths import folded, starred
from whichgpu.program import Program
from whichgpu.remedies import LeftOut, Remedy
from whichgpu.time_explanation import StepTimes
from whichgpu.trace import Trace

HOLDERS = 10  # how many are listed; the rest is summed up

HeldCategory = Literal[
    "weight", "buffer", "gradient", "optimizer_state", "activation", "input", "temporary", "workspace"
]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of one step, with the allocated memory at its borders and within."""

    step: int | None  # from 0; None in the set-up
    phase: str
    start_bytes: int
    most_bytes: int
    end_bytes: int
    has_peak: bool  # the allocated peak of the whole run lies in it


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What holds memory at the peak: all storages that one operator made at one line, in one module or repeated ones."""

    category: HeldCategory
    bytes: int
    storages: int
    op: str  # the operator that made them; for a workspace the operator that took it
    module: str | None  # its path, with * for the numbers of repeated layers; None outside of modules
    modules: int  # how many modules that path stands for; 0 outside of modules
    source: str | None  # "file.py:12"; None where no line of the user's or a library's is known


class Others(msgspec.Struct, frozen=True, kw_only=True):
    """What holds the rest of the peak."""

    bytes: int
    storages: int
    holders: int  # into how many it would be divided


class ExplainReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu explain`."""

    workload: str
    batch_size: int
    basis: Basis
    trace: TraceInfo
    gpu: str | None  # None when no card was named: then memory is without limit
    memory_bytes: int | None
    context_bytes: int | None
    verdict: Verdict | None
    max_batch_size: int | None  # likely fits; None without a card
    max_batch_size_safe: int | None  # fits even at the high end
    max_batch_size_at_least: bool = False  # the search ended at its upper end: larger ones may fit
    peak_reserved_bytes: int  # the likely one; with as much memory as it wants, where that does not fit
    peak_allocated_bytes: int
    peak_step: int | None
    peak_phase: str
    peak_op: str
    timeline: tuple[Span, ...]  # set-up, first step, and the step of the peak or the last one
    holders: tuple[Holder, ...]  # the largest at the allocated peak; with `others` they add up to it
    others: Others
    remedies: tuple[Remedy, ...]
    left_out: tuple[LeftOut, ...]
    snapshot: str | None  # the file that was written
    notes: tuple[str, ...] = ()
    time: StepTimes | None = None  # on the card; None without one, or where no speed is predicted
    time_missing: str = ""  # why it is unknown on the card
    roofline: str | None = None  # the file that was written
    batch_size_is_default: bool = False  # none was asked about: it is the workload's own, or whichgpu's


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay says of a step at one batch size."""

    peak_allocated_bytes: int
    peak_step: int | None
    peak_phase: str
    peak_op: str
    timeline: tuple[Span, ...]
    holders: tuple[Holder, ...]
    others: Others


def explained(model: MemoryModel, trace: Trace, batch_size: int, limit_bytes: int | None) -> Explanation:
    """Timeline and holders of a step at a batch size under a limit (None: as much memory as it wants).

    `trace` is one with the operators and storages that the model's program names; sizes are the program's.
    """
    program = model.program(batch_size)
    allocated, held = _walked(program, model.replay(batch_size, limit_bytes).peak_at, limit_bytes)
    at = model.replay(batch_size, limit_bytes).peak_at
    op = _op_at(program, at) if at is not None else None
    holders = grouped(_pieces(program, trace, held, op))
    rest = holders[HOLDERS:]
    return Explanation(
        peak_allocated_bytes=max(allocated, default=0),
        peak_step=_step(trace, op),
        peak_phase=trace.ops[op].phase if op is not None else "",
        peak_op=trace.ops[op].name if op is not None else "",
        timeline=_timeline(program, trace, allocated, at),
        holders=tuple(holders[:HOLDERS]),
        others=Others(
            bytes=sum(holder.bytes for holder in rest),
            storages=sum(holder.storages for holder in rest),
            holders=len(rest),
        ),
    )


def _walked(
    program: Program, peak_at: int | None, limit_bytes: int | None
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Allocated bytes after each instruction, and (slot, bytes, place of birth) of the blocks that are held at the peak."""
    allocator = CachingAllocator(limit_bytes, DEFAULT_CONFIG)
    born: dict[int, int] = {}
    allocated: list[int] = []
    held: list[tuple[int, int, int]] = []
    steps = drive(allocator, program.instructions, program.sizes)
    for place, (instruction, live) in enumerate(zip(program.instructions, steps, strict=True)):
        if instruction > 0:
            born[instruction - 1] = place
        allocated.append(allocator.allocated_bytes)
        if place == peak_at:
            held = [(slot, block.size, born[slot]) for slot, block in live.items() if block.size]
    return allocated, held


def _op_at(program: Program, place: int) -> int | None:
    """The operator that an instruction belongs to."""
    index = bisect_right(program.op_at, place) - 1
    return program.op_index[index] if index >= 0 else None


def _step(trace: Trace, op: int | None) -> int | None:
    return trace.ops[op].step if op is not None and trace.ops[op].step >= 0 else None


# ---- the timeline -----------------------------------------------------------------------------------


def _timeline(program: Program, trace: Trace, allocated: Sequence[int], peak_at: int | None) -> tuple[Span, ...]:
    """Set-up, the first step, and the step of the peak, or the last one where the peak is in one of these."""
    spans = [_span(*run, allocated, peak_at) for run in _runs(program, trace, len(allocated))]
    spans = [span for span in spans if not _nothing_happens(span)]
    steps = {span.step for span in spans if span.step is not None}
    late = next((span.step for span in spans if span.has_peak and span.step), max(steps, default=0))
    return tuple(span for span in spans if span.step in (None, 0, late))


def _runs(program: Program, trace: Trace, end: int) -> Iterable[tuple[int | None, str, int, int]]:
    """Step, phase, and first and last + 1 instruction of each phase, in order."""
    starts: list[tuple[int, int | None, str]] = [(0, None, "setup")]
    for place, index in zip(program.op_at, program.op_index, strict=True):
        run = (_step(trace, index), str(trace.ops[index].phase))
        if run != starts[-1][1:]:
            starts.append((place, *run))
    starts.append((end, None, ""))
    for (start, step, phase), (stop, *_) in pairwise(starts):
        if stop > start:
            yield step, phase, start, stop


def _span(step: int | None, phase: str, start: int, stop: int, allocated: Sequence[int], peak_at: int | None) -> Span:
    before = allocated[start - 1] if start else 0
    return Span(
        step=step,
        phase=phase,
        start_bytes=before,
        most_bytes=max(before, *allocated[start:stop]),
        end_bytes=allocated[stop - 1],
        has_peak=peak_at is not None and start <= peak_at < stop,
    )


def _nothing_happens(span: Span) -> bool:
    """Bookkeeping between phases, such as setting gradients to None, that leaves memory as it is."""
    return span.phase == "other" and span.start_bytes == span.most_bytes == span.end_bytes and not span.has_peak


# ---- holders ----------------------------------------------------------------------------------------


class Piece(msgspec.Struct, frozen=True):
    """One storage at the peak, and where it comes from."""

    category: HeldCategory
    bytes: int
    op: str
    module: str | None
    source: str | None


def _pieces(
    program: Program, trace: Trace, held: Iterable[tuple[int, int, int]], peak_op: int | None
) -> Iterable[Piece]:
    for slot, size, born in held:
        stored = trace.storages[slot] if slot < program.storages else None
        op = stored.op if stored is not None else _op_at(program, born)
        made = trace.ops[op] if op is not None and op >= 0 else None
        module = _name(trace, made.module) if made is not None else None
        if stored is not None and stored.name >= 0:  # what belongs to a parameter belongs to its module
            module = trace.names[stored.name].rpartition(".")[0] or None
        source = _name(trace, made.source) if made is not None else None
        if stored is None and op != peak_op:
            module = source = None  # a library keeps it since its first use, for all that come later
        yield Piece(
            stored.category if stored is not None else "workspace",
            size,
            made.name if made is not None else "",
            module,
            source,
        )


def _name(trace: Trace, index: int) -> str | None:
    return trace.names[index] if index >= 0 else None


def grouped(pieces: Iterable[Piece]) -> list[Holder]:
    """Pieces of the same category, operator, line and (folded) module as one holder; the largest first."""
    groups: dict[tuple[str, str, str, str | None], list[Piece]] = defaultdict(list)
    for piece in pieces:
        groups[piece.category, piece.op, starred(piece.module or ""), piece.source].append(piece)
    holders = [_holder(group) for group in groups.values()]
    return sorted(holders, key=lambda held: (-held.bytes, held.category, held.op, held.module or "", held.source or ""))


def _holder(group: Sequence[Piece]) -> Holder:
    first = group[0]
    paths = {piece.module for piece in group if piece.module is not None}
    return Holder(
        category=first.category,
        bytes=sum(piece.bytes for piece in group),
        storages=len(group),
        op=first.op,
        module=folded(paths) if paths else None,
        modules=len(paths),
        source=first.source,
    )
