"""Files that a user names: what killed writings left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

from whichgpu import output_file


def test_what_a_killed_writing_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """An old part of the same file goes; one that may be being written, and those of other files, stay."""
    old, young, other, own = (
        tmp_path / name
        for name in (".c[1].png.15dd1b19.part", ".c[1].png.0a1b2c3d.part", ".c1.png.15dd1b19.part", ".c[1].png.my.part")
    )
    for part in (old, young, other, own):
        part.write_bytes(b"half")
    an_hour_ago = time.time() - 3600
    for part in (old, other, own):
        os.utime(part, (an_hour_ago, an_hour_ago))
    output_file.write(tmp_path / "c[1].png", "picture", lambda file: file.write(b"whole"))
    assert {"c[1].png", young.name, other.name, own.name} == {path.name for path in tmp_path.iterdir()}
    assert b"whole" == (tmp_path / "c[1].png").read_bytes()
