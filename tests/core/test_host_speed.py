"""How fast a host is: what it does itself in a step, where it waits, and its speed against the reference."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from made_up_tracer import World

from whichgpu import api, catalogue, host_speed
from whichgpu.advising.wishes import Wishes
from whichgpu.errors import BenchError, InputError
from whichgpu.host_speed import HostSpeed, Probe
from whichgpu.speed import constants
from whichgpu.speed.costs import costs
from whichgpu.speed.host import Work, cuts, work_of
from whichgpu.speed.rates import rates
from whichgpu.speed.step_time import demand, predict
from whichgpu.trace import Op, Tensor, Trace

CONSTANTS = constants.load().constants
H200 = rates(catalogue.load().find("H200"))
LARGE = Tensor((4096, 4096), "float32", (), 0)
PROBE = Probe(
    launches_us={"forward": 100.0, "backward": 200.0, "optimizer": 300.0}, normal_ns=3.0, uniform_ns=3.0, integer_ns=3.0,
    copy_ns_per_byte=0.1, processor="a processor", processors=8, load=0.1, torch="2.11", python="3.12", date="2026-12-03",
    seconds=8.0,
)  # fmt: skip


def op(name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], **attributes: object) -> Op:
    """An operator of a forward pass."""
    return Op(f"aten.{name}", "forward", 0, inputs, outputs, attributes)


def trace(*ops: Op, batch_size: int = 1, work: list[list[object]] | None = None) -> Trace:
    """One step."""
    return Trace(
        workload="w", batch_size=batch_size, capability="9.0", kind="fake", torch_version="", steps=1, names=(), ops=ops,
        storages=(), events=(), facts={"host_work": work or []},
    )  # fmt: skip


def product() -> Op:
    """A large matrix product."""
    return op("mm.default", (LARGE, LARGE), (LARGE,))


def small() -> list[Op]:
    """What takes the host much longer than the GPU."""
    tiny = Tensor((2, 2), "float32", (), 0)
    return [op("relu.default", (tiny,), (tiny,))] * 100


def test_a_step_that_reads_a_value_takes_the_gpu_s_time_and_then_the_host_s() -> None:
    """Without the wait the host runs ahead while the GPU works."""
    ops = (*[product()] * 10, *small())
    ahead = predict(demand(trace(*ops)), H200, CONSTANTS)
    # the step ends with a wait too
    waits = predict(demand(trace(*ops, work=[[10, "wait", 1, 1], [110, "wait", 1, 1]])), H200, CONSTANTS)

    assert ahead.step_s < 0.9 * (ahead.gpu_s + ahead.host_s)
    assert waits.step_s > 0.95 * (ahead.gpu_s + ahead.host_s)


def test_parts_add_up_to_the_whole() -> None:
    """Costs and launches of all parts are those of the step."""
    step = demand(trace(*[product()] * 3, *small(), work=[[3, "wait", 1, 1], [50, "wait", 1, 1]]))

    assert 2 == len(step.parts)
    assert step.costs == {cost: sum(part.costs.get(cost, 0) for part in step.parts) for cost in step.costs}
    assert step.launches == {kind: sum(part.launches[kind] for part in step.parts) for kind in step.launches}


def test_operators_whose_size_depends_on_values_wait() -> None:
    """`nonzero`, and an index that is a mask; not an index of numbers."""
    data, mask, where = (Tensor((8,), dtype, (), 0) for dtype in ("float32", "bool", "int64"))
    ops = [
        op("nonzero.default", (mask,), (where,)),
        op("index.Tensor", (data, mask), (data,)),
        op("index.Tensor", (data, where), (data,)),
    ]

    assert [1, 2] == cuts(enumerate(ops), [])


def test_a_copy_from_the_host_takes_the_host_s_time_and_no_kernel() -> None:
    """Memory that is not pinned crosses by the host's hand."""
    image = Tensor((1024, 1024), "float32")
    copy = op("_to_copy.default", (image,), (msgspec.structs.replace(image, storage=3),))
    step = demand(trace(copy, work=[[0, "upload", 1, 1024 * 1024]]))

    assert () == costs(copy)
    assert 4 * 1024 * 1024 / 1000 == step.launches["uploaded_bytes"]
    assert [1] == cuts([(0, copy)], [Work(0, "upload", 1, 1024 * 1024)])


def test_a_small_copy_that_nobody_waits_for_does_not_cut_the_step() -> None:
    """The driver takes up to 64 KiB at once."""
    labels = Tensor((96,), "int64")
    copy = op("_to_copy.default", (labels,), (msgspec.structs.replace(labels, storage=3),))

    assert [] == cuts([(0, copy)], [Work(0, "upload_async", 1, 96)])


