"""Models as they are in practice: converted, tied, parametrized, lazy, and larger than the machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import Tracing
from whichgpu.errors import DataDependentError
from whichgpu.trace import Trace

Step = Callable[[int], Any]


def weights(trace: Trace) -> list[tuple[str, int]]:
    """Name and bytes of each weight, in order of birth."""
    return [
        (trace.names[storage.name] if storage.name >= 0 else "", storage.bytes)
        for storage in trace.storages
        if storage.category == "weight"
    ]


def training(
    model_of: Callable[[torch.device], nn.Module], data_of: Callable[[int, torch.device], torch.Tensor]
) -> Any:
    """A step of plain gradient descent."""

    def setup(device: torch.device) -> Step:
        model = model_of(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(batch_size: int) -> None:
            model(data_of(batch_size, device)).float().pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return setup


def conv() -> nn.Sequential:
    """A small convolutional network."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))


CONV_ELEMENTS = [3 * 8 * 9, 8, 8, 8, 8 * 14 * 14 * 4, 4]


@pytest.mark.parametrize(
    ("convert", "itemsize", "dtype"),
    [
        (lambda model, device: model.to(device), 4, torch.float32),
        (lambda model, device: model.to(device).half(), 2, torch.float16),
        (lambda model, device: model.half().to(device), 2, torch.float16),
        (lambda model, device: model.to(device).bfloat16(), 2, torch.bfloat16),
        (lambda model, device: model.to(device, torch.bfloat16), 2, torch.bfloat16),
        (lambda model, device: model.to(device).to(torch.bfloat16), 2, torch.bfloat16),
        (lambda model, device: model.to(torch.float16).cuda(), 2, torch.float16),
        (lambda model, device: model.to(device).double(), 8, torch.float64),
        (lambda model, device: model.double().to(device).float(), 4, torch.float32),
        (lambda model, device: model.to(device).to(memory_format=torch.channels_last), 4, torch.float32),
        (lambda model, device: model.to(memory_format=torch.channels_last).to(device), 4, torch.float32),
        (
            lambda model, device: model.to(device=device, dtype=torch.float16, memory_format=torch.channels_last),
            2,
            torch.float16,
        ),
    ],
)
def test_converted_modules_hold_only_the_converted_weights(
    convert: Any, itemsize: int, dtype: torch.dtype, tracing: Tracing
) -> None:
    """After `.half()`, `.to(dtype)`, `.to(memory_format=...)` in any order, only the result lives on."""
    trace = tracing.trace(
        training(
            lambda device: convert(conv(), device),
            lambda n, device: torch.rand(n, 3, 16, 16, device=device, dtype=dtype),
        )
    )
    alive = tracing.alive_at_end(trace)

    assert sorted(count * itemsize for count in CONV_ELEMENTS) == sorted(
        size for name, size in weights(trace) if alive[size]
    )
    # statistics of the batch norm: mean, variance, and a counter of 8 bytes
    assert sorted([*(count * itemsize for count in CONV_ELEMENTS), 8 * itemsize, 8 * itemsize, 8]) == sorted(
        alive.elements()
    )


def test_conversion_goes_one_parameter_at_a_time(tracing: Tracing) -> None:
    """Converting a model on the GPU never holds more than one parameter twice."""

    def setup(device: torch.device) -> Step:
        model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(8)]).to(device)
        model.half()
        return lambda batch_size: None

    trace = tracing.trace(setup, steps=1)

    assert 8 * 256 * 256 * 4 + 256 * 256 * 2 >= tracing.peak(trace)


def test_channels_last_convolutions_give_channels_last_results(tracing: Tracing) -> None:
    """As cuDNN has it: the layout of the input, or that of the weight, is the layout of the result."""
    seen = []

    def setup(device: torch.device) -> Step:
        plain = nn.Conv2d(4, 8, 3).to(device)
        last = nn.Conv2d(4, 8, 3).to(device, memory_format=torch.channels_last)

        def step(batch_size: int) -> None:
            x = torch.rand(batch_size, 4, 16, 16, device=device)
            y = x.to(memory_format=torch.channels_last)
            for layer, given in ((plain, x), (plain, y), (last, x), (last, y)):
                seen.append(layer(given).is_contiguous(memory_format=torch.channels_last))

        return step

    tracing.trace(setup, steps=1)

    assert [False, True, True, True] == seen


