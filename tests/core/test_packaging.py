"""What is in the wheel: everything the package needs when the checkout is gone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "whichgpu"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built by the project's build backend."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert 0 == done.returncode, done.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as wheel:
        yield wheel


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    """A file of the wheel's metadata."""
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Code, data and the marker of types are in the wheel with the same contents, and nothing else is."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {f"whichgpu/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in files}
    actual = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    assert {"whichgpu/py.typed", "whichgpu/data/gpus.toml", "whichgpu/data/overheads.toml"} <= set(expected)
    assert sorted(expected) == sorted(actual)
    assert expected == actual


def test_the_licence_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """The licence travels with the code, and the metadata names it."""
    assert (ROOT / "LICENSE").read_text(encoding="utf-8") == metadata(wheel, "licenses/LICENSE")
    assert "Apache-2.0" == Parser().parsestr(metadata(wheel, "METADATA"))["License-Expression"]


def test_the_command_is_installed(wheel: zipfile.ZipFile) -> None:
    """The wheel brings the command `whichgpu`."""
    assert "whichgpu = whichgpu.__main__:main" in metadata(wheel, "entry_points.txt")


def test_the_changelog_speaks_of_this_version() -> None:
    """The version that is built has a section in the changelog."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
