"""The four tables: the article's figure for figure, and from measurements nothing but what was measured."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_measurements import GIB, measurement, search
from example_reports import rank_report
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from whichgpu import catalogue, measured, published, render, tables
from whichgpu.errors import InputError
from whichgpu.measured import CardFacts
from whichgpu.results import Measurement
from whichgpu.tables import Figure, Figures, Line, Table, TableCard, TierTable

DATA = Path(__file__).parents[1] / "data"
FACTS = {"h200-sxm-141gb": CardFacts("H200", 30_000.0, "new", "2026-05")}


def printed(table: Table | TierTable, width: int = 80) -> str:
    """What a pipe of that width receives."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = render.make_console(file, width)
    with render.trimmed(console):
        render.print_table(table, console)
    file.flush()
    return file.buffer.getvalue().decode()  # type: ignore[attr-defined,no-any-return]


def of(*groups: list[Measurement]) -> Figures:
    """Figures from measurements."""
    return measured.figures([one for group in groups for one in group], FACTS)


def values(table: Table) -> list[list[Any]]:
    """The cells of a table: figures, "*" for what does not fit, None for what is unknown."""
    return [["*" if cell.fits is False else cell.value for cell in row.cells] for row in table.rows]


# ---- the article of 2020 ------------------------------------------------------------------------------


