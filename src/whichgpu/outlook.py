"""What will have to be traced for an answer, and about how long that takes: told before it begins, and while it goes on.

Expected of a ready workload is what its first tracing, for every card, took on a machine with two cores (`data/zoo.json`), of
any other the median of these. As workloads are done, the ratio of what they took to what was expected corrects the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from whichgpu.tracers import is_kept
from whichgpu.workload import WorkloadRef
from whichgpu.zoo_list import facts

ANNOUNCED = "to be traced: "  # how the line begins that is told before anything is traced, and should stay
_WORTH_SAYING_S = 20.0
_PACE = (0.1, 10.0)  # how many times as long as expected is believed


class Outlook:
    """What is left of several workloads: `refs`, those that take least first, so that whoever ends it early has most of them.

    `kept` says which have been traced before, by default what lies in the cache.
    """

    def __init__(
        self,
        refs: Sequence[WorkloadRef],
        *,
        kept: Callable[[WorkloadRef], bool] = is_kept,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        found = [(ref, 0.0 if kept(ref) else expected_seconds(ref)) for ref in refs]
        found.sort(key=lambda pair: pair[1])
        self.refs = [ref for ref, _ in found]
        self._expected = [seconds for _, seconds in found]
        self._clock = clock
        self._spent: list[tuple[float, float]] = []  # expected and taken, of those that are done
        self._began = clock()

    def announcement(self, *, partial: bool = False) -> str:
        """What is to be traced and how long that takes; empty where it is not worth saying.

        `partial`: who does not wait for the end gets what is known by then.
        """
        new = sum(seconds > 0 for seconds in self._expected)
        if sum(self._expected) < _WORTH_SAYING_S:
            return ""
        count = len(self._expected)
        what = f"{new} of {count} workloads" if count > 1 else "the workload"
        rest = "; Ctrl-C shows what is known by then" if partial and count > 1 else ""
        took = _roughly(sum(self._expected))
        return f"{ANNOUNCED}{what}, about {took} as on a machine with 2 cores, once (traces are kept){rest}"

    def begin(self) -> None:
        """The next workload's turn begins."""
        self._began = self._clock()

    def done(self) -> None:
        """It is over."""
        self._spent.append((self._expected[len(self._spent)], self._clock() - self._began))

    def left(self) -> str:
        """ ", about 4 min left" from now on; empty where it is not worth saying."""
        now, *later = self._expected[len(self._spent) :] or [0.0]
        pace = self._pace()
        seconds = max(now * pace - (self._clock() - self._began), 0.0) + sum(later) * pace
        return f", about {_roughly(seconds)} left" if seconds >= _WORTH_SAYING_S else ""

    def _pace(self) -> float:
        """How many times as long as expected it takes here."""
        traced = [(expected, taken) for expected, taken in self._spent if expected]
        if not traced:
            return 1.0
        ratio = sum(taken for _, taken in traced) / sum(expected for expected, _ in traced)
        return min(max(ratio, _PACE[0]), _PACE[1])


def _roughly(seconds: float) -> str:
    """ "40 s", "6 min": what is guessed is told in few figures."""
    return f"{round(seconds, -1):.0f} s" if seconds < 95 else f"{seconds / 60:.0f} min"


def expected_seconds(ref: WorkloadRef) -> float:
    """How long tracing a workload takes the first time."""
    known = {name: one.trace_seconds for name, one in facts().items() if one.trace_seconds is not None}
    own = known.get(ref.target) if ref.scheme == "zoo" else None
    return own if own is not None else median(known.values())
