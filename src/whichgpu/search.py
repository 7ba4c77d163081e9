"""The largest batch that fits, in few probes: for steps of which every batch size must be traced by itself.

False position between what fits and what does not, on the peak that each probe shows anyway; with growing strides where that
gains too little, as with sizes that grow in steps, and halving at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def largest_batch(
    fits: Callable[[int], bool],
    peak_bytes: Callable[[int], int],
    limit_bytes: int,
    known: Sequence[int],
    highest: int,
) -> int:
    """A batch size that fits while the next one does not; 0 when 1 does not, `highest` when that fits.

    `fits` and `peak_bytes` (of the step with as much memory as it wants) may be slow at a batch size that was not asked for
    before; at least one in `known` is fast. Depends on nothing else.
    """
    low, high = 0, highest + 1  # low fits, high does not
    peaks: dict[int, int] = {}
    for batch_size in sorted(known):
        if low < batch_size < high:
            peaks[batch_size] = peak_bytes(batch_size)
            low, high = (batch_size, high) if fits(batch_size) else (low, batch_size)
    stride, side = 1, 0
    while high - low > 1:
        guess = _on_line(peaks, low, high, limit_bytes)
        if guess is None:
            guess = min(2 * low, highest) if low else high // 2
        elif high - low <= 4 * stride:
            guess = (low + high) // 2
        elif side > 0:
            guess = max(guess, low + stride)
        elif side < 0:
            guess = min(guess, high - stride)
        guess = min(max(guess, low + 1), high - 1)
        peaks[guess] = peak_bytes(guess)
        # the same side again: the line misses in one direction, so that the next stride goes farther
        if fits(guess):
            stride, side, low = (2 * max(stride, guess - low) if side > 0 else 1), 1, guess
        else:
            stride, side, high = (2 * max(stride, high - guess) if side < 0 else 1), -1, guess
    return low


# Where smaller batch sizes are looked at once more: as far below, in so many places, closer together near what was found
_REACH, _PLACES = 0.25, 16


def lowest_edge(fits: Callable[[int], bool], found: int, near: int = 1) -> int:
    """A batch size that fits while the next does not, from one that was found: a lower one if there is one near.

    Where the limit is met, the allocator gives its cache back and operators do without workspaces. A step may then run at a
    batch size and fail at a smaller one; whoever is told the larger one would not believe it. Smaller ones than `near` are
    not looked at. Where there are many such edges, it looks again from each that it finds.
    """
    lower = _lower_edge(fits, found, near)
    while lower < found:
        found, lower = lower, _lower_edge(fits, lower, near)
    return found


def _lower_edge(fits: Callable[[int], bool], found: int, near: int) -> int:
    """The lowest edge that looking from one once shows."""
    low = min(max(round(found * (1 - _REACH)), near), found)
    distances = (-(-(found - low) * place**2 // _PLACES**2) for place in range(1, _PLACES + 1))
    places = sorted({found - distance for distance in distances} - {found})
    fitting, failing = 0, 0
    for place in places:
        if not fits(place):
            failing = place
            break
        fitting = place
    if not failing:
        return found
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        fitting, failing = (middle, failing) if fits(middle) else (fitting, middle)
    return fitting


def _on_line(peaks: dict[int, int], low: int, high: int, limit_bytes: int) -> int | None:
    """Where the line through two known peaks about the place that is looked for meets the limit; None without such a line."""
    below = [size for size in sorted(peaks) if size <= low]
    above = [size for size in sorted(peaks) if size >= high]
    pair = (below[-1:] + above[:1]) if below and above else (below[-2:] or above[:2])
    if len(pair) < 2 or peaks[pair[1]] <= peaks[pair[0]]:
        return None
    one, other = pair
    return one + (limit_bytes - peaks[one]) * (other - one) // (peaks[other] - peaks[one])
