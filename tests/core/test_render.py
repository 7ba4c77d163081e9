"""What is printed: golden tables, JSON keys, narrow and plain terminals."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from example_reports import CARDS, MICRO_BATCHES, P100_NOTE, explain_report, fit_report, fit_row, rank_report
from example_reports import price as example_price
from rich.console import Console

from whichgpu import accuracy, catalogue, render
from whichgpu.advice import FitReport, RankReport
from whichgpu.explanation import ExplainReport
from whichgpu.zoo_list import ZooEntry

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


def explain_text(report: ExplainReport, width: int = 80) -> str:
    """An explanation as printed."""
    return printed(lambda console: render.print_explain(report, console), width)


def ranking_text(report: RankReport, width: int = 80) -> str:
    """A ranking as printed."""
    return printed(lambda console: render.print_rank(report, console), width)


def rank_text(cards: int = len(CARDS), width: int = 80) -> str:
    """A ranking of so many made-up cards as printed."""
    return ranking_text(rank_report(cards), width)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("fit_all.txt", lambda: fit_text(fit_report(limit=True))),
        ("fit_named.txt", lambda: fit_text(fit_report(named=("RTX 4090", "RTX 2060", "GTX 970")), True)),
        ("fit_one_batch.txt", lambda: fit_text(fit_report(batch_size=1))),
        ("explain.txt", lambda: explain_text(explain_report())),
        ("explain_no_card.txt", lambda: explain_text(explain_report(None, MICRO_BATCHES))),
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
        explain_text(explain_report(), width),
    ):
        for line in output.splitlines():
            assert len(line) <= width, line
            assert line.rstrip() == line


@pytest.mark.parametrize("width", [60, 80, 132])
def test_every_card_batch_and_price_is_shown_whole(width: int) -> None:
    """Nothing is cut off, and each card stands in the list of a column and once more with its prices."""
    report = rank_report(60)
    output = rank_text(60, width)
    assert "…" not in output
    words = " ".join(output.split())
    for row in report.gpus:
        assert row.gpu in words
        if width >= 80:
            assert (2 if row.supported else 1) <= words.count(row.gpu)
    priced = [row for row in report.gpus for price in (row.buy, row.rent) if price is not None]
    assert len(priced) <= words.count("2026-05")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_cuts_nothing_off(width: int) -> None:
    """Where a table does not fit the terminal, its lines are longer: names and figures stay whole."""
    cards = catalogue.load().gpus
    for output in (
        fit_text(fit_report(), width=width),
        fit_text(fit_report(), True, width),
        explain_text(explain_report(), width),
        rank_text(60, width),
        printed(lambda console: render.print_gpus(cards, console), width),
        printed(lambda console: render.print_accuracy(accuracy.report(), console), width),
    ):
        assert "…" not in output
    listed = printed(lambda console: render.print_gpus(cards, console), width)
    assert all(word in listed for card in cards for word in card.name.split())
    assert all(card in fit_text(fit_report(), width=width) for card in ("RTX 3060", "A100 SXM4 80GB"))


@pytest.mark.parametrize("columns", ["0", "-5", "1"])
def test_an_odd_width_is_no_reason_to_print_nothing(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS=0 and the like: the tables are as wide as they need to be."""
    monkeypatch.setenv("COLUMNS", columns)
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = render.make_console(file)
    assert console.width >= 20
    with render.trimmed(console):
        render.print_fit(fit_report(), console, detailed=False)
    file.flush()
    assert "RTX 3060" in file.buffer.getvalue().decode()  # type: ignore[attr-defined]


def test_no_card_is_broken_between_lines() -> None:
    """In lists of cards a name stays in one piece, so that it can be searched for."""
    for output in (rank_text(60), fit_text(fit_report())):
        lines = [line for line in output.splitlines() if ", " in line]
        assert lines
        assert [] == [line for line in lines if line.endswith((" RTX", " Quadro", " Tesla"))]


