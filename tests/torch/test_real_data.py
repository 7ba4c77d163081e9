"""Data sets in their usual form on disk, made small here, and the workloads that are fed with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from whichgpu.errors import WorkloadError
from whichgpu.workload import load, parse
from whichgpu.zoo import real_data

CPU = torch.device("cpu")
SEGFORMER = "segformer-b5?size=64&depths=[1,1,1,1]&hidden_sizes=[16,32,40,64]&decoder_hidden_size=32"
T5 = "hf:t5?seq=8&num_layers=1&d_model=16&d_ff=16&num_heads=2&d_kv=8&vocab_size=64"
RT_DETR = "rt-detr?size=64&decoder_layers=1&num_queries=20"


def picture(path: Path, width: int, height: int, colour: int = 128) -> None:
    """A plain image in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numpy.full((height, width, 3), colour, dtype=numpy.uint8)).save(path)


def make_folder(root: Path) -> None:
    """Two classes, with images of different sizes and forms."""
    picture(root / "cat" / "1.jpg", 40, 30)
    picture(root / "cat" / "2.png", 10, 50)
    picture(root / "dog" / "1.jpeg", 33, 33)
    (root / "dog" / "readme.txt").write_text("no image")


def make_coco(root: Path) -> None:
    """Two images, one with two objects and a crowd, one without any."""
    picture(root / "val" / "1.jpg", 100, 50)
    picture(root / "val" / "2.jpg", 20, 20)
    notes = [
        {"image_id": 7, "bbox": [10, 5, 50, 25], "category_id": 3, "iscrowd": 0},
        {"image_id": 7, "bbox": [0, 0, 100, 50], "category_id": 9, "iscrowd": 0},
        {"image_id": 7, "bbox": [0, 0, 1, 1], "category_id": 9, "iscrowd": 1},
        {"image_id": 7, "bbox": [5, 5, 0, 3], "category_id": 9, "iscrowd": 0},
    ]
    table = {
        "images": [
            {"id": 7, "file_name": "1.jpg", "width": 100, "height": 50},
            {"id": 8, "file_name": "2.jpg", "width": 20, "height": 20},
        ],
        "annotations": notes,
        "categories": [{"id": 3}, {"id": 9}],
    }
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_val.json").write_text(json.dumps(table))


def make_cityscapes(root: Path) -> None:
    """One pair of an image and its labels: road on the left, something that is not trained on the right."""
    picture(root / "leftImg8bit" / "train" / "ulm" / "a_leftImg8bit.png", 80, 60)
    labels = numpy.full((60, 80), 7, dtype=numpy.uint8)
    labels[:, 40:] = 1
    target = root / "gtFine" / "train" / "ulm" / "a_gtFine_labelIds.png"
    target.parent.mkdir(parents=True)
    Image.fromarray(labels).save(target)


def make_text(root: Path) -> None:
    """Two sentences in two languages."""
    (root / "train.de").write_text("ein Haus\nzwei Häuser und ein Hund\n", encoding="utf-8")
    (root / "train.en").write_text("a house\ntwo houses and a dog\n", encoding="utf-8")


def test_images_are_of_one_size_and_know_their_class(tmp_path: Path) -> None:
    """Images of any size and form become the size of the training, with the number of their folder."""
    make_folder(tmp_path)
    taken = real_data.image_folder(str(tmp_path), "w", (16, 24), 2).take(4)
    assert {(3, 16, 24)} == {tuple(image.shape) for image, _ in taken}
    assert [0, 0, 1, 0] == [label for _, label in taken], "the first again after the last"


