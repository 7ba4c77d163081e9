"""Loading of files that hold real PyTorch steps, and missing libraries of the adapters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from whichgpu.errors import MissingExtraError, WorkloadError
from whichgpu.workload import distributions, failure_line, load, parse, sources

EXAMPLES = Path(__file__).parents[2] / "examples"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test leaves `sys.path` as it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_run(name: str) -> None:
    """Every file in examples/ trains two steps on a CPU."""
    step = load(parse(str(EXAMPLES / name))).setup(CPU)
    step(2)
    step(2)


def test_a_step_with_a_sibling_model_trains(tmp_path: Path) -> None:
    """A file whose model lives in a sibling file trains, and both files are its sources."""
    (tmp_path / "network_of_mine.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(4, 2)\n")
    source = """
import torch
from network_of_mine import make

WEIGHTS = []

def train(device):
    model = make().to(device)
    WEIGHTS.append(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(batch_size):
        model(torch.ones(batch_size, 4, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""
    file = tmp_path / "train-it.py"
    file.write_text(source)
    ref = parse(f"{file}:train")
    step = load(ref).setup(CPU)
    (weight,) = next(vars(m)["WEIGHTS"] for m in sys.modules.values() if getattr(m, "__file__", "") == str(file))
    before = weight.detach().clone()
    step(3)
    torch.testing.assert_close(weight.detach(), before - 0.3)
    assert {file, tmp_path / "network_of_mine.py"} <= set(sources(ref))
    assert "torch" in distributions(ref)


def test_an_error_inside_the_step_is_placed_in_the_users_file(tmp_path: Path) -> None:
    """When PyTorch raises inside a step, the line named is the user's, not PyTorch's."""
    file = tmp_path / "wrong.py"
    file.write_text("import torch\ndef setup(device):\n    return lambda n: torch.nn.Linear(3, 2)(torch.ones(n, 5))\n")
    step = load(parse(str(file))).setup(CPU)
    with pytest.raises(RuntimeError) as caught:
        step(2)
    assert "mat1 and mat2 shapes cannot be multiplied" in failure_line(caught.value)
    assert failure_line(caught.value).endswith(f"({file}:3)")


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("timm:resnet18", "timm"),
        ("torchvision:resnet18", "torchvision"),
        ("hf:gpt2", "transformers"),
        ("bert-base", "transformers"),
        ("nasnet-large", "timm"),
    ],
)
def test_a_missing_library_names_the_extra(text: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its library an adapter or zoo entry fails with the command that installs it."""
    for name in [name for name in sys.modules if name.startswith("whichgpu.zoo.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(name, raising=False)  # `from whichgpu.zoo import x` looks here first
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        load(parse(text))
    expected = f"{text} needs {package}, which is not installed: pip install 'whichgpu[zoo]'"
    assert expected == str(caught.value)


def test_a_library_that_breaks_on_import_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is installed but fails on import is told with its own message."""
    monkeypatch.delitem(sys.modules, "whichgpu.zoo.timm_models", raising=False)
    monkeypatch.setattr("timm.is_model", None)
    with pytest.raises(WorkloadError) as caught:
        load(parse("timm:resnet18"))
    assert "timm:resnet18 cannot be loaded: TypeError: 'NoneType' object is not callable" in str(caught.value)
