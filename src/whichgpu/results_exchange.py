"""Measurements as files to hand on: written as CSV, JSON lines or Parquet, and read from another lab's file.

Every row stands for itself: it carries its complete environment and the version of this format. What is read is checked
row by row, the types and whether the figures can be true together; a file with one bad row gives nothing. Where a row
comes from is kept: a row of another place never reads "local". The columns are described in docs/results.md.

Parquet needs pyarrow, the extra `parquet`. Not covered: files that do not fit into memory.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import msgspec

from whichgpu.errors import InputError, ResultsError
from whichgpu.output_file import replace_whole
from whichgpu.results import LOCAL, Environment, Measurement

FORMAT = 1  # raise it when a column changes its meaning or a new one must be understood
PACKAGED = "packaged"  # the origin of measurements that come with whichgpu
SUFFIXES = (".csv", ".jsonl", ".parquet")

_STEP = ("step_s", "step_low_s", "step_high_s")
_OWN = tuple(field for field in Measurement.__struct_fields__ if field not in ("step_s", "environment"))
_AROUND = tuple(Environment.__struct_fields__)
_AS_JSON = ("throttled", "libraries", "flags")  # objects and lists, as JSON in one cell
COLUMNS = ("format", *_OWN, *_STEP, *_AROUND)
_WHOLE = ("format", "batch_size", "steps", "items_per_sample")  # and those that end in _bytes
_REAL = ("samples_per_second", "energy_per_sample_j", "power_w", "sm_clock_mhz", "temperature_c", "attempt_s", *_STEP)
_LONGEST_LINE = 1 << 20
_SEGMENT_BYTES = 2 << 20  # a limit is set as a fraction of the card, and may be missed by its rounding


def export_file(measurements: Sequence[Measurement], path: Path) -> None:
    """Write measurements as .csv, .jsonl or .parquet, by the name of the file.

    The file appears whole or not at all, and replaces an older one. Raises InputError for another kind of file and
    ResultsError where it cannot be written.
    """
    write = {".csv": _to_csv, ".jsonl": _to_jsonl, ".parquet": _to_parquet}[_suffix(path)]
    data = write(measurements)

    def write_through(file: IO[bytes]) -> None:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        replace_whole(path, write_through)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written ({error.strerror}); name another file") from error


def import_file(path: Path, origin: str | None = None) -> list[Measurement]:
    """The measurements of another lab's file, all checked.

    Rows that say "local" get `origin`, or else the name of the file; others keep what they say. Raises InputError for
    an origin that is none, ResultsError for a file or a row that cannot be, naming it.
    """
    read = {".csv": _from_csv, ".jsonl": _from_jsonl, ".parquet": _from_parquet}[_suffix(path)]
    name = path.stem if origin is None else origin
    if name in (LOCAL, PACKAGED) or not name.strip() or not name.isprintable():
        raise InputError(f"{name!r} cannot be the origin of another lab's results; name it with --origin")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path} cannot be read ({error.strerror}); name another file") from error
    found = list(_checked(path.name, read(data, path.name)))
    if not found:
        raise ResultsError(f"{path.name} has no measurements; nothing to import")
    return [_from_elsewhere(measurement, name) for measurement in found]


@cache
def packaged() -> tuple[Measurement, ...]:
    """The measurements that come with whichgpu, in order of their files; their origin is "packaged"."""
    folder = files("whichgpu") / "data" / "measurements"
    if not folder.is_dir():
        return ()
    found: list[Measurement] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".jsonl"):
            found += _checked(entry.name, _from_jsonl(entry.read_bytes(), entry.name))
    return tuple(_from_elsewhere(measurement, PACKAGED) for measurement in found)


def _from_elsewhere(measurement: Measurement, origin: str) -> Measurement:
    here = measurement.origin in (LOCAL, PACKAGED)
    return msgspec.structs.replace(measurement, origin=origin) if here else measurement


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path.name!r}: results are exchanged as {', '.join(SUFFIXES)}; end the name in one of these")
    return suffix


# ---- writing ------------------------------------------------------------------------------------------


def _flat(measurement: Measurement) -> dict[str, Any]:
    """A measurement as one row of plain values."""
    own, around = msgspec.structs.asdict(measurement), msgspec.structs.asdict(measurement.environment)
    row = {"format": FORMAT, **{key: own[key] for key in _OWN}, **around}
    row.update(zip(_STEP, measurement.step_s or (None, None, None), strict=True))
    row.update({key: msgspec.json.encode(row[key], order="deterministic").decode() for key in _AS_JSON})
    return {key: row[key] for key in COLUMNS}


def _to_csv(measurements: Iterable[Measurement]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for measurement in measurements:
        row = _flat(measurement)
        writer.writerow({key: str(value).lower() if isinstance(value, bool) else value for key, value in row.items()})
    return file.getvalue().encode()


def _to_jsonl(measurements: Iterable[Measurement]) -> bytes:
    rows = ({"format": FORMAT, **msgspec.structs.asdict(measurement)} for measurement in measurements)
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _to_parquet(measurements: Iterable[Measurement]) -> bytes:
    arrow, parquet = _pyarrow()
    kinds = {
        **dict.fromkeys(COLUMNS, arrow.string()),
        **{key: arrow.int64() for key in COLUMNS if key in _WHOLE or key.endswith("_bytes")},
        **dict.fromkeys(_REAL, arrow.float64()),
        "converged": arrow.bool_(),
    }
    table = arrow.Table.from_pylist([_flat(measurement) for measurement in measurements], arrow.schema(kinds.items()))
    file = arrow.BufferOutputStream()
    parquet.write_table(table, file)
    data: bytes = file.getvalue().to_pybytes()
    return data


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415  (an extra)
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        cure = "pip install 'whichgpu[parquet]', or use .csv or .jsonl"
        raise ResultsError(f"Parquet needs pyarrow, which is not installed: {cure}") from error
    return pyarrow, pyarrow.parquet


# ---- reading ------------------------------------------------------------------------------------------

Rows = Iterable[tuple[str, Callable[[], Measurement]]]  # where a row stands, and how to read it


def _from_csv(data: bytes, name: str) -> Rows:
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        columns = reader.fieldnames or ()
        _check_columns(columns, name)
        rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultsError(f"{name} is not CSV in UTF-8 ({error}); export it again") from error
    return [(f"line {line}", partial(_from_cells, row)) for line, row in rows]


def _from_cells(row: dict[str | Any, Any]) -> Measurement:
    """A row of CSV as a record; empty cells are None where a figure may be unknown."""
    if None in row or None in row.values():
        raise ValueError("the row has not as many cells as there are columns")
    texts = {"unit", "driver", "cuda", "torch", "python", "whichgpu"}  # which may be empty, but not unknown
    return _from_flat({key: cell if cell or key in texts else None for key, cell in row.items()}, strict=False)


def _from_jsonl(data: bytes, name: str) -> Rows:
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    return [(f"line {number}", partial(_from_line, line)) for number, line in lines]


def _from_line(line: bytes) -> Measurement:
    if len(line) > _LONGEST_LINE:
        raise ValueError("the line is too long for a measurement")
    row = msgspec.json.decode(line)
    if not isinstance(row, dict):
        raise ValueError("the line is no JSON object")
    _check_format(row.pop("format", None))
    return msgspec.convert(row, Measurement)


def _from_parquet(data: bytes, name: str) -> Rows:
    arrow, parquet = _pyarrow()
    try:
        table = parquet.read_table(arrow.BufferReader(data))
    except (arrow.ArrowException, OSError) as error:
        raise ResultsError(f"{name} is not Parquet ({' '.join(str(error).split())[:120]}); export it again") from error
    _check_columns(table.column_names, name)
    rows = enumerate(table.to_pylist(), 1)
    return [(f"row {number}", partial(_from_flat, row, strict=True)) for number, row in rows]


def _check_columns(columns: Sequence[str], name: str) -> None:
    missing = [column for column in COLUMNS if column not in columns]
    unknown = [column for column in columns if column not in COLUMNS]
    if missing or unknown or len(set(columns)) < len(columns):
        what = f"no column {missing[0]!r}" if missing else f"a column {unknown[0]!r}" if unknown else "a column twice"
        raise ResultsError(f"{name} has {what}; its columns must be those that `whichgpu results export` writes")


def _from_flat(row: dict[str, Any], *, strict: bool) -> Measurement:
    """A flat row as a record; ValueError or ValidationError say what is wrong with it."""
    _check_format(row["format"] if strict or not str(row["format"]).isdigit() else int(row["format"]))
    step = [row[key] for key in _STEP]
    values = {key: msgspec.json.decode(row[key]) if key in _AS_JSON else row[key] for key in (*_OWN, *_AROUND)}
    record: dict[str, Any] = {key: values[key] for key in _OWN}
    record["step_s"] = None if step == [None] * 3 else step
    record["environment"] = {key: values[key] for key in _AROUND}
    return msgspec.convert(record, Measurement, strict=strict)


def _check_format(version: Any) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"field format: {version!r} is no version of this format")
    if version > FORMAT:
        raise ValueError(f"field format: written by a newer whichgpu ({version}); update whichgpu")


def _checked(name: str, rows: Rows) -> Iterator[Measurement]:
    for where, read in rows:
        try:
            measurement = read()
            problem = _problem(measurement)
        except msgspec.ValidationError as error:
            problem = _words(error)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            problem = str(error)
        if problem is not None:
            said = " ".join("".join(char if char.isprintable() else " " for char in problem).split())
            raise ResultsError(f"{name}, {where}: {said}; nothing was imported: correct that row or leave it out")
        yield measurement


def _words(error: msgspec.ValidationError) -> str:
    what, _, where = str(error).partition(" - at ")
    field = where.strip("`").removeprefix("$").removeprefix(".").removeprefix("environment.")
    return f"field {field}: {what[0].lower()}{what[1:].replace('`', '')}" if field else what.replace("`", "")


def _problem(measurement: Measurement) -> str | None:
    """Why the figures of a measurement cannot be true together, or None."""
    own, around = msgspec.structs.asdict(measurement), msgspec.structs.asdict(measurement.environment)
    for key, value in {**own, **around}.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"field {key}: {value} is no figure"
        if isinstance(value, str) and key != "message" and not value.isprintable():
            return f"field {key}: has characters that cannot be printed"
    return _time_problem(measurement) or _memory_problem(measurement)


def _time_problem(measurement: Measurement) -> str | None:
    try:
        moment = datetime.fromisoformat(measurement.measured_at)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != timedelta(0):
        return f"field measured_at: {measurement.measured_at} is no time in UTC, as 2026-01-31T12:00:00Z is"
    if measurement.step_s is None:
        return None
    middle, low, high = measurement.step_s
    if not (math.isfinite(high) and 0 < low <= middle <= high):
        return "field step_s: the median does not lie in its interval"
    rate = measurement.samples_per_second
    # the rate is the batch over the median; others may have rounded it
    if rate is not None and not math.isclose(rate, measurement.batch_size / middle, rel_tol=0.02):
        return "field samples_per_second: is not batch_size / step_s"
    return None


def _memory_problem(measurement: Measurement) -> str | None:
    allocated, reserved = measurement.peak_allocated_bytes, measurement.peak_reserved_bytes
    limit, card = measurement.memory_limit_bytes, measurement.environment.gpu_memory_bytes
    if allocated is not None and reserved is not None and allocated > reserved:
        return "field peak_allocated_bytes: is more than was reserved"
    if limit is not None and limit > card:
        return "field memory_limit_bytes: is more than the card has"
    if reserved is not None and reserved > (limit or card) + _SEGMENT_BYTES:
        return "field peak_reserved_bytes: is more than there is"
    return None
