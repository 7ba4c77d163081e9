"""Records, operator by operator, what a piece of PyTorch code takes from and gives back to the GPU's allocator.

How: a dispatch mode sees each operator as the dispatcher is about to run it; before and after it, a tensor of a
size nobody else asks for is allocated, so that the allocator's own history (`torch.cuda.memory._snapshot`) can be
cut at the operators' borders. Sizes in that history are the bytes PyTorch requested, before rounding.

A row is one operator:
  n   overload name; q the phase the point names (optional)
  a   arguments by schema name: a tensor is {"t": [shape, dtype, stride or null when contiguous]}
  e   allocator events in order: bytes > 0 is an allocation, -k frees the operator's own k-th allocation
      (k from 1), 0 frees memory that was there before the operator
  o   outputs: [shape, dtype, stride or null, k], k the own allocation that holds it, 0 when none does
  first  1 when seen in the first of two runs and the second run differed
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

START, STEP = 900_001, 2  # marker sizes: odd and below 1 MiB, so they live in the small pool
Row = dict[str, Any]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(value: Any) -> Any:
    """An argument as plain JSON."""
    if isinstance(value, torch.Tensor):
        if value.layout == torch.sparse_coo:
            return {"sparse": [list(value.shape), dtype_name(value.dtype), value._nnz()]}
        stride = None if value.is_contiguous() else list(value.stride())
        return {"t": [list(value.shape), dtype_name(value.dtype), stride]}
    if isinstance(value, (list, tuple)):
        return [describe(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return str(value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.sparse_coo:
            return [value._indices(), value._values()]
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for entry in value for tensor in tensors_in(entry)]
    return []


class Recorder(TorchDispatchMode):
    """Use as a context manager around the code; then `rows()`."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.on_gpu = device == "cuda"
        self.ops: list[tuple[Row, list[tuple[Any, ...]]]] = []
        self.marker = START

    def __enter__(self) -> Recorder:
        if self.on_gpu:
            torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=500_000)
        self._mark()
        super().__enter__()
        return self

    def _mark(self) -> int:
        self.marker += STEP
        if self.on_gpu:
            torch.empty(self.marker, dtype=torch.uint8, device="cuda")
        return self.marker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = [argument.name for argument in func._schema.arguments]
        arguments = {name: describe(value) for name, value in zip(names, args, strict=False)}
        arguments |= {name: describe(value) for name, value in kwargs.items()}
        row: Row = {"n": str(func), "a": arguments}
        outputs: list[tuple[Any, ...]] = []
        begin = self._mark()
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            self.ops.append(({**row, "m": (begin, self._mark())}, outputs))
            raise
        row["m"] = (begin, self._mark())
        for tensor in tensors_in(out):
            if tensor.device.type == "cuda" or not self.on_gpu:
                stride = None if tensor.is_contiguous() else list(tensor.stride())
                pointer = 0 if tensor.device.type == "meta" else tensor.untyped_storage().data_ptr()
                outputs.append((list(tensor.shape), dtype_name(tensor.dtype), stride, pointer))
        self.ops.append((row, outputs))
        return out

    def rows(self) -> list[Row]:
        """The operators that ran, each with its events; closes the recording."""
        slices = self._slices() if self.on_gpu else {}
        rows = []
        for recorded, outputs in self.ops:
            row = dict(recorded)
            begin, _ = row.pop("m")
            events, holders = _encode(slices.get(begin, []))
            row["e"] = events if begin in slices or not self.on_gpu else None
            row["o"] = [[shape, dtype, stride, holders.get(pointer, 0)] for shape, dtype, stride, pointer in outputs]
            rows.append(row)
            after, _ = _encode(slices.get(begin + STEP, []))
            if any(size > 0 for size in after):
                rows.append({"n": "between", "a": {}, "e": after, "o": []})
        return rows

    def _slices(self) -> dict[int, list[tuple[str, int, int]]]:
        """Events after each marker, by the marker's size."""
        devices = torch.cuda.memory._snapshot()["device_traces"]
        torch.cuda.memory._record_memory_history(enabled=None)
        trace = devices[torch.cuda.current_device()]
        slices: dict[int, list[tuple[str, int, int]]] = {}
        current: list[tuple[str, int, int]] = []
        skip = 0
        for entry in trace:
            action, size, address = entry["action"], entry["size"], entry["addr"]
            if action == "alloc":
                if START < size <= self.marker and size % 2 == START % 2:
                    current = slices[size] = []  # a later recording's marker replaces an earlier one's
                    skip = address
                else:
                    current.append(("a", size, address))
            elif action == "free_requested":
                if address == skip:
                    skip = 0
                else:
                    current.append(("f", size, address))
        return slices


def _encode(events: list[tuple[str, int, int]]) -> tuple[list[int], dict[int, int]]:
    encoded: list[int] = []
    live: dict[int, int] = {}
    count = 0
    for kind, size, address in events:
        if kind == "a":
            count += 1
            live[address] = count
            encoded.append(size)
        else:
            encoded.append(-live.pop(address) if address in live else 0)
    return encoded, live


def run_twice(function: Callable[[], Any], device: str) -> tuple[list[Row], str | None]:
    """Rows of the second run, and those of the first that differed; with the error's text if it failed."""
    rows: list[list[Row]] = []
    failure = None
    for _ in range(2):
        recorder = Recorder(device)
        try:
            with recorder:
                kept = function()
            if device == "cuda":
                torch.cuda.synchronize()
            del kept
        except Exception as error:
            failure = f"{type(error).__name__}: {str(error)[:300]}"
        rows.append(recorder.rows())
        if failure:
            break
    if len(rows) == 1:
        return rows[0], failure
    first, second = rows
    if len(first) != len(second):
        return second + [{**row, "first": 1} for row in first], failure
    return second + [{**a, "first": 1} for a, b in zip(first, second, strict=True) if a["e"] != b["e"]], failure
