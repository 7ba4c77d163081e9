"""The records that answer: their JSON keys are frozen, their rows are ordered, and their caveats are told."""

from __future__ import annotations

import json

import msgspec
import pytest
from synthetic import MIB, TRAINING, always, make_trace, scaled

from whichgpu import advice, catalogue, workspaces
from whichgpu.advice import FitReport, Largest, RankReport, TraceInfo
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.catalogue import Price
from whichgpu.intervals import Estimate, Spread
from whichgpu.memory import MemoryModel

GIB = 1 << 30
INFO = TraceInfo(kind="fake", affine=True, seconds=1.0)


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "RULES", {})


def model() -> MemoryModel:
    """The memory of the made-up training step."""
    return MemoryModel(always(scaled(TRAINING)), (9, 0))


def estimate() -> Estimate:
    """The same, with a tenth more or less."""
    return Estimate(model(), Spread(low=0.1, high=0.1))


def price(usd: float) -> Price:
    """A purchase price."""
    return Price(
        usd=usd,
        low_usd=usd / 2,
        high_usd=usd * 2,
        age_days=320,
        stale=False,
        unit="once",
        condition="new",
        offers=1,
        lowest_usd=usd,
        highest_usd=usd,
        oldest="2026-01",
        newest="2026-01",
        providers=("x",),
        sources=("y",),
    )


# ---- fit ------------------------------------------------------------------------------------------------


def test_json_keys_of_fit_are_frozen() -> None:
    """Programs read these keys: adding one is a change to be noted, losing one breaks them."""
    card = catalogue.load().find("H200")
    rows = (advice.limit_row(estimate(), 8, 8 * GIB), advice.fit_row(card, estimate(), 8, 700 * MIB, ()))
    report = FitReport(workload="w", batch_size=8, basis="predicted", trace=INFO, gpus=rows)
    found = json.loads(msgspec.json.encode(report))

    assert [
        "workload",
        "batch_size",
        "basis",
        "trace",
        "gpus",
        "notes",
        "baseline",
        "samples",
        "batch_size_is_default",
    ] == list(found)
    keys = ["kind", "affine", "seconds", "cached", "torch_version", "batch_sizes", "failed_batch_sizes"]
    keys += ["unit", "items_per_sample"]
    assert keys == list(found["trace"])
    for row in found["gpus"]:
        assert [
            "gpu",
            "memory_bytes",
            "fits",
            "verdict",
            "peak_reserved_bytes",
            "peak_reserved_low_bytes",
            "peak_reserved_high_bytes",
            "peak_allocated_bytes",
            "context_bytes",
            "max_batch_size",
            "max_batch_size_safe",
            "max_batch_size_pow2",
            "max_batch_size_at_least",
            "breakdown",
            "peak_phase",
            "peak_op",
            "supported",
            "notes",
            "speed",
            "speed_missing",
            "speed_note",
            "relative_speed",
            "best_speed",
            "known_speeds",
            "run",
        ] == list(row)
        assert [
            "weights_bytes",
            "gradients_bytes",
            "optimizer_state_bytes",
            "activations_bytes",
            "temporaries_bytes",
            "workspaces_bytes",
            "inputs_bytes",
            "buffers_bytes",
        ] == list(row["breakdown"])


def test_a_limit_is_a_row_of_its_own_without_a_context() -> None:
    """Under --memory-limit the whole limit is the allocator's."""
    row = advice.limit_row(estimate(), 8, 8 * GIB)

    assert ("limit", 8 * GIB, 0, True) == (row.gpu, row.memory_bytes, row.context_bytes, row.supported)
    assert model().largest_batch(8 * GIB) == row.max_batch_size


def test_a_card_has_its_memory_less_the_context() -> None:
    """What the context takes is not there for the allocator."""
    card = catalogue.load().find("H200")
    row = advice.fit_row(card, estimate(), 8, 700 * MIB, ())

    assert (card.name, card.memory_bytes, 700 * MIB) == (row.gpu, row.memory_bytes, row.context_bytes)
    assert model().largest_batch(card.memory_bytes - 700 * MIB) == row.max_batch_size
    assert row.max_batch_size_pow2 <= row.max_batch_size < 2 * row.max_batch_size_pow2


