"""The rules for memory inside operators, on operators made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu.trace import Op, Phase, Tensor
from whichgpu.workspaces import RULES, Temporary, cublas_workspace_bytes, facts, temporaries

HOPPER, TURING = (9, 0), (7, 5)


def op(name: str, *inputs: Tensor, phase: Phase = "forward", **attributes: Any) -> Op:
    """An operator of ATen."""
    return Op(f"aten.{name}", phase, 0, inputs, (), attributes)


def matrix(rows: int, columns: int) -> Tensor:
    """A float32 matrix."""
    return Tensor((rows, columns), "float32")


def test_operator_without_rule_takes_nothing() -> None:
    """An operator that no rule names is taken to need no memory beyond its outputs."""
    assert () == temporaries(op("add.Tensor", matrix(2, 2), matrix(2, 2)), HOPPER)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(HOPPER, 32 << 20), (TURING, 8519680), ((8, 6), 8519680), ((12, 0), 32 << 20)],
)
def test_cublas_workspace_size_depends_on_the_card(capability: tuple[int, int], expected: int) -> None:
    """Hopper and Blackwell get 32 MiB a handle, older cards 8.125 MiB."""
    assert expected == cublas_workspace_bytes(capability)


def test_each_thread_takes_one_cublas_workspace() -> None:
    """Forward and backward threads each keep one workspace, taken at their first product only."""
    forward = temporaries(op("mm.default", matrix(2, 3), matrix(3, 4)), HOPPER)
    backward = temporaries(op("mm.default", matrix(2, 3), matrix(3, 4), phase="backward"), HOPPER, {forward[0].key})

    assert forward[0].kept
    assert backward[0].key != forward[0].key
    assert () == temporaries(op("addmm.default"), HOPPER, {forward[0].key})


def test_few_embedding_indices_need_no_temporaries() -> None:
    """Up to 3072 indices the embedding's gradient is summed in place."""
    grad, index = Tensor((3072, 64), "float32"), Tensor((3072,), "int64")
    assert () == temporaries(op("embedding_dense_backward.default", grad, index, num_weights=100), HOPPER)


def test_many_embedding_indices_are_sorted_and_summed_in_float32() -> None:
    """Beyond 3072 indices two sorted copies come before the output and a float32 accumulator after it."""
    grad, index = Tensor((8, 1000, 70), "bfloat16"), Tensor((8, 1000), "int64")
    found = temporaries(op("embedding_dense_backward.default", grad, index, num_weights=500), HOPPER)

    assert [Temporary(64000, 0)] * 2 == list(found[:2])
    assert Temporary((800 + 500) * 96 * 4) == found[-1]


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 3000), st.sampled_from([32, 64, 80, 128, 256]))
def test_flash_backward_accumulator_covers_the_query_in_float32(
    batch: int, heads: int, length: int, width: int
) -> None:
    """The accumulator of the query's gradient holds at least the query in float32, at most rounded up."""
    query = Tensor((batch, heads, length, width), "bfloat16")
    found = temporaries(
        op(
            "_scaled_dot_product_flash_attention_backward.default",
            query,
            query,
            query,
            query,
            phase="backward",
        ),
        HOPPER,
    )
    least = batch * heads * length * width * 4

    assert 2 == len(found)
    assert least <= found[1].bytes <= batch * heads * (length + 127) * (width + 63) * 4


def test_grouped_flash_backward_expands_keys_and_values() -> None:
    """With fewer key heads than query heads gradients of keys and values are made for each head first."""
    query, key = Tensor((2, 8, 256, 64), "float16"), Tensor((2, 2, 256, 64), "float16")
    found = temporaries(
        op("_scaled_dot_product_flash_attention_backward.default", query, query, key, key, phase="backward"),
        HOPPER,
    )
    assert [2 * 8 * 256 * 64 * 2] * 2 == [entry.bytes for entry in found[2:]]


def test_every_fact_names_its_source_and_date() -> None:
    """Each table of figures says where they come from and when that was checked."""
    for name, table in facts().items():
        assert str(table["source"]).startswith("https://"), name
        assert table["checked"].year >= 2026, name


def test_rules_are_for_operators_of_aten() -> None:
    """A rule's name is an overload name as traces write it."""
    assert [] == [name for name in RULES if name.count(".") != 2 or not name.startswith("aten.")]
