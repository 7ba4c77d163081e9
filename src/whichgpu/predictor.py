"""What is predicted of one workload: traces joined with the memory models, and with the answers that were kept.

The only place where a card's compute capability becomes a model: the class of cards that it belongs to decides the traces,
and traces are made, or read, when they are first needed. Computes no memory itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from typing import Self, cast

from whichgpu import advice
from whichgpu.advice import TraceInfo
from whichgpu.answers import Traced, head
from whichgpu.capability import class_of
from whichgpu.errors import DataDependentError
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import Estimate, Evidence, Model, kinds_of, least_sure, spread_in_words, widest
from whichgpu.memory import Answers, MemoryModel
from whichgpu.scaling import Scaled, Scaling, Single, one_by_one
from whichgpu.trace import Trace
from whichgpu.trace_cache import cache_directory
from whichgpu.tracers import Tracers
from whichgpu.workload import WorkloadRef

Progress = Callable[[str], None]

# Up to here the batch size that is asked about is traced as well. Beyond, the user's own data may take too much memory.
_LARGEST_CHECKED = 1024
# With real tensors a step takes as long as on the CPU: it is traced where that takes no longer than this, by the time that
# another batch size took.
_LONGEST_REAL_S = 90.0


class Predictor:
    """Traces and memory models of one workload, one per class of cards, made when first asked for.

    A workload that does not follow its batch size is traced at each batch size that is asked about if `exact`, which
    takes seconds for each; otherwise, and always with real tensors, a line is put through a few batch sizes.
    """

    def __init__(self, ref: WorkloadRef, *, cache: bool, on_progress: Progress | None, exact: bool = False) -> None:
        self.ref = ref
        self.exact = exact
        self._cached = cache
        self._tracers = Tracers(ref, cache=cache_directory() if cache else None, on_progress=on_progress)
        self._scalings: dict[str, Scaling] = {}
        self._models: dict[tuple[str, tuple[int, int]], Model] = {}
        self._asked: set[int] = set()  # batch sizes that are traced for themselves where others are on a line
        self._book = self._tracers.book()
        self._answered = len(self._book)
        self._evidence: dict[str, tuple[Evidence, ...]] = {}  # by class of cards
        self._told: set[Evidence] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._tracers.close(error)
        if error is None:
            self.keep()

    # ---- answers ----------------------------------------------------------------------------------------

    @property
    def answers(self) -> dict[str, Answers]:
        """All that is known, by class of cards, way of scaling and capability."""
        return self._book.answers

    @property
    def shareable(self) -> bool:
        """Whether another process would come to the same answers from what is kept on disk, without tracing anything."""
        return self._cached and all(
            scaled.affine and scaled.example.kind == "fake" for scaled in self._scalings.values()
        )

    def knows_largest(self, capability: tuple[int, int], room_bytes: int) -> bool:
        """Whether the largest batch in so much memory is known already."""
        model = self.model(capability)
        return isinstance(model, LineModel) or room_bytes in model.answers.largest

    def learn(self, answers: dict[str, Answers]) -> None:
        """Take over what another predictor of the same workload has worked out."""
        for question, found in answers.items():
            known = self._book.answers.setdefault(question, Answers())
            known.update(found)

    def keep(self) -> None:
        """Keep on disk what has been worked out since."""
        kinds = {scaled.example.kind for scaled in self._scalings.values()}
        if len(self._book) > self._answered and len(kinds) == 1:
            self._tracers.keep(self._book, kinds.pop())
            self._answered = len(self._book)

    # ---- what is predicted ----------------------------------------------------------------------------

    def model(self, capability: tuple[int, int]) -> Model:
        """The memory model for a card's compute capability."""
        name = self._class_of(capability)
        key = (name, capability)
        if key not in self._models:
            scaled = self._scalings[name]
            way = "scaled" if scaled.affine else "single"
            answers = self._book.about(name, way, capability)
            if scaled.affine or (self.exact and scaled.example.kind == "fake"):
                self._models[key] = MemoryModel(
                    scaled.at, capability, answers=answers, batch_sizes=self._tracers.batch_sizes
                )
            else:
                also = [size for size in self._asked if self._is_quick(scaled.example, size)]
                self._models[key] = LineModel(scaled.at, capability, self._tracers.batch_sizes, answers, also)
        return self._models[key]

    def estimate(self, capability: tuple[int, int]) -> Estimate:
        """The memory model for a card's compute capability, and how sure it is."""
        model = self.model(capability)
        evidence = self._evidence[self._class_of(capability)]
        if isinstance(model, LineModel):
            evidence = (*evidence, "line")
        self._told.add(least_sure(evidence))
        return Estimate(model, widest(evidence, capability))

    def check(self, batch_size: int, capability: tuple[int, int]) -> None:
        """Trace the batch size that is asked about too, where that is cheap: the step may fail at just this one.

        Raises StepError if so. Where its sizes are not those foretold, each batch size counts by itself from now on.
        Where they are on a line, this one is answered from its trace.
        """
        name = self._class_of(capability)
        scaled = self._scalings[name]
        if not scaled.affine:
            self._asked.add(batch_size)
            self._models.clear()
        if scaled.example.kind != "fake" or batch_size > _LARGEST_CHECKED or batch_size in self._tracers.batch_sizes:
            return
        key = f"{name} {batch_size}"
        if key not in self._book.checks:
            try:
                trace = self._tracers.trace_at(batch_size, name)
            except DataDependentError:  # too much to follow at just this size
                return
            foretold = scaled.at(batch_size)
            self._book.checks[key] = foretold.agrees_with(trace) if isinstance(foretold, Scaled) else None
        reason = self._book.checks[key]
        if reason is not None:
            at = one_by_one(lambda size: self._tracers.trace_at(size, name))
            self._scalings[name] = Scaling(affine=False, reason=reason, at=at, example=scaled.example)

    @staticmethod
    def _is_quick(example: Trace, batch_size: int) -> bool:
        """Whether a trace like the example takes little time and memory at a batch size."""
        if example.kind == "fake":
            return batch_size <= _LARGEST_CHECKED
        return example.seconds / example.batch_size * batch_size <= _LONGEST_REAL_S

    def source(self, batch_size: int, capability: tuple[int, int]) -> Scaled | Single:
        """The events at a batch size, one by one: foretold where that can be, and else from a trace of its own."""
        name = self._class_of(capability)
        scaled = self._scalings[name]
        if scaled.affine:
            return scaled.at(batch_size)
        return Single(self._tracers.trace_at(batch_size, name))

    def trace(self, capability: tuple[int, int]) -> Trace:
        """An example trace for a card's compute capability."""
        name = self._class_of(capability)
        if not self._scalings[name].example.events:  # only its facts are known yet
            self._scalings[name] = self._tracers.scaling(name)
        return self._scalings[name].example

    @property
    def events(self) -> int:
        """How many events a replay goes through, about; 0 while nothing was traced."""
        return max(
            (len(scaled.at(self._tracers.batch_sizes[0]).events) for scaled in self._scalings.values()), default=0
        )

    def facts(self, capability: tuple[int, int]) -> Trace:
        """The same, perhaps without operators, storages and events: then nothing need be read."""
        return self._scalings[self._class_of(capability)].example

    def default_batch_size(self) -> int:
        """What the workload itself names; where the step fails at some sizes, one at which it was seen to run."""
        size = int(self._first().example.facts.get("default_batch_size", 8))
        sizes = self._tracers.batch_sizes
        return size if self._tracers.usual or size in sizes else sizes[0]

    def info(self) -> TraceInfo:
        """How the workload was traced."""
        first = self._first()
        return TraceInfo(
            kind=first.example.kind,
            affine=all(s.affine for s in self._scalings.values()),
            seconds=round(self._tracers.seconds, 2),
            cached=self._tracers.cached,
            torch_version=first.example.torch_version,
        )

    def notes(self) -> tuple[str, ...]:
        """Plain caveats for the user, each once."""
        found = self._tracers.notes()
        for scaled in self._scalings.values():
            found += scaled.example.notes
            found += advice.caveats(scaled.example)
            if not scaled.affine:
                found.append(f"memory is not a straight function of the batch size ({scaled.reason})")
            elif scaled.spread:
                found.append(f"some sizes follow from the data; traces differ by up to {scaled.spread:.2%} of memory")
        found += self._tracers.notes_on_sizes()
        if any(isinstance(model, LineModel) for model in self._models.values()):
            found.append(f"estimated from a line through batch sizes {self._tracers.sizes_in_words()}")
        found += [words for words in map(spread_in_words, sorted(self._told)) if words is not None]
        return tuple(dict.fromkeys(found))

    # ---- classes of cards -----------------------------------------------------------------------------

    def _first(self) -> Scaling:
        return next(iter(self._scalings.values()))

    def _class_of(self, capability: tuple[int, int]) -> str:
        """The class whose traces hold for a capability: its own, or one traced already that dispatches alike."""
        own = class_of(capability)
        for traced, scaled in self._scalings.items():
            if own == traced or own in scaled.example.facts.get("same_for", ()):
                return traced
        for name, known in self._book.traced.items():
            if own == name or own in known.example.facts.get("same_for", ()):
                self._scalings[name] = self._recalled(name, known)
                return name
        name = self._tracers.kept_like(own) or own
        self._scalings[name] = scaled = self._tracers.scaling(name)
        self._evidence[name] = kinds_of(scaled.example)
        self._book.traced[name] = Traced(
            kind=scaled.example.kind,
            batch_sizes=self._tracers.batch_sizes,
            failures=self._tracers.failures,
            affine=scaled.affine,
            reason=scaled.reason,
            spread=scaled.spread,
            evidence=self._evidence[name],
            example=head(scaled.example),
        )
        return name

    def _recalled(self, name: str, traced: Traced) -> Scaling:
        """The scaling as it came out earlier; traces are read when something is asked that has no answer yet."""
        self._tracers.recall(traced)
        self._evidence[name] = cast("tuple[Evidence, ...]", traced.evidence)
        whole = once(lambda: self._tracers.scaling(name))
        return Scaling(
            affine=traced.affine,
            reason=traced.reason,
            at=lambda size: whole().at(size),
            example=traced.example,
            spread=traced.spread,
        )
