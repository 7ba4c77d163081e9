"""The file of measurements: nothing that was told of is lost, and every bad file is one line."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_measurements import GIB, environment, measurement, search
from hypothesis import given
from hypothesis import strategies as st

from whichgpu import results
from whichgpu.errors import ResultsError
from whichgpu.results import Measurement, Store

FORK = multiprocessing.get_context("fork")  # a child needs nothing but what is loaded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file of results may be made."""
    return tmp_path / "results.sqlite"


def kept(path: Path) -> list[Measurement]:
    """Everything in a file."""
    with Store(path, read_only=True) as store:
        return store.find()


def refused(path: Path, **options: Any) -> str:
    """The one line that a file is refused with."""
    with pytest.raises(ResultsError) as caught, Store(path, **options):
        pass
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


# ---- what goes in comes out ---------------------------------------------------------------------------


def test_a_measurement_comes_back_as_it_was(path: Path) -> None:
    """All fields, the environment included, come back equal, after reopening too."""
    made = [
        measurement(throttled=("power", "heat"), memory_limit_bytes=8 * GIB),
        measurement(65, "out_of_memory", cudnn=None, gpu_id=None, libraries={}, flags={"a": True, "b": "x"}),
        measurement(1, "crash", message="Zeile 1\nline 2", converged=False),
    ]
    with Store(path) as store:
        assert [1, 2, 3] == [store.add(one) for one in made]
        assert made == store.find()
    assert made == kept(path)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
figures = st.none() | st.floats(0, 1e12)


@given(
    workload=texts,
    batch_size=st.integers(1, 2**40),
    outcome=st.sampled_from(results.OUTCOMES),
    message=st.none() | texts,
    power_w=figures,
    temperature_c=st.none() | st.floats(-50, 150),
    converged=st.none() | st.booleans(),
    libraries=st.dictionaries(texts, texts, max_size=3),
    flags=st.dictionaries(texts, st.booleans() | texts, max_size=3),
)
def test_whatever_a_measurement_says_comes_back(tmp_path_factory: pytest.TempPathFactory, **fields: Any) -> None:
    """No text and no figure is changed on its way through the file."""
    made = measurement(**{"timed": False, **fields})
    with Store(tmp_path_factory.mktemp("any") / "results.sqlite") as store:
        store.add(made)
        assert [made] == store.find()


def test_environments_are_kept_once_each_and_never_mixed(path: Path) -> None:
    """Equal environments share a row; one that differs in anything has its own."""
    changes: list[dict[str, Any]] = [{}, {}, {"driver": "580"}, {"flags": {"tf32_matmul": True}}, {"libraries": {}}]
    with Store(path) as store:
        store.add_all(measurement(**change) for change in changes)
        assert [environment(**change) for change in changes] == [one.environment for one in store.find()]
    with sqlite3.connect(path) as database:
        assert (4,) == database.execute("SELECT COUNT(*) FROM environment").fetchone()
    database.close()


def test_find_looks_at_what_is_asked_for(path: Path) -> None:
    """Each filter holds by itself and together with others; none means all."""
    made = [
        measurement(1),
        measurement(2, workload="gpt2"),
        measurement(3, "out_of_memory"),
        measurement(4, memory_limit_bytes=8 * GIB),
        measurement(5, gpu="Other card", gpu_id=None, origin="lab"),
    ]
    with Store(path) as store:
        store.add_all(made)

        def found(**asked: Any) -> list[int]:
            return [one.batch_size for one in store.find(**asked)]

        assert [1, 2, 3, 4, 5] == found()
        assert [2] == found(workloads=["gpt2", "no such"])
        assert [3] == found(outcomes=["out_of_memory"])
        assert [4] == found(memory_limit_bytes=8 * GIB)
        assert [5] == found(origin="lab")
        assert [1, 2, 3, 4] == found(gpus=["h200-sxm-141gb"]) == found(gpus=["NVIDIA H200"])
        assert [1, 4] == found(workloads=["resnet50"], outcomes=["ok"], origin="local")
        assert [] == found(workloads=[])