def transcription(name: str) -> list[dict[str, str]]:
    """An independent transcription of one of the article's tables."""
    with (DATA / "published" / f"lambda2020_{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


CARDS = [gpu["gpu"] for gpu in transcription("gpus")]


def figure(words: str) -> float | str:
    """A cell of a transcription or of our CSV; "0*" and "*" are both a star."""
    return "*" if words.endswith("*") else float(words)


@pytest.mark.parametrize(
    ("name", "make"),
    [("max_batch", tables.max_batch), ("throughput", tables.throughput), ("relative", tables.relative)],
)
def test_published_tables_are_the_articles_figure_for_figure(name: str, make: Callable[[Figures], Table]) -> None:
    """Workloads, cards, units, stars and every figure are those of the transcription, means of the ratios included."""
    table = make(published.figures())
    ours = list(csv.DictReader(io.StringIO(render.table_csv(table))))
    theirs = transcription(name)
    assert len(theirs) == len(ours)
    for mine, other in zip(ours, theirs, strict=True):
        # our titles of means are shorter
        assert (
            other["model"].split(" (")[0].replace("mean with 0 for models that do not fit", "mean with * as 0")
            == mine["workload"]
        )
        assert (other["family"], other["unit"]) == (mine["family"], mine["unit"])
        assert [figure(other[card]) for card in CARDS] == [figure(mine[card]) for card in CARDS]
        assert "published" == mine["basis"]
        assert "Lambda" in mine["source"]
        assert "2020-02" in mine["source"]


def test_published_tiers_are_the_articles() -> None:
    """Every card has the verdict and the price of the transcription."""
    theirs = {row["gpu"]: row for row in transcription("gpus")}
    tiers = {"all SOTA": "all", "most SOTA (*)": "most", "not a good fit": "poor"}
    ours = {row.gpu: row for row in tables.tiers(published.figures()).cards}
    assert set(theirs) == set(ours)
    for name, other in theirs.items():
        assert tiers[other["tier"]] == ours[name].tier
        assert float(other["price_usd_feb2020"]) == ours[name].price_usd
        assert ("2020-02", other["note"]) == (ours[name].price_date, ours[name].note)


def test_what_the_article_is_remembered_for() -> None:
    """Some figures by heart, so that a mistake in both transcriptions would show."""
    found = published.figures()
    cards = [card.name for card in found.cards]
    rows = dict(zip((line.workload for line in found.lines), found.figures, strict=True))
    assert [4, 8, 8, 8, 8, 32, 32, 64] == [one.max_batch_size for one in rows["NasNet Large"]]
    assert 0 == rows["Pix2Pix HD"][cards.index("RTX 2080 Ti")].max_batch_size
    assert 93.57 == rows["BERT Base"][cards.index("Quadro RTX 8000")].units_per_second


def test_published_cards_are_in_the_catalogue() -> None:
    """The article's cards are found by name, and have at most the memory on their box."""
    for gpu in published.article().gpu:
        card = catalogue.load().find(gpu.name)
        assert gpu.id == card.id
        assert gpu.memory_gb == card.memory_gib


def test_published_rows_are_complete() -> None:
    """Each row has a figure or a star for each card, and where one table has a star the other has, too."""
    for work in published.article().workload:
        assert len(published.article().gpu) == len(work.max_batch) == len(work.throughput)
        assert [one == "*" for one in work.max_batch] == [one == "*" for one in work.throughput]


def test_a_verdict_on_some_workloads_is_not_the_articles() -> None:
    """Over fewer workloads the verdict follows from their figures; over fewer cards it stays."""
    found = published.figures()
    few = tables.tiers(tables.select(found, lines=[0, 3]))
    assert {"RTX 2060": "most", "Titan RTX": "all"}.items() <= {row.gpu: row.tier for row in few.cards}.items()
    one = tables.tiers(tables.select(found, cards=[0]))
    assert [("RTX 2060", "poor")] == [(row.gpu, row.tier) for row in one.cards]


# ---- from measurements --------------------------------------------------------------------------------


def test_a_limit_is_a_column_of_its_own_and_says_so() -> None:
    """A card limited to 8 GiB is no 8 GB card: its name says whose it is, and it has no price."""
    found = of(search(1800), search(96, memory_limit_bytes=8 * GIB))
    assert ["H200 limited to 8 GiB", "H200"] == [card.name for card in found.cards]
    assert [None, 30_000.0] == [card.price_usd for card in found.cards]
    assert [[96, 1800]] == values(tables.max_batch(found))
    assert any("limited" in note for note in tables.max_batch(found).notes)
    assert any("its own speed" in note for note in tables.throughput(found).notes)


def test_the_largest_batch_is_the_largest_that_ran() -> None:
    """It is exact where the next one failed; else at least so much; a star only where batch 1 ran out of memory."""
    table = tables.max_batch(
        of(
            search(64),
            [measurement(64, workload="open"), measurement(100, "out_of_memory", workload="open")],
            search(0, workload="none"),
            [measurement(4, "out_of_memory", workload="unsure")],
            [measurement(1, "crash", workload="broken")],
        )
    )
    assert [[64], [64], ["*"], [None], [None]] == values(table)
    assert [False, True, False, False, False] == [row.cells[0].at_least for row in table.rows]


def test_what_ran_out_of_memory_once_does_not_fit() -> None:
    """A batch that ran for a few steps and later ran out of memory is not the largest."""
    found = of([measurement(64), measurement(63), measurement(64, "out_of_memory")])
    assert [[63]] == values(tables.max_batch(found))
    assert 63 == tables.throughput(found).rows[0].cells[0].batch_size


def test_steps_that_want_multiples_are_searched_in_multiples() -> None:
    """Where odd batches are refused, the next multiple decides whether the largest is exact."""
    refused = [measurement(17, "step_error"), measurement(16)]
    (row,) = tables.max_batch(of([*refused, measurement(18, "out_of_memory")])).rows
    assert (16, False) == (row.cells[0].value, row.cells[0].at_least)
    (row,) = tables.max_batch(of([*refused, measurement(20, "out_of_memory")])).rows
    assert (16, True) == (row.cells[0].value, row.cells[0].at_least)


@given(largest=st.integers(1, 500), tried=st.sets(st.integers(1, 600), max_size=12))
def test_the_table_never_says_more_than_was_measured(largest: int, tried: set[int]) -> None:
    """With whatever batches were tried of a card that holds so many: no more than that, and exact only if it is so."""
    made = [measurement(size, "ok" if size <= largest else "out_of_memory") for size in sorted(tried)]
    if not made:
        return
    (row,) = tables.max_batch(of(made)).rows
    cell = row.cells[0]
    assert max((size for size in tried if size <= largest), default=None) == cell.value
    if cell.value is not None:
        assert cell.at_least == (not {largest, largest + 1} <= tried)
    (row,) = tables.max_batch(of(made), power_of_two=True).rows
    if row.cells[0].value is not None and not row.cells[0].at_least:
        assert 1 << (largest.bit_length() - 1) == row.cells[0].value


def test_throughput_is_of_the_largest_batch_in_the_workloads_unit() -> None:
    """A sample of 1,024 tokens counts 1,024; the newest timing stands, and nothing is averaged."""
    tokens: dict[str, Any] = {"unit": "tokens", "items_per_sample": 1024}
    made = [
        measurement(8, **tokens),
        measurement(16, **tokens, samples_per_second=40.0, measured_at="2026-11-30T12:00:00Z"),
        measurement(16, **tokens, samples_per_second=50.0, measured_at="2026-11-30T13:00:00Z"),
        measurement(32, timed=False, **tokens),
    ]
    table = tables.throughput(of(made))
    assert [[50.0 * 1024]] == values(table)
    assert ("tokens/s", 16) == (table.rows[0].unit, table.rows[0].cells[0].batch_size)
    assert any("below the largest batch" in note and "at 16 of 32" in note for note in table.notes)


def test_doubts_about_a_rate_are_told() -> None:
    """A median that is not known within 1 %, and a card that throttled, are named."""
    notes = tables.throughput(of([measurement(converged=False, throttled=("heat",))])).notes
    assert any("not known within 1 %" in note and "resnet50 on H200" in note for note in notes)
    assert any("throttled" in note and "heat" in note for note in notes)


@pytest.mark.parametrize(
    "change", [{"torch": "2.14.1"}, {"driver": "580"}, {"cuda": "12.8"}, {"cudnn": "9.11"}, {"origin": "lab"}]
)
def test_other_environments_are_other_columns(change: dict[str, Any]) -> None:
    """Two environments give two columns with a number each, and notes that say which is which."""
    table = tables.max_batch(of(search(64), search(60, **change)))
    assert ["H200 [1]", "H200 [2]"] == sorted(card.name for card in table.cards)
    assert [60, 64] == sorted(values(table)[0])
    assert all(any(f"[{number}] " in note for note in table.notes) for number in (1, 2))


@pytest.mark.parametrize("change", [{"gpu_uuid_hash": "ffff000000000000"}, {"whichgpu": "0.2"}, {"python": "3.13"}])
def test_cells_never_mix_environments(change: dict[str, Any]) -> None:
    """Small differences share a column as long as no cell has two of them, and split it as soon as one has."""
    apart = tables.max_batch(of(search(64), search(8, workload="gpt2", **change)))
    assert [[64], [8]] == values(apart)
    mixed = tables.max_batch(of(search(64), search(60, **change), search(8, workload="gpt2", **change)))
    columns = list(zip(*values(mixed), strict=True))
    assert [(60, 8), (64, None)] == sorted(columns)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload_hash": "ffff"}, "source ffff"),
        ({"libraries": {"timm": "2"}}, "timm 2"),
        ({"flags": {"x": True}}, "x=True"),
    ],
)
def test_a_workload_run_otherwise_is_another_row(change: dict[str, Any], said: str) -> None:
    """Another source, library or flag makes a row of its own, and a note tells them apart."""
    table = tables.max_batch(of(search(64), search(60, **change)))
    assert ["resnet50 (1)", "resnet50 (2)"] == [row.workload for row in table.rows]
    assert [[64], [60]] == values(table)
    assert any(note.startswith("resnet50 (2): ") and said in note for note in table.notes)


