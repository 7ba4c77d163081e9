"""One workload: prepared once, then measured under each limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import msgspec

from whichgpu import gpu_status, text
from whichgpu.bench import environment, holders
from whichgpu.bench.guesses import make_guess, room_bytes
from whichgpu.bench.plan import Plan
from whichgpu.bench.recording import Recorder
from whichgpu.bench.rows import Tally, halves, speed, unmeasured, verdict
from whichgpu.bench_attempts import Attempts, Card, Said
from whichgpu.bench_report import BenchRow, Speed
from whichgpu.bench_search import Result, Search
from whichgpu.capability import parse as parse_capability
from whichgpu.errors import BenchError, InputError, WhichGpuError
from whichgpu.gpu_status import Sampler
from whichgpu.intervals import Model
from whichgpu.predictor import Predictor
from whichgpu.results import Measurement, Outcome, Store
from whichgpu.workload import WorkloadRef

_RESULTS: dict[str, Result] = {
    "ok": "fits",
    "out_of_memory": "too large",
    "step_error": "refuses",
    "cuda_error": "fails",
    "crash": "fails",
    "hang": "fails",
}


class Bench:
    """Measures one workload: prepares once, then a row for each limit."""

    def __init__(self, ref: WorkloadRef, plan: Plan, store: Store) -> None:
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

    def __enter__(self) -> Bench:
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
        self.environment = environment.describe(card, self._loaded.libraries, self._status)
        self._recorder = Recorder(workload=self._ref.text, loaded=self._loaded, environment=self.environment)

    def _probe(self) -> Card:
        """The card; raises BenchError or InputError where there is none to measure on."""
        said = self._attempts.run("probe", 0, None, lambda _: None)
        if said.outcome == "no_gpu":
            count = int(said.message or 0)
            listed = "GPU 0 only" if count == 1 else f"GPUs 0 to {count - 1}"
            raise InputError(f"there is no GPU {self._plan.gpu_index}: this machine has {listed}")
        if said.outcome == "driver":
            why = (said.message or "").partition(". ")[0]  # what follows are PyTorch's links to drivers
            raise BenchError(f"no GPU can be used here ({why}); `whichgpu fit` and `whichgpu rank` answer without one")
        if said.outcome == "out_of_memory":
            raise BenchError(f"GPU {self._plan.gpu_index} is full: {holders.held_by(self._status) or said.message}")
        if said.card is None:
            raise BenchError(f"GPU {self._plan.gpu_index} cannot be used: {said.message or said.outcome}")
        if self._status is None or self._status.uuid not in (None, f"GPU-{said.card.uuid.removeprefix('GPU-')}"):
            self._status = gpu_status.connect_uuid(said.card.uuid)
        self._card = said.card
        return said.card

    def _predict(self, capability: tuple[int, int]) -> None:
        """The memory model to start from; without one the search doubles."""
        if self._plan.batch_sizes:
            return
        try:
            predictor = self._stack.enter_context(Predictor(self._ref, cache=True, on_progress=self._plan.progress))
            self._model = predictor.model(capability)
        except WhichGpuError as error:
            self._note(f"no prediction to start from ({error})")

    # ---- a row ----

    def rows(self, limit: int | None) -> list[BenchRow]:
        """Measure under one limit: a row, or one for each batch size asked for. Whatever stops it is said in the row."""
        if limit is not None and limit > self.environment.gpu_memory_bytes:
            has = text.format_bytes(self.environment.gpu_memory_bytes)
            return [unmeasured(self._ref, limit, "driver", f"the card has only {has}")]
        known = {} if self._plan.again else self._recorder.known(self._store, limit, self._plan.steps)
        if self._plan.batch_sizes:
            return [self._row_of_one(size, limit, known) for size in self._plan.batch_sizes]
        return [self._row_of_the_largest(limit, known)]

    def _row_of_the_largest(self, limit: int | None, known: Mapping[int, Measurement]) -> BenchRow:
        tally = Tally()
        room = room_bytes(self.environment, limit)
        guess, predicted = make_guess(self._model, room)
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
        outcome, message = verdict(search, tally, last)
        return BenchRow(
            workload=self._ref.text,
            memory_limit_bytes=limit,
            batch_size=None,
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

    def _search(self, search: Search, limit: int | None, tally: Tally, last: dict[int, Outcome]) -> None:
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

    def _speeds(self, largest: int, limit: int | None, known: Mapping[int, Measurement], tally: Tally) -> list[Speed]:
        """Speeds at the largest batch and at its halves; sets the tally's trouble where the largest fails after all."""
        found: list[Speed] = []
        if not self._plan.time_budget_s:
            return found
        for size in halves(largest, self._plan.speeds):
            measured = known.get(size)
            if measured is None or measured.step_s is None:
                measured = self._attempt("time", size, limit, f"timing batch size {size:,}")
            if measured.outcome != "ok":
                if size == largest and measured.outcome in ("out_of_memory", "busy", "driver"):
                    tally.trouble, tally.message = measured.outcome, measured.message
                    return []
                self._note(f"{self._ref.text}, batch size {size:,}: {measured.outcome}: {measured.message}")
                continue
            found += speed(measured)
        return found

    def _row_of_one(self, size: int, limit: int | None, known: Mapping[int, Measurement]) -> BenchRow:
        """The row where the batch size is given: no search."""
        tally = Tally()
        timed = self._plan.time_budget_s > 0
        measured = known.get(size)
        if measured is None or (timed and measured.outcome == "ok" and measured.step_s is None):
            tally.attempts += 1
            measured = self._attempt("time" if timed else "fit", size, limit, f"batch size {size:,}")
        else:
            tally.recorded += 1
        return msgspec.structs.replace(
            unmeasured(self._ref, limit, measured.outcome, measured.message),
            batch_size=size,
            unit=measured.unit,
            attempts=tally.attempts,
            recorded=tally.recorded,
            seconds=time.monotonic() - tally.started,
            speeds=tuple(speed(measured)),
        )

    # ---- an attempt ----

    def _attempt(self, kind: str, size: int, limit: int | None, what: str) -> Measurement:
        """Make an attempt and record it."""
        under = f" under {text.format_bytes(limit)}" if limit is not None else ""
        title = f"{self._ref.text}{under}: {what}"
        self._plan.progress(title)
        held = holders.busy(self._status, limit, self._note)
        if held:
            measured = self._recorder.measurement(size, limit, Said(outcome="busy", message=held), None, None)
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
        measured = self._recorder.measurement(size, limit, said, used, readings)
        self._store.add(measured)
        return measured

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
