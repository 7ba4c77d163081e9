"""Where NVIDIA's driver puts memory: the addresses of what cudaMalloc returns, of which PyTorch makes its segments.

Among free blocks of one size PyTorch's allocator takes that of the lowest address, so that addresses decide which
segments stay in use, and with that how much is reserved: up to 15 % of it in recorded training steps.
"""

from __future__ import annotations

from bisect import bisect_left, insort

PAGE_BYTES = 2 << 20  # all segments are whole pages
REGION_PAGES = 16  # of address space, that the driver takes at once
LAST_PAGE = 1 << 40  # regions go downwards from here, and never come to the end
# What a new context leaves: pages above the last, and how many, oldest first.
CONTEXT_HOLES = ((244, 12), (207, 1))
# What the first kernels leave below the newer one: random numbers did not, what came next did, in six recorded processes.
LOADING_PAGES = 207
# What each handle of cuBLAS takes, just before its workspace.
CUBLAS_PAGES = 32


class _Region:
    """A run of pages that the driver took at once; `holes` are its free runs: place and pages, by place."""

    __slots__ = ("age", "holes", "pages", "permanent", "place", "room")

    def __init__(self, age: int, place: int, pages: int, permanent: bool = False) -> None:
        self.age = age  # larger for newer ones
        self.place = place
        self.pages = self.room = pages  # room: of the largest hole
        self.permanent = permanent
        self.holes = [(place, pages)]

    def take(self, pages: int) -> int:
        """The place of so many pages, in the smallest hole that has them."""
        holes = self.holes
        at = 0
        if len(holes) > 1:
            at = min([(room, at) for at, (_, room) in enumerate(holes) if room >= pages])[1]
        place, room = holes[at]
        if room > pages:
            holes[at] = (place + pages, room - pages)
        else:
            del holes[at]
        return place

    def measure(self) -> int:
        """The largest hole anew; 0 where there is none."""
        holes = self.holes
        self.room = holes[0][1] if len(holes) == 1 else max([room for _, room in holes], default=0)
        return self.room


def _join(runs: list[tuple[int, int]], place: int, pages: int) -> None:
    """Put a run among others, and join it with those that it touches."""
    at = bisect_left(runs, (place, 0))
    if at < len(runs) and runs[at][0] == place + pages:
        pages += runs.pop(at)[1]
    if at and sum(runs[at - 1]) == place:
        at -= 1
        place, before = runs.pop(at)
        pages += before
    runs.insert(at, (place, pages))


class Addresses:
    """Where the driver puts segments.

    It takes regions of a multiple of 32 MiB of address space, each at the upper end of the highest gap that has more
    room than that, so below all others at first. A segment goes into the smallest hole of the newest region that has
    one for it, else into a new region. A region that is empty again is given up; those that a process starts with are not.
    So it was for all of 4,725 segments of random sizes, made and freed in random order, on an NVIDIA H200 (driver
    580.159.04); of other cards and drivers this is not known. A process that runs kernels gets one more hole, and each
    handle of cuBLAS takes a segment: see `load`. What else the driver takes for itself on the way is not modelled.
    Addresses are those of the process, so that other libraries in it move them: with its own recorded addresses the allocator
    repeated each of 15 further processes to the byte, out of memory or not; with those modelled here ten of them.

    Addresses here are in units of `unit_bytes`, and `apart` units longer than they are for each page, so that two
    segments never touch.
    """

    def __init__(self, unit_bytes: int, apart: int) -> None:
        self._page = PAGE_BYTES // unit_bytes
        self._apart = self._page + apart
        self._regions: dict[int, _Region] = {}  # by age
        self._ages_by_room: dict[int, list[int]] = {}  # of the regions with a hole, by the pages of its largest
        self._region_of: dict[int, _Region] = {}  # by the place of a segment
        self._gaps = [(0, LAST_PAGE)]  # place and pages, by place
        self._made = 0
        self._loaded = False
        for place, pages in CONTEXT_HOLES:
            self._add(_Region(self._made, LAST_PAGE + place, pages, permanent=True))

    def place(self, size: int) -> int:
        """The address of a new segment."""
        pages = size // self._page
        age = max([ages[-1] for room, ages in self._ages_by_room.items() if room >= pages], default=None)
        region = self._new_region(-(-pages // REGION_PAGES) * REGION_PAGES) if age is None else self._regions[age]
        place = region.take(pages)
        self._measured(region)
        self._region_of[place] = region
        return place * self._apart

    def give_back(self, address: int, size: int) -> None:
        """Free a segment."""
        place = address // self._apart
        region = self._region_of.pop(place)
        _join(region.holes, place, size // self._page)
        if region.permanent or region.holes[0] != (region.place, region.pages):
            self._measured(region)
            return
        self._forget(region)
        del self._regions[region.age]
        _join(self._gaps, region.place, region.pages)

    def load(self) -> None:
        """The process loads something: at first its first kernels, then cuBLAS, once for each of its handles."""
        if self._loaded:
            self.place(CUBLAS_PAGES * self._page)
            return
        self._loaded = True
        region = self._regions[len(CONTEXT_HOLES) - 1]
        _join(region.holes, region.place - LOADING_PAGES, LOADING_PAGES)
        self._measured(region)

    def _add(self, region: _Region) -> None:
        self._regions[region.age] = region
        self._made += 1
        insort(self._ages_by_room.setdefault(region.room, []), region.age)

    def _forget(self, region: _Region) -> None:
        ages = self._ages_by_room.get(region.room)
        if ages is not None:
            del ages[bisect_left(ages, region.age)]
            if not ages:
                del self._ages_by_room[region.room]

    def _measured(self, region: _Region) -> None:
        if region.room:
            self._forget(region)
        if region.measure():
            insort(self._ages_by_room.setdefault(region.room, []), region.age)

    def _new_region(self, pages: int) -> _Region:
        at = next(at for at in reversed(range(len(self._gaps))) if self._gaps[at][1] > pages)
        place, room = self._gaps[at]
        self._gaps[at] = (place, room - pages)
        region = _Region(self._made, place + room - pages, pages)
        self._add(region)
        return region
