"""Charts: the records that they show, labels that do not overlap, pictures, bars, and mistakes in one line."""

from __future__ import annotations

import io
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_reports import rank_report
from hypothesis import given
from hypothesis import strategies as st

from whichgpu import api, render
from whichgpu.advice import RankReport, RankRow
from whichgpu.charts import figure, pictures, records
from whichgpu.charts.batch import batch_figure
from whichgpu.charts.labels import Anchor, Box, places
from whichgpu.charts.relative import relative_figure
from whichgpu.charts.roofline import elided
from whichgpu.charts.value import value_figure
from whichgpu.charts.words import title_of
from whichgpu.cli import main
from whichgpu.errors import InputError
from whichgpu.render.common import bar

replace = msgspec.structs.replace


def ratios(row: RankRow) -> dict[str, float | None]:
    """Made-up speeds relative to the baseline's, where there is a speed."""
    return {name: found.samples_per_s / 100 if found else None for name, found in row.speed.items()}


def report(*workloads: str, **changes: Any) -> RankReport:
    """A ranking of some of the made-up workloads; of all cards."""
    made = rank_report()
    kept = workloads or made.workloads
    fields = ("max_batch_size", "max_batch_size_safe", "speed")
    rows = [
        replace(row, **{field: {name: getattr(row, field)[name] for name in kept} for field in fields})
        for row in made.gpus
    ]
    rows = [replace(row, relative_speed=ratios(row)) for row in rows]
    return replace(made, workloads=kept, gpus=tuple(rows), **changes)


# ---- the records --------------------------------------------------------------------------------------------


def test_no_card_of_the_front_is_beaten_and_every_other_one_is() -> None:
    """With as much memory, more value; with more memory, as much value."""
    chart = records.value_chart(report("resnet50"))
    today = [point for point in chart.points if point.current]
    assert any(point.front for point in today)
    assert not all(point.front for point in today)
    for point in today:
        beaten = [
            other
            for other in today
            if (other.memory_gb > point.memory_gb and other.value >= point.value)
            or (other.memory_gb >= point.memory_gb and other.value > point.value)
        ]
        assert point.front == (not beaten)


def without_speed(made: RankReport, gpu: str, **changes: Any) -> RankReport:
    """A ranking in which nothing is known of one card's speed."""
    names = made.workloads
    blank = {
        "speed": dict.fromkeys(names),
        "relative_speed": dict.fromkeys(names),
        "speed_missing": dict.fromkeys(names, f"{gpu}: its fp32_tflops are unknown, so that no speed can be predicted"),
        **changes,
    }
    return replace(made, gpus=tuple(replace(row, **blank) if row.gpu == gpu else row for row in made.gpus))


def test_a_card_that_was_named_and_is_not_shown_is_told_with_the_reason() -> None:
    """Whether its speed is unknown or it is not supported, in every chart of speeds."""
    unknown = without_speed(report("resnet50"), "RTX 2070")
    old = without_speed(report("resnet50"), "RTX 2070", supported=False, notes=("PyTorch has no kernels for it",))
    for made, words in ((unknown, "its fp32_tflops are unknown"), (old, "PyTorch has no kernels for it")):
        for chart in (records.relative_chart(made, named=True), records.value_chart(made, named=True)):
            assert any(note.startswith(f"RTX 2070 is left out: {words}") for note in chart.notes)
        alone = replace(made, gpus=tuple(row for row in made.gpus if row.gpu == "RTX 2070"))
        with pytest.raises(InputError, match=f"RTX 2070 is left out: {words}"):
            records.value_chart(alone, named=True)


def test_the_value_of_one_workload_is_its_samples_for_the_money() -> None:
    """To buy a second's samples for 1,000 USD; rented the samples for 1 USD. Intervals are those of the speed."""
    made = report("resnet50")
    (row,) = [row for row in made.gpus if row.gpu == "RTX 3090"]
    found = row.speed["resnet50"]
    assert found is not None
    bought, rented = (
        next(point for point in records.value_chart(made, price).points if point.gpu == "RTX 3090")
        for price in ("buy", "rent")
    )
    assert pytest.approx(found.samples_per_s / 890 * 1000) == bought.value
    assert pytest.approx(found.samples_per_s * 3600 / 0.16) == rented.value
    for point in (bought, rented):
        assert pytest.approx(found.samples_per_s_low / found.samples_per_s) == point.low / point.value
        assert pytest.approx(found.samples_per_s_high / found.samples_per_s) == point.high / point.value


