"""The questions that whichgpu answers, from Python: `fit`, `explain` and `rank`.

The only place that joins tracing, the predictors and the catalogue. Nothing here computes memory or formats numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from functools import cache as once
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar, cast

import msgspec

from whichgpu import advice, arguments, catalogue, explanation, remedies, text, tracing, workload
from whichgpu import snapshot as snapshots
from whichgpu.advice import FitReport, RankReport, TraceInfo
from whichgpu.answers import Book, Traced, head
from whichgpu.capability import CLASSES, class_of
from whichgpu.errors import DataDependentError, StepError, WhichGpuError
from whichgpu.explanation import ExplainReport
from whichgpu.extrapolation import LineModel
from whichgpu.intervals import Estimate, Evidence, Model, Verdict, kinds_of, least_sure, spread_in_words, widest
from whichgpu.memory import MAX_BATCH_SIZE, MemoryModel
from whichgpu.overheads import context_bytes
from whichgpu.scaling import Scaled, Scaling, Single, one_by_one, scaling
from whichgpu.torch_build import installed_torch
from whichgpu.trace import Trace
from whichgpu.trace_cache import cache_directory

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[str], None]
BatchSizes = tuple[int, int, int]

# Hollow tensors cost nothing, so batch sizes far from odd special cases; for the check a prime one that is far off,
# or padding to a multiple of 16 would pass for memory that does not grow.
FAKE_BATCH_SIZES = (4, 8, 67)
# Real tensors cost time and memory.
REAL_BATCH_SIZES = (1, 2, 3)
# The first ones at which the step runs are taken: some want pairs of samples, multiples of eight or sixteen, or more
# than one sample, and some have no more than a few.
_BATCH_SIZES: dict[tracing.Kind, tuple[BatchSizes, ...]] = {
    "fake": (FAKE_BATCH_SIZES, (4, 8, 24), (16, 32, 144), (16, 32, 64)),
    "real-cpu": (REAL_BATCH_SIZES, (2, 4, 6)),
}
# Up to here the batch size that is asked about is traced as well. Beyond, the user's own data may take too much memory.
_LARGEST_CHECKED = 1024
DEFAULT_CARD = "H200"  # whose rules hold under --memory-limit when no card is named


# Workloads (name and changes) whose hollow tensors could not go on at some batch size, within one question.
_REAL_ONLY: ContextVar[set[tuple[str, tuple[str, ...]]] | None] = ContextVar("_REAL_ONLY", default=None)


def _falling_back(question: Callable[P, T]) -> Callable[P, T]:
    """Ask again with real tensors where hollow ones could not go on: small batches may pass where larger ones do not."""

    @functools.wraps(question)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        found: set[tuple[str, tuple[str, ...]]] = set()
        token = _REAL_ONLY.set(found)
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

    return ask


@_falling_back
def fit(
    name: str,
    *,
    batch_size: int | None = None,
    gpus: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    optimizer: str | None = None,
    cache: bool = True,
    on_progress: Progress | None = None,
) -> FitReport:
    """Does a batch of the workload fit on each card, and what is the largest that does?

    `batch_size`: samples per step, by default the workload's own. `gpus`: names of cards, by default every card with CUDA
    of the catalogue; cards that are named are answered exactly. `memory_limit_bytes` adds a row for PyTorch's allocator
    limited to so much. `optimizer` ("adamw", "sgd", ...) replaces that of a library's model or of the zoo. `cache=False`
    traces again and keeps nothing on disk. `on_progress` is called with a line now and then. Raises subclasses of
    WhichGpuError.
    """
    arguments.check_name(name)
    arguments.check_batch_size(batch_size)
    arguments.check_memory_limit(memory_limit_bytes)
    arguments.check_gpus(gpus)
    cards = catalogue.load()
    named = {card.id: card for card in map(cards.find, gpus or ())}  # a card named twice is answered once
    chosen = list(named.values()) or [card for card in cards.gpus if card.cuda]
    ref = workload.parse(name)
    if optimizer is not None:
        ref = workload.with_options(ref, {"optimizer": optimizer})
    exact = bool(gpus) or memory_limit_bytes is not None
    with Predictor(ref, cache=cache, on_progress=on_progress, exact=exact) as predictor:
        limit_card = chosen[0] if gpus else cards.find(DEFAULT_CARD)
        capability = (limit_card if memory_limit_bytes is not None else chosen[0]).capability
        if batch_size is not None:
            predictor.check(batch_size, capability)
        estimate = predictor.estimate(capability)
        size = batch_size if batch_size is not None else predictor.default_batch_size()
        rows = []
        if memory_limit_bytes is not None:
            rows.append(advice.limit_row(estimate, size, memory_limit_bytes))
        build = installed_torch()
        for number, card in enumerate(chosen):
            if on_progress is not None:
                on_progress(f"{card.name} ({number + 1} of {len(chosen)})")
            facts = predictor.facts(card.capability)
            rows.append(
                advice.fit_row(
                    card,
                    predictor.estimate(card.capability),
                    size,
                    context_bytes(card.capability),
                    catalogue.supports(card, build.version, build.cuda, advice.dtypes_used(facts)),
                )
            )
        return FitReport(
            workload=ref.text,
            batch_size=size,
            basis="predicted",
            trace=predictor.info(),
            gpus=tuple(rows),
            notes=(
                *predictor.notes(),
                *_in_general(predictor, exact),
                *([_limit_note(limit_card)] if memory_limit_bytes is not None else []),
                *_unbounded(row.max_batch_size for row in rows),
                *([] if gpus else advice.left_out(cards.gpus)),
            ),
        )


def _in_general(predictor: Predictor, exact: bool) -> list[str]:
    """What is said of a workload for which every card is answered by a line, although a named one need not be."""
    info = predictor.info()
    if exact or info.affine or info.kind != "fake":
        return []
    return ["that line is an estimate for many cards at once: a card that is named (--gpu) is answered exactly"]


@_falling_back
def explain(
    name: str,
    *,
    batch_size: int | None = None,
    gpu: str | None = None,
    snapshot: str | Path | None = None,
    cache: bool = True,
    on_progress: Progress | None = None,
) -> ExplainReport:
    """Where does the memory of a step go, and what would the usual remedies save?

    Each remedy is traced by itself, which takes seconds for each the first time. Without `gpu` memory has no limit, and
    the rules are those of the H200. `snapshot` names a file for the predicted allocator events as a PyTorch memory
    snapshot; an earlier file there is replaced. The other arguments are those of `fit`. Raises subclasses of
    WhichGpuError.
    """
    arguments.check_name(name)
    arguments.check_batch_size(batch_size)
    arguments.check_gpu(gpu)
    cards = catalogue.load()
    card = cards.find(gpu) if gpu is not None else None
    capability = (card or cards.find(DEFAULT_CARD)).capability
    room = max(card.memory_bytes - context_bytes(capability), 0) if card is not None else None
    target = Path(snapshot).expanduser() if snapshot is not None else None
    if target is not None:
        snapshots.check_path(target)
    ref = workload.parse(name)
    with Predictor(ref, cache=cache, on_progress=on_progress, exact=True) as predictor:
        if batch_size is not None:
            predictor.check(batch_size, capability)
        predictor.model(capability)
        size = batch_size if batch_size is not None else predictor.default_batch_size()
        look = _look(predictor, size, capability, room)
        found = explanation.explained(look.model, look.trace, size, look.within_bytes)
        if target is not None:
            snapshots.write(snapshots.make(look.model.program(size), look.trace, look.within_bytes), target)
        info, notes = predictor.info(), predictor.notes()
    plans, left_out = remedies.plans(ref, look.trace, size, _no_bfloat16(card))
    outcomes = [_try(plan, size, capability, room, look, cache=cache, on_progress=on_progress) for plan in plans]
    if room is not None and look.within_bytes is None:
        notes = (*notes, "the batch does not fit; what is shown is a run with as much memory as it wants")
    return ExplainReport(
        workload=ref.text,
        batch_size=size,
        basis="predicted",
        trace=info,
        gpu=card.name if card is not None else None,
        memory_bytes=card.memory_bytes if card is not None else None,
        context_bytes=context_bytes(capability) if card is not None else None,
        verdict=look.verdict,
        max_batch_size=look.largest,
        max_batch_size_safe=look.safe,
        max_batch_size_at_least=advice.at_least(look.largest),
        peak_reserved_bytes=look.reserved_bytes,
        **msgspec.structs.asdict(found),
        remedies=tuple(one for one in outcomes if isinstance(one, remedies.Remedy)),
        left_out=tuple(one for one in (*left_out, *outcomes) if isinstance(one, remedies.LeftOut)),
        snapshot=str(target) if target is not None else None,
        notes=notes,
    )


@_falling_back
def rank(
    names: Sequence[str],
    *,
    cache: bool = True,
    on_progress: Progress | None = None,
) -> RankReport:
    """Which cards train these workloads, and what do they cost? Best first.

    `names` is a list; the other arguments are those of `fit`. Raises subclasses of WhichGpuError.
    """
    arguments.check_names(names)
    refs = list({ref.text: ref for ref in map(workload.parse, names)}.values())
    cards = catalogue.load()
    chosen = [card for card in cards.gpus if card.cuda]
    build = installed_torch()
    answers: dict[str, dict[str, advice.Largest]] = {}
    traces: dict[str, TraceInfo] = {}
    notes: list[str] = []
    for ref in refs:
        with Predictor(ref, cache=cache, on_progress=on_progress) as predictor:
            largest = {}
            for number, card in enumerate(chosen):
                if on_progress is not None:
                    on_progress(f"{ref.text} on {card.name} ({number + 1} of {len(chosen)})")
                facts = predictor.facts(card.capability)
                largest[card.id] = advice.largest(
                    card,
                    predictor.estimate(card.capability),
                    context_bytes(card.capability),
                    catalogue.supports(card, build.version, build.cuda, advice.dtypes_used(facts)),
                )
            answers[ref.text] = largest
            traces[ref.text] = predictor.info()
            notes += [
                f"{ref.text}: {note}"
                for note in (*predictor.notes(), *_unbounded(one.batch_size for one in largest.values()))
            ]
    prices = {card.id: (cards.price(card, "buy"), cards.price(card, "rent")) for card in chosen}
    return RankReport(
        workloads=tuple(ref.text for ref in refs),
        basis="predicted",
        traces=traces,
        gpus=advice.ranked(chosen, answers, prices),
        notes=tuple(dict.fromkeys((*notes, *advice.left_out(cards.gpus)))),
    )


def _limit_note(card: catalogue.Gpu) -> str:
    return (
        f"limit: by the rules of the {card.name}, and for PyTorch's allocator alone; a card of that size also holds the "
        "CUDA context, so name it with --gpu to ask about one"
    )


def _unbounded(largest: Iterable[int]) -> list[str]:
    """The caveat where the search for the largest batch met its own end and not that of the memory."""
    if max(largest, default=0) < MAX_BATCH_SIZE:
        return []
    size = text.format_count(MAX_BATCH_SIZE)
    return [f"no batch size above {size} was looked at; does the memory of this step depend on its batch size at all?"]


class _Look(NamedTuple):
    """One batch size of a workload, looked at event for event."""

    model: MemoryModel  # for this batch size alone
    trace: Trace  # with the operators and storages of its events
    verdict: Verdict | None  # None without a card, as are the largest batches
    within_bytes: int | None  # the memory that it is replayed with; None: as much as it wants
    largest: int | None
    safe: int | None

    reserved_bytes: int
    allocated_bytes: int


def _look(
    predictor: Predictor, batch_size: int, capability: tuple[int, int], room_bytes: int | None, *, search: bool = True
) -> _Look:
    """A batch size on a card with so much room (None: no card); `search`: for the largest batches as well."""
    estimate = predictor.estimate(capability)
    source = predictor.source(batch_size, capability)
    model = MemoryModel(lambda _: source, capability)
    verdict = estimate.verdict(batch_size, room_bytes) if room_bytes is not None else None
    fitting = room_bytes is not None and verdict in ("fits", "likely") and model.fits(batch_size, room_bytes)
    within = room_bytes if fitting else None
    result = model.replay(batch_size, within)
    searched = search and room_bytes is not None
    return _Look(
        model=model,
        trace=source.low,
        verdict=verdict,
        within_bytes=within,
        largest=estimate.largest_batch(room_bytes) if searched and room_bytes is not None else None,
        safe=estimate.largest_safe_batch(room_bytes) if searched and room_bytes is not None else None,
        reserved_bytes=result.peak_reserved_bytes,
        allocated_bytes=result.peak_allocated_bytes,
    )


def _try(
    plan: remedies.Plan,
    batch_size: int,
    capability: tuple[int, int],
    room_bytes: int | None,
    before: _Look,
    *,
    cache: bool,
    on_progress: Progress | None,
) -> remedies.Remedy | remedies.LeftOut:
    """What a remedy saves against the step as it is, or why it cannot be traced."""

    def progress(line: str) -> None:
        if on_progress is not None:
            on_progress(f"{plan.remedy}: {line}")

    size = plan.batch_size(batch_size)
    try:
        with Predictor(plan.ref, cache=cache, on_progress=progress, exact=True) as predictor:
            if size != batch_size:  # the step was not tried at this one; the others follow from how it is changed
                predictor.check(size, capability)
            predictor.model(capability)
            if predictor.info().kind != "fake":
                return remedies.LeftOut(remedy=plan.remedy, reason="the changed step looks at computed values")
            # where sizes do not follow the batch size, a search would trace each by itself
            look = _look(predictor, size, capability, room_bytes, search=predictor.info().affine)
    except WhichGpuError as error:
        return remedies.LeftOut(remedy=plan.remedy, reason=remedies.reason_of(error, plan))
    return remedies.Remedy(
        remedy=plan.remedy,
        change=plan.change,
        peak_reserved_bytes=look.reserved_bytes,
        peak_allocated_bytes=look.allocated_bytes,
        saved_bytes=before.reserved_bytes - look.reserved_bytes,
        verdict=look.verdict,
        max_batch_size=plan.whole(look.largest),
        max_batch_size_safe=plan.whole(look.safe),
        max_batch_size_at_least=advice.at_least(look.largest),
    )


def _no_bfloat16(card: catalogue.Gpu | None) -> str | None:
    """Why a card cannot compute in bfloat16; None if it can, or when no card was named."""
    if card is None:
        return None
    build = installed_torch()
    plain = catalogue.supports(card, build.version, build.cuda)
    with_it = catalogue.supports(card, build.version, build.cuda, ["bfloat16"])
    return next((problem for problem in with_it if problem not in plain), None)


class Predictor:
    """Traces and memory models of one workload, one per class of cards, made when first asked for.

    A workload that does not follow its batch size is traced at each batch size that is asked about if `exact`, which
    takes seconds for each; otherwise, and always with real tensors, a line is put through a few batch sizes.
    """

    def __init__(
        self, ref: workload.WorkloadRef, *, cache: bool, on_progress: Progress | None, exact: bool = False
    ) -> None:
        self._ref = ref
        self._exact = exact
        self._stack = ExitStack()
        directory = cache_directory() if cache else None
        self._tracers = {
            kind: self._stack.enter_context(tracing.Tracer(ref, kind=kind, cache=directory, on_progress=on_progress))
            for kind in _BATCH_SIZES
        }
        self._real_only = _REAL_ONLY.get()
        self._name = (ref.text, ref.changes)
        real_only = self._real_only is not None and self._name in self._real_only
        self._kind: tracing.Kind | None = "real-cpu" if real_only else None
        self._sizes: BatchSizes = FAKE_BATCH_SIZES  # the batch sizes that were traced
        self._failures: dict[int, str] = {}  # batch sizes at which the step raised
        self._scalings: dict[str, Scaling] = {}
        self._models: dict[tuple[str, tuple[int, int]], Model] = {}
        books = {kind: tracer.book() for kind, tracer in self._tracers.items() if self._kind in (None, kind)}
        self._book = next((book for book in books.values() if book), Book())
        self._answered = len(self._book)
        self._evidence: dict[str, tuple[Evidence, ...]] = {}  # by class of cards
        self._told: set[Evidence] = set()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if kind is DataDependentError and self._kind == "fake" and self._real_only is not None:
            self._real_only.add(self._name)
        kinds = {scaled.example.kind for scaled in self._scalings.values()}
        if kind is None and len(self._book) > self._answered and len(kinds) == 1:
            self._tracers[kinds.pop()].keep(self._book)

    def model(self, capability: tuple[int, int]) -> Model:
        """The memory model for a card's compute capability."""
        name = self._class_of(capability)
        key = (name, capability)
        if key not in self._models:
            scaled = self._scalings[name]
            way = "scaled" if scaled.affine else "single"
            answers = self._book.about(name, way, capability)
            if scaled.affine or (self._exact and scaled.example.kind == "fake"):
                self._models[key] = MemoryModel(scaled.at, capability, answers=answers, batch_sizes=self._sizes)
            else:
                self._models[key] = LineModel(scaled.at, capability, self._sizes, answers)
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
        """
        name = self._class_of(capability)
        scaled = self._scalings[name]
        if scaled.example.kind != "fake" or batch_size > _LARGEST_CHECKED or batch_size in self._sizes:
            return
        key = f"{name} {batch_size}"
        if key not in self._book.checks:
            try:
                trace = self._tracers["fake"].trace_at(batch_size, name)
            except DataDependentError:  # too much to follow at just this size
                return
            foretold = scaled.at(batch_size)
            self._book.checks[key] = foretold.agrees_with(trace) if isinstance(foretold, Scaled) else None
        reason = self._book.checks[key]
        if reason is not None:
            at = one_by_one(lambda size: self._tracers["fake"].trace_at(size, name))
            self._scalings[name] = Scaling(affine=False, reason=reason, at=at, example=scaled.example)

    def source(self, batch_size: int, capability: tuple[int, int]) -> Scaled | Single:
        """The events at a batch size, one by one: foretold where that can be, and else from a trace of its own."""
        name = self._class_of(capability)
        scaled = self._scalings[name]
        if scaled.affine:
            return scaled.at(batch_size)
        return Single(self._tracers[self._kind or "fake"].trace_at(batch_size, name))

    def trace(self, capability: tuple[int, int]) -> Trace:
        """An example trace for a card's compute capability."""
        name = self._class_of(capability)
        if not self._scalings[name].example.events:  # only its facts are known yet
            self._scalings[name] = self._trace(name)
        return self._scalings[name].example

    def facts(self, capability: tuple[int, int]) -> Trace:
        """The same, perhaps without operators, storages and events: then nothing need be read."""
        return self._scalings[self._class_of(capability)].example

    def default_batch_size(self) -> int:
        """What the workload itself names; where the step fails at some sizes, one at which it was seen to run."""
        size = int(self._first().example.facts.get("default_batch_size", 8))
        usual = self._sizes in (FAKE_BATCH_SIZES, REAL_BATCH_SIZES)
        return size if usual or size in self._sizes else self._sizes[0]

    def info(self) -> TraceInfo:
        """How the workload was traced."""
        first = self._first()
        used = self._tracers[self._kind or "fake"]
        return TraceInfo(
            kind=first.example.kind,
            affine=all(s.affine for s in self._scalings.values()),
            seconds=round(sum(tracer.seconds for tracer in self._tracers.values()), 2),
            cached=used.cached,
            torch_version=first.example.torch_version,
        )

    def notes(self) -> tuple[str, ...]:
        """Plain caveats for the user, each once."""
        found = [note for tracer in self._tracers.values() for note in tracer.notes]
        for scaled in self._scalings.values():
            found += scaled.example.notes
            found += advice.caveats(scaled.example)
            if not scaled.affine:
                found.append(f"memory is not a straight function of the batch size ({scaled.reason})")
            elif scaled.spread:
                found.append(f"some sizes follow from the data; traces differ by up to {scaled.spread:.2%} of memory")
        sizes = ", ".join(map(str, self._sizes))
        if self._sizes not in (FAKE_BATCH_SIZES, REAL_BATCH_SIZES):
            failures = "; ".join(message.partition(": ")[2] for message in self._failures.values())
            why = f" ({failures})" if failures else ""
            beyond = [size for size in self._failures if size > max(self._sizes)]
            if beyond:
                why += (
                    f"; larger batches than {max(self._sizes)} are computed although the step failed at {min(beyond)}"
                )
            if "accumulate" not in self._ref.options or self._failures:
                found.append(f"traced at batch sizes {sizes}, since the step fails at others{why}")
        if any(isinstance(model, LineModel) for model in self._models.values()):
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
                self._scalings[name] = self._recalled(name, known)
                return name
        name = self._kept_like(own) or own
        self._scalings[name] = scaled = self._trace(name)
        self._evidence[name] = kinds_of(scaled.example)
        self._book.traced[name] = Traced(
            kind=scaled.example.kind,
            batch_sizes=self._sizes,
            failures=self._failures,
            affine=scaled.affine,
            reason=scaled.reason,
            spread=scaled.spread,
            evidence=self._evidence[name],
            example=head(scaled.example),
        )
        return name

    def _recalled(self, name: str, traced: Traced) -> Scaling:
        """The scaling as it came out earlier; traces are read when something is asked that has no answer yet."""
        self._kind, self._sizes = traced.kind, traced.batch_sizes
        self._failures.update(traced.failures)
        self._evidence[name] = cast("tuple[Evidence, ...]", traced.evidence)
        whole = once(lambda: self._trace(name))
        return Scaling(
            affine=traced.affine,
            reason=traced.reason,
            at=lambda size: whole().at(size),
            example=traced.example,
            spread=traced.spread,
        )

    def _kept_like(self, own: str) -> str | None:
        """Another class whose traces are all kept and hold for this one too; None where its own are kept as well."""
        for kind in _BATCH_SIZES:
            if self._kind not in (None, kind):
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

    def _kept(self, kind: tracing.Kind, name: str) -> BatchSizes | None:
        """The batch sizes of which all traces are kept."""
        holds = self._tracers[kind].holds
        return next((sizes for sizes in self._choices(kind) if all(holds(size, name) for size in sizes)), None)

    def _choices(self, kind: tracing.Kind) -> tuple[BatchSizes, ...]:
        """The batch sizes to trace at, those that are tried first before the others."""
        parts = self._ref.options.get("accumulate", "1")
        if not (parts.isascii() and parts.isdigit() and int(parts) > FAKE_BATCH_SIZES[0]):
            return _BATCH_SIZES[kind]
        # a batch has at least one sample for each micro batch; where it splits evenly, memory follows its size
        return tuple(
            (low * int(parts), high * int(parts), third * int(parts)) for low, high, third in _BATCH_SIZES[kind]
        )

    def _trace(self, name: str) -> Scaling:
        if self._kind is None:
            known = {
                kind: any(tracer.holds(sizes[0], name) for sizes in _BATCH_SIZES[kind])
                for kind, tracer in self._tracers.items()
            }
            self._kind = "real-cpu" if known["real-cpu"] and not known["fake"] else "fake"
        if self._kind == "fake":
            try:
                return self._trace_somewhere(name, "fake")
            except DataDependentError:
                self._kind = "real-cpu"
        return self._trace_somewhere(name, "real-cpu")

    def _trace_somewhere(self, name: str, kind: tracing.Kind) -> Scaling:
        """The scaling from the first batch sizes at which the step runs; raises the first StepError if it runs at none."""
        first: StepError | None = None
        kept = self._kept(kind, name)
        for sizes in dict.fromkeys(([kept] if kept else []) + list(self._choices(kind))):
            if not self._failures.keys() & set(sizes):
                self._sizes = sizes
                try:
                    return self._scaling(name, kind, sizes)
                except StepError as error:
                    first = first or error
        assert first is not None
        raise first

    def _scaling(self, name: str, kind: tracing.Kind, batch_sizes: BatchSizes) -> Scaling:
        tracer = self._tracers[kind]
        rest = list(batch_sizes)

        def trace_at(batch_size: int) -> Trace:
            ahead = [size for size in rest if size != batch_size]
            if batch_size in rest:
                rest.remove(batch_size)
            try:
                return tracer.trace_at(batch_size, name, ahead=ahead)
            except StepError as error:
                self._failures[batch_size] = str(error)
                raise

        return scaling(trace_at, batch_sizes)
