"""Hand-made reports for the tests of what is printed; the numbers are made up, the shapes are real."""

from __future__ import annotations

from whichgpu.advice import Breakdown, FitReport, FitRow, RankReport, RankRow, Tier, TraceInfo
from whichgpu.catalogue import Price
from whichgpu.intervals import Verdict

MIB = 1 << 20
TRACE = TraceInfo(kind="fake", affine=True, seconds=4.23, torch_version="2.14.1")
P100_NOTE = "the wheels of torch 2.14.1 have no kernels for compute capability 6.0"

# name, MiB as the driver reports it, capability, largest batch of resnet50, of gpt2, buy, rent
CARDS: tuple[tuple[str, int, str, int, int, float | None, float | None], ...] = (
    ("RTX 3060", 12288, "8.6", 101, 3, 280, 0.07),
    ("RTX 3090", 24576, "8.6", 210, 8, 890, 0.16),
    ("RTX 4090", 24564, "8.9", 210, 8, 1899, 0.34),
    ("A100 SXM4 80GB", 81920, "8.0", 721, 31, None, 1.19),
    ("H200 SXM", 143771, "9.0", 1290, 55, None, 3.14),
    ("Quadro RTX 8000", 49152, "7.5", 431, 17, 2300, None),
    ("Tesla P100 PCIe 16GB", 16384, "6.0", 137, 4, 95, None),
    ("RTX 2070", 8192, "7.5", 62, 1, 180, 0.05),
    ("RTX 2060", 6144, "7.5", 43, 0, 140, None),
    ("GTX 970", 4096, "5.2", 0, 0, 60, None),
)
BREAKDOWN = Breakdown(
    weights_bytes=98 * MIB,
    gradients_bytes=98 * MIB,
    optimizer_state_bytes=195 * MIB,
    activations_bytes=2705 * MIB,
    temporaries_bytes=12 * MIB,
    workspaces_bytes=40 * MIB,
    inputs_bytes=0,
    buffers_bytes=1 * MIB,
)


def pow2(batch_size: int) -> int:
    """The largest power of two that is no more, 0 for 0."""
    return 1 << (batch_size.bit_length() - 1) if batch_size else 0


def fit_row(gpu: str, memory_bytes: int, largest: int, batch_size: int, supported: bool = True) -> FitRow:
    """One card's answer."""
    safe = largest * 9 // 10
    fits = largest >= batch_size
    verdict: Verdict = "fits" if safe >= batch_size else "likely" if fits else "tight"
    if 20 * batch_size > 21 * largest:
        verdict = "no"
    return FitRow(
        gpu=gpu,
        memory_bytes=memory_bytes,
        fits=verdict == "fits",
        verdict=verdict,
        peak_reserved_bytes=3380 * MIB if fits else None,
        peak_reserved_low_bytes=3211 * MIB,
        peak_reserved_high_bytes=3718 * MIB,
        peak_allocated_bytes=3149 * MIB if fits else None,
        context_bytes=0 if gpu == "limit" else 450 * MIB,
        max_batch_size=largest,
        max_batch_size_safe=safe,
        max_batch_size_pow2=pow2(largest),
        breakdown=BREAKDOWN if fits else None,
        peak_phase="backward" if fits else "",
        peak_op="aten.convolution_backward.default" if fits else "",
        supported=supported,
        notes=() if supported else (P100_NOTE,),
    )


def fit_report(batch_size: int = 64, named: tuple[str, ...] = (), limit: bool = False) -> FitReport:
    """What `whichgpu fit resnet50` could answer, for all cards or some."""
    rows = [
        fit_row(name, mib * MIB, largest, batch_size, capability not in ("6.0", "5.2"))
        for name, mib, capability, largest, *_ in CARDS
        if not named or name in named
    ]
    if limit:
        rows.insert(0, fit_row("limit", 8 << 30, 64, batch_size))
    return FitReport(
        workload="resnet50",
        batch_size=batch_size,
        basis="predicted",
        trace=TRACE,
        gpus=tuple(rows),
        notes=("workspaces of convolutions are not counted: small models can need more",),
    )


def price(usd: float | None, unit: str) -> Price | None:
    """A median over a handful of offers."""
    if usd is None:
        return None
    return Price(
        usd=usd,
        unit="once" if unit == "once" else "hour",
        condition="used" if unit == "once" else "on-demand",
        offers=14,
        lowest_usd=usd * 0.9,
        highest_usd=usd * 1.3,
        oldest="2025-11",
        newest="2026-05-24",
        providers=("a shop",),
        sources=("https://example.com/offers",),
    )


def rank_report(cards: int = len(CARDS)) -> RankReport:
    """What `whichgpu rank resnet50 gpt2` could answer; more cards than there are come round again."""
    rows = []
    for index in range(cards):
        name, mib, capability, resnet50, gpt2, buy, rent = CARDS[index % len(CARDS)]
        trains = (resnet50 > 0) + (gpt2 > 0)
        tiers: dict[int, Tier] = {2: "all", 1: "most", 0: "poor"}
        supported = capability not in ("6.0", "5.2")
        rows.append(
            RankRow(
                gpu=name if index < len(CARDS) else f"{name} v{index // len(CARDS)}",
                memory_bytes=mib * MIB,
                compute_capability=capability,
                tier=tiers[trains] if supported else "poor",
                trains=trains,
                max_batch_size={"resnet50": resnet50, "gpt2": gpt2},
                max_batch_size_safe={"resnet50": resnet50 * 9 // 10, "gpt2": gpt2 * 9 // 10},
                max_batch_size_pow2={"resnet50": pow2(resnet50), "gpt2": pow2(gpt2)},
                supported=supported,
                buy=price(buy, "once"),
                rent=price(rent, "hour"),
                notes=() if supported else (P100_NOTE,),
            )
        )
    return RankReport(
        workloads=("resnet50", "gpt2"),
        basis="predicted",
        traces={"resnet50": TRACE, "gpt2": TraceInfo(kind="real-cpu", affine=False, seconds=31.0)},
        gpus=tuple(rows),
        notes=("every card is taken with all of its memory free",),
    )
