"""The catalogue's behaviour: names, prices, support by PyTorch builds, and its words on malformed files."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu.catalogue import Catalogue, Gpu, Offer, load, supports
from whichgpu.catalogue.plausible import impossible
from whichgpu.errors import CatalogueError

CATALOGUE = load()
TODAY = date(2026, 12, 1)


def make_gpu(name: str = "Test 1", **changes: object) -> Gpu:
    """A card with every field filled in."""
    fields: dict[str, object] = {
        "name": name,
        "id": name.lower().replace(" ", "-"),
        "vendor": "NVIDIA",
        "architecture": "Ada",
        "compute_capability": "8.9",
        "release": "2022-10",
        "form": "desktop",
        "memory_gib": 24.0,
        "memory_bytes": 25_000_000_000,
        "memory_basis": "derived",
        "memory_source": "made up",
        "bandwidth_gb_per_s": 1000.0,
        "source": "made up",
        "checked": "2026-12-01",
    }
    return Gpu(**(fields | changes))  # type: ignore[arg-type]


def make_offer(usd: str, **changes: object) -> Offer:
    """An offer for that card."""
    fields: dict[str, object] = {
        "gpus": ("test-1",),
        "kind": "cloud-on-demand",
        "provider": "one",
        "usd": Decimal(usd),
        "date": "2026-11-01",
        "source": "made up",
    }
    return Offer(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4090", "RTX 4090"),
        ("rtx-4090", "RTX 4090"),
        ("A100 80GB", "A100 SXM4 80GB"),
        ("a100-80gb", "A100 SXM4 80GB"),
        ("A100-80G", "A100 SXM4 80GB"),
        ("A100 80 GiB", "A100 SXM4 80GB"),
        ("RTX A6000", "RTX A6000"),
        ("A6000", "RTX A6000"),
        ("Tesla T4", "T4"),
        ("2080ti", "RTX 2080 Ti"),
        ("RTX 8000", "Quadro RTX 8000"),
        ("RTX6000-Ada", "RTX 6000 Ada"),
        ("H200", "H200 SXM 141GB"),
        ("a10g", "A10G"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("gtx_1080_ti", "GTX 1080 Ti"),
    ],
)
def test_usual_names_resolve(name: str, expected: str) -> None:
    """Names as people, drivers and clouds write them lead to the card."""
    assert expected == CATALOGUE.find(name).name


@given(st.sampled_from(CATALOGUE.gpus), st.integers(min_value=0, max_value=2**32))
def test_spelling_does_not_matter(gpu: Gpu, seed: int) -> None:
    """Any name of a card in any case, with any separators and maker's prefixes, leads to the same card."""
    rng = random.Random(seed)
    words = rng.choice([gpu.name, gpu.id, *gpu.aliases]).replace("-", " ").split()
    spelled = rng.choice(["", "NVIDIA ", "nvidia-geforce_", "Tesla "]) + words[0]
    for word in words[1:]:
        spelled += rng.choice(["", " ", "-", "_", "  "]) + word
    assert gpu is CATALOGUE.find("".join(rng.choice([c.upper(), c.lower()]) for c in spelled))


