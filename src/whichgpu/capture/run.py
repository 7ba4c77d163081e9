"""One workload at one batch size, traced: set up, a few training steps, and what they asked of the GPU."""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch

from whichgpu import trace
from whichgpu.capture.pretend import Pretence
from whichgpu.capture.recorder import Recorder
from whichgpu.capture.refusals import known_refusal
from whichgpu.capture.stage import Stage, seed
from whichgpu.capture.target import Target
from whichgpu.errors import DataDependentError, StepError, WorkloadError, causes

# The first makes the optimizer's state, the second shows it together with activations, the third that it is steady.
STEPS = 3
# Steps that leave the same behind, but for what follows the data.
_ALIKE = 0.1


def capture(
    name: str,
    setup: Any,
    batch_size: int,
    target: Target,
    *,
    kind: Literal["fake", "real-cpu"] = "fake",
    steps: int = STEPS,
    on_progress: Any = None,
    stage: Stage | None = None,
) -> trace.Trace:
    """Trace `setup(device) -> step(batch_size)`; `stage` is the one that the user's file was imported on.

    Raises WorkloadError for the workload's own mistakes (StepError in its step) and DataDependentError where hollow tensors cannot go on.
    """
    started = time.perf_counter()
    stage = stage or Stage(target, kind)
    stage.aim(target)
    recorder, pretence = stage.recorder, stage.pretence
    seed()
    gc.collect()
    gc.disable()  # cycles are collected at step boundaries: the same order of events at every batch size
    try:
        with stage:
            step = _call(name, batch_size, "setup", lambda: setup(torch.device("cuda", 0)))
            if not callable(step):
                raise WorkloadError(
                    f"{name}: setup(device) returned {type(step).__name__}, not a function; end it with `return step`"
                )
            gc.collect()
            parameters = _parameters()
            for number in range(steps):
                if on_progress:
                    on_progress(f"batch size {batch_size}: step {number + 1} of {steps}")
                recorder.begin_step(number)
                result = _call(name, batch_size, "step", lambda: step(batch_size))
                _call(name, batch_size, "step", stage.threads.raise_failure)
                del result
                gc.collect()
            names = _names(recorder, pretence, {**parameters, **_parameters()})
            # deaths from here on are the process ending, not the step
            events = list(recorder.events)
            recorder.alive.clear()
            return _finish(name, batch_size, target, recorder, pretence, events, names, steps, started)
    finally:
        gc.enable()


def _call(name: str, batch_size: int, what: str, function: Any) -> Any:
    try:
        return function()
    except (DataDependentError, WorkloadError, KeyboardInterrupt):
        raise
    except BaseException as error:
        failure = StepError if what == "step" else WorkloadError
        if isinstance(error, SystemExit):
            where = f"{what} called sys.exit({error.code}){_place(error)}"
            raise failure(f"{name}: {where}; have it return instead, or raise an error that says why") from error
        for cause in causes(error):
            if isinstance(cause, DataDependentError):
                raise cause from None
        refusal = known_refusal(error)
        if refusal is not None:
            raise WorkloadError(f"{name}: {refusal}") from error
        at = f" at batch size {batch_size}" if what == "step" else ""
        raise failure(f"{name}: {what} raised{at}: {_last_line(error)}{_place(error)}") from error


