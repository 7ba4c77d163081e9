"""Measurements, and the file in which they are kept: SQLite, one row each, with the complete environment.

A row is on disk when `Store.add` returns, and is never changed: killing a writer loses at most the row in flight, and
several processes may write at once (write-ahead log). Environments are stored once each, under a hash of all that they
say, so that two that differ in anything stay two. The schema is described in docs/results.md; `PRAGMA user_version`
holds its version, and a file of an older one is upgraded step by step when it is opened for writing.

Not covered: network file systems, on which SQLite's locks may not hold; several threads on one Store.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import quote

import msgspec
import platformdirs

from whichgpu.errors import ResultsError

Outcome = Literal["ok", "out_of_memory", "cuda_error", "crash", "hang", "busy", "driver", "step_error"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
LOCAL = "local"  # the origin of what was measured here

Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Figure = Annotated[float, msgspec.Meta(ge=0)]

APPLICATION_ID = 0x57475055  # "WGPU": tells our files from other programs' SQLite files
TIMEOUT_S = 30.0  # how long to wait for another writer; a row takes milliseconds


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything besides the workload that a measurement depends on."""

    gpu: Text  # as the driver names it
    gpu_id: Text | None  # id in the catalogue, None when unknown
    gpu_uuid_hash: Text  # SHA-256 of the UUID, its first 16 hex digits
    gpu_memory_bytes: Positive
    compute_capability: Text
    driver: str
    cuda: str
    torch: str
    cudnn: str | None
    python: str
    libraries: dict[str, str]  # timm, transformers, torchvision, ...
    flags: dict[str, bool | str]  # TF32, cudnn.benchmark, determinism, allocator settings
    whichgpu: str


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt at one batch size."""

    workload: Text
    workload_hash: Text
    batch_size: Positive
    memory_limit_bytes: Positive | None  # None: the whole card
    outcome: Outcome
    message: str | None
    peak_allocated_bytes: Count | None
    peak_reserved_bytes: Count | None
    context_bytes: Count | None
    step_s: tuple[Figure, Figure, Figure] | None  # median, low and high end of its 95 % interval
    steps: Count
    converged: bool | None  # the interval is within 1 %, or the time budget ended first
    unit: str
    items_per_sample: Positive
    samples_per_second: Figure | None
    power_w: Figure | None
    energy_per_sample_j: Figure | None
    sm_clock_mhz: Figure | None
    temperature_c: float | None
    throttled: tuple[str, ...]
    attempt_s: Figure
    measured_at: Text  # UTC, ISO 8601
    origin: Text  # "local", or the name given on import
    environment: Environment


def environment_key(environment: Environment) -> str:
    """A hash of all that an environment says: equal keys are equal environments."""
    return hashlib.sha256(msgspec.json.encode(environment, order="deterministic")).hexdigest()


def default_path() -> Path:
    """Where results are kept: $WHICHGPU_RESULTS, or a file in the user's data folder."""
    named = os.environ.get("WHICHGPU_RESULTS")
    return Path(named).expanduser() if named else Path(platformdirs.user_data_dir("whichgpu")) / "results.sqlite"


# ---- the schema, one step a version -------------------------------------------------------------------


def _create(database: sqlite3.Connection) -> None:
    """Version 1: two tables."""
    database.execute(
        """
        CREATE TABLE environment (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,
            gpu TEXT NOT NULL,
            gpu_id TEXT,
            gpu_uuid_hash TEXT NOT NULL,
            gpu_memory_bytes INTEGER NOT NULL,
            compute_capability TEXT NOT NULL,
            driver TEXT NOT NULL,
            cuda TEXT NOT NULL,
            torch TEXT NOT NULL,
            cudnn TEXT,
            python TEXT NOT NULL,
            libraries TEXT NOT NULL,
            flags TEXT NOT NULL,
            whichgpu TEXT NOT NULL
        )
        """
    )
    database.execute(
        """
        CREATE TABLE measurement (
            id INTEGER PRIMARY KEY,
            workload TEXT NOT NULL,
            workload_hash TEXT NOT NULL,
            batch_size INTEGER NOT NULL,
            memory_limit_bytes INTEGER,
            outcome TEXT NOT NULL,
            message TEXT,
            peak_allocated_bytes INTEGER,
            peak_reserved_bytes INTEGER,
            context_bytes INTEGER,
            step_s REAL,
            step_low_s REAL,
            step_high_s REAL,
            steps INTEGER NOT NULL,
            converged INTEGER,
            unit TEXT NOT NULL,
            items_per_sample INTEGER NOT NULL,
            samples_per_second REAL,
            power_w REAL,
            energy_per_sample_j REAL,
            sm_clock_mhz REAL,
            temperature_c REAL,
            throttled TEXT NOT NULL,
            attempt_s REAL NOT NULL,
            measured_at TEXT NOT NULL,
            origin TEXT NOT NULL,
            environment_id INTEGER NOT NULL REFERENCES environment (id)
        )
        """
    )