def test_data_that_the_host_makes_grows_with_the_batch() -> None:
    """Between two traces and beyond them elements are on a line."""
    low, high = (trace(batch_size=size, work=[[0, "random", 1, 100 * size]]) for size in (4, 8))

    assert [Work(0, "random", 1, 1600.0)] == work_of(low, high, 16)


def test_a_host_that_takes_twice_as_long_is_half_as_fast() -> None:
    """The geometric mean over the phases."""
    slow = msgspec.structs.replace(PROBE, launches_us={name: 2 * us for name, us in PROBE.launches_us.items()})

    assert 0.5 == host_speed.against(slow, PROBE)
    assert 1.0 == host_speed.against(PROBE, PROBE)


def test_a_calibration_is_kept_for_this_host_alone(tmp_path: Path) -> None:
    """What another host left in a shared home is not taken for this one's."""
    command = (sys.executable, "-c", f"print({msgspec.json.encode(PROBE).decode()!r})")
    file = tmp_path / "folder" / "host.json"
    found = host_speed.calibrate(file, command)

    assert host_speed.kept(file) == found
    assert found.host_speed == host_speed.against(PROBE, host_speed.reference())
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": platform.node() + "-other"}))
    assert host_speed.kept(file) is None
    file.write_text("damaged")
    assert host_speed.kept(file) is None


def test_a_host_that_cannot_be_timed_is_said_in_one_line(tmp_path: Path) -> None:
    """The last line of what the process said."""
    command = (sys.executable, "-c", "import sys; sys.exit('No module named torch')")

    with pytest.raises(BenchError, match=r"^the host could not be timed: No module named torch$"):
        host_speed.calibrate(tmp_path / "host.json", command)


def test_predictions_use_this_host_s_speed_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked, calibrated, or the reference; what is used is said."""
    monkeypatch.setattr(host_speed, "kept", lambda: None)
    assert (1.0, "") == host_speed.chosen(None)
    own = HostSpeed(host="here", host_speed=0.5, probe=PROBE, reference=PROBE, file="")
    monkeypatch.setattr(host_speed, "kept", lambda: own)
    assert 0.5 == host_speed.chosen(None)[0]
    assert "0.5 times as fast" in host_speed.chosen(None)[1]
    assert 1.0 == host_speed.chosen(1.0)[0]


@pytest.mark.parametrize("ask", ["fit", "rank", "advise", "explain"])
def test_every_answer_with_speeds_takes_the_speed_of_the_host(world: World, ask: str) -> None:
    """As its note says that it does; a speed that no host has is refused before anything is traced."""
    asked: dict[str, Callable[[float], object]] = {
        "fit": lambda speed: api.fit("bert-base", gpus=["RTX 3090"], host_speed=speed).gpus[0].speed,
        "rank": lambda speed: api.rank(["bert-base"], gpus=["RTX 3090"], host_speed=speed).gpus[0].speed,
        "advise": lambda speed: (
            api.advise(["bert-base"], wishes=Wishes(gpus=("RTX 3090",)), host_speed=speed).cards[0].speed
        ),
        "explain": lambda speed: api.explain("bert-base", batch_size=8, gpu="RTX 3090", host_speed=speed).time,
    }
    with pytest.raises(InputError, match="host speed"):
        asked[ask](0.0)
    assert [] == world.asked
    assert asked[ask](0.01) != asked[ask](1.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, 1e9, float("nan")])
def test_a_speed_that_no_host_has_is_refused(speed: float) -> None:
    """Between a hundredth and a hundred times the reference."""
    with pytest.raises(InputError, match="host speed"):
        host_speed.check(speed)


def test_the_reference_is_the_host_of_the_measurements() -> None:
    """Its probe comes with the package, from the machine whose steps the constants were fitted to."""
    assert host_speed.reference().processors == 16
    assert host_speed.reference().torch.startswith("2.11")


def test_few_threads_of_a_softmax_across_memory_take_as_long_as_one() -> None:
    """A column of 30,000 takes the same time once or 48 times, and half as long is half."""

    def seconds(outer: int, length: int) -> float:
        scores = Tensor((outer, length, 256), "float32", (), 0)
        step = demand(trace(op("_log_softmax.default", (scores,), (scores,), dim=1)))
        return predict(step, H200, CONSTANTS).gpu_s

    assert seconds(48, 30000) < 1.3 * seconds(16, 30000)
    assert 0.4 < seconds(16, 15000) / seconds(16, 30000) < 0.6