def test_cards_with_the_same_batches_share_a_column() -> None:
    """The table has one column for all cards with the same batches, numbered, the smallest memory first."""
    lines = rank_text().splitlines()
    numbers = next(line for line in lines if line.startswith("Column ")).split()[1:]
    sizes = next(line for line in lines if line.startswith("Sold as")).replace(" GB", "GB").split()[2:]
    batches = next(line for line in lines if line.startswith("resnet50  ")).split()[1:]
    assert ["1", "2", "3", "4", "5", "6", "7"] == numbers
    assert ["6GB", "8GB", "12GB", "24GB", "48GB", "80GB", "141GB"] == sizes
    assert ["32", "32", "64", "128", "256", "512", "1,024"] == batches
    assert any("RTX 3090, RTX 4090" in line for line in lines)


def test_prices_show_their_condition_and_date() -> None:
    """A price at launch or one that is old is marked as such, also beside others."""
    launch = msgspec.structs.replace(example_price(280, "once"), condition="launch", newest="2021-02")
    dated = msgspec.structs.replace(example_price(1.5, "hour"), condition="on-demand, dated", newest="2024-03")
    rows = (msgspec.structs.replace(rank_report().gpus[0], buy=launch, rent=dated),)
    output = ranking_text(msgspec.structs.replace(rank_report(), gpus=rows))
    line = next(line for line in output.splitlines() if line.startswith("RTX 3060 "))
    assert ["280", "launch", "2021-02", "1.50", "dated", "2024-03"] == line.split()[-6:]


def test_the_first_choice_has_a_price_of_today() -> None:
    """A card whose price is that at launch or old is not the first choice where another has a newer one."""
    report = rank_report()
    once = example_price(99, "once")
    old = [msgspec.structs.replace(once, condition=words, stale=True) for words in ("launch", "new, dated")]
    rows = list(report.gpus)
    for number, price in enumerate(old):
        rows[number] = msgspec.structs.replace(rows[number], buy=price)
    output = ranking_text(msgspec.structs.replace(report, gpus=tuple(rows)), 200)
    assert "First choice that trains all: RTX 4090, 1,899 USD used (median of 14, 2025-11 to 2026-05)" in output
    only_old = ranking_text(msgspec.structs.replace(report, gpus=tuple(rows[:2])))
    assert "First choice that trains all: RTX 3060, 99 USD launch" in only_old


def test_the_cheapest_to_rent_is_named_where_it_is_another() -> None:
    """Whoever rents is told a card too, unless it is the one to buy."""
    report = rank_report()
    assert "Cheapest to rent: RTX 2070, 0.05 USD/h" in ranking_text(report)
    first = ranking_text(msgspec.structs.replace(report, gpus=report.gpus[:2]))
    assert "Cheapest to rent" not in first
    assert "or 0.07 USD/h on-demand" in " ".join(first.split())


def test_cards_without_prices_are_listed() -> None:
    """A card that nobody offers is still one that trains all."""
    rows = [msgspec.structs.replace(row, buy=None, rent=None) for row in rank_report().gpus[:3]]
    report = msgspec.structs.replace(rank_report(), gpus=(*rows[:1], *rank_report().gpus[1:]))
    assert "Trains all, no price known: RTX 3060 (column 3)" in ranking_text(report)
    none = ranking_text(msgspec.structs.replace(report, gpus=tuple(rows)))
    assert none.endswith("First choice that trains all: RTX 3060, no price known\n")
    assert "Buy" not in none


def test_every_answer_says_its_basis() -> None:
    """The first line says that the figures are predictions made without a GPU."""
    for output in (fit_text(fit_report()), fit_text(fit_report(), True), rank_text()):
        assert "predicted (no GPU was used)" in output.splitlines()[0]