def test_an_old_price_is_no_value_of_today() -> None:
    """It is left out and counted, and shown beside others only where its card was named; never on the front."""
    made = report("resnet50")
    old = tuple(
        replace(row, buy=replace(row.buy, condition="launch", stale=True, usd=1.0))
        if row.gpu == "RTX 2070" and row.buy
        else row
        for row in made.gpus
    )
    shown = records.value_chart(replace(made, gpus=old))
    assert "RTX 2070" not in [point.gpu for point in shown.points]
    assert any("1 card is left out with an old price" in note for note in shown.notes)
    (point,) = [one for one in records.value_chart(replace(made, gpus=old), named=True).points if one.gpu == "RTX 2070"]
    assert (False, False) == (point.current, point.front)


def test_several_workloads_are_geometric_means_of_ratios() -> None:
    """Of cards that train all of them; the baseline is 1 by itself."""
    made = report()
    chart = records.value_chart(made)
    (row,) = [row for row in made.gpus if row.gpu == "RTX 3090"]
    (point,) = [point for point in chart.points if point.gpu == "RTX 3090"]
    first, second = (row.relative_speed[name] for name in made.workloads)
    assert first is not None
    assert second is not None
    assert pytest.approx((first * second) ** 0.5 / 890 * 1000) == point.value
    assert "RTX 2060" not in [point.gpu for point in chart.points]  # gpt2 does not fit there
    assert "Quadro RTX 8000 = 1" in chart.unit


def test_bars_are_in_order_and_a_card_that_does_not_train_it_has_none() -> None:
    """The fastest first; what does not fit on a card is a gap and no zero."""
    chart = records.relative_chart(report(), named=True)
    assert ("resnet50", "gpt2") == chart.series
    (gap,) = [row for row in chart.rows if row.gpu == "RTX 2060"]
    assert gap.bars[0] is not None
    assert gap.bars[1] is None
    whole = [row.bars for row in chart.rows if None not in row.bars]
    means = [one.value * other.value for one, other in whole if one and other]
    assert sorted(means, reverse=True) == means
    assert len(whole) < len(chart.rows)
    for bars in whole:
        assert all(one.low <= one.value <= one.high for one in bars if one is not None)


def test_a_ratio_of_measured_speeds_is_measured() -> None:
    """Where only one of both is, it is predicted by predicted."""

    def measured(made: RankReport, *cards: str) -> RankReport:
        rows = []
        for row in made.gpus:
            found = row.speed["resnet50"]
            changed = {"resnet50": replace(found, basis="measured", samples_per_s=500.0)} if found else row.speed
            rows.append(replace(row, speed=changed) if row.gpu in cards else row)
        return replace(made, gpus=tuple(rows))

    def basis(*cards: str) -> str:
        chart = records.relative_chart(measured(report("resnet50"), *cards), named=True)
        (one,) = next(row.bars for row in chart.rows if row.gpu == "RTX 3090")
        assert one is not None
        return one.basis

    assert "measured" == basis("RTX 3090", "Quadro RTX 8000")
    assert "predicted" == basis("RTX 3090")


def test_many_workloads_are_image_and_language_models() -> None:
    """Up to four are told apart by themselves."""
    few = ["resnet50", "bert-base", "timm:resnet18", "hf:gpt2"]
    assert few == [name for name, _ in records.series_of(few)]
    many = dict(
        records.series_of(
            ["nasnet-large", "bert-base", "timm:resnet18", "mine.py:setup", "bert-finetune?precision=bf16"]
        )
    )
    assert {
        "image models": ("nasnet-large", "timm:resnet18"),
        "language models": ("bert-base", "bert-finetune?precision=bf16"),
        "other models": ("mine.py:setup",),
    } == many


def test_curves_of_batches_are_what_ranks_say() -> None:
    """Of cards with as much memory the one that holds least; sizes on which it does not fit are no point."""
    made = report()
    larger = {"resnet50": 230, "gpt2": 90}
    rows = tuple(replace(row, max_batch_size=larger) if row.gpu == "RTX 4090" else row for row in made.gpus)
    chart = records.batch_chart(replace(made, gpus=rows))
    curves = {one.name: {point.memory_gb: point for point in one.points} for one in chart.series}
    assert 210 == curves["resnet50"][24].value
    assert 189 == curves["resnet50"][24].low
    assert ("RTX 3090", "RTX 4090") == curves["resnet50"][24].cards
    assert 6 in curves["resnet50"]
    assert 6 not in curves["gpt2"]
    for points in curves.values():
        assert all(point.low <= point.value for point in points.values())