@given(st.text(max_size=200))
def test_any_text_finds_a_card_or_is_refused_in_one_line(name: str) -> None:
    """Whatever is typed, the answer is a card or a CatalogueError of one printable line."""
    try:
        said = CATALOGUE.find(name).name
    except CatalogueError as error:
        said = str(error)
    assert said.isprintable()
    assert 0 < len(said) < 400


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("A100", ["A100 PCIe 40GB", "A100 PCIe 80GB", "A100 SXM4 40GB", "A100 SXM4 80GB"]),
        ("v100", ["V100 PCIe 16GB", "V100 PCIe 32GB", "V100 SXM2 16GB", "V100 SXM2 32GB"]),
        ("H100", ["H100 NVL 94GB", "H100 PCIe 80GB", "H100 SXM5 80GB"]),
        ("RTX 6000", ["Quadro RTX 6000", "RTX 6000 Ada"]),
        ("6000", ["Quadro RTX 6000", "RTX A6000", "RTX 6000 Ada"]),
        ("3080", ["RTX 3080 10GB", "RTX 3080 12GB"]),
    ],
)
def test_shared_names_list_the_candidates(name: str, candidates: list[str]) -> None:
    """A name that several cards share is refused, and every candidate's name in the message resolves."""
    with pytest.raises(CatalogueError, match="say which") as refused:
        CATALOGUE.find(name)
    for candidate in candidates:
        assert candidate in str(refused.value)
        assert candidate == CATALOGUE.find(candidate).name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rtx 4091", "did you mean RTX 4090"),
        ("gtx 1060", "did you mean GTX 1060 6GB"),
        ("giraffe", "`whichgpu gpus` lists the names"),
        ("日本", 'no card is called "日本"'),
        ("", "empty"),
        (" -_ ", "empty"),
        ("x" * 10_000, "too long"),
    ],
)
def test_unknown_names_say_what_to_do(name: str, said: str) -> None:
    """An unknown, empty or endless name is refused in a line: what is near, or how to list names."""
    with pytest.raises(CatalogueError) as refused:
        CATALOGUE.find(name)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200


def test_capability_is_a_pair_of_integers() -> None:
    """Capabilities compare as numbers, so 10.0 is above 9.0; a card without CUDA has none."""
    assert (10, 0) == CATALOGUE.find("B200").capability
    assert CATALOGUE.find("B200").capability > CATALOGUE.find("H200").capability
    with pytest.raises(CatalogueError, match="no CUDA compute capability"):
        _ = CATALOGUE.find("MI300X").capability


def test_two_cards_of_one_name_are_refused() -> None:
    """A name of two cards, or of a card and a family, cannot be loaded."""
    with pytest.raises(CatalogueError, match="both Test 1 and Test 2"):
        Catalogue([make_gpu("Test 1"), make_gpu("Test 2", aliases=("test1",))], [])
    with pytest.raises(CatalogueError, match="a family"):
        Catalogue([make_gpu("Test 1"), make_gpu("Test 2", families=("TEST-1",))], [])


def test_rent_is_the_median_over_providers_of_their_medians() -> None:
    """A provider with many offers counts once; spot offers and marketplace minima do not count."""
    offers = [
        *(make_offer(usd, provider="many") for usd in ("1.00", "2.00", "3.00", "4.00", "9.00")),
        make_offer("5.00", provider="two"),
        make_offer("7.00", provider="three", date="2026-10"),
        make_offer("0.10", provider="four", kind="cloud-spot"),
        make_offer("0.20", provider="five", minimum=True),
        make_offer("0.30", gpus=("other",)),
    ]
    price = Catalogue([make_gpu(), make_gpu("Other")], offers).price(make_gpu(), "rent", as_of=TODAY)
    assert price is not None
    assert (5.0, "hour", "on-demand", 7) == (price.usd, price.unit, price.condition, price.offers)
    assert (1.0, 9.0) == (price.lowest_usd, price.highest_usd)
    assert ("2026-10", "2026-11-01") == (price.oldest, price.newest)
    assert ("many", "three", "two") == price.providers


def test_old_rents_are_named_as_old() -> None:
    """Rents over a year old count only where there is nothing newer, and say so."""
    old, new = make_offer("9.00", date="2025-01-01"), make_offer("1.00")
    both = Catalogue([make_gpu()], [old, new]).price(make_gpu(), "rent", as_of=TODAY)
    only = Catalogue([make_gpu()], [old]).price(make_gpu(), "rent", as_of=TODAY)
    assert both is not None
    assert only is not None
    assert (1.0, "on-demand") == (both.usd, both.condition)
    assert (9.0, "on-demand, dated") == (only.usd, only.condition)


BUYS = [
    ("new", make_offer("100", kind="buy-new")),
    ("used", make_offer("200", kind="buy-used", date="2026")),
    ("lowest listing", make_offer("300", kind="buy-new", minimum=True)),
    ("used, dated", make_offer("400", kind="buy-used", date="2020-02")),
    ("new, dated", make_offer("500", kind="buy-new", date="2019-01-02")),
]


