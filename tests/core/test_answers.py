"""Answers kept beside the traces: when they hold, and what becomes of damage."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import TRAINING, make_trace

from whichgpu import answers, trace
from whichgpu.answers import Book, Traced
from whichgpu.memory import MemoryModel
from whichgpu.scaling import Scaled
from whichgpu.trace_cache import Origin, TraceCache


class Place:
    """A cache with one trace in it, made from one source file, and a book of answers about it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "cache"
        self.source = directory / "train.py"
        self.source.write_text("one")
        self.file = directory / "made.trace"
        trace.save(make_trace(TRAINING, 4), self.file)
        self.cache = TraceCache(self.directory, lambda _: None)
        self.trace_again(self.cache)
        self.book = Book(traced={"9.0": a_traced()}, checks={"9.0 7": None})
        self.book.about("9.0", "scaled", (9, 0)).largest[1 << 30] = 17
        answers.write(self.cache, "key", self.book)

    def trace_again(self, cache: TraceCache) -> None:
        """Put the trace into a cache, as a tracer does."""
        cache.write("trace", self.file, Origin.empty(time.time() + 60.0).extended([str(self.source)], {}))

    def another_trace(self, cache: TraceCache) -> None:
        """Put another trace into a cache under the same key."""
        trace.save(make_trace(TRAINING, 5), self.file)
        self.trace_again(cache)

    def traces(self) -> list[Path]:
        """The files of the traces."""
        return list(self.directory.glob("*.trace"))

    def read(self) -> Book:
        """The book as another process finds it."""
        return answers.read(TraceCache(self.directory, lambda _: None), "key")


def a_traced() -> Traced:
    """What came of tracing one class."""
    example = answers.head(make_trace(TRAINING, 8))
    return Traced(
        kind="fake", batch_sizes=(4, 8, 67), failures={}, affine=True, reason=None, evidence=("plain",), example=example
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache with a trace and a book."""
    return Place(tmp_path)


def test_a_book_comes_back_as_it_was(place: Place) -> None:
    """What was written is read, with the traces that it follows from."""
    assert place.book == place.read()
    assert ["trace"] == list(place.read().traces)


CHANGES: dict[str, Callable[[Place], object]] = {
    "source": lambda place: place.source.write_text("two"),
    "another trace": lambda place: place.another_trace(TraceCache(place.directory, lambda _: None)),
    "trace damaged": lambda place: [path.write_bytes(bytes(path.stat().st_size)) for path in place.traces()],
    "trace removed": lambda place: [path.unlink() for path in place.traces()],
    "entry removed": lambda place: (place.directory / "trace.json").unlink(),
    "entry damaged": lambda place: (place.directory / "trace.json").write_bytes(b"{"),
    "cut short": lambda place: damage(place, lambda data: data[: len(data) // 2]),
    "empty": lambda place: damage(place, lambda _: b""),
    "something else": lambda place: damage(place, lambda _: b"\x93\x01\x02\x03"),
}


def damage(place: Place, how: Callable[[bytes], bytes]) -> None:
    """Change the book's file."""
    path = place.directory / "key.answers"
    path.write_bytes(how(path.read_bytes()))


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_book_that_does_not_hold_is_empty(place: Place, change: Callable[[Place], object]) -> None:
    """Another source, another trace or a damaged file: there is no answer, and nothing fails."""
    change(place)
    assert Book() == place.read()


def test_damage_is_told(place: Place) -> None:
    """A book that cannot be read is told, one that is not there is not."""
    told: list[str] = []
    cache = TraceCache(place.directory, told.append)
    answers.read(cache, "none")
    assert [] == told
    damage(place, lambda data: data[:20])
    answers.read(cache, "key")
    assert ["a damaged entry of the trace cache was ignored and rebuilt"] == told


def test_a_book_of_traces_that_could_not_be_kept_is_not_kept(place: Place) -> None:
    """Answers from a trace that nobody can look at again are not written, and the older ones go."""
    place.cache.write("other", place.file, Origin({}, {}, 0.0, complete=False))
    answers.write(place.cache, "key", place.book)
    assert Book() == place.read()


def test_a_book_of_two_traces_of_the_same_name_is_not_kept(place: Place) -> None:
    """When a trace was made anew while its older answers were used, none of them is kept."""
    book = place.read()
    cache = TraceCache(place.directory, lambda _: None)
    place.another_trace(cache)
    answers.write(cache, "key", book)
    assert Book() == place.read()


def test_a_full_book_is_begun_afresh(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the file goes."""
    monkeypatch.setattr(answers, "LIMIT", 2)
    answers.write(place.cache, "key", place.book)
    assert Book() == place.read()


def test_a_book_leaves_no_parts(place: Place) -> None:
    """The file appears whole, with nothing beside it."""
    assert {"trace.json", "key.answers"} == {path.name for path in place.directory.iterdir() if path.suffix != ".trace"}


def test_answers_need_no_trace() -> None:
    """A model that has the answers asks for no trace, and gives the same ones."""
    scaled = Scaled(make_trace(TRAINING, 4), make_trace(TRAINING, 8))
    first = MemoryModel(lambda _: scaled, (9, 0))
    limit = first.replay(100).peak_reserved_bytes
    expected = (first.largest_batch(limit), first.replay(9, limit), first.peak(9), first.peak(9, limit))
    kept = first.answers

    def never(_: int) -> Scaled:
        raise AssertionError("a trace was asked for")

    second = MemoryModel(never, (9, 0), answers=kept)
    assert expected == (second.largest_batch(limit), second.replay(9, limit), second.peak(9), second.peak(9, limit))
    assert 4 == len(kept) - 1  # the replay without a limit is one more


def test_the_package_has_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any change of code or data changes the hash; what Python or Numba compiles does not."""
    (tmp_path / "data").mkdir()
    (tmp_path / "answers.py").write_text("one")
    (tmp_path / "data" / "facts.toml").write_text("one")
    monkeypatch.setattr(answers, "__file__", str(tmp_path / "answers.py"))

    def hashed() -> str:
        answers.package_hash.cache_clear()
        return answers.package_hash()

    try:
        before = hashed()
        (tmp_path / "answers.pyc").write_bytes(b"compiled")
        (tmp_path / "__pycache__").mkdir()
        (tmp_path / "__pycache__" / "compiled_replay._run-361.py311.1.nbc").write_bytes(b"compiled")
        assert before == hashed()
        (tmp_path / "data" / "facts.toml").write_text("two")
        assert before != hashed()
    finally:
        answers.package_hash.cache_clear()