def _last_line(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return " ".join(line.strip() for line in lines)[:400]


def _place(error: BaseException) -> str:
    """Innermost frame in the user's own code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "site-packages" not in frame.filename and "/whichgpu/" not in frame.filename:
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def _parameters() -> dict[int, tuple[Any, str, str]]:
    """id -> (tensor, name, category) for every parameter and buffer of every module alive."""
    found: dict[int, tuple[Any, str, str]] = {}
    for module, prefix in _roots():
        for path, parameter in module.named_parameters():
            found.setdefault(id(parameter), (parameter, prefix + path, "weight"))
        for path, buffer in module.named_buffers():
            found.setdefault(id(buffer), (buffer, prefix + path, "buffer"))
    for item in gc.get_objects():
        if type(item) is torch.nn.Parameter and id(item) not in found:
            found[id(item)] = (item, "", "weight")
    return found


def _roots() -> list[tuple[Any, str]]:
    """Every module alive that belongs to no other, and what stands before paths in it, where two have the same paths."""
    modules = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
    children = {id(child) for module in modules for child in module._modules.values() if child is not None}
    roots = [module for module in modules if id(module) not in children]
    parts = [
        name
        for root in roots
        for held in (root._modules, root._parameters, root._buffers)
        for name, value in held.items()
        if value is not None
    ]
    if len(set(parts)) == len(parts):
        return [(root, "") for root in roots]
    kinds = [type(root).__name__ for root in roots]
    numbers = [
        f" {kinds[: index + 1].count(kind)}" if kinds.count(kind) > 1 else "" for index, kind in enumerate(kinds)
    ]
    return [(root, f"{kind}{number}.") for root, kind, number in zip(roots, kinds, numbers, strict=True)]


def _names(
    recorder: Recorder, pretence: Pretence, parameters: dict[int, tuple[Any, str, str]]
) -> dict[int, tuple[str, str]]:
    """Storage index -> (category, name); gradients and optimizer state have the name of their parameter."""
    found: dict[int, tuple[str, str]] = {}
    for tensor, path, category in parameters.values():
        index = recorder.index_of(tensor)
        if index is not None:
            found.setdefault(index, (category, path))
        grad = tensor.grad if category == "weight" else None
        index = recorder.index_of(grad) if grad is not None else None
        if index is not None:
            found.setdefault(index, ("gradient", path))
    by_category = {"gradient": pretence.gradient_storages, "optimizer_state": pretence.state_storages}
    for category, storages in by_category.items():
        for index, parameter in storages.items():
            known = parameters.get(parameter)
            found.setdefault(index, (category, known[1] if known is not None else ""))
    return found


def _finish(
    name: str,
    batch_size: int,
    target: Target,
    recorder: Recorder,
    pretence: Pretence,
    events: list[tuple[int, int]],
    names: dict[int, tuple[str, str]],
    steps: int,
    started: float,
) -> trace.Trace:
    table = _NameTable()
    module_names = _module_paths(recorder)
    ops = tuple(
        trace.Op(
            op_name,
            phase,
            step,
            tuple(map(_tensor, inputs)),
            tuple(map(_tensor, outputs)),
            attributes,
            flops,
            table.add(module_names.get(module, "")) if module != -1 else -1,
            table.add(_short(recorder.source_names[source])) if source != -1 else -1,
        )
        for op_name, phase, step, inputs, outputs, attributes, flops, module, source in recorder.ops
    )
    storages = tuple(
        trace.Storage(size, *_category(index, recorder, names, ops, table))
        for index, size in enumerate(recorder.storage_bytes)
    )
    return trace.Trace(
        workload=name,
        batch_size=batch_size,
        capability="{}.{}".format(*target.capability),
        kind=recorder.kind,
        torch_version=str(torch.__version__),
        steps=steps,
        names=tuple(table.names),
        ops=ops,
        storages=storages,
        events=tuple((int(kind), argument) for kind, argument in events),
        notes=tuple(recorder.notes),
        facts=_facts(recorder, pretence, ops)
        | {"growth_bytes": _growth_bytes(events, storages), "host_work": recorder.host_work.of(steps - 1)},
        seconds=time.perf_counter() - started,
    )


def _facts(recorder: Recorder, pretence: Pretence, ops: tuple[trace.Op, ...]) -> dict[str, Any]:
    dtypes = {tensor.dtype for op in ops for tensor in op.outputs}
    matmul = torch.backends.cuda.matmul.allow_tf32
    return {
        "backward_calls": pretence.backward_calls,
        "optimizer_steps": pretence.optimizer_steps,
        "idle_optimizers": len(pretence.idle_optimizers),
        "compiled": pretence.compiled,
        "same_for": sorted(recorder.same_for),
        "dtypes": sorted(dtypes),
        "tf32_matmul": bool(matmul),
        "tf32_convolution": bool(torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
    }


def _growth_bytes(events: Iterable[tuple[int, int]], storages: Sequence[trace.Storage]) -> int:
    """What each step leaves behind, where all do alike; 0 where the last left no more than the one before it.

    What the first step leaves has the optimizer's state in it, so that the two after it are compared.
    """
    live, ends = 0, []
    for kind, argument in events:
        if kind == trace.EventKind.STEP:
            ends.append(live)  # of set-up, then of each step but the last
        elif kind == trace.EventKind.ALLOC:
            live += storages[argument].bytes
        elif kind == trace.EventKind.FREE:
            live -= storages[argument].bytes
    ends.append(live)
    if len(ends) < 4:
        return 0
    before, last = ends[-2] - ends[-3], ends[-1] - ends[-2]
    return last if last > 0 and abs(last - before) <= _ALIKE * last else 0


def _tensor(raw: tuple[Any, ...]) -> trace.Tensor:
    shape, dtype, stride, storage = raw
    return trace.Tensor(tuple(shape), dtype, tuple(stride), storage)


def _category(
    index: int,
    recorder: Recorder,
    names: dict[int, tuple[str, str]],
    ops: tuple[trace.Op, ...],
    table: _NameTable,
) -> tuple[trace.Category, int, int]:
    op = recorder.storage_op[index]
    if index in names:
        category, path = names[index]
        return category, op, table.add(path) if path else -1  # type: ignore[return-value]
    phase = recorder.storage_phase[index]
    if phase == "setup":
        return "buffer", op, -1
    if phase in ("forward", "other"):
        if all(tensor.storage == -1 for tensor in ops[op].inputs):
            return "input", op, -1
        return ("activation" if index in recorder.held_into_backward else "temporary"), op, -1
    return "temporary", op, -1


def _module_paths(recorder: Recorder) -> dict[int, str]:
    """id of a module that was called -> its path in the outermost module that it belongs to."""
    found: dict[int, str] = {}
    for root, prefix in _roots():
        for path, child in root.named_modules():
            found.setdefault(id(child), f"{prefix}{path}".rstrip(".") or type(root).__name__)
    for number, module in recorder.modules.items():
        found.setdefault(number, type(module).__name__)
    return found


def _short(source: str) -> str:
    path, _, line = source.rpartition(":")
    relative = os.path.relpath(path)
    if "site-packages/" in path:
        return f"{path.split('site-packages/')[1]}:{line}"
    return f"{relative if not relative.startswith('..') else path}:{line}"


class _NameTable:
    """Strings, each stored once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def add(self, name: str) -> int:
        """Index of the string."""
        if name not in self._index:
            self._index[name] = len(self.names)
            self.names.append(name)
        return self._index[name]
