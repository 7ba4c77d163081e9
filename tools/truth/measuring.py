"""What one process measures of one training step: peaks, the allocator's history, memory by operator.

Every function here runs in a process of its own that has not touched CUDA before. A step runs `steps(case)` times:
the first makes gradients and optimizer state, the second meets them, the third is the steady state; peaks are
read after each step and never reset, so the last one is the peak of the run. A GradScaler leaves steps of the optimizer
out until its scale is low enough, so that the first three may be without any. On a CPU the same protocol runs
without figures, which proves the machinery and nothing else.
"""

from __future__ import annotations

import json
import lzma
import statistics
import time
from typing import Any

import torch

from truth import Case

STEPS, SCALED_STEPS = 3, 12  # the scale is halved from 65536 with each step that is left out
TIMED_STEPS = 5
# operators that only take memory: what they take belongs to the operator that calls them
FACTORIES = ("aten::empty", "aten::resize_", "aten::new_empty", "aten::zeros", "aten::new_zeros")
# one letter for each kind of event kept; the allocator's other entries repeat what these say
EVENT_LETTERS = {"alloc": "a", "free_completed": "f", "segment_alloc": "S", "segment_free": "R", "oom": "o"}
STATISTICS = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "peak_requested_bytes": "requested_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_inactive_split_bytes": "inactive_split_bytes.all.peak",
    "peak_reserved_small_bytes": "reserved_bytes.small_pool.peak",
    "peak_reserved_large_bytes": "reserved_bytes.large_pool.peak",
    "peak_allocated_small_bytes": "allocated_bytes.small_pool.peak",
    "peak_allocated_large_bytes": "allocated_bytes.large_pool.peak",
    "segments_small_peak": "segment.small_pool.peak",
    "segments_large_peak": "segment.large_pool.peak",
    "allocations": "allocation.all.allocated",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


def steps(case: Case) -> int:
    """How often a step runs."""
    return SCALED_STEPS if case.precision == "fp16" else STEPS


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _outside_allocator_bytes() -> int:
    """Device memory in use beyond PyTorch's own; the context, while nothing else runs there."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def limit_allocator(limit_bytes: int) -> int:
    """Limits this process's caching allocator and answers the limit that it really works with, in bytes."""
    total = torch.cuda.mem_get_info()[1]
    fraction = limit_bytes / total
    while int(fraction * total) < limit_bytes:
        fraction *= 1 + 2**-52
    torch.cuda.set_per_process_memory_fraction(fraction)
    return int(fraction * total)


def _history(device: torch.device) -> list[dict[str, Any]]:
    return torch.cuda.memory._snapshot()["device_traces"][device.index or 0]


def _encode(trace: list[dict[str, Any]], boundaries: list[int]) -> dict[str, Any]:
    """The history as a string of letters and a list of numbers.

    alloc: bytes asked for. free: how many allocations ago its block was allocated (0: the latest). segment
    alloc and oom: bytes. segment free: how many segments ago it was made. `boundaries` count events: the
    first is the end of setup, then the end of each step.
    """
    letters: list[str] = []
    numbers: list[int] = []
    blocks: dict[int, int] = {}
    segments: dict[int, int] = {}
    marks: list[int] = []
    made, taken, streams = 0, 0, set()
    for position, entry in enumerate(trace):
        while len(marks) < len(boundaries) and position >= boundaries[len(marks)]:
            marks.append(len(letters))
        letter = EVENT_LETTERS.get(entry["action"])
        if letter is None:
            continue
        address = entry.get("addr", 0)
        streams.add(entry.get("stream", 0))
        if letter == "a":
            blocks[address] = made
            made += 1
            number = entry["size"]
        elif letter == "f":
            number = made - 1 - blocks.pop(address, made)
        elif letter == "S":
            segments[address] = taken
            taken += 1
            number = entry["size"]
        elif letter == "R":
            number = taken - 1 - segments.pop(address, taken)
        else:
            number = entry["size"]
        letters.append(letter)
        numbers.append(number)
    marks += [len(letters)] * (len(boundaries) - len(marks))
    return {"letters": "".join(letters), "numbers": numbers, "boundaries": marks, "streams": len(streams)}


def _packed(row: dict[str, Any]) -> bytes:
    return lzma.compress((json.dumps(row, separators=(",", ":")) + "\n").encode(), preset=6)


