"""Steps that cannot run on a GPU are refused with PyTorch's own words; those that can are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conftest import Tracing
from whichgpu.errors import StepError

Device = torch.device
Work = Callable[[torch.nn.Module, int, Device], torch.Tensor]


def workload(work: Work) -> Callable[[Device], Callable[[int], Any]]:
    """A step with a loss of its own."""

    def setup(device: Device) -> Callable[[int], Any]:
        model = torch.nn.Sequential(torch.nn.Linear(16, 4)).to(device)

        def step(batch_size: int) -> None:
            work(model, batch_size, device).sum().backward()

        return step

    return setup


REFUSED: dict[str, tuple[Work, str]] = {
    "input on the host": (lambda m, b, d: m(torch.randn(b, 16)), "same device"),
    "labels on the host": (
        lambda m, b, d: F.cross_entropy(m(torch.randn(b, 16, device=d)), torch.randint(0, 4, (b,))),
        "same device",
    ),
    "addend on the host": (lambda m, b, d: m(torch.randn(b, 16, device=d)) + torch.ones(b, 4), "same device"),
    "layer on the host": (
        lambda m, b, d: torch.nn.Linear(4, 4)(m(torch.randn(b, 16, device=d))),
        "same device",
    ),
    "kernel on the host": (
        lambda m, b, d: F.conv2d(m(torch.randn(b, 3, 9, 16, device=d)), torch.ones(2, 3, 3, 3)),
        "same device",
    ),
    "half input": (lambda m, b, d: m(torch.randn(b, 16, device=d).half()), "same dtype"),
    "half kernel": (
        lambda m, b, d: F.conv2d(m(torch.randn(b, 3, 9, 16, device=d)), torch.ones(2, 3, 3, 3, device=d).half()),
        "should be the same",
    ),
    "second card": (lambda m, b, d: m(torch.randn(b, 16, device="cuda:1")), "invalid device ordinal"),
    "sent to a second card": (lambda m, b, d: m(torch.randn(b, 16).to("cuda:1")), "invalid device ordinal"),
    "sent to card 1": (lambda m, b, d: m(torch.randn(b, 16).cuda(1)), "invalid device ordinal"),
}
TAKEN: dict[str, Work] = {
    "number on the host": lambda m, b, d: m(torch.randn(b, 16, device=d)) * torch.tensor(2.0) + torch.tensor(1.0),
    "index on the host": lambda m, b, d: m(torch.randn(b, 16, device=d))[torch.arange(b)],
    "copied into": lambda m, b, d: m(torch.empty(b, 16, device=d).copy_(torch.randn(b, 16))),
    "assigned": lambda m, b, d: m(_assigned(torch.empty(b, 16, device=d))),
    "autocast": lambda m, b, d: _autocast(m, torch.randn(b, 16, device=d)),
    "first card": lambda m, b, d: m(torch.randn(b, 16).cuda(0).to("cuda:0")),
}


def _assigned(x: torch.Tensor) -> torch.Tensor:
    x[:] = torch.randn(x.shape)
    return x


def _autocast(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda"):
        return model(model(x).repeat(1, 4))  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cuda_refuses_is_refused(case: str, tracing: Tracing) -> None:
    """The step's error says it in PyTorch's words."""
    work, words = REFUSED[case]
    with pytest.raises(StepError, match=words):
        tracing.trace(workload(work))


@pytest.mark.parametrize("case", TAKEN)
def test_what_cuda_takes_is_traced(case: str, tracing: Tracing) -> None:
    """Numbers and indices of the host, copies and casts are no mistakes."""
    assert tracing.trace(workload(TAKEN[case])).ops
