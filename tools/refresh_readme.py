"""Run the commands that README.md shows and put their real output there, and into the same blocks of README.zh-CN.md:
`python tools/refresh_readme.py`. Each command is run once.

Long rankings are cut: the first block of cards, the head of the first tier and the last line stay.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
CARDS = 12  # lines of the first tier that stay
CUT = "[...]"


@cache
def output(command: str) -> str:
    """What a `whichgpu ...` command prints, 100 columns wide."""
    arguments = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(
        arguments, env={**os.environ, "COLUMNS": "100"}, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = done.stdout.rstrip("\n").split("\n")
    return "\n".join(shortened(lines) if "Trains all" in lines else lines)


def shortened(lines: list[str]) -> list[str]:
    """A ranking without its middle."""
    rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
    first_block = lines[: lines.index("", rule)]
    tier = lines.index("Trains all")
    choice = next(number for number, line in enumerate(lines) if line.startswith("First choice"))
    return [*first_block, CUT, "", *lines[tier : tier + 3 + CARDS], CUT, "", *lines[choice:]]


def refreshed(page: str) -> str:
    """The page with what its console blocks' commands print now."""

    def block(match: re.Match[str]) -> str:
        return f"```console\n$ {match[1]}\n{output(match[1])}\n```"

    return re.sub(r"^```console\n\$ (whichgpu [^\n]*)\n.*?^```", block, page, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(refreshed(one.read_text(encoding="utf-8")), encoding="utf-8")
