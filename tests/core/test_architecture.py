"""Who may import whom: the contracts in pyproject.toml hold, and each would notice a breach.

That nothing loads PyTorch when it runs, either, is tested where the command line is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = """
import sys
sys.path.insert(0, ".")
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True))
"""
LAYERS = "Imports point down"
COMMANDS = "Commands do not import each other"
QUESTIONS = "Questions do not import each other"
CAPTURE_LAYERS = "Imports point down inside capture"
TORCH = "Only capture, the zoo and bench_worker load torch and model libraries"
CAPTURE = "Nobody imports capture or bench_worker: they run in processes of their own"


def lint(folder: Path) -> tuple[int, str]:
    """Exit code and words of import-linter on the package `whichgpu` in a folder with a pyproject.toml."""
    done = subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package and the contracts."""
    folder = tmp_path_factory.mktemp("original")
    ignored = shutil.ignore_patterns("__pycache__", "data")
    shutil.copytree(ROOT / "src" / "whichgpu", folder / "whichgpu", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_contracts_hold(original: Path) -> None:
    """Every import points the way that pyproject.toml says."""
    code, words = lint(original)
    assert 0 == code, words
    assert "7 kept, 0 broken" in words


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("allocator.py", "def late() -> None:\n    import torch", TORCH),
        ("zoo/__init__.py", "import torch", TORCH),
        ("capture/__init__.py", "import torch", TORCH),
        ("api/fit.py", "import scipy", TORCH),
        ("api/fit.py", "import whichgpu.capture.worker", CAPTURE),
        ("bench/run.py", "import torch", TORCH),
        ("bench/run.py", "from whichgpu import bench_worker", CAPTURE),
        ("bench_search.py", "from whichgpu import worker_process", LAYERS),
        ("memory.py", "from whichgpu import tracing", LAYERS),
        ("compiled_replay.py", "from whichgpu import allocator", LAYERS),
        ("trace.py", "from whichgpu.allocator import replay", LAYERS),
        ("render/fit.py", "from whichgpu import api", LAYERS),
        ("commands/fit.py", "from whichgpu.commands import rank", COMMANDS),
        ("api/cards.py", "from whichgpu.api.fit import fit", QUESTIONS),
        ("utils.py", "", LAYERS),
        ("capture/helpers.py", "", CAPTURE_LAYERS),
        ("capture/hollow.py", "from whichgpu.capture import run", CAPTURE_LAYERS),
    ],
)
def test_a_breach_is_noticed(original: Path, tmp_path: Path, file: str, line: str, contract: str) -> None:
    """A forbidden import, also one inside a function, and a module that nobody declared break a contract."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "whichgpu" / file).open("a", encoding="utf-8") as module:
        module.write(f"\n\n{line}\n")
    code, words = lint(tmp_path)
    assert 1 == code, words
    # an undeclared module is told as a contract that can no longer be checked
    assert f"{contract} BROKEN" in words or f'Contract "{contract}" is not configured correctly' in words
