"""Which batch sizes to try on the GPU: the search for the largest that fits, closed in on from a prediction.

A `Search` is asked for the `next` batch size and told how it went, until there is none. Its answer is a batch size
that was run and fits while the next one was run and does not, whatever memory does in between: a prediction, or peaks
that were measured on the way, only decide how soon. No torch, no processes, no clock.

Not covered: why an attempt fails. A failure that is not about memory counts as "does not run" above a batch size that
does, and three of them end the search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whichgpu.batch_sizes import MAX_BATCH_SIZE

# fits: ran; too large: ran out of memory; fails: a CUDA error, a crash or a hang; refuses: the step itself raised
Result = Literal["fits", "too large", "fails", "refuses"]

_MOST_FAILURES = 3  # that are not about memory: each may cost the whole time limit
_MULTIPLES = (2, 4, 8, 16, 32)  # that steps are known to insist on
# How far below a predicted batch that does not fit to look, in shares of it: far enough to fit and be measured in most
# cases, since what is measured there corrects the prediction.
_BELOW = (0.02, 0.15, 0.5)
_ABOVE = 0.02  # how far above one that fits to look first, in shares of it, when every guess turned out too low
_NEAR = 0.03  # up to where above the largest that fits a line is trusted, in shares of it
_FURTHEST = 32  # times the largest that fits: no line is trusted beyond


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How one batch size went."""

    batch_size: int
    result: Result
    allocated_bytes: int | None = None  # peaks, where it fits
    reserved_bytes: int | None = None


# From what fits so far, smallest first: batch sizes that may be the largest that fits, the most trusted first.
Guess = Callable[[Sequence[Seen]], Sequence[int]]


