"""Measurements that are kept: one SQLite file, a row for each, with the complete environment.

Every row is committed when `Store.add` returns, so that a kill loses nothing that was finished; several processes may
write at once (WAL). A row is never changed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import platformdirs

from whichgpu.errors import ResultsError

Outcome = Literal["ok", "out_of_memory", "cuda_error", "crash", "hang", "busy", "driver", "step_error"]

VERSION = 1
_SCHEMA = """
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    workload TEXT NOT NULL,
    workload_hash TEXT NOT NULL,
    gpu TEXT NOT NULL,
    batch_size INTEGER NOT NULL,
    memory_limit_bytes INTEGER,
    outcome TEXT NOT NULL,
    origin TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX measurement_workload ON measurement (workload_hash, memory_limit_bytes);
"""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything besides the workload that a measurement depends on."""

    gpu: str
    gpu_id: str | None
    gpu_uuid_hash: str
    gpu_memory_bytes: int
    compute_capability: str
    driver: str
    cuda: str
    torch: str
    cudnn: str | None
    python: str
    libraries: dict[str, str]
    flags: dict[str, bool | str]
    whichgpu: str


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one batch size."""

    workload: str
    workload_hash: str
    batch_size: int
    memory_limit_bytes: int | None
    outcome: Outcome
    message: str | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    context_bytes: int | None
    step_s: tuple[float, float, float] | None
    steps: int
    converged: bool | None
    unit: str
    items_per_sample: int
    samples_per_second: float | None
    power_w: float | None
    energy_per_sample_j: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]
    attempt_s: float
    measured_at: str
    origin: str
    environment: Environment


class Store:
    """A file of measurements; a context manager."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("BEGIN IMMEDIATE")
            (found,) = self._database.execute("PRAGMA user_version").fetchone()
            if not found:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA user_version = {VERSION}")
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise ResultsError(f"{path}: cannot be used as a results file ({error}); name another one") from error
        if found > VERSION:
            raise ResultsError(f"{path} was written by a newer whichgpu (format {found}); update whichgpu")

    def add(self, measurement: Measurement) -> int:
        """Keep a measurement; it is on disk when this returns."""
        columns = ("workload", "workload_hash", "batch_size", "memory_limit_bytes", "outcome", "origin")
        values: list[Any] = [getattr(measurement, column) for column in columns]
        record = msgspec.json.encode(measurement).decode()
        try:
            done = self._database.execute(
                f"INSERT INTO measurement ({', '.join(columns)}, gpu, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [*values, measurement.environment.gpu, record],
            )
        except sqlite3.Error as error:
            raise ResultsError(
                f"the measurement cannot be written ({error}); name another file or make room"
            ) from error
        assert done.lastrowid is not None
        return done.lastrowid

    def find(
        self,
        *,
        workloads: Collection[str] | None = None,
        gpus: Collection[str] | None = None,
        outcomes: Collection[str] | None = None,
        memory_limit_bytes: int | None = None,
        origin: str | None = None,
    ) -> list[Measurement]:
        """Measurements in the order in which they were added; what is None is not looked at."""
        wanted: list[tuple[str, Collection[Any] | None]] = [
            ("workload", workloads),
            ("gpu", gpus),
            ("outcome", outcomes),
            ("memory_limit_bytes", None if memory_limit_bytes is None else (memory_limit_bytes,)),
            ("origin", None if origin is None else (origin,)),
        ]
        where, values = ["1"], []
        for column, choices in wanted:
            if choices is not None:
                where.append(f"{column} IN ({', '.join('?' * len(choices))})")
                values += list(choices)
        query = f"SELECT record FROM measurement WHERE {' AND '.join(where)} ORDER BY id"
        try:
            rows = self._database.execute(query, values).fetchall()
            return [msgspec.json.decode(record, type=Measurement) for (record,) in rows]
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise ResultsError(f"the results cannot be read ({error}); name another file") from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def default_path() -> Path:
    """Where results are kept: $WHICHGPU_RESULTS, or a file in the user's data folder."""
    named = os.environ.get("WHICHGPU_RESULTS")
    return Path(named) if named else Path(platformdirs.user_data_dir("whichgpu")) / "results.sqlite"
