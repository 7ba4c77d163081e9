"""The documents say nothing that is not so: links, commands, options, files and code in them exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from whichgpu import cli
from whichgpu.zoo import ENTRIES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
APP: Any = typer.main.get_command(cli.app)
SET_UP = [
    "pip install '.[zoo]' && whichgpu rank bert-base bert-finetune nasnet-large",
    "pip install '.[test]' && pytest",
]

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in some languages ("" for none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[list[str]]:
    """Every `whichgpu ...` that a page shows: in blocks to be typed, and in code within lines."""
    shown = re.findall(r"`(whichgpu [^`\n]+)`", prose(page))
    for block in blocks(page, "sh", "console", ""):
        shown += re.findall(r"^(?:\$ |.*&& )?(whichgpu .+)$", block, re.MULTILINE)
    return (shlex.split(line)[1:] for line in shown)


def options(words: list[str]) -> set[str]:
    """The options among the words of a command."""
    return {word.partition("=")[0] for word in words if word.startswith("--")}


@by_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    """A link to a file of the project, or to a heading in one, finds it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in slugs(file), target


@by_page
def test_commands_exist(page: Path) -> None:
    """A command that a page shows is one of the command line's, with options that it has."""
    for words in commands(page):
        command, rest = APP, list(words)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        assert command is not APP or words[0].startswith("-"), words
        known = {name for parameter in command.params for name in parameter.opts}
        assert set() == options(words) - known - {"--help"}, words


def test_the_readme_shows_commands() -> None:
    """The test above reads what it should: the README shows each command, and some options."""
    shown = list(commands(ROOT / "README.md"))
    assert set(APP.commands) == {words[0] for words in shown}
    assert {"--gpu", "--batch-size", "--memory-limit"} <= {word for words in shown for word in options(words)}


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_each_command_is_described(page: str) -> None:
    """A new command is described before it lands."""
    words = (ROOT / page).read_text(encoding="utf-8")
    assert [] == [name for name in APP.commands if f"whichgpu {name}" not in words]


def test_the_readme_has_two_commands_to_set_up() -> None:
    """Using and testing take one line each, and these install extras that exist."""
    shown = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    assert SET_UP == [line for line in shown if "pip install" in line]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert ["bench", "charts", "parquet", "test", "update", "zoo"] == sorted(extras)


def typed(page: Path) -> list[str]:
    """What a page's blocks ask to type or to save, without what commands print."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block.partition("\n")[0] if language == "console" else block for language, block in found]


def test_the_chinese_readme_has_the_commands_of_the_english_one() -> None:
    """The same blocks in the same order, the same commands, options and names in lines, and the same pages to read on."""
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    assert typed(english) == typed(chinese)
    assert len(typed(english)) > 5
    assert any(block.startswith("$ whichgpu") for block in typed(english))
    inline, links = r"`([^`\n]+)`", r"\]\(([^)\s]+)\)"
    assert sorted(re.findall(inline, prose(english))) == sorted(re.findall(inline, prose(chinese)))
    pages = [
        sorted(set(re.findall(links, prose(page))) - {"README.md", "README.zh-CN.md"}) for page in (english, chinese)
    ]
    assert pages[0] == pages[1]
    headings = [re.findall(r"^#+ ", prose(page), re.MULTILINE) for page in (english, chinese)]
    assert headings[0] == headings[1]


def test_each_readme_leads_to_the_other() -> None:
    """Right below the title."""
    assert "[简体中文](README.zh-CN.md)" in README.splitlines()[2]
    assert "[English](README.md)" in (ROOT / "README.zh-CN.md").read_text(encoding="utf-8").splitlines()[2]


def test_workloads_of_the_readme_exist() -> None:
    """The ready workloads that the README's commands name are in the zoo."""
    named = [word for words in commands(ROOT / "README.md") for word in words[1:]]
    ready = [word for word in named if re.fullmatch(r"[a-z]+-[a-z0-9]+", word)]
    assert {"bert-base", "bert-finetune", "nasnet-large"} == set(ready)
    assert set(ready) <= set(ENTRIES)


@by_page
def test_code_compiles(page: Path) -> None:
    """Python in the documents is Python."""
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")


def test_the_readme_shows_a_training_step() -> None:
    """The README's first code is a workload: `setup(device)` that returns a step."""
    code = blocks(ROOT / "README.md", "python")[0]
    assert "def setup(device):" in code
    assert "def step(batch_size):" in code
    assert code.rstrip().endswith("return step")


@by_page
def test_files_exist(page: Path) -> None:
    """A source, data or tool file or folder that a page names is there."""
    folders = [ROOT / folder for folder in ("src", "tests", "tools", "examples")]
    found = [path for folder in folders for path in folder.rglob("*")]
    paths = [f"/{path.relative_to(ROOT).as_posix()}{'/' * path.is_dir()}" for path in found]
    paths += [f"/{folder.name}/" for folder in folders] + ["/pyproject.toml"]
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+(?:\.py|\.toml|/))`", prose(page))
    assert [] == [name for name in named if not any(path.endswith(f"/{name}") for path in paths)]


def test_how_it_works_speaks_of_every_part() -> None:
    """Whoever adds a part says in the description of the whole what it is for."""
    words = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    small = {
        "__init__.py",
        "__main__.py",
        "batch_sizes.py",
        "cli.py",
        "errors.py",
        "py.typed",
        "render/",
        "text.py",
        "torch_build.py",
    }
    places = (ROOT / "src" / "whichgpu").iterdir()
    parts = {f"{place.name}{'/' * place.is_dir()}" for place in places if place.name != "__pycache__"} - small
    assert [] == sorted(part for part in parts if part not in words)