def test_tiers_follow_from_measurements() -> None:
    """All, most, fewer; a card that was not tried with all of them gets no verdict."""
    limits = {8: (9, 9, 9), 7: (9, 9, 0), 6: (9, 0, 0), 5: (9, 9, None)}
    made = [
        search(size, workload=f"w{number}", memory_limit_bytes=limit * GIB)
        for limit, sizes in limits.items()
        for number, size in enumerate(sizes)
        if size is not None
    ]
    found = {row.gpu: (row.tier, row.trains, row.tried) for row in tables.tiers(of(*made)).cards}
    expected = {8: ("all", 3, 3), 7: ("most", 2, 3), 6: ("poor", 1, 3), 5: (None, 2, 2)}
    assert {f"H200 limited to {limit} GiB": row for limit, row in expected.items()} == found


# ---- the baseline -------------------------------------------------------------------------------------


def rates(**by_card: float | None) -> Figures:
    """Figures of one workload: a rate for each card, None where it does not fit."""
    cards = tuple(TableCard(name=name, gpu=name, gpu_id=name.lower(), memory_bytes=GIB) for name in by_card)
    found = tuple(
        Figure(max_batch_size=0) if rate is None else Figure(max_batch_size=1, units_per_second=rate)
        for rate in by_card.values()
    )
    line = Line(workload="w", name="w", batch_unit="images", rate_unit="images/s")
    return Figures(basis="measured", source="", cards=cards, lines=(line,), figures=(found,))


