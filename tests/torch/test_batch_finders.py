"""The adapters of tools/compare_batch_finders.py: each finder ends, with a batch size that ran. Finders are optional."""

from __future__ import annotations

import pytest
import torch

import compare_batch_finders

pytestmark = pytest.mark.filterwarnings("ignore")  # the finders' own


@pytest.mark.parametrize("finder", list(compare_batch_finders.PEERS))
def test_finders_end_where_the_step_runs_out_of_memory(finder: str) -> None:
    """Each adapter hands its finder a step and gets an answer that ran."""
    package, module, find = compare_batch_finders.PEERS[finder]
    pytest.importorskip(module, reason=f"{package} is not installed")
    ran = []

    def step(batch_size: int) -> None:
        if batch_size > 129:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        ran.append(batch_size)

    if finder.startswith("lightning"):
        found = compare_batch_finders.find_with_lightning(step, finder.split()[1], "cpu")
    else:
        found = find(step)
    assert 0 < found <= max(ran) <= 129
