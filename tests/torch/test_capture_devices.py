"""However a step says where its tensors live, the trace is the one of the plain form."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import Tracing

Step = Callable[[int], Any]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Forward, backward and update."""
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def net() -> nn.Sequential:
    """A small network."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def plain(device: torch.device) -> Step:
    """The form in the manual."""
    model = net().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch_size: int) -> None:
        x = torch.randn(batch_size, 16, device=device)
        y = torch.randint(0, 4, (batch_size,), device=device)
        train(model, optimizer, x, y)

    return step


def varied(
    model_of: Callable[[torch.device], nn.Module] = lambda device: net().to(device),
    before: Callable[[], Any] = lambda: None,
    after: Callable[[torch.Tensor], Any] = lambda loss: None,
    device_of: Callable[[torch.device], Any] = lambda device: device,
) -> Callable[[torch.device], Step]:
    """The plain form with one thing said in another way."""

    def setup(device: torch.device) -> Step:
        model = model_of(device)
        optimizer = torch.optim.Adam(model.parameters())
        named = device_of(device)

        def step(batch_size: int) -> None:
            before()
            x = torch.randn(batch_size, 16, device=named)
            y = torch.randint(0, 4, (batch_size,), device=named)
            after(train(model, optimizer, x, y))

        return step

    return setup


def stream_work() -> None:
    """What steps do with streams and events."""
    stream = torch.cuda.Stream()
    event = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        event.record()
    torch.cuda.current_stream().wait_stream(stream)
    stream.synchronize()
    event.synchronize()
    assert event.elapsed_time(torch.cuda.Event(enable_timing=True)) >= 0


def cuda_questions() -> None:
    """What steps ask of torch.cuda."""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).total_memory > 1 << 30
    assert torch.cuda.is_bf16_supported()
    assert isinstance(torch.cuda.get_device_name(), str)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(1)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_allocated() >= 0
    assert torch.cuda.max_memory_allocated("cuda:0") >= 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total


def reads_loss(loss: torch.Tensor) -> None:
    """The loss is read, and asked where it is."""
    assert isinstance(loss.item(), float)
    assert isinstance(float(loss.detach()), float)
    assert loss.is_cuda
    assert not loss.is_cpu
    assert loss.device == torch.device("cuda:0")
    assert loss.device.type == "cuda"
    assert loss.get_device() == 0


def copies_loss(loss: torch.Tensor) -> None:
    """The loss is copied to the host."""
    copied = loss.detach().cpu()
    assert copied.device.type == "cpu"
    assert not copied.is_cuda


SAME: dict[str, Callable[[torch.device], Step]] = {
    ".cuda()": varied(lambda device: net().cuda()),
    ".cuda(0)": varied(lambda device: net().cuda(0)),
    '.to("cuda")': varied(lambda device: net().to("cuda")),
    '.to("cuda:0")': varied(lambda device: net().to("cuda:0"), device_of=lambda device: "cuda:0"),
    ".to(0)": varied(lambda device: net().to(0)),
    ".to(device=)": varied(lambda device: net().to(device=device)),
    '"cuda"': varied(device_of=lambda device: "cuda"),
    "an index": varied(device_of=lambda device: 0),
    "torch.device": varied(device_of=lambda device: torch.device("cuda")),
    "if available": varied(device_of=lambda device: "cuda" if torch.cuda.is_available() else "cpu"),
    "streams": varied(before=stream_work),
    "questions": varied(before=cuda_questions),
    "reads the loss": varied(after=reads_loss),
    "copies the loss": varied(after=copies_loss),
    "accelerator": varied(device_of=lambda device: torch.accelerator.current_accelerator()),
}


@pytest.mark.parametrize("name", SAME)
def test_other_words_for_the_same_device_give_the_same_trace(name: str, tracing: Tracing) -> None:
    """Storages and their order are those of the plain form."""
    assert tracing.memory_events(tracing.trace(plain)) == tracing.memory_events(tracing.trace(SAME[name]))


def test_a_device_as_a_context_gives_the_same_training_steps(tracing: Tracing) -> None:
    """What is made under `with torch.device("cuda")` is made there, and trains as the plain form."""

    def setup(device: torch.device) -> Step:
        with torch.device("cuda"):
            model = net()
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch_size: int) -> None:
            with torch.device("cuda"):
                x, y = torch.randn(batch_size, 16), torch.randint(0, 4, (batch_size,))
                assert torch.tensor([1.0, 2.0]).is_cuda
                assert torch.zeros(3).device.type == "cuda"
            assert not torch.zeros(3).is_cuda
            train(model, optimizer, x, y)

        return step

    def steps(trace: Any) -> list[str]:
        return [name for name in tracing.op_names(trace, step=2) if name not in ("_to_copy", "zeros")]

    made, expected = tracing.trace(setup), tracing.trace(plain)

    assert steps(expected) == steps(made)
    assert tracing.alive_at_end(expected) == tracing.alive_at_end(made)


def test_a_default_device_makes_tensors_there(tracing: Tracing) -> None:
    """`torch.set_default_device("cuda")` is the same as naming the device, and ends with the trace."""

    def setup(device: torch.device) -> Step:
        torch.set_default_device("cuda")
        model = net()
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch_size: int) -> None:
            train(model, optimizer, torch.randn(batch_size, 16), torch.randint(0, 4, (batch_size,)))

        return step

    try:
        made = tracing.trace(setup)
        assert tracing.alive_at_end(tracing.trace(plain)) == tracing.alive_at_end(made)
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


# ---- single tensors -------------------------------------------------------------------------------------


def asked(tracing: Tracing, work: Callable[[torch.device, int], Any]) -> list[tuple[str, int]]:
    """What one step asks for that does nothing but `work`."""
    trace = tracing.trace(lambda device: lambda batch_size: work(device, batch_size), steps=1)
    return tracing.memory_events(trace)[1:]


MAKERS: dict[str, Callable[[torch.device, int], Any]] = {
    "tensor": lambda d, n: torch.tensor([0.0] * n, device=d),
    "tensor, a string": lambda d, n: torch.tensor([0.0] * n, device="cuda"),
    "tensor, an index": lambda d, n: torch.tensor([0.0] * n, device=0),
    "tensor of numpy": lambda d, n: torch.tensor(numpy.zeros(n, dtype=numpy.float32), device=d),
    "as_tensor": lambda d, n: torch.as_tensor([0.0] * n, device=d),
    "as_tensor of numpy": lambda d, n: torch.as_tensor(numpy.zeros(n, dtype=numpy.float32), device="cuda"),
    "asarray": lambda d, n: torch.asarray([0.0] * n, device=d),
    "from_numpy, to": lambda d, n: torch.from_numpy(numpy.zeros(n, dtype=numpy.float32)).to(d),
    "from_numpy, cuda": lambda d, n: torch.from_numpy(numpy.zeros(n, dtype=numpy.float32)).cuda(),
    "host, to, non_blocking": lambda d, n: torch.zeros(n).to(d, non_blocking=True),
    "host, cuda, non_blocking": lambda d, n: torch.zeros(n).cuda(non_blocking=True),
    "pinned": lambda d, n: torch.zeros(n).pin_memory().to(d, non_blocking=True),
    "pinned factory": lambda d, n: torch.zeros(n, pin_memory=True).to(d),
    "zeros": lambda d, n: torch.zeros(n, device=d),
    "ones": lambda d, n: torch.ones((n,), device="cuda"),
    "empty": lambda d, n: torch.empty(n, device=d),
    "full": lambda d, n: torch.full((n,), 1.0, device=d),
    "rand": lambda d, n: torch.rand(n, device=d),
    "linspace": lambda d, n: torch.linspace(0, 1, n, device=d),
    "arange": lambda d, n: torch.arange(0.0, n, device=d),
    "Tensor.to(tensor)": lambda d, n: torch.zeros(n).to(torch.empty(0, device=d)),
    "copy_": lambda d, n: torch.empty(n, device=d).copy_(torch.zeros(n)),
    "generator": lambda d, n: torch.randn(n, device=d, generator=torch.Generator(d)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_way_to_make_a_tensor_asks_for_its_bytes(name: str, tracing: Tracing) -> None:
    """One storage of four bytes a sample is born and freed, and nothing else but empty ones."""
    events = [event for event in asked(tracing, MAKERS[name]) if event[1]]

    assert [("+", 400), ("-", 400)] == asked_with(events, 100, tracing, name)


def asked_with(events: list[tuple[str, int]], batch_size: int, tracing: Tracing, name: str) -> list[tuple[str, int]]:
    """The same at another batch size, so that constants do not pass for sizes."""
    assert [("+", 16), ("-", 16)] == events
    trace = tracing.trace(lambda device: lambda size: MAKERS[name](device, size), batch_size, steps=1)
    return [event for event in tracing.memory_events(trace)[1:] if event[1]]


LIKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeros_like": torch.zeros_like,
    "empty_like": torch.empty_like,
    "randn_like": torch.randn_like,
    "new_zeros": lambda x: x.new_zeros(x.shape),
    "new_empty": lambda x: x.new_empty(x.shape),
    "new_full": lambda x: x.new_full(x.shape, 1.0),
    "new_tensor": lambda x: x.new_tensor([0.0] * len(x)),
    "clone": torch.clone,
    "deepcopy": lambda x: __import__("copy").deepcopy(x),
    "contiguous copy": lambda x: x.to(x.device, copy=True),
    "parameter": lambda x: nn.Parameter(x.clone()),
}


@pytest.mark.parametrize("name", LIKE)
def test_tensors_made_after_another_are_where_it_is(name: str, tracing: Tracing) -> None:
    """A second storage of the same size on the GPU, and none from a tensor of the host."""

    def work(device: torch.device, batch_size: int) -> None:
        x = torch.ones(batch_size, device=device)
        made = LIKE[name](x)
        assert made.is_cuda
        assert made.device == x.device
        there = LIKE[name](torch.ones(batch_size))
        assert not there.is_cuda

    assert [("+", 16)] * 2 == asked(tracing, work)[:2]
    assert 2 == sum(sign == "+" for sign, _ in asked(tracing, work))


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x.to(x.device),
        lambda x: x.cuda(),
        lambda x: x.to("cuda"),
        lambda x: x.to(x.dtype),
        lambda x: x.detach(),
        lambda x: x.view(2, 2),
        lambda x: x.data,
        lambda x: x.to(x),
        lambda x: x.contiguous(),
        torch.as_tensor,
        torch.asarray,
        lambda x: torch.as_tensor(x, device=x.device),
        lambda x: x.requires_grad_(),
        nn.Parameter,
        lambda x: x.float(),
        lambda x: x.type(torch.float32),
    ],
)
def test_what_is_there_already_is_not_copied(same: Callable[[torch.Tensor], Any], tracing: Tracing) -> None:
    """Moving a tensor to where it is, and views, ask for nothing."""

    def work(device: torch.device, batch_size: int) -> None:
        assert same(torch.ones(batch_size, device=device)).is_cuda

    assert [("+", 16), ("-", 16)] == asked(tracing, work)


def test_reading_back_to_the_host_asks_for_nothing(tracing: Tracing) -> None:
    """`.cpu()`, `.to("cpu")` and `.item()` take no memory of the GPU."""

    def work(device: torch.device, batch_size: int) -> None:
        x = torch.ones(batch_size, device=device)
        for copied in (x.cpu(), x.to("cpu"), x.to(torch.device("cpu"), non_blocking=True)):
            assert copied.device.type == "cpu"
        x.sum().item()

    assert [("+", 16), ("+", 4), ("-", 4), ("-", 16)] == asked(tracing, work)


def test_numpy_of_a_gpu_tensor_is_refused_as_on_a_gpu(tracing: Tracing) -> None:
    """`.numpy()` of a GPU tensor is the user's mistake, and torch says so."""

    def work(device: torch.device, batch_size: int) -> None:
        with pytest.raises(TypeError, match="can't convert cuda"):
            torch.ones(batch_size, device=device).numpy()

    asked(tracing, work)