@pytest.mark.parametrize("limit_mib", [2100, 2500, 3000, 5000, 80_000])
def test_a_row_that_likely_fits_adds_up(limit_mib: int) -> None:
    """The parts sum to the row's own allocated peak, reserved is no less, and both are in the limit."""
    row = advice.limit_row(estimate(), 30, limit_mib * MIB)

    assert row.verdict in ("fits", "likely")
    assert row.breakdown is not None
    assert row.peak_allocated_bytes == sum(msgspec.structs.astuple(row.breakdown))
    assert row.peak_allocated_bytes <= (row.peak_reserved_bytes or 0) <= limit_mib * MIB


@pytest.mark.parametrize("limit_mib", [1000, 2000, 2100, 2150, 2300, 2500, 3000, 80_000])
def test_fits_is_said_only_when_the_high_end_fits(limit_mib: int) -> None:
    """`fits` is the verdict "fits", and so says the interval; the safe batch is one of those that likely fit."""
    row = advice.limit_row(estimate(), 30, limit_mib * MIB)

    assert row.fits == (row.verdict == "fits") == (row.peak_reserved_high_bytes <= limit_mib * MIB)
    assert row.peak_reserved_low_bytes <= (row.peak_reserved_bytes or row.peak_reserved_high_bytes)
    assert row.max_batch_size_safe <= row.max_batch_size
    assert (row.peak_reserved_bytes is None) == (row.verdict in ("tight", "no"))


def test_a_largest_batch_at_the_end_of_the_search_is_a_lower_bound() -> None:
    """A batch that was only not tried is never told as the largest."""
    row = advice.limit_row(estimate(), 8, 1 << 50)
    assert (MAX_BATCH_SIZE, True) == (row.max_batch_size, row.max_batch_size_at_least)
    assert not advice.limit_row(estimate(), 8, 8 * GIB).max_batch_size_at_least
    at_least = ranked({"H200": (MAX_BATCH_SIZE, 4)}, {})[0].max_batch_size_at_least
    assert {"w0": True, "w1": False} == at_least


def test_nothing_fits_on_a_card_that_cannot_run_it() -> None:
    """Memory is of no help where there are no kernels: a program that reads `fits` alone is not misled."""
    card = catalogue.load().find("H200")
    able, unable = (advice.fit_row(card, estimate(), 8, 700 * MIB, problems) for problems in ((), ("no kernels",)))
    assert (True, "fits") == (able.fits, able.verdict)
    assert (False, "fits", False) == (unable.fits, unable.verdict, unable.supported)


def test_a_row_that_does_not_fit_has_no_peaks() -> None:
    """Unknown is None; the largest batch is still told."""
    row = advice.limit_row(estimate(), 1000, 8 * GIB)

    assert (False, None, None) == (row.fits, row.peak_reserved_bytes, row.peak_allocated_bytes)
    assert 0 < row.max_batch_size < 1000


def test_memory_smaller_than_the_context_holds_nothing() -> None:
    """A card whose memory the context takes whole fits no batch, and nothing raises."""
    card = msgspec.structs.replace(catalogue.load().find("H200"), memory_bytes=100 * MIB)
    row = advice.fit_row(card, estimate(), 1, 700 * MIB, ("too old",))

    assert (False, 0, 0, False, ("too old",)) == (
        row.fits,
        row.max_batch_size,
        row.max_batch_size_pow2,
        row.supported,
        row.notes,
    )


# ---- what is told of the step ---------------------------------------------------------------------------


def test_caveats_name_what_is_missing() -> None:
    """No backward, no optimizer and real tensors are told; a complete step has no caveats."""
    assert [] == advice.caveats(make_trace(TRAINING, 4))
    without = make_trace(TRAINING, 4, kind="real-cpu", facts={"backward_calls": 0, "optimizer_steps": 0})
    told = advice.caveats(without)

    assert ["backward()", "optimizer", "real tensors"] == [
        word for word, line in zip(("backward()", "optimizer", "real tensors"), told, strict=True) if word in line
    ]


