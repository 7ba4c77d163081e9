"""What the rules are made of: the record of one temporary, dtype sizes, and the figures in data/workspaces.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from whichgpu.trace import Op

Capability = tuple[int, int]
AFTER_LAST = -1
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Temporary(msgspec.Struct, frozen=True):
    """One allocation inside an operator. Freed when the operator ends, unless it has a key."""

    bytes: int
    before_output: int = AFTER_LAST  # the operator's own allocation before which it is taken, from 0
    key: str = ""  # kept until the process ends, at most one of a key

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