def test_the_baseline_is_one() -> None:
    """Ratios are to the card that was named; where that has no figure, nothing is known."""
    found = rates(A=10.0, B=20.0, C=None)
    assert [[0.5, 1.0, "*"]] == values(tables.relative(found, "b"))
    assert [[1.0, 2.0, "*"]] == values(tables.relative(found, "A"))
    assert [[None, None, "*"]] == values(tables.relative(found, "C"))


def test_without_a_name_the_baseline_is_the_article_s_or_the_fullest() -> None:
    """The Quadro RTX 8000 where it is there, else the card of which most is known."""
    assert "Quadro RTX 8000" == tables.relative(published.figures()).baseline
    assert "B" == tables.relative(rates(A=None, B=3.0)).baseline


def test_a_baseline_that_is_not_there_is_told() -> None:
    """A name that no column has is answered with those that there are; one that several have, with these."""
    with pytest.raises(InputError, match="it has A, B"):
        tables.relative(rates(A=1.0, B=2.0), "H100")
    two = of(search(64), search(60, torch="2.14"))
    with pytest.raises(InputError, match="say which"):
        tables.relative(two, "H200")
    with pytest.raises(InputError, match="no card"):
        tables.relative(tables.select(two, cards=[]))


def test_a_mean_over_something_unknown_is_unknown() -> None:
    """Means compare cards over the same workloads: where one is not known there is none."""
    found = of(search(64), search(8, workload="gpt2"), search(60, torch="2.14"))
    means = {row.workload: [cell.value for cell in row.cells] for row in tables.relative(found, "H200 [1]").means}
    number = [card.name for card in found.cards].index("H200 [2]")
    assert {None} == {cells[number] for cells in means.values()}
    assert {1.0} == {cells[1 - number] for cells in means.values()}


# ---- from a ranking -----------------------------------------------------------------------------------


def test_a_ranking_as_tables() -> None:
    """Largest batches and verdicts are the ranking's; cards that cannot run it are named in the notes."""
    report = rank_report(8)
    table = tables.max_batch(tables.from_rank(report))
    assert not any(cell.at_least for row in table.rows for cell in row.cells)
    first = next(row for row in report.gpus if row.supported)
    ends = msgspec.structs.replace(first, max_batch_size_at_least=dict.fromkeys(report.workloads, True))
    bounds = tables.max_batch(tables.from_rank(msgspec.structs.replace(report, gpus=(ends,))))
    assert all(cell.at_least for row in bounds.rows for cell in row.cells)
    by_card = {row.gpu: row for row in report.gpus if row.supported}
    assert by_card.keys() == {card.name for card in table.cards}
    for row in table.rows:
        for card, cell in zip(table.cards, row.cells, strict=True):
            assert by_card[card.name].max_batch_size[row.workload] == (cell.value or 0)
    smaller = msgspec.structs.replace(first, max_batch_size_pow2=dict.fromkeys(report.workloads, 2))
    figures = tables.from_rank(msgspec.structs.replace(report, gpus=(smaller,)))
    powers = tables.max_batch(figures, power_of_two=True)  # a power of two that was seen to fit, not just the one below
    assert all(2 == cell.value for row in powers.rows for cell in row.cells if cell.value)
    verdicts = {row.gpu: row.tier for row in tables.tiers(tables.from_rank(report)).cards}
    assert {row.gpu: row.tier for row in by_card.values()} == verdicts
    assert "predicted" == table.basis
    for row in report.gpus:
        assert row.supported or any(row.gpu in note for note in table.notes)


def test_a_ranking_of_some_cards() -> None:
    """Named cards only; where none of them can run it, the reason is told."""
    report = rank_report(8)
    first = next(row for row in report.gpus if row.supported)
    assert [first.gpu] == [card.name for card in tables.from_rank(report, [first.gpu]).cards]
    report = msgspec.structs.replace(
        report, gpus=(msgspec.structs.replace(first, supported=False, notes=("no kernels",)),)
    )
    with pytest.raises(InputError, match="no kernels"):
        tables.from_rank(report)


# ---- how they look ------------------------------------------------------------------------------------


def example() -> Figures:
    """Measurements on a card and two of its limits, with everything that a table can show."""
    tokens: dict[str, Any] = {"workload": "gpt2", "unit": "tokens", "items_per_sample": 1024, "libraries": {}}
    return of(
        search(1800),
        search(96, memory_limit_bytes=8 * GIB),
        search(60, memory_limit_bytes=6 * GIB, converged=False),
        search(0, memory_limit_bytes=6 * GIB, **tokens),
        [measurement(24, memory_limit_bytes=8 * GIB, **tokens)],
        search(1790, torch="2.14.1+cu130", origin="lab"),
    )


