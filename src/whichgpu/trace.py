"""The Trace: what a training step asks of a GPU, recorded once and read by every predictor.

A trace belongs to one workload, one batch size and one capability class (the dispatch rules of a family of
cards). It holds facts only: the operators in the order in which they ran, the storages they made, and the
order in which storages were born and died. Nothing in it is predicted, and it knows no predictor.

Memory that a kernel takes and gives back inside one operator (a workspace) is not in the trace: it follows
from the operator's shapes by the rules in `workspaces`.

FLOPs follow the convention of `torch.utils.flop_counter`: a multiply-add counts as two.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import msgspec

from whichgpu.errors import TraceError

FORMAT = 2  # 2: operators of the backward pass have a module and a source too; gradients and optimizer state a name

_LEVEL = 1  # of compression: quick, and an eighth larger than the best

Phase = Literal["setup", "forward", "backward", "optimizer", "other"]
# What a storage holds. "input" is data handed to the step; "temporary" died before its phase was over;
# "workspace" never occurs in a trace, only in breakdowns.
Category = Literal["weight", "buffer", "gradient", "optimizer_state", "activation", "input", "temporary"]


class EventKind(IntEnum):
    """What an entry of `Trace.events` says."""

    OP = 0  # argument: index into ops; the operator begins, and the allocations up to the next OP are its own
    ALLOC = 1  # argument: index into storages
    FREE = 2  # argument: index into storages
    STEP = 3  # argument: step number from 0; that training step begins (before it: setup)


class Tensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tensor argument or result of an operator."""

    shape: tuple[int, ...]
    dtype: str  # torch's name without the prefix: "float32", "bfloat16", "int64", ...
    stride: tuple[int, ...] = ()  # empty when contiguous
    storage: int = -1  # index into Trace.storages, -1 for memory of the host


class Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One operator as the dispatcher ran it on the GPU."""

    name: str  # overload name: "aten.convolution.default"
    phase: Phase
    step: int  # -1 in setup
    inputs: tuple[Tensor, ...]  # in argument order, tensor lists flattened
    outputs: tuple[Tensor, ...]
    attributes: dict[str, Any]  # arguments that are not tensors, by schema name, JSON-like values
    flops: int = 0
    # Where it comes from, as indices into Trace.names; an operator of the backward pass has those of the operator whose
    # gradient it computes, where that is known.
    module: int = -1  # path of the module that ran it ("encoder.layer.0.output")
    source: int = -1  # "file.py:12": the innermost line that belongs neither to torch nor to whichgpu


class Storage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One allocation on the GPU, as PyTorch requests it (not rounded)."""

    bytes: int
    category: Category
    op: int  # index of the operator that made it
    name: int = -1  # index into Trace.names: of the parameter or buffer that it is, or is the gradient or state of


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded run: set-up, then `steps` training steps, at one batch size."""

    format: int = FORMAT
    workload: str
    batch_size: int
    capability: str  # capability class of the target: "9.0"
    kind: Literal["fake", "real-cpu"]
    torch_version: str
    steps: int
    names: tuple[str, ...]
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    events: tuple[tuple[int, int], ...]  # (EventKind, argument)
    notes: tuple[str, ...] = ()  # plain caveats met while tracing, for the user
    facts: dict[str, Any] = {}  # what else was seen: {"optimizer_stepped": true, "dtypes": [...], ...}
    seconds: float = 0.0  # wall time the tracing took


def save(trace: Trace, path: Path) -> None:
    """Write a trace to `path` in one atomic step (MessagePack, deflated)."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(zlib.compress(msgspec.msgpack.encode(trace), _LEVEL))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: Path) -> Trace:
    """Read a trace; raises TraceError when it is damaged, inconsistent or of another format."""
    try:
        packed = path.read_bytes()
        if packed[:2] != zlib.compress(b"", _LEVEL)[:2]:  # zlib itself takes the header of any level
            raise zlib.error("another header")
        raw = zlib.decompress(packed)
        head = msgspec.msgpack.decode(raw, type=_Head)
    except (OSError, zlib.error, msgspec.MsgspecError) as error:
        raise TraceError(f"{path}: not a readable trace ({error}); delete it and trace again") from error
    if head.format != FORMAT:
        raise TraceError(f"{path}: trace format {head.format}, this version reads {FORMAT}; trace again")
    try:
        trace = msgspec.msgpack.decode(raw, type=Trace)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}: not a readable trace ({error}); delete it and trace again") from error
    validate(trace)
    return trace


def validate(trace: Trace) -> None:
    """Raise TraceError unless every storage is born once, dies at most once and after its birth, and numbers
    of operators, storages and names exist."""
    state = [0] * len(trace.storages)
    for kind, argument in trace.events:
        if kind == EventKind.ALLOC:
            if not 0 <= argument < len(state) or state[argument] != 0:
                raise TraceError(f"trace of {trace.workload}: storage {argument} is born twice or unknown")
            state[argument] = 1
        elif kind == EventKind.FREE:
            if not 0 <= argument < len(state) or state[argument] != 1:
                raise TraceError(f"trace of {trace.workload}: storage {argument} dies before it is born")
            state[argument] = 2
        elif kind == EventKind.OP:
            if not 0 <= argument < len(trace.ops):
                raise TraceError(f"trace of {trace.workload}: unknown operator {argument}")
        elif kind != EventKind.STEP:
            raise TraceError(f"trace of {trace.workload}: unknown event {kind}")
    if 0 in state:
        raise TraceError(f"trace of {trace.workload}: storage {state.index(0)} is never born")
    _validate_references(trace)


def _validate_references(trace: Trace) -> None:
    storages, names = len(trace.storages), len(trace.names)
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            if not -1 <= tensor.storage < storages:
                raise TraceError(f"trace of {trace.workload}: {op.name} has unknown storage {tensor.storage}")
        for name in (op.module, op.source):
            if not -1 <= name < names:
                raise TraceError(f"trace of {trace.workload}: {op.name} has unknown name {name}")
    for storage in trace.storages:
        if storage.bytes < 0 or not -1 <= storage.name < names or not -1 <= storage.op < len(trace.ops):
            raise TraceError(f"trace of {trace.workload}: a storage has unknown operator, name or size ({storage})")


class _Head(msgspec.Struct):
    format: int
