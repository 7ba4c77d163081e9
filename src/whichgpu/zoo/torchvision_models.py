"""Adapter for torchvision: `torchvision:NAME?options`, for its classification, detection, segmentation and
video architectures.

Weights are random; nothing is downloaded. Defaults: fp32, SGD with momentum 0.9, and by kind of model:

    classification   the input size of the published weights (ViT: 224), 1000 classes, cross entropy;
                     auxiliary heads count 0.4 (inception) or 0.3 (googlenet, as in its paper)
    segmentation     480 x 480 crops, 21 classes; the auxiliary head counts 0.5
    video            clips of 16 frames at the size of the published weights, 400 classes
    detection        images of the largest size the model resizes to (800 x 1333 for Faster R-CNN; `size` sets
                     both sides), 91 classes, 8 objects an image: COCO train2017 has 7.3 (860,001 in 118,287)

Options besides those of every adapter: `size`, `classes`, `channels_last` (not detection and video), `frames`
(video), `objects` (detection). Training settings: https://github.com/pytorch/vision/tree/main/references
Not covered: quantized models, optical flow, gradient checkpointing (torchvision has none).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torchvision.models import get_model, get_model_builder, get_model_weights, list_models

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload, nearest
from whichgpu.zoo.options import Options, Settings, read_settings
from whichgpu.zoo.training import Recipe, make_workload, random_images

DEFAULT_BATCH_SIZES = {"classification": 32, "segmentation": 8, "video": 8, "detection": 2}
_AUXILIARY_WEIGHT = {"inception_v3": 0.4, "googlenet": 0.3}


def build(model: str, options: Mapping[str, str], **about: Any) -> Workload:
    """The workload that trains torchvision's `model`; raises WorkloadError for unknown names and options."""
    recipe = make_recipe(model, options)
    kind = kind_of(model)
    facts = {
        "unit": "clips" if kind == "video" else "images",
        "default_batch_size": DEFAULT_BATCH_SIZES[kind],
        "description": f"torchvision {model}, {kind}",
    }
    return make_workload(recipe, **{**facts, **about})


