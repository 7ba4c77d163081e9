"""Paths of modules ("encoder.layer.3.output"): those of repeated layers differ in numbers alone and are folded into one."""

from __future__ import annotations

from collections.abc import Iterable


def starred(path: str) -> str:
    """A path with * for every number in it: "layer.3.output" is "layer.*.output"."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def folded(paths: Iterable[str]) -> str:
    """Paths that differ in numbers only as one, with * for the numbers that differ."""
    return ".".join(
        parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*(p.split(".") for p in paths), strict=True)
    )
