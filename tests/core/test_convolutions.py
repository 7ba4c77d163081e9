"""Convolutions: what cuDNN is asked for, and the workspaces that it takes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces import cudnn, cudnn_search, temporaries, temporaries_on_any
from whichgpu.workspaces.convolution import problems
from whichgpu.workspaces.cudnn import Problem
from whichgpu.workspaces.records import Temporary

HOPPER = (9, 0)
ANSWERS = Path(__file__).parents[2] / "tools" / "workspace_grid" / "heuristics.jsonl.gz"


def last(*shape: int, dtype: str = "float32") -> Tensor:
    """A tensor of images with channels last."""
    _, channels, height, width = shape
    return Tensor(shape, dtype, (channels * height * width, 1, width * channels, channels))


def first(*shape: int, dtype: str = "float32") -> Tensor:
    """A contiguous tensor."""
    return Tensor(shape, dtype)


def convolution(source: Tensor, weight: Tensor, **attributes: Any) -> Op:
    """A forward pass with a padding of one."""
    return Op("aten.convolution.default", "forward", 0, (source, weight), (), {"padding": [1, 1], **attributes})


def backward(grad: Tensor, source: Tensor, weight: Tensor, **attributes: Any) -> Op:
    """A backward pass with a padding of one."""
    name = "aten.convolution_backward.default"
    return Op(name, "backward", 0, (grad, source, weight), (), {"padding": [1, 1], **attributes})


def test_vgg_workspace_is_the_answer_of_cudnn() -> None:
    """A convolution that the table knows takes what cuDNN answered: of VGG-16 at 16 images, 411,189,395 bytes."""
    found = temporaries(convolution(first(16, 64, 224, 224), first(64, 64, 3, 3)), HOPPER)
    assert [pytest.approx(411_189_395, rel=0.002)] == [one.bytes for one in found if not one.instead]


def test_what_pytorch_falls_back_on_is_smaller_each_time() -> None:
    """Where VGG-16's workspace has no room, cuDNN 9.19 names an engine that copies input and weight alone, then one without
    any; a gradient of the input has nothing in between."""
    image, weight = first(110, 64, 224, 224), first(64, 64, 3, 3)
    forward, less = temporaries(convolution(image, weight), HOPPER)
    gradient = Op("aten.convolution_backward.default", "backward", 0, (image, image, weight), (),
                  {"padding": [1, 1], "output_mask": [True, False, False]})  # fmt: skip

    assert (False, True) == (forward.instead, less.instead)
    assert forward.plan != less.plan
    assert pytest.approx(1347.6 * 2**20, rel=0.001) == less.bytes < forward.bytes
    assert [False] == [one.instead for one in temporaries(gradient, HOPPER)]


def test_a_transposed_convolution_shares_the_plan_of_the_one_that_it_mirrors() -> None:
    """Their weight gradients are one problem to cuDNN, whose engine a thread keeps; other batch sizes and phases are others."""

    def plans(op: Op) -> list[str]:
        return [one.plan for one in temporaries(op, HOPPER) if one.optional]

    small, large, weight = first(32, 256, 8, 8), first(32, 128, 16, 16), first(256, 128, 4, 4)
    plain = plans(backward(small, large, weight, stride=[2, 2]))
    mirrored = plans(backward(large, small, weight, stride=[2, 2], transposed=True))
    fewer = plans(backward(first(16, 256, 8, 8), first(16, 128, 16, 16), weight, stride=[2, 2]))
    forward = plans(convolution(small, weight, stride=[2, 2], transposed=True))

    assert plain[-1] == mirrored[-1]
    assert set(plain).isdisjoint([mirrored[0], *fewer, *forward])


def test_answers_come_out_as_they_were_given() -> None:
    """Of 500 answers of cuDNN at several batch sizes, 99 % come out within 1 MiB or 1 % of operands and workspace."""
    near = []
    with gzip.open(ANSWERS, "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            record = json.loads(line)
            if len(record["n"]) < 4 or record["t"] or len(near) >= 500:
                continue
            place = len(record["n"]) // 2
            batch, size = record["n"][place], record.get("bytes_all", record["bytes"])[0][place]
            dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(record["dtype"], record["dtype"])
            sides = ((batch, *record["x"]), tuple(record["w"]), (batch, *record["y"]))
            how = (tuple(record[name]) for name in "spd")
            problem = Problem("forward", *sides, *how, record["g"], dtype, record["last"])
            touched = size + cudnn.needs(problem)[cudnn.FORMULAS.index("all")]
            near.append(abs(size - cudnn.workspace_bytes(problem)) <= max(1 << 20, 0.01 * touched))
    assert len(near) == 500
    assert sum(near) >= 495


def test_the_table_is_for_the_features_and_formulas_of_the_module() -> None:
    """Numbers in the packaged trees mean what the module takes them for."""
    assert cudnn.FEATURES == cudnn.table().features
    assert cudnn.FORMULAS == cudnn.table().formulas


def test_each_feature_and_formula_has_a_name() -> None:
    """Features and formulas are as many as their names."""
    (problem,) = problems(convolution(first(2, 8, 9, 9), first(4, 8, 3, 3)))
    assert len(cudnn.FEATURES) == len(cudnn.features(problem))
    assert len(cudnn.FORMULAS) == len(cudnn.needs(problem))


def test_benchmark_searches_each_problem_once_in_each_thread() -> None:
    """The largest workspace is taken before the engine's own, by a name that the problem and the pass decide."""
    image, weight = first(16, 64, 224, 224), first(64, 64, 3, 3)
    search, run, _ = temporaries(convolution(image, weight, benchmark=True), HOPPER)
    again = temporaries(convolution(image, weight, benchmark=True, output_padding=[0, 0]), HOPPER)[0]
    deeper = Op("aten.convolution.default", "backward", 0, (image, weight), (), {"padding": [1, 1], "benchmark": True})

    assert search.search == again.search != temporaries(deeper, HOPPER)[0].search
    assert search.optional
    assert not run.search
    assert run.bytes <= search.bytes
    assert not any(one.search for one in temporaries(convolution(image, weight), HOPPER))


