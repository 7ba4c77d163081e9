"""What the measuring process says, and how: JSON lines to the client, failures in one line each."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

_LONGEST_MESSAGE = 300


def failed(outcome: str, message: str) -> dict[str, Any]:
    """An answer of an attempt that failed."""
    return {"outcome": outcome, "message": message}


def shorten(words: str) -> str:
    """Words on one line, cut where they are too long for a record."""
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 3] + "..."


def send(fd: int, **fields: Any) -> None:
    """A line to the client; one that has gone is found when its input closes."""
    with contextlib.suppress(BrokenPipeError):
        os.write(fd, json.dumps(fields).encode() + b"\n")
