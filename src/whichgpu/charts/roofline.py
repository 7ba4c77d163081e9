"""The roofline of a step on a card (Williams, Waterman and Patterson, 2009): what its operators reach of the card's peaks.

To the right FLOPs for each byte that must cross the memory bus, upwards FLOP/s; the roof is what the data sheet promises. Operators
whose FLOPs are not counted, as PyTorch's counter counts none of element by element, stand on the left with the bandwidth that
they reach. Each mark is a group of operators of `explain`, its area the time that it takes; those of the table have numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from whichgpu import text
from whichgpu.charts import figure as pictures
from whichgpu.charts.figure import BLACK, BLUE, GREY, LABEL, ORANGE, PURPLE, SMALL
from whichgpu.charts.labels import Named, name_points
from whichgpu.speed.record import Limit
from whichgpu.speed_closeup import TimeLook
from whichgpu.time_explanation import OpGroup, StepTimes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIMITS: dict[Limit, tuple[str, str, str]] = {  # words, colour, mark
    "compute": ("arithmetic", BLUE, "o"),
    "memory": ("memory bandwidth", ORANGE, "s"),
    "host": ("the host", PURPLE, "^"),
}
PIPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "TF32 tensor cores",
    "fp16": "float16 tensor cores",
    "bf16": "bfloat16 tensor cores",
}
_LEAST_AREA, _AREA = 14, 3600  # square points of a mark: at least, and for all of the GPU's time
_NEAR = 5.0  # points between marks that are drawn as one
_SEEN = 0.0015  # share of the GPU's time below which a group is not drawn
_LONGEST, _LONGEST_NAME = 44, 34  # of a line in the list of operators


def draw_roofline(workload: str, look: TimeLook, path: Path) -> None:
    """Write the roofline of a step as a picture; InputError where that cannot be."""
    with pictures.style():
        pictures.save(roofline(workload, look), path)


def roofline(workload: str, look: TimeLook) -> Figure:
    """The roofline of a step."""
    times = look.times
    drawn = pictures.new_figure(13.0, 7.4)
    batch = text.format_count(times.batch_size)
    pictures.title(
        drawn,
        f"{workload} at batch size {batch} on the {times.gpu}",
        f"A step takes {text.format_duration(times.step_s)}, predicted "
        f"(80 %: {text.format_duration(times.speed.step_low_s)} to {text.format_duration(times.speed.step_high_s)})",
    )
    strip = pictures.place(drawn, 0.75, 1.6, 1.5, 4.75)
    main = pictures.place(drawn, 2.85, 1.6, 5.75, 4.75)
    _draw_strip(strip, look)
    _draw_roof(main, look)
    _list(drawn, times)
    _draw_bar(pictures.place(drawn, 0.75, 0.55, 7.85, 0.28), times)
    pictures.source(
        drawn,
        "Predicted; no GPU was used. Roofs: peaks of the card's data sheet. Bytes: those that must cross the memory bus; what "
        "stays in the cache may lie above the slope.",
    )
    return drawn


class _Placed(NamedTuple):
    """A group at its place, with its number in the list, if it has one."""

    group: OpGroup
    number: str
    x: float
    y: float


def _numbered(look: TimeLook) -> list[tuple[OpGroup, str]]:
    """Groups that are large enough to be seen, with their numbers in the list."""
    shown = [group for group in look.groups if group.gpu_s >= _SEEN * look.times.gpu_s]
    return [(group, str(number) if number <= len(look.times.groups) else "") for number, group in enumerate(shown, 1)]


def _draw(axes: Axes, placed: Sequence[_Placed], gpu_s: float, *more: Named) -> None:
    """Draw marks with their numbers beside them, those at the same place as one; `more` are labelled first."""
    named = list(more)
    for members in sorted(_at_one_place(axes, placed), key=lambda members: -sum(one.group.gpu_s for one in members)):
        first = members[0]
        _, colour, mark = LIMITS[first.group.limit]
        area = max(_AREA * sum(one.group.gpu_s for one in members) / gpu_s, _LEAST_AREA)
        axes.scatter(
            [first.x], [first.y], s=area, c=colour, marker=mark, alpha=0.8, edgecolors="white", linewidths=0.7, zorder=3
        )
        label = ", ".join(one.number for one in members if one.number)
        named.append(Named(first.x, first.y, label, area**0.5 / 2, bold=True))
    name_points(axes, named)


def _at_one_place(axes: Axes, placed: Sequence[_Placed]) -> list[list[_Placed]]:
    """Marks of the same limit that would cover each other's middle, the most expensive of each first."""
    found: list[tuple[float, float, list[_Placed]]] = []
    for one in placed:
        x, y = axes.transData.transform((one.x, one.y)) / axes.figure.dpi * 72
        near = (
            members
            for left, low, members in found
            if hypot(x - left, y - low) < _NEAR and members[0].group.limit == one.group.limit
        )
        members = next(near, None)
        if members is None:
            found.append((x, y, [one]))
        else:
            members.append(one)
    return [members for *_, members in found]


