"""Changes to a training step that save memory, made from outside while it is traced.

They do to a step that is not ours what its author would do by hand, so that `whichgpu explain` can trace what a remedy
would save: `changed(setup, names)` is a `setup` whose step has them.

    bf16         the forward pass and the loss under `torch.autocast`; the backward pass and the optimizer outside, as
                 PyTorch recommends
    checkpoint   activation checkpointing by the switch that models of transformers and timm have
    fused        optimizers of torch.optim made with `fused=True`
    accumulate   each step runs two batches before its optimizer steps; gradients are kept from the first to the second

A change that cannot be made raises WorkloadError with the reason. What is patched is put back when the step ends.
Not covered: optimizers that are made inside the step, and steps with several optimizers (accumulate).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from whichgpu.errors import WorkloadError

Setup = Callable[[Any], Callable[[int], Any]]


def changed(setup: Setup, names: Sequence[str]) -> Setup:
    """`setup` with the named changes, the first innermost."""
    for name in names:
        setup = _CHANGES[name](setup)
    return setup


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    plain = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextlib.contextmanager
def _around_backward(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Every backward pass goes through what `wrap` makes of it."""
    wrapped = wrap(torch.autograd.graph._engine_run_backward)
    with (
        _replaced(torch.autograd.graph, "_engine_run_backward", wrapped),
        _replaced(torch.autograd, "_engine_run_backward", wrapped),
    ):
        yield


# ---- bf16 -------------------------------------------------------------------------------------------


def _with_bf16(setup: Setup) -> Setup:
    def setup_with_bf16(device: Any) -> Callable[[int], Any]:
        step = setup(device)

        def step_with_bf16(batch_size: int) -> Any:
            with _Autocast(device) as region, _around_backward(region.outside):
                return step(batch_size)

        return step_with_bf16

    return setup_with_bf16


class _Autocast:
    """Autocast that is left for as long as a backward pass or an optimizer runs."""

    def __init__(self, device: Any) -> None:
        self._kind = torch.device(device).type
        self._context: Any = None

    def __enter__(self) -> _Autocast:
        self._open()
        self._hooks = [
            torch_optimizer.register_optimizer_step_pre_hook(lambda *_: self._close()),
            torch_optimizer.register_optimizer_step_post_hook(lambda *_: self._open()),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._close()

    def outside(self, function: Any) -> Any:
        """A function that runs outside of autocast; the copies of weights that it kept are gone by then."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            inside = self._context is not None
            self._close()
            try:
                return function(*args, **kwargs)
            finally:
                if inside:
                    self._open()

        return run

    def _open(self) -> None:
        self._context = torch.autocast(self._kind, torch.bfloat16)
        self._context.__enter__()

    def _close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


# ---- checkpoint -------------------------------------------------------------------------------------


def _with_checkpoint(setup: Setup) -> Setup:
    def setup_with_checkpoint(device: Any) -> Callable[[int], Any]:
        step = setup(device)
        models = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
        if any(map(_is_on, models)):
            raise WorkloadError("it is on already")
        if not sum(map(_switch_on, models)):
            raise WorkloadError(
                "no model of the step has a switch for it, as those of transformers and timm have; "
                "put torch.utils.checkpoint around its blocks"
            )
        return step

    return setup_with_checkpoint


def _is_on(model: Any) -> bool:
    """Whether a model of transformers checkpoints already; the old name warns in newer versions."""
    new = "is_activation_checkpointing"
    return bool(getattr(model, new if hasattr(type(model), new) else "is_gradient_checkpointing", False))


def _switch_on(model: Any) -> bool:
    """Switch checkpointing on, where the model has a switch that works."""
    if callable(getattr(model, "set_grad_checkpointing", None)):  # timm
        with contextlib.suppress(AssertionError):
            model.set_grad_checkpointing(True)
            return True
        return False
    # transformers; renamed within version 5, and the old name warns in newer ones
    enable = getattr(model, "activation_checkpointing_enable", getattr(model, "gradient_checkpointing_enable", None))
    if not callable(enable) or not getattr(model, "supports_gradient_checkpointing", False):
        return False
    enable({"use_reentrant": False})
    return True


# ---- fused ------------------------------------------------------------------------------------------


def _with_fused(setup: Setup) -> Setup:
    def setup_with_fused(device: Any) -> Callable[[int], Any]:
        made: list[str] = []
        with contextlib.ExitStack() as stack:
            for kind in _optimizers_with_fused():
                stack.enter_context(_replaced(kind, "__init__", _fused_init(kind, made)))
            step = setup(device)
        if not made:
            raise WorkloadError("its set-up makes no optimizer of torch.optim that has a fused version")
        return step

    return setup_with_fused


def _optimizers_with_fused() -> list[type]:
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    return [kind for kind in kinds if "fused" in inspect.signature(kind.__init__).parameters]


def _fused_init(kind: type, made: list[str]) -> Any:
    plain = kind.__init__  # type: ignore[misc]

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(kind.__name__)
        plain(self, *args, **{**kwargs, "fused": True, "foreach": None})

    return init


# ---- accumulate -------------------------------------------------------------------------------------


def _with_accumulation(setup: Setup) -> Setup:
    def setup_with_accumulation(device: Any) -> Callable[[int], Any]:
        optimizers: list[Any] = []
        plain = torch.optim.Optimizer.__init__

        @functools.wraps(plain)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            optimizers.append(self)
            plain(self, *args, **kwargs)

        with _replaced(torch.optim.Optimizer, "__init__", init):
            step = setup(device)
        if len(optimizers) != 1:
            count = len(optimizers) or "no"
            raise WorkloadError(f"its set-up makes {count} optimizers, and this is worked out for steps with one")
        if isinstance(optimizers[0], torch.optim.LBFGS):
            raise WorkloadError("LBFGS runs the model inside its own step")
        return _Accumulating(step, optimizers[0])

    return setup_with_accumulation


class _Accumulating:
    """A step that runs two batches of a size, and lets the optimizer step, and gradients go, once for both."""

    def __init__(self, step: Callable[[int], Any], optimizer: Any) -> None:
        self._step = step
        self._first = False  # whether the first batch runs
        self._had_backward = False  # whether its backward pass has begun, or that of the second batch
        self._optimizer_step = optimizer.step
        optimizer.step = self._maybe_step
        optimizer.zero_grad = self._maybe(optimizer.zero_grad)

    def __call__(self, batch_size: int) -> Any:
        zero_grad = self._maybe(torch.nn.Module.zero_grad)
        with _around_backward(self._noting), _replaced(torch.nn.Module, "zero_grad", zero_grad):
            for first in (True, False):
                self._first, self._had_backward = first, False
                result = None  # what a step returns may hold memory
                result = self._step(batch_size)
        return result

    def _maybe_step(self, *args: Any, **kwargs: Any) -> Any:
        return None if self._first else self._optimizer_step(*args, **kwargs)

    def _maybe(self, zero_grad: Any) -> Any:
        """Gradients go before the first backward pass or after the second one, not in between."""

        def run(*args: Any, **kwargs: Any) -> None:
            if self._first != self._had_backward:
                zero_grad(*args, **kwargs)

        return run

    def _noting(self, function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._had_backward = True
            return function(*args, **kwargs)

        return run


_CHANGES: dict[str, Callable[[Setup], Setup]] = {
    "bf16": _with_bf16,
    "checkpoint": _with_checkpoint,
    "fused": _with_fused,
    "accumulate": _with_accumulation,
}