@pytest.mark.parametrize(
    ("direction", "stride", "expected"),
    [
        ("forward", 1, 4 * 256 * 256 * 9 + 2 * (8192 + 65536) * 32 * 17 * 8),
        ("filter", 1, 4 * 32 * 256 * 784 + 2 * 65536 * 32 * 17 * 8),
        ("data", 1, 356_515_840),  # as cuDNN 9.19 listed on an H200
        ("data", 2, 1_356_365_824),
    ],
)
def test_transforms_need_the_same_bytes_as_on_the_card(direction: str, stride: int, expected: int) -> None:
    """Fourier transforms of 32 images of 28 x 28 with 256 channels: whole, or in tiles for the input's gradient."""
    side = 28 // stride
    shapes = ((32, 256, 28, 28), (256, 256, 3, 3), (32, 256, side, side))
    problem = Problem(direction, *shapes, (stride, stride), (1, 1), (1, 1), 1, "tf32", False)
    found = dict(zip(cudnn_search.FORMULAS, cudnn_search.needs(problem), strict=True))

    assert expected == found["tiled transforms" if direction == "data" else "transforms"]


def test_the_tables_search_is_for_the_formulas_of_its_module() -> None:
    """Numbers in the packaged trees mean what the module takes them for."""
    assert cudnn_search.FORMULAS == cudnn.table().search_formulas


def test_backward_gives_one_workspace_back_before_the_next_gradient() -> None:
    """The input gradient's workspace is gone before the weight gradient is allocated."""
    image = first(16, 64, 224, 224)
    found = temporaries(backward(image, image, first(64, 64, 3, 3), output_mask=[True, True, False]), HOPPER)
    assert [(1, 1), (2, 2)] == [(one.before_output, one.freed_before) for one in found]


def test_backward_asks_for_what_the_mask_names() -> None:
    """Of a first layer only the weight gradient is asked for; the bias needs no cuDNN."""
    op = backward(first(4, 8, 9, 9), first(4, 3, 9, 9), first(8, 3, 3, 3), output_mask=[False, True, True])
    assert ["filter"] == [problem.direction for problem in problems(op)]


@pytest.mark.parametrize("capability", [(6, 1), (7, 5), (8, 9), (10, 0)])
@pytest.mark.parametrize("mask", [None, [True, True, False], [False, True, False], [True, True, True]])
def test_what_is_said_of_all_cards_holds_on_each(capability: tuple[int, int], mask: list[bool] | None) -> None:
    """A convolution takes the same on all cards, and where a bias has a gradient that is left to the card."""
    named = {} if mask is None else {"output_mask": mask}
    operator = backward(first(16, 64, 56, 56), first(16, 64, 56, 56), first(64, 64, 3, 3), **named)
    on_any = temporaries_on_any(operator)
    assert (on_any is None) == (mask is not None and mask[2])
    assert on_any in (None, temporaries(operator, capability))