def test_caveats_name_what_never_ends_or_never_began() -> None:
    """Memory that every step leaves behind is told with its size, and optimizers that never stepped with their number."""
    grows = advice.caveats(make_trace(TRAINING, 4, facts={"growth_bytes": 100 << 20}))
    one = advice.caveats(make_trace(TRAINING, 4, facts={"idle_optimizers": 1}))
    two = advice.caveats(make_trace(TRAINING, 4, facts={"idle_optimizers": 2}))
    numbers = advice.caveats(make_trace(TRAINING, 4, facts={"growth_bytes": 512}))

    assert 1 == len(grows) == len(one) == len(two)
    assert "100 MiB" in grows[0]
    assert "batch size 4" in grows[0]
    assert "one optimizer" in one[0]
    assert "2 optimizers" in two[0]
    assert [] == numbers


def test_dtypes_that_decide_are_told() -> None:
    """bfloat16 and float8 need hardware; TF32, which PyTorch leaves off without it, and the others run everywhere."""
    facts = {"dtypes": ["bfloat16", "float16", "float32", "float8_e4m3fn", "int64"], "tf32_matmul": True}

    assert ("bfloat16", "float8_e4m3fn") == advice.dtypes_used(make_trace(TRAINING, 4, facts=facts))
    assert () == advice.dtypes_used(make_trace(TRAINING, 4))


# ---- rank -----------------------------------------------------------------------------------------------

NAMES = ("RTX 3060", "RTX 3090", "RTX 4090", "H200", "P100", "GTX 1070")


def ranked(
    sizes: dict[str, tuple[int, ...]], prices: dict[str, float | None], unsupported: tuple[str, ...] = ()
) -> list[advice.RankRow]:
    """Rows for cards with the given largest batches and prices."""
    cards = {name: catalogue.load().find(name) for name in sizes}
    count = len(next(iter(sizes.values())))
    answers = {
        f"w{number}": {
            cards[name].id: Largest(
                found[number],
                found[number] // 2,
                1 << (found[number].bit_length() - 1) if found[number] else 0,
                ("no kernels",) if name in unsupported else (),
            )
            for name, found in sizes.items()
        }
        for number in range(count)
    }
    costs = {cards[name].id: (None if (usd := prices.get(name)) is None else price(usd), None) for name in sizes}
    return list(advice.ranked(list(cards.values()), answers, costs))


def test_json_keys_of_rank_are_frozen() -> None:
    """Programs read these keys."""
    rows = tuple(ranked({"H200": (4,)}, {"H200": 30_000.0}))
    report = RankReport(workloads=("w0",), basis="predicted", traces={"w0": INFO}, gpus=rows)
    found = json.loads(msgspec.json.encode(report))

    keys = ["workloads", "basis", "traces", "gpus", "notes", "baseline", "samples", "sort", "usual_batch_size"]
    assert [*keys, "untraced", "missing", "currency"] == list(found)
    assert [
        "gpu",
        "memory_bytes",
        "compute_capability",
        "tier",
        "trains",
        "max_batch_size",
        "max_batch_size_safe",
        "max_batch_size_pow2",
        "max_batch_size_at_least",
        "supported",
        "buy",
        "rent",
        "notes",
        "speed",
        "speed_missing",
        "relative_speed",
        "best_speed",
        "run",
        "problems",
    ] == list(found["gpus"][0])
    assert {"w0": 4} == found["gpus"][0]["max_batch_size"] == found["gpus"][0]["max_batch_size_pow2"]
    assert {"w0": 2} == found["gpus"][0]["max_batch_size_safe"]


