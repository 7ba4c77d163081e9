"""Predicted largest batches beside published ones: what agrees, what is shown, and when it is shown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu import api, catalogue, comparison, published, render, sets, table_sources
from whichgpu.advice import RankReport, RankRow, TraceInfo
from whichgpu.cli import _run as run_command
from whichgpu.comparison import Comparison
from whichgpu.errors import InputError
from whichgpu.zoo import ENTRIES

SIZES = st.integers(min_value=1, max_value=200_000)


def ranking(sizes: dict[str, dict[str, int]], items: int = 1, gone: str = "") -> RankReport:
    """A ranking of these workloads over the article's cards, and others; `gone` is a card without kernels."""
    names = [catalogue.load().find(card.id).name for card in published.article().gpu]
    rows = [
        RankRow(
            gpu=name,
            memory_bytes=1 << 33,
            compute_capability="7.5",
            tier="all",
            trains=len(sizes),
            max_batch_size={workload: found.get(name, 1) for workload, found in sizes.items()},
            max_batch_size_safe={},
            max_batch_size_pow2=dict.fromkeys(sizes, 1),
            supported=name != gone,
            buy=None,
            rent=None,
            notes=("no kernels",) if name == gone else (),
        )
        for name in [*names, "H200 SXM 141GB"]
    ]
    info = TraceInfo(kind="fake", affine=True, seconds=1.0, torch_version="2.14.1", items_per_sample=items)
    notes = ("bert-base: a word on it", "some cards are left out")
    return RankReport(
        workloads=tuple(sizes), basis="predicted", traces=dict.fromkeys(sizes, info), gpus=tuple(rows), notes=notes
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was asked of `rank`, which answers 40 samples on every card."""
    questions: list[list[str]] = []

    def rank(names: list[str], **_: Any) -> RankReport:
        questions.append(names)
        cards = [catalogue.load().find(card.id).name for card in published.article().gpu]
        return ranking({name: dict.fromkeys(cards, 40) for name in names})

    monkeypatch.setattr(api, "rank", rank)
    return questions


def compared(*arguments: Any, **options: Any) -> Comparison:
    """A table that must be a comparison."""
    found = table_sources.make_table("max-batch", *arguments, **options)
    assert isinstance(found, Comparison)
    return found


# ---- what agrees --------------------------------------------------------------------------------------


@given(st.sets(SIZES, min_size=1, max_size=6), SIZES, st.booleans())
def test_a_prediction_agrees_from_what_ran_to_below_the_next_tried(tried: set[int], predicted: int, none: bool) -> None:
    """Exactly the sizes that the measurement says nothing against agree, whichever the ladder."""
    ladder = tuple(sorted(tried))
    for place, ran in enumerate((0, *ladder) if none else ladder):
        above = comparison.next_tried(ladder, ran)
        assert above == (ladder[place + (not none)] if place + (not none) < len(ladder) else None)
        cell = comparison._cell(ladder, predicted, msgspec.structs.replace(figure(), max_batch_size=ran))
        contradicted = [
            size for size in ladder if (size <= ran) != (size <= predicted) and (above is None or size <= above)
        ]
        if ran in (0, *ladder) and predicted >= ladder[0]:
            assert (contradicted == []) == cell.agrees


def figure() -> Any:
    """A published figure."""
    return published.figures().figures[0][0]


@pytest.mark.parametrize(
    ("predicted", "agrees"), [(0, False), (31, False), (32, True), (63, True), (64, False), (1000, False)]
)
def test_bert_on_the_1080_ti(predicted: int, agrees: bool) -> None:
    """32 ran and 64 was the next that was tried."""
    report = ranking({"bert-base": {"GTX 1080 Ti": predicted}})
    lines = [line.name for line in published.figures().lines]
    found = published.figures()
    only = table_sources.tables.select(found, lines=[lines.index("BERT Base")], cards=[3])
    cell = comparison.compare(report, ["GTX 1080 Ti"], only).rows[0].cells[0]
    assert (32, 64, predicted, agrees) == (cell.published, cell.next_tried, cell.predicted, cell.agrees)


def test_where_nothing_ran_less_than_the_smallest_tried_agrees() -> None:
    """A star agrees with every prediction below the first batch size that was tried, of tokens too."""
    found = published.figures()
    line = [line.name for line in found.lines].index("Transformer Big")
    only = table_sources.tables.select(found, lines=[line], cards=[0])
    for size, agrees in ((0, True), (62, True), (63, False)):  # of 32 tokens: 1,984 and 2,016; 2,000 was tried
        report = ranking({"transformer-big": {"RTX 2060": size}}, items=32)
        cell = comparison.compare(report, ["RTX 2060"], only).rows[0].cells[0]
        assert (0, 2000, 32 * size, agrees) == (cell.published, cell.next_tried, cell.predicted, cell.agrees)


def test_without_a_larger_try_nothing_is_too_large_and_that_is_counted() -> None:
    """On the RTX 8000 BERT ran at 128, the largest that was tried: what agrees there is counted apart."""
    found = published.figures()
    line = [line.name for line in found.lines].index("BERT Base")
    only = table_sources.tables.select(found, lines=[line], cards=[7])
    name = catalogue.load().find(found.cards[7].gpu_id or "").name
    table = comparison.compare(ranking({"bert-base": {name: 9999}}), [name], only)
    assert (None, True) == (table.rows[0].cells[0].next_tried, table.rows[0].cells[0].agrees)
    assert (1, 1, 1) == (table.compared, table.agree, table.open_ended)


def test_a_card_without_kernels_is_predicted_by_its_memory(asked: list[list[str]]) -> None:
    """The GTX 1080 Ti stays in the table although today's PyTorch left it behind, and a note says so."""
    found = published.figures()
    only = table_sources.tables.select(found, lines=[0], cards=[3])
    table = comparison.compare(ranking({"nasnet-large": {}}, gone="GTX 1080 Ti"), ["GTX 1080 Ti"], only)
    assert "GTX 1080 Ti: predicted by its memory alone; no kernels" in table.notes


def test_ladders_that_are_not_known_are_those_that_ran() -> None:
    """Of Yolo v3 no notes are public: the sizes that ran on any card stand for those that were tried, and a note says so."""
    found = published.figures()
    (yolo,) = (line for line in found.lines if line.name == "Yolo v3")
    assert (2, 4, 8, 16) == yolo.tried
    assert yolo.tried_note
    assert [] == [line.name for line in found.lines if line.tried_note and line is not yolo]


# ---- when it is shown ---------------------------------------------------------------------------------


def test_the_set_of_2020_is_shown_beside_what_was_published(asked: list[list[str]]) -> None:
    """All twelve on the eight cards, without a word about the source."""
    table = compared(sets=["2020"])
    assert [list(sets.find("2020").workloads)] == asked
    assert [card.name for card in published.article().gpu] == [card.name for card in table.cards]
    assert [ENTRIES[row.workload].article for row in table.rows] == [row.published_as for row in table.rows]
    assert (96, sum(row.agree for row in table.rows)) == (table.compared, table.agree)


@pytest.mark.parametrize(
    "options", [{"source": "published"}, {"source": "predicted"}, {"power_of_two": True, "source": "published"}]
)
def test_a_named_source_is_shown_alone(options: dict[str, Any], asked: list[list[str]]) -> None:
    """--source says which figures, also for the set of 2020."""
    assert not isinstance(table_sources.make_table("max-batch", sets=["2020"], **options), Comparison)


def test_other_tables_and_sets_are_measured_as_ever(tmp_path: Path, asked: list[list[str]]) -> None:
    """Only largest batches of a set that the article has in whole are compared unasked."""
    for kind, options in (
        ("tiers", {"sets": ["2020"]}),
        ("max-batch", {"sets": ["language"]}),
        ("max-batch", {"workloads": ["bert-base"]}),
    ):
        assert not isinstance(table_sources.make_table(kind, **options), Comparison)  # type: ignore[arg-type]
    assert [] == asked


def test_workloads_are_named_as_in_the_zoo_or_as_in_the_article(asked: list[list[str]]) -> None:
    """Variants stand beside the row of the workload that they vary; of a set, what the article has."""
    table = compared(["bert base", "bert-base?attention=eager", "MT-DNN"], gpus=["2080 ti"], beside="published")
    assert [["bert-base", "bert-base?attention=eager", "mt-dnn"]] == asked
    assert ["BERT Base", "BERT Base", "MT-DNN"] == [row.published_as for row in table.rows]
    assert ["RTX 2080 Ti"] == [card.name for card in table.cards]
    asked.clear()
    compared(sets=["language"], beside="published")
    assert ["bert-base", "bert-finetune", "transformer-big", "conv-seq2seq", "unsup-mt", "mt-dnn"] == asked[0]
    asked.clear()
    compared(beside="published")
    assert 12 == len(asked[0])


@pytest.mark.parametrize(
    ("kind", "options", "part"),
    [
        ("tiers", {"beside": "published", "sets": ["2020"]}, "--beside is for `whichgpu tables max-batch`"),
        ("max-batch", {"beside": "measured"}, "only beside published ones"),
        ("max-batch", {"beside": "published", "source": "measured"}, "only predictions are shown beside others"),
        ("max-batch", {"beside": "published", "power_of_two": True}, "choose one"),
        ("max-batch", {"beside": "published", "results_file": Path("mine")}, "--results names measurements"),
        ("tiers", {"source": "published", "results_file": Path("mine")}, "--results names measurements"),
        ("max-batch", {"source": "predicted", "results_file": Path("mine")}, "--results names measurements"),
        ("max-batch", {"beside": "published", "workloads": ["resnet50"]}, "nothing is published of 'resnet50'"),
        ("max-batch", {"beside": "published", "sets": ["2026"]}, "nothing is published of any workload of the set"),
        ("max-batch", {"beside": "published", "gpus": ["H100 SXM"]}, "the table has no 'H100 SXM'"),
    ],
)
def test_mistakes_are_one_line(kind: str, options: dict[str, Any], part: str, asked: list[list[str]]) -> None:
    """What cannot be compared is refused before any work."""
    with pytest.raises(InputError, match=part.replace("(", r"\(")):
        table_sources.make_table(kind, **options)
    assert [] == asked


# ---- how it is shown ----------------------------------------------------------------------------------


def test_every_format_has_the_same_figures(asked: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Text, Markdown, CSV and JSON: what was published, what is predicted, whether they agree, and both sources."""
    shown = {}
    for layout in ("terminal", "markdown", "csv", "json"):
        assert 0 == run_command(["tables", "max-batch", "--set", "2020", "--format", layout])
        shown[layout] = capsys.readouterr().out
        words = " ".join(shown[layout].split())
        assert "Choosing the Best GPU for Deep Learning in 2020" in words.replace('""', '"')
        assert "torch 2.14.1" in words
    record = json.loads(shown["json"])
    cells = [cell for row in record["rows"] for cell in row["cells"]]
    assert record["agree"] == sum(cell["agrees"] for cell in cells)
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert [str(cell["published"] or "*") for cell in cells] == [row["published"] for row in rows]
    assert [str(cell["predicted"] or "*") for cell in cells] == [row["predicted"] for row in rows]
    assert [cell["agrees"] for cell in cells] == [row["agrees"] == "true" for row in rows]
    off = record["compared"] - record["agree"]
    assert off == shown["markdown"].count("/ **40**")
    assert off == shown["terminal"].count("/40!")
    assert all(len(line) <= 80 for line in shown["terminal"].splitlines())
    summary = f"{record['agree']} of 96 agree, {record['open_ended']} of them where nothing larger was tried"
    assert summary in shown["terminal"]
    assert summary in shown["markdown"]


def test_stars_and_marks_are_explained_where_they_are(asked: list[list[str]]) -> None:
    """What needs no legend has none."""
    table = compared(["bert-base"], gpus=["2080 ti"], beside="published")
    written = render.table_markdown(table)
    assert "32 / 40" in written
    assert "nothing that was tried" not in written
    assert "bold" not in written
