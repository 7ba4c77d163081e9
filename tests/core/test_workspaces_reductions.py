"""Buffers of reductions against what an H200 was seen to allocate."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces import temporaries
from whichgpu.workspaces.reductions import accumulator_bytes, buffer_bytes, reduction

GRID = Path(__file__).parents[2] / "tools" / "workspace_grid"
HOPPER = (9, 0)


@pytest.mark.parametrize(
    ("shape", "dtype", "dims", "expected"),
    [
        ((3152, 768), "float32", [0], 19_660_800),
        ((1568, 768), "bfloat16", [0], 9_830_400),
        ((32128, 512), "float32", [0], 131_596_288),
        ((64, 768), "float32", [0], 0),
    ],
)
def test_recorded_buffers(shape: tuple[int, ...], dtype: str, dims: list[int], expected: int) -> None:
    """The sums and norms seen inside real training steps take exactly the recorded bytes."""
    assert expected == buffer_bytes(Tensor(shape, dtype), dims, HOPPER)


def test_measured_grid_is_reproduced() -> None:
    """Nearly every sum, mean and norm of the measured grid takes what the rule says, to one percent, and of semaphores
    as many blocks of memory."""
    right = wrong = 0
    for name in ("measured.jsonl.gz", "measured_kernels.jsonl.gz"):
        with gzip.open(GRID / name, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if not usable(record):
                    continue
                results = {output[3] for output in record["o"] if output}
                taken = [size for size in record["e"] if size > 0]
                most = max((size for at, size in enumerate(taken, 1) if at not in results), default=0)
                shape, dtype, stride = record["a"]["self"]["t"]
                tensor = Tensor(tuple(shape), dtype, tuple(stride or ()))
                dims = record["a"].get("dim") or []
                close = abs(buffer_bytes(tensor, dims, HOPPER) - most) <= max(4096, most // 100)
                right, wrong = right + close, wrong + (not close)
                counters = [one.bytes for one in reduction(tensor, dims, accumulator_bytes(dtype), HOPPER)][1:]
                seen = [size for at, size in enumerate(taken, 1) if at not in results][1:]
                if counters or (most > 0 and dtype != "bool"):
                    assert [blocks(size) for size in counters] == [blocks(size) for size in seen]

    assert right > 1000
    assert wrong <= 1


def blocks(size: int) -> int:
    """Of 512 bytes, as the allocator gives them."""
    return -(-size // 512)


def usable(record: dict) -> bool:
    """Whether a record is a reduction of one tensor that was not the process's first."""
    names = ("aten.sum.dim_IntList", "aten.sum.default", "aten.mean.dim", "aten.mean.default")
    names += ("aten.linalg_vector_norm.default",)
    return (
        record.get("n") in names and record.get("e") is not None and not record.get("first") and "self" in record["a"]
    )


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.data())
def test_small_reductions_take_nothing(shape: list[int], data: st.DataObject) -> None:
    """Fewer than 256 values a result never need a buffer, and no reduction asks for a negative one."""
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    size = buffer_bytes(Tensor(tuple(shape), "float32"), dims, HOPPER)
    values = 1
    for dim in dims:
        values *= shape[dim]

    assert size >= 0
    assert values >= 256 or size == 0


def test_the_rule_is_found_by_name() -> None:
    """A sum in a trace gets its buffer and semaphores after its result."""
    op = Op("aten.sum.dim_IntList", "backward", 0, (Tensor((3152, 768), "float32"),), (), {"dim": [0], "keepdim": True})

    assert [(19_660_800, -1), (24, -1)] == [(found.bytes, found.before_output) for found in temporaries(op, HOPPER)]
