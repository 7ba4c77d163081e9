"""What the rules are made of: the record of one temporary, dtype sizes, and the figures in data/workspaces.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import msgspec

from whichgpu.trace import Op, Tensor

Capability = tuple[int, int]
AFTER_LAST = -1
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip


class Temporary(msgspec.Struct, frozen=True):
    """One allocation inside an operator. Freed when the operator ends or earlier, unless it has a key."""

    bytes: int
    before_output: int = AFTER_LAST  # the operator's own allocation before which it is taken, from 0
    key: str = ""  # kept until the process ends, at most one of a key
    freed_before: int = AFTER_LAST  # the own allocation before which it is given back; by default at the end
    optional: bool = False  # the operator does without it where there is no room
    instead: bool = False  # taken only where the one before it, which is optional, was done without
    plan: str = (
        ""  # what is done without once is not taken again by others with this name; by default those like the operator
    )
    # What is tried for the first time of all operators with this name: it is given back at once, and then the cache
    search: str = ""

    @property
    def kept(self) -> bool:
        """Whether it stays until the process ends."""
        return self.key != ""


Rule = Callable[[Op, Capability], list[Temporary]]


@cache
def facts() -> dict[str, Any]:
    """The measured and published figures behind the rules, as data/workspaces.toml has them."""
    return tomllib.loads(files("whichgpu").joinpath("data/workspaces.toml").read_text("utf-8"))


def round_up(value: int, multiple: int) -> int:
    """The next multiple of `multiple`."""
    return (value + multiple - 1) // multiple * multiple


def bytes_of(tensor: Tensor, dtype: str = "") -> int:
    """Bytes of a tensor's values, of another dtype where one is named."""
    return prod(tensor.shape) * ITEM_BYTES[dtype or tensor.dtype]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in items of a contiguous tensor of that shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous_copy(tensor: Tensor, before_output: int = AFTER_LAST) -> list[Temporary]:
    """What `tensor.contiguous()` takes: nothing where it is already."""
    return [Temporary(bytes_of(tensor), before_output)] if tensor.stride else []


def multiprocessors(capability: Capability) -> int:
    """Multiprocessors of the usual card of a compute capability."""
    return int(_card(capability)[0])


def resident_threads(capability: Capability) -> int:
    """Threads that one multiprocessor holds at once."""
    return int(_card(capability)[1])


def _card(capability: Capability) -> list[int]:
    cards = facts()["cards"]
    name = f"{capability[0]}.{capability[1]}"
    found: list[int] = cards["by_capability"].get(name, cards["otherwise"])
    return found