@pytest.mark.parametrize("first", range(len(BUYS)))
def test_the_best_known_kind_of_purchase_price_is_taken(first: int) -> None:
    """New before used before a shop's lowest listing before older offers; the kind is said."""
    condition, offer = BUYS[first]
    catalogue = Catalogue([make_gpu()], [o for _, o in BUYS[first:]])
    price = catalogue.price(make_gpu(), "buy", as_of=TODAY)
    assert price is not None
    assert (float(offer.usd), "once", condition) == (price.usd, price.unit, price.condition)


def test_the_launch_price_is_the_last_resort() -> None:
    """Without any offer the price at launch stands in, dated with the release; without that there is none."""
    priced = make_gpu(launch_price_usd=1599.0)
    launch = Catalogue([priced], []).price(priced, "buy", as_of=TODAY)
    assert launch is not None
    assert (1599.0, "launch", "2022-10") == (launch.usd, launch.condition, launch.newest)
    assert Catalogue([make_gpu()], []).price(make_gpu(), "buy", as_of=TODAY) is None
    assert Catalogue([make_gpu()], []).price(make_gpu(), "rent", as_of=TODAY) is None


def test_offers_after_the_asked_day_do_not_count() -> None:
    """A price as of a day knows nothing of later offers."""
    catalogue = Catalogue([make_gpu()], [make_offer("1.00", date="2026-11-01")])
    assert catalogue.price(make_gpu(), "rent", as_of=date(2026, 10, 1)) is None
    assert catalogue.price(make_gpu(), "rent", as_of=date(2026, 11, 1)) is not None


@given(st.lists(st.integers(min_value=1, max_value=10**6), min_size=1, max_size=9))
def test_a_median_lies_between_lowest_and_highest(cents: list[int]) -> None:
    """Whatever the offers, the price is within their range and counts them all."""
    offers = [make_offer(str(Decimal(c) / 100), kind="buy-new", provider=f"p{i % 3}") for i, c in enumerate(cents)]
    price = Catalogue([make_gpu()], offers).price(make_gpu(), "buy", as_of=TODAY)
    assert price is not None
    assert len(cents) == price.offers
    assert price.lowest_usd <= price.usd <= price.highest_usd


@pytest.mark.parametrize(
    ("gpu", "torch", "cuda", "said"),
    [
        (
            "P100",
            "2.14.1+cu130",
            "13.0",
            "no kernels for compute capability 6.0: the CUDA 12.6 wheel has them",
        ),
        (
            "GTX 1080 Ti",
            "2.11.0",
            "12.8",
            "no kernels for compute capability 6.1: the CUDA 12.6 wheel has them",
        ),
        ("V100 32GB", "2.11.0", "12.8", "no kernels for compute capability 7.0"),
        ("V100 32GB", "2.14.1+cpu", None, "no kernels for compute capability 7.0"),
        ("RTX 5090", "2.14.1", "12.6", "the CUDA 13.0 and 13.2 wheel has them"),
        ("K80", "2.14.1", "13.0", "no wheel of it has them"),
        ("MI300X", "2.14.1", "13.0", "no CUDA"),
    ],
)
def test_cards_without_kernels_are_named(gpu: str, torch: str, cuda: str | None, said: str) -> None:
    """A build without kernels for the card is named, with the build that has them where there is one."""
    (note,) = supports(CATALOGUE.find(gpu), torch, cuda)
    assert said in note


@pytest.mark.parametrize(
    ("gpu", "torch", "cuda"),
    [
        ("GTX 1080 Ti", "2.14.1", "12.6"),
        ("V100 32GB", "2.12.0", "12.6"),
        ("T4", "2.14.1", "13.2"),
        ("RTX 4090", "2.11.0", "12.8"),
        ("RTX 5090", "2.11.0", "12.8"),
        ("B300", "2.14.1", None),
        ("H200", "2.99.0", None),
        ("P100", "2.14.1", "11.8"),
        ("P100", "nightly", None),
    ],
)
def test_builds_with_kernels_raise_no_note(gpu: str, torch: str, cuda: str | None) -> None:
    """Kernels of an earlier minor capability serve the card; builds that nobody lists are not judged."""
    assert [] == supports(CATALOGUE.find(gpu), torch, cuda)


