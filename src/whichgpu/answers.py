"""Answers kept on disk beside the traces that they follow from, so that the same question needs no replay.

A book belongs to one workload and one state of this package: every source and data file of it takes part in the book's
name, as any of them may change an answer. It names the traces that its answers were worked out from, and holds only while
all of them are kept and hold themselves. A damaged book is ignored: answers can always be worked out again.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from whichgpu.memory import Answers
from whichgpu.trace import Trace
from whichgpu.trace_cache import TraceCache

# Some 80 batch sizes on every card; a fuller book is begun afresh.
LIMIT = 20_000


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What came of tracing a workload for one class of cards."""

    kind: Literal["fake", "real-cpu"]
    batch_sizes: tuple[int, ...]
    failures: dict[int, str]  # batch sizes at which the step raised
    affine: bool
    reason: str | None
    spread: float = 0.0  # as in `scaling.Scaling`, like the next
    seconds_per_sample: float = 0.0
    evidence: tuple[str, ...]  # what the step runs that decides how sure its predictions are
    example: Trace  # without its operators, storages and events


class Book(msgspec.Struct):
    """All answers about one workload."""

    traces: dict[str, str] = {}  # what the answers were worked out from: key and SHA-256 of each trace
    traced: dict[str, Traced] = {}  # by class of cards
    # by class and batch size: how a trace of just that size differed from what was foretold
    checks: dict[str, str | None] = {}
    answers: dict[str, Answers] = {}  # by class, way of scaling and capability
    step_times: dict[str, tuple[float, int]] = {}  # by card and batch size: seconds, and what takes longest

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self.traced) + len(self.checks) + len(self.step_times) + sum(map(len, self.answers.values()))

    def checked(self) -> list[tuple[int, str | None]]:
        """The batch sizes that were checked, each with how it differed."""
        return [(int(check.rpartition(" ")[2]), reason) for check, reason in self.checks.items()]

    def about(self, name: str, way: str, capability: tuple[int, int]) -> Answers:
        """The answers for a class of cards, a way of scaling and a capability."""
        return self.answers.setdefault(f"{name} {way} {capability[0]}.{capability[1]}", Answers())


def head(trace: Trace) -> Trace:
    """A trace's facts, without what takes room."""
    return msgspec.structs.replace(trace, names=(), ops=(), storages=(), events=())


def read(cache: TraceCache, key: str) -> Book:
    """The book kept under a key; an empty one when there is none that holds."""
    data = cache.read_beside(f"{key}.answers")
    if data is None:
        return Book()
    try:
        book = msgspec.msgpack.decode(data, type=Book)
    except msgspec.MsgspecError:
        cache.note_damage()
        return Book()
    return book if book.traces and cache.all_hold(book.traces) else Book()


def write(cache: TraceCache, key: str, book: Book) -> None:
    """Keep a book, or remove it where it cannot be vouched for or has grown too large."""
    name = f"{key}.answers"
    traces = {**book.traces, **cache.used}
    changed = any(cache.used.get(one, digest) != digest for one, digest in book.traces.items())
    if changed or None in traces.values() or len(book) > LIMIT:
        cache.remove_beside(name)
        return
    book.traces = {one: digest for one, digest in traces.items() if digest is not None}
    cache.write_beside(name, msgspec.msgpack.encode(book))


@lru_cache(maxsize=1)
def package_hash() -> str:
    """A hash of everything in this package that can change an answer: code and data."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        # Python's and Numba's compiled code is made as it is first run: the answers of that run would be lost
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