@pytest.mark.parametrize("kind", ["value", "relative"])
def test_a_baseline_without_a_speed_is_refused(kind: str) -> None:
    """One line that says what to change."""
    with pytest.raises(InputError, match="another --baseline"):
        _ = (
            records.value_chart(report(baseline=None))
            if kind == "value"
            else records.relative_chart(report(baseline=None), named=False)
        )


def test_a_chart_of_nothing_is_refused() -> None:
    """No card with a price; no card that trains it."""
    made = report("resnet50")
    unpriced = tuple(replace(row, buy=None) for row in made.gpus)
    with pytest.raises(InputError, match="price to buy"):
        records.value_chart(replace(made, gpus=unpriced))
    none = tuple(replace(row, max_batch_size={"resnet50": 0}) for row in made.gpus)
    with pytest.raises(InputError, match="trains any"):
        records.batch_chart(replace(made, gpus=none))


# ---- labels ----------------------------------------------------------------------------------------------------

ANCHORS = st.lists(
    st.builds(
        Anchor,
        st.floats(0, 800),
        st.floats(0, 600),
        st.floats(1, 12),
        st.sampled_from([0.0, 30.0, 90.0]),
        st.just(14.0),
    ),
    max_size=40,
)


@given(ANCHORS)
def test_labels_cover_no_label_and_no_mark(anchors: list[Anchor]) -> None:
    """And stay inside; one without room has no place, and the first in line has one if anything is free."""
    inside = Box(0, 0, 800, 600)
    found = [box for box in places(anchors, inside) if box is not None]
    marks = [Box(one.x, one.y, one.x, one.y).grown(one.radius) for one in anchors]
    assert not any(one.meets(other) for one, other in combinations(found, 2))
    assert not any(box.meets(mark) for box in found for mark in marks)
    assert all(inside.holds(box) for box in found)


def test_a_label_stands_beside_its_mark() -> None:
    """To the right of it, where nothing is in the way."""
    (box,) = places([Anchor(100, 100, 4, 50, 10)], Box(0, 0, 400, 400))
    assert box is not None
    assert 0 < box.left - 104 < 5
    assert 95 == box.bottom


# ---- pictures --------------------------------------------------------------------------------------------------


def charts() -> list[records.Chart]:
    """One of each kind, of one workload and of two."""
    both, one = report(), report("resnet50")
    return [
        records.value_chart(both),
        records.value_chart(one, "rent", named=True),
        records.relative_chart(both, named=True),
        records.batch_chart(both),
        records.batch_chart(one),
    ]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_a_whole_file(tmp_path: Path, number: int, ending: str) -> None:
    """Of its kind, and nothing else is left behind; the same chart is the same file."""
    chart, path = charts()[number], tmp_path / f"a.{ending}"
    pictures.draw(chart, path)
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    pictures.draw(chart, path)
    assert first == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("number", range(5))
def test_words_in_a_picture_do_not_overlap_nor_leave_it(number: int) -> None:
    """Labels, ticks, titles, legend and the source line."""
    chart = charts()[number]
    with figure.style():
        if isinstance(chart, records.ValueChart):
            drawn = value_figure(chart)
        elif isinstance(chart, records.RelativeChart):
            drawn = relative_figure(chart)
        else:
            drawn = batch_figure(chart)
        drawn.canvas.draw()
        from matplotlib.text import Text

        words = [one for one in drawn.findobj(Text) if one.get_visible() and one.get_text().strip()]
        # ticks outside of the axes are never drawn
        boxes = {
            one.get_text(): Box(*one.get_window_extent().extents) for one in words if one.get_window_extent().width
        }
    whole = Box(*drawn.bbox.extents)
    shown = {said: box for said, box in boxes.items() if whole.meets(box)}
    assert any(chart.source[:20] in said for said in shown)
    assert any(title_of(chart) in said for said in shown)
    assert [] == [said for said, box in shown.items() if not whole.holds(box)]
    touching = [(a, b) for (a, one), (b, other) in combinations(shown.items(), 2) if one.meets(other)]
    assert [] == touching


def test_measured_and_predicted_points_have_marks_of_their_own() -> None:
    """And a legend that names both."""
    made = report("resnet50")
    rows = tuple(
        replace(row, speed={"resnet50": replace(row.speed["resnet50"], basis="measured")})
        if row.gpu == "RTX 3090"
        else row
        for row in made.gpus
    )
    with figure.style():
        drawn = value_figure(records.value_chart(replace(made, gpus=rows)))
        from matplotlib.text import Text

        said = {one.get_text() for one in drawn.findobj(Text)}
    assert {"measured", "predicted"} <= said


