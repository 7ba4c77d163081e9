"""A capture leaves PyTorch as it found it, however it ends."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.optim import optimizer as torch_optimizer
from training_steps import STEPS

from conftest import Tracing
from whichgpu.errors import DataDependentError, WorkloadError

PATCHED: dict[str, Callable[[], Any]] = {
    "Tensor": lambda: {
        name: torch.Tensor.__dict__.get(name)
        for name in (
            "device",
            "is_cuda",
            "is_cpu",
            "to",
            "cuda",
            "cpu",
            "numpy",
            "tolist",
            "__array__",
            "__deepcopy__",
            "new_tensor",
            "pin_memory",
            "get_device",
            "record_stream",
            "is_pinned",
        )
    },
    "torch": lambda: dict(vars(torch)),
    "torch.cuda": lambda: dict(vars(torch.cuda)),
    "torch.cuda.memory": lambda: dict(vars(torch.cuda.memory)),
    "torch.amp.autocast_mode": lambda: dict(vars(torch.amp.autocast_mode)),
    "autocast": lambda: dict(vars(torch.amp.autocast_mode.autocast)),
    "torch.accelerator": lambda: dict(vars(torch.accelerator)),
    "torch.backends.cudnn": lambda: torch.backends.cudnn.is_acceptable,
    "Module": lambda: dict(vars(torch.nn.Module)),
    "torch.autograd.graph": lambda: torch.autograd.graph._engine_run_backward,
    "torch.autograd": lambda: torch.autograd._engine_run_backward,
    "autocast types": lambda: (torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")),
    "optimizer hooks": lambda: (
        len(torch_optimizer._global_optimizer_pre_hooks),
        len(torch_optimizer._global_optimizer_post_hooks),
    ),
    "dispatch modes": torch.utils._python_dispatch._len_torch_dispatch_stack,
    "garbage collection": gc.isenabled,
    "grad mode": torch.is_grad_enabled,
}


def raising(device: torch.device) -> Callable[[int], None]:
    """A step whose shapes do not fit, inside autocast and no_grad."""
    model = torch.nn.Linear(4, 4).to(device)

    def step(batch_size: int) -> None:
        with torch.autocast("cuda", torch.float16), torch.no_grad():
            model(torch.rand(batch_size, 5, device=device))

    return step


def unknown(device: torch.device) -> Callable[[int], None]:
    """A step that needs numbers that only the GPU has."""
    return lambda batch_size: torch.rand(batch_size << 20, device=device).nonzero()


def no_function(device: torch.device) -> Any:
    """A set-up that returns no step."""
    return 3


ENDINGS: dict[str, tuple[Any, type[Exception] | None]] = {
    "well": (STEPS["transformer"], None),
    "half precision": (STEPS["autocast fp16"], None),
    "the step raises": (raising, WorkloadError),
    "values are needed": (unknown, DataDependentError),
    "no function": (no_function, WorkloadError),
}


def run(ending: str, tracing: Tracing) -> None:
    """One capture that ends as named."""
    setup, error = ENDINGS[ending]
    if error is None:
        tracing.trace(setup)
    else:
        with pytest.raises(error):
            tracing.trace(setup)


@pytest.mark.parametrize("ending", ENDINGS)
def test_everything_that_was_patched_is_put_back(ending: str, tracing: Tracing) -> None:
    """Every attribute of the patched places is the object that it was before."""
    run("well", tracing)  # what PyTorch itself loads on first use is loaded now
    before = {name: look() for name, look in PATCHED.items()}
    run(ending, tracing)
    after = {name: look() for name, look in PATCHED.items()}

    for name, found in before.items():
        if isinstance(found, dict):
            changed = [key for key in found.keys() | after[name].keys() if found.get(key) is not after[name].get(key)]
            assert [] == changed, name
        else:
            assert found == after[name], name


@pytest.mark.parametrize("ending", ENDINGS)
def test_ordinary_tensors_work_as_before(ending: str, tracing: Tracing) -> None:
    """Attention, dropout, autocast, backward and optimizers on the CPU give the same numbers as before."""

    def numbers() -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.rand(2, 2, 8, 16, requires_grad=True)
        out = F.scaled_dot_product_attention(x, x, x)
        dropped = F.dropout(out, 0.5)
        dropped.sum().backward()
        assert x.grad is not None
        with torch.autocast("cpu", torch.bfloat16):
            product = x[0, 0] @ x[0, 0].t()
            soft = product.softmax(-1)
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.rand(2, 4)).sum().backward()
        optimizer.step()
        return [
            out.detach(),
            dropped.detach(),
            x.grad,
            product.detach(),
            soft.detach(),
            layer.weight.detach(),
        ]

    before = numbers()
    run(ending, tracing)
    after = numbers()

    assert [value.dtype for value in before] == [value.dtype for value in after]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert torch.zeros(3).tolist() == [0.0] * 3
    assert torch.zeros(3).device == torch.device("cpu")


def test_keyboard_interrupt_passes_and_all_is_put_back(tracing: Tracing) -> None:
    """Ctrl-C is no mistake of the workload: it goes through, and the patches go."""

    def setup(device: torch.device) -> Callable[[int], None]:
        def step(batch_size: int) -> None:
            raise KeyboardInterrupt

        return step

    before = torch.cuda.is_available
    with pytest.raises(KeyboardInterrupt):
        tracing.trace(setup)

    assert before is torch.cuda.is_available
    assert gc.isenabled()


def test_the_interpreter_ends_cleanly_after_a_capture() -> None:
    """Registrations that are gone do not crash the interpreter at its exit."""
    code = (
        "import torch\n"
        "from whichgpu.capture.run import capture\n"
        "from whichgpu.capture.target import Target\n"
        "from training_steps import STEPS\n"
        "made = capture('t', STEPS['autocast fp16'], 4, Target.parse('9.0'))\n"
        "print(len(made.ops) > 100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=__file__.rpartition("/")[0],
        timeout=120,
        check=False,
    )

    assert ("True\n", 0) == (done.stdout, done.returncode)
