"""Hand-made reports for the tests of what is printed; the numbers are made up, the shapes are real."""

from __future__ import annotations

import msgspec

from whichgpu.advice import Breakdown, FitReport, FitRow, RankReport, RankRow, Tier, TraceInfo
from whichgpu.catalogue import Price
from whichgpu.explanation import ExplainReport, Holder, Others, Span
from whichgpu.intervals import Verdict
from whichgpu.remedies import LeftOut, Remedy
from whichgpu.runs import run
from whichgpu.speed.record import Limit, PredictedSpeed
from whichgpu.speed.record import speed as speed_record
from whichgpu.time_explanation import OpGroup, OtherGroups, StepTimes

MIB = 1 << 20
TRACE = TraceInfo(kind="fake", affine=True, seconds=4.23, torch_version="2.14.1", batch_sizes=(4, 8, 67, 1190))
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


def speed_of(mib: int, batch_size: int) -> PredictedSpeed | None:
    """Made-up: the more memory, the faster."""
    return speed_record(batch_size, 200 * batch_size / mib, 0.2, "compute") if batch_size else None


def ratio(found: PredictedSpeed | None) -> float | None:
    """As a ratio to the Quadro RTX 8000's."""
    return round(found.samples_per_s / (49152 / 200), 3) if found is not None else None


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
        speed=(found := speed_of(memory_bytes // MIB, largest) if supported and gpu != "limit" else None),
        speed_missing="" if found is not None else "not even batch size 1 fits",
        relative_speed=ratio(found),
        best_speed=speed_record(128, 1.02, 0.2, "compute") if gpu == "RTX 4090" else None,
        run=run(10**6, found, 350) if found is not None else None,
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
        baseline="Quadro RTX 8000",
        samples=10**6,
    )


def price(usd: float | None, unit: str) -> Price | None:
    """A median over a handful of offers."""
    if usd is None:
        return None
    return Price(
        usd=usd,
        low_usd=usd * 0.8,
        high_usd=usd * 1.4,
        age_days=191,
        stale=False,
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
                speed=(
                    found := {
                        "resnet50": speed_of(mib, resnet50) if supported else None,
                        "gpt2": speed_of(mib // 10, gpt2) if supported else None,
                    }
                ),
                relative_speed={"resnet50": ratio(found["resnet50"]), "gpt2": None},
                run={name: run(10**6, one, 350, rent) if one is not None else None for name, one in found.items()},
            )
        )
    return RankReport(
        workloads=("resnet50", "gpt2"),
        basis="predicted",
        traces={"resnet50": TRACE, "gpt2": TraceInfo(kind="real-cpu", affine=False, seconds=31.0)},
        gpus=tuple(rows),
        notes=("every card is taken with all of its memory free",),
        baseline="Quadro RTX 8000",
        samples=10**6,
    )


def span(step: int | None, phase: str, start: int, most: int, end: int, peak: bool = False) -> Span:
    """A phase, in MiB."""
    sizes = {"start_bytes": start * MIB, "most_bytes": most * MIB, "end_bytes": end * MIB}
    return Span(step=step, phase=phase, has_peak=peak, **sizes)


TIMELINE = (
    span(None, "setup", 0, 421, 421),
    span(0, "forward", 421, 2950, 2940),
    span(0, "backward", 2940, 3060, 883),
    span(0, "optimizer", 883, 2100, 1325),
    span(2, "forward", 1325, 3890, 3780),
    span(2, "backward", 3780, 3994, 1766, True),
    span(2, "other", 1766, 1767, 1766),
    span(2, "optimizer", 1766, 2209, 1325),
)
MICRO_BATCHES = tuple(
    span(1, phase, 500, 900, 500, (number, phase) == (6, "backward"))
    for number in range(12)
    for phase in ("forward", "backward")
)


def op_group(op: str, phase: str, module: str | None, calls: int, seconds: float, limit: Limit) -> OpGroup:
    """A group of operators of a step of 0.2 s."""
    return OpGroup(
        op=f"aten.{op}.default",
        phase=phase,
        module=module,
        modules=calls if module is not None else 0,
        source="transformers/models/bert/modeling_bert.py:337" if module is not None else None,
        calls=calls,
        gpu_s=seconds,
        share=seconds / 0.2,
        limit=limit,
        host_s=calls * 2e-5,
        flops=0.0 if limit == "memory" else seconds * 5e13,
        bytes=seconds * 5e11,
        pipe="" if limit == "memory" else "fp32",
    )


STEP_TIMES = StepTimes(
    gpu="RTX 4090",
    batch_size=32,
    speed=speed_record(32, 0.2, 0.2, "compute"),
    known=msgspec.structs.replace(
        speed_record(32, 0.19, 0.01, "compute"), basis="measured", source="own results, 2026-11-02, torch 2.14.1"
    ),
    step_s=0.2,
    gpu_s=0.19,
    compute_s=0.15,
    memory_s=0.04,
    waiting_s=0.01,
    host_s=0.08,
    groups=(
        op_group("mm", "backward", "bert.encoder.layer.*.intermediate.dense", 24, 0.07, "compute"),
        op_group("addmm", "forward", "bert.encoder.layer.*.output.dense", 12, 0.04, "compute"),
        op_group("_foreach_add_", "optimizer", None, 1, 0.0009, "memory"),
    ),
    others=OtherGroups(groups=70, calls=612, gpu_s=0.0791, share=0.3955),
    flops=9e12,
    bytes=9e10,
    peak_bytes_per_s=1.008e12,
    peak_flops_per_s={"fp32": 8.26e13},
)


def explain_report(gpu: str | None = "RTX 4090", timeline: tuple[Span, ...] = TIMELINE) -> ExplainReport:
    """What `whichgpu explain bert-base` could answer."""
    named = gpu is not None
    holders = (
        Holder(
            category="activation",
            bytes=1152 * MIB,
            storages=24,
            op="aten.addmm.default",
            module="bert.encoder.layer.*.intermediate.dense",
            modules=12,
            source="transformers/models/bert/modeling_bert.py:337",
        ),
        Holder(
            category="optimizer_state",
            bytes=179 * MIB,
            storages=1,
            op="aten.zeros_like.default",
            module="bert.embeddings.word_embeddings",
            modules=1,
            source=None,
        ),
        Holder(
            category="workspace", bytes=32 * MIB, storages=1, op="aten.mm.default", module=None, modules=0, source=None
        ),
    )
    remedies = (
        Remedy(
            remedy="activation checkpointing",
            change="checkpoint=1",
            peak_reserved_bytes=2450 * MIB,
            peak_allocated_bytes=2301 * MIB,
            saved_bytes=1950 * MIB,
            verdict="fits" if named else None,
            max_batch_size=1314 if named else None,
            max_batch_size_safe=1290 if named else None,
        ),
        Remedy(
            remedy="fused optimizer",
            change="fused=1",
            peak_reserved_bytes=4406 * MIB,
            peak_allocated_bytes=3994 * MIB,
            saved_bytes=-6 * MIB,
            verdict="fits" if named else None,
            max_batch_size=None,
            max_batch_size_safe=None,
        ),
    )
    return ExplainReport(
        workload="bert-base",
        batch_size=32,
        basis="predicted",
        trace=TRACE,
        gpu=gpu,
        memory_bytes=24564 * MIB if named else None,
        context_bytes=771 * MIB if named else None,
        verdict="fits" if named else None,
        max_batch_size=260 if named else None,
        max_batch_size_safe=255 if named else None,
        peak_reserved_bytes=4400 * MIB,
        peak_allocated_bytes=3994 * MIB,
        peak_step=2,
        peak_phase="backward",
        peak_op="aten._log_softmax_backward_data.default",
        timeline=timeline,
        holders=holders,
        others=Others(bytes=2631 * MIB, storages=608, holders=70),
        remedies=remedies,
        left_out=(LeftOut(remedy="8-bit optimizer", reason="its kernels are no part of PyTorch and cannot be traced"),),
        snapshot="bert.pickle" if named else None,
        notes=("every card is taken with all of its memory free",),
        time=STEP_TIMES if named else None,
        roofline="bert.svg" if named else None,
    )
