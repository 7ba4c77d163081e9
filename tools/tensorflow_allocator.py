"""The largest batches of `code=2019` workloads on a model of TensorFlow 1.13's allocator, for docs/2020.md.

    python tools/tensorflow_allocator.py [WORKLOAD...]

The model is written from core/common_runtime/bfc_allocator.cc and gpu/gpu_device.cc of TensorFlow 1.13, and was not compared with
a run of TensorFlow: one region of 95 % of what is free beside the CUDA context (no growth on demand, which neither program of the
measurements asked for); sizes are rounded up to 256 bytes; the smallest free chunk that is large enough is taken, and is
cut only where it is at least twice as large as what is asked for, or leaves 128 MiB; neighbours that are free are joined.
What is asked for, and in which order, is the traced step of PyTorch; kernels' workspaces are left out.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Sequence

from whichgpu import catalogue, published, workload
from whichgpu.predictor import Predictor
from whichgpu.program import Program

WORKLOADS = ("bert-base?code=2019", "bert-finetune?code=2019", "nasnet-large?code=2019")
MIB = 1 << 20
ROUNDED_TO = 256
MOST_WASTED = 128 * MIB
SHARE = 0.95
CONTEXT_BYTES = 300 * MIB  # CUDA 10: TensorFlow logs 7,267 MB on a card of 7,952
MOST = 1 << 12


class OutOfMemory(Exception):
    """No free chunk is large enough."""


class BestFit:
    """Chunks of one region: [begin, size, free], with the free ones by size."""

    def __init__(self, region_bytes: int) -> None:
        self.size = {0: region_bytes}
        self.before: dict[int, int] = {}  # begin of a chunk -> begin of the one before it
        self.free = [(region_bytes, 0)]

    def take(self, asked_bytes: int) -> int:
        """The begin of a chunk; OutOfMemory where there is none."""
        wanted = -(-max(asked_bytes, 1) // ROUNDED_TO) * ROUNDED_TO
        place = bisect.bisect_left(self.free, (wanted, -1))
        if place == len(self.free):
            raise OutOfMemory
        size, begin = self.free.pop(place)
        if size >= 2 * wanted or size - wanted >= MOST_WASTED:
            rest = begin + wanted
            self._join(begin, rest)
            self.size[begin], self.size[rest] = wanted, size - wanted
            after = rest + self.size[rest]
            if after in self.size:
                self.before[after] = rest
            bisect.insort(self.free, (self.size[rest], rest))
        return begin

    def give_back(self, begin: int) -> None:
        """Free a chunk and join it with its free neighbours."""
        after = begin + self.size[begin]
        if after in self.size and self._is_free(after):
            self._absorb(begin, after)
        earlier = self.before.get(begin)
        if earlier is not None and self._is_free(earlier):
            self.free.remove((self.size[earlier], earlier))
            self._swallow(earlier, begin)
            begin = earlier
        bisect.insort(self.free, (self.size[begin], begin))

    def _is_free(self, begin: int) -> bool:
        entry = (self.size[begin], begin)
        place = bisect.bisect_left(self.free, entry)
        return place < len(self.free) and self.free[place] == entry

    def _absorb(self, begin: int, after: int) -> None:
        self.free.remove((self.size[after], after))
        self._swallow(begin, after)

    def _swallow(self, begin: int, after: int) -> None:
        self.size[begin] += self.size.pop(after)
        del self.before[after]
        later = begin + self.size[begin]
        if later in self.size:
            self._join(begin, later)

    def _join(self, earlier: int, later: int) -> None:
        self.before[later] = earlier


def region_bytes(memory_bytes: int) -> int:
    """What TensorFlow takes of a card's memory when it starts."""
    return int((memory_bytes - CONTEXT_BYTES) * SHARE)


def fits(program: Program, region: int) -> bool:
    """Whether the traced steps run on one region."""
    allocator, places = BestFit(region), {}
    sizes: Sequence[int] = program.sizes
    try:
        for entry in program.instructions:
            slot = abs(entry) - 1
            if slot >= program.storages:
                continue
            if entry > 0:
                places[slot] = allocator.take(sizes[slot]) if sizes[slot] else None
            elif (begin := places.pop(slot)) is not None:
                allocator.give_back(begin)
    except OutOfMemory:
        return False
    return True


def largest(name: str) -> dict[str, int]:
    """The largest batch on each card of the article."""
    cards = catalogue.load()
    found = {}
    with Predictor(workload.parse(name), cache=True, on_progress=None) as predictor:
        for gpu in (card.gpu_id or card.gpu for card in published.figures().cards):
            card = cards.find(gpu)
            model, region = predictor.model(card.capability), region_bytes(card.memory_bytes)
            low, high = 0, 1
            while high < MOST and fits(model.program(high), region):
                low, high = high, 2 * high
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(model.program(middle), region) else (low, middle)
            found[card.name] = low
    return found


def main() -> None:
    """Print a line for each workload."""
    for name in sys.argv[1:] or WORKLOADS:
        print(name, largest(name), flush=True)


if __name__ == "__main__":
    main()
