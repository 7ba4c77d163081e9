"""Today's set: each workload trains on a CPU and is traced at a reduced size, by the path of its full size."""

from __future__ import annotations

import math

import pytest
import torch

from conftest import Tracing
from whichgpu import zoo_list
from whichgpu.errors import DataDependentError, WorkloadError
from whichgpu.workload import load, parse
from whichgpu.zoo import ENTRIES
from whichgpu.zoo.graphsage import sample
from whichgpu.zoo.mamba2_370m import state_space
from whichgpu.zoo.training import follow

CPU = torch.device("cpu")
# Options that make each workload small: fewer and narrower layers, short sequences, small images
SMALL = {
    "llama3-8b": (
        "num_hidden_layers=2&hidden_size=32&num_attention_heads=4&num_key_value_heads=2"
        "&intermediate_size=64&vocab_size=64&seq=16"
    ),
    "llama3-8b-lora": (
        "num_hidden_layers=2&hidden_size=32&num_attention_heads=4&num_key_value_heads=2"
        "&intermediate_size=64&vocab_size=64&seq=16&rank=4"
    ),
    "olmo2-1b": (
        "num_hidden_layers=2&hidden_size=32&num_attention_heads=4&num_key_value_heads=4"
        "&intermediate_size=64&vocab_size=64&seq=16"
    ),
    "olmoe-1b-7b": (
        "num_hidden_layers=2&hidden_size=32&num_attention_heads=4&num_key_value_heads=4"
        "&intermediate_size=64&vocab_size=64&seq=16&num_experts=4&num_experts_per_tok=2"
    ),
    "mamba2-370m": "layers=2&hidden=64&seq=128&vocab=64",
    "llava-7b-lora": (
        "seq=32&rank=2&text_config.num_hidden_layers=2&text_config.hidden_size=32"
        "&text_config.num_attention_heads=4&text_config.num_key_value_heads=4"
        "&text_config.intermediate_size=64&vision_config.hidden_size=32"
        "&vision_config.num_hidden_layers=2&vision_config.num_attention_heads=4"
        "&vision_config.intermediate_size=64&vision_config.image_size=56"
    ),
    "sdxl-unet": "width=64&layers=1&size=64",
    "dit-xl": "layers=2&hidden=64&heads=4&size=64",
    "vit-large": "model=test_vit&size=32",
    "convnext-large": "model=test_convnext&size=32",
    "swin-large": "model=swin_tiny_patch4_window7_224&size=56",
    "rt-detr": "size=64&decoder_layers=1&num_queries=20",
    "segformer-b5": "size=64&depths=[1,1,1,1]&hidden_sizes=[16,32,40,64]&decoder_hidden_size=32",
    "whisper-large-v3": (
        "seq=8&d_model=16&encoder_layers=1&decoder_layers=1&encoder_attention_heads=2"
        "&decoder_attention_heads=2&encoder_ffn_dim=32&decoder_ffn_dim=32&max_source_positions=20"
        "&vocab_size=64&pad_token_id=0&bos_token_id=1&eos_token_id=2&decoder_start_token_id=3"
    ),
    "dlrm": "rows=100&dim=8",
    "graphsage": "nodes=100&hidden=16&layers=2",
}
# Libraries that only one workload needs: without them, its tests are skipped and say so
NEEDS = {"sdxl-unet": "diffusers", "rt-detr": "scipy", "llama3-8b-lora": "peft", "llava-7b-lora": "peft"}


pytestmark = pytest.mark.usefixtures("zoo_defaults")


