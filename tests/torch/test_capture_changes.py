"""Changes from outside: steps that save memory, as their author would have written them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import Tracing
from whichgpu.capture.changes import changed
from whichgpu.errors import WorkloadError
from whichgpu.trace import Trace


def setup_of(**how: Any) -> Callable[[torch.device], Callable[[int], Any]]:
    """A training step; `how` says what is different from the usual one."""

    def setup(device: torch.device) -> Callable[[int], Any]:
        model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device)
        make = how.get("optimizer", torch.optim.AdamW)
        optimizers = [make(model.parameters()) for _ in range(how.get("optimizers", 1))]

        def loss_of(batch_size: int) -> torch.Tensor:
            x = torch.randn(batch_size, 256, device=device)
            if not how.get("autocast"):
                return F.mse_loss(model(x), x)
            with torch.autocast("cuda", torch.bfloat16):
                return F.mse_loss(model(x), x)

        def step(batch_size: int) -> float:
            for optimizer in optimizers:
                if how.get("zero_first"):
                    optimizer.zero_grad()
                for _ in range(how.get("micro", 1)):
                    loss = loss_of(batch_size)
                    loss.backward()
                optimizer.step()
                if not how.get("zero_first"):
                    optimizer.zero_grad()
            return 0.0

        return step

    return setup


def memory(trace: Trace, tracing: Tracing) -> list[tuple[str, int]]:
    """What happens to memory."""
    return tracing.memory_events(trace)


def test_autocast_from_outside_is_autocast_inside(tracing: Tracing) -> None:
    """The same comes and goes as in a step whose author put autocast around forward pass and loss, with the same peak."""
    outside = tracing.trace(changed(setup_of(), ["bf16"]))
    inside = tracing.trace(setup_of(autocast=True))
    assert "bfloat16" in outside.facts["dtypes"]
    assert Counter(memory(inside, tracing)) == Counter(memory(outside, tracing))
    assert tracing.peak(inside) == tracing.peak(outside)


@pytest.mark.parametrize("zero_first", [False, True])
def test_accumulation_from_outside_is_accumulation_inside(tracing: Tracing, zero_first: bool) -> None:
    """Two batches a step, one step of the optimizer, gradients kept in between: as if written so."""
    outside = tracing.trace(changed(setup_of(zero_first=zero_first), ["accumulate"]))
    inside = tracing.trace(setup_of(zero_first=zero_first, micro=2))
    assert inside.facts["optimizer_steps"] == outside.facts["optimizer_steps"]
    assert inside.facts["backward_calls"] == outside.facts["backward_calls"]
    assert tracing.peak(inside) == tracing.peak(outside)
    assert tracing.alive_at_end(inside) == tracing.alive_at_end(outside)


def test_fused_from_outside_is_fused_inside(tracing: Tracing) -> None:
    """The optimizer runs its fused operator and takes no temporaries; the class is as before afterwards."""
    plain = torch.optim.AdamW.__init__
    outside = tracing.trace(changed(setup_of(), ["fused"]))
    inside = tracing.trace(setup_of(optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True)))
    assert "_fused_adamw_" in tracing.op_names(outside)
    assert memory(inside, tracing) == memory(outside, tracing)
    assert plain is torch.optim.AdamW.__init__


def test_checkpointing_uses_the_models_switch(tracing: Tracing) -> None:
    """A model of transformers in a step of the user's is checkpointed: layers are computed again, and less is kept."""
    from transformers import BertConfig, BertForSequenceClassification

    def setup(device: torch.device) -> Callable[[int], None]:
        config = BertConfig(hidden_size=64, num_hidden_layers=6, num_attention_heads=2, intermediate_size=256)
        model = BertForSequenceClassification(config).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(batch_size: int) -> None:
            tokens = torch.randint(0, 1000, (batch_size, 128), device=device)
            model(input_ids=tokens).logits.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    plain, saving = tracing.trace(setup, 64), tracing.trace(changed(setup, ["checkpoint"]), 64)
    assert "gelu" in {op.name.split(".")[1] for op in saving.ops if op.phase == "backward"}
    assert tracing.peak(saving) < 0.7 * tracing.peak(plain)


@pytest.mark.parametrize(
    ("change", "how", "said"),
    [
        ("checkpoint", {}, "no model of the step has a switch"),
        ("fused", {"optimizer": torch.optim.RMSprop}, "no optimizer of torch.optim that has a fused"),
        ("accumulate", {"optimizers": 2}, "makes 2 optimizers"),
        ("accumulate", {"optimizers": 0}, "makes no optimizers"),
        ("accumulate", {"optimizer": torch.optim.LBFGS}, "LBFGS"),
    ],
)
def test_what_cannot_be_changed_says_why(tracing: Tracing, change: str, how: dict[str, Any], said: str) -> None:
    """A step that cannot be changed so raises the reason."""
    with pytest.raises(WorkloadError, match=said):
        tracing.trace(changed(setup_of(**how), [change]))
