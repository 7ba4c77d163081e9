"""Real data in its usual form on disk, fed to zoo workloads by the option `data` (`whichgpu bench --data PATH`).

    image folder    PATH/CLASS/*.jpg (or .jpeg, .png); classes in alphabetical order
    COCO            PATH/annotations/instances_*.json with the images below PATH; the first file that is found
    Cityscapes      PATH/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with PATH/gtFine/.../*_gtFine_labelIds.png
    parallel text   two files in PATH that differ in their ending alone (train.en, train.de), a sentence a line

The first samples are read once, at the size of the training, and stay in the host's memory; batches go through them in
turn. So reading files is not part of a step, and copying to the card is. Words become numbers by a hash, since no
vocabulary comes with such files. Not covered: augmentation, and samples beyond the first.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from whichgpu.errors import WorkloadError

KEPT = 64  # samples in the host's memory
_IMAGES = frozenset({".jpg", ".jpeg", ".png"})
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as every recipe here takes them
IGNORED = 255
# Cityscapes' 34 label numbers to the 19 that are trained (cityscapesScripts, helpers/labels.py: id and trainId)
_TRAINED = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9}
_TRAINED |= {23: 10, 24: 11, 25: 12, 26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
_RESERVED = 4  # numbers that no word gets: padding, start, end, unknown


@dataclass(frozen=True)
class Boxes:
    """What is in an image: corners as shares of its sides, and categories from 0."""

    corners: torch.Tensor  # n x 4: left, top, right, bottom
    labels: torch.Tensor


class Samples:
    """The first samples of a data set, read when they are first needed; `take` goes through them in turn."""

    def __init__(self, readers: list[Callable[[], Any]]) -> None:
        self._readers = readers[:KEPT]
        self._kept: dict[int, Any] = {}
        self._turn: Iterator[int] = itertools.cycle(range(len(self._readers)))

    def take(self, count: int) -> list[Any]:
        """The next samples; from the first again after the last."""
        return [self._get(next(self._turn)) for _ in range(count)]

    def _get(self, index: int) -> Any:
        if index not in self._kept:
            self._kept[index] = self._readers[index]()
        return self._kept[index]


def image_folder(path: str, where: str, size: tuple[int, int], classes: int) -> Samples:
    """Pairs of an image (3 x height x width) and its class; WorkloadError for a folder that holds none."""
    folders = sorted(folder for folder in _folder(path, where).iterdir() if folder.is_dir())
    found = [
        (file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir()) if _is_image(file)
    ]
    if not found:
        raise WorkloadError(f"{where}: data={path} holds no images as {path}/CLASS/*.jpg")
    if len(folders) > classes:
        raise WorkloadError(
            f"{where}: data={path} has {len(folders)} classes, more than classes={classes}; set classes"
        )
    spread = found[:: max(1, len(found) // KEPT)]  # from every part, not from the first classes alone
    return Samples([_reader(_labelled, file, size, label) for file, label in spread])


def coco(path: str, where: str, size: tuple[int, int]) -> Samples:
    """Pairs of an image and its Boxes, of the images that have any; WorkloadError where there is no such file."""
    folder = _folder(path, where)
    files = sorted((folder / "annotations").glob("instances_*.json"))
    if not files:
        raise WorkloadError(f"{where}: data={path} holds no annotations/instances_*.json")
    try:
        table = json.loads(files[0].read_text(encoding="utf-8"))
        order = {category["id"]: number for number, category in enumerate(table["categories"])}
        objects: dict[int, list[Any]] = {}
        for note in table["annotations"]:
            if not note.get("iscrowd"):
                objects.setdefault(note["image_id"], []).append((note["bbox"], order[note["category_id"]]))
        images = [image for image in table["images"] if image["id"] in objects]
        named = [(image, objects[image["id"]]) for image in images[:KEPT]]
        readers = [
            _reader(_boxed, _find(folder, image["file_name"], where), size, (image["width"], image["height"]), notes)
            for image, notes in named
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{where}: {files[0]} is no annotation file of COCO ({_why(error)})") from error
    if not readers:
        raise WorkloadError(f"{where}: {files[0]} has no image with objects")
    return Samples(readers)


def cityscapes(path: str, where: str, size: tuple[int, int]) -> Samples:
    """Pairs of a crop from the middle of an image and its label of each pixel (255: not trained)."""
    folder = _folder(path, where)
    found = []
    for image in sorted(folder.glob("leftImg8bit/*/*/*_leftImg8bit.png")):
        name = image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
        label = folder / "gtFine" / image.parent.parent.name / image.parent.name / name
        if label.is_file():
            found.append((image, label))
    if not found:
        raise WorkloadError(
            f"{where}: data={path} holds no pairs of leftImg8bit/SPLIT/CITY/*_leftImg8bit.png and "
            "gtFine/SPLIT/CITY/*_gtFine_labelIds.png"
        )
    return Samples([_reader(_segmented, image, label, size) for image, label in found])


def parallel_text(path: str, where: str, vocabulary: int, longest: int) -> Samples:
    """Pairs of source and target sentence, as lists of numbers below `vocabulary`, at most `longest` long."""
    files = sorted(file for file in _folder(path, where).iterdir() if file.is_file() and file.suffix)
    pairs = [(one, other) for one, other in itertools.combinations(files, 2) if one.stem == other.stem]
    pairs.sort(key=lambda pair: (not pair[0].stem.startswith("train"), pair))
    if not pairs:
        raise WorkloadError(f"{where}: data={path} holds no two files such as train.de and train.en")
    try:
        columns = [
            [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()] for file in pairs[0]
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{where}: data={path}: not readable text ({error})") from error
    if not columns[0] or len(columns[0]) != len(columns[1]):
        counts = " and ".join(str(len(column)) for column in columns)
        raise WorkloadError(f"{where}: {pairs[0][0]} and {pairs[0][1]} have {counts} sentences; they must be pairs")
    return Samples(
        [
            _reader(lambda texts: tuple(_numbers(text, vocabulary, longest) for text in texts), pair)
            for pair in zip(*columns, strict=True)
        ]
    )


def padded(sentences: list[list[int]], device: torch.device, filler: int = 0) -> torch.Tensor:
    """Sentences as the rows of a tensor, filled up to the longest."""
    longest = max(map(len, sentences))
    rows = [sentence + [filler] * (longest - len(sentence)) for sentence in sentences]
    return torch.tensor(rows).to(device)


def stacked(images: list[torch.Tensor], device: torch.device, dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    """Images as a batch on the device."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.stack(images).to(device=device, dtype=dtype, memory_format=layout)