def small(name: str) -> str:
    """The workload at its small size; skips the test where its library is missing."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return f"{name}?{SMALL[name]}"


def test_all_of_today_are_tested() -> None:
    """Each workload of the set has a small size here, and there are at least twelve."""
    assert set(SMALL) == {name for name, entry in ENTRIES.items() if "2026" in entry.sets}
    assert len(SMALL) >= 12


@pytest.mark.parametrize("name", SMALL)
def test_workloads_train_for_real(name: str) -> None:
    """Two real steps on a CPU give finite losses that differ: the optimizer did something."""
    step = load(parse(small(name))).setup(CPU)
    first, second = step(2).item(), step(2).item()
    assert math.isfinite(first)
    assert math.isfinite(second)
    assert first != second


@pytest.mark.parametrize("name", sorted(set(SMALL) - {"rt-detr"}))
def test_workloads_are_traced_without_a_gpu(name: str, tracing: Tracing) -> None:
    """A step is traced with hollow tensors: it holds weights, inputs and activations, and takes the same at each step."""
    trace = tracing.trace(load(parse(small(name))).setup, 2)
    assert {"weight", "activation", "input"} <= {storage.category for storage in trace.storages}
    assert 0 < tracing.peak(trace, 1) == pytest.approx(tracing.peak(trace, 2), rel=0.05)


def test_matching_on_the_cpu_needs_real_values(tracing: Tracing) -> None:
    """RT-DETR looks at values to match boxes: it says so with hollow tensors, and real ones trace it."""
    setup = load(parse(small("rt-detr"))).setup
    with pytest.raises(DataDependentError):
        tracing.trace(setup, 2)
    assert tracing.peak(tracing.trace(setup, 2, kind="real-cpu")) > 0


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sdxl-unet?size=100", "size=100 must be a multiple of 32"),
        ("sdxl-unet?width=100", "width=100 one of 64"),
        ("sdxl-unet?depth=3", "unknown option depth"),
        ("dit-xl?size=100", "size=100 must be a multiple of 16"),
        ("dit-xl?hidden=100&heads=3", "hidden=100 one of heads=3"),
        ("mamba2-370m?seq=100", "seq=100 must be a multiple of 64"),
        ("llava-7b-lora?seq=500", "leaves no room for text beside the 576 tokens of an image"),
        ("llama3-8b-lora?rank=0", "rank=0 is not a whole number of 1 or more"),
        ("llama3-8b?seq=9000", "longer than the model's 8192 positions"),
        ("dlrm?optimizer=adamw", "the tables learn by plain SGD"),
        ("graphsage?layers=4", "layers=4 is more than the 3 hops"),
        ("rt-detr?queries=3", "unknown option queries"),
        ("vit-large?model=vit_hug", "has no model vit_hug; did you mean davit_huge"),
    ],
)
def test_bad_options_name_the_cure(text: str, part: str) -> None:
    """A value that a workload cannot take is refused in one line that says what would do."""
    if (name := text.partition("?")[0]) in NEEDS:
        pytest.importorskip(NEEDS[name])
    with pytest.raises(WorkloadError) as caught:
        load(parse(text))
    assert part in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_only_adapters_are_trained() -> None:
    """With LoRA the optimizer changes a small part of the weights, and the list of the zoo says how many."""
    listed = zoo_list.facts()["llama3-8b-lora"]
    # rank 8 on q, v, o and the three of the MLP: (4096 + 4096) * 8 twice, (4096 + 1024) * 8, and (4096 + 14336) * 8 thrice
    assert 32 * 8 * (2 * 8192 + 5120 + 3 * 18432) == listed.trained_parameters
    assert zoo_list.facts()["llama3-8b"].parameters + listed.trained_parameters == listed.parameters


def test_the_average_follows_the_weights() -> None:
    """The average moves by what its decay leaves, towards the new weights, and buffers are taken over."""
    model, mean = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.running_mean.fill_(5.0)
    follow(mean, model, 0.75)
    assert [1.5, 1.5] == mean.weight.tolist()
    assert [5.0, 5.0] == mean.running_mean.tolist()


def test_a_state_space_model_is_its_recurrence() -> None:
    """What Mamba-2 computes in chunks is what the recurrence gives step by step."""
    batch, time, heads = 1, 128, 2
    values = torch.randn(batch, time, heads, 64, dtype=torch.float64)
    decays = -torch.rand(batch, time, heads, dtype=torch.float64)
    keys, queries = torch.randn(2, batch, time, 128, dtype=torch.float64)
    state = torch.zeros(batch, heads, 64, 128, dtype=torch.float64)
    expected = []
    for now in range(time):
        state = state * decays[:, now, :, None, None].exp() + values[:, now, :, :, None] * keys[:, now, None, None]
        expected.append(state @ queries[:, now, None, :, None])
    torch.testing.assert_close(state_space(values, decays, keys, queries), torch.stack(expected, 1).squeeze(-1))


def test_sampled_neighbours_belong_to_the_batch() -> None:
    """Every target of a hop has its fan of edges, from nodes numbered behind the targets."""
    names, hops, labels = sample(3, (4, 2), 100, CPU)
    assert 3 * 5 * 3 == len(names)
    assert [15, 3] == [targets for targets, _, _ in hops]
    assert 3 == len(labels)
    for (targets, sources, destinations), fan in zip(hops, (2, 4), strict=True):
        assert torch.arange(targets).repeat_interleave(fan).tolist() == destinations.tolist()
        assert list(range(targets, targets * (1 + fan))) == sources.tolist()
