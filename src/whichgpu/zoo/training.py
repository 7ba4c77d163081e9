"""The training step that all zoo workloads share: precision, optimizer, accumulation, clipping.

Plain PyTorch, the same on a GPU and on a CPU. The batch is synthetic and made on the device inside the step.
`precision` sets PyTorch's process-wide TF32 switches, so run one workload per process:

    fp32        weights and arithmetic in float32, matrix products without TF32; convolutions keep PyTorch's
                default, which lets cuDNN use TF32 where the card has it
    tf32        the same with TF32 for matrix products and convolutions
    fp16        float32 weights, autocast to float16, gradients scaled by torch.amp.GradScaler
    bf16        float32 weights, autocast to bfloat16
    pure-bf16   weights, gradients, optimizer state and inputs in bfloat16

Not covered: learning-rate schedules, data loading and evaluation, none of which holds memory that counts.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload
from whichgpu.zoo.options import OPTIMIZERS, Settings


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What an adapter contributes: model, data and loss; `setup` makes the training step of them."""

    where: str  # the workload's name, for messages
    settings: Settings
    make_model: Callable[[], torch.nn.Module]  # in float32, or in bfloat16 where it can be built so
    make_batch: Callable[[int, torch.device, torch.dtype], Any]  # size, device, dtype of floating-point inputs
    compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor]
    optimizer_arguments: dict[str, Any]  # besides those in the settings: betas, eps, lr
    parameter_groups: Callable[[torch.nn.Module], Iterable[Any]] | None = None
    channels_last: bool = False
    keeps_gradients: bool = False  # between steps, set to zero, as PyTorch's optimizers did before 2.0
    average: float | None = None  # decay of a moving average of the weights, kept beside them; None: there is none
    sizes: Mapping[str, int] = field(default_factory=dict)  # options that set how large a sample is, with their values

    def setup(self, device: torch.device | str) -> Callable[[int], torch.Tensor]:
        """Build model and optimizer on `device`; the step returns the last micro batch's loss, detached."""
        device = torch.device(device)
        set_tf32(self.settings.precision)
        model = move(self.make_model().train(), device, self.settings, self.channels_last)
        average = copy.deepcopy(model).requires_grad_(False) if self.average is not None else None
        groups = self.parameter_groups(model) if self.parameter_groups else model.parameters()
        optimizer = make_optimizer(groups, self.settings, **self.optimizer_arguments)
        return make_step(self, model, optimizer, device, average)

    def prepare(self) -> Callable[[torch.device | str], Callable[[int], torch.Tensor]]:
        """Build the model on the CPU, as `setup` begins; the rest of set-up, which may be called once."""
        model = self.make_model()
        return replace(self, make_model=lambda: model).setup


class Trained(Protocol):
    """What a `Recipe` has in common with those of other steps."""

    @property
    def where(self) -> str:
        """The workload's name, for messages."""

    @property
    def settings(self) -> Settings:
        """How it is trained."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Options that set how large a sample is, with their values."""

    def setup(self, device: torch.device | str) -> Callable[[int], torch.Tensor]:
        """Build everything on a device; the training step."""


def make_workload(recipe: Trained, **about: Any) -> Workload:
    """The workload of a recipe; `about` are its other fields, and a name where it is not that for messages."""
    facts = {"precision": recipe.settings.precision, "dtypes": recipe.settings.dtypes, "sizes": recipe.sizes}
    prepare = recipe.prepare if isinstance(recipe, Recipe) else None
    return Workload(setup=recipe.setup, prepare=prepare, **{"name": recipe.where, **facts, **about})


def make_step(
    recipe: Recipe,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    average: torch.nn.Module | None = None,
) -> Callable[[int], torch.Tensor]:
    """A training step over `model`: forward and backward of each micro batch, the optimizer, then the average."""
    settings = recipe.settings
    scaler = torch.amp.GradScaler(device.type) if settings.precision == "fp16" else None
    input_dtype = torch.bfloat16 if settings.precision == "pure-bf16" else torch.float32

    def step(batch_size: int) -> torch.Tensor:
        for size in micro_batches(batch_size, settings.accumulate, recipe.where):
            batch = recipe.make_batch(size, device, input_dtype)
            with autocast(device, settings.precision):
                loss = recipe.compute_loss(model, batch)
            if settings.accumulate > 1:
                loss = loss / settings.accumulate
            (scaler.scale(loss) if scaler else loss).backward()
        if settings.clip is not None:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=not recipe.keeps_gradients)
        if average is not None:
            follow(average, model, recipe.average)
        return loss.detach()

    return step


@torch.no_grad()
def follow(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    """Move an average of the weights towards the weights, one by one and in place; buffers are taken over."""
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.mul_(decay).add_(weight, alpha=1 - decay)
    for mean, value in zip(average.buffers(), model.buffers(), strict=True):
        mean.copy_(value)


def micro_batches(batch_size: int, parts: int, where: str = "accumulate") -> Iterator[int]:
    """Split a batch as evenly as can be: the first `batch_size % parts` micro batches are one larger."""
    if batch_size < parts:
        raise WorkloadError(f"{where}: a batch of {batch_size} cannot be split in {parts} micro batches")
    whole, more = divmod(batch_size, parts)
    return (whole + (part < more) for part in range(parts))


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """The autocast context of a precision, or one that does nothing."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def set_tf32(precision: str) -> None:
    """Set PyTorch's process-wide TF32 switches; they do nothing without CUDA."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = True  # PyTorch's default, for fp32 too


def move(model: torch.nn.Module, device: torch.device, settings: Settings, channels_last: bool) -> torch.nn.Module:
    """The model on the device, in the dtype and memory format of its training."""
    arguments: dict[str, Any] = {"device": device}
    if settings.precision == "pure-bf16":
        arguments["dtype"] = torch.bfloat16
    if channels_last:
        arguments["memory_format"] = torch.channels_last
    return model.to(**arguments)


def make_optimizer(parameters: Iterable[Any], settings: Settings, **arguments: Any) -> torch.optim.Optimizer:
    """The optimizer of the settings; SGD has momentum 0.9, all else is PyTorch's default."""
    maker = getattr(torch.optim, OPTIMIZERS[settings.optimizer])
    chosen = {"foreach": settings.foreach, "fused": settings.fused, "weight_decay": settings.weight_decay}
    arguments |= {key: value for key, value in chosen.items() if value is not None}
    if settings.optimizer == "sgd":
        arguments.setdefault("momentum", 0.9)
    accepted = inspect.signature(maker).parameters
    return maker(parameters, **{key: value for key, value in arguments.items() if key in accepted})


def random_images(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, channels_last: bool = False
) -> torch.Tensor:
    """Noise in the shape of images, in the memory format that the model has, without a second copy."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, device=device, dtype=dtype, memory_format=layout).normal_()
