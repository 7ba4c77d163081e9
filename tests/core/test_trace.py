"""Traces on disk: what is saved comes back, and what is damaged is refused in one line."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import TRAINING, Call, Made, make_trace, programs

from whichgpu import trace as traces
from whichgpu.errors import TraceError
from whichgpu.trace import EventKind, Op, Tensor, Trace


def with_events(*events: tuple[int, int]) -> Trace:
    """A trace of two storages and one operator with the given events."""
    made = make_trace([Call((Made(512), Made(1024)))], 1)
    return msgspec.structs.replace(made, events=events)


def refusal(path: Path) -> str:
    """The one line with which loading is refused."""
    with pytest.raises(TraceError) as caught:
        traces.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=programs(), batch_size=st.integers(1, 1000))
def test_saved_traces_come_back_equal(tmp_path: Path, calls: list[Call], batch_size: int) -> None:
    """What is loaded equals what was saved, in every field."""
    made = make_trace(calls, batch_size, notes=("one", "two"), seconds=1.5)
    traces.save(made, tmp_path / "t")

    assert made == traces.load(tmp_path / "t")


def test_every_kind_of_attribute_survives(tmp_path: Path) -> None:
    """Attributes of operators are JSON-like values and keep their types, infinities included."""
    attributes = {
        "a": None,
        "b": True,
        "c": 1,
        "d": float("-inf"),
        "e": "x",
        "f": [1, 2],
        "g": [],
        "h": -(1 << 63),
    }
    made = make_trace([Call((Made(8),), attributes=attributes)], 1)
    traces.save(made, tmp_path / "t")

    assert attributes == traces.load(tmp_path / "t").ops[0].attributes


def test_saving_leaves_only_the_file(tmp_path: Path) -> None:
    """A successful save leaves one file, and saving again replaces it."""
    traces.save(make_trace(TRAINING, 4), tmp_path / "t")
    traces.save(make_trace(TRAINING, 8), tmp_path / "t")

    assert ["t"] == [path.name for path in tmp_path.iterdir()]
    assert 8 == traces.load(tmp_path / "t").batch_size


def test_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full half way through, no part remains, and the old file is as it was."""
    path = tmp_path / "t"
    traces.save(make_trace(TRAINING, 4), path)
    plain = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        plain(self, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        traces.save(make_trace(TRAINING, 8), path)

    assert ["t"] == [entry.name for entry in tmp_path.iterdir()]
    assert 4 == traces.load(path).batch_size


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000), flip=st.integers(1, 255), place=st.integers(0, 10_000))
def test_any_damage_to_the_file_is_refused(tmp_path: Path, cut: int, flip: int, place: int) -> None:
    """A file that is cut short or has one byte changed raises TraceError, whatever the byte."""
    traces.save(make_trace(TRAINING, 4), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    changed = bytearray(whole)
    changed[place % len(whole)] ^= flip
    for damaged in (whole[: cut % len(whole)], bytes(changed)):
        (tmp_path / "damaged").write_bytes(damaged)

        assert "damaged" in refusal(tmp_path / "damaged")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flip=st.integers(1, 255), place=st.integers(0, 10_000))
def test_damage_that_the_checksum_does_not_see_never_crashes(tmp_path: Path, flip: int, place: int) -> None:
    """Bytes changed below the checksum either still make a valid trace or raise TraceError, nothing else."""
    raw = bytearray(msgspec.msgpack.encode(make_trace(TRAINING, 4)))
    raw[place % len(raw)] ^= flip
    (tmp_path / "t").write_bytes(zlib.compress(bytes(raw), 1))
    try:
        loaded = traces.load(tmp_path / "t")
    except TraceError as error:
        said = str(error)
    else:
        traces.validate(loaded)
        said = ""

    assert "\n" not in said


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        zlib.compress(b"", 1),
        zlib.compress(b"\xc1", 1),
        zlib.compress(b"\x01", 1),
        zlib.compress(msgspec.msgpack.encode({"format": traces.FORMAT}), 1),
        zlib.compress(msgspec.msgpack.encode({"form": 1}), 1),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no trace at all is refused with the advice to trace again."""
    (tmp_path / "t").write_bytes(content)

    assert "trace again" in refusal(tmp_path / "t")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is a TraceError that keeps its cause."""
    with pytest.raises(TraceError) as caught:
        traces.load(tmp_path / "none")

    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_newer_format_is_named(tmp_path: Path) -> None:
    """A trace of a later format says which format it has, even when its fields are others."""
    raw = msgspec.msgpack.encode({"format": traces.FORMAT + 1, "novel": [1, 2]})
    (tmp_path / "t").write_bytes(zlib.compress(raw, 1))

    assert f"trace format {traces.FORMAT + 1}, this version reads {traces.FORMAT}" in refusal(tmp_path / "t")


ALLOC, FREE, OP = EventKind.ALLOC, EventKind.FREE, EventKind.OP


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (((OP, 0), (ALLOC, 0), (ALLOC, 0), (ALLOC, 1)), "storage 0 is born twice"),
        (((OP, 0), (ALLOC, 0), (FREE, 0), (ALLOC, 0), (ALLOC, 1)), "storage 0 is born twice"),
        (((OP, 0), (FREE, 0), (ALLOC, 0), (ALLOC, 1)), "storage 0 dies before"),
        (((OP, 0), (ALLOC, 0), (ALLOC, 1), (FREE, 1), (FREE, 1)), "storage 1 dies"),
        (((OP, 0), (ALLOC, 0), (ALLOC, 2)), "storage 2 is born twice or unknown"),
        (((OP, 0), (ALLOC, 0), (ALLOC, -1)), "storage -1 is born twice or unknown"),
        (((OP, 0), (ALLOC, 0), (FREE, 5), (ALLOC, 1)), "storage 5 dies"),
        (((OP, 1), (ALLOC, 0), (ALLOC, 1)), "unknown operator 1"),
        (((OP, -1), (ALLOC, 0), (ALLOC, 1)), "unknown operator -1"),
        (((OP, 0), (ALLOC, 1)), "storage 0 is never born"),
        (((OP, 0), (ALLOC, 0), (ALLOC, 1), (9, 0)), "unknown event 9"),
    ],
)
def test_inconsistent_events_are_refused(tmp_path: Path, events: tuple[tuple[int, int], ...], words: str) -> None:
    """Double births, deaths before birth and unknown numbers are found when a trace is loaded."""
    made = with_events(*events)
    traces.save(made, tmp_path / "t")

    assert words in refusal(tmp_path / "t")


def test_tensors_of_unknown_storages_are_refused(tmp_path: Path) -> None:
    """An operator may only name storages and strings that the trace has."""
    good = with_events((OP, 0), (ALLOC, 0), (ALLOC, 1))
    bad = Op("aten.add.Tensor", "forward", 0, (Tensor((1,), "float32", (), 2),), (), {})
    traces.save(msgspec.structs.replace(good, ops=(bad,)), tmp_path / "tensor")
    named = Op("aten.add.Tensor", "forward", 0, (), (), {}, module=0)
    traces.save(msgspec.structs.replace(good, ops=(named,)), tmp_path / "name")

    assert "unknown storage 2" in refusal(tmp_path / "tensor")
    assert "unknown name 0" in refusal(tmp_path / "name")
