"""Small made-up traces: one program whose sizes are affine in the batch size, as those of most steps are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from whichgpu.scaling import Scaled
from whichgpu.trace import Category, EventKind, Op, Phase, Storage, Tensor, Trace, validate

MIB = 1 << 20
CATEGORIES: tuple[Category, ...] = (
    "weight",
    "buffer",
    "gradient",
    "optimizer_state",
    "activation",
    "input",
    "temporary",
)


@dataclass(frozen=True)
class Made:
    """A storage of `base + slope * batch_size` bytes."""

    base: int
    slope: int = 0
    category: Category = "activation"

    def bytes_at(self, batch_size: int) -> int:
        """Its size."""
        return max(self.base + self.slope * batch_size, 0)


@dataclass(frozen=True)
class Call:
    """One operator: storages that were freed just before it, and those it makes."""

    makes: tuple[Made, ...] = ()
    frees: tuple[int, ...] = ()  # indices into the storages, in order of birth
    name: str = "aten.add.Tensor"
    phase: Phase = "forward"
    attributes: dict[str, Any] = field(default_factory=dict)


def make_trace(
    calls: Sequence[Call],
    batch_size: int,
    *,
    capability: str = "9.0",
    workload: str = "made-up",
    **fields: Any,
) -> Trace:
    """The trace of a program at a batch size."""
    storages: list[Storage] = []
    ops: list[Op] = []
    events: list[tuple[int, int]] = [(EventKind.STEP, 0)]
    for number, call in enumerate(calls):
        events += [(EventKind.FREE, index) for index in call.frees]
        events.append((EventKind.OP, number))
        outputs = []
        for made in call.makes:
            size = made.bytes_at(batch_size)
            events.append((EventKind.ALLOC, len(storages)))
            shape = (made.slope * batch_size + made.base,)
            outputs.append(Tensor(shape, "uint8", (), len(storages)))
            storages.append(Storage(size, made.category, number))
        ops.append(Op(call.name, call.phase, 0, (), tuple(outputs), call.attributes, flops=10 * batch_size))
    facts = {
        "backward_calls": 1,
        "optimizer_steps": 1,
        "dtypes": ["float32"],
        "same_for": [],
        "default_batch_size": 8,
    }
    made_trace = Trace(
        workload=workload,
        batch_size=batch_size,
        capability=capability,
        kind=fields.pop("kind", "fake"),
        torch_version="2.14.1",
        steps=1,
        names=(),
        ops=tuple(ops),
        storages=tuple(storages),
        events=tuple(events),
        facts={**facts, **fields.pop("facts", {})},
        **fields,
    )
    validate(made_trace)
    return made_trace


def scaled(calls: Sequence[Call], low: int = 4, high: int = 8) -> Scaled:
    """A program as a function of the batch size."""
    return Scaled(make_trace(calls, low), make_trace(calls, high))


def always(source: Any) -> Callable[[int], Any]:
    """The `at` of a workload that is affine."""
    return lambda _: source


TRAINING: tuple[Call, ...] = (
    Call((Made(400 * MIB, 0, "weight"),), phase="setup", name="aten.empty.memory_format"),
    Call((Made(0, MIB, "input"),), name="aten.randn.default"),
    Call((Made(0, 40 * MIB, "activation"),), name="aten.mm.default"),
    Call((Made(0, 8 * MIB, "temporary"), Made(4, 0, "activation")), frees=(1,), name="aten.relu.default"),
    Call((Made(400 * MIB, 0, "gradient"),), frees=(2, 3, 4), name="aten.mm.default", phase="backward"),
    Call((Made(800 * MIB, 0, "optimizer_state"),), name="aten._foreach_add.List", phase="optimizer"),
)


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    largest_base: int = 64 * MIB,
    largest_slope: int = 4 * MIB,
    names: Sequence[str] = ("aten.add.Tensor",),
    most: int = 25,
) -> list[Call]:
    """Random programs: operators that make storages of affine sizes, and deaths in any order."""
    sizes = st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.integers(0, largest_base))
    slopes = st.one_of(st.just(0), st.integers(0, 4096), st.integers(0, largest_slope))
    alive: list[int] = []
    born = 0
    calls = []
    for _ in range(draw(st.integers(1, most))):
        frees = draw(st.lists(st.sampled_from(alive), unique=True, max_size=4)) if alive else []
        alive = [index for index in alive if index not in frees]
        makes = tuple(
            Made(draw(sizes), draw(slopes), draw(st.sampled_from(CATEGORIES))) for _ in range(draw(st.integers(0, 2)))
        )
        alive += range(born, born + len(makes))
        born += len(makes)
        phase = draw(st.sampled_from(("forward", "backward", "optimizer")))
        calls.append(Call(makes, tuple(frees), draw(st.sampled_from(names)), phase))
    return calls