def test_tied_weights_are_one_weight(tracing: Tracing) -> None:
    """A head that shares the embedding's weight adds nothing, before and after the move to the GPU."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 16)
            self.head = nn.Linear(16, 100, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    def data(n: int, device: torch.device) -> torch.Tensor:
        return torch.randint(0, 100, (n, 5), device=device)

    trace = tracing.trace(training(lambda device: Tied().to(device), data))

    assert [("embed.weight", 6400)] == weights(trace)
    assert {6400: 1} == dict(tracing.alive_at_end(trace))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_weights_can_be_trained(kind: str, tracing: Tracing) -> None:
    """torch.nn.utils.parametrizations keep their own parameters and make the weight anew in each step."""
    wrap = getattr(torch.nn.utils.parametrizations, kind)

    def data(n: int, device: torch.device) -> torch.Tensor:
        return torch.rand(n, 8, device=device)

    trace = tracing.trace(training(lambda device: wrap(nn.Linear(8, 8)).to(device), data))

    assert any("parametrizations" in name for name, _ in weights(trace))


def test_lazy_modules_get_their_size_in_the_first_step(tracing: Tracing) -> None:
    """A lazy layer's weight is a weight."""

    def data(n: int, device: torch.device) -> torch.Tensor:
        return torch.rand(n, 8, device=device)

    def model_of(device: torch.device) -> nn.Module:
        model = nn.LazyLinear(4).to(device)
        model(torch.rand(1, 8, device=device))
        return model

    assert [16, 128] == sorted(size for _, size in weights(tracing.trace(training(model_of, data))))


