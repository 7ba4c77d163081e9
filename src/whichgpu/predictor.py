"""What is predicted of one workload: traces joined with the memory models, and with the answers that were kept.

The only place where a card's compute capability becomes a model: the class of cards that it belongs to decides the traces,
and traces are made, or read, when they are first needed. Computes no memory itself.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from functools import cache as once
from typing import Self, cast

from whichgpu import advice
from whichgpu.advice import TraceInfo
from whichgpu.answers import Traced, head
from whichgpu.batch_sizes import power_of_two_below
from whichgpu.capability import class_of
from whichgpu.checks import Checks, is_quick, is_quick_to_search
from whichgpu.errors import DataDependentError, StepError, WhichGpuError
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import Estimate, Evidence, Model, kinds_of, least_sure, spread_in_words, widest
from whichgpu.memory import Answers, MemoryModel
from whichgpu.one_batch import OneBatch
from whichgpu.scaling import Scaled, Scaling, Single
from whichgpu.trace import Trace
from whichgpu.trace_cache import cache_directory
from whichgpu.tracers import Tracers
from whichgpu.workload import WorkloadRef

Progress = Callable[[str], None]

_OBJECTS = 100_000  # that are made before garbage is looked for, while a predictor is at work


class Predictor:
    """Traces and memory models of one workload, one per class of cards, made when first asked for.

    A workload that does not follow its batch size is traced at each batch size that is asked about if `exact`, where that
    takes seconds for each up to the largest in `room_bytes`; otherwise, and always with real tensors, a line is put through a few batch sizes. A step that
    runs at `batch_size` and at none of those that are tried is answered for that one alone.
    """

    def __init__(
        self,
        ref: WorkloadRef,
        *,
        cache: bool,
        on_progress: Progress | None,
        exact: bool = False,
        batch_size: int | None = None,
        room_bytes: int = 0,
    ) -> None:
        self.ref = ref
        self.exact = exact
        self._room_bytes = room_bytes
        self._cached = cache
        self._own_code = ref.scheme in ("file", "module")
        self._tracers = Tracers(
            ref, cache=cache_directory() if cache else None, on_progress=on_progress, asked=batch_size
        )
        self._scalings: dict[str, Scaling] = {}
        self._models: dict[tuple[str, tuple[int, int]], Model] = {}
        self._asked: set[int] = set()  # batch sizes that are traced for themselves where others are on a line
        self._book = self._tracers.book()
        self._answered = len(self._book)
        self._checks = Checks(self._tracers, self._book, own_code=self._own_code)
        self._evidence: dict[str, tuple[Evidence, ...]] = {}  # by class of cards
        self._told: set[Evidence] = set()
        self._collected = gc.get_threshold()

    def __enter__(self) -> Self:
        # Answers make millions of small objects and few cycles: looking for these as often as usual takes a sixth of the time
        self._collected = gc.get_threshold()
        if self._collected[0]:
            gc.set_threshold(max(_OBJECTS, self._collected[0]), *self._collected[1:])
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        gc.set_threshold(*self._collected)
        self._tracers.close(error)
        if error is None:
            self.keep()

    # ---- answers ----------------------------------------------------------------------------------------

    @property
    def answers(self) -> dict[str, Answers]:
        """All that is known, by class of cards, way of scaling and capability."""
        return self._book.answers

    @property
    def step_times(self) -> dict[str, tuple[float, int]]:
        """Step times that are known, by card and batch size; what is added is kept with the answers."""
        return self._book.step_times

    def keep(self) -> None:
        """Keep on disk what has been worked out since."""
        kinds = {scaled.example.kind for scaled in self._scalings.values()}
        news = self._checks.failed_anew or len(self._book) > self._answered
        if news and len(kinds) == 1 and self._only is None:  # what holds for one batch size alone is no other's answer
            self._tracers.keep(self._book, kinds.pop())
            self._answered, self._checks.failed_anew = len(self._book), False

    # ---- what is predicted ----------------------------------------------------------------------------

    def model(self, capability: tuple[int, int]) -> Model:
        """The memory model for a card's compute capability."""
        name = self._class_of(capability)
        key = (name, capability)
        if key not in self._models:
            scaled = self._scalings[name]
            way = ("apart" if scaled.apart else "scaled") if scaled.affine else "single"
            self._models[key] = self._make_model(name, scaled, capability, self._book.about(name, way, capability))
        return self._models[key]

    def _make_model(self, name: str, scaled: Scaling, capability: tuple[int, int], answers: Answers) -> Model:
        if scaled.only is not None:
            return OneBatch(scaled.at, capability, scaled.only, answers)
        sizes = self._checks.sizes()
        exact = MemoryModel(scaled.at, capability, answers=answers, batch_sizes=sizes)
        if scaled.affine:
            return exact
        also = [size for size in self._asked if is_quick(scaled, size)]
        line = LineModel(scaled.at, capability, (*sizes, *self._checks.far(name, scaled)), answers, also)
        if self.exact and is_quick_to_search(scaled, line.largest_batch(self._room_bytes), self._asked):
            return exact
        return line

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
        if scaled.example.kind == "fake" and batch_size == self._checks.traceable(batch_size, scaled):
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
        size = self._checks.traceable(largest_batch, self._scalings[name])
        for one in dict.fromkeys((size, power_of_two_below(size))):
            if not self._checks.would_tell(one):
                break
            if one not in self._tracers.failures:
                try:
                    self._compare(one, name)
                    break
                except StepError as error:
                    self._checks.failed(one, name, error)
                except WhichGpuError as error:
                    self._tracers.unchecked[one] = str(error)
                    break
        return not self._scalings[name].affine

    def _compare(self, batch_size: int, name: str) -> None:
        """Trace a batch size; where that is not as foretold, nothing foretold counts any more."""
        if not self._checks.passes(batch_size, name, self._scalings[name]):
            self._models.clear()
            for each, scaled in self._scalings.items():
                self._scalings[each] = self._checks.applied(each, scaled)

    # ---- the trace itself, and what is said of it -----------------------------------------------------

    def source(self, batch_size: int, capability: tuple[int, int]) -> Scaled | Single:
        """The events at a batch size, one by one: foretold where that can be, and else from a trace of its own."""
        name = self._class_of(capability)
        scaled = self._scalings[name]
        if scaled.affine:
            return scaled.at(batch_size)
        return Single(self._tracers.trace_at(batch_size, name))

    def follows(self, capability: tuple[int, int]) -> bool:
        """Whether the operators at any batch size follow from the traces."""
        return self._scalings[self._class_of(capability)].affine

    def traced_as(self, capability: tuple[int, int]) -> str:
        """The class of cards whose traces hold for a capability."""
        return self._class_of(capability)

    def trace(self, capability: tuple[int, int]) -> Trace:
        """An example trace for a card's compute capability."""
        name = self._class_of(capability)
        if not self._scalings[name].example.events:  # only its facts are known yet
            self._scalings[name] = self._checks.applied(name, self._tracers.scaling(name))
        return self._scalings[name].example

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
                self._checks.failed(size, self._class_of(capability), error)
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

    @property
    def by_line(self) -> bool:
        """Whether some card is answered by a line through a few batch sizes."""
        return any(isinstance(model, LineModel) for model in self._models.values())

    @property
    def _only(self) -> int | None:
        """The one batch size at which the step runs, if that is so."""
        return next((scaled.only for scaled in self._scalings.values()), None)

    def notes(self) -> tuple[str, ...]:
        """Plain caveats for the user, each once."""
        found = self._tracers.notes()
        for scaled in self._scalings.values():
            found += scaled.example.notes
            found += advice.caveats(scaled.example)
            if scaled.only is not None:
                continue  # the tracers have told
            if scaled.apart:
                found.append(f"batch size 1 was traced by itself, as the step runs otherwise there ({scaled.reason})")
            elif not scaled.affine:
                found.append(f"memory is not a straight function of the batch size ({scaled.reason})")
            elif scaled.spread:
                found.append(f"some sizes follow from the data; traces differ by up to {scaled.spread:.2%} of memory")
        found += self._tracers.notes_on_sizes()
        if line := next((model for model in self._models.values() if isinstance(model, LineModel)), None):
            sizes = ", ".join(map(str, line.batch_sizes))
            slow = self.exact and self._first().example.kind == "fake"
            why = (
                ", since it runs more operators for each sample and would take long to trace at many more"
                if slow
                else ""
            )
            found.append(f"estimated from a line through batch sizes {sizes}{why}")
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
                self._scalings[name] = self._checks.applied(name, self._recalled(name, known))
                return name
        name = self._tracers.kept_like(own) or own
        scaled = self._tracers.scaling(name)
        self._scalings[name] = self._checks.applied(name, scaled)
        self._evidence[name] = kinds_of(scaled.example)
        self._book.traced[name] = Traced(
            kind=scaled.example.kind,
            batch_sizes=self._tracers.batch_sizes,
            failures=self._tracers.failures,
            affine=scaled.affine,
            reason=scaled.reason,
            spread=scaled.spread,
            seconds_per_sample=scaled.seconds_per_sample,
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
            seconds_per_sample=traced.seconds_per_sample,
        )