def test_the_largest_batch_is_looked_up_in_one_environment(path: Path) -> None:
    """Only the same source, environment and limit count, and what did both counts as too large."""
    with Store(path) as store:
        assert (0, None) == store.largest("a1b2c3d4e5f6", environment(), None)
        store.add_all([*search(64), measurement(96, "crash"), *search(200, driver="580")])
        store.add_all(search(32, memory_limit_bytes=8 * GIB))
        store.add_all(search(500, workload_hash="other"))
        assert (64, 65) == store.largest("a1b2c3d4e5f6", environment(), None)
        assert (32, 33) == store.largest("a1b2c3d4e5f6", environment(), 8 * GIB)
        assert (0, None) == store.largest("a1b2c3d4e5f6", environment(), 9 * GIB)
        store.add(measurement(64, "out_of_memory"))
        store.add(measurement(60))
        assert (60, 64) == store.largest("a1b2c3d4e5f6", environment(), None)


def test_new_rows_are_added_once(path: Path) -> None:
    """Adding what is there already adds nothing, whether it comes twice in one go or later."""
    with Store(path) as store:
        assert [1, 2] == store.add_new([measurement(1), measurement(1), measurement(2)])
        assert [3] == store.add_new([measurement(2), measurement(2, origin="lab")])
        assert 3 == len(store.find())


def test_what_cannot_be_read_again_is_not_written(path: Path) -> None:
    """A record with a value that makes no sense is refused, and so are its neighbours."""
    bad = msgspec.structs.replace(measurement(), batch_size=0)
    with Store(path) as store:
        with pytest.raises(ResultsError, match="batch_size"):
            store.add_all([measurement(), bad])
        assert [] == store.find()


def test_rows_refer_to_an_environment_that_is_there(path: Path) -> None:
    """Foreign keys are on: an environment that measurements stand in cannot be removed."""
    with Store(path) as store:
        store.add(measurement())
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            store._database.execute("DELETE FROM environment")


def test_the_file_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """$WHICHGPU_RESULTS names the file; without it, it lies in the user's data folder."""
    monkeypatch.setenv("WHICHGPU_RESULTS", "~/lab.sqlite")
    assert Path.home() / "lab.sqlite" == results.default_path()
    monkeypatch.delenv("WHICHGPU_RESULTS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert Path("/data/whichgpu/results.sqlite") == results.default_path()


# ---- several processes, and the end of them -----------------------------------------------------------


def _write(path: Path, first: int, count: int) -> None:
    with Store(path) as store:
        for number in range(first, first + count):
            store.add(measurement(number))


def _write_together(barrier: Any, *arguments: Any) -> None:
    barrier.wait(60)
    _write(*arguments)


@pytest.mark.parametrize("time", range(8))  # what goes wrong at once goes wrong now and then
def test_writers_at_once_lose_nothing(time: int, path: Path) -> None:
    """Four processes that make the file and write at once leave every row, each with its environment."""
    barrier = FORK.Barrier(4)
    writers = [FORK.Process(target=_write_together, args=(barrier, path, 1 + 100 * part, 10)) for part in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [0, 0, 0, 0] == [writer.exitcode for writer in writers]
    found = kept(path)
    assert sorted(1 + 100 * part + row for part in range(4) for row in range(10)) == sorted(m.batch_size for m in found)
    assert all(environment() == one.environment for one in found)


def _write_and_tell(path: Path, told: Connection) -> None:
    with Store(path) as store:
        for number in range(1, 100_000):
            store.add(measurement(number))
            told.send(number)


def test_a_killed_writer_loses_at_most_the_row_in_flight(path: Path) -> None:
    """After kill -9 every row that was told of is there, at most one more, and the file can be written again."""
    here, there = FORK.Pipe(duplex=False)
    writer = FORK.Process(target=_write_and_tell, args=(path, there))
    writer.start()
    there.close()
    told = 0
    while told < 20:
        told = here.recv()
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(60)
    assert -signal.SIGKILL == writer.exitcode
    try:
        while True:
            told = here.recv()
    except EOFError:
        pass
    sizes = [one.batch_size for one in kept(path)]
    assert list(range(1, len(sizes) + 1)) == sizes
    assert told <= len(sizes) <= told + 1
    _write(path, 500_000, 1)
    assert len(sizes) + 1 == len(kept(path))


# ---- versions -----------------------------------------------------------------------------------------


def old_file(path: Path, version: int) -> None:
    """A file as an earlier version left it, with one row."""
    database = sqlite3.connect(path, isolation_level=None)
    for upgrade in results.UPGRADES[:version]:
        upgrade(database)
    database.execute(f"PRAGMA application_id = {results.APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {version}")
    around = msgspec.structs.asdict(environment()) | {"libraries": "{}", "flags": "{}", "key": "k"}
    row = dict.fromkeys(("step_low_s", "step_high_s", "environment_id")) | msgspec.structs.asdict(
        measurement(timed=False)
    )
    row |= {"environment_id": 1, "throttled": "[]"}
    del row["environment"]
    for table, values in (("environment", around), ("measurement", row)):
        marks = ", ".join("?" * len(values))
        database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))
    database.close()


