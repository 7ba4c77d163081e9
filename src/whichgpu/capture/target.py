"""The GPU that a trace is made for, as far as dispatch depends on it."""

from __future__ import annotations

from typing import NamedTuple

from whichgpu.capability import parse


class Target(NamedTuple):
    """A capability class and what user code may ask of such a card."""

    capability: tuple[int, int]
    name: str = "NVIDIA GPU"
    memory_bytes: int = 80 << 30
    sm_count: int = 132

    @classmethod
    def parse(cls, capability: str) -> Target:
        """From "9.0"."""
        return cls(parse(capability))