def test_unsupported_cards_stand_by_themselves_with_the_reason() -> None:
    """Cards that the installed torch cannot use come after all others, with the reason once and their batches."""
    for output, first, last in (
        (fit_text(fit_report()), "Tesla P100 PCIe 16GB 137, GTX 970 *", "GTX 970 *"),
        (rank_text(), "Tesla P100 PCIe 16GB 128/4, 95 USD used 2026-05", "GTX 970 */*, 60 USD used 2026-05"),
    ):
        words = " ".join(output.split())
        head, mark, rest = words.partition("Not supported (")
        assert mark
        assert 1 == words.count(P100_NOTE) == rest.count(P100_NOTE)
        assert first in rest
        assert last in rest
        assert "GTX 970" not in head
        assert "P100" not in head


def test_an_unsupported_card_that_was_named_says_so_first() -> None:
    """The verdict on a card that cannot run the step is not that its batch fits."""
    output = " ".join(fit_text(fit_report(batch_size=1, named=("Tesla P100 PCIe 16GB",)), True).split())
    assert "Tesla P100 PCIe 16GB (16.0 GiB): not supported; by memory alone batch size 1 fits" in output
    assert f"not supported {P100_NOTE}" in output


def test_what_does_not_fit_says_what_it_would_take() -> None:
    """A card that is too small shows how much the step would allocate, and what for."""
    row = fit_row("RTX 2060", 6 << 30, 43, 43)
    missed = msgspec.structs.replace(row, fits=False, peak_reserved_bytes=None, peak_allocated_bytes=None)
    output = fit_text(msgspec.structs.replace(fit_report(), gpus=(missed,)), True)
    assert "would allocate  3.1 GiB in backward, at aten.convolution_backward.default" in output
    assert "would be held at the peak" in output
    assert "peak reserved" not in output


def test_how_it_was_traced_is_said() -> None:
    """Real tensors, the cache and the batch sizes at which the step ran are named beside the result."""
    report = fit_report()
    for kind, cached, words in (
        ("fake", True, "Traced with fake tensors earlier and cached (torch 2.14.1), at batch sizes 4, 8, 67, 1,190."),
        (
            "real-cpu",
            False,
            "Traced with real tensors on the CPU in 4.2 s (torch 2.14.1), at batch sizes 4, 8, 67, 1,190.",
        ),
    ):
        trace = msgspec.structs.replace(report.trace, kind=kind, cached=cached)
        assert words in " ".join(fit_text(msgspec.structs.replace(report, trace=trace)).split())


END = 1 << 20  # where the search for the largest batch ends


def test_a_batch_at_the_end_of_the_search_is_said_to_be_no_maximum() -> None:
    """A lower bound reads as one, in every table and in words."""
    replace = msgspec.structs.replace
    row = fit_row("RTX 4090", 24 << 30, END, 64)
    safe = replace(row, max_batch_size_safe=END, max_batch_size_at_least=True)
    likely = replace(row, max_batch_size_at_least=True)
    report = replace(fit_report(), gpus=(safe,))
    assert "largest batch   1,048,576 or more (larger" in fit_text(report, True)
    assert " safe, likely 1,048,576 or more (larger" in fit_text(replace(report, gpus=(likely,)), True)
    assert 3 == fit_text(report).count("1,048,576+")
    assert "+  at least so many: larger ones were not tried" in fit_text(report)
    assert "+  at least" not in fit_text(fit_report())

    one = rank_report().gpus[0]
    ends = dict.fromkeys(one.max_batch_size, END)
    row_of_rank = replace(one, max_batch_size=ends, max_batch_size_pow2=ends, max_batch_size_at_least={"gpt2": True})
    ranking = ranking_text(replace(rank_report(), gpus=(row_of_rank,)))
    assert 1 == ranking.count("1,048,576+")
    assert "+  at least so many" in ranking

    bounds = {"max_batch_size": END, "max_batch_size_safe": END, "max_batch_size_at_least": True}
    said = explain_text(replace(explain_report(), **bounds))
    assert "1,048,576 safe, 1,048,576 or more (larger" in said
    assert 1 == said.count("1,048,576+")