def _index(database: sqlite3.Connection) -> None:
    """Version 2: what `largest` and `find` look for is indexed, so that years of results stay quick."""
    database.execute(
        "CREATE INDEX measurement_search ON measurement (workload_hash, environment_id, memory_limit_bytes, batch_size)"
    )
    database.execute("CREATE INDEX measurement_workload ON measurement (workload, origin)")


Upgrade = Callable[[sqlite3.Connection], None]
UPGRADES: tuple[Upgrade, ...] = (_create, _index)  # step n makes version n + 1; a released step is never edited
VERSION = len(UPGRADES)
_HEADER_BYTES = 100  # of every SQLite file that is not empty

_ENVIRONMENT = tuple(Environment.__struct_fields__)
_MEASUREMENT = tuple(field for field in Measurement.__struct_fields__ if field not in ("step_s", "environment"))
_STEP = ("step_s", "step_low_s", "step_high_s")
_AS_JSON = {"libraries", "flags", "throttled"}
_INSERT_ENVIRONMENT = (
    f"INSERT INTO environment (key, {', '.join(_ENVIRONMENT)}) VALUES (?{', ?' * len(_ENVIRONMENT)}) "
    "ON CONFLICT (key) DO NOTHING"
)
_INSERT_MEASUREMENT = (
    f"INSERT INTO measurement ({', '.join((*_MEASUREMENT, *_STEP))}, environment_id) "
    f"VALUES ({'?, ' * len((*_MEASUREMENT, *_STEP))}(SELECT id FROM environment WHERE key = ?))"
)
_SELECT = (
    f"SELECT m.id, {', '.join(f'm.{column}' for column in (*_MEASUREMENT, *_STEP))}, "
    f"{', '.join(f'e.{column}' for column in _ENVIRONMENT)} "
    "FROM measurement m LEFT JOIN environment e ON e.id = m.environment_id"
)


# ---- the file -----------------------------------------------------------------------------------------