@pytest.mark.parametrize(
    ("gpu", "dtype", "has"),
    [
        ("T4", "torch.bfloat16", False),
        ("T4", "bf16", False),
        ("T4", "tf32", True),
        ("T4", "torch.float16", True),
        ("T4", "int64", True),
        ("A100 80GB", "bfloat16", True),
        ("A100 80GB", "float8_e4m3fn", False),
        ("RTX 4090", "torch.float8_e4m3fn", True),
    ],
)
def test_dtypes_without_hardware_are_named_once(gpu: str, dtype: str, has: bool) -> None:
    """bfloat16 needs capability 8.0, fp8 8.9; a repeated dtype is named once."""
    notes = supports(CATALOGUE.find(gpu), "2.14.1", "13.0", [dtype, "float32", dtype])
    assert (0 if has else 1) == len(notes)


def test_own_files_add_to_the_shipped_ones(tmp_path: Path) -> None:
    """Cards and prices of a folder stand beside those of the package."""
    write_own(tmp_path)
    found = load(tmp_path)
    assert len(CATALOGUE.gpus) + 1 == len(found.gpus)
    assert "Mine" == found.find("mine").name
    assert len(CATALOGUE.offers) + 1 == len(found.offers)
    assert [("here", Decimal("1.25"))] == [(o.provider, o.usd) for o in found.offers_of(found.find("mine"))]


def test_a_card_of_the_same_id_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    """A lab that knows its card better writes the whole row again."""
    (tmp_path / "gpus.toml").write_text(
        GPU_TOML.replace('"Mine"', '"RTX 4090"').replace('"mine"', '"rtx-4090"'), encoding="utf-8"
    )
    found = load(tmp_path)
    assert len(CATALOGUE.gpus) == len(found.gpus)
    assert "my log" == found.find("RTX 4090").memory_source


def test_an_offer_of_the_same_key_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    """A price of the same provider, cards, instance, region and day is a correction; any other is added."""
    old = next(o for o in CATALOGUE.offers if o.provider == "lambda" and o.kind == "cloud-on-demand")
    row = f'''
provider = "lambda"
[[offer]]
gpus = {list(old.gpus)}
kind = "cloud-on-demand"
usd = "{old.usd + 1}"
count = {old.count}
date = "{old.date}"
source = "my contract"
'''
    for name in ("instance", "region"):
        if getattr(old, name):
            row += f'{name} = "{getattr(old, name)}"\n'
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "lambda.toml").write_text(row, encoding="utf-8")
    same = [o for o in load(tmp_path).offers if o.key == old.key]
    assert ["my contract"] == [o.source for o in same]
    (tmp_path / "prices" / "lambda.toml").write_text(row.replace(old.date, "2026-12-01"), encoding="utf-8")
    assert len(CATALOGUE.offers) + 1 == len(load(tmp_path).offers)


