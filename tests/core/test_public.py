"""The public names of the package, and that importing it costs next to nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

import whichgpu

PUBLIC = [
    "AdviceReport",
    "ExplainReport",
    "FitReport",
    "RankReport",
    "WhichGpuError",
    "Wishes",
    "advise",
    "describe",
    "explain",
    "fit",
    "rank",
]


def in_a_fresh_interpreter(code: str) -> str:
    """What the code prints."""
    command = [sys.executable, "-W", "error", "-c", f"import sys, whichgpu\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_the_public_names_are_stable() -> None:
    """Scripts rely on these names: the list only grows, and it is sorted."""
    assert PUBLIC == whichgpu.__all__
    assert sorted(PUBLIC) == PUBLIC


def test_nothing_else_looks_public() -> None:
    """A freshly imported package shows its public names and nothing else."""
    assert PUBLIC == in_a_fresh_interpreter("print(*[n for n in dir(whichgpu) if n[0] != '_'])").split()


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_there(name: str) -> None:
    """Each name leads to a function or class with a docstring, the same at every use."""
    found = getattr(whichgpu, name)
    assert isinstance(found, (type, types.FunctionType))
    assert found.__doc__
    assert found is getattr(whichgpu, name)


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "examples").glob("*.py")), ids=lambda file: file.name
)
def test_examples_use_public_names_alone(file: Path) -> None:
    """What an example imports of whichgpu is what the docs teach: public names, from the package itself."""
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    used = {
        (node.module, name.name)
        for node in imports
        for name in node.names
        if (node.module or "").startswith("whichgpu")
    }
    assert set() == used - {("whichgpu", name) for name in PUBLIC}


def test_a_star_import_brings_them_all() -> None:
    """`from whichgpu import *` brings the public names."""
    names: dict[str, object] = {}
    exec("from whichgpu import *", names)
    assert set(PUBLIC) == set(names) - {"__builtins__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist is refused as by any module, so that `hasattr` works."""
    with pytest.raises(AttributeError, match="module 'whichgpu' has no attribute 'fitt'"):
        whichgpu.__getattr__("fitt")


def test_the_version_is_that_of_the_installed_package() -> None:
    """There is one place that says the version: the package's metadata."""
    assert metadata.version("whichgpu") == whichgpu.__version__


def test_importing_the_package_loads_none_of_its_modules() -> None:
    """What is not used is not loaded: neither modules of the package nor what it depends on."""
    heavy = ("msgspec", "platformdirs", "rapidfuzz", "rich", "torch", "typer", "whichgpu.")
    loaded = in_a_fresh_interpreter("print(*sys.modules)").split()
    assert [] == [name for name in loaded if name.startswith(heavy)]


def test_the_package_and_its_modules_do_not_hide_each_other() -> None:
    """A public name never shadows a module of the package, whichever is imported first."""
    code = "import pkgutil; print(*[m.name for m in pkgutil.iter_modules(whichgpu.__path__)])"
    assert set() == set(PUBLIC) & set(in_a_fresh_interpreter(code).split())
