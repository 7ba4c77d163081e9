"""Adapter for timm: `timm:NAME?options` trains any timm architecture on image classification.

Weights are random; nothing is downloaded. Defaults: fp32, SGD with momentum 0.9, the architecture's own input
size and channels, 1000 classes, cross entropy. Options besides those of every adapter (precision, optimizer,
foreach, fused, weight_decay, clip, accumulate, checkpoint): `size` (height and width), `classes`,
`channels_last`, `data` (an image folder). Source of models and input sizes: https://github.com/huggingface/pytorch-image-models
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import timm
import torch
import torch.nn.functional as F

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload, nearest
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.real_data import image_folder, stacked
from whichgpu.zoo.training import Recipe, make_workload, random_images

DEFAULT_BATCH_SIZE = 32


def build(
    model: str,
    options: Mapping[str, str],
    *,
    training: Mapping[str, Any] | None = None,
    drop_path: float = 0.0,
    **about: Any,
) -> Workload:
    """The workload that trains timm's `model`; raises WorkloadError for unknown names and options.

    `training` replaces fields of the Recipe, `drop_path` is the rate of dropped residual branches, `about` are fields of
    the Workload.
    """
    recipe = replace(make_recipe(model, options, about.get("name"), drop_path), **(training or {}))
    facts = {
        "unit": "images",
        "default_batch_size": DEFAULT_BATCH_SIZE,
        "description": f"timm {model}, image classification",
    }
    return make_workload(recipe, **{**facts, **about})


def make_recipe(name: str, options: Mapping[str, str], where: str | None = None, drop_path: float = 0.0) -> Recipe:
    """Model, data and loss of the workload."""
    where = where or f"timm:{name}"
    if not timm.is_model(name):
        raise WorkloadError(f"{where}: timm {timm.__version__} has no model {name}{nearest(name, timm.list_models())}")
    reader = Options(where, options)
    settings = read_settings(reader)
    channels, height, width, fixed = input_size(name)
    if (size := reader.count("size", 0)) and (size, size) != (height, width):
        height = width = size
    else:
        fixed = False  # the architecture's own size needs no argument
    classes = reader.count("classes", 1000)
    channels_last = bool(reader.switch("channels_last"))
    data = reader.text("data")
    samples = image_folder(data, where, (height, width), classes) if data is not None else None
    reader.finish()

    def make_model() -> torch.nn.Module:
        arguments: dict[str, Any] = {"img_size": (height, width)} if fixed else {}
        if drop_path:
            arguments["drop_path_rate"] = drop_path
        try:
            model = timm.create_model(name, pretrained=False, num_classes=classes, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            raise WorkloadError(f"{where}: timm cannot build it at {height} x {width} ({error})") from error
        if settings.checkpoint:
            checkpoint(model, where)
        return model

    def make_batch(size: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        if samples is not None:
            images, labels = zip(*samples.take(size), strict=True)
            return stacked(list(images), device, dtype, channels_last), torch.tensor(labels).to(device)
        images = random_images((size, channels, height, width), device, dtype, channels_last)
        return images, torch.randint(0, classes, (size,), device=device)

    return Recipe(
        where=where,
        settings=settings,
        make_model=make_model,
        make_batch=make_batch,
        compute_loss=compute_loss,
        optimizer_arguments={},
        channels_last=channels_last,
        sizes={"size": height} if height == width else {},
    )


def compute_loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross entropy of the classes."""
    return F.cross_entropy(model(batch[0]), batch[1])


def input_size(name: str) -> tuple[int, int, int, bool]:
    """Channels, height and width that the architecture is made for, and whether it is built for one size."""
    config = timm.models.get_pretrained_cfg(name.partition(".")[0])
    channels, height, width = config.input_size if config else (3, 224, 224)
    return channels, height, width, bool(config and config.fixed_input_size)


def checkpoint(model: torch.nn.Module, where: str) -> None:
    """Switch timm's gradient checkpointing on; raises WorkloadError where the architecture has none."""
    try:
        model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError) as error:
        raise WorkloadError(
            f"{where}: this architecture has no gradient checkpointing; leave checkpoint out"
        ) from error


def own_decay(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of timm with its decay left out where there is one: the optimizer's own applies."""
    kept = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in groups]
    for group in kept:
        if group["weight_decay"]:
            del group["weight_decay"]
    return kept