def test_boxes_are_shares_of_the_image(tmp_path: Path) -> None:
    """Boxes become corners between 0 and 1; crowds, boxes without a side and images without objects are left out."""
    make_coco(tmp_path)
    (image, boxes), again = real_data.coco(str(tmp_path), "w", (32, 32)).take(2)
    assert (3, 32, 32) == image.shape
    torch.testing.assert_close(torch.tensor([[0.1, 0.1, 0.6, 0.6], [0.0, 0.0, 1.0, 1.0]]), boxes.corners)
    assert [0, 1] == boxes.labels.tolist()
    assert again[0] is image, "read once"
    centred = real_data.centred(boxes, CPU)
    torch.testing.assert_close(torch.tensor([[0.35, 0.35, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]), centred["boxes"])


def test_labels_of_pixels_are_those_that_are_trained(tmp_path: Path) -> None:
    """Label numbers become the 19 of the training, all others 255; crops come from the middle, filled up if need be."""
    make_cityscapes(tmp_path)
    ((image, labels),) = real_data.cityscapes(str(tmp_path), "w", (64, 64)).take(1)
    assert ((3, 64, 64), (64, 64)) == (image.shape, labels.shape)
    assert {0} == set(labels[:60, :32].flatten().tolist())
    assert {255} == set(labels[:, 32:].flatten().tolist()) | set(labels[60:].flatten().tolist())


def test_sentences_come_in_pairs(tmp_path: Path) -> None:
    """Words become numbers of the vocabulary, the same word the same, cut at the longest; batches are filled up."""
    make_text(tmp_path)
    (one, other), (longer, _) = real_data.parallel_text(str(tmp_path), "w", 64, 4).take(2)
    assert (2, 2, 4) == (len(one), len(other), len(longer))
    assert one[0] == longer[3], "ein"
    assert all(4 <= number < 64 for number in one + other + longer)
    assert [[*one, 0, 0], longer] == real_data.padded([one, longer], CPU).tolist()


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("timm:test_resnet?size=32&classes=2", make_folder),
        ("vit-large?model=test_vit&size=32&classes=2", make_folder),
        (
            "hf:vit?size=32&patch_size=16&classes=2&hidden_size=32&num_hidden_layers=1&num_attention_heads=2",
            make_folder,
        ),
        (SEGFORMER, make_cityscapes),
        (T5, make_text),
        (RT_DETR, make_coco),
    ],
)
def test_workloads_are_fed(text: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    """A step on real data is a step: its loss is finite, at any batch size."""
    if text.startswith("rt-detr"):
        pytest.importorskip("scipy")
    make(tmp_path)
    step = load(parse(f"{text}&data={tmp_path}")).setup(CPU)
    assert math.isfinite(step(3).item())
    assert math.isfinite(step(2).item())


BROKEN = "timm:test_resnet?size=32&classes=2"


@pytest.mark.parametrize(
    ("text", "file", "content", "part"),
    [
        (BROKEN, "", "", "holds no images as"),
        (BROKEN, "cat/1.jpg", "no picture", "not a readable image"),
        (SEGFORMER, "", "", "holds no pairs of leftImg8bit"),
        (T5, "train.de", "ein Haus", "holds no two files such as"),
        (RT_DETR, "", "", "holds no annotations/instances_"),
        (RT_DETR, "annotations/instances_a.json", "{", "is no annotation file of COCO"),
        (RT_DETR, "annotations/instances_a.json", '{"images": []}', "is no annotation file of COCO"),
    ],
)
def test_data_that_is_not_there_is_told(text: str, file: str, content: str, part: str, tmp_path: Path) -> None:
    """A folder that holds something else, or files that cannot be read, are told in one line."""
    if text.startswith("rt-detr"):
        pytest.importorskip("scipy")
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    with pytest.raises(WorkloadError) as caught:
        load(parse(f"{text}&data={tmp_path}")).setup(CPU)(2)
    assert part in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_more_classes_than_outputs_are_told(tmp_path: Path) -> None:
    """A folder with more classes than the model has outputs cannot be learned."""
    make_folder(tmp_path)
    with pytest.raises(WorkloadError, match="has 2 classes, more than classes=1; set classes"):
        load(parse(f"timm:test_resnet?size=32&classes=1&data={tmp_path}"))


def test_unequal_texts_are_told(tmp_path: Path) -> None:
    """Two texts that are not of the same number of sentences are no pairs."""
    make_text(tmp_path)
    (tmp_path / "train.en").write_text("a house\n")
    with pytest.raises(WorkloadError, match=r"have 2 and 1 sentences; they must be pairs"):
        real_data.parallel_text(str(tmp_path), "w", 64, 4)


def test_a_folder_must_be_there() -> None:
    """A path that is none is told, and so is data for a workload that takes none."""
    with pytest.raises(WorkloadError, match="data=gone is no folder"):
        load(parse("resnet50?data=gone"))
    with pytest.raises(WorkloadError, match="takes no data from disk"):
        load(parse("dlrm?data=gone"))


def test_usual_boxes_are_as_many_and_as_large_as_cocos() -> None:
    """Ten images have 7.7 objects each on average, about four of ten small, and all lie inside of the image."""
    found = [real_data.usual_boxes(index, CPU, 80) for index in range(10)]
    corners = torch.cat([boxes.corners for boxes in found])
    assert pytest.approx(7.7) == len(corners) / 10
    assert 0 <= corners.min().item() <= corners.max().item() <= 1 + 1e-6
    sides = (corners[:, 2:] - corners[:, :2]).mean(1)
    assert 0.35 < (sides < 32 / 570).float().mean().item() < 0.5
    assert 0.2 < (sides > 96 / 570).float().mean().item() < 0.35
