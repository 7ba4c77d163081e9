"""Where the time of a step goes: groups add up to what is predicted, on every card and at every batch size."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_tracer import World
from synthetic import MIB, Call, Made, make_trace, programs, scaled

from whichgpu import api, catalogue, render
from whichgpu.errors import CatalogueError, InputError
from whichgpu.speed import constants
from whichgpu.speed.parts import between, parts
from whichgpu.speed.rates import rates
from whichgpu.speed.record import speed
from whichgpu.speed.step_time import demand, predict
from whichgpu.time_explanation import GROUPS, grouped, step_times
from whichgpu.trace import Op, Tensor, Trace

CONSTANTS = constants.load().constants
CARDS = ("RTX 3090", "T4", "H200", "P100 PCIe 16GB")


def of_ops(*ops: Op, names: tuple[str, ...] = ()) -> Trace:
    """A trace of one step with just these operators."""
    made = make_trace([], 8)
    return Trace(**{name: getattr(made, name) for name in made.__struct_fields__} | {"ops": ops, "names": names})


def product(rows: int, module: int = -1, phase: str = "forward", dtype: str = "float32") -> Op:
    """A matrix product in a module."""
    matrices = (Tensor((rows, 4096), dtype), Tensor((4096, 4096), dtype))
    return Op("aten.mm.default", phase, 0, matrices, (Tensor((rows, 4096), dtype),), {}, module=module)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(programs(most=30, names=("aten.add.Tensor", "aten.relu.default")), st.integers(1, 64), st.sampled_from(CARDS))
def test_operators_add_up_to_the_step(calls: list, batch_size: int, card: str) -> None:  # type: ignore[type-arg]
    """Groups and all others are the GPU's time that the step time is made of, and with the wait for the host the step itself."""
    source, priced = scaled(calls), rates(catalogue.load().find(card))
    found = parts(source.low, lambda index: source.op(index, batch_size), priced, CONSTANTS)
    step = predict(demand(source.low, lambda index: source.op(index, batch_size)), priced, CONSTANTS)
    record = speed(batch_size, step.step_s or 1.0, 0.2, "memory")
    times = step_times(priced, found, grouped(source.low, found, host_limited=False), record)

    assert pytest.approx(step.gpu_s, rel=1e-9) == sum(group.gpu_s for group in times.groups) + times.others.gpu_s
    if step.gpu_s:
        assert pytest.approx(step.step_s, rel=1e-9) == times.gpu_s + times.waiting_s
        assert pytest.approx(step.host_s, rel=1e-9) == times.host_s
        assert pytest.approx(1.0) == (times.waiting_s / times.step_s) + times.others.share + sum(
            group.share for group in times.groups
        )
    assert pytest.approx(times.gpu_s, abs=1e-12) == times.compute_s + times.memory_s
    assert len(times.groups) <= GROUPS
    assert sorted((group.gpu_s for group in times.groups), reverse=True) == [group.gpu_s for group in times.groups]


def test_repeated_layers_are_one_group() -> None:
    """Operators of modules that differ in numbers only are one, with how many there are; phases are told apart."""
    names = ("encoder.layer.0.dense", "encoder.layer.1.dense", "head")
    trace = of_ops(product(512, 0), product(512, 1), product(4096, 2), product(512, 1, "backward"), names=names)
    found = parts(trace, trace.ops.__getitem__, rates(catalogue.load().find("A100 80GB")), CONSTANTS)
    groups = grouped(trace, found, host_limited=False)

    assert [("head", 1, 1), ("encoder.layer.*.dense", 2, 2), ("encoder.layer.1.dense", 1, 1)] == [
        (group.module, group.modules, group.calls) for group in groups
    ]
    assert ["forward", "forward", "backward"] == [group.phase for group in groups]
    assert {"compute"} == {group.limit for group in groups}


def test_the_arithmetic_of_a_group_is_that_of_most_flops() -> None:
    """Whichever of its operators comes first."""
    trace = of_ops(product(64, 0), product(4096, 1, dtype="float16"), names=("layer.0", "layer.1"))
    found = parts(trace, trace.ops.__getitem__, rates(catalogue.load().find("A100 80GB")), CONSTANTS)
    (group,) = grouped(trace, found, host_limited=False)
    assert ("fp16", 2) == (group.pipe, group.calls)


def test_launches_limit_a_group_only_where_they_limit_the_step() -> None:
    """Small kernels of a step that the GPU limits hide their launches behind large ones."""
    trace = of_ops(product(1))
    found = parts(trace, trace.ops.__getitem__, rates(catalogue.load().find("H200")), CONSTANTS)
    tiny = found._replace(host_s=found.gpu_s * 3)

    assert ["host"] == [group.limit for group in grouped(trace, tiny, host_limited=True)]
    assert "host" not in [group.limit for group in grouped(trace, tiny, host_limited=False)]


def test_between_two_batch_sizes_everything_is_on_a_line() -> None:
    """As step times are taken, so that the parts add up to them there too."""
    priced = rates(catalogue.load().find("RTX 3090"))
    first, last = (
        parts(trace, trace.ops.__getitem__, priced, CONSTANTS) for trace in (of_ops(product(64)), of_ops(product(8192)))
    )
    middle = between(first, last, 0.25)

    assert pytest.approx(0.75 * first.step_s + 0.25 * last.step_s) == middle.step_s
    assert pytest.approx(0.75 * first.gpu_s[0] + 0.25 * last.gpu_s[0]) == middle.gpu_s[0]
    assert pytest.approx(0.75 * first.flops[0] + 0.25 * last.flops[0]) == middle.flops[0]


