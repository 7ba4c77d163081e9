"""What is printed: golden tables, JSON keys, narrow and plain terminals."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from example_reports import CARDS, P100_NOTE, fit_report, rank_report
from rich.console import Console

from whichgpu import catalogue, render
from whichgpu.advice import FitReport

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def printed(show: Callable[[Console], None], width: int = 80) -> str:
    """What a pipe of that width receives."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    return _printed(show, file, width)


def _printed(show: Callable[[Console], None], file: io.TextIOWrapper, width: int) -> str:
    console = render.make_console(file, width)
    with render.trimmed(console):
        show(console)
    file.flush()
    return file.buffer.getvalue().decode(file.encoding)  # type: ignore[attr-defined]


def fit_text(report: FitReport, detailed: bool = False, width: int = 80) -> str:
    """A fit report as printed."""
    return printed(lambda console: render.print_fit(report, console, detailed=detailed), width)


def rank_text(cards: int = len(CARDS), width: int = 80) -> str:
    """A ranking as printed."""
    return printed(lambda console: render.print_rank(rank_report(cards), console), width)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("fit_all.txt", lambda: fit_text(fit_report(limit=True))),
        ("fit_named.txt", lambda: fit_text(fit_report(named=("RTX 4090", "RTX 2060", "GTX 970")), True)),
        ("fit_one_batch.txt", lambda: fit_text(fit_report(batch_size=1))),
        ("rank.txt", rank_text),
        ("rank_wide.txt", lambda: rank_text(24, width=132)),
    ],
)
def test_tables_are_as_recorded(name: str, make: Callable[[], str]) -> None:
    """The tables read as in the golden files; WHICHGPU_GOLDEN=write records them anew."""
    path = GOLDEN / name
    if os.environ.get("WHICHGPU_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == make()


@pytest.mark.parametrize("width", [60, 80, 132, 200])
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(width: int) -> None:
    """Tables fit the width, whatever it is, and lines carry no trailing blanks."""
    for output in (
        fit_text(fit_report(), width=width),
        fit_text(fit_report(), True, width),
        rank_text(60, width),
    ):
        for line in output.splitlines():
            assert len(line) <= width, line
            assert line.rstrip() == line


@pytest.mark.parametrize("width", [60, 80, 132])
def test_every_card_and_batch_is_shown_whole(width: int) -> None:
    """Nothing is cut off with an ellipsis in a table of many cards, and each card stands in both tables."""
    output = rank_text(60, width)
    assert "…" not in output
    assert 60 == len([line for line in output.splitlines() if line.endswith("2026-05") or "  -" in line])


def test_every_answer_says_its_basis() -> None:
    """The first line says that the figures are predictions made without a GPU."""
    for output in (fit_text(fit_report()), fit_text(fit_report(), True), rank_text()):
        assert "predicted (no GPU was used)" in output.splitlines()[0]


def test_unsupported_cards_are_marked_with_the_reason() -> None:
    """A card that the installed torch cannot use carries a mark, and its reason stands below once."""
    for output in (fit_text(fit_report()), rank_text()):
        words = " ".join(output.split())
        assert "GTX 970†" in words
        assert 1 == words.count(P100_NOTE)
        assert "† not supported, for the reason given below" in words
        assert "RTX 4090†" not in words


def test_the_smallest_card_that_fits_comes_first() -> None:
    """Cards that fit stand before those that do not, the smallest of them first."""
    output = fit_text(fit_report())
    places = [
        output.index(name) for name in ("RTX 3060", "RTX 3090, RTX 4090", "H200", "RTX 2070", "GTX 970")
    ]
    assert sorted(places) == places


def test_nothing_fits_and_everything_fits() -> None:
    """A report without a fitting card, and one without a missing card, have no empty tables."""
    everything = fit_text(msgspec.structs.replace(fit_report(1), gpus=fit_report(1).gpus[:3]))
    assert "does not fit" not in everything
    nothing = fit_text(fit_report(batch_size=5000))
    assert "fits on" not in nothing
    assert "Held at the peak" not in nothing


def test_no_supported_card_trains_all() -> None:
    """The last line never recommends a card that does not train all."""
    report = rank_report()
    rows = tuple(row for row in report.gpus if row.tier != "all")
    output = printed(lambda c: render.print_rank(msgspec.structs.replace(report, gpus=rows), c))
    assert output.endswith("No supported card trains all of them.\n")


def test_a_plain_terminal_gets_plain_signs() -> None:
    """An output that is not UTF-8 receives ASCII only."""
    for show in (
        lambda c: render.print_fit(fit_report(), c, detailed=True),
        lambda c: render.print_rank(rank_report(), c),
        lambda c: render.print_zoo({"resnet50": "a network"}, c),
    ):
        file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        assert _printed(show, file, 80).isascii()


def test_names_are_shown_as_they_are() -> None:
    """What looks like markup or emoji in a workload's name is left alone."""
    report = msgspec.structs.replace(fit_report(), workload="[red]my:rocket:model.py:setup[/red]")
    assert fit_text(report).startswith("[red]my:rocket:model.py:setup[/red], batch size 64")


def test_gpus_are_listed_by_memory() -> None:
    """The list of cards starts with the largest memory, and fits 80 columns."""
    gpus = catalogue.load().gpus
    lines = printed(lambda c: render.print_gpus(gpus, c)).splitlines()
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes)
    assert lines[3].startswith(largest.name)
    assert "…" not in "".join(lines)


