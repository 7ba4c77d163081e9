"""When storages are made and freed: what a traced step keeps, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from conftest import Tracing

Step = Callable[[int], Any]


def test_a_storage_lives_as_long_as_someone_holds_it(tracing: Tracing) -> None:
    """Each death stands right after the statement that let go, and views keep their storage."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            a = torch.rand(batch_size, 25, device=device)
            b = a + 1
            view = a[:, :2]
            del a
            c = torch.cat([b, b])
            del view
            d = c * 2
            del b, c
            d.mul_(2)

        return step

    events = tracing.memory_events(tracing.trace(setup, steps=1))[1:]

    assert [
        ("+", 400),
        ("+", 400),
        ("+", 800),
        ("-", 400),
        ("+", 800),
        ("-", 400),
        ("-", 800),
        ("-", 800),
    ] == events


def test_what_is_kept_stays_and_grows(tracing: Tracing) -> None:
    """Losses put into a list outside the step are never freed: four bytes a step."""

    def setup(device: torch.device) -> Step:
        losses: list[torch.Tensor] = []

        def step(batch_size: int) -> None:
            losses.append(torch.rand(batch_size, 10, device=device).sum())

        return step

    assert {4: 3} == dict(tracing.alive_at_end(tracing.trace(setup)))


def test_a_graph_that_is_kept_holds_its_activations(tracing: Tracing) -> None:
    """A loss kept with its graph keeps what backward would need; a detached one does not."""

    def kept(detach: bool) -> Any:
        def setup(device: torch.device) -> Step:
            model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()).to(device)
            losses = []

            def step(batch_size: int) -> None:
                loss = model(torch.rand(batch_size, 8, device=device)).sum()
                losses.append(loss.detach() if detach else loss)

            return step

        return setup

    assert 6 == tracing.alive_at_end(tracing.trace(kept(False), 16))[16 * 8 * 4]  # input and sigmoid, three times
    assert 0 == tracing.alive_at_end(tracing.trace(kept(True), 16))[16 * 8 * 4]


def test_reference_cycles_end_with_the_step(tracing: Tracing) -> None:
    """A cycle of Python objects holds its tensor until the step is over, at every batch size alike."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            box: dict[str, Any] = {"tensor": torch.rand(batch_size, device=device)}
            box["self"] = box
            torch.rand(2 * batch_size, device=device)

        return step

    assert [("+", 16), ("+", 32), ("-", 32), ("-", 16)] == tracing.memory_events(tracing.trace(setup, steps=1))[1:]


def test_checkpointing_holds_less(tracing: Tracing) -> None:
    """Activations of checkpointed blocks are gone until backward makes them again."""
    from training_steps import checkpointed

    def peak(setup: Any) -> int:
        return tracing.peak(tracing.trace(setup, 4096), step=1)

    def whole(device: torch.device) -> Step:
        blocks = nn.Sequential(
            *[nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32)) for _ in range(3)]
        ).to(device)
        optimizer = torch.optim.AdamW(blocks.parameters())

        def step(batch_size: int) -> None:
            blocks(torch.randn(batch_size, 32, device=device, requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    assert peak(checkpointed(False)) < 0.7 * peak(whole)
    assert peak(checkpointed(True)) < 0.7 * peak(whole)


def test_inference_holds_nothing_for_a_backward_pass(tracing: Tracing) -> None:
    """Without gradients, an activation goes as soon as the next layer is done."""

    def setup(device: torch.device) -> Step:
        model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(6)]).to(device)

        def step(batch_size: int) -> None:
            with torch.no_grad():
                model(torch.rand(batch_size, 64, device=device))

        return step

    activation = 1024 * 64 * 4
    trace = tracing.trace(setup, 1024)

    assert 6 * 64 * 64 * 4 + 3 * activation >= tracing.peak(trace)
    assert 0 == trace.facts["backward_calls"]
