"""Who else holds the card's memory, and whether that would spoil a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable

from whichgpu import gpu_status, text
from whichgpu.gpu_status import GpuStatus

LAG_S = 3.0  # how long memory may take to come back from a process that ended
_IGNORED_BYTES = 64 << 20  # held by others without being called busy
_UNSEEN_BYTES = 2 << 30  # held by nobody that can be seen, where contexts and the driver account for less
_ROOM_BYTES = 3 << 29  # that an attempt under a limit needs besides: context and libraries


def busy(status: GpuStatus | None, limit: int | None, note: Callable[[str], None]) -> str:
    """Who else holds the card's memory, where that would spoil the measurement; empty where nobody does."""
    deadline = time.monotonic() + LAG_S
    while True:
        held = held_by(status)
        memory = status.memory() if status is not None else None
        if not held:
            return ""
        if limit is not None and memory is not None and memory[1] >= limit + _ROOM_BYTES:
            note(f"speeds may suffer: {held}")
            return ""
        if time.monotonic() >= deadline:
            return held
        time.sleep(0.2)


def held_by(status: GpuStatus | None) -> str:
    """Other processes with memory of the card, in words."""
    if status is None:
        return ""
    holders = [holder for holder in status.holders() if not holder.graphics]
    known = sum(holder.memory_bytes or _IGNORED_BYTES for holder in holders)
    if holders and known >= _IGNORED_BYTES:
        return ", ".join(_holder(holder) for holder in holders[:3]) + (" and others" if len(holders) > 3 else "")
    memory = status.memory()
    if memory is not None and not holders and memory[2] >= _UNSEEN_BYTES:
        return f"something that cannot be seen from here holds {text.format_bytes(memory[2])}"
    return ""


def _holder(holder: gpu_status.Holder) -> str:
    name = holder.name or "a process that cannot be seen from here"
    held = f", {text.format_bytes(holder.memory_bytes)}" if holder.memory_bytes is not None else ""
    return f"{name} (pid {holder.pid}{held}) uses the card"