# ---- reading ----


def _why(error: Exception) -> str:
    """An error in words: a KeyError says no more than the key."""
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _reader(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _folder(path: str, where: str) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise WorkloadError(f"{where}: data={path} is no folder")
    return folder


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in _IMAGES


def _find(folder: Path, name: str, where: str) -> Path:
    for file in (folder / name, *folder.glob(f"*/{name}")):
        if file.is_file():
            return file
    raise WorkloadError(f"{where}: the image {name} of the annotations is neither in {folder} nor in a folder there")


def _pixels(file: Path, mode: str) -> torch.Tensor:
    from PIL import Image
    from torchvision.transforms.functional import pil_to_tensor

    try:
        with Image.open(file) as image:
            return pil_to_tensor(image.convert(mode))
    except OSError as error:
        raise WorkloadError(f"{file}: not a readable image ({' '.join(str(error).split())})") from error


def _image(file: Path, size: tuple[int, int] | None) -> torch.Tensor:
    image = _pixels(file, "RGB").float() / 255
    if size is not None:
        image = F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]
    return (image - torch.tensor(_MEAN)[:, None, None]) / torch.tensor(_DEVIATION)[:, None, None]


def _labelled(file: Path, size: tuple[int, int], label: int) -> tuple[torch.Tensor, int]:
    return _image(file, size), label


def _boxed(
    file: Path, size: tuple[int, int], sides: tuple[int, int], notes: list[tuple[list[float], int]]
) -> tuple[torch.Tensor, Boxes]:
    boxes = torch.tensor([box for box, _ in notes], dtype=torch.float32)
    corners = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1) / torch.tensor([*sides, *sides])
    large = ((corners[:, 2:] - corners[:, :2]) > 0).all(dim=1)
    labels = torch.tensor([label for _, label in notes])
    return _image(file, size), Boxes(corners[large].clamp(0, 1), labels[large])


def _segmented(file: Path, label_file: Path, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    image, labels = _image(file, None), _pixels(label_file, "L").long()
    trained = torch.full((256,), IGNORED)
    for number, label in _TRAINED.items():
        trained[number] = label
    return _crop(image, size, 0.0), _crop(trained[labels], size, IGNORED)[0]


def _crop(image: torch.Tensor, size: tuple[int, int], filler: float) -> torch.Tensor:
    """The middle of an image, filled up at the right and below where it is smaller."""
    height, width = size
    top, left = max(0, (image.shape[1] - height) // 2), max(0, (image.shape[2] - width) // 2)
    part = image[:, top : top + height, left : left + width]
    return F.pad(part, (0, width - part.shape[2], 0, height - part.shape[1]), value=filler)


def _numbers(text: str, vocabulary: int, longest: int) -> list[int]:
    """Words as numbers, the same word always the same."""
    return [_RESERVED + zlib.crc32(word.encode()) % (vocabulary - _RESERVED) for word in text.split()][:longest]


# ---- without data: what is usual ----

# Objects of an image: ten numbers with the mean of COCO, 7.7 (Lin et al., "Microsoft COCO", section 5,
# https://arxiv.org/abs/1405.0312), most images having few and few having many
OBJECTS = (1, 1, 2, 3, 4, 5, 7, 10, 15, 29)
# Sides of boxes as shares of an image's: of ten, four are small, three or four medium and two or three large (below 32
# and above 96 pixels of about 570), as https://cocodataset.org/#detection-eval counts them (41, 34 and 24 %)
_SIDES = (0.02, 0.03, 0.04, 0.05, 0.08, 0.11, 0.15, 0.22, 0.35, 0.6)


def usual_boxes(index: int, device: torch.device, classes: int) -> Boxes:
    """Boxes of the image with that place in a batch: as many and as large as COCO's are."""
    count = OBJECTS[index % len(OBJECTS)]
    sides = torch.tensor([_SIDES[(index + number) % len(_SIDES)] for number in range(count)], device=device)[:, None]
    corner = torch.rand(count, 2, device=device) * (1 - sides)
    return Boxes(torch.cat([corner, corner + sides], dim=1), torch.randint(0, classes, (count,), device=device))


def centred(boxes: Boxes, device: torch.device) -> Mapping[str, torch.Tensor]:
    """Boxes as the DETR family takes them: centre and sides."""
    corners = boxes.corners.to(device)
    low, high = corners[:, :2], corners[:, 2:]
    return {"class_labels": boxes.labels.to(device), "boxes": torch.cat([(low + high) / 2, high - low], dim=1)}
