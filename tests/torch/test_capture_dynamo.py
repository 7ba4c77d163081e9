"""`torch._dynamo` stays out of the way, and is there as a whole for what needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, torch
from whichgpu.capture.run import capture
from whichgpu.capture.target import Target

def setup(device):
    SETUP
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step(n):
        model(torch.randn(n, 8, device=device)).sum().backward()
        optimizer.step(); optimizer.zero_grad()
    return step

capture("t", setup, 4, Target.parse("9.0"))
print("torch._dynamo.convert_frame" in sys.modules)
"""

CHECKPOINTED = (
    "from torch.utils.checkpoint import checkpoint; "
    "checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()"
)


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("pass", "False"),
        (CHECKPOINTED, "False"),
        ("import torch._dynamo.variables.base", "True"),
        ("import torch._dynamo.utils", "True"),
        (f"{CHECKPOINTED}; import torch._dynamo as real; assert real.utils.config is real.config", "True"),
    ],
)
def test_dynamo_is_loaded_as_a_whole_or_not_at_all(setup: str, expected: str) -> None:
    """A plain step does not wait for it, nor one that checkpoints; the import of one of its parts brings the rest first, as PyTorch's own does."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("SETUP", setup)], capture_output=True, text=True, timeout=120, check=False
    )

    assert 0 == done.returncode, done.stderr
    assert expected == done.stdout.strip()