class Search:
    """The search for the largest batch of one workload under one limit.

    `guess` is asked before each attempt, first with nothing seen; what attempts have refuted is passed over. Without one
    the search starts at `first`. `limit_bytes` is what allocations cannot exceed, where that is known. With
    `power_of_two` only 1, 2, 4, ... are tried; nothing above `maximum` is.
    """

    def __init__(
        self,
        guess: Guess | None = None,
        *,
        limit_bytes: int | None = None,
        power_of_two: bool = False,
        maximum: int = MAX_BATCH_SIZE,
        first: int = 8,
    ) -> None:
        if maximum < 1 or first < 1:
            raise ValueError(f"maximum {maximum} and first {first} must be 1 or more")
        self._guess: Guess = guess or _no_guess
        self._limit_bytes = limit_bytes
        self._power_of_two = power_of_two
        self._maximum = maximum
        self._first = min(first, maximum)
        self._attempts = 0
        self._width = 0  # of the bracket when it was last halved
        self._slow = 0  # attempts since then
        self._guessed = 0  # the rung that a guess last led to
        self._stride = 0  # how far the last move without a guess went
        self._refuted = 0  # how often a guess said wrongly that there is no more
        self._proof = 0  # the rung that was to prove that there is no more
        self._below = 0  # attempts in a row just below one that does not fit, all of which failed
        self._withdrawn: set[int] = (
            set()
        )  # batch sizes that ran at first and ran out of memory when they ran for longer
        self.multiple = 1  # what batch sizes must be a multiple of, as far as the step's refusals tell
        self.seen: dict[int, Seen] = {}

    # ---- the answer ----

    @property
    def largest(self) -> int:
        """The largest batch size that was run and fits; 0 when none did."""
        return max((one.batch_size for one in self._fits()), default=0)

    @property
    def next_larger(self) -> Seen | None:
        """The smallest batch size above `largest` that was run and does not run through."""
        above = [one for one in self.seen.values() if one.batch_size > self.largest and one.result in _STOPS]
        return min(above, key=lambda one: one.batch_size, default=None)

    @property
    def exact(self) -> bool:
        """Whether the next batch size that the step accepts was run and does not fit, or the maximum does."""
        low, high = self._bracket()
        return high - low <= 1 and bool(self.seen)

    # ---- the attempts ----

    def next(self) -> int | None:
        """The batch size to try next, to be asked once an attempt; None when nothing is left to try."""
        failures = [one for one in self.seen.values() if one.result == "fails"]
        low, high = self._bracket()
        if len(failures) >= _MOST_FAILURES or high - low <= 1:
            return None
        above = self.next_larger
        if above is None:
            rung = self._upwards(low, high)
        elif above.result == "fails" and not low:
            rung = 1  # it is not about memory: does it run at all?
        elif not low:
            rung = self._downwards(high)
        elif above.result == "fails" and high - low > 2 and self._guessed != low:
            rung = (low + high) // 2  # guesses are about memory
        else:
            rung = self._between(low, high)
        return self._size(min(max(rung, low + 1), high - 1))

    def tell(self, batch_size: int, result: Result, allocated_bytes: int | None, reserved_bytes: int | None) -> None:
        """Note how an attempt went."""
        self.know(batch_size, result, allocated_bytes, reserved_bytes)
        self._attempts += 1
        low, high = self._bracket()
        if not self._width or 2 * (high - low) <= self._width:
            self._width, self._slow = high - low, 0
        else:
            self._slow += 1

    def know(self, batch_size: int, result: Result, allocated_bytes: int | None, reserved_bytes: int | None) -> None:
        """Note how a batch size went in an earlier search; one that this search would not try is ignored."""
        if batch_size > self._maximum or (self._power_of_two and batch_size & (batch_size - 1)):
            return
        if result == "refuses" and not self._raise_multiple(batch_size):
            result = "fails"
        if result == "too large" and batch_size in self.seen and self.seen[batch_size].result == "fits":
            self._withdrawn.add(batch_size)
        if result == "fits":
            self._below = 0
        self.seen[batch_size] = Seen(
            batch_size=batch_size, result=result, allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes
        )

    # ---- where to go: rungs are batch sizes divided by the multiple, or exponents of two from 1 on ----

    def _upwards(self, low: int, high: int) -> int:
        """Nothing failed yet: where a guess says, else below what allocations allow, else ever further."""
        guesses = self._guesses(low, high)
        if not low:
            return guesses[0] if guesses else self._rung(self._first)
        furthest = self._rung(_FURTHEST * self.largest)
        if self._proof == low:  # "there is no more" was refuted: do not believe it again and again
            self._refuted += 1
        if self._refuted >= 2:
            guesses = [guess for guess in guesses if guess > low]
        if guesses:
            self._proof = low + 1 if guesses[0] == low else 0
            return self._note_guess(min(max(guesses[0], low + 1), furthest))
        if not self._guess(()):
            return self._rung(2 * self.largest)
        ceiling = self._rung(self._ceiling())
        if ceiling > low:
            return (low + min(ceiling, furthest) + 1) // 2
        self._stride = max(2, int(_ABOVE * low), 2 * self._stride)
        return min(low + self._stride, furthest)

    def _downwards(self, high: int) -> int:
        """Nothing fits yet: a little lower, then much lower, then halves."""
        if self._size(high) in self._withdrawn:
            return high - 1  # it nearly fits
        tried = len([one for one in self.seen.values() if one.result == "too large"]) - 1
        if not self._guess(()) or tried >= len(_BELOW):
            return high // 2
        return high - max(round(_BELOW[tried] * high), 1)

    def _between(self, low: int, high: int) -> int:
        """Where a guess says; halfway when there is none, or when guesses have not narrowed it down twice."""
        guesses = self._guesses(low, high)
        if guesses and self._slow < 2:
            return self._note_guess(max(guesses[0], low + 1))
        if self._is_just_below(low, high):
            self._below += 1
            return max(high - (1 << (self._below - 1)), (low + high) // 2)
        return (low + high) // 2

    def _is_just_below(self, low: int, high: int) -> bool:
        """Whether the best guess is refuted but not far off, as one of a corrected prediction or of a line from near by."""
        if self._size(high) in self._withdrawn:
            return True
        if not self._guess(()):
            return self._guessed == high and high - low <= max(2, int(_NEAR * low))
        best = [self._rung(size) for size in self._guess(self._fits())[:1]]
        return self._guessed == high or (self._slow < 2 and best >= [high])

    def _guesses(self, low: int, high: int) -> list[int]:
        """The guesses, as rungs, that nothing has refuted."""
        rungs = map(self._rung, self._guess(self._fits()))
        return (
            [rung for rung in rungs if low <= rung < high] if low else [max(min(rung, high - 1), 1) for rung in rungs]
        )

    def _note_guess(self, rung: int) -> int:
        self._guessed = rung
        return rung

    def _ceiling(self) -> int:
        """Where a line through the allocated peaks meets the limit: no larger batch can fit; 0 when unknown."""
        fits = [one for one in self._fits() if one.allocated_bytes is not None]
        if self._limit_bytes is None or len(fits) < 2:
            return 0
        return _meet(fits[0], fits[-1], self._limit_bytes) or 0

    # ---- sizes and rungs ----

    def _fits(self) -> list[Seen]:
        fits = (one for one in self.seen.values() if one.result == "fits")
        return sorted(fits, key=lambda one: one.batch_size)

    def _bracket(self) -> tuple[int, int]:
        """The rungs of the largest that fits (0: none) and of the smallest above it that does not."""
        above = self.next_larger
        high = self._rung_up(above.batch_size) if above is not None else self._rung(self._maximum) + 1
        return self._rung(self.largest), high

    def _rung(self, size: int) -> int:
        return size.bit_length() if self._power_of_two else size // self.multiple

    def _rung_up(self, size: int) -> int:
        return size.bit_length() if self._power_of_two else -(-size // self.multiple)

    def _size(self, rung: int) -> int:
        return 1 << (rung - 1) if self._power_of_two else rung * self.multiple

    def _raise_multiple(self, refused: int) -> bool:
        """Keep to multiples of which the refused size is none, but the largest that fits is; False when none is left."""
        if self._power_of_two:
            return False
        for multiple in _MULTIPLES:
            if multiple > self.multiple and refused % multiple and not self.largest % multiple:
                self.multiple = multiple
                return True
        return False


_STOPS = ("too large", "fails")


def _no_guess(fits: Sequence[Seen]) -> Sequence[int]:
    return ()


def line_guess(limit_bytes: int) -> Guess:
    """The guess where nothing is predicted: a line through the peaks of the two largest batches that fit."""

    def guess(fits: Sequence[Seen]) -> Sequence[int]:
        measured = [one for one in fits if one.allocated_bytes is not None and one.reserved_bytes]
        if len(measured) < 2:
            return ()
        before, last = measured[-2:]
        assert last.allocated_bytes is not None
        assert last.reserved_bytes
        # What is reserved beyond what is allocated shrinks when memory gets tight; where more than expected fits, the rest of
        # the way is halved.
        usable = 0.97 if last.reserved_bytes > 0.8 * limit_bytes else last.allocated_bytes / last.reserved_bytes
        halfway = (1 + last.allocated_bytes / limit_bytes) / 2
        most = _FURTHEST * last.batch_size  # where memory does not grow
        met = [_meet(before, last, int(share * limit_bytes)) for share in (usable, halfway)]
        sizes = [most if size is None else size for size in met]
        sizes.append(_meet(_by_reserved(before), _by_reserved(last), limit_bytes) or 0)
        return [size for size in sizes if size > last.batch_size] or [last.batch_size]

    return guess


def _by_reserved(one: Seen) -> Seen:
    return replace(one, allocated_bytes=one.reserved_bytes)


def _meet(one: Seen, other: Seen, limit_bytes: int) -> int | None:
    """The last batch size whose allocated peak, on a line through two, is within a limit; None if it does not grow."""
    assert one.allocated_bytes is not None
    assert other.allocated_bytes is not None
    growth = other.allocated_bytes - one.allocated_bytes
    if growth <= 0:
        return None
    room = limit_bytes - other.allocated_bytes
    return max(other.batch_size + room * (other.batch_size - one.batch_size) // growth, 0)