def _on(colour: str) -> str:
    """The colour of letters on a colour."""
    return "white" if colour == BLUE else BLACK


def _draw_strip(axes: Axes, look: TimeLook) -> None:
    """Operators without FLOPs: the bandwidth that each reaches."""
    peak = look.times.peak_bytes_per_s
    groups = [pair for pair in _numbered(look) if not pair[0].flops]
    rates = [group.bytes / group.gpu_s for group, _ in groups]
    axes.set_xlim(0, 1)
    axes.set_ylim(0, max([peak, *rates]) * 1.15)
    axes.set_xticks([])
    axes.axhline(peak, color=BLACK, linewidth=2)
    axes.text(0.02, peak * 1.015, f"{text.format_figure(peak / 1e9)} GB/s", fontsize=SMALL, va="bottom")
    axes.yaxis.set_major_formatter(lambda value, _: text.format_figure(value / 1e9))
    axes.set_title("GB/s reached", fontsize=LABEL, loc="left")
    axes.set_xlabel("no FLOPs counted")
    across = (0.5, 0.2, 0.8, 0.35, 0.65)  # side by side, as they would cover each other
    places = (across[place % len(across)] for place in range(len(groups)))
    _draw(
        axes, [_Placed(*pair, x, rate) for pair, x, rate in zip(groups, places, rates, strict=True)], look.times.gpu_s
    )


def _draw_roof(axes: Axes, look: TimeLook) -> None:
    """Roofs, the groups with FLOPs, and the step as a whole."""
    times = look.times
    placed = [
        _Placed(group, number, group.flops / group.bytes, group.flops / group.gpu_s)
        for group, number in _numbered(look)
        if group.flops and group.bytes
    ]
    whole = [(times.flops / times.bytes, times.flops / times.step_s)] if times.flops and times.bytes else []
    every = [*((one.x, one.y) for one in placed), *whole]
    roofs = times.peak_flops_per_s or {"fp32": times.peak_bytes_per_s}
    highest = max(roofs.values())
    ridge = highest / times.peak_bytes_per_s
    left = min([min(roofs.values()) / times.peak_bytes_per_s / 12, *(x for x, _ in every)]) / 2
    right = max([6 * ridge, *(x for x, _ in every)]) * 2
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(max(min([highest / 20, *(y for _, y in every)]) / 2, highest / 1e5), highest * 2)
    pictures.axis_titles(axes, "FLOPs for each byte from or to memory", "TFLOP/s reached")
    pictures.log_ticks(axes.xaxis, lambda value: f"{value:,g}")
    pictures.log_ticks(axes.yaxis, lambda value: f"{value / 1e12:,g}")
    _draw_roofs(axes, roofs, times.peak_bytes_per_s, (left, right))
    for x, y in whole:
        axes.scatter([x], [y], s=90, c=BLACK, marker="D", edgecolors="white", zorder=4)
    _draw(axes, placed, times.gpu_s, *(Named(*one, "whole step", 6.0, bold=True) for one in whole))


