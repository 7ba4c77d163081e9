"""The models of 2020: each trains at a reduced size, has the published number of parameters, and computes what it says."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet50, resnet101
from torchvision.models.detection import maskrcnn_resnet50_fpn
from torchvision.ops import box_iou
from transformers import XLMConfig, XLMModel

from conftest import full_size
from whichgpu.errors import WorkloadError
from whichgpu.workload import load, parse
from whichgpu.zoo import coco_boxes, darknet, detection, mt_dnn, stylegan, unsup_mt, yolo_v3
from whichgpu.zoo.written_out import Framework, WrittenOut

CPU = torch.device("cpu")
META = torch.device("meta")
SENTENCES = "vocabulary=50&seq=5"
REDUCED = {
    "deeplabv3": "size=65&width=16&backbone=xception41",
    "yolo-v3": "size=64&width=4&classes=3",
    "pix2pix-hd": "size=64&width=4&blocks=1&labels=4&instances=4",
    "stylegan": "size=32&width=8&mapping=2",
    "mask-rcnn": "size=128&backbone=resnet18&objects=2&sampled=16",
    "transformer-big": f"width=64&layers=1&{SENTENCES}",
    "conv-seq2seq": f"width=16&layers=2&{SENTENCES}",
    "unsup-mt": f"width=32&layers=2&{SENTENCES}",
    "mt-dnn": "hidden_size=32&num_hidden_layers=2&num_attention_heads=4&intermediate_size=64&vocab_size=64&seq=16",
}
BERT = REDUCED["mt-dnn"]
# Workloads with the option code=2019, with a reduced size where there is none above
OF_2019 = {
    "bert-base": f"{BERT}&predictions=3",
    "bert-finetune": BERT,
    "nasnet-large": "size=96",
    "yolo-v3": "",
    "mask-rcnn": "",
    "transformer-big": "",
    "conv-seq2seq": "",
    "unsup-mt": "",
    "mt-dnn": "",
}

pytestmark = pytest.mark.usefixtures("zoo_defaults")


def parameters(module: nn.Module) -> int:
    """How many numbers a module learns or holds as parameters."""
    return sum(weight.numel() for weight in module.parameters())


def recipe_of(text: str) -> Any:
    """The recipe of a workload."""
    return load(parse(text)).setup.__self__  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", REDUCED)
def test_models_train_for_real(name: str) -> None:
    """Two real steps on a CPU, and one with a single sample, give finite losses; weights change and stay finite."""
    recipe = load(parse(f"{name}?{REDUCED[name]}")).setup.__self__  # type: ignore[attr-defined]
    model = recipe.make_model()
    before = [weight.detach().clone() for weight in model.parameters()]
    object.__setattr__(recipe, "make_model", lambda: model)
    step = recipe.setup(CPU)
    assert all(math.isfinite(step(count).item()) for count in (2, 2, 1))
    assert all(weight.isfinite().all() for weight in model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["transformer-big", "unsup-mt", "mt-dnn"])
def test_written_out_attention_trains(name: str) -> None:
    """Attention as it was written in 2019 is an option that trains as well."""
    step = load(parse(f"{name}?{REDUCED[name]}&attention=eager&precision=fp32")).setup(CPU)
    assert all(math.isfinite(step(2).item()) for _ in range(2))


@pytest.mark.parametrize("name", OF_2019)
def test_the_code_of_2019_trains(name: str) -> None:
    """The code of 2019 is an option that trains as well, two real steps, with as many parameters."""
    text = f"{name}?{REDUCED[name] if name in REDUCED else OF_2019[name]}"
    assert parameters(recipe_of(f"{text}&code=2019").make_model()) == parameters(recipe_of(text).make_model())
    step = load(parse(f"{text}&code=2019")).setup(CPU)
    assert all(math.isfinite(step(2).item()) for _ in range(2))


@pytest.mark.parametrize("name", OF_2019)
def test_the_code_of_2019_keeps_the_published_size(name: str) -> None:
    """At full size, parameters are as many as in the workload whose size is compared with the paper's."""
    assert parameters(full_size(name)[1]) == parameters(full_size(f"{name}?code=2019")[1])