def make_recipe(name: str, options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    where = f"torchvision:{name}"
    kind = kind_of(name)
    maker = {
        "classification": _classification,
        "segmentation": _segmentation,
        "video": _video,
        "detection": _detection,
    }.get(kind)
    if maker is None:
        raise WorkloadError(f"{where}: no training step is built in for {kind} models; write a file with setup(device)")
    reader = Options(where, options)
    settings = read_settings(reader)
    if settings.checkpoint:
        raise WorkloadError(f"{where}: torchvision has no gradient checkpointing; leave checkpoint out")
    return maker(name, reader, settings)


def kind_of(name: str) -> str:
    """One of "classification", "detection", "segmentation", "video", "quantization" or "optical_flow"."""
    if name not in list_models():
        raise WorkloadError(
            f"torchvision:{name}: torchvision {torchvision.__version__} has no model {name}"
            f"{nearest(name, list_models())}"
        )
    parts = get_model_builder(name).__module__.split(".")  # torchvision.models[.kind].file
    return parts[2] if len(parts) > 3 else "classification"


def published_size(name: str) -> int:
    """Input size of the first published weights, which is the one of training from scratch."""
    if name.startswith("vit_"):
        return 224  # the builder's default; some published weights are fine-tuned at other sizes
    crop = next(iter(get_model_weights(name))).transforms.keywords["crop_size"]
    return crop if isinstance(crop, int) else crop[0]


def _classification(name: str, reader: Options, settings: Settings) -> Recipe:
    size = reader.count("size", published_size(name))
    classes = reader.count("classes", 1000)
    channels_last = bool(reader.switch("channels_last"))
    reader.finish()
    arguments: dict[str, Any] = {"num_classes": classes}
    if name in _AUXILIARY_WEIGHT:
        arguments["init_weights"] = False  # their own initialisation is slow, and warns when left unsaid
    if name.startswith("vit_"):
        arguments["image_size"] = size
    if name.startswith("maxvit"):
        arguments["input_size"] = (size, size)

    def compute_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        if isinstance(output, torch.Tensor):
            return F.cross_entropy(output, batch[1])
        main, *auxiliary = (F.cross_entropy(logits, batch[1]) for logits in output if logits is not None)
        return main + _AUXILIARY_WEIGHT[name] * sum(auxiliary)

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> Any:
        images = random_images((count, 3, size, size), device, dtype, channels_last)
        return images, torch.randint(0, classes, (count,), device=device)

    return _recipe(
        name,
        reader,
        settings,
        arguments=arguments,
        make_batch=make_batch,
        compute_loss=compute_loss,
        channels_last=channels_last,
        sizes={"size": size},
    )


def _segmentation(name: str, reader: Options, settings: Settings) -> Recipe:
    size = reader.count("size", 480)
    classes = reader.count("classes", 21)
    channels_last = bool(reader.switch("channels_last"))
    reader.finish()

    def compute_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        loss = F.cross_entropy(output["out"], batch[1])
        return loss + 0.5 * F.cross_entropy(output["aux"], batch[1]) if "aux" in output else loss

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> Any:
        images = random_images((count, 3, size, size), device, dtype, channels_last)
        return images, torch.randint(0, classes, (count, size, size), device=device)

    arguments = {"num_classes": classes, "weights_backbone": None}
    return _recipe(
        name,
        reader,
        settings,
        arguments=arguments,
        make_batch=make_batch,
        compute_loss=compute_loss,
        channels_last=channels_last,
        sizes={"size": size},
    )


def _video(name: str, reader: Options, settings: Settings) -> Recipe:
    size = reader.count("size", published_size(name))
    frames = reader.count("frames", 16)
    classes = reader.count("classes", 400)
    reader.finish()
    arguments: dict[str, Any] = {"num_classes": classes}
    if name.startswith("mvit"):
        arguments |= {"spatial_size": (size, size), "temporal_size": frames}

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> Any:
        clips = random_images((count, 3, frames, size, size), device, dtype)
        return clips, torch.randint(0, classes, (count,), device=device)

    return _recipe(
        name,
        reader,
        settings,
        arguments=arguments,
        make_batch=make_batch,
        compute_loss=_cross_entropy,
        sizes={"size": size},
    )


def _detection(name: str, reader: Options, settings: Settings) -> Recipe:
    size = reader.count("size", 0)
    objects = reader.count("objects", 8)
    classes = reader.count("classes", 2 if "keypoint" in name else 91)
    reader.finish()
    if classes < 2:
        raise WorkloadError(f"{reader.where}: classes=1 leaves no object beside the background; give 2 or more")
    if settings.precision == "pure-bf16":
        raise WorkloadError(
            f"{reader.where}: torchvision's region operators have no bfloat16 kernels; use precision=bf16"
        )
    arguments: dict[str, Any] = {"num_classes": classes, "weights_backbone": None}
    height, width = _DETECTION_SIZES.get(name, (800, 1333))
    if size:
        if name.startswith("ssd"):
            raise WorkloadError(f"{reader.where}: this model always resizes to {height} x {width}; leave size out")
        height = width = size
        arguments |= {"min_size": size, "max_size": size}

    facts = {"objects": objects, "classes": classes, "height": height, "width": width}

    def make_batch(count: int, device: torch.device, dtype: torch.dtype) -> Any:
        images = [random_images((3, height, width), device, dtype) for _ in range(count)]
        return images, [_target(name, device, **facts) for _ in range(count)]

    def compute_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return sum(model(*batch).values())

    return _recipe(name, reader, settings, arguments=arguments, make_batch=make_batch, compute_loss=compute_loss)


# The size after the model's own resizing, where it is not 800 x 1333 (its builder's min_size and max_size)
_DETECTION_SIZES = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": (320, 640),
    "ssd300_vgg16": (300, 300),
    "ssdlite320_mobilenet_v3_large": (320, 320),
}


def _target(
    name: str, device: torch.device, *, objects: int, classes: int, height: int, width: int
) -> dict[str, torch.Tensor]:
    """Random boxes with sides of a tenth to half of the image's, labels, and masks or keypoints if needed."""
    scale = torch.tensor([width, height], device=device)
    corner = torch.rand(objects, 2, device=device) * 0.5
    side = torch.rand(objects, 2, device=device) * 0.4 + 0.1
    target = {
        "boxes": torch.cat([corner * scale, (corner + side) * scale], dim=1),
        "labels": torch.randint(1, classes, (objects,), device=device),
    }
    if name.startswith("maskrcnn"):
        target["masks"] = torch.randint(0, 2, (objects, height, width), dtype=torch.uint8, device=device)
    if name.startswith("keypointrcnn"):
        centre = (corner + side / 2) * scale
        visible = torch.ones(objects, 1, device=device)
        target["keypoints"] = torch.cat([centre, visible], dim=1)[:, None, :].repeat(1, 17, 1)
    return target


def _cross_entropy(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _recipe(
    name: str,
    reader: Options,
    settings: Settings,
    *,
    arguments: dict[str, Any],
    make_batch: Any,
    compute_loss: Any,
    channels_last: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Recipe:
    def make_model() -> torch.nn.Module:
        try:
            return get_model(name, weights=None, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            raise WorkloadError(f"{reader.where}: torchvision cannot build it so ({error})") from error

    return Recipe(
        where=reader.where,
        settings=settings,
        make_model=make_model,
        make_batch=make_batch,
        compute_loss=compute_loss,
        optimizer_arguments={},
        channels_last=channels_last,
        sizes=sizes or {},
    )