def _figures(after: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    statistics_now = torch.cuda.memory_stats()
    row: dict[str, Any] = {key: statistics_now.get(name) for key, name in STATISTICS.items()}
    names = ("allocated", "reserved", "peak_allocated", "peak_reserved")
    for index, name in enumerate(names):
        row[f"{name}_after_bytes"] = [state[index] for state in after]
    row["init_allocated_bytes"] = after[0][0]
    return row


def _state() -> tuple[int, int, int, int]:
    return (
        torch.cuda.memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
    )


def measure(
    case: Case, batch_size: int, *, device: torch.device, tiny: bool, events: bool, alone: bool
) -> tuple[dict[str, Any], bytes | None]:
    """Peaks of one step at one batch size, and its packed allocator history if asked for.

    `alone`: nothing else runs on the GPU, so step times and the context's size mean something.
    """
    cuda = device.type == "cuda"
    row: dict[str, Any] = {}
    boundaries: list[int] = []
    after: list[tuple[int, int, int, int]] = []

    def mark() -> None:
        _synchronize(device)
        if cuda:
            after.append(_state())
            if events:
                boundaries.append(len(_history(device)))

    if cuda:
        torch.cuda.init()
        if alone:
            torch.zeros(1, device=device)
            row["context_start_bytes"] = _outside_allocator_bytes()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        if events:
            torch.cuda.memory._record_memory_history(
                enabled="all", context=None, stacks="python", max_entries=10_000_000
            )
    start = time.perf_counter()
    step = case.setup(tiny=tiny)(device)
    mark()
    row["setup_s"] = round(time.perf_counter() - start, 3)
    start = time.perf_counter()
    for _ in range(steps(case)):
        step(batch_size)
        mark()
    row["steps_s"] = round(time.perf_counter() - start, 3)
    blob = None
    if cuda:
        row.update(_figures(after))
        if events:
            encoded = _encode(_history(device), boundaries)
            row["events"] = len(encoded["letters"])
            blob = _packed({"name": case.name, "batch_size": batch_size, **encoded})
            torch.cuda.memory._record_memory_history(enabled=None)
        if alone:
            row["context_end_bytes"] = _outside_allocator_bytes()
    if alone:
        row.update(_step_times(step, batch_size, device))
    return row, blob


def _step_times(step: Any, batch_size: int, device: torch.device) -> dict[str, Any]:
    times = []
    for _ in range(TIMED_STEPS):
        _synchronize(device)
        start = time.perf_counter()
        step(batch_size)
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return {"median_step_s": statistics.median(times), "step_times_s": [round(value, 6) for value in times]}


def attempt(
    case: Case, batch_size: int, *, device: torch.device, tiny: bool, limit_bytes: int | None
) -> dict[str, Any]:
    """Whether that many steps run under an allocator limit; running out of memory raises."""
    row: dict[str, Any] = {}
    if device.type == "cuda" and limit_bytes is not None:
        row["allowed_bytes"] = limit_allocator(limit_bytes)
    step = case.setup(tiny=tiny)(device)
    for _ in range(steps(case)):
        step(batch_size)
        _synchronize(device)
    if device.type == "cuda":
        now = torch.cuda.memory_stats()
        row.update({key: now.get(STATISTICS[key]) for key in _ATTEMPT_KEYS})
    elif limit_bytes is not None and batch_size > 5:
        raise MemoryError("out of memory, as the CPU rehearsal pretends it above batch 5")
    return row


_ATTEMPT_KEYS = ("peak_allocated_bytes", "peak_reserved_bytes", "alloc_retries", "ooms")


def operators(case: Case, batch_size: int, *, device: torch.device, tiny: bool) -> tuple[dict[str, Any], bytes | None]:
    """Which operator took and gave back how many bytes in the second step, in order.

    Packed: `kinds` is a table of distinct (operator, enclosing operators, inputs, byte changes); `order` is
    the step as indices into it. Byte changes outside every operator stand under an empty name: the autograd
    engine dropping what it had saved, or Python dropping a tensor.
    Bytes are those of the allocator's blocks, so rounded.
    """
    step = case.setup(tiny=tiny)(device)
    step(batch_size)
    _synchronize(device)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    ) as profile:
        step(batch_size)
        _synchronize(device)
    roots = profile.profiler.kineto_results.experimental_event_tree()
    kinds, order = _by_operator(roots, device.type)
    packed = _packed({"name": case.name, "batch_size": batch_size, "kinds": kinds, "order": order})
    return {"operator_kinds": len(kinds), "operator_rows": len(order)}, packed


def _by_operator(roots: Any, device_type: str) -> tuple[list[dict[str, Any]], list[int]]:
    changes: list[tuple[int, int, Any]] = []  # time, bytes, number of the operator around it
    parents: dict[int, tuple[Any, tuple[str, ...]]] = {}
    waiting: list[tuple[Any, int | None]] = [(root, None) for root in roots]
    while waiting:
        node, number = waiting.pop()
        kind = type(node.typed[1]).__name__
        if kind.endswith("_Allocation"):
            if str(node.extra_fields.device).startswith(device_type):
                changes.append((node.start_time_ns, node.extra_fields.alloc_size, number))
            continue
        if kind.endswith("_TorchOp") and not (number is not None and node.name.startswith(FACTORIES)):
            outer = () if number is None else (*parents[number][1], parents[number][0].name)
            number = len(parents)
            parents[number] = (node, outer)
        waiting += [(child, number) for child in node.children]
    changes.sort(key=lambda change: change[0])
    return _kinds_and_order(changes, parents)


def _kinds_and_order(changes: Any, parents: Any) -> tuple[list[dict[str, Any]], list[int]]:
    groups: dict[Any, list[int]] = {}
    outside = 0
    previous: Any = object()
    for _, size, key in changes:
        if key is None and previous is not None:
            outside += 1
        previous = key
        groups.setdefault(("", outside) if key is None else key, []).append(size)
    kinds: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    order: list[int] = []
    described: dict[Any, dict[str, Any]] = {
        key: {"op": operator.name, "in": list(path), "inputs": _inputs(operator.extra_fields.inputs)}
        for key, (operator, path) in parents.items()
        if key in groups
    }
    for key, sizes in groups.items():
        kind = {**described.get(key, {"op": ""}), "bytes": sizes}
        text = json.dumps(kind, sort_keys=True)
        if text not in numbers:
            numbers[text] = len(kinds)
            kinds.append(kind)
        order.append(numbers[text])
    return kinds, order


def _inputs(values: Any) -> list[Any]:
    described: list[Any] = []
    for value in values:
        if hasattr(value, "sizes"):
            row = [str(value.dtype).removeprefix("torch."), list(value.sizes)]
            if list(value.strides) != _contiguous(value.sizes):
                row.append(list(value.strides))
            described.append(row)
        elif isinstance(value, (list, tuple)):
            described.append({"list": _inputs(value)})
        elif value is None or isinstance(value, (bool, int, float, str)):
            described.append(value)
        else:
            described.append(str(value))
    return described


def _contiguous(sizes: Any) -> list[int]:
    strides, step = [], 1
    for size in reversed(list(sizes)):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