@pytest.mark.parametrize("framework", ["pytorch 0.4", "pytorch 1.0", "tensorflow 1.13"])
def test_operators_of_2019_compute_the_same(framework: Framework) -> None:
    """GELU and layer norm have the values and gradients of today's operators, and dropout keeps the mean."""
    approximate = "tanh" if framework == "tensorflow 1.13" else "none"
    norm, results = nn.LayerNorm(8), []
    nn.init.normal_(norm.weight)
    values = torch.randn(2, 3, 8)
    for mode in (contextlib.nullcontext(), WrittenOut(framework)):
        inputs = values.clone().requires_grad_()
        with mode:
            output = nn.functional.gelu(norm(inputs), approximate=approximate)
        results.append((output, *torch.autograd.grad(output.square().sum(), (inputs, norm.weight, norm.bias))))
    torch.testing.assert_close(results[0], results[1])
    with WrittenOut(framework):
        dropped = nn.functional.dropout(torch.ones(10_000), 0.1)
    assert [0.0, pytest.approx(1 / 0.9)] == dropped.unique().tolist()
    assert pytest.approx(1, abs=0.02) == dropped.mean().item()


def test_losses_and_pools_of_tensorflow_compute_the_same() -> None:
    """The loss by one-hot vectors and the pool that keeps no input have the values and gradients of today's."""
    logits, images = torch.randn(3, 5, requires_grad=True), torch.randn(2, 3, 8, 8, requires_grad=True)
    results = []
    for mode in (contextlib.nullcontext(), WrittenOut("tensorflow 1.13")):
        with mode:
            loss = nn.functional.cross_entropy(logits, torch.tensor([0, 4, 2]))
            pooled = nn.functional.avg_pool2d(images, 3, stride=2, padding=1, count_include_pad=False)
        results.append((loss, pooled, *torch.autograd.grad(loss + pooled.square().sum(), (logits, images))))
    torch.testing.assert_close(results[0], results[1])


def test_darknets_layers_compute_the_same() -> None:
    """Its batch norm with leaky ReLU and its shortcut have the values, gradients and statistics of PyTorch's."""
    theirs, ours = nn.BatchNorm2d(3), darknet.Norm(3)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    images, results = torch.randn(4, 3, 5, 5, requires_grad=True), []
    for norm in (lambda x: x + nn.functional.leaky_relu(theirs(x), 0.1), lambda x: darknet.Shortcut.apply(x, ours(x))):
        result = norm(images)
        weights = (theirs if not results else ours).parameters()
        results.append((result, *torch.autograd.grad(result.pow(3).sum(), (images, *weights))))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs.running_mean, ours.running_mean)


def test_equal_relus_are_one_in_tensorflow() -> None:
    """The ReLU of a tensor is computed once, also for two layers, and its gradient is that of both uses."""
    values = torch.randn(4, requires_grad=True)
    with WrittenOut("tensorflow 1.13"):
        hidden = values * 2
        first, second = nn.ReLU()(hidden), nn.ReLU()(hidden)
    assert first is second
    (slope,) = torch.autograd.grad(first.sum() + 2 * second.sum(), values)
    torch.testing.assert_close(6.0 * (values > 0), slope)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("deeplabv3?backbone=resnet50", "backbone is one of xception41"),
        ("deeplabv3?checkpoint=1", "no gradient checkpointing"),
        ("yolo-v3?size=100", "size=100 is not a multiple of 32"),
        ("pix2pix-hd?size=100", "size=100 is not a multiple of 32 of 64 or more"),
        ("pix2pix-hd?precision=bf16", "precision is fp32 or tf32"),
        ("stylegan?size=100", "size=100 is not a power of two"),
        ("stylegan?accumulate=2", "neither clips nor accumulates"),
        ("mask-rcnn?classes=1", "classes=1 leaves no object"),
        ("mask-rcnn?sampled=3", "sampled=3 is not a multiple of 4"),
        ("mask-rcnn?precision=pure-bf16", "use precision=bf16"),
        ("transformer-big?width=100", "width=100 is not a multiple of 64"),
        ("transformer-big?seq=2000", "longer than the model's 1024 positions"),
        ("conv-seq2seq?seq=2000", "longer than the model's 1024 positions"),
        ("unsup-mt?seq=600", "longer than the model's 512 positions"),
        ("unsup-mt?width=200", "width=200 is not a multiple of 128"),
        ("unsup-mt?code=2019&seq=400", "longer than the model's 512 positions"),
        ("mt-dnn?code=1998", "code is one of today, 2019"),
        ("mt-dnn?code=2019&attention=sdpa", "leave attention out"),
        ("mt-dnn?seq=1", "seq=1 has no room for two sentences"),
        ("mt-dnn?seq=600", "longer than the model's 512 positions"),
    ],
)
def test_bad_options_name_the_cure(text: str, part: str) -> None:
    """What a model cannot be is refused in one line that says what would do."""
    with pytest.raises(WorkloadError) as caught:
        load(parse(text))
    assert part in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(("name", "length"), [("transformer-big", 32), ("conv-seq2seq", 32), ("unsup-mt", 32)])
