"""What tracing does not cover is refused by name, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from whichgpu.capture.run import capture
from whichgpu.capture.target import Target
from whichgpu.errors import WorkloadError


def _graph(model: Any, x: Any) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        model(x)


def _distributed(model: Any, x: Any) -> None:
    torch.distributed.init_process_group("gloo")


def _sparse(model: Any, x: Any) -> None:
    torch.eye(8, device=x.device).to_sparse_csr()


def _nested(model: Any, x: Any) -> None:
    torch.nested.nested_tensor([x, x], layout=torch.jagged)


def _flex(model: Any, x: Any) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = x.view(-1, 1, 1, 8)
    flex_attention(q, q, q)


def _type(model: Any, x: Any) -> None:
    torch.set_default_tensor_type("torch.cuda.FloatTensor")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (_graph, "CUDA graphs are not covered; trace the step without them"),
        (_distributed, "torch.distributed is not covered: a step is traced for one process"),
        (_sparse, "a tensor of layout torch.sparse_csr is not covered; use a dense one or to_sparse_coo()"),
        (_nested, "nested tensors are not covered; pad the sequences"),
        (_flex, "flex_attention is not covered; use torch.nn.functional.scaled_dot_product_attention"),
        (_type, 'write torch.set_default_device("cuda") instead'),
    ],
)
def test_what_is_not_covered_is_named_with_a_cure(use: Any, words: str) -> None:
    """One line that starts with the workload's name, whatever PyTorch itself would have said."""

    def setup(device: Any) -> Any:
        model = torch.nn.Linear(8, 8).to(device)
        return lambda batch_size: use(model, torch.randn(batch_size, 8, device=device))

    with pytest.raises(WorkloadError) as caught:
        capture("mine.py:setup", setup, 4, Target.parse("8.9"))

    assert str(caught.value).startswith("mine.py:setup: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_annotations_may_name_what_is_refused() -> None:
    """A library's `CUDAGraph | None` is evaluated while it is imported, which may be within the set-up."""

    def setup(device: Any) -> Any:
        assert torch.cuda.CUDAGraph | None
        x = torch.ones(4, device=device)
        return lambda batch_size: x + batch_size

    assert 1 == capture("mine.py:setup", setup, 4, Target.parse("8.9"), steps=1).steps


def test_pinned_memory_says_that_it_is() -> None:
    """A step may check that its batch is pinned before it copies it."""
    seen = []

    def setup(device: Any) -> Any:
        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 8)
            seen.append((x.is_pinned(), x.pin_memory().is_pinned()))
            x.to(device, non_blocking=True)

        return step

    capture("mine.py:setup", setup, 4, Target.parse("8.9"), steps=1)

    assert [(False, True)] == seen
