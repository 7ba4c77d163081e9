"""Measure workloads on the GPU in front of you: the largest batch, its memory, and how fast steps run.

Joins the search (`bench_search`), the prediction it starts from (`predictor`), the measuring process
(`bench_worker`), the driver's figures (`gpu_status`) and the record of measurements (`results`). Touches no GPU itself.

Every attempt is recorded as soon as it ends, and what is on record for the same workload, environment and limit is not
measured again: after a kill the same call carries on where it was. Data loading is not measured.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import msgspec

from whichgpu import catalogue, errors, gpu_status, results, text, workload
from whichgpu.bench_attempts import WORKER, Attempts, Card, Said
from whichgpu.bench_report import BenchReport, BenchRow, Speed
from whichgpu.bench_search import Guess, Result, Search, Seen, line_guess
from whichgpu.capability import parse as parse_capability
from whichgpu.errors import BenchError, InputError, WhichGpuError
from whichgpu.gpu_status import GpuStatus, Sampler
from whichgpu.intervals import Model
from whichgpu.memory import MemoryModel
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor
from whichgpu.results import LOCAL, OUTCOMES, Environment, Measurement, Outcome, Store
from whichgpu.workload import WorkloadRef

Progress = Callable[[str], None]

DEFAULT_STEPS = 3  # the first makes the optimizer's state, later ones show it together with activations
DEFAULT_TIME_BUDGET_S = 10.0
DEFAULT_TIMEOUT_S = 300.0
_SPEEDS = 4  # batch sizes at which steps are timed: the largest, its half, ...
_LAG_S = 3.0  # how long memory may take to come back from a process that ended
_IGNORED_BYTES = 64 << 20  # held by others without being called busy
_UNSEEN_BYTES = 2 << 30  # held by nobody that can be seen, where contexts and the driver account for less
_ROOM_BYTES = 3 << 29  # that an attempt under a limit needs besides: context and libraries

_RESULTS: dict[str, Result] = {
    "ok": "fits",
    "out_of_memory": "too large",
    "step_error": "refuses",
    "cuda_error": "fails",
    "crash": "fails",
    "hang": "fails",
}
_REPEATED = frozenset({"crash", "hang", "busy", "driver"})  # chance, or no fault of the batch: measured again


def bench(
    names: Sequence[str],
    *,
    gpu_index: int = 0,
    batch_size: int | None = None,
    memory_limits_bytes: Sequence[int] = (),
    power_of_two: bool = False,
    options: Mapping[str, str] | None = None,
    steps: int = DEFAULT_STEPS,
    time_budget_s: float = DEFAULT_TIME_BUDGET_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    results_file: Path | None = None,
    again: bool = False,
    on_progress: Progress | None = None,
    worker: Sequence[str] = WORKER,
) -> BenchReport:
    """Measure the largest batch of each workload under each memory limit, and the speed at it and at its halves.

    Without limits: on the whole card. With `batch_size`: only that batch. `options` go to each workload, as after a ?.
    `timeout_s` bounds each attempt; a `time_budget_s` of 0 leaves speeds out. Raises subclasses of WhichGpuError.
    """
    _check(names, gpu_index, batch_size, memory_limits_bytes, steps, time_budget_s, timeout_s)
    refs = [workload.with_options(workload.parse(name), options or {}) for name in names]
    plan = _Plan(
        gpu_index=gpu_index,
        batch_size=batch_size,
        power_of_two=power_of_two,
        steps=steps,
        time_budget_s=time_budget_s,
        timeout_s=timeout_s,
        again=again,
        worker=tuple(worker),
        progress=on_progress or (lambda _: None),
    )
    limits: list[int | None] = list(dict.fromkeys(memory_limits_bytes)) or [None]
    rows: list[BenchRow] = []
    notes: list[str] = []
    environment: Environment | None = None
    with Store(results_file or results.default_path()) as store:
        for ref in {ref.text: ref for ref in refs}.values():
            with _Bench(ref, plan, store) as one:
                try:
                    one.prepare()
                except errors.WorkloadError as error:
                    if len(refs) == 1:
                        raise
                    rows += [_unmeasured(ref, limit, "step_error", str(error)) for limit in limits]
                    continue
                environment = one.environment
                rows += [one.row(limit) for limit in limits]
                notes += one.notes
    if environment is None:
        raise BenchError("; ".join(row.message or row.outcome for row in rows))
    return BenchReport(
        gpu=environment.gpu,
        gpu_memory_bytes=environment.gpu_memory_bytes,
        compute_capability=environment.compute_capability,
        driver=environment.driver,
        torch=environment.torch,
        rows=tuple(rows),
        notes=("data loading is not measured: each step makes its own batch on the GPU", *dict.fromkeys(notes)),
    )


def _check(
    names: Sequence[str],
    gpu_index: int,
    batch_size: int | None,
    limits: Sequence[int],
    steps: int,
    time_budget_s: float,
    timeout_s: float,
) -> None:
    if not names:
        raise InputError("name at least one workload")
    if gpu_index < 0:
        raise InputError(f"GPU index {gpu_index}: it must be 0 or more")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch size {batch_size}: it must be 1 or more")
    if any(limit < 1 for limit in limits):
        raise InputError(f"memory limit of {min(limits)} bytes: it must be positive")
    if steps < 2:
        raise InputError(f"{steps} steps: take 2 or more, since the first one makes the optimizer's state")
    if not 0 <= time_budget_s < float("inf"):
        raise InputError(f"time budget of {time_budget_s:g} s: it must be 0 or more")
    if not 0 < timeout_s < float("inf"):
        raise InputError(f"time limit of {timeout_s:g} s: it must be positive")


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What the user asked for, apart from workloads and limits."""

    gpu_index: int
    batch_size: int | None
    power_of_two: bool
    steps: int
    time_budget_s: float
    timeout_s: float
    again: bool
    worker: tuple[str, ...]
    progress: Progress