def test_only_peaks_that_the_card_has_and_the_step_uses_are_a_roof() -> None:
    """What a card computes otherwise stands below the roof of float32."""

    def roofs(card: str) -> dict[str, float]:
        priced, trace = rates(catalogue.load().find(card)), of_ops(product(512, dtype="float16"))
        found = parts(trace, trace.ops.__getitem__, priced, CONSTANTS)
        groups = grouped(trace, found, host_limited=False)
        return step_times(priced, found, groups, speed(8, found.step_s, 0.2, "compute")).peak_flops_per_s

    assert ["fp16"] == list(roofs("RTX 3090"))
    assert ["fp32"] == list(roofs("GTX 1080 Ti"))


# ---- whichgpu explain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [8, 48, 100])
def test_explain_says_the_step_time_of_fit(world: World, batch_size: int) -> None:
    """Also between powers of two, where both are on a line."""
    found = api.explain("bert-base", gpu="RTX 3060", batch_size=batch_size).time
    assert found is not None
    assert pytest.approx(found.speed.step_s, rel=1e-3) == found.step_s
    assert pytest.approx(found.step_s) == found.waiting_s + found.others.gpu_s + sum(one.gpu_s for one in found.groups)


def test_explain_says_the_time_of_a_step_whose_sizes_do_not_follow(world: World) -> None:
    """Then a trace of its own is what the parts come from."""
    world.bucket = 16
    found = api.explain("bert-base", gpu="RTX 3060", batch_size=5).time
    assert found is not None
    assert pytest.approx(found.speed.step_s, rel=1e-3) == found.step_s


def test_without_a_card_nothing_is_said_of_time(world: World) -> None:
    """Time is of a card."""
    report = api.explain("bert-base", batch_size=8)
    assert (None, "") == (report.time, report.time_missing)


def test_why_a_time_is_unknown_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dtype that the card lacks, a figure that is missing; memory is explained all the same."""
    world.facts = {"dtypes": ["bfloat16"]}
    lacking = api.explain("bert-base", gpu="P100 PCIe 16GB", batch_size=8)
    assert lacking.time is None
    assert lacking.peak_allocated_bytes > 0
    assert "bfloat16" in lacking.time_missing or "kernels" in lacking.time_missing
    shown = io.StringIO()
    render.print_explain(lacking, render.make_console(shown, 80))
    assert "Time of a step: unknown" in shown.getvalue()


def test_a_roofline_needs_a_card_whose_peaks_are_known(world: World, tmp_path: Path) -> None:
    """It is refused before anything is traced."""
    with pytest.raises(InputError, match="--gpu"):
        api.explain("bert-base", roofline=tmp_path / "a.png")
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        api.explain("bert-base", gpu="RTX 3090", roofline=tmp_path / "a.jpg")
    with pytest.raises(InputError, match="no folder"):
        api.explain("bert-base", gpu="RTX 3090", roofline=tmp_path / "nowhere" / "a.png")
    assert [] == world.asked
    assert [] == list(tmp_path.iterdir())


def test_a_missing_figure_of_a_card_is_named(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory is explained without it; a roofline is refused before anything is traced."""
    card = msgspec.structs.replace(catalogue.load().find("RTX 3090"), fp32_tflops=None, tdp_w=None)
    monkeypatch.setattr(catalogue.Catalogue, "find", lambda *_: card)
    with pytest.raises(CatalogueError, match="fp32_tflops and tdp_w are unknown"):
        api.explain("bert-base", gpu="RTX 3090", roofline=tmp_path / "a.png")
    assert [] == world.asked
    report = api.explain("bert-base", gpu="RTX 3090", batch_size=8)
    assert report.time is None
    assert "fp32_tflops and tdp_w are unknown" in report.time_missing
    assert report.peak_allocated_bytes > 0


def test_a_step_without_an_operator_on_the_gpu_has_no_time(world: World, tmp_path: Path) -> None:
    """It says so, and nothing is drawn."""
    world.calls["bert-base"] = [Call((Made(MIB, MIB, "activation"),), name="aten.empty.memory_format")]
    report = api.explain("bert-base", gpu="RTX 3090", batch_size=8)
    assert (None, "the step runs no operator on the GPU") == (report.time, report.time_missing)
    with pytest.raises(InputError, match="no roofline to draw: the step runs no operator on the GPU"):
        api.explain("bert-base", gpu="RTX 3090", batch_size=8, roofline=tmp_path / "a.png")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_roofline_is_a_picture(world: World, tmp_path: Path, ending: str) -> None:
    """A file of its kind, whole, and the report names it."""
    report = api.explain("bert-base", gpu="RTX 3090", batch_size=8, roofline=tmp_path / f"a.{ending}")
    found = (tmp_path / f"a.{ending}").read_bytes()
    assert found.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert str(tmp_path / f"a.{ending}") == report.roofline
    assert [f"a.{ending}"] == [path.name for path in tmp_path.iterdir()]
