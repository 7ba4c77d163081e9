"""Memory snapshots: their events are what the allocator did, and files are written whole or not at all."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import MIB, TRAINING, Call, Made, always, programs, scaled

from whichgpu import snapshot, workspaces
from whichgpu.errors import InputError
from whichgpu.memory import MemoryModel
from whichgpu.workspaces.records import Temporary


def model_of(calls: list[Call] | tuple[Call, ...]) -> MemoryModel:
    """The memory model of a made-up program."""
    return MemoryModel(always(scaled(calls)), (9, 0))


def made(calls: list[Call] | tuple[Call, ...], batch_size: int, limit_bytes: int | None = None) -> dict[str, Any]:
    """The snapshot of a made-up program."""
    return snapshot.make(model_of(calls).program(batch_size), scaled(calls).low, limit_bytes)


def followed(entries: list[dict[str, Any]]) -> tuple[int, int, dict[int, int], dict[int, int]]:
    """Peaks of what is allocated and reserved, and what is left of both by address."""
    live: dict[int, int] = {}
    segments: dict[int, int] = {}
    allocated = reserved = 0
    for entry in entries:
        address, size = entry["addr"], entry["size"]
        if entry["action"] == "alloc":
            assert any(start <= address and address + size <= start + length for start, length in segments.items())
            assert address not in live
            live[address] = size
        elif entry["action"] == "free_completed":
            assert size == live.pop(address)
        elif entry["action"] == "segment_alloc":
            segments[address] = size
        elif entry["action"] == "segment_free":
            assert size == segments.pop(address)
        allocated, reserved = max(allocated, sum(live.values())), max(reserved, sum(segments.values()))
    return allocated, reserved, live, segments


@settings(max_examples=100, deadline=None)
@given(programs(most=30), st.integers(1, 40))
def test_events_lead_to_the_predicted_peaks_and_the_last_state(calls: list[Call], batch_size: int) -> None:
    """Following the events gives the predicted peaks, and in the end the segments and blocks that are listed."""
    replay = model_of(calls).replay(batch_size)
    found = made(calls, batch_size)
    (entries,) = found["device_traces"]
    allocated, reserved, live, segments = followed(entries)
    assert (replay.peak_requested_bytes, replay.peak_reserved_bytes) == (allocated, reserved)
    assert segments == {segment["address"]: segment["total_size"] for segment in found["segments"]}
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    used = [block for block in blocks if block["state"] == "active_allocated"]
    assert live == {block["address"]: block["requested_size"] for block in used}
    for segment in found["segments"]:
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])


def test_a_cache_that_is_given_back_is_in_the_events() -> None:
    """Under a limit that makes the allocator give segments back, they are freed before new ones are taken."""
    calls = [Call((Made(40 * MIB),)), Call((Made(60 * MIB),), frees=(0,))]
    limit = 70 * MIB
    assert 1 == model_of(calls).replay(4, limit).released_cache
    (entries,) = made(calls, 4, limit)["device_traces"]
    actions = [entry["action"] for entry in entries if entry["action"].startswith("segment")]
    assert ["segment_alloc", "segment_free", "segment_alloc"] == actions
    assert 60 * MIB == followed(entries)[1]


def test_a_search_is_given_back_with_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried once is in the events with its segment, and neither is there for the second operator of its kind."""
    rule = [Temporary(50 * MIB, optional=True, search="one")]
    monkeypatch.setitem(workspaces.RULES, "made.up", lambda op, capability: rule)
    calls = [Call((Made(30 * MIB),), name="made.up"), Call((Made(30 * MIB),), name="made.up")]
    (entries,) = made(calls, 4, None)["device_traces"]

    assert [30, 50, 50, 30] == [entry["size"] // MIB for entry in entries if entry["action"].startswith("segment")]
    assert (["segment_alloc"] * 2 + ["segment_free", "segment_alloc"]) == [
        entry["action"] for entry in entries if entry["action"].startswith("segment")
    ]


def test_what_is_done_without_is_not_in_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit that leaves no room for a workspace, the snapshot is that of the step without it."""
    calls = [Call((Made(40 * MIB),), name="made.up")]
    without = made(calls, 4, 60 * MIB)
    monkeypatch.setitem(workspaces.RULES, "made.up", lambda op, capability: [Temporary(30 * MIB, optional=True)])

    assert without == made(calls, 4, 60 * MIB)


def test_events_are_dictionaries_of_their_own_and_frames_are_shared() -> None:
    """The viewer writes into events, and a file of frames for each event would be large."""
    (entries,) = made(TRAINING, 8)["device_traces"]
    assert len(entries) == len({id(entry) for entry in entries})
    assert len({id(entry["frames"]) for entry in entries}) < len(entries)


def test_the_viewer_knows_a_category_for_everything() -> None:
    """A snapshot with categories needs one called "unknown", or the viewer stops."""
    (entries,) = made(TRAINING, 8)["device_traces"]
    categories = {entry["category"] for entry in entries if "category" in entry}
    assert {"unknown", "weight", "activation", "gradient"} <= categories


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """What is read back is what was made, in a protocol that the viewer reads, and an earlier file is replaced."""
    path = tmp_path / "s.pickle"
    path.write_text("earlier")
    whole = made(TRAINING, 8)
    snapshot.write(whole, path)
    assert whole == pickle.loads(path.read_bytes())
    assert 4 == next(argument for code, argument, _ in pickletools.genops(path.read_bytes()) if code.name == "PROTO")
    assert ["s.pickle"] == [entry.name for entry in tmp_path.iterdir()]


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    """A symbolic link stays one, and what it points to is written."""
    (tmp_path / "link").symlink_to(tmp_path / "there")
    snapshot.write(made(TRAINING, 8), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").stat().st_size > 0


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing fails in the middle, nothing half-written is left, and what was there before stays."""
    path = tmp_path / "s.pickle"
    path.write_text("earlier")

    def full(snapshot: Any, file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pickle, "dump", full)
    with pytest.raises(InputError, match="No space left on device"):
        snapshot.write({}, path)
    assert ["s.pickle"] == [entry.name for entry in tmp_path.iterdir()]
    assert "earlier" == path.read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [("folder", "is a folder"), ("fifo", "not a regular file"), ("none/s", "there is no folder"), ("shut/s", "denied")],
)
def test_places_where_nothing_can_be_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    """A folder, a pipe, a missing folder and a folder without permission are each refused in one line."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "shut").mkdir()
    os.mkfifo(tmp_path / "fifo")
    plain = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "shut" and plain(path, mode))
    with pytest.raises(InputError, match=said) as caught:
        snapshot.check_path(tmp_path / name)
    assert "\n" not in str(caught.value)