# ---- one workload -----------------------------------------------------------------------------------------


@dataclass
class _Tally:
    """What the row of one limit will say of the way to it."""

    started: float = field(default_factory=time.monotonic)
    attempts: int = 0
    recorded: int = 0
    search_s: float = 0.0
    message: str | None = None
    trouble: Outcome | None = None  # that ended it: busy, driver


class _Bench:
    """Measures one workload: prepares once, then a row for each limit."""

    def __init__(self, ref: WorkloadRef, plan: _Plan, store: Store) -> None:
        self.notes: list[str] = []
        self._ref = ref
        self._plan = plan
        self._store = store
        self._attempts = Attempts(
            ref,
            gpu_index=plan.gpu_index,
            steps=plan.steps,
            time_budget_s=plan.time_budget_s,
            timeout_s=plan.timeout_s,
            worker=plan.worker,
        )
        self._stack = contextlib.ExitStack()
        self._status, self._no_status = gpu_status.connect(plan.gpu_index)
        self._model: Model | None = None

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._attempts.close()
        finally:
            self._stack.close()

    def prepare(self) -> None:
        """Load the workload, look at the card and predict; the first two go on at the same time as the last."""
        self._plan.progress(f"{self._ref.text}: loading")
        self._attempts.start()
        capability = self._status.capability if self._status is not None else None
        if capability is not None:  # known before CUDA is: trace while the measuring process imports
            self._predict(capability)
        self._loaded = self._attempts.loaded()
        if self._loaded.unsafe:
            self._note(f"{self._loaded.unsafe}, so that each attempt imports it anew")
        card = self._probe()
        if self._model is None and capability is None:
            self._predict(parse_capability(card.compute_capability))
        if self._status is None:
            self._note(f"power, clocks and temperature are unknown: {self._no_status}")
        self.environment = _environment(card, self._loaded.libraries, self._status)

    def _probe(self) -> Card:
        """The card; raises BenchError or InputError where there is none to measure on."""
        said = self._attempts.run("probe", 0, None, lambda _: None)
        if said.outcome == "no_gpu":
            count = int(said.message or 0)
            listed = "GPU 0 only" if count == 1 else f"GPUs 0 to {count - 1}"
            raise InputError(f"there is no GPU {self._plan.gpu_index}: this machine has {listed}")
        if said.outcome == "driver":
            raise BenchError(
                f"no GPU can be used here ({said.message}); `whichgpu fit` and `whichgpu rank` answer without one"
            )
        if said.outcome == "out_of_memory":
            raise BenchError(f"GPU {self._plan.gpu_index} is full: {self._held_by() or said.message}")
        if said.card is None:
            raise BenchError(f"GPU {self._plan.gpu_index} cannot be used: {said.message or said.outcome}")
        if self._status is None or self._status.uuid not in (None, f"GPU-{said.card.uuid.removeprefix('GPU-')}"):
            self._status = gpu_status.connect_uuid(said.card.uuid)
        self._card = said.card
        return said.card

    def _predict(self, capability: tuple[int, int]) -> None:
        """The memory model to start from; without one the search doubles."""
        if self._plan.batch_size is not None:
            return
        try:
            predictor = self._stack.enter_context(Predictor(self._ref, cache=True, on_progress=self._plan.progress))
            self._model = predictor.model(capability)
        except WhichGpuError as error:
            self._note(f"no prediction to start from ({error})")

    # ---- a row ----

    def row(self, limit: int | None) -> BenchRow:
        """Measure under one limit; whatever stops it is said in the row."""
        tally = _Tally()
        if limit is not None and limit > self.environment.gpu_memory_bytes:
            has = text.format_bytes(self.environment.gpu_memory_bytes)
            return _unmeasured(self._ref, limit, "driver", f"the card has only {has}")
        known = {} if self._plan.again else self._known(limit)
        if self._plan.batch_size is not None:
            return self._row_of_one(self._plan.batch_size, limit, known, tally)
        guess, predicted = self._guess(limit)
        room = self._room(limit)
        first = self._loaded.default_batch_size
        search = Search(guess, limit_bytes=room, power_of_two=self._plan.power_of_two, first=first)
        for measured in known.values():
            search.know(
                measured.batch_size,
                _RESULTS[measured.outcome],
                measured.peak_allocated_bytes,
                measured.peak_reserved_bytes,
            )
        last = {size: measured.outcome for size, measured in known.items()}
        tally.recorded = len(known)
        speeds: list[Speed] = []
        while True:
            self._search(search, limit, tally, last)
            if tally.trouble is not None or not search.largest:
                break
            speeds = self._speeds(search.largest, limit, known, tally)
            if tally.trouble == "out_of_memory":  # it ran for a few steps, but not for many
                tally.trouble = None
                last[search.largest] = "out_of_memory"
                search.tell(search.largest, "too large", None, None)
                continue
            break
        above = search.next_larger
        outcome, message = _verdict(search, tally, last)
        return BenchRow(
            workload=self._ref.text,
            memory_limit_bytes=limit,
            outcome=outcome,
            message=message,
            max_batch_size=search.largest if outcome in ("ok", "out_of_memory") else None,
            exact=search.exact and outcome in ("ok", "out_of_memory"),
            stopped_by=last.get(above.batch_size, "out_of_memory") if above is not None else None,
            multiple=search.multiple,
            predicted_max_batch_size=predicted,
            unit=self._loaded.unit,
            attempts=tally.attempts,
            recorded=tally.recorded,
            search_s=tally.search_s,
            seconds=time.monotonic() - tally.started,
            speeds=tuple(speeds),
        )

    def _search(self, search: Search, limit: int | None, tally: _Tally, last: dict[int, Outcome]) -> None:
        started = time.monotonic()
        while (size := search.next()) is not None and tally.trouble is None:
            tally.attempts += 1
            measured = self._attempt("fit", size, limit, f"attempt {tally.attempts}, batch size {size:,}")
            last[size] = measured.outcome
            tally.message = measured.message
            if measured.outcome in ("busy", "driver"):
                tally.trouble = measured.outcome
            else:
                search.tell(
                    size, _RESULTS[measured.outcome], measured.peak_allocated_bytes, measured.peak_reserved_bytes
                )
        tally.search_s += time.monotonic() - started

    def _speeds(self, largest: int, limit: int | None, known: Mapping[int, Measurement], tally: _Tally) -> list[Speed]:
        """Speeds at the largest batch and at its halves; sets the tally's trouble where the largest fails after all."""
        found: list[Speed] = []
        if not self._plan.time_budget_s:
            return found
        for size in _halves(largest):
            measured = known.get(size)
            if measured is None or measured.step_s is None:
                measured = self._attempt("time", size, limit, f"timing batch size {size:,}")
            if measured.outcome != "ok":
                if size == largest and measured.outcome in ("out_of_memory", "busy", "driver"):
                    tally.trouble, tally.message = measured.outcome, measured.message
                    return []
                self._note(f"{self._ref.text}, batch size {size:,}: {measured.outcome}: {measured.message}")
                continue
            found += _speed(measured)
        return found

    def _row_of_one(self, size: int, limit: int | None, known: Mapping[int, Measurement], tally: _Tally) -> BenchRow:
        """The row where the batch size is given: no search."""
        timed = self._plan.time_budget_s > 0
        measured = known.get(size)
        if measured is None or (timed and measured.outcome == "ok" and measured.step_s is None):
            tally.attempts += 1
            measured = self._attempt("time" if timed else "fit", size, limit, f"batch size {size:,}")
        else:
            tally.recorded += 1
        return msgspec.structs.replace(
            _unmeasured(self._ref, limit, measured.outcome, measured.message),
            unit=measured.unit,
            attempts=tally.attempts,
            recorded=tally.recorded,
            seconds=time.monotonic() - tally.started,
            speeds=tuple(_speed(measured)),
        )

    # ---- an attempt ----

    def _attempt(self, kind: str, size: int, limit: int | None, what: str) -> Measurement:
        """Make an attempt and record it."""
        under = f" under {text.format_bytes(limit)}" if limit is not None else ""
        title = f"{self._ref.text}{under}: {what}"
        self._plan.progress(title)
        busy = self._busy(limit)
        if busy:
            measured = self._measurement(size, limit, Said(outcome="busy", message=busy), None, None)
            self._store.add(measured)
            return measured
        sampler = Sampler(self._status)
        readings = gpu_status.Readings()

        def on_event(event: str) -> None:
            nonlocal readings
            if event == "timing":
                sampler.start()
            elif event == "timed":
                readings = sampler.finish()
            elif event != "started":
                self._plan.progress(f"{title}: {event}")

        before = self._status.memory() if self._status is not None else None
        said = self._attempts.run(kind, size, limit, on_event, sampler.sample)
        used = before[2] if before is not None else None
        measured = self._measurement(size, limit, said, used, readings)
        self._store.add(measured)
        return measured

    def _measurement(
        self,
        size: int,
        limit: int | None,
        said: Said,
        used_bytes: int | None,
        readings: gpu_status.Readings | None,
    ) -> Measurement:
        readings = readings or gpu_status.Readings()
        outcome: Outcome = said.outcome if said.outcome in OUTCOMES else "driver"  # type: ignore[assignment]
        rate = size / said.step_s[0] if said.step_s is not None and said.step_s[0] > 0 else None
        outside = said.outside_bytes
        return Measurement(
            workload=self._ref.text,
            workload_hash=self._loaded.workload_hash,
            batch_size=size,
            memory_limit_bytes=limit,
            outcome=outcome,
            message=said.message,
            peak_allocated_bytes=said.peak_allocated_bytes,
            peak_reserved_bytes=said.peak_reserved_bytes,
            context_bytes=max(outside - used_bytes, 0) if outside is not None and used_bytes is not None else None,
            step_s=said.step_s,
            steps=said.steps,
            converged=said.converged,
            unit=self._loaded.unit,
            items_per_sample=self._loaded.items_per_sample,
            samples_per_second=rate,
            power_w=readings.power_w,
            energy_per_sample_j=readings.power_w / rate if readings.power_w is not None and rate else None,
            sm_clock_mhz=readings.sm_clock_mhz,
            temperature_c=readings.temperature_c,
            throttled=readings.throttled,
            attempt_s=said.attempt_s,
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            origin=LOCAL,
            environment=msgspec.structs.replace(
                self.environment, flags=said.flags if said.flags else self.environment.flags
            ),
        )

    def _known(self, limit: int | None) -> dict[int, Measurement]:
        """What is on record for the same workload, environment and limit: by batch size, one with speeds if there is."""
        found: dict[int, Measurement] = {}
        for measured in self._store.find(workloads=[self._ref.text], origin=LOCAL):
            if (
                measured.workload_hash == self._loaded.workload_hash
                and measured.memory_limit_bytes == limit
                and measured.outcome not in _REPEATED
                and (measured.outcome != "ok" or measured.step_s is not None or measured.steps >= self._plan.steps)
                and _same_place(measured.environment, self.environment)
            ):
                before = found.get(measured.batch_size)
                if before is None or before.outcome != "ok" or before.step_s is None or measured.outcome != "ok":
                    found[measured.batch_size] = measured
        return found

    # ---- prediction and room ----

    def _room(self, limit: int | None) -> int:
        """Bytes that PyTorch may reserve: the limit, or what the card leaves beside contexts and other processes."""
        if limit is not None:
            return limit
        card = self.environment.gpu_memory_bytes
        return max(card - context_bytes(), 1)

    def _guess(self, limit: int | None) -> tuple[Guess, int | None]:
        """Batch sizes to try by what is predicted and measured, and the prediction itself."""
        model = self._model
        room = self._room(limit)
        if model is None:
            return line_guess(room), None
        predicted = model.largest_batch(room)
        line = line_guess(room)
        if not isinstance(model, MemoryModel):  # a line itself, with a margin: one through measured peaks is better
            return lambda fits: line(fits) if fits else (predicted,), predicted

        def guess(fits: Sequence[Seen]) -> Sequence[int]:
            if not fits or fits[-1].allocated_bytes is None:
                return (predicted,)
            last = fits[-1]
            assert last.allocated_bytes is not None
            foretold = model.replay(last.batch_size).peak_allocated_bytes
            corrected = model.largest_batch(room * foretold // max(last.allocated_bytes, 1))
            return (corrected, predicted)

        return guess, predicted

    # ---- other processes ----

    def _busy(self, limit: int | None) -> str:
        """Who else holds the card's memory, where that would spoil the measurement; empty where nobody does."""
        deadline = time.monotonic() + _LAG_S
        while True:
            held = self._held_by()
            memory = self._status.memory() if self._status is not None else None
            if not held:
                return ""
            if limit is not None and memory is not None and memory[1] >= limit + _ROOM_BYTES:
                self._note(f"speeds may suffer: {held}")
                return ""
            if time.monotonic() >= deadline:
                return held
            time.sleep(0.2)

    def _held_by(self) -> str:
        """Other processes with memory of the card, in words."""
        if self._status is None:
            return ""
        holders = [holder for holder in self._status.holders() if not holder.graphics]
        known = sum(holder.memory_bytes or _IGNORED_BYTES for holder in holders)
        if holders and known >= _IGNORED_BYTES:
            return ", ".join(_holder(holder) for holder in holders[:3]) + (" and others" if len(holders) > 3 else "")
        memory = self._status.memory()
        if memory is not None and not holders and memory[2] >= _UNSEEN_BYTES:
            return f"something that cannot be seen from here holds {text.format_bytes(memory[2])}"
        return ""

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


# ---- small things -----------------------------------------------------------------------------------------


def _holder(holder: gpu_status.Holder) -> str:
    name = holder.name or "a process that cannot be seen from here"
    held = f", {text.format_bytes(holder.memory_bytes)}" if holder.memory_bytes is not None else ""
    return f"{name} (pid {holder.pid}{held}) uses the card"


def _verdict(search: Search, tally: _Tally, last: Mapping[int, Outcome]) -> tuple[Outcome, str | None]:
    """The outcome of a row and why."""
    if tally.trouble is not None:
        return tally.trouble, tally.message
    if search.largest:
        return "ok", None if search.exact else f"not proved to be the largest: {tally.message}"
    failures: list[Outcome] = [one for one in last.values() if one not in ("ok", "out_of_memory", "step_error")]
    if failures:
        return failures[-1], tally.message
    if "out_of_memory" in last.values():
        return "out_of_memory", None
    return "step_error", tally.message


def _halves(largest: int) -> Iterator[int]:
    size = largest
    for _ in range(_SPEEDS):
        if size < 1:
            return
        yield size
        size //= 2


def _speed(measured: Measurement) -> list[Speed]:
    if measured.step_s is None or measured.samples_per_second is None:
        return []
    return [
        Speed(
            batch_size=measured.batch_size,
            step_s=measured.step_s[0],
            step_low_s=measured.step_s[1],
            step_high_s=measured.step_s[2],
            steps=measured.steps,
            converged=bool(measured.converged),
            samples_per_second=measured.samples_per_second,
            units_per_second=measured.samples_per_second * measured.items_per_sample,
            peak_allocated_bytes=measured.peak_allocated_bytes,
            peak_reserved_bytes=measured.peak_reserved_bytes,
            power_w=measured.power_w,
            energy_per_sample_j=measured.energy_per_sample_j,
            sm_clock_mhz=measured.sm_clock_mhz,
            temperature_c=measured.temperature_c,
            throttled=measured.throttled,
        )
    ]


def _unmeasured(ref: WorkloadRef, limit: int | None, outcome: Outcome, message: str | None) -> BenchRow:
    return BenchRow(
        workload=ref.text,
        memory_limit_bytes=limit,
        outcome=outcome,
        message=message,
        max_batch_size=None,
        exact=False,
        stopped_by=None,
        multiple=1,
        predicted_max_batch_size=None,
        unit="samples",
        attempts=0,
        recorded=0,
        search_s=0.0,
        seconds=0.0,
        speeds=(),
    )


def _environment(card: Card, libraries: dict[str, str], status: GpuStatus | None) -> Environment:
    gpu_id = None
    with contextlib.suppress(errors.CatalogueError):
        gpu_id = catalogue.load().find(card.name).id
    return Environment(
        gpu=card.name,
        gpu_id=gpu_id,
        gpu_uuid_hash=hashlib.sha256(card.uuid.removeprefix("GPU-").encode()).hexdigest()[:16],
        gpu_memory_bytes=card.memory_bytes,
        compute_capability=card.compute_capability,
        driver=(status.driver if status is not None else None) or _kernel_driver(),
        cuda=card.cuda,
        torch=card.torch,
        cudnn=card.cudnn,
        python=card.python,
        libraries=libraries,
        flags=card.flags,
        whichgpu=_own_version(),
    )


def _own_version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("whichgpu")
    return "from source"


def _kernel_driver() -> str:
    """The driver's version as the kernel module says it, where it cannot be asked otherwise."""
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
        return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
    return "unknown"


# Switches that come from the environment of the process; the others are set by the workload's own code.
_OUTER_FLAGS = ("allocator", "cublas_workspace", "tf32_override")


def _same_place(one: Environment, other: Environment) -> bool:
    """Whether two measurements were made on the same card with the same software and settings."""
    if any(one.flags.get(flag) != other.flags.get(flag) for flag in _OUTER_FLAGS):
        return False
    return msgspec.structs.replace(one, flags={}) == msgspec.structs.replace(other, flags={})
