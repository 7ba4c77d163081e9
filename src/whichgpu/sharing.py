"""Half of a catalogue's replays in a second process, since each of them is pure computation on kept traces.

`Helper.in_turn` goes through the cards of a question and lets a second process answer for some of them meanwhile; what
it answers is what would come out here, and is only taken over. Where that process fails, everything is worked out here. Run as a
module this file is the second process: requests and answers are lines of JSON (`worker_process`).

Not covered: traces that are not kept on disk, and steps of which each batch size is traced by itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec

from whichgpu import advice, catalogue, worker_side
from whichgpu.catalogue import Gpu
from whichgpu.errors import CaptureError, WhichGpuError
from whichgpu.memory import Answers
from whichgpu.overheads import context_bytes
from whichgpu.predictor import Predictor
from whichgpu.worker_process import WorkerProcess
from whichgpu.workload import WorkloadRef

WORKER = (sys.executable, "-P", "-m", "whichgpu.sharing")
# Below so many events to replay, for one replay on each card, the second process is not worth its start.
_WORTH_EVENTS = 250_000
_AT_ONCE = 3  # cards that the second process is given at a time
_PATIENCE_S = 600.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Cards of one workload that the second process answers for."""

    workload: WorkloadRef
    exact: bool
    gpus: tuple[str, ...]  # by id
    batch_size: int | None  # of `fit`; None: only the largest batches, for `rank`


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: answers by class, way of scaling and capability as MessagePack, or why there are none."""

    answers: bytes = b""
    error: str | None = None


class Helper:
    """The second process, started when it is first worth it; a context manager that ends it."""

    def __init__(self, worker: Sequence[str] = WORKER, processors: int | None = None) -> None:
        self._command = tuple(worker)
        self._alone = (processors or _processors()) < 2
        self._process: WorkerProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end()

    def in_turn(self, predictor: Predictor, cards: Sequence[Gpu], batch_size: int | None = None) -> Iterator[Gpu]:
        """The cards, each once; those that the second process answers for come when their answers are known.

        `batch_size` is the one that `fit` is asked about, None for `rank`. This process begins with the smallest card and
        the other one with the largest, so that they do not replay the same batch sizes, until nothing is left.
        """
        asked = [card for card in cards if not predictor.knows_largest(card.capability, _room(card))]
        if self._alone or not asked or not predictor.shareable or len(asked) * predictor.events < _WORTH_EVENTS:
            yield from cards
            return
        predictor.keep()  # the second process reads what is known so far
        left = sorted(asked, key=_room)
        theirs: list[Gpu] = []
        while left:
            if not theirs:
                theirs = left[-_AT_ONCE:]
                del left[-_AT_ONCE:]
                self._send(predictor, theirs, batch_size)
            if left:
                yield left.pop(0)
            if self._process is None or not left or self._process.has_answered():
                self._take_over(predictor)
                yield from theirs
                theirs = []
        known = {card.id for card in asked}
        yield from (card for card in cards if card.id not in known)

    def _send(self, predictor: Predictor, cards: Sequence[Gpu], batch_size: int | None) -> None:
        try:
            if self._process is None:
                self._process = WorkerProcess(self._command, "the second process", CaptureError)
            self._process.send(
                Request(
                    workload=predictor.ref,
                    exact=predictor.exact,
                    gpus=tuple(card.id for card in cards),
                    batch_size=batch_size,
                )
            )
        except CaptureError:  # no room for another process: everything is worked out here
            self._end()

    def _take_over(self, predictor: Predictor) -> None:
        if self._process is None:
            return
        try:
            answered = self._process.receive(Answered, "answering for some cards", _PATIENCE_S, time.monotonic())
        except CaptureError:
            self._end()
            return
        if answered.error is not None:  # it would not do better with the next ones
            self._end()
            return
        predictor.learn(msgspec.msgpack.decode(answered.answers, type=dict[str, Answers]))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close(patience_s=0.0)


def _processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _room(card: Gpu) -> int:
    return advice.room_bytes(card, context_bytes())


# ---- the second process -----------------------------------------------------------------------------------


class Answering:
    """Answers requests; the predictor of the last workload is kept for the next request."""

    def __init__(self) -> None:
        self._predictor: Predictor | None = None

    def answer(self, request: Request) -> Answered:
        """Work out the answers for the cards of a request."""
        cards = catalogue.load()
        try:
            predictor = self._for(request)
            for name in request.gpus:
                card = cards.find(name)
                estimate = predictor.estimate(card.capability)
                if request.batch_size is None:
                    advice.largest(card, estimate, context_bytes(), ())
                else:
                    advice.fit_row(card, estimate, request.batch_size, context_bytes(), ())
            return Answered(answers=msgspec.msgpack.encode(predictor.answers))
        except WhichGpuError as error:
            return Answered(error=str(error))

    def _for(self, request: Request) -> Predictor:
        last = self._predictor
        if last is None or (last.ref, last.exact) != (request.workload, request.exact):
            # never left as a context: what it works out is kept by the process that asked
            self._predictor = last = Predictor(request.workload, cache=True, on_progress=None, exact=request.exact)
        return last


def main() -> None:
    """Answer requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, required=True)
    arguments = parser.parse_args()
    worker_side.die_with(os.getppid(), signal.SIGKILL)
    lines = worker_side.Lines(worker_side.private_input())
    answering = Answering()
    with os.fdopen(arguments.answers, "wb") as answers:
        while (line := lines.next()) is not None:
            request = msgspec.json.decode(line, type=Request)
            answers.write(msgspec.json.encode(answering.answer(request)) + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
