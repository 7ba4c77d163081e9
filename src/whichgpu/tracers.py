"""At which batch sizes a workload is traced, and with which tensors: the first of each with which its step runs.

Hollow tensors are tried before real ones (`Kind`), a few usual batch sizes before others, and what is kept on disk before
what would have to be traced. Does not cover what the traces say: that is `scaling` and `predictor`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

from whichgpu import arguments, text, tracing
from whichgpu.answers import Book, Traced
from whichgpu.capability import CLASSES
from whichgpu.errors import DataDependentError, StepError
from whichgpu.scaling import Scaling, one_by_one, scaling
from whichgpu.trace import Trace
from whichgpu.trace_cache import cache_directory
from whichgpu.tracing import Kind
from whichgpu.workload import WorkloadRef

P = ParamSpec("P")
T = TypeVar("T")
BatchSizes = tuple[int, int, int]

# Hollow tensors cost nothing, so batch sizes far from odd special cases; for the check a prime one that is far off,
# or padding to a multiple of 16 would pass for memory that does not grow.
FAKE_BATCH_SIZES = (4, 8, 67)
# Real tensors cost time and memory.
REAL_BATCH_SIZES = (1, 2, 3)
# The first ones at which the step runs are taken: some want pairs of samples, multiples of eight, sixteen or sixty-four, or
# more than one sample, and some have no more than a few.
_BATCH_SIZES: dict[Kind, tuple[BatchSizes, ...]] = {
    "fake": (FAKE_BATCH_SIZES, (4, 8, 24), (16, 32, 144), (16, 32, 64), (64, 128, 576), (1, 2, 5)),
    "real-cpu": (REAL_BATCH_SIZES, (2, 4, 6)),
}

# Workloads (name and changes) whose hollow tensors could not go on at some batch size, within one question.
_REAL_ONLY: ContextVar[set[tuple[str, tuple[str, ...]]] | None] = ContextVar("_REAL_ONLY", default=None)


def falling_back(question: Callable[P, T]) -> Callable[P, T]:
    """Ask again with real tensors where hollow ones could not go on: small batches may pass where larger ones do not.

    The question's `timeout_s` bounds every trace of it.
    """

    @functools.wraps(question)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        found: set[tuple[str, tuple[str, ...]]] = set()
        token = _REAL_ONLY.set(found)
        patience = tracing.WITHIN_S.set(arguments.timeout(kwargs.get("timeout_s", arguments.TIMEOUT_S)))
        try:
            while True:
                known = len(found)
                try:
                    return question(*args, **kwargs)
                except DataDependentError:
                    if len(found) == known:
                        raise
        finally:
            _REAL_ONLY.reset(token)
            tracing.WITHIN_S.reset(patience)

    return ask


def is_kept(ref: WorkloadRef) -> bool:
    """Whether a trace of a workload is kept on disk, for some class of cards: the others take little time beside the first."""
    tracers = Tracers(ref, cache=cache_directory(), on_progress=None)
    try:
        return tracers.any_kept()
    finally:
        tracers.close()


class Tracers:
    """Traces of one workload, hollow or real, at the first batch sizes at which its step runs.

    `cache` and `on_progress` are those of `tracing.Tracer`. Where the step runs at none of the usual batch sizes, it is tried
    at the one that is `asked` about. To be closed with the error that ended its use, if any.
    """

    def __init__(
        self,
        ref: WorkloadRef,
        *,
        cache: Path | None,
        on_progress: Callable[[str], None] | None,
        asked: int | None = None,
    ) -> None:
        self._ref = ref
        self._asked = asked
        self._stack = ExitStack()
        self._tracers = {
            kind: self._stack.enter_context(tracing.Tracer(ref, kind=kind, cache=cache, on_progress=on_progress))
            for kind in _BATCH_SIZES
        }
        self._real_only = _REAL_ONLY.get()
        self._name = (ref.text, ref.changes)
        real_only = self._real_only is not None and self._name in self._real_only
        self.kind: Kind | None = "real-cpu" if real_only else None  # None until it is known
        self.batch_sizes: tuple[int, ...] = FAKE_BATCH_SIZES  # those that were traced to foretell others from
        self.checked: set[int] = set()  # further ones at which the step ran
        self.failures: dict[int, str] = {}  # batch sizes at which the step raised
        self.unchecked: dict[int, str] = {}  # batch sizes at which a check came to no end, and why

    def close(self, error: type[BaseException] | None = None) -> None:
        """End the workers; hollow tensors that could not go on are remembered while the question is asked again."""
        self._stack.close()
        if error is DataDependentError and self.kind == "fake" and self._real_only is not None:
            self._real_only.add(self._name)

    # ---- what is known of the traces ----------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Wall time spent tracing."""
        return sum(tracer.seconds for tracer in self._tracers.values())

    @property
    def cached(self) -> bool:
        """Whether no trace had to be made."""
        return self._tracers[self.kind or "fake"].cached

    @property
    def usual(self) -> bool:
        """Whether the step ran at the batch sizes that are tried first."""
        return self.batch_sizes in (FAKE_BATCH_SIZES, REAL_BATCH_SIZES)

    def notes(self) -> list[str]:
        """What the user should know about the cache."""
        return [note for tracer in self._tracers.values() for note in tracer.notes]

    def ran_at(self) -> tuple[int, ...]:
        """The batch sizes at which the step was run."""
        return tuple(sorted({*self.batch_sizes, *self.checked}))

    def notes_on_sizes(self) -> list[str]:
        """What the user should know about the batch sizes, where the step fails at some."""
        failures = {size: message.partition(": ")[2] for size, message in self.failures.items()}
        if len(self.batch_sizes) == 1:
            sizes = ", ".join(map(text.format_count, sorted(failures)))
            return [
                f"the step ran at batch size {self.batch_sizes[0]} and at none of {sizes} ({next(iter(failures.values()))}): "
                "only that one is answered, and the largest batch is that one or none"
            ]
        highest = max(self.ran_at())
        beyond = min((size for size in failures if size > highest), default=None)
        early = "; ".join(message for size, message in failures.items() if size < highest)
        found = []
        if not self.usual and ("accumulate" not in self._ref.options or failures):
            sizes = ", ".join(map(str, self.batch_sizes))
            why = f" ({early})" if early else ""
            found.append(f"traced at batch sizes {sizes}, since the step fails at others{why}")
        elif early:
            found.append(f"the step fails at some batch sizes: {early}")
        largest = text.format_count(highest)
        if beyond is not None:
            found.append(f"batches of more than {largest} are computed by memory alone: {failures[beyond]}")
        for size, message in self.unchecked.items():
            tried = text.format_count(size)
            found.append(f"batches of more than {largest} are not checked by a trace; at {tried}: {message}")
        return found

    def book(self) -> Book:
        """The answers kept for the workload; an empty book where there are none."""
        books = [tracer.book() for kind, tracer in self._tracers.items() if self.kind in (None, kind)]
        return next((book for book in books if book), Book())

    def keep(self, book: Book, kind: Kind) -> None:
        """Keep a book of answers that follow from traces of a kind."""
        self._tracers[kind].keep(book)

    def recall(self, traced: Traced) -> None:
        """Take over what came of tracing earlier."""
        self.kind, self.batch_sizes = traced.kind, traced.batch_sizes
        self.failures.update(traced.failures)

    def kept_like(self, own: str) -> str | None:
        """Another class of cards whose traces are all kept and hold for this one too; None where its own are kept as well."""
        for kind in _BATCH_SIZES:
            if self.kind not in (None, kind):
                continue
            for name in (own, *(name for name in CLASSES if name != own)):
                sizes = self._kept(kind, name)
                if sizes is None:
                    continue
                if name == own:
                    return None
                if own in self._tracers[kind].trace_at(sizes[0], name).facts.get("same_for", ()):
                    return name
        return None

    def any_kept(self) -> bool:
        """Whether a first trace is kept, for whichever class of cards."""
        return any(
            tracer.holds(sizes[0], name)
            for kind, tracer in self._tracers.items()
            for sizes in self._choices(kind)
            for name in CLASSES
        )

    def _kept(self, kind: Kind, name: str) -> BatchSizes | None:
        """The batch sizes of which all traces are kept."""
        holds = self._tracers[kind].holds
        return next((sizes for sizes in self._choices(kind) if all(holds(size, name) for size in sizes)), None)

    # ---- tracing ------------------------------------------------------------------------------------------

    def trace_at(self, batch_size: int, name: str) -> Trace:
        """The trace at a batch size for a class of cards."""
        return self._tracers[self.kind or "fake"].trace_at(batch_size, name)

    def scaling(self, name: str) -> Scaling:
        """How the memory of the workload follows from its batch size, for a class of cards."""
        if self.kind is None:
            known = {
                kind: any(tracer.holds(sizes[0], name) for sizes in _BATCH_SIZES[kind])
                for kind, tracer in self._tracers.items()
            }
            self.kind = "real-cpu" if known["real-cpu"] and not known["fake"] else "fake"
        if self.kind == "fake":
            try:
                return self._scaling_somewhere(name, "fake")
            except DataDependentError:
                self.kind = "real-cpu"
        return self._scaling_somewhere(name, "real-cpu")

    def _scaling_somewhere(self, name: str, kind: Kind) -> Scaling:
        """The scaling from the first batch sizes at which the step runs, or of the one that is asked about alone.

        Raises a StepError if it runs at none.
        """
        if len(self.batch_sizes) == 1:  # as came out for another class of cards
            return self._at_one(self.batch_sizes[0], name, kind)
        first: StepError | None = None
        kept = self._kept(kind, name)
        for sizes in dict.fromkeys(([kept] if kept else []) + list(self._choices(kind))):
            if not self.failures.keys() & set(sizes):
                self.batch_sizes = sizes
                try:
                    return self._scaling_from(name, kind, sizes)
                except StepError as error:
                    first = first or error
        assert first is not None
        if self._asked is not None and self._asked not in self.failures:
            try:
                return self._at_one(self._asked, name, kind)
            except StepError as error:
                self.failures[self._asked] = str(error)
        raise self._none_ran(first)

    def _none_ran(self, first: StepError) -> StepError:
        """What is said of a step that ran at no batch size."""
        if len(self.failures) < 2:
            return first
        tried = ", ".join(map(text.format_count, sorted(self.failures)))
        if self._asked is not None:
            return StepError(f"{self.failures[self._asked]}; of batch sizes {tried} it ran at none")
        cure = "if it runs at another one alone, name that: whichgpu fit --batch-size N"
        return StepError(f"{first}; of batch sizes {tried} it ran at none ({cure})")

    def _at_one(self, batch_size: int, name: str, kind: Kind) -> Scaling:
        """The step at one batch size, where it runs at none of those that others are foretold from."""
        trace = self._tracers[kind].trace_at(batch_size, name)
        self.batch_sizes = (batch_size,)
        at = one_by_one(lambda size: self._tracers[kind].trace_at(size, name), (trace,))
        return Scaling(
            affine=False, reason="the step runs at one batch size alone", at=at, example=trace, only=batch_size
        )

    def _choices(self, kind: Kind) -> tuple[BatchSizes, ...]:
        """The batch sizes to trace at, those that are tried first before the others."""
        parts = self._ref.options.get("accumulate", "1")
        if not (parts.isascii() and parts.isdigit() and int(parts) > FAKE_BATCH_SIZES[0]):
            return _BATCH_SIZES[kind]
        # a batch has at least one sample for each micro batch; where it splits evenly, memory follows its size
        return tuple(
            (low * int(parts), high * int(parts), third * int(parts)) for low, high, third in _BATCH_SIZES[kind]
        )

    def _scaling_from(self, name: str, kind: Kind, batch_sizes: BatchSizes) -> Scaling:
        tracer = self._tracers[kind]
        rest = list(batch_sizes)

        def trace_at(batch_size: int) -> Trace:
            ahead = [size for size in rest if size != batch_size]
            if batch_size in rest:
                rest.remove(batch_size)
            try:
                return tracer.trace_at(batch_size, name, ahead=ahead)
            except StepError as error:
                self.failures[batch_size] = str(error)
                raise

        return scaling(trace_at, batch_sizes)