def _draw_roofs(axes: Axes, roofs: dict[str, float], bandwidth: float, ends: tuple[float, float]) -> None:
    """The slope of the memory's bandwidth, and a ceiling for each kind of arithmetic; equal ones are one."""
    left, right = ends
    highest = max(roofs.values())
    axes.plot([left, highest / bandwidth], [left * bandwidth, highest], color=BLACK, linewidth=2, zorder=2)
    last = 0.0
    for peak in sorted(set(roofs.values())):
        # to the left of where it begins, above the slope, nothing else can be
        first = peak == highest
        axes.plot(
            [peak / bandwidth, right], [peak, peak], color=BLACK, linewidth=2 if first else 1.2,
            linestyle="-" if first else "--", zorder=2,
        )  # fmt: skip
        pipes = " and ".join(PIPES.get(pipe, pipe) for pipe, one in roofs.items() if one == peak)
        words = f"{pipes}: {text.format_figure(peak / 1e12)} TFLOP/s"
        higher = max(peak, 1.2 * last)
        axes.text(
            0.88 * peak / bandwidth,
            higher,
            words,
            fontsize=SMALL,
            ha="right",
            va="center",
            bbox=pictures.CLEAR,
            zorder=1,
        )
        last = higher


def _list(drawn: Figure, times: StepTimes) -> None:
    """The numbered groups in words, and what marks mean."""
    width, height = drawn.get_size_inches()
    left, y = 9.0 / width, 6.45

    def line(words: str, *, bold: bool = False, colour: str = BLACK, indent: float = 0.0) -> None:
        drawn.text(
            left + indent / width, y / height, words, fontsize=SMALL, color=colour, va="top",
            fontweight="bold" if bold else "normal",
        )  # fmt: skip

    line("The most expensive operators", bold=True)
    for number, group in enumerate(times.groups, 1):
        y -= 0.235
        line(str(number), bold=True, colour=LIMITS[group.limit][1])
        line(
            f"{short_op(group)}: {text.format_duration(group.gpu_s)}, {text.format_share_of(group.share)}", indent=0.28
        )
        y -= 0.17
        line(elided(where(group), _LONGEST), colour=GREY, indent=0.28)
    y -= 0.3
    line("Limited by", bold=True)
    y -= 0.27
    used = {group.limit for group in times.groups} | {"compute", "memory"}
    axes = pictures.place(drawn, 9.0, y - 0.15, 3.9, 0.22)
    axes.set_axis_off()
    axes.set_xlim(0, 3.9)
    axes.set_ylim(0, 1)
    x = 0.08
    for limit, (words, colour, mark) in LIMITS.items():
        if limit in used:
            axes.scatter([x], [0.5], s=50, c=colour, marker=mark)
            axes.text(x + 0.13, 0.5, words, fontsize=SMALL, va="center")
            x += 0.42 + 0.085 * len(words)


def _draw_bar(axes: Axes, times: StepTimes) -> None:
    """Where the time of the whole step goes."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.text(0, 1.12, "Time of the step", fontsize=LABEL, fontweight="bold", va="bottom")
    parts = (
        (times.compute_s, "arithmetic", BLUE),
        (times.memory_s, "memory bandwidth", ORANGE),
        (times.waiting_s, "waiting for the host", PURPLE),
    )
    left, outside = 0.0, []
    for seconds, words, colour in parts:
        share = seconds / times.step_s
        axes.barh(0.5, share, left=left, height=1.0, color=colour, edgecolor="white")
        said = f"{words} {text.format_share_of(share)}"
        if share > 0.011 * len(said):
            axes.text(left + share / 2, 0.47, said, ha="center", va="center", fontsize=SMALL, color=_on(colour))
        elif seconds:
            outside.append(said)
        left += share
    axes.text(1.0, 1.12, ", ".join(outside), ha="right", va="bottom", fontsize=SMALL, color=GREY)


def short_op(group: OpGroup) -> str:
    """An operator's name without what all have, and its phase where the name does not say it."""
    name = group.op.removeprefix("aten.").partition(".")[0].lstrip("_").removeprefix("scaled_dot_product_")
    return name if group.phase in ("forward", "other") or "backward" in name else f"{name}, {group.phase}"


def where(group: OpGroup) -> str:
    """The module of a group, or the line that runs it."""
    return group.module or group.source or "outside of modules"


def elided(words: str, longest: int) -> str:
    """Words without their beginning, where they are too long."""
    return words if len(words) <= longest else "..." + words[3 - longest :]
