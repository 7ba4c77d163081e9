"""A stand-in for the tracing process, which makes made-up traces and notes what it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from synthetic import MIB, TRAINING, Call, Made, make_trace

from whichgpu.answers import Book
from whichgpu.errors import StepError
from whichgpu.trace import Trace


class World:
    """What the stand-in for the tracer does, and what it was asked for."""

    def __init__(self) -> None:
        self.calls: dict[str, Sequence[Call]] = {}  # workload -> program; TRAINING where none is named
        self.calls_at: dict[int, Sequence[Call]] = {}  # at these batch sizes instead
        self.more_for_each = False  # whether the step runs more operators for each sample
        self.like: dict[int, int] = {}  # batch sizes that take as much as another one
        self.bucket = 1  # batch sizes are padded up to a multiple ...
        self.bucket_from = 0  # ... from this one on
        self.trace_seconds = 0.0  # what a trace says it took
        self.same_for: tuple[str, ...] = ()
        self.facts: dict[str, Any] = {}
        self.fake_fails: Exception | None = None
        self.fake_fails_from = 0  # at this batch size and above
        self.fails: dict[int, Exception] = {}  # by batch size, at which the tracer fails
        self.runs_at: Callable[[int], bool] = lambda _: True  # the step raises at all other batch sizes
        self.held: set[tuple[str, int, str]] = set()
        self.notes: list[str] = []
        self.asked: list[tuple[str, int, str]] = []  # kind, batch size, class
        self.ahead: list[tuple[int, ...]] = []
        self.open = 0
        self.keeps = False  # whether answers are kept
        self.kept, self.kept_kind = Book(), ""


def tracer_of(found: World) -> type:
    """The class to stand in for `tracing.Tracer`."""

    class Tracer:
        def __init__(self, ref: Any, *, kind: str, cache: Path | None, on_progress: Any) -> None:
            self.ref, self.kind, self.cache = ref, kind, cache
            self.seconds = 0.0
            self.notes = found.notes

        @property
        def cached(self) -> bool:
            return self.seconds == 0.0

        def trace_at(self, batch_size: int, capability: str, *, ahead: Sequence[int] = ()) -> Trace:
            found.asked.append((self.kind, batch_size, capability))
            found.ahead.append(tuple(ahead))
            if self.kind == "fake" and found.fake_fails is not None and batch_size >= found.fake_fails_from:
                raise found.fake_fails
            if batch_size in found.fails:
                raise found.fails[batch_size]
            if not found.runs_at(batch_size):
                raise StepError(f"{self.ref.text}: step raised at batch size {batch_size}: ValueError: odd")
            self.seconds += 0.5
            bucket = found.bucket if batch_size >= found.bucket_from else 1
            padded = -(-found.like.get(batch_size, batch_size) // bucket) * bucket
            calls = found.calls_at.get(batch_size, found.calls.get(self.ref.text, TRAINING))
            trace = make_trace(
                [*calls, *[Call((Made(MIB),))] * batch_size * found.more_for_each],
                padded,
                capability=capability,
                kind=self.kind,
                workload=self.ref.text,
                facts={"same_for": [capability, *found.same_for], **found.facts},
            )
            return msgspec.structs.replace(trace, batch_size=batch_size, seconds=found.trace_seconds)

        def holds(self, batch_size: int, capability: str) -> bool:
            return (self.kind, batch_size, capability) in found.held

        def book(self) -> Book:
            if self.cache is None or self.kind != found.kept_kind:
                return Book()
            return msgspec.msgpack.decode(msgspec.msgpack.encode(found.kept), type=Book)

        def keep(self, book: Book) -> None:
            if found.keeps and self.cache is not None:
                found.kept, found.kept_kind = book, self.kind

        def __enter__(self) -> Tracer:
            found.open += 1
            return self

        def __exit__(self, *_: object) -> None:
            found.open -= 1

    return Tracer
