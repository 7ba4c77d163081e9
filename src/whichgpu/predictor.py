"""What is predicted of one workload: traces joined with the memory models, and with the answers that were kept.

The only place where a card's compute capability becomes a model: the class of cards that it belongs to decides the traces,
and traces are made, or read, when they are first needed. Computes no memory itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache as once
from itertools import compress
from typing import Self, cast

import msgspec

from whichgpu import advice
from whichgpu.advice import TraceInfo
from whichgpu.answers import Traced, head
from whichgpu.batch_sizes import power_of_two_below
from whichgpu.capability import class_of
from whichgpu.errors import DataDependentError, StepError, WhichGpuError
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import Estimate, Evidence, Model, kinds_of, least_sure, spread_in_words, widest
from whichgpu.memory import Answers, MemoryModel
from whichgpu.scaling import Scaled, Scaling, Single, one_by_one
from whichgpu.trace import Trace
from whichgpu.trace_cache import cache_directory
from whichgpu.tracers import Tracers
from whichgpu.workload import WorkloadRef

Progress = Callable[[str], None]

# With real tensors a step takes as long as on the CPU: it is traced where that takes no longer than this, by the time that
# another batch size took.
_LONGEST_REAL_S = 90.0
# Up to here batch sizes are traced to check what is foretold of them: hollow tensors take no memory at any size ...
_LARGEST_TRACED = 65_536
# ... but what a user's own code loads may, which is guessed from what it puts on the GPU; some samples are always tried.
_LARGEST_INPUTS_BYTES = 256 << 20
_ALWAYS_TRACED = 1024
# Where all traces were kept, so that a process would have to be started, an answer of up to so many times the largest
# batch size at which the step ran stands without a trace of its own.
_NEAR = 2


class Predictor:
    """Traces and memory models of one workload, one per class of cards, made when first asked for.

    A workload that does not follow its batch size is traced at each batch size that is asked about if `exact`, which
    takes seconds for each; otherwise, and always with real tensors, a line is put through a few batch sizes.
    """

    def __init__(self, ref: WorkloadRef, *, cache: bool, on_progress: Progress | None, exact: bool = False) -> None:
        self.ref = ref
        self.exact = exact
        self._cached = cache
        self._own_code = ref.scheme in ("file", "module")
        self._tracers = Tracers(ref, cache=cache_directory() if cache else None, on_progress=on_progress)
        self._scalings: dict[str, Scaling] = {}
        self._models: dict[tuple[str, tuple[int, int]], Model] = {}
        self._asked: set[int] = set()  # batch sizes that are traced for themselves where others are on a line
        self._book = self._tracers.book()
        self._answered = len(self._book)
        self._tracers.checked.update(size for size, _ in self._book.checked())
        self._evidence: dict[str, tuple[Evidence, ...]] = {}  # by class of cards
        self._told: set[Evidence] = set()
        self._changed = False  # whether the book has to be kept although it has no more answers

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
        if (self._changed or len(self._book) > self._answered) and len(kinds) == 1:
            self._tracers.keep(self._book, kinds.pop())
            self._answered, self._changed = len(self._book), False

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
                self._models[key] = MemoryModel(scaled.at, capability, answers=answers, batch_sizes=self._sizes())
            else:
                also = [size for size in self._asked if self._is_quick(scaled.example, size)]
                self._models[key] = LineModel(scaled.at, capability, self._sizes(), answers, also)
        return self._models[key]

    def estimate(self, capability: tuple[int, int]) -> Estimate:
        """The memory model for a card's compute capability, and how sure it is."""
        model = self.model(capability)
        evidence = self._evidence[self._class_of(capability)]
        if isinstance(model, LineModel):
            evidence = (*evidence, "line")
        self._told.add(least_sure(evidence))
        return Estimate(model, widest(evidence, capability))

    # ---- batch sizes that are traced as a check -------------------------------------------------------

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
        if scaled.example.kind == "fake" and batch_size == self._traceable(batch_size, name):
            with contextlib.suppress(DataDependentError):  # too much to follow at just this size
                self._compare(batch_size, name)

    def confirm(self, largest_batch: int, capability: tuple[int, int]) -> bool:
        """Trace the largest batch size of an answer, or near it, where that is cheap and none as large was.

        Says whether the answer has to be worked out again, as sizes are not those foretold. A step that fails there may want
        another batch size, so that the power of two below is tried; that it failed is part of `info` and `notes`. Whatever
        else goes wrong (a time limit, a crash, values to look at) is no property of the batch size: it is said, and not kept.
        """
        name = self._class_of(capability)
        if not self._scalings[name].affine or self._scalings[name].example.kind != "fake":
            return False
        size = self._traceable(largest_batch, name)
        for one in dict.fromkeys((size, power_of_two_below(size))):
            if not self._is_far(one):
                break
            if one not in self._tracers.failures:
                try:
                    self._compare(one, name)
                    break
                except StepError as error:
                    self._failed(one, name, error)
                except WhichGpuError as error:
                    self._tracers.unchecked[one] = str(error)
                    break
        return not self._scalings[name].affine

    def _is_far(self, batch_size: int) -> bool:
        """Whether a batch size would say something that is not known from those that were tried."""
        highest = max(self._tracers.ran_at())
        near = 1 if self._tracers.seconds else _NEAR
        # neither larger nor rounder ones need be tried once a power of two failed
        hopeless = [size for size in self._tracers.failures if size > highest and size == power_of_two_below(size)]
        return batch_size > near * highest and batch_size < min(hopeless, default=batch_size + 1)

    def _traceable(self, batch_size: int, name: str) -> int:
        """The batch size, or the largest below that is cheap to trace."""
        size = min(batch_size, _LARGEST_TRACED)
        if size <= _ALWAYS_TRACED or not self._own_code:
            return size
        source = self._scalings[name].at(max(self._tracers.batch_sizes))
        inputs = [storage.category == "input" for storage in source.low.storages]
        input_bytes = sum(compress(source.storage_bytes(size), inputs))
        if isinstance(source, Single):  # says the same whatever the batch size
            input_bytes = input_bytes * size // source.low.batch_size
        if input_bytes <= _LARGEST_INPUTS_BYTES:
            return size
        return max(size * _LARGEST_INPUTS_BYTES // input_bytes, _ALWAYS_TRACED)

    def _compare(self, batch_size: int, name: str) -> None:
        """Trace a batch size and keep whether it is as foretold; where not, nothing foretold counts any more."""
        key = f"{name} {batch_size}"
        if batch_size in self._tracers.batch_sizes or key in self._book.checks:
            return
        trace = self._tracers.trace_at(batch_size, name)
        foretold = self._scalings[name].at(batch_size)
        self._book.checks[key] = foretold.agrees_with(trace) if isinstance(foretold, Scaled) else None
        self._tracers.checked.add(batch_size)
        if self._book.checks[key] is not None:
            self._models.clear()
            for each, scaled in self._scalings.items():
                self._scalings[each] = self._as_checked(each, scaled)

    def _failed(self, batch_size: int, name: str, error: StepError) -> None:
        self._tracers.failures[batch_size] = str(error)
        traced = self._book.traced[name]
        self._book.traced[name] = msgspec.structs.replace(traced, failures=dict(self._tracers.failures))
        self._changed = True

    def _as_checked(self, name: str, scaled: Scaling) -> Scaling:
        """A scaling, unless a check disproved it, in this question or an earlier one: then each size is traced by itself."""
        reason = next((reason for reason in self._book.checks.values() if reason is not None), None)
        if reason is None or not scaled.affine or scaled.example.kind != "fake":
            return scaled
        at = one_by_one(lambda size: self._tracers.trace_at(size, name))
        return Scaling(affine=False, reason=reason, at=at, example=scaled.example)

    def _sizes(self) -> tuple[int, ...]:
        """The batch sizes that were traced, of the checks those that disproved what was foretold."""
        off = {size for size, reason in self._book.checked() if reason is not None}
        return tuple(sorted({*self._tracers.batch_sizes, *off}))

    # ---- the trace itself, and what is said of it -----------------------------------------------------

    @staticmethod
    def _is_quick(example: Trace, batch_size: int) -> bool:
        """Whether a trace like the example takes little time and memory at a batch size."""
        if example.kind == "fake":
            return batch_size <= _ALWAYS_TRACED
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
            self._scalings[name] = self._as_checked(name, self._tracers.scaling(name))
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

    def default_batch_size(self, capability: tuple[int, int]) -> int:
        """What the workload itself names; where the step fails at some sizes, one at which it was seen to run."""
        size = int(self._first().example.facts.get("default_batch_size", 8))
        if self._own_code and self._tracers.usual and size not in self._tracers.failures:
            try:
                self.check(size, capability)
            except StepError as error:
                self._failed(size, self._class_of(capability), error)
        runs = size not in self._tracers.failures and (self._tracers.usual or size in self._tracers.ran_at())
        return size if runs else self._tracers.batch_sizes[0]

    def info(self) -> TraceInfo:
        """How the workload was traced."""
        first = self._first()
        return TraceInfo(
            kind=first.example.kind,
            affine=all(s.affine for s in self._scalings.values()),
            batch_sizes=self._tracers.ran_at(),
            failed_batch_sizes=tuple(sorted(self._tracers.failures)),
            seconds=round(self._tracers.seconds, 2),
            cached=self._tracers.cached,
            torch_version=first.example.torch_version,
            unit=first.example.facts.get("unit", "samples"),
            items_per_sample=first.example.facts.get("items_per_sample", 1),
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
            sizes = ", ".join(map(str, self._sizes()))
            found.append(f"estimated from a line through batch sizes {sizes}")
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
                self._scalings[name] = self._as_checked(name, self._recalled(name, known))
                return name
        name = self._tracers.kept_like(own) or own
        scaled = self._tracers.scaling(name)
        self._scalings[name] = self._as_checked(name, scaled)
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