def test_names_phases_and_categories_are_told(tracing: Tracing) -> None:
    """Weights, buffers, inputs, activations, gradients and optimizer state are told apart and named."""

    def setup(device: torch.device) -> Step:
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch_size: int) -> None:
            F.cross_entropy(
                model(torch.rand(batch_size, 16, device=device)),
                torch.zeros(batch_size, dtype=torch.long, device=device),
            ).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    trace = tracing.trace(setup, 1024)
    by_category = {
        category: sorted(s.bytes for s in trace.storages if s.category == category and s.bytes > 4)
        for category in ("weight", "buffer", "optimizer_state")
    }
    parameters = sorted([16 * 32 * 4, 32 * 4, 32 * 4, 32 * 4, 32 * 4 * 4, 4 * 4])

    assert parameters == by_category["weight"]
    assert sorted([*parameters, *parameters]) == by_category["optimizer_state"]
    assert [8, 128, 128] == by_category["buffer"]
    assert {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"} == {name for name, _ in weights(trace)}
    gradients = [s.bytes for s in trace.storages if s.category == "gradient"]
    assert sorted(parameters * 3) == sorted(gradients)
    inputs = [s.bytes for s in trace.storages if s.category == "input"]
    assert [1024 * 8, 1024 * 64] == sorted(set(inputs))
    activations = [s.bytes for s in trace.storages if s.category == "activation" and trace.ops[s.op].step == 1]
    assert 2 <= activations.count(1024 * 32 * 4)
    phases = [op.phase for op in trace.ops if op.step == 1]
    assert ["forward", "backward", "optimizer"] == [phase for phase in dict.fromkeys(phases) if phase != "other"]


# ---- known values ---------------------------------------------------------------------------------------


def test_constructors_may_look_at_small_tensors(tracing: Tracing) -> None:
    """Stochastic depth from a linspace, position tables, and `.tolist()` of what was just made."""

    def setup(device: torch.device) -> Step:
        rates = [x.item() for x in torch.linspace(0, 0.5, 4)]
        assert rates == pytest.approx([0.0, 1 / 6, 1 / 3, 0.5])
        on_gpu = torch.linspace(0, 1, 3, device=device)
        assert [0.0, 0.5, 1.0] == on_gpu.tolist()
        assert [0, 1, 2] == torch.arange(3, device=device).tolist()
        assert 6 == int(torch.tensor([1, 2, 3], device=device).sum())
        assert bool((torch.zeros(2, device=device) == 0).all())
        table = torch.from_numpy(numpy.arange(12, dtype=numpy.float32).reshape(3, 4)).to(device)
        assert [4.0, 5.0, 6.0, 7.0] == table[1].tolist()
        grid = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")).to(device)
        assert 3 == grid.flatten(1).sum(0).max().item()
        return lambda batch_size: None

    tracing.trace(setup, steps=1)


def test_what_is_written_is_seen_and_what_is_unknown_forgotten(tracing: Tracing) -> None:
    """In-place changes reach every view; a write of unknown numbers makes the storage unknown."""

    def setup(device: torch.device) -> Step:
        count = torch.zeros(3, dtype=torch.long, device=device)
        first = count[0]
        count += 2
        first.add_(1)
        assert [3, 2, 2] == count.tolist()
        count[1:] = torch.tensor([7, 8], device=device)
        assert [3, 7, 8] == count.tolist()
        large = torch.randint(0, 9, (1 << 22,), device=device)
        count.copy_(large[:3])
        with pytest.raises(DataDependentError):
            count.tolist()
        return lambda batch_size: None

    tracing.trace(setup, steps=1)


def test_one_number_for_many_elements_is_given_up_when_one_is_written(tracing: Tracing) -> None:
    """A large tensor of zeros is known; after a write to one element it is not, rather than wrong."""

    def setup(device: torch.device) -> Step:
        large = torch.zeros(1 << 20, 2, device=device)
        assert 0 == large.sum().item()
        large[5, 1] = 3
        assert 3 != large[0, 0].item()
        return lambda batch_size: None

    tracing.trace(setup, steps=1)


def test_the_number_of_a_loss_is_finite(tracing: Tracing) -> None:
    """`.item()` of an unknown loss gives a plain finite number, and the user is told."""
    seen = []

    def setup(device: torch.device) -> Step:
        model = nn.Linear(600, 600).to(device)

        def step(batch_size: int) -> None:
            seen.append(model(torch.rand(batch_size, 600, device=device)).pow(2).mean().item())

        return step

    trace = tracing.trace(setup, 512, steps=1)

    assert [True] == [isinstance(value, float) and abs(value) < 1e6 for value in seen]
    assert any(".item()" in note for note in trace.notes)


UNKNOWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0.5),
    "boolean index": lambda x: x[x > 0.5],
    "masked_select": lambda x: x.masked_select(x > 0.5),
    "unique": lambda x: (x * 10).long().unique(),
    "tolist": lambda x: (x * 10).long().tolist(),
    "branch": lambda x: bool((x > 0.5).any()),
    "int": lambda x: int((x * 10).long().max()),
    "repeat_interleave": lambda x: x.repeat_interleave((x * 3).long()[0], dim=1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_shapes_that_follow_from_unknown_numbers_are_refused(name: str, tracing: Tracing) -> None:
    """A step that cannot be traced without numbers says so; with real tensors it runs."""

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(600, 600).to(device)
        return lambda batch_size: UNKNOWN[name](layer(torch.rand(batch_size, 600, device=device)).detach().abs())

    with pytest.raises(DataDependentError):
        tracing.trace(setup, 300, steps=1)
    assert tracing.trace(setup, 2, steps=1, kind="real-cpu").ops


def test_shapes_that_follow_from_known_numbers_are_followed(tracing: Tracing) -> None:
    """Labels made in the step, masks of padding and the like have contents; what follows is exact."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            labels = torch.arange(batch_size, device=device) % 2
            assert batch_size // 2 == len(labels.nonzero())
            assert 2 == len(labels.unique())

        return step

    tracing.trace(setup, 8, steps=1)


def test_a_known_mask_picks_from_unknown_numbers(tracing: Tracing) -> None:
    """Which rows are taken is known although what stands in them is not."""

    def setup(device: torch.device) -> Step:
        def step(batch_size: int) -> None:
            labels = torch.arange(batch_size, device=device) % 2
            x = torch.rand(batch_size, 600, 600, device=device)
            assert (batch_size // 2, 600, 600) == x[labels == 1].shape

        return step

    assert 4 * 600 * 600 * 4 in {storage.bytes for storage in tracing.trace(setup, 8, steps=1).storages}


# ---- what three steps cannot show ----------------------------------------------------------------------


def test_what_every_step_leaves_behind_is_seen(tracing: Tracing) -> None:
    """Outputs that are kept with their graph are counted by the step; optimizer state and a replaced buffer are not."""

    def keeping(keep: bool) -> Any:
        def setup(device: torch.device) -> Step:
            model = nn.Linear(256, 256, device=device)
            optimizer = torch.optim.Adam(model.parameters())
            kept: list[torch.Tensor] = []

            def step(batch_size: int) -> None:
                output = model(torch.randn(batch_size, 256, device=device))
                output.sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                kept[:] = [*kept, output.detach()] if keep else [output.detach()]

            return step

        return setup

    assert 1024 * 256 * 4 == tracing.trace(keeping(keep=True), 1024).facts["growth_bytes"]
    assert 0 == tracing.trace(keeping(keep=False), 1024).facts["growth_bytes"]


def test_optimizers_that_never_step_are_counted(tracing: Tracing) -> None:
    """Of two optimizers, the one that waits for the fifth call is idle; one that was thrown away counts no more."""

    def setup(device: torch.device) -> Step:
        model = nn.Linear(8, 8, device=device)
        often, seldom = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
        torch.optim.SGD(model.parameters(), 0.1)
        calls = iter(range(10))

        def step(batch_size: int) -> None:
            model(torch.randn(batch_size, 8, device=device)).sum().backward()
            often.step()
            if next(calls) == 4:
                seldom.step()

        return step

    made = tracing.trace(setup)
    assert 1 == made.facts["idle_optimizers"]
    assert 3 == made.facts["optimizer_steps"]


# ---- size -----------------------------------------------------------------------------------------------


def test_a_model_larger_than_the_machine_takes_little_memory() -> None:
    """Ten gigabytes of weights, their gradients and Adam's state trace in less than 1.5 GiB."""
    code = (
        "import torch\n"
        "from torch import nn\n"
        "from whichgpu.capture.run import capture\n"
        "from whichgpu.capture.target import Target\n"
        "def setup(device):\n"
        "    model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False) for _ in range(10)]).to(device)\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    def step(n):\n"
        "        model(torch.randn(n, 16384, device=device)).square().mean().backward()\n"
        "        optimizer.step(); optimizer.zero_grad()\n"
        "    return step\n"
        "made = capture('t', setup, 4096, Target.parse('9.0'))\n"
        "print(sum(s.bytes for s in made.storages if s.category == 'weight'))\n"
        # not ru_maxrss, which takes over what the process that started this one had
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert 0 == done.returncode, done.stderr
    weight_bytes, resident_kib = map(int, done.stdout.split())

    assert 10 * 16384 * 16384 * 4 == weight_bytes
    assert resident_kib < 1536 << 10
