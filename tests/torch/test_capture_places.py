"""Where operators come from: the module that ran them and the line of code, in both directions of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from conftest import Tracing
from whichgpu.trace import Op, Trace


class Block(nn.Module):
    """A residual block whose lines are told apart by their comments."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.inner, self.outer, self.reentrant = nn.Linear(8, 32), nn.Linear(32, 8), reentrant

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        """What is recomputed under checkpointing."""
        hidden = F.gelu(self.inner(x))  # in the block
        return self.outer(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block."""
        if self.reentrant is not None:
            return x + checkpoint(self.branch, x, use_reentrant=self.reentrant)
        return x + self.branch(x)  # the residual


class Net(nn.Module):
    """A stem, two blocks and a head."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(reentrant) for _ in range(2))
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The net."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # the head


class Doubled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return x * 2  # doubled

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return gradient * 2  # doubled gradient


def setup_of(model_of: Callable[[], nn.Module]) -> Callable[[torch.device], Callable[[int], None]]:
    """A training step of a model."""

    def setup(device: torch.device) -> Callable[[int], None]:
        model = model_of().to(device)  # moved
        optimizer = torch.optim.AdamW(model.parameters())

        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 8, device=device)
            Doubled.apply(model(x)).sum().backward()
            optimizer.step()  # updated
            optimizer.zero_grad()

        return step

    return setup


def line(comment: str) -> str:
    """Where the line of this file with a comment is, as the trace names it."""
    file = inspect.getsourcefile(Net)
    assert file is not None
    with open(file) as lines:
        (number,) = [n for n, words in enumerate(lines, 1) if words.rstrip().endswith(f"  # {comment}")]
    return f"test_capture_places.py:{number}"


def place(trace: Trace, op: Op) -> tuple[str, str]:
    """Module and line of an operator, without the folder of the file."""
    module, source = (trace.names[index] if index >= 0 else "" for index in (op.module, op.source))
    return module, source.rpartition("/")[2]


def places(trace: Trace, name: str, phase: str) -> list[tuple[str, str]]:
    """Module and line of every operator of a name in the last step's phase."""
    ops = [op for op in trace.ops if op.name.split(".")[1] == name and op.phase == phase and op.step == 2]
    return [place(trace, op) for op in ops]


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A trace of the plain net."""
    return Tracing.trace(setup_of(Net))


def test_forward_operators_have_their_module_and_line(trace: Trace) -> None:
    """The innermost module, by its path in the whole model, and the line that called it or the function."""
    assert [("blocks.0", line("in the block")), ("blocks.1", line("in the block"))] == places(trace, "gelu", "forward")
    found = places(trace, "addmm", "forward")
    order = ["stem", "blocks.0.inner", "blocks.0.outer", "blocks.1.inner", "blocks.1.outer", "head"]
    assert order == [at[0] for at in found]
    assert line("the head") == found[-1][1]
    assert line("the residual") == places(trace, "add", "forward")[0][1]


def test_backward_operators_have_those_of_their_forward_operator(trace: Trace) -> None:
    """An operator that autograd runs belongs where the operator ran whose gradient it computes."""
    assert [("blocks.1", line("in the block")), ("blocks.0", line("in the block"))] == places(
        trace, "gelu_backward", "backward"
    )
    found = [at[0] for at in places(trace, "mm", "backward")]
    order = ["head", "blocks.1.outer", "blocks.1.inner", "blocks.0.outer", "blocks.0.inner", "stem"]
    assert order == list(dict.fromkeys(found))
    heads = [at for at in places(trace, "mm", "backward") if at[0] == "head"]
    assert {("head", line("the head"))} == set(heads)


def test_a_backward_of_the_users_has_its_own_line(trace: Trace) -> None:
    """What the user's code runs in the backward pass has the line where it runs."""
    assert line("doubled") in {at[1] for at in places(trace, "mul", "forward")}
    assert line("doubled gradient") in {at[1] for at in places(trace, "mul", "backward")}


def test_weights_gradients_and_state_have_the_name_of_their_parameter(trace: Trace) -> None:
    """Each parameter's weight, gradient and two states are named after it; the optimizer's line made the states."""
    for category, count in (("weight", 1), ("gradient", 3), ("optimizer_state", 2)):
        named = [s for s in trace.storages if s.category == category and trace.names[s.name] == "blocks.1.inner.weight"]
        assert (category, count) == (category, len(named))
    states = [trace.ops[s.op] for s in trace.storages if s.category == "optimizer_state"]
    assert {line("updated")} == {place(trace, op)[1] for op in states}
    weights = [trace.ops[s.op] for s in trace.storages if s.category == "weight"]
    assert {line("moved")} == {place(trace, op)[1] for op in weights}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_operators_have_their_own_place(tracing: Tracing, reentrant: bool) -> None:
    """Under checkpointing the forward pass runs again inside the backward pass, in the same modules and lines."""
    trace = tracing.trace(setup_of(lambda: Net(reentrant)))
    again = places(trace, "gelu", "backward")
    assert [line("in the block")] * 2 == [at[1] for at in again]
    assert ["blocks.1.inner", "blocks.0.inner"] == [
        at[0] for at in places(trace, "addmm", "backward") if "inner" in at[0]
    ]
    assert [line("in the block")] * 2 == [at[1] for at in places(trace, "gelu_backward", "backward")]


def test_models_with_the_same_paths_are_told_apart(tracing: Tracing) -> None:
    """Two models of a step whose modules have the same names get the name of their class in front, or a number."""

    def setup(device: torch.device) -> Callable[[int], None]:
        nets = [Net().to(device), Net().to(device)]
        optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], 0.1)

        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 8, device=device)
            sum(net(x).sum() for net in nets).backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()

        return step

    trace = tracing.trace(setup)
    heads = [at[0] for at in places(trace, "addmm", "forward") if at[0].endswith("head")]
    assert ["Net 1.head", "Net 2.head"] == sorted(heads)
    names = {trace.names[s.name] for s in trace.storages if s.category == "weight"}
    assert {"Net 1.head.weight", "Net 2.head.weight"} <= names


def test_a_folder_called_torch_is_the_users(tracing: Tracing, tmp_path: Any) -> None:
    """Whose code it is follows from where PyTorch lies, not from a folder's name."""
    folder = tmp_path / "torch" / "whichgpu"
    folder.mkdir(parents=True)
    file = folder / "mine.py"
    text = "def run(model, x):\n    return model(x)\n"
    file.write_text(text)
    scope: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), scope)

    def setup(device: torch.device) -> Callable[[int], None]:
        model = nn.Linear(8, 4).to(device)
        return lambda batch_size: scope["run"](model, torch.randn(batch_size, 8, device=device)).sum().backward()

    trace = tracing.trace(setup)
    assert {("Linear", "mine.py:2")} == set(places(trace, "addmm", "forward"))
