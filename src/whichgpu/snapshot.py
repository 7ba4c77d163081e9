"""The predicted allocator events as a PyTorch memory snapshot, for PyTorch's own memory viewer.

The format is that of `torch.cuda.memory._dump_snapshot` (torch 2.14): a pickled dictionary of the segments as they are
in the end, with their blocks, and of everything that the allocator did until then. It opens in
https://docs.pytorch.org/memory_viz and in `python -m torch.cuda._memory_viz`.

Frames are not a whole stack: the operator with its step and phase, and the user's or library's line with the module.
There are no times, since nothing ran. No torch: the viewer reads plain dictionaries.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from whichgpu import output_file
from whichgpu.allocator import DEFAULT_CONFIG, EMPTY_CACHE, Block, CachingAllocator, SegmentState, drive
from whichgpu.program import Program
from whichgpu.trace import Trace

_PROTOCOL = 4  # the newest that the viewer reads; Python 3.14 would write 5
_FIRST_ADDRESS = 0x7F0000000000  # where CUDA's memory usually lies; the viewer takes 0 for no address
_STREAM = 0
_POOL = (0, 0)
# The viewer colours by category as soon as there is one, and then needs one of this name.
_NO_CATEGORY = "unknown"


def check_path(path: Path) -> None:
    """Raise InputError unless a snapshot can be written there; an earlier file there may be replaced."""
    output_file.check_path(path, "snapshot")


def write(snapshot: dict[str, Any], path: Path) -> None:
    """Write a snapshot in one atomic step; raises InputError where that cannot be."""
    output_file.write(path, "snapshot", lambda file: pickle.dump(snapshot, file, protocol=_PROTOCOL))


def make(program: Program, trace: Trace, limit_bytes: int | None) -> dict[str, Any]:
    """The snapshot of a program that fits under a limit (None: as much memory as it wants).

    `trace` is one with the operators and storages that the program names; sizes are the program's.
    """
    return _Recording(program, trace, limit_bytes).snapshot()


class _Recording:
    """Replays a program and writes down what the allocator does."""

    def __init__(self, program: Program, trace: Trace, limit_bytes: int | None) -> None:
        self._program = program
        self._trace = trace
        self._entries: list[dict[str, Any]] = []
        self._next_address = _FIRST_ADDRESS
        self._segments: dict[int, int] = {}  # bytes by address, of those that the allocator has
        self._fresh: list[tuple[int, int]] = []  # segments of the request that is being served
        self._allocator = CachingAllocator(limit_bytes, DEFAULT_CONFIG, self._place)
        self._frames: dict[int, list[dict[str, Any]]] = {}  # by operator; shared, so that the file stays small
        self._live: dict[int, tuple[Block, list[dict[str, Any]]]] = {}  # by slot
        self._retries = 0  # how often the cache was given back so far

    def snapshot(self) -> dict[str, Any]:
        """Replay all of it."""
        starts = dict(zip(self._program.op_at, self._program.op_index, strict=True))  # the last one at a place counts
        frames: list[dict[str, Any]] = []
        program = self._program
        steps = drive(self._allocator, program.instructions, program.sizes)
        for place, (instruction, live) in enumerate(zip(program.instructions, steps, strict=True)):
            if place in starts:
                frames = self._frames_of(starts[place])
            slot = abs(instruction) - 1
            if instruction > 0:
                self._note_malloc(slot, live.get(slot), frames)
            elif instruction == EMPTY_CACHE:
                self._note_released(frames)
            elif slot in self._live:  # one that there was no room for is not
                self._note_free(slot, frames)
        by_address = {block.address: own for block, own in self._live.values() if block.requested_bytes}
        return {
            "segments": [_segment(state, by_address) for state in self._allocator.snapshot()],
            "device_traces": [self._entries],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def _place(self, size: int) -> int:
        address = self._next_address
        self._next_address += size
        self._fresh.append((address, size))
        return address

    def _note_malloc(self, slot: int, block: Block | None, frames: list[dict[str, Any]]) -> None:
        if self._allocator.num_alloc_retries != self._retries:
            self._retries = self._allocator.num_alloc_retries
            self._note_released(frames)
        for address, segment in self._fresh:
            self._segments[address] = segment
            self._note("segment_alloc", address, segment, frames, category=_NO_CATEGORY)
        self._fresh.clear()
        if block is None:  # there was no room for it
            return
        self._live[slot] = (block, frames)
        size = self._program.sizes[slot]
        if size:
            stored = slot < self._program.storages
            category = self._trace.storages[slot].category if stored else "workspace"
            self._note("alloc", block.address, size, frames, category=category)

    def _note_free(self, slot: int, frames: list[dict[str, Any]]) -> None:
        block, _ = self._live.pop(slot)
        size = self._program.sizes[slot]
        if size:
            self._note("free_requested", block.address, size, frames)
            self._note("free_completed", block.address, size, frames)

    def _note_released(self, frames: list[dict[str, Any]]) -> None:
        """Segments that were given back to the driver before a new one was asked for."""
        left = {state.address for state in self._allocator.snapshot()}
        for address in [address for address in self._segments if address not in left]:
            self._note("segment_free", address, self._segments.pop(address), frames)

    def _note(self, action: str, address: int, size: int, frames: list[dict[str, Any]], **more: Any) -> None:
        # a dictionary of its own for each: the viewer writes into them
        where = {"addr": address, "size": size, "stream": _STREAM, "pool_id": _POOL}
        self._entries.append({"action": action, **where, "frames": frames, **more})

    def _frames_of(self, index: int) -> list[dict[str, Any]]:
        frames = self._frames.get(index)
        if frames is None:
            op, names = self._trace.ops[index], self._trace.names
            when = "set-up" if op.step < 0 else f"step {op.step + 1}, {op.phase}"
            frames = [{"filename": when, "line": 0, "name": op.name}]
            if op.source >= 0 or op.module >= 0:
                file, _, line = (names[op.source] if op.source >= 0 else "unknown:0").rpartition(":")
                module = names[op.module] if op.module >= 0 else "outside of modules"
                frames.append({"filename": file, "line": int(line), "name": module})
            self._frames[index] = frames
        return frames


def _segment(state: SegmentState, frames: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """One segment and its blocks as they are in the end; `frames` of the live blocks by address."""
    blocks = [
        {
            "address": block.address,
            "size": block.bytes,
            "requested_size": block.requested_bytes,
            "state": "active_allocated" if block.allocated else "inactive",
            "frames": frames[block.address] if block.allocated else [],
        }
        for block in state.blocks
    ]
    in_use = sum(block.bytes for block in state.blocks if block.allocated)
    return {
        "device": 0,
        "address": state.address,
        "total_size": state.bytes,
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": sum(block.requested_bytes for block in state.blocks),
        "stream": _STREAM,
        "segment_type": state.pool,
        "segment_pool_id": _POOL,
        "is_expandable": state.expandable,
        "frames": [],
        "blocks": blocks,
    }