def schema(path: Path) -> tuple[int, set[str]]:
    """The version of a file and the names in its schema."""
    database = sqlite3.connect(path)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")}
    database.close()
    return version, names


OLD = [measurement(timed=False, libraries={}, flags={})]


def test_an_older_file_is_upgraded_with_its_rows(path: Path) -> None:
    """A file of version 1 is brought to the present one step by step; its rows stay, and new ones go in."""
    old_file(path, 1)
    assert (1, {"environment", "measurement"}) == schema(path)
    with Store(path) as store:
        assert OLD == store.find()
        store.add(measurement(7))
    version, names = schema(path)
    assert results.VERSION == version
    assert {"environment", "measurement", "measurement_search", "measurement_workload"} == names
    assert [*OLD, measurement(7)] == kept(path)


def test_an_upgraded_file_is_like_a_new_one(tmp_path: Path) -> None:
    """Which version a file began with makes no difference to its schema."""
    Store(tmp_path / "new").close()
    for version in range(1, results.VERSION):
        old_file(tmp_path / str(version), version)
        Store(tmp_path / str(version)).close()
        assert schema(tmp_path / "new") == schema(tmp_path / str(version))


def test_reading_leaves_an_older_file_as_it_is(path: Path) -> None:
    """Whoever only reads gets the rows of an older file, and does not change it."""
    old_file(path, 1)
    before = path.read_bytes()
    assert OLD == kept(path)
    assert before == path.read_bytes()


def test_upgrades_are_steps_and_a_failed_one_leaves_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each missing step runs once, in order; where one fails the file is as before, in its old version."""
    Store(path).close()
    ran: list[str] = []

    def add_column(database: sqlite3.Connection) -> None:
        ran.append("column")
        database.execute("ALTER TABLE measurement ADD COLUMN fan_percent REAL")

    def fail(database: sqlite3.Connection) -> None:
        ran.append("fail")
        raise sqlite3.OperationalError("made-up failure")

    present = results.UPGRADES
    monkeypatch.setattr(results, "VERSION", len(present) + 2)
    monkeypatch.setattr(results, "UPGRADES", (*present, add_column, fail))
    assert "made-up failure" in refused(path)
    assert ["column", "fail"] == ran
    assert len(present) == schema(path)[0]
    monkeypatch.setattr(results, "UPGRADES", (*present, add_column, lambda _: ran.append("fine")))
    Store(path).close()
    Store(path).close()
    assert ["column", "fail", "column", "fine"] == ran
    assert len(present) + 2 == schema(path)[0]


def test_the_schema_is_documented(path: Path) -> None:
    """docs/results.md has the version and, in order, every column of each table with its type."""
    Store(path).close()
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"\nVersion {results.VERSION}. " in page
    database = sqlite3.connect(path)
    for table in ("measurement", "environment"):
        (section,) = re.findall(rf"^### {table}\n(.*?)(?=^#)", page, re.MULTILINE | re.DOTALL)
        columns = [(name, kind) for _, name, kind, *_ in database.execute(f"PRAGMA table_info({table})")]
        assert columns == re.findall(r"^\| `(\w+)` \| ([A-Z]+) \|", section, re.MULTILINE)
    database.close()


# ---- files that cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_file_is_refused_and_left_alone(path: Path, read_only: bool) -> None:
    """A file of a later whichgpu is named as such, with both versions, and not changed."""
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    assert "newer whichgpu (format 99" in refused(path, read_only=read_only)
    assert 99 == schema(path)[0]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_not_sqlite_is_refused(path: Path, read_only: bool) -> None:
    """Some other file is named as such and not changed."""
    path.write_text("workload,batch_size\n" * 100)
    assert "is not a file of results" in refused(path, read_only=read_only)
    assert "workload,batch_size\n" * 100 == path.read_text()


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    """A SQLite file of something else keeps its tables, its version and its journal."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE history (url TEXT)")
    database.close()
    before = path.read_bytes()
    assert "another program's" in refused(path)
    assert before == path.read_bytes()