class Store:
    """A file of measurements; a context manager.

    Makes the file where there is none and upgrades an older one, unless `read_only`: then an older one is upgraded in
    memory. Raises ResultsError for a file that is newer, damaged, locked for `timeout_s`, or no file of measurements.
    """

    def __init__(self, path: Path, *, read_only: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        with _one_line(path):
            _check_file(path)
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._database = _connect(path, read_only, timeout_s)
            try:
                version = _version(self._database, path)
                if not read_only:
                    _prepare(self._database, path, timeout_s)
                elif version < VERSION:
                    self._database = _upgraded_copy(self._database)
            except BaseException:
                self._database.close()
                raise

    def add(self, measurement: Measurement) -> int:
        """Keep a measurement and return its number; it is on disk when this returns."""
        return self.add_all([measurement])[0]

    def add_all(self, measurements: Iterable[Measurement]) -> list[int]:
        """Keep measurements, all of them or, when anything fails, none; returns their numbers."""
        with _one_line(self._path), _transaction(self._database):
            return [self._insert(measurement) for measurement in measurements]

    def add_new(self, measurements: Iterable[Measurement]) -> list[int]:
        """As `add_all`, without those that are here already, to the letter."""
        wanted = list(measurements)
        with _one_line(self._path), _transaction(self._database):
            # read inside the transaction: nobody adds the same rows meanwhile
            origins = {measurement.origin for measurement in wanted}
            here = {_encoded(kept) for origin in origins for kept in self.find(origin=origin)}
            new = {_encoded(measurement): measurement for measurement in wanted}
            return [self._insert(measurement) for key, measurement in new.items() if key not in here]

    def _insert(self, measurement: Measurement) -> int:
        try:  # what could not be read again is not written
            msgspec.convert(msgspec.to_builtins(measurement), Measurement)
        except msgspec.ValidationError as error:
            raise ResultsError(f"a measurement that cannot be is not kept ({error}); correct it") from error
        key = environment_key(measurement.environment)
        self._database.execute(_INSERT_ENVIRONMENT, [key, *_values(measurement.environment, _ENVIRONMENT)])
        values = [*_values(measurement, _MEASUREMENT), *(measurement.step_s or (None, None, None)), key]
        number = self._database.execute(_INSERT_MEASUREMENT, values).lastrowid
        assert number is not None
        return number

    def find(
        self,
        *,
        workloads: Collection[str] | None = None,
        gpus: Collection[str] | None = None,
        outcomes: Collection[str] | None = None,
        memory_limit_bytes: int | None = None,
        origin: str | None = None,
    ) -> list[Measurement]:
        """Measurements in the order in which they were added; what is None is not looked at.

        `gpus` are names as the driver gives them or ids of the catalogue.
        """
        where, values = ["1"], list[Any]()
        for columns, choices in (
            (("m.workload",), workloads),
            (("e.gpu", "e.gpu_id"), gpus),
            (("m.outcome",), outcomes),
            (("m.memory_limit_bytes",), None if memory_limit_bytes is None else [memory_limit_bytes]),
            (("m.origin",), None if origin is None else [origin]),
        ):
            if choices is not None:
                marks = ", ".join("?" * len(choices))
                where.append(f"({' OR '.join(f'{column} IN ({marks})' for column in columns)})")
                values += [*choices] * len(columns)
        return self._select(" AND ".join(where), values)

    def _select(self, where: str, values: Sequence[Any]) -> list[Measurement]:
        with _one_line(self._path):
            rows = self._database.execute(f"{_SELECT} WHERE {where} ORDER BY m.id", values).fetchall()
        return [_measurement(row, self._path) for row in rows]

    def largest(
        self, workload_hash: str, environment: Environment, memory_limit_bytes: int | None
    ) -> tuple[int, int | None]:
        """The largest batch seen to fit (0 for none) and the smallest seen to run out of memory (None for none).

        A batch that did both, as one that runs for a few steps but not for many, counts as running out of memory.
        """
        query = (
            "SELECT m.batch_size, MAX(m.outcome = 'out_of_memory') FROM measurement m "
            "JOIN environment e ON e.id = m.environment_id "
            "WHERE m.workload_hash = ? AND e.key = ? AND m.memory_limit_bytes IS ? "
            "AND m.outcome IN ('ok', 'out_of_memory') GROUP BY m.batch_size"
        )
        values = (workload_hash, environment_key(environment), memory_limit_bytes)
        with _one_line(self._path):
            rows = self._database.execute(query, values).fetchall()
        fit = [size for size, failed in rows if not failed]
        return max(fit, default=0), min((size for size, failed in rows if failed), default=None)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _check_file(path: Path) -> None:
    """Refuse what SQLite takes for an empty file or speaks of in riddles."""
    if path.is_dir():
        raise ResultsError(f"{path} is a folder; name a file for results")
    if path.is_file() and 0 < path.stat().st_size < _HEADER_BYTES:
        raise ResultsError(f"{path} is no file of measurements; name another file for results")


def _connect(path: Path, read_only: bool, timeout_s: float) -> sqlite3.Connection:
    mode = "?mode=rwc"
    if read_only:
        # Without a log nobody is writing, and all there is stands in the file: it can then be read in a folder in which
        # SQLite may not make its own files.
        mode = "?mode=ro" if Path(f"{path}-wal").exists() or os.access(path.parent, os.W_OK) else "?immutable=1"
    database = sqlite3.connect(f"file:{quote(str(path))}{mode}", uri=True, timeout=timeout_s, isolation_level=None)
    database.execute("PRAGMA foreign_keys = ON")
    return database


def _version(database: sqlite3.Connection, path: Path) -> int:
    """The version of a file's schema, 0 for an empty one; ResultsError where it is not ours or newer."""
    application, version, entries = _head(database)
    if application != APPLICATION_ID and (application or version or entries):
        raise ResultsError(f"{path} is another program's SQLite file; name another file for results")
    if version > VERSION:
        raise ResultsError(
            f"{path} was written by a newer whichgpu (format {version}, this one knows {VERSION}); update whichgpu"
        )
    return int(version)


def _head(database: sqlite3.Connection) -> tuple[int, int, int]:
    """Whose file it is, its version, and how many entries its schema has, all at one moment.

    One read after the other would see half of what another process is making.
    """
    queries = ("SELECT COUNT(*) FROM sqlite_master", "PRAGMA user_version", "PRAGMA application_id")
    within = database.in_transaction
    if not within:
        database.execute("BEGIN")
    try:
        entries, version, application = (int(database.execute(query).fetchone()[0]) for query in queries)
    finally:
        if not within:
            database.execute("ROLLBACK")
    return application, version, entries


def _prepare(database: sqlite3.Connection, path: Path, timeout_s: float) -> None:
    """Make or upgrade the schema, in one transaction."""
    _use_log(database, timeout_s)
    database.execute("PRAGMA synchronous = FULL")  # a row that is told of survives a power cut, too
    with _transaction(database):
        _upgrade(database, _version(database, path))  # asked again: another process may have been quicker


def _upgrade(database: sqlite3.Connection, version: int) -> None:
    if version == VERSION:
        return
    for upgrade in UPGRADES[version:]:
        upgrade(database)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {VERSION}")


def _upgraded_copy(database: sqlite3.Connection) -> sqlite3.Connection:
    """The file in memory, upgraded; the file itself stays as it is."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    database.backup(copy)
    (version,) = copy.execute("PRAGMA user_version").fetchone()
    database.close()
    with _transaction(copy):
        _upgrade(copy, version)
    return copy


def _use_log(database: sqlite3.Connection, timeout_s: float) -> None:
    """Switch to the write-ahead log; SQLite does not wait by itself when two processes do so at once."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk has ended it already
            database.execute("ROLLBACK")
        raise


_PROBLEMS = {
    sqlite3.SQLITE_NOTADB: "is not a file of results; name another one",
    sqlite3.SQLITE_BUSY: "is locked by another program; end that program, or try again later",
    sqlite3.SQLITE_LOCKED: "is locked by another program; end that program, or try again later",
    sqlite3.SQLITE_READONLY: "cannot be written; change its permissions, or name another file for results",
    sqlite3.SQLITE_PERM: "cannot be written; change its permissions, or name another file for results",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that it is a file that you may read and write",
    sqlite3.SQLITE_FULL: "has no room to grow, and nothing was added; make room on its disk and repeat the command",
    sqlite3.SQLITE_IOERR: "cannot be read or written; see whether its disk has room, quota and no faults, then repeat the command",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore a copy, or save what is left with: sqlite3 FILE .recover",
}


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the file system as one line with the cure."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        problem = _PROBLEMS.get(code & 0xFF) if code is not None else None
        said = problem or f"cannot be used for results ({error}); name another file"
        raise ResultsError(f"{path} {said}") from error
    except OSError as error:
        raise ResultsError(f"{path} cannot be used for results ({error.strerror}); name another file") from error


# ---- rows ---------------------------------------------------------------------------------------------


def _values(record: msgspec.Struct, columns: Iterable[str]) -> list[Any]:
    values = ((column, getattr(record, column)) for column in columns)
    return [_encoded(value) if column in _AS_JSON else value for column, value in values]


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _measurement(row: Sequence[Any], path: Path) -> Measurement:
    """A row as a record; ResultsError where somebody else wrote into it what cannot be."""
    number, *values = row
    parts = len(_MEASUREMENT)
    found = dict(zip(_MEASUREMENT, values[:parts], strict=True))
    step = values[parts : parts + 3]
    environment = dict(zip(_ENVIRONMENT, values[parts + 3 :], strict=True))
    try:
        for record in (found, environment):
            record.update({key: msgspec.json.decode(record[key]) for key in _AS_JSON & record.keys()})
        found["step_s"] = None if step == [None] * 3 else step
        found["converged"] = None if found["converged"] is None else bool(found["converged"])
        found["environment"] = environment
        return msgspec.convert(found, Measurement)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise ResultsError(f"{path}: measurement {number} is damaged ({error}); delete that row") from error
