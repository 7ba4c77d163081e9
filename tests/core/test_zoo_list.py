"""What is said of the zoo without importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from whichgpu import sets, zoo_list
from whichgpu.charts.records import series_of
from whichgpu.errors import InputError
from whichgpu.zoo import ENTRIES
from whichgpu.zoo_list import family


def test_every_entry_is_counted() -> None:
    """A new entry is counted before it lands (tools/count_zoo.py), and nothing is left of those that went."""
    assert set(ENTRIES) == set(zoo_list.facts())


@pytest.mark.parametrize("name", ENTRIES)
def test_figures_make_sense(name: str) -> None:
    """A model has weights, some of which are trained, and each of those takes part in at least one product."""
    known = zoo_list.facts()[name]
    assert 0 < known.trained_parameters <= known.parameters
    assert known.items_per_sample >= 1
    assert known.batch_size >= 1
    assert known.flops_per_sample > 0
    assert known.settings["precision"]
    assert known.settings["optimizer"]


def test_sets_choose() -> None:
    """A set's members are listed, all of them without one, each with its description."""
    assert list(ENTRIES) == [entry.name for entry in zoo_list.entries()]
    found = zoo_list.entries(["vision"])
    assert sets.find("vision").workloads == tuple(entry.name for entry in found)
    assert all(entry.description and entry.parameters for entry in found)


def test_an_unknown_set_is_told() -> None:
    """As everywhere, an unknown set is an error that names those there are."""
    with pytest.raises(InputError, match="there is no set 'visoin'"):
        zoo_list.entries(["visoin"])


def test_listing_loads_no_model_library() -> None:
    """Listing the zoo loads neither torch nor a library of models."""
    code = "import sys\nfrom whichgpu import zoo_list\nzoo_list.entries(['2020'])\n"
    code += "print({'torch', 'timm', 'transformers', 'torchvision', 'peft', 'diffusers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "set()" == done.stdout.strip()


def test_a_workload_is_of_one_family_or_none() -> None:
    """Image and language models are told apart once, for charts and for advice; a model of both counts as neither."""
    assert ("image", "language") == (family("resnet50?precision=fp16"), family("bert-base"))
    assert ("image", "image") == (family("timm:resnet50"), family("torchvision:vit_b_16"))
    assert [None] * 4 == [family(name) for name in ("llava-7b-lora", "dlrm", "hf:gpt2", "train.py:setup")]
    named = [name for _, members in series_of([*ENTRIES]) for name in members]
    assert sorted(ENTRIES) == sorted(named)
