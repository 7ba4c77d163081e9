"""Memory of a step that runs at one batch size alone: nothing is said of any other."""

from __future__ import annotations

from collections.abc import Callable

from whichgpu.allocator import DEFAULT_CONFIG
from whichgpu.batch_sizes import power_of_two_below
from whichgpu.capability import Capability
from whichgpu.memory import Answers, MemoryModel
from whichgpu.scaling import Scaled, Single


class OneBatch(MemoryModel):
    """Memory of one workload on one capability at the batch size `only`; the largest batch is that one or none."""

    def __init__(
        self,
        at: Callable[[int], Scaled | Single],
        capability: Capability,
        only: int,
        answers: Answers | None = None,
    ) -> None:
        super().__init__(at, capability, DEFAULT_CONFIG, answers, (only,))
        self.only = only

    def largest_batch(self, limit_bytes: int) -> int:
        """The one batch size where it fits under a limit; else 0."""
        return self.only if self.replay(self.only, limit_bytes).fits else 0

    def largest_power_of_two(self, limit_bytes: int) -> int:
        """The same where it is a power of two; else 0."""
        largest = self.largest_batch(limit_bytes)
        return largest if largest == power_of_two_below(largest) else 0