def test_translation_counts_tokens(name: str, length: int) -> None:
    """A sample of the translation models is a sentence of so many tokens, the published unit; `seq` changes both."""
    assert ("tokens", length) == (load(parse(name)).unit, load(parse(name)).items_per_sample)
    assert 128 == load(parse(f"{name}?seq=128")).items_per_sample


# ---- published sizes ----


def test_deeplab_has_the_published_size() -> None:
    """DeepLabv3+ with Xception-71 has the 43.48 million parameters that Auto-DeepLab's comparison gives it."""
    assert pytest.approx(43.48, abs=0.03) == parameters(full_size("deeplabv3?backbone=xception71&classes=19")[1]) / 1e6


def test_yolo_has_the_published_weights() -> None:
    """Parameters and running statistics are as many as the published yolov3.weights holds (header: 20 bytes)."""
    model = full_size("yolo-v3")[1]
    statistics = sum(values.numel() for name, values in model.named_buffers() if "running" in name)
    assert (248_007_048 - 20) // 4 == parameters(model) + statistics


def test_pix2pix_generator_has_the_published_size() -> None:
    """The generator has about 183 million parameters, as comparisons with it give."""
    assert pytest.approx(183, abs=1) == parameters(full_size("pix2pix-hd")[1].generator) / 1e6


def test_stylegan_has_the_published_size() -> None:
    """The generator has 26.2 million parameters (the paper's section 2), the discriminator 23.1 (its predecessor's)."""
    networks = full_size("stylegan")[1]
    assert pytest.approx(26.2, abs=0.05) == parameters(networks.generator) / 1e6
    assert parameters(networks.average) == parameters(networks.generator)
    assert pytest.approx(23.1, abs=0.05) == parameters(networks.discriminator) / 1e6


def test_mask_rcnn_is_as_large_as_torchvisions() -> None:
    """With ResNet-50 it is torchvision's, but for frozen norms and 81 classes; ResNet-101 adds what it adds there."""
    with META:
        theirs = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=81)
        more = parameters(resnet101()) - parameters(resnet50())
    norms = sum(parameters(module) for module in theirs.backbone.body.modules() if isinstance(module, nn.BatchNorm2d))
    ours = parameters(full_size("mask-rcnn?backbone=resnet50")[1])
    assert parameters(theirs) - norms == ours
    assert pytest.approx(more, rel=0.01) == parameters(full_size("mask-rcnn")[1]) - ours


def test_transformer_big_has_the_published_size() -> None:
    """210 million with the vocabulary of 32768 (Ott et al.), 213 with one of about 37000 (Vaswani et al.)."""
    learned = [weight for weight in full_size("transformer-big")[1].parameters() if weight.requires_grad]
    assert pytest.approx(210, abs=0.2) == sum(weight.numel() for weight in learned) / 1e6
    learned = [w for w in full_size("transformer-big?vocabulary=37000")[1].parameters() if w.requires_grad]
    assert pytest.approx(213, abs=1.5) == sum(weight.numel() for weight in learned) / 1e6


def test_xlm_encoder_is_transformers_own() -> None:
    """The encoder has the parameters of transformers' XLMModel in the published shape."""
    config = XLMConfig(vocab_size=64139, emb_dim=1024, n_layers=6, n_heads=8, n_langs=2, max_position_embeddings=512)
    with META:
        theirs = XLMModel(config)
    assert parameters(theirs) == parameters(full_size("unsup-mt")[1].encoder)


def test_mt_dnn_is_bert_large() -> None:
    """The shared encoder has BERT-large's 340 million parameters, less the heads of its pre-training."""
    assert pytest.approx(340, abs=6) == parameters(full_size("mt-dnn")[1].encoder) / 1e6


# ---- what they compute ----


def test_boxes_are_as_in_coco() -> None:
    """Shares of small, medium and large boxes are COCO's, and all boxes lie in the image."""
    boxes = coco_boxes.random_boxes((20_000,), CPU)
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    assert (low >= -1e-6).all()
    assert (high <= 1 + 1e-6).all()
    side = boxes[:, 2:].prod(-1).sqrt() * (640 * 480) ** 0.5
    assert pytest.approx(0.41, abs=0.03) == (side < 32).float().mean().item()
    assert pytest.approx(0.24, abs=0.03) == (side >= 96).float().mean().item()