def test_transposed_convolution_is_an_input_gradient() -> None:
    """Its forward pass is the input gradient of the plain convolution, whose input is the larger image."""
    op = convolution(first(4, 8, 9, 9), first(8, 6, 4, 4), transposed=True, stride=[2, 2])
    (problem,) = problems(op)
    assert ("data", (4, 6, 18, 18), (4, 8, 9, 9)) == (problem.direction, problem.input, problem.output)


def test_tf32_that_is_not_allowed_is_float32() -> None:
    """Full precision has trees of its own."""
    asked = [
        problems(convolution(first(1, 8, 9, 9), first(8, 8, 3, 3), allow_tf32=allowed))[0].dtype
        for allowed in (True, False)
    ]
    assert ["tf32", "float32"] == asked


@pytest.mark.parametrize(
    ("tensor", "by_cudnn"),
    [
        (first(8, 64, 14, 14), False),
        (first(8, 64, 14, 14, dtype="bfloat16"), False),
        (first(8, 64, 14, 14, dtype="float16"), True),
        (first(8, 16, 14, 14, dtype="float16"), False),
        (first(8, 64, 6, 6, dtype="float16"), False),
        (last(8, 64, 14, 14), True),
    ],
)
def test_depthwise_convolutions_mostly_run_in_pytorch(tensor: Tensor, by_cudnn: bool) -> None:
    """cuDNN gets those with channels last, and in float16 those with enough channels and width."""
    channels = tensor.shape[1]
    op = convolution(tensor, first(channels, 1, 3, 3, dtype=tensor.dtype), groups=channels)
    assert by_cudnn == bool(problems(op))


def test_input_is_copied_where_only_the_weight_has_channels_last() -> None:
    """The convolution runs with channels last, and a copy of its input is made before the result."""
    source = first(8, 64, 28, 28)
    found = temporaries(convolution(source, last(64, 64, 3, 3)), HOPPER)
    assert (8 * 64 * 28 * 28 * 4, 0) == (found[0].bytes, found[0].before_output)
    assert problems(convolution(source, last(64, 64, 3, 3)))[0].channels_last


def test_weight_is_copied_after_the_result() -> None:
    """PyTorch allocates a result before it copies the weight, forward and for the gradient of the input."""
    source, weight = last(4, 16, 8, 8), first(32, 16, 3, 3)
    grad = last(4, 32, 8, 8)
    copy, *_ = temporaries(convolution(source, weight), HOPPER)
    assert Temporary(4 * 32 * 16 * 9) == copy
    copy, *_ = temporaries(backward(grad, source, weight), HOPPER)
    assert Temporary(4 * 32 * 16 * 9, before_output=1, freed_before=1) == copy


def test_weight_is_not_copied_for_its_own_gradient() -> None:
    """Only the gradient of the input is computed from the weight."""
    source, weight, grad = last(4, 16, 8, 8), first(32, 16, 3, 3), last(4, 32, 8, 8)
    taken = temporaries(backward(grad, source, weight, output_mask=[False, True, False]), HOPPER)
    assert all(one.optional for one in taken)


def test_a_permuted_sequence_is_made_contiguous() -> None:
    """PyTorch copies a sequence whose channels are fastest before it runs it, forward and for the gradients."""
    sequence, weight = Tensor((8, 64, 100), "float32", (6400, 1, 64)), first(64, 64, 3)
    op = Op("aten.convolution.default", "forward", 0, (sequence, weight), (), {"padding": [1]})
    for one in (op, backward(first(8, 64, 100), sequence, weight, padding=[1])):
        assert not any(problem.channels_last for problem in problems(one))
        assert 8 * 64 * 100 * 4 == temporaries(one, HOPPER)[0].bytes


@given(st.integers(1, 3000))
def test_pieces_hold_until_the_next_one(batch: int) -> None:
    """A formula or a line goes on to the next piece; between two pieces the longer one counts."""
    pieces = [(2, 8, 0, 7), (16, 16, -1, 100, 100), (32, 128, 1, 0)]
    found = cudnn.recalled(pieces, batch, [100 * batch, 10 * batch])

    if batch < 16:
        assert 100 * batch + 7 == found
    elif batch == 16:
        assert 100 == found
    else:
        assert 10 * batch == found
