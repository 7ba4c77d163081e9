"""Files that are written in one atomic step; those that a user names for an answer are checked before any work."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from whichgpu.errors import InputError

# a file is written in seconds: what nobody has added to for so long is of a process that was killed
_LEFT_OVER_S = 600.0


def check_path(path: Path, what: str) -> None:
    """Raise InputError unless `what` can be written there; an earlier file there may be replaced."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path} is a folder; name a file for the {what}")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is not a regular file; name another one for the {what}")
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} for the {what}; make it first")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError(f"the {what} cannot be written to {path} (permission denied)")


def write(path: Path, what: str, write_into: Callable[[IO[bytes]], object]) -> None:
    """Write `what`; the file is there whole or not at all. Raises InputError where that cannot be."""
    check_path(path, what)
    target = Path(os.path.realpath(path))
    _remove_left_over(target)
    try:
        replace_whole(target, write_into)
    except OSError as error:
        raise InputError(f"the {what} cannot be written to {path} ({error.strerror})") from error


def replace_whole(target: Path, write_into: Callable[[IO[bytes]], object]) -> None:
    """Make or replace a file in one step, so that it is there whole or not at all; raises OSError."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            write_into(file)
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _remove_left_over(target: Path) -> None:
    """Remove what earlier writings of this file left that were killed before they could tidy up; never raises."""
    with contextlib.suppress(OSError):
        for part in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.part"):
            with contextlib.suppress(OSError):
                if time.time() - part.lstat().st_mtime > _LEFT_OVER_S:
                    part.unlink()