GOLDEN: dict[str, Callable[[], str]] = {
    "tables_max_batch_published.txt": lambda: printed(tables.max_batch(published.figures())),
    "tables_throughput_published.txt": lambda: printed(tables.throughput(published.figures()), 132),
    "tables_relative_published.txt": lambda: printed(tables.relative(published.figures())),
    "tables_tiers_published.txt": lambda: printed(tables.tiers(published.figures())),
    "tables_max_batch_measured.txt": lambda: printed(tables.max_batch(example())),
    "tables_throughput_measured.txt": lambda: printed(tables.throughput(example())),
    "tables_relative_measured.txt": lambda: printed(tables.relative(example(), "H200 [1]")),
    "tables_tiers_measured.txt": lambda: printed(tables.tiers(example())),
    "tables_max_batch_predicted.txt": lambda: printed(tables.max_batch(tables.from_rank(rank_report(12)))),
    "tables_max_batch_measured.md": lambda: render.table_markdown(tables.max_batch(example())),
    "tables_max_batch_measured.csv": lambda: render.table_csv(tables.max_batch(example())),
    "tables_tiers_published.md": lambda: render.table_markdown(tables.tiers(published.figures())),
    "tables_tiers_published.csv": lambda: render.table_csv(tables.tiers(published.figures())),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_tables_are_as_recorded(name: str) -> None:
    """The tables read as in the golden files; WHICHGPU_GOLDEN=write records them anew."""
    path = DATA / "golden" / name
    if os.environ.get("WHICHGPU_GOLDEN") == "write":
        path.write_text(GOLDEN[name](), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == GOLDEN[name]()


@pytest.mark.parametrize("width", [60, 80, 132])
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(width: int) -> None:
    """Tables fit the width, whatever it is, and lines carry no trailing blanks."""
    for figures in (published.figures(), example()):
        for table in (
            tables.max_batch(figures),
            tables.throughput(figures),
            tables.relative(figures),
            tables.tiers(figures),
        ):
            for line in printed(table, width).splitlines():
                assert len(line) <= width, line
                assert line == line.rstrip()


def test_markdown_has_as_many_cells_in_each_row() -> None:
    """Names with a bar or a star in them break no row."""
    made = search(64, workload="a|b*c")
    rows = [line for line in render.table_markdown(tables.max_batch(of(made))).splitlines() if line.startswith("|")]
    assert {4} == {line.replace("\\|", "").count("|") for line in rows}
    assert any("a\\|b\\*c" in line for line in rows)


def test_json_tells_stars_from_what_is_unknown() -> None:
    """A program sees `fits` false for a star and null for unknown, and figures as numbers."""
    table = json.loads(render.to_json(tables.max_batch(example())))
    cells = {cell["fits"] for row in table["rows"] for cell in row["cells"]}
    assert {True, False, None} == cells
    assert "measured" == table["basis"]


def results_text(made: list[Measurement], width: int = 80) -> str:
    """A list of measurements as printed."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console: Console = render.make_console(file, width)
    with render.trimmed(console):
        render.print_results(made, console)
    file.flush()
    return file.buffer.getvalue().decode()  # type: ignore[attr-defined,no-any-return]


RESULTS = [
    *search(96, memory_limit_bytes=8 * GIB),
    *search(1790, torch="2.14.1+cu130", origin="lab"),
    measurement(8, "crash", workload="hf:meta-llama/Llama-3.2-1B?precision=bf16&seq=4096", unit="tokens"),
]


@pytest.mark.parametrize(("name", "width"), [("results.txt", 80), ("results_wide.txt", 132)])
def test_lists_of_results_are_as_recorded(name: str, width: int) -> None:
    """One row a measurement, environments numbered and named below; never wider than the terminal."""
    path = DATA / "golden" / name
    if os.environ.get("WHICHGPU_GOLDEN") == "write":
        path.write_text(results_text(RESULTS, width), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == results_text(RESULTS, width)
    assert max(map(len, results_text(RESULTS, width).splitlines())) <= width


def test_no_results_are_no_error() -> None:
    """An empty list says so and names the command that fills it."""
    assert "whichgpu bench" in results_text([])
