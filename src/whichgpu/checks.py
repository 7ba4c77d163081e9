"""Batch sizes that are traced to check what is foretold of them: which, how it went, and what follows.

What was checked in an earlier question counts like what is checked now: both lie in the book of answers. Computes no memory.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress

import msgspec

from whichgpu.answers import Book
from whichgpu.batch_sizes import power_of_two_below
from whichgpu.errors import StepError
from whichgpu.scaling import Scaled, Scaling, Single, one_by_one
from whichgpu.tracers import Tracers

# With real tensors a step takes as long as on the CPU: it is traced where that takes no longer than this, by the time that
# another batch size took.
_LONGEST_REAL_S = 90.0
# The same for hollow ones where a step runs more operators for each sample ...
_LONGEST_S = 60.0
# ... and where a search would trace some ten batch sizes.
_LONGEST_SEARCHED_S = 5.0
# Up to here batch sizes are traced as a check: hollow tensors take no memory at any size ...
_LARGEST_TRACED = 65_536
# ... but what a user's own code loads may, which is guessed from what it puts on the GPU; some samples are always tried.
_LARGEST_INPUTS_BYTES = 256 << 20
_ALWAYS_TRACED = 1024
# Where all traces were kept, so that a process would have to be started, an answer of up to so many times the largest
# batch size at which the step ran stands without a trace of its own.
_NEAR = 2


def is_quick(scaling: Scaling, batch_size: int) -> bool:
    """Whether a trace at a batch size takes little time and memory."""
    example = scaling.example
    if example.kind == "fake":
        return batch_size <= _ALWAYS_TRACED and scaling.seconds_per_sample * batch_size <= _LONGEST_S
    return example.seconds / example.batch_size * batch_size <= _LONGEST_REAL_S


def is_quick_to_search(scaling: Scaling, largest_batch: int, asked: Collection[int]) -> bool:
    """Whether traces with hollow tensors near the largest batch take seconds, and those asked about not much more."""
    if scaling.example.kind != "fake":
        return False
    slowest_s = scaling.seconds_per_sample * max(asked, default=0)
    return scaling.seconds_per_sample * largest_batch <= _LONGEST_SEARCHED_S and slowest_s <= _LONGEST_S


class Checks:
    """The checks of one workload, by class of cards; `own_code`: it is the user's, which may load anything."""

    def __init__(self, tracers: Tracers, book: Book, *, own_code: bool) -> None:
        self._tracers = tracers
        self._book = book
        self._own_code = own_code
        self.failed_anew = False  # whether the book has to be kept although it has no more answers
        tracers.checked.update(size for size, _ in book.checked())

    # ---- which batch sizes ----------------------------------------------------------------------------

    def would_tell(self, batch_size: int) -> bool:
        """Whether a large batch size would say something that is not known from those that were tried."""
        highest = max(self._tracers.ran_at())
        near = 1 if self._tracers.seconds else _NEAR
        # neither larger nor rounder ones need be tried once a power of two failed
        hopeless = [size for size in self._tracers.failures if size > highest and size == power_of_two_below(size)]
        return batch_size > near * highest and batch_size < min(hopeless, default=batch_size + 1)

    def traceable(self, batch_size: int, scaling: Scaling) -> int:
        """The batch size, or the largest below that is cheap to trace."""
        size = min(batch_size, _LARGEST_TRACED)
        if scaling.seconds_per_sample:
            size = min(size, max(int(_LONGEST_S / scaling.seconds_per_sample), 1))
        if size <= _ALWAYS_TRACED or not self._own_code:
            return size
        source = scaling.at(max(self._tracers.batch_sizes))
        inputs = [storage.category == "input" for storage in source.low.storages]
        input_bytes = sum(compress(source.storage_bytes(size), inputs))
        if isinstance(source, Single):  # says the same whatever the batch size
            input_bytes = input_bytes * size // source.low.batch_size
        if input_bytes <= _LARGEST_INPUTS_BYTES:
            return size
        return max(size * _LARGEST_INPUTS_BYTES // input_bytes, _ALWAYS_TRACED)

    # ---- how it went ----------------------------------------------------------------------------------

    def passes(self, batch_size: int, name: str, scaling: Scaling) -> bool:
        """Trace a batch size and keep whether it is as foretold; True where it was checked before.

        Raises what the tracer raises, and then keeps nothing.
        """
        key = f"{name} {batch_size}"
        if batch_size in self._tracers.batch_sizes or key in self._book.checks:
            return True
        trace = self._tracers.trace_at(batch_size, name)
        foretold = scaling.at(batch_size) if scaling.affine else None
        reason = foretold.agrees_with(trace) if isinstance(foretold, Scaled) else None
        self._book.checks[key] = reason
        self._tracers.checked.add(batch_size)
        return reason is None

    def failed(self, batch_size: int, name: str, error: StepError) -> None:
        """Keep that the step raised at a batch size."""
        self._tracers.failures[batch_size] = str(error)
        traced = self._book.traced[name]
        self._book.traced[name] = msgspec.structs.replace(traced, failures=dict(self._tracers.failures))
        self.failed_anew = True

    def far(self, name: str, scaling: Scaling) -> tuple[int, ...]:
        """A further batch size for a line, where a step runs more operators for each sample; none where it is slow or fails.

        From small batches alone such a line is flat: all that they take may lie in the allocator's first segments.
        """
        if not scaling.seconds_per_sample or scaling.example.kind != "fake":
            return ()
        size = power_of_two_below(min(int(_LONGEST_SEARCHED_S / scaling.seconds_per_sample), _ALWAYS_TRACED))
        if size <= max(self._tracers.batch_sizes) or size in self._tracers.failures:
            return ()
        try:
            self.passes(size, name, scaling)
        except StepError as error:
            self.failed(size, name, error)
            return ()
        return (size,)

    # ---- what follows ---------------------------------------------------------------------------------

    def applied(self, name: str, scaling: Scaling) -> Scaling:
        """A scaling, unless a check disproved it, in this question or an earlier one: then each size is traced by itself.

        A batch of one runs other operators than all others in many networks (batch norm, squeezed dimensions). Where no other
        check disproved anything, it alone is traced by itself.
        """
        off = self._off()
        if not off or not scaling.affine or scaling.example.kind != "fake":
            return scaling
        at, alone = scaling.at, one_by_one(lambda size: self._tracers.trace_at(size, name))
        if set(off) == {1}:
            return msgspec.structs.replace(
                scaling, apart=True, reason=off[1], at=lambda size: alone(size) if size == 1 else at(size)
            )
        reason = next(reason for size, reason in off.items() if size != 1)
        return Scaling(affine=False, reason=reason, at=alone, example=scaling.example)

    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that were traced, of the checks those that disproved what was foretold."""
        off = set(self._off())
        return tuple(sorted({*self._tracers.batch_sizes, *(off if off != {1} else ())}))

    def _off(self) -> dict[int, str]:
        """The batch sizes that were not as foretold, and why."""
        return {size: reason for size, reason in self._book.checked() if reason is not None}