def test_tiers_count_the_workloads_that_fit() -> None:
    """All of them, all but one, fewer."""
    rows = ranked(
        {
            "H200": (9, 9, 9, 9),
            "RTX 4090": (9, 9, 9, 0),
            "RTX 3090": (9, 0, 9, 0),
            "RTX 3060": (9, 0, 0, 0),
            "GTX 1070": (0, 0, 0, 0),
        },
        {},
    )
    found = {row.gpu: (row.tier, row.trains) for row in rows}
    by_name = {
        name: found[catalogue.load().find(name).name]
        for name in ("H200", "RTX 4090", "RTX 3090", "RTX 3060", "GTX 1070")
    }

    assert [("all", 4), ("most", 3), ("poor", 2), ("poor", 1), ("poor", 0)] == list(by_name.values())


@pytest.mark.parametrize(
    ("trains", "of", "tier"),
    [
        (1, 1, "all"),
        (0, 1, "poor"),
        (1, 2, "most"),
        (0, 2, "poor"),
        (2, 3, "most"),
        (1, 3, "poor"),
        (2, 4, "poor"),
        (11, 12, "most"),
        (10, 12, "most"),
        (9, 12, "poor"),
        (7, 12, "poor"),
        (13, 16, "most"),
        (12, 16, "poor"),
    ],
)
def test_most_is_all_but_one_or_over_three_quarters(trains: int, of: int, tier: str) -> None:
    """A card that fails at a quarter of what somebody trains, and at more than one thing, is not a good fit."""
    assert tier == advice.tier_of(trains, of)


def names_of(rows: list[advice.RankRow]) -> list[str]:
    """The cards' names as the tests spell them."""
    spelled = {catalogue.load().find(name).name: name for name in NAMES}
    return [spelled[row.gpu] for row in rows]


def test_the_cheapest_card_that_trains_all_is_first() -> None:
    """Price decides within a tier, no price comes last, and no cheap card of a lower tier passes."""
    sizes = {"H200": (9, 9), "RTX 4090": (5, 5), "RTX 3090": (4, 4), "RTX 3060": (3, 0), "GTX 1070": (0, 0)}
    prices = {"RTX 4090": 1900.0, "RTX 3090": 900.0, "RTX 3060": 200.0, "GTX 1070": 50.0}

    assert ["RTX 3090", "RTX 4090", "H200", "RTX 3060", "GTX 1070"] == names_of(ranked(sizes, prices))


@pytest.mark.parametrize("condition", ["launch", "new, dated", "used, dated"])
def test_old_prices_come_after_todays(condition: str) -> None:
    """A card that was cheap once does not come before one that can be had, but before one without any price."""
    cards = {name: catalogue.load().find(name) for name in ("RTX 3060", "RTX 3090", "RTX 4090", "H200")}
    old = msgspec.structs.replace(price(100.0), condition=condition, stale=True)
    costs = dict(zip((card.id for card in cards.values()), (old, price(900.0), price(800.0), None), strict=True))
    answers = {"w": {card.id: Largest(3, 3, 2, ()) for card in cards.values()}}
    rows = advice.ranked(list(cards.values()), answers, {key: (cost, None) for key, cost in costs.items()})

    assert ["RTX 4090", "RTX 3090", "RTX 3060", "H200"] == names_of(list(rows))


@pytest.mark.parametrize("small", [(3, 0), (3, 3)])
def test_an_unsupported_card_is_marked_and_never_first(small: tuple[int, int]) -> None:
    """A card that the software cannot use stands after all that it can, however cheap and large."""
    rows = ranked({"P100": (9, 9), "RTX 3060": small, "GTX 1070": (0, 0)}, {"P100": 90.0, "RTX 3060": 200.0}, ("P100",))

    assert "P100" == names_of(rows)[-1]
    assert not rows[-1].supported
    assert ("no kernels",) == rows[-1].notes
    assert all(row.supported for row in rows[:-1])


def test_equal_cards_are_in_a_fixed_order() -> None:
    """Where nothing else decides, the name does, so that two runs print the same."""
    sizes = dict.fromkeys(NAMES, (4,))

    assert ranked(sizes, {}) == ranked(dict(reversed(sizes.items())), {})


def test_powers_of_two_follow_the_largest_batch() -> None:
    """0 stays 0."""
    (row,) = ranked({"H200": (0, 1, 100)}, {})

    assert {"w0": 0, "w1": 1, "w2": 64} == row.max_batch_size_pow2