def test_drawing_leaves_matplotlib_as_it_is() -> None:
    """Whoever draws in the same process keeps their own style."""
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with figure.style():
        relative_figure(records.relative_chart(report(), named=True))
    assert before == dict(mpl.rcParams)


def test_long_paths_lose_their_beginning() -> None:
    """The end says most."""
    assert "...fghij" == elided("abcdefghij", 8)
    assert "short" == elided("short", 8)


# ---- bars in a terminal -----------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_is_as_long_as_its_share(share: float, width: int) -> None:
    """To an eighth of a letter; what is more than nothing is seen."""
    drawn = bar(share, width, least=1)
    assert abs(len(drawn) - share * width) <= 1.0
    assert (share > 0) == bool(drawn)
    assert set(bar(share, width, ascii_only=True)) <= {"#"}


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("width", [80, 120])
def test_bars_fit_the_terminal(number: int, width: int) -> None:
    """Every line; each card or size of memory is there, and the source."""
    chart, shown = charts()[number], io.StringIO()
    console = render.make_console(shown, width)
    with render.trimmed(console):
        render.print_chart(chart, console)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "█" in shown.getvalue()
    assert chart.source.split()[0] in shown.getvalue()


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What `rank` is asked for, which answers with the made-up ranking."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def rank(names: Any, **options: Any) -> RankReport:
        calls.append((names, options))
        return report(*(name for name in names if name in ("resnet50", "gpt2")))

    monkeypatch.setattr(api, "rank", rank)
    return calls


def run(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as stopped:
        main(["chart", *arguments])
    return int(stopped.value.code or 0)


def test_the_baseline_stands_in_a_chart_of_ratios(asked: list[tuple[Any, dict[str, Any]]]) -> None:
    """Whatever cards are named; one workload's value needs none."""
    assert 0 == run("relative", "resnet50", "--gpu", "RTX 3090")
    assert 0 == run("value", "resnet50", "--gpu", "RTX 3090")
    assert 0 == run("batch", "resnet50", "gpt2", "--gpu", "RTX 3090")
    assert 0 == run("value", "resnet50", "gpt2", "--baseline", "T4")
    assert [["RTX 3090", "Quadro RTX 8000"], ["RTX 3090"], ["RTX 3090"], None] == [one["gpus"] for _, one in asked]
    assert ["Quadro RTX 8000"] * 3 + ["T4"] == [one["baseline"] for _, one in asked]


def test_a_picture_is_named_and_json_is_the_record(
    asked: list[tuple[Any, dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both can be had at once."""
    assert 0 == run("batch", "resnet50", "--out", str(tmp_path / "a.svg"))
    assert f"Drawn into {tmp_path / 'a.svg'}" in " ".join(capsys.readouterr().out.split())
    assert 0 == run("batch", "resnet50", "--out", str(tmp_path / "a.svg"), "--json")
    found = msgspec.json.decode(capsys.readouterr().out, type=records.BatchChart)
    assert records.batch_chart(report("resnet50")) == found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bars", "resnet50"], "say value, relative or batch"),
        (["value", "resnet50", "--price", "free"], "say buy or rent"),
        (["batch", "resnet50", "--price", "rent"], "is for `whichgpu chart value`"),
        (["value", "resnet50", "--out", "a.jpg"], "ends in .png or .svg"),
        (["value", "resnet50", "--out", "no/such/folder/a.png"], "make it first"),
        (["value", "resnet50", "--gpu", "MI300X"], "has no CUDA"),
        (["value", "resnet50", "--gpu", "RTX 9999"], "no card is called"),
        (["value"], "name at least one workload"),
        (["value", "--set", "1999"], "there is no set"),
    ],
)
def test_mistakes_are_told_before_any_work(
    asked: list[tuple[Any, dict[str, Any]]], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that says what to do, and no card is ranked for it."""
    assert 2 == run(*arguments)
    said = capsys.readouterr().err
    assert words in said
    assert 1 == said.count("\n")
    assert [] == asked


def test_a_missing_matplotlib_names_the_extra(
    asked: list[tuple[Any, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bars need none."""
    monkeypatch.setattr(figure, "find_spec", lambda name: None)
    assert 2 == run("value", "resnet50", "--out", str(tmp_path / "a.png"))
    said = capsys.readouterr().err
    assert "pip install 'whichgpu[charts]'" in said
    assert 1 == said.count("\n")
    assert 0 == run("value", "resnet50")
    assert [] == list(tmp_path.iterdir())