FIT_KEYS = ["workload", "batch_size", "basis", "trace", "gpus", "notes"]
TRACE_KEYS = ["kind", "affine", "seconds", "cached", "torch_version"]
ROW_KEYS = [
    *("gpu", "memory_bytes", "fits", "peak_reserved_bytes", "peak_allocated_bytes", "context_bytes"),
    *("max_batch_size", "max_batch_size_pow2", "breakdown", "peak_phase", "peak_op", "supported", "notes"),
]
BREAKDOWN_KEYS = [
    *("weights_bytes", "gradients_bytes", "optimizer_state_bytes", "activations_bytes"),
    *("temporaries_bytes", "workspaces_bytes", "inputs_bytes", "buffers_bytes"),
]
RANK_KEYS = ["workloads", "basis", "traces", "gpus", "notes"]
RANK_ROW_KEYS = [
    *("gpu", "memory_bytes", "compute_capability", "tier", "trains", "max_batch_size"),
    *("max_batch_size_pow2", "supported", "buy", "rent", "notes"),
]
PRICE_KEYS = [
    *("usd", "unit", "condition", "offers", "lowest_usd", "highest_usd"),
    *("oldest", "newest", "providers", "sources"),
]


def test_the_keys_of_fit_are_stable() -> None:
    """Programs rely on the JSON keys of fit and their order: this list only grows."""
    report = json.loads(render.to_json(fit_report(limit=True)))
    assert FIT_KEYS == list(report)
    assert TRACE_KEYS == list(report["trace"])
    assert ROW_KEYS == list(report["gpus"][0])
    assert BREAKDOWN_KEYS == list(report["gpus"][0]["breakdown"])
    assert "limit" == report["gpus"][0]["gpu"]


def test_the_keys_of_rank_are_stable() -> None:
    """Programs rely on the JSON keys of rank and their order: this list only grows."""
    report = json.loads(render.to_json(rank_report()))
    assert RANK_KEYS == list(report)
    assert RANK_ROW_KEYS == list(report["gpus"][0])
    assert PRICE_KEYS == list(report["gpus"][0]["buy"])
    assert TRACE_KEYS == list(report["traces"]["resnet50"])


def test_json_is_the_record() -> None:
    """Reading the JSON back gives the record that was printed."""
    report = fit_report(limit=True)
    assert report == msgspec.json.decode(render.to_json(report), type=FitReport)