def test_objects_go_to_the_anchor_of_their_shape() -> None:
    """An object as large as an anchor is matched with it."""
    anchors = torch.tensor(yolo_v3.ANCHORS).flatten(0, 1)
    assert list(range(9)) == yolo_v3.best_anchor(anchors[None], anchors).squeeze(0).tolist()


def test_yolo_learns_one_image() -> None:
    """The loss falls when the same image comes again and again."""
    recipe = load(parse("yolo-v3?size=64&width=4&classes=3&optimizer=adam")).setup.__self__  # type: ignore[attr-defined]
    batch = recipe.make_batch(2, CPU, torch.float32)
    object.__setattr__(recipe, "make_batch", lambda *_: batch)
    step = recipe.setup(CPU)
    losses = [step(2).item() for _ in range(60)]
    assert losses[-1] < losses[0] / 2


def test_overlaps_are_torchvisions() -> None:
    """Intersection over union is that of torchvision, in both detectors."""
    boxes = coco_boxes.random_boxes((2, 5), CPU)
    corners = detection.corners(boxes)
    expected = torch.stack([box_iou(one, one) for one in corners])
    torch.testing.assert_close(expected, detection.overlap(corners, corners))
    torch.testing.assert_close(expected, yolo_v3.intersection_over_union(boxes, boxes))


def test_boxes_survive_coding() -> None:
    """What is encoded from an anchor to a box decodes to that box."""
    boxes, anchors = (detection.corners(coco_boxes.random_boxes((2, 5), CPU) * 500) for _ in range(2))
    torch.testing.assert_close(boxes, detection.decode(detection.encode(boxes, anchors), anchors), rtol=1e-3, atol=0.1)


def test_samples_hold_objects_first() -> None:
    """Sampled boxes are as many as asked for; those that are objects come first and have their labels."""
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]]])
    candidates = torch.cat([boxes, torch.tensor([[[200.0, 200.0, 210.0, 210.0]]]).expand(1, 10, 4)], dim=1)
    found = detection.sample(candidates, boxes, torch.tensor([[3, 4]]), 8, 2)
    assert [3, 4] == sorted(found.labels[0, :2].tolist())
    assert [0] * 6 == found.labels[0, 2:].tolist()


def test_styles_differ_by_layer_and_images_by_latent() -> None:
    """Other latent vectors give other images, of the size asked for."""
    generator = stylegan.Generator(16, 8, 2)
    first, second = torch.randn(2, 2, stylegan.LATENT)
    images = generator(first, second)
    assert (2, 3, 16, 16) == tuple(images.shape)
    assert not torch.allclose(images[0], images[1])


def test_convolutions_that_resample_do_both() -> None:
    """A convolution that halves is the convolution and then the mean of 2 x 2; so its fused kernel says."""
    halving = stylegan.Convolution(3, 4, down=True)
    plain = stylegan.Convolution(3, 4)
    plain.load_state_dict(halving.state_dict())
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(nn.functional.avg_pool2d(plain(images), 2), halving(images), rtol=1e-4, atol=1e-5)
    assert (2, 4, 16, 16) == tuple(stylegan.Convolution(3, 4, up=True)(images).shape)


def test_translation_with_a_cache_is_translation_without() -> None:
    """Greedy translation with cached keys chooses the words that the whole sequence would."""
    model = unsup_mt.Translator(50, 32, 2, False).eval()
    source = torch.randint(0, 50, (3, 6))
    words = model.translate(source, unsup_mt.ENGLISH, unsup_mt.FRENCH, 6)
    before = torch.cat([torch.full_like(words[:, :1], unsup_mt.START), words[:, :-1]], dim=1)
    hidden = model.decoder(before, unsup_mt.FRENCH, model.encoder(source, unsup_mt.ENGLISH))
    assert torch.equal(words, model.logits(hidden).argmax(-1))


def test_written_out_attention_is_attention() -> None:
    """Attention in products and a softmax gives what the fused one does."""
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(expected, unsup_mt.written_out(query, key, value, True, 0.0))


def test_tasks_take_turns() -> None:
    """Each call is the loss of the next task, so that after eight all heads have had a gradient."""
    recipe = load(parse(f"mt-dnn?{REDUCED['mt-dnn']}")).setup.__self__  # type: ignore[attr-defined]
    model = recipe.make_model()
    batch = recipe.make_batch(2, CPU, torch.float32)
    for number, task in enumerate(mt_dnn.TASKS, start=1):
        model(**batch).backward()
        assert all(weight.grad is not None for weight in model.heads.parameters()), "for the optimizer's state"
        trained = [name for name, head in model.heads.items() if any(w.grad.any() for w in head.parameters())]
        assert task.name in trained
        assert number == len(trained)