def test_a_locked_file_is_waited_for_and_then_named(path: Path) -> None:
    """Somebody who keeps the file locked is waited for no longer than was said."""
    Store(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    assert "locked by another program" in refused(path, timeout_s=0.2)
    assert 0.2 <= time.monotonic() - started < 20
    other.execute("ROLLBACK")
    other.close()
    Store(path, timeout_s=0.2).close()


def test_a_folder_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    """What is no file, or is not there to be read, is named."""
    for read_only in (False, True):
        assert "is a folder" in refused(tmp_path, read_only=read_only)
    assert "cannot be opened" in refused(tmp_path / "no such", read_only=True)
    assert not (tmp_path / "no such").exists()
    (tmp_path / "short").write_text("x")
    for read_only in (False, True):
        assert "is no file of measurements" in refused(tmp_path / "short", read_only=read_only)
    assert "x" == (tmp_path / "short").read_text()
    (tmp_path / "file").touch()
    assert "cannot be used" in refused(tmp_path / "file" / "results.sqlite")


@pytest.fixture
def guarded() -> Iterator[Path]:
    """A file of one row that nobody may write, in a folder that nobody may write to but everybody may read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.sqlite"
        with Store(path) as store:
            store.add(measurement())
        path.chmod(0o444)
        path.parent.chmod(0o555)
        yield path
        path.parent.chmod(0o755)


def _as_somebody_else(path: Path, told: Connection) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # permissions mean nothing to root
    try:
        read = len(kept(path))
        with Store(path) as store:
            store.add(measurement())
        told.send((read, "written"))
    except ResultsError as error:
        told.send((read, str(error)))


def test_a_read_only_file_can_be_read_and_is_refused_for_writing(guarded: Path) -> None:
    """Without permission to write, rows can be read, and writing is one line with the cure."""
    here, there = FORK.Pipe(duplex=False)
    reader = FORK.Process(target=_as_somebody_else, args=(guarded, there))
    reader.start()
    read, said = here.recv()
    reader.join(60)
    assert 1 == read
    assert "cannot be written; change its permissions" in said


def _write_without_end(store: Store) -> None:
    for _ in range(10_000):
        store.add(measurement(message="x" * 500))


def test_a_full_disk_is_told_and_harms_nothing(path: Path) -> None:
    """Where the file cannot grow, the row in hand is refused, earlier ones stay, and later there is room again."""
    with Store(path) as store:
        (pages,) = store._database.execute("PRAGMA page_count").fetchone()
        store._database.execute(f"PRAGMA max_page_count = {pages + 8}")
        with pytest.raises(ResultsError, match="no room to grow"):
            _write_without_end(store)
        written = len(store.find())
        assert 0 < written < 100
        with pytest.raises(ResultsError, match="no room to grow"):
            store.add_all([measurement(message="x" * 500)] * 100)
        assert written == len(store.find())
        store._database.execute("PRAGMA max_page_count = 100000")
        store.add(measurement())
    assert written + 1 == len(kept(path))


def test_a_row_that_somebody_damaged_is_named(path: Path) -> None:
    """A value that no measurement has is told with the number of its row."""
    with Store(path) as store:
        store.add_all([measurement(), measurement(2)])
        store._database.execute("UPDATE measurement SET outcome = 'fine' WHERE id = 2")
        with pytest.raises(ResultsError, match=r"measurement 2 is damaged .*outcome"):
            store.find()


def test_a_damaged_file_is_told(path: Path) -> None:
    """A file with a page of garbage is one line."""
    with Store(path) as store:
        store.add_all(measurement(number, message="x" * 300) for number in range(1, 200))
    data = bytearray(path.read_bytes())
    data[8192 : len(data) - 4096] = b"\xa5" * (len(data) - 12288)
    path.write_bytes(data)
    with pytest.raises(ResultsError, match="is damaged"):
        kept(path)
