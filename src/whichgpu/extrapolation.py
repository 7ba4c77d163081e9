"""Memory of steps that do not follow their batch size by rule: detection, routing, anything that looks at its data.

Their sizes vary with what the data holds, so that no batch size follows exactly from others. `LineModel` puts a
line through the peaks at the batch sizes that were traced, and a straight one beyond them. Same questions as `memory.MemoryModel`, answered from the
middle line; what is safe follows from the steepest rise that was seen (`intervals`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from math import ceil

from whichgpu.allocator import Replay
from whichgpu.batch_sizes import MAX_BATCH_SIZE
from whichgpu.memory import HELD, Answers, MemoryModel, Peak
from whichgpu.scaling import Scaled, Single

# Reserved memory comes in segments of up to so much (kLargeBuffer in CUDACachingAllocator.h, torch 2.14): a rise of less
# is not seen, however often it comes again.
_SEGMENT_BYTES = 20 << 20


class LineModel:
    """Memory of one workload from its peaks at a few traced batch sizes.

    `also` are batch sizes that were traced too, because they were asked about: answered from their own trace, and no part
    of the line.
    """

    exact = False

    def __init__(
        self,
        at: Callable[[int], Scaled | Single],
        capability: tuple[int, int],
        batch_sizes: Sequence[int],
        answers: Answers | None = None,
        also: Collection[int] = (),
    ) -> None:
        self._model = MemoryModel(at, capability, answers=answers)
        self.batch_sizes = tuple(sorted(batch_sizes))
        self._known = {*batch_sizes, *also}
        self._points = [(n, self._model.replay(n)) for n in self.batch_sizes]

    def replay(self, batch_size: int, limit_bytes: int | None = None) -> Replay:
        """Peaks at a batch size, on the middle line unless it was traced, and whether it stays below the limit."""
        if batch_size in self._known:
            return self._model.replay(batch_size, limit_bytes)
        reserved = self._middle("peak_reserved_bytes", batch_size)
        fits = limit_bytes is None or reserved <= limit_bytes
        return Replay(
            fits=fits,
            failed_at=None if fits else 0,
            failed_request_bytes=None if fits else 0,
            peak_reserved_bytes=reserved,
            peak_allocated_bytes=self._middle("peak_allocated_bytes", batch_size),
            peak_requested_bytes=self._middle("peak_requested_bytes", batch_size),
            peak_at=None,
            peak_reserved_at=None,
            released_cache=0,
            final_reserved_bytes=reserved,
            final_allocated_bytes=self._middle("final_allocated_bytes", batch_size),
            same_from_bytes=reserved if fits else 0,
            same_below_bytes=None if fits else reserved,
        )

    def fits(self, batch_size: int, limit_bytes: int) -> bool:
        """Whether the middle line stays below a limit."""
        return self.replay(batch_size, limit_bytes).fits

    def peak(self, batch_size: int, limit_bytes: int | None = None) -> Peak:
        """What is held at the peak: each share on its own line, added up to the peak on the middle line."""
        if batch_size in self._known:
            return self._model.peak(batch_size, limit_bytes)
        (one, first), (other, last) = ((n, self._model.peak(n)) for n in (self.batch_sizes[0], self.batch_sizes[-1]))
        held = {
            name: max(_line(one, first.held_bytes[name], other, last.held_bytes[name], batch_size), 0) for name in HELD
        }
        total = self._middle("peak_allocated_bytes", batch_size)
        scale = total / max(sum(held.values()), 1)
        held = {name: int(size * scale) for name, size in held.items()}
        held["activation"] += total - sum(held.values())
        return Peak(op=last.op, op_name=last.op_name, phase=last.phase, held_bytes=held)

    def largest_batch(self, limit_bytes: int) -> int:
        """The largest batch size that fits by the middle line; 0 when 1 does not."""
        return _largest(lambda n: self.fits(n, limit_bytes))

    def middle_bytes(self, batch_size: int) -> int:
        """Reserved peak on the middle line, also where a trace says better."""
        return self._middle("peak_reserved_bytes", batch_size)

    def steep_bytes(self, batch_size: int) -> int:
        """Reserved peak on the steepest line through any two traced batch sizes, from the highest start.

        Each rise may have been up to one segment more than what was seen.
        """
        points = [(n, result.peak_reserved_bytes) for n, result in self._points]
        slope = max((b - a + _SEGMENT_BYTES) / (m - n) for n, a in points for m, b in points if m > n)
        slope = max(slope, 0.0)
        start = max(y - slope * n for n, y in points)
        return ceil(start + slope * batch_size)

    def largest_steep_batch(self, limit_bytes: int) -> int:
        """The largest batch size that fits by the steepest line; 0 when 1 does not."""
        return _largest(lambda n: self.steep_bytes(n) <= limit_bytes)

    # ---- lines ----------------------------------------------------------------------------------------

    def _middle(self, name: str, batch_size: int) -> int:
        """From each traced peak to the next, as batch sizes beside one that is known do not jump; least squares beyond."""
        sizes = [n for n, _ in self._points]
        peaks = [getattr(result, name) for _, result in self._points]
        if sizes[0] <= batch_size <= sizes[-1]:
            after = max(bisect_left(sizes, batch_size), 1)
            return _line(sizes[after - 1], peaks[after - 1], sizes[after], peaks[after], batch_size)
        mean_n, mean_y = sum(sizes) / len(sizes), sum(peaks) / len(peaks)
        spread = sum((n - mean_n) ** 2 for n in sizes)
        slope = sum((n - mean_n) * (y - mean_y) for n, y in zip(sizes, peaks, strict=True)) / spread
        return max(int(mean_y + slope * (batch_size - mean_n)), 0)


def _largest(fits: Callable[[int], bool]) -> int:
    low, high = 0, MAX_BATCH_SIZE + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _line(one: int, first: int, other: int, last: int, batch_size: int) -> int:
    return first + (last - first) * (batch_size - one) // (other - one)
