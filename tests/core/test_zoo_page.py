"""docs/zoo.md and docs/2020.md: what they say follows from the data and the options that they name."""

from __future__ import annotations

import re

import pytest

import compare_2020
import compare_zoo
from whichgpu import workload
from whichgpu.zoo import ENTRIES


def test_the_page_is_up_to_date() -> None:
    """docs/zoo.md is generated; else run tools/compare_zoo.py again."""
    assert compare_zoo.page() == compare_zoo.PAGE.read_text(encoding="utf-8")


def test_every_workload_of_both_sets_is_measured() -> None:
    """Each workload of the two sets ran; what is not predicted is said, and every prediction is of a measurement."""
    wanted = {name for name, entry in ENTRIES.items() if {"2020", "2026"} & set(entry.sets)}
    ran = {(row["name"], row["batch_size"]) for row in compare_zoo.rows("measured.jsonl") if row["kind"] == "ok"}
    predicted = [(row["name"], row["batch_size"]) for row in compare_zoo.rows("predicted.jsonl")]
    assert wanted == {name.partition("?")[0] for name, _ in ran}
    assert set() == set(predicted) - ran
    assert len(set(predicted)) == len(predicted)
    said = re.findall(r"^- `(.+)` at ([\d,]+): not predicted", compare_zoo.page(), re.MULTILINE)
    assert {(name, f"{size:,}") for name, size in ran - set(predicted)} == set(said)


def test_misses_are_shown() -> None:
    """What is more than 5 % off or outside its interval is bold in the table and listed below it."""
    page = compare_zoo.page()
    missed = [one for one in compare_zoo.points() if not one.inside or abs(one.reserved_error) > 0.05]
    listed = re.findall(r"^- `(.+)` at ([\d,]+): reserved", page, re.MULTILINE)
    assert {(one.workload, f"{one.batch_size:,}") for one in missed} == set(listed)
    assert sum(not one.inside for one in missed) == page.count("| **outside** |")


def test_the_page_of_2020_shows_every_workload_of_the_set() -> None:
    """docs/2020.md has a row for each workload of the set, and a third figure in those that have the code of 2019."""
    page = compare_2020.PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` (\|.*)$", page, re.MULTILINE))
    members = [name for name, entry in ENTRIES.items() if "2020" in entry.sets]
    assert set() == set(members) - set(rows)
    assert {name for name in members if not rows[name].endswith("| = |")} == set(compare_2020.OF_2019)


@pytest.mark.parametrize("name", compare_2020.VARIANTS)
def test_the_page_of_2020_shows_every_variant(name: str) -> None:
    """docs/2020.md has a row for each variant that tools/compare_2020.py predicts, and the variant can be named."""
    assert name == workload.parse(name).text
    assert f"| `{name}` |" in compare_2020.PAGE.read_text(encoding="utf-8")
