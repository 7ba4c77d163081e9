"""Where the time of a step goes: what limits it, and its most expensive operators."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whichgpu import text
from whichgpu.render.common import print_whole
from whichgpu.render.speed import LIMITS
from whichgpu.time_explanation import OpGroup, StepTimes


def print_step_times(times: StepTimes, console: Console) -> None:
    """Print the time of a step with what it is made of, and its most expensive operators."""
    speed = times.speed
    console.print()
    console.print(Text(f"Time of a step on the {times.gpu}", "bold"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    for _ in range(2):
        facts.add_column(justify="right", no_wrap=True)
    facts.add_column()
    ends = f"{text.format_duration(speed.step_low_s)} to {text.format_duration(speed.step_high_s)}"
    facts.add_row("step", text.format_duration(times.step_s), "", f"predicted (80 %: {ends})")
    shares = (
        ("  arithmetic", times.compute_s, "kernels that it limits"),
        ("  memory", times.memory_s, "kernels that its bandwidth limits"),
        ("  the host", times.waiting_s, f"the GPU waits; launches take {text.format_duration(times.host_s)} in all"),
    )
    for title, seconds, words in shares:
        facts.add_row(title, text.format_duration(seconds), _share(seconds / times.step_s), words)
    if times.known is not None:
        known = times.known
        facts.add_row(known.basis, text.format_duration(known.step_s), "", known.source)
    print_whole(Padding(facts, (0, 0, 0, 2)), console)
    if times.note:
        console.print(Padding(times.note, (0, 0, 0, 2)))
    _print_groups(times, console)


def _print_groups(times: StepTimes, console: Console) -> None:
    console.print()
    console.print(Text("The most expensive operators, with what limits them", "bold"))
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", min_width=20)
    for group in times.groups:
        said = Text("\n").join(map(Text, _origin(group)))
        table.add_row(text.format_duration(group.gpu_s), _share(group.share), LIMITS[group.limit], said)
    others = times.others
    if others.groups:
        words = f"all others, {_calls(others.calls)}"
        table.add_row(text.format_duration(others.gpu_s), _share(others.share), "", words)
    if times.waiting_s > 0:
        waiting = (text.format_duration(times.waiting_s), _share(times.waiting_s / times.step_s))
        table.add_row(*waiting, LIMITS["host"], "the GPU waits for launches")
    print_whole(Padding(table, (0, 0, 0, 2)), console)


def _share(share: float) -> str:
    return text.format_share_of(share)


def _origin(group: OpGroup) -> list[str]:
    """Phase and module, then the operator, how often it runs, and from which line."""
    place = f"{group.phase} of {group.module}" if group.module else group.phase
    name = group.op.removeprefix("aten.").removesuffix(".default")
    count = _calls(group.calls)
    if group.modules > 1:
        count += f" in {text.format_count(group.modules)} modules"
    made = f"{name}, {count}"
    return [place, f"{made}, {group.source}" if group.source is not None else made]


def _calls(count: int) -> str:
    return f"{text.format_count(count)} call{'' if count == 1 else 's'}"