def test_the_smallest_card_that_fits_comes_first() -> None:
    """Cards that fit stand before those that do not, the smallest of them first."""
    output = fit_text(fit_report())
    places = [output.index(name) for name in ("RTX 3060", "RTX 3090, RTX 4090", "H200", "RTX 2070", "RTX 2060")]
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
    output = ranking_text(msgspec.structs.replace(report, gpus=rows))
    assert output.endswith("No supported card trains all of them.\n")


def test_a_plain_terminal_gets_plain_signs() -> None:
    """An output that is not UTF-8 receives ASCII only."""
    for show in (
        lambda c: render.print_fit(fit_report(), c, detailed=True),
        lambda c: render.print_rank(rank_report(), c),
        lambda c: render.print_zoo([ZooEntry(name="resnet50", description="a network", sets=("vision",))], c),
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


FIT_KEYS = ["workload", "batch_size", "basis", "trace", "gpus", "notes", "baseline", "samples", "batch_size_is_default"]
TRACE_KEYS = [
    "kind",
    "affine",
    "seconds",
    "cached",
    "torch_version",
    "batch_sizes",
    "failed_batch_sizes",
    "unit",
    "items_per_sample",
]
ROW_KEYS = [
    *("gpu", "memory_bytes", "fits", "verdict", "peak_reserved_bytes", "peak_reserved_low_bytes"),
    *("peak_reserved_high_bytes", "peak_allocated_bytes", "context_bytes", "max_batch_size", "max_batch_size_safe"),
    *("max_batch_size_pow2", "max_batch_size_at_least", "breakdown", "peak_phase", "peak_op", "supported", "notes"),
    *("speed", "speed_missing", "speed_note", "relative_speed", "best_speed", "known_speeds", "run"),
]
BREAKDOWN_KEYS = [
    *("weights_bytes", "gradients_bytes", "optimizer_state_bytes", "activations_bytes"),
    *("temporaries_bytes", "workspaces_bytes", "inputs_bytes", "buffers_bytes"),
]
RANK_KEYS = [
    *("workloads", "basis", "traces", "gpus", "notes", "baseline", "samples", "sort", "usual_batch_size"),
    *("untraced", "missing", "currency"),
]
RANK_ROW_KEYS = [
    *("gpu", "memory_bytes", "compute_capability", "tier", "trains", "max_batch_size"),
    *("max_batch_size_safe", "max_batch_size_pow2", "max_batch_size_at_least", "supported", "buy", "rent", "notes"),
    *("speed", "speed_missing", "relative_speed", "best_speed", "run", "problems"),
]
PRICE_KEYS = [
    *("usd", "unit", "condition", "offers", "lowest_usd", "highest_usd"),
    *("oldest", "newest", "providers", "sources"),
    *("low_usd", "high_usd", "age_days", "stale", "least_count"),
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


def test_the_keys_of_explain_are_stable() -> None:
    """Programs rely on the JSON keys of explain and their order: this list only grows."""
    found = json.loads(render.to_json(explain_report()))
    assert (
        "workload batch_size basis trace gpu memory_bytes context_bytes verdict max_batch_size max_batch_size_safe "
        "max_batch_size_at_least peak_reserved_bytes peak_allocated_bytes peak_step peak_phase peak_op timeline holders others remedies left_out snapshot notes "
        "time time_missing roofline batch_size_is_default"
    ).split() == list(found)
    assert "step phase start_bytes most_bytes end_bytes has_peak".split() == list(found["timeline"][0])
    assert "category bytes storages op module modules source".split() == list(found["holders"][0])
    assert "bytes storages holders".split() == list(found["others"])
    keys = (
        "remedy change peak_reserved_bytes peak_allocated_bytes saved_bytes verdict max_batch_size max_batch_size_safe "
        "max_batch_size_at_least"
    )
    assert keys.split() == list(found["remedies"][0])
    assert ["remedy", "reason"] == list(found["left_out"][0])
    assert (
        "gpu batch_size speed known step_s gpu_s compute_s memory_s waiting_s host_s groups others flops bytes "
        "peak_bytes_per_s peak_flops_per_s note"
    ).split() == list(found["time"])
    group = "op phase module modules source calls gpu_s share limit host_s flops bytes pipe"
    assert group.split() == list(found["time"]["groups"][0])
    assert "groups calls gpu_s share".split() == list(found["time"]["others"])


def test_a_step_with_many_phases_shows_its_ends_and_its_peak() -> None:
    """Of two dozen phases the first and last are shown, the one with the peak, and how many are not."""
    output = explain_text(explain_report(None, MICRO_BATCHES))
    assert "... 16 more" in output
    assert 1 == output.count("< peak")


def test_bars_are_plain_where_the_terminal_is() -> None:
    """A terminal that knows ASCII only gets bars of it."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    assert "#---" in _printed(lambda console: render.print_explain(explain_report(), console), file, 80)


def test_the_zoo_shows_size_and_arithmetic() -> None:
    """Parameters and FLOPs stand beside the name with three figures, "-" where they are not counted, then the sets."""
    known = ZooEntry(
        name="resnet50",
        description="a network",
        sets=("vision", "mine"),
        parameters=25_557_032,
        flops_per_sample=24_299_077_632,
        unit="images",
    )
    bare = ZooEntry(name="new", description="another", sets=("mine",))
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    shown = _printed(lambda console: render.print_zoo([known, bare], console), file, 80)
    rows = [line.split() for line in shown.splitlines()]
    assert ["resnet50", "25.6", "M", "24.3", "G", "images", "a", "network"] in rows
    assert ["new", "-", "-", "-", "another"] in rows
    assert "--set vision: resnet50\n--set mine: resnet50, new\n" in shown


LONG = "timm:resnet50?channels_last=1&precision=fp16&size=224"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_long_names_of_workloads_break_between_their_options(width: int) -> None:
    """No word of a name is cut, in a terminal of any width."""
    report = rank_report()
    names = {"resnet50": LONG, "gpt2": "gpt2"}
    rows = [
        msgspec.structs.replace(
            row,
            **{
                field: {names[name]: value for name, value in getattr(row, field).items()}
                for field in ("max_batch_size", "max_batch_size_safe", "max_batch_size_pow2", "max_batch_size_at_least")
            },
        )
        for row in report.gpus
    ]
    traces = {names[name]: trace for name, trace in report.traces.items()}
    report = msgspec.structs.replace(report, workloads=(LONG, "gpt2"), traces=traces, gpus=tuple(rows))
    file = io.StringIO()
    console = render.make_console(file, width)
    with render.trimmed(console):
        render.print_rank(report, console)
    printed = file.getvalue()

    words = ("timm:resnet50?", "channels_last=1&", "precision=fp16&", "size=224")
    table = printed[printed.index("Column") :]
    assert [printed.count(words[0])] * 4 == [printed.count(word) for word in words]
    assert 1 <= table.count("size=224")
    assert "\x1f" not in printed


def test_no_card_is_named_over_two_rows() -> None:
    """At the usual width the longest name of a card stands in one line, in the catalogue and in a ranking."""
    longest = max((card.name for card in catalogue.load().gpus if card.cuda), key=len)
    report = rank_report()
    first = msgspec.structs.replace(report.gpus[0], gpu=longest)
    for show, what in (
        (render.print_gpus, catalogue.load().gpus),
        (render.print_rank, msgspec.structs.replace(report, gpus=(first, *report.gpus[1:]))),
    ):
        file = io.StringIO()
        console = render.make_console(file, 80)
        with render.trimmed(console):
            show(what, console)
        lines = file.getvalue().splitlines()
        assert any(line.startswith(longest) for line in lines)
        assert 80 >= max(map(len, lines))
