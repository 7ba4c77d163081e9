"""What the host does in a step besides launching operators: tensors that it makes itself, copies from it, and waits for the GPU.

An entry stands before the operator on the GPU that comes next. Neighbours of the same kind are one entry.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# "random" and "made": an operator on tensors of the host; "upload": a copy to the GPU, "upload_async" where the step asks not
# to wait for it; "wait": until all that was launched is done, to read a value
Kind = Literal["random", "made", "upload", "upload_async", "wait"]


class Entry(NamedTuple):
    """One kind of work."""

    step: int
    place: int  # index of the operator on the GPU that comes next
    kind: Kind
    times: int
    elements: int


class HostWork:
    """The entries of a run, in their order."""

    def __init__(self) -> None:
        self._found: list[Entry] = []

    def note(self, step: int, place: int, kind: Kind, elements: int) -> None:
        """The host did something in a step."""
        last = self._found[-1] if self._found else None
        if last is not None and (last.step, last.place, last.kind) == (step, place, kind):
            self._found[-1] = last._replace(times=last.times + 1, elements=last.elements + elements)
        else:
            self._found.append(Entry(step, place, kind, 1, elements))

    def of(self, step: int) -> list[list[int | str]]:
        """What a step did, as it stands in a trace: place, kind, times and elements of each entry."""
        return [[*entry[1:]] for entry in self._found if entry.step == step]