def test_a_file_may_replace_all_offers_of_a_provider(tmp_path: Path) -> None:
    """`replaces_provider = true` leaves nothing of that provider but what the file says."""
    (tmp_path / "prices").mkdir()
    text = OFFER_TOML.replace('"mine"', '"t4"').replace('"here"', '"aws"\nreplaces_provider = true')
    (tmp_path / "prices" / "aws.toml").write_text(text.replace("1.25", "0.52"), encoding="utf-8")
    assert [Decimal("0.52")] == [o.usd for o in load(tmp_path).offers if o.provider == "aws"]


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    """A folder without catalogue files is a mistake, not an empty catalogue."""
    with pytest.raises(CatalogueError, match=r"neither gpus\.toml, prices/ nor free_machines\.toml"):
        load(tmp_path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """A file that an editor of Windows saved reads as any other."""
    (tmp_path / "gpus.toml").write_text(GPU_TOML, encoding="utf-8-sig")
    assert "Mine" == load(tmp_path).find("mine").name


def test_files_and_folders_in_each_others_place_are_refused(tmp_path: Path) -> None:
    """A file called prices, or a folder called gpus.toml, would otherwise be passed over without a word."""
    (tmp_path / "prices").write_text(OFFER_TOML, encoding="utf-8")
    with pytest.raises(CatalogueError, match="prices is no folder; put it into a folder of that name"):
        load(tmp_path)
    (tmp_path / "prices").unlink()
    (tmp_path / "gpus.toml").mkdir()
    with pytest.raises(CatalogueError, match=r"gpus\.toml is a folder; make it a file"):
        load(tmp_path)


def write_own(folder: Path, gpus: str | None = None, offers: str | None = None) -> None:
    """A lab's own files: one card and one offer of it."""
    (folder / "gpus.toml").write_text(gpus or GPU_TOML, encoding="utf-8")
    (folder / "prices").mkdir(exist_ok=True)
    (folder / "prices" / "here.toml").write_text(offers or OFFER_TOML, encoding="utf-8")


GPU_TOML = """
[[gpu]]
name = "Mine"
id = "mine"
vendor = "NVIDIA"
architecture = "Ada"
compute_capability = "8.9"
release = "2022-10"
form = "desktop"
memory_gib = 24
memory_bytes = 25_000_000_000
memory_basis = "measured"
memory_source = "my log"
bandwidth_gb_per_s = 1008
sm_count = 128
source = "me"
checked = "2026-12-01"
"""
OFFER_TOML = """
provider = "here"
[[offer]]
gpus = ["mine"]
kind = "cloud-on-demand"
usd = "1.25"
date = "2026-11-30"
source = "me"
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "Mine"', "name = ", "gpus.toml, line 3: field name: not valid TOML"),
        (
            'vendor = "NVIDIA"\n',
            "",
            'gpus.toml, line 2: gpu 1 "Mine", object missing required field vendor; add a line vendor = ...',
        ),
        (
            "sm_count",
            "smcount",
            'gpus.toml, line 2: gpu 1 "Mine", object contains unknown field smcount; did you mean sm_count?',
        ),
        (
            "sm_count = 128",
            'sm_count = "many"',
            'gpus.toml, line 15: gpu 1 "Mine", field sm_count: expected int, got str',
        ),
        ("sm_count = 128", "sm_count = -1", "field sm_count: expected int >= 1"),
        ('release = "2022-10"', 'release = "soon"', "field release: expected str matching regex"),
        ('name = "Mine"\n', "", "gpus.toml, line 2: gpu 1, object missing required field name"),
        ("[[gpu]]", "[[card]]", 'unknown key "card"'),
        ("[[gpu]]", "[gpu]", "no [[gpu]] entry"),
        ('id = "mine"', 'id = "My Card"', "field id: expected str matching regex"),
        (
            'name = "Mine"',
            'name = "geforce RTX4090"',
            'line 3: gpu 1 "geforce RTX4090", field name: "geforce RTX4090" is a name of RTX 4090',
        ),
        (
            'id = "mine"',
            'id = "mine"\naliases = ["Tesla T4"]',
            'line 5: gpu 1 "Mine", field aliases: "Tesla T4" is a name of T4 already',
        ),
        (
            'id = "mine"',
            'id = "mine"\nfamilies = ["4090"]',
            'line 5: gpu 1 "Mine", field families: "4090" is a name of RTX 4090',
        ),
        (
            '"Mine"',
            r'"Mi\u001b[31mne"',
            'line 3: gpu 1 "Mi?[31mne", field name: holds the control character U+001B; write it without',
        ),
        ('"Mine"', r'"Mi\nne"', "field name: holds the control character U+000A; write it without"),
        ('"Mine"', r'"Mine"' + "\n" + r'aliases = ["M\u202e1"]', "field aliases: holds the control character U+202E"),
        ("[[gpu]]", GPU_TOML + "[[gpu]]", 'line 21: gpu 2 "Mine", field id: "mine" is the id of an earlier entry too'),
    ],
)
def test_malformed_cards_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A mistake in gpus.toml is refused with the file, the entry and the field."""
    (tmp_path / "gpus.toml").write_text(GPU_TOML.replace(old, new), encoding="utf-8")
    with pytest.raises(CatalogueError) as refused:
        load(tmp_path)
    assert said in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("s = 1008", "s = 0.9", 'line 14: gpu 1 "Mine", field bandwidth_gb_per_s: 0.9 is far from all shipped cards'),
        (
            "25_000_000_000",
            "24",
            'line 11: gpu 1 "Mine", field memory_bytes: 24 is not 0.8 to 1.05 times the memory_gib',
        ),
        ("memory_gib = 24", "memory_gib = 24000", "field memory_gib: 24000 is far from all shipped cards"),
        ("memory_gib = 24", "memory_gib = 240", "or correct memory_gib"),
        ("sm_count", "fp16_tflops = 1e9\nsm_count", "field fp16_tflops: 1e+09 is not between"),
        ("sm_count", "fp32_tflops = inf\nsm_count", "field fp32_tflops: "),
        (
            "sm_count",
            "fp32_tflops = 82.6\nfp16_tflops = 0.165\nsm_count",
            "field fp16_tflops: 0.165 is 0.002 times the",
        ),
        (
            "sm_count",
            'fp16_tflops = 10\nno = ["fp16"]\nsm_count',
            'fp16_tflops: a rate beside no = ["fp16"]; leave one',
        ),
        ("2022-10", "2099-01", "field release: 2099-01 is in the future; write the month"),
        (
            'id = "mine"',
            'id = "yours"',
            'field id: "yours" is not the name in lower case with hyphens; write id = "mine"',
        ),
        ('"8.9"', '"99.0"', "field compute_capability: 99.0 is none of a known generation (3.7 to 12.0); write that"),
        ('compute_capability = "8.9"\n', "", "field compute_capability: a card of NVIDIA has one; add a line"),
        (
            "sm_count",
            "tdp_w = 9e9\nsm_count",
            "field tdp_w: 9e+09 is far from all shipped cards (70 to 1400); write it in W",
        ),
    ],
)
def test_impossible_figures_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A figure that no card can have is refused with the file, the line, the field and what to write."""
    text = GPU_TOML.replace(old, new)
    assert text != GPU_TOML
    (tmp_path / "gpus.toml").write_text(text, encoding="utf-8")
    with pytest.raises(CatalogueError) as refused:
        load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'gpus.toml'}, line ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("s = 1008", "s = inf", 'line 14: gpu 1 "Mine", field bandwidth_gb_per_s: expected float <= '),
        ("s = 1008", "s = nan", "field bandwidth_gb_per_s: expected float > 0"),
        ("25_000_000_000", "9" * 23, 'line 11: gpu 1 "Mine", field memory_bytes: expected int <= '),
        ("25_000_000_000", "9" * 5000, "gpus.toml: holds a number of thousands of digits; correct it"),
    ],
)
def test_endless_figures_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A figure that is infinite, no number, or larger than an answer can hold is refused where it is read."""
    (tmp_path / "gpus.toml").write_text(GPU_TOML.replace(old, new), encoding="utf-8")
    with pytest.raises(CatalogueError) as refused:
        load(tmp_path)
    assert said in str(refused.value)


