"""Run the commands that README.md and docs/advise.md show and put their real output there, and into the same blocks of
README.zh-CN.md: `python tools/refresh_readme.py [PAGE ...]`. Each command is run once.

Long rankings are cut: the first block of cards, the head of the first tier and the last line stay. Of advice those sections stay
that the page shows already.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {ROOT / "README.md": 100, ROOT / "README.zh-CN.md": 100, ROOT / "docs" / "advise.md": 80}  # with their widths
CARDS = 12  # lines of the first tier that stay
CUT = "[...]"


@cache
def output(command: str, width: int) -> str:
    """What a `whichgpu ...` command prints, in so many columns."""
    arguments = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(
        arguments, env={**os.environ, "COLUMNS": str(width)}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.rstrip("\n")


def shortened(lines: list[str]) -> list[str]:
    """A ranking without its middle."""
    rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
    first_block = lines[: lines.index("", rule)]
    tier = lines.index("Trains all")
    choice = next(number for number, line in enumerate(lines) if line.startswith("First choice"))
    return [*first_block, CUT, "", *lines[tier : tier + 3 + CARDS], CUT, "", *lines[choice:]]


def sections(words: str) -> list[str]:
    """What stands between empty lines, or between these and a cut."""
    return [part for part in re.split(rf"\n(?:\n|{re.escape(CUT)}(?:\n|$))+", words) if part]


def heading(section: str) -> str:
    """The beginning of a section that stays when its figures change: "Trains it", "Fastest", "-" of notes."""
    return re.split(r"[:(,]| \(|$", section.splitlines()[0], maxsplit=1)[0].strip() if section[0] != "-" else "-"


def cut(words: str, shown: str) -> str:
    """The sections of advice that a page shows, each run of others as a cut."""
    if CUT not in shown:
        return words
    kept = {heading(section) for section in sections(shown)}
    parts = []
    for stays, run in groupby(sections(words), key=lambda section: heading(section) in kept):
        parts.append("\n\n".join(run) if stays else CUT)
    return re.sub(rf"\n\n{re.escape(CUT)}", f"\n{CUT}", "\n\n".join(parts))


def refreshed(page: str, width: int, run: Callable[[str, int], str] = output) -> str:
    """The page with what its console blocks' commands print now."""

    def block(match: re.Match[str]) -> str:
        words = run(match[1], width)
        if match[1].startswith("whichgpu advise"):
            words = cut(words, match[2])
        elif "Trains all" in words.split("\n"):
            words = "\n".join(shortened(words.split("\n")))
        return f"```console\n$ {match[1]}\n{words}\n```"

    return re.sub(r"^```console\n\$ (whichgpu [^\n]*)\n(.*?)^```", block, page, flags=re.MULTILINE | re.DOTALL)


def main(names: Sequence[str]) -> None:
    """Refresh the pages of these names, or all."""
    for page, width in PAGES.items():
        if not names or page.name in names:
            page.write_text(refreshed(page.read_text(encoding="utf-8"), width), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