def test_a_check_for_nan_goes_on(tracing: Tracing) -> None:
    """`if loss.isnan()` and its like read one flag, which a healthy step has not set."""

    def setup(device: torch.device) -> Step:
        model = net().to(device)
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 16, device=device)
            y = torch.randint(0, 4, (batch_size,), device=device)
            loss = train(model, optimizer, x, y)
            if loss.isnan() or torch.isinf(loss) or not torch.isfinite(loss).all() or torch.isnan(loss).any():
                raise RuntimeError("diverged")

        return step

    assert tracing.alive_at_end(tracing.trace(plain)) == tracing.alive_at_end(tracing.trace(setup))


# ---- autocast and its scaler ----------------------------------------------------------------------------


def amp(region: Callable[[], Any], scaler_of: Callable[[], Any]) -> Callable[[torch.device], Step]:
    """A step in half precision."""

    def setup(device: torch.device) -> Step:
        model = net().to(device)
        optimizer = torch.optim.Adam(model.parameters())
        scaler = scaler_of()

        def step(batch_size: int) -> None:
            x = torch.randn(batch_size, 16, device=device)
            y = torch.randint(0, 4, (batch_size,), device=device)
            with region():
                out = model(x)
                assert out.dtype == torch.float16
                loss = F.cross_entropy(out, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    return setup


def quiet(make: Callable[[], Any]) -> Any:
    """torch.cuda.amp tells users to move on; that is a warning, and here an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return make()


AMP = {
    "torch.autocast, a device's type": amp(
        lambda: torch.autocast(torch.device("cuda").type, torch.float16), torch.amp.GradScaler
    ),
    "the default type": amp(lambda: torch.autocast("cuda"), lambda: torch.amp.GradScaler("cuda")),
    "torch.amp.autocast": amp(
        lambda: torch.amp.autocast("cuda", dtype=torch.float16), lambda: torch.amp.GradScaler(device="cuda")
    ),
    "torch.cuda.amp": amp(lambda: quiet(torch.cuda.amp.autocast), lambda: quiet(torch.cuda.amp.GradScaler)),
    "enabled": amp(
        lambda: torch.autocast(device_type="cuda", enabled=True),
        lambda: torch.amp.GradScaler("cuda", enabled=True),
    ),
}


@pytest.mark.parametrize("name", AMP)
def test_other_words_for_autocast_give_the_same_trace(name: str, tracing: Tracing) -> None:
    """Old names, new names and defaults of autocast and GradScaler are the same half precision."""
    expected = amp(lambda: torch.autocast("cuda", torch.float16), lambda: torch.amp.GradScaler("cuda"))

    assert tracing.memory_events(tracing.trace(expected)) == tracing.memory_events(tracing.trace(AMP[name]))


def test_answers_that_differ_between_cards_bind_the_trace_to_its_class(tracing: Tracing) -> None:
    """A step that asks for the capability is traced for each class anew; one that does not ask is shared."""
    asks = varied(before=torch.cuda.get_device_capability)

    assert [] == tracing.trace(asks).facts["same_for"]
    assert ["6.0", "7.0", "8.0", "8.6", "9.0"] == tracing.trace(plain).facts["same_for"]


def test_gradients_nobody_gave_are_on_the_card(tracing: Tracing) -> None:
    """Zeros that the backward pass of split and unbind makes for outputs nobody used lie beside the other gradients."""

    def setup(device: torch.device) -> Step:
        layer = nn.Linear(8, 8).to(device)

        def step(batch_size: int) -> None:
            parts = layer(torch.randn(batch_size, 8, device=device)).split([2, 6], dim=-1)
            rows = layer(torch.randn(4, 8, device=device)).unbind(0)
            (parts[0].sum() + rows[1].sum()).backward()
            layer.zero_grad()

        return step

    for kind in ("fake", "real-cpu"):
        trace = tracing.trace(setup, 4, kind=kind)
        made = [event for event in tracing.memory_events(trace) if event == ("+", 4 * 6 * 4)]
        assert trace.ops
        assert 3 == len(made), "once a step: a float for each of 4 rows of 6"


@pytest.mark.parametrize("form", ["context", "stream", "main", "none"])
def test_a_side_stream_is_counted_and_told(form: str, tracing: Tracing) -> None:
    """Work on a stream of its own counts as ever, with a caveat; on the stream that is there anyway, without."""

    def setup(device: torch.device) -> Step:
        model = net().to(device)

        def step(batch_size: int) -> None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            chosen = {"main": torch.cuda.current_stream(), "none": None}.get(form, side)
            with side if form == "stream" else torch.cuda.stream(chosen):
                loss = model(torch.randn(batch_size, 16, device=device)).sum()
            loss.backward()
            assert 0 == torch.cuda.memory_stats()["allocated_bytes.all.peak"]

        return step

    made = tracing.trace(setup, 4)

    assert made.facts["backward_calls"] == made.steps
    assert (form in ("context", "stream")) == any("stream of its own" in note for note in made.notes)