def test_every_shipped_card_is_possible() -> None:
    """The bounds on a lab's card refuse none of the shipped ones."""
    assert [] == [(gpu.id, problem) for gpu in CATALOGUE.gpus if (problem := impossible(gpu, CATALOGUE.gpus))]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["mine"]', '["yours"]', 'here.toml, line 4: offer 1, field gpus: no card has the id "yours"'),
        ('["mine"]', "[]", "here.toml, line 4: offer 1, field gpus: expected array of length >= 1"),
        ('"1.25"', '"-1"', "here.toml, line 6: offer 1, field usd: -1 is no price"),
        ('"1.25"', '"NaN"', "here.toml, line 6: offer 1, field usd: NaN is no price"),
        ('"1.25"', '"cheap"', "here.toml, line 6: offer 1, field usd: invalid decimal string"),
        (
            "cloud-on-demand",
            "cloud",
            "here.toml, line 5: offer 1, field kind: invalid enum value 'cloud'; say buy-new, buy-used, cloud-on-demand",
        ),
        ('provider = "here"', "", "here.toml, line 3: offer 1, object missing required field provider"),
        ('provider = "here"', "provider = 3", "here.toml, line 3: offer 1, field provider: expected str, got int"),
        ("2026-11-30", "2026-02-31", 'here.toml, line 7: offer 1, field date: there is no day "2026-02-31"'),
        ("2026-11-30", "2036-02-03", "here.toml, line 7: offer 1, field date: 2036-02-03 is in the future"),
        ("2026-11-30", "2026-13-30", "here.toml, line 7: offer 1, field date: expected str matching regex"),
    ],
)
def test_malformed_offers_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A mistake in a price file is refused with the file, the entry and the field."""
    (tmp_path / "gpus.toml").write_text(GPU_TOML, encoding="utf-8")
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "here.toml").write_text(OFFER_TOML.replace(old, new), encoding="utf-8")
    with pytest.raises(CatalogueError) as refused:
        _ = load(tmp_path).offers
    assert said in str(refused.value)


@pytest.mark.parametrize(("method", "about"), [("iterdir", "prices"), ("is_dir", ""), ("is_file", "")])
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, about: str
) -> None:
    """Without the right to look into the lab's folder, or its prices, one line names it and what to do."""
    real = getattr(Path, method)

    def denied(path: Path) -> object:
        if tmp_path in (path, *path.parents):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    write_own(tmp_path)
    monkeypatch.setattr(Path, method, denied)
    with pytest.raises(CatalogueError) as refused:
        _ = load(tmp_path).offers
    said = f"{tmp_path / about}: cannot be read (Permission denied); make it a folder that you may read"
    assert said == str(refused.value)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are named as no valid file."""
    (tmp_path / "gpus.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogueError, match=r"gpus\.toml: not valid TOML"):
        load(tmp_path)


def test_loading_needs_neither_torch_nor_prices() -> None:
    """A fresh interpreter that loads the cards has not imported torch and has not read the offers."""
    code = (
        "import sys, whichgpu.catalogue as c; k = c.load(); "
        "print('torch' in sys.modules, 'offers' in vars(k), len(k.gpus) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False False True" == done.stdout.strip()


@pytest.mark.parametrize(
    ("name", "twins"),
    [
        ("A100 80GB", ["A100 PCIe 80GB"]),
        ("a100-80gb", ["A100 PCIe 80GB"]),
        ("V100 16GB", ["V100 PCIe 16GB"]),
        ("H200", []),
        ("A100 80GB SXM", []),
        ("a100-pcie-80gb", []),
        ("3060", []),  # the Ti is another card
        ("RTX 4090", []),
    ],
)
def test_a_name_without_a_form_has_twins(name: str, twins: list[str]) -> None:
    """Cards that differ in nothing but how they are mounted are told apart, unless the name does."""
    assert twins == load().twins(name)


def test_all_names_that_are_wrong_are_told_at_once() -> None:
    """Names that may be several cards, and those of none, in one error; a card that is named twice is found once."""
    with pytest.raises(CatalogueError) as error:
        CATALOGUE.find_all(["A100", "T4", "H100", "nonesuch"])
    assert all(f'"{name}"' in str(error.value) for name in ("A100", "H100", "nonesuch"))
    assert '"T4"' not in str(error.value)
    assert ["T4", "RTX 4090"] == [card.name for card in CATALOGUE.find_all(["t4", "4090", "T4"])]
