"""Sets of workloads: the zoo's by name, and a user's own from a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichgpu import sets, table_sources
from whichgpu.errors import InputError
from whichgpu.zoo import ENTRIES, SETS


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_the_entries_that_name_it(name: str) -> None:
    """The members of a set of the zoo are those entries whose row says so, in the table's order."""
    members = [entry for entry in ENTRIES if name in ENTRIES[entry].sets]
    assert members == list(sets.find(name).workloads)


def test_entries_name_known_sets() -> None:
    """No entry belongs to a set that nobody can ask for."""
    assert set() == {name for entry in ENTRIES.values() for name in entry.sets} - set(SETS)


def test_names_are_joined_once() -> None:
    """Workloads come first, then the sets' members; what is named twice is there once."""
    found = sets.expand(["resnet50", "timm:resnet18", "resnet50"], ["vision", "vision"])
    assert ["resnet50", "timm:resnet18"] == found[:2]
    assert {"resnet50", "timm:resnet18", *sets.find("vision").workloads} == set(found)
    assert len(set(found)) == len(found)


def write(folder: Path, text: str) -> str:
    """A set in a file."""
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_set_of_ones_own(tmp_path: Path) -> None:
    """A file's members are read as named on the command line, each once and in order, its files from its own folder."""
    (tmp_path / "train.py").touch()
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").touch()
    name = write(
        tmp_path,
        'title = "ours"\nworkloads = ["vit-base", "timm:resnet50?size=96&precision=fp16", "train.py", "hf:./llama", '
        '"vit-base", "train.py:setup"]\n',
    )
    found = sets.find(name)
    assert ("ours", name) == (found.title, found.name)
    assert (
        "vit-base",
        "timm:resnet50?precision=fp16&size=96",
        f"{tmp_path}/train.py:setup",
        f"hf:{tmp_path}/./llama",
    ) == found.workloads


def test_a_set_beside_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set in another folder, named by a relative path, finds the files beside it."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "train.py").touch()
    write(tmp_path / "lab", 'workloads = ["train.py:step"]')
    monkeypatch.chdir(tmp_path)
    assert ("lab/train.py:step",) == sets.find("lab/mine.toml").workloads


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("workloads = [", "not a TOML file"),
        ("", "missing required field `workloads`"),
        ("workloads = []", "the set has no workload"),
        ("workloads = 'resnet50'", "Expected `array`, got `str`"),
        ("workloads = [1]", "Expected `str`, got `int`"),
        ("workloads = ['resnet50']\nworkload = []", "unknown field `workload`"),
        ("workloads = ['resnet5']", "did you mean resnet50"),
        ("workloads = ['gone.py']", "no such file"),
        ("workloads = ['hf:./gone']", "no config.json there"),
        ("workloads = ['resnet50?size']\ntitle = 3", "Expected `str`, got `int`"),
    ],
)
def test_a_bad_set_is_told_in_one_line(text: str, part: str, tmp_path: Path) -> None:
    """What is wrong in a file is told in one line that names the file."""
    name = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        sets.find(name)
    assert str(caught.value).startswith(f"{name}: ")
    assert part in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


def test_a_set_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are told, not raised as they come."""
    (tmp_path / "mine.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(InputError, match="not a TOML file"):
        sets.find(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(("name", "part"), [("gone.toml", "No such file"), ("./", "Is a directory")])
def test_a_file_that_cannot_be_read(name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file or a folder is told with the reason."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=part):
        sets.find(name)


def test_an_unknown_set_names_those_there_are() -> None:
    """An unknown name is answered with every set there is, and that a file will do."""
    with pytest.raises(InputError, match=r"no set '2021'; say 2020, 2026, .*\.toml"):
        sets.find("2021")


def test_nothing_named_is_told() -> None:
    """Without any workload there is nothing to do, and the error shows both ways to name some."""
    with pytest.raises(InputError, match="name at least one workload, or a set"):
        sets.expand([], [])


def test_published_tables_know_the_set_of_2020() -> None:
    """The article's rows of the zoo's models of 2020 are shown, and nothing else."""
    table = table_sources.make_table("max-batch", sets=["2020"], source="published")
    rows = {ENTRIES[name].article for name in sets.find("2020").workloads}
    assert rows == {row.workload for row in table.rows}  # type: ignore[union-attr]


def test_a_set_without_figures_is_told(tmp_path: Path) -> None:
    """A set of which the source has nothing is an error that names its members; of others, what there is, is shown."""
    name = write(tmp_path, 'workloads = ["timm:resnet18", "resnet50"]')
    with pytest.raises(
        InputError, match="nothing is published of any workload of the set; it has timm:resnet18, resnet50"
    ):
        table_sources.make_table("max-batch", sets=[name], source="published")
    both = table_sources.make_table("max-batch", ["bert-base"], sets=[name], source="published")
    assert ["BERT Base"] == [row.workload for row in both.rows]  # type: ignore[union-attr]
