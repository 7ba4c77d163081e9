"""What the allocator is asked for by a step at a batch size: a trace's allocations with the temporaries of its kernels.

`Skeleton` cuts the events of a trace where operators may take temporaries (`workspaces`) and puts those in between, with
the places where the process loads kernels and makes its handles of cuBLAS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from whichgpu import workspaces
from whichgpu.allocator import EMPTY_CACHE, CheckedProgram
from whichgpu.capability import Capability
from whichgpu.scaling import Scaled, Single, Sizes
from whichgpu.trace import EventKind, Op

Temporaries = tuple[tuple[workspaces.Temporary, ...], ...]  # by group of operators
# By group, with what the operator takes where that is the same on all cards.
Operators = list[tuple[Op, tuple[workspaces.Temporary, ...] | None]]


class Program(msgspec.Struct, frozen=True):
    """What the allocator is asked for at one batch size."""

    instructions: CheckedProgram  # slot + 1 allocates, -(slot + 1) frees
    size_array: Sizes  # bytes by slot
    op_at: list[int]  # positions in `instructions` where operators begin ...
    op_index: list[int]  # ... and which ones
    storages: int  # slots from here on are temporaries and workspaces

    @property
    def sizes(self) -> list[int]:
        """Bytes by slot."""
        return [*map(int, self.size_array)]


def _without_size(temporary: workspaces.Temporary, names: dict[str, int]) -> workspaces.Temporary:
    """What a layout depends on; searches and plans are numbered, as their names differ from batch size to batch size."""
    search, plan = (
        str(names.setdefault(name, len(names))) if name else "" for name in (temporary.search, temporary.plan)
    )
    return msgspec.structs.replace(temporary, bytes=0, search=search, plan=plan)


class _Layout(msgspec.Struct, frozen=True):
    """The part of a program that does not depend on sizes."""

    instructions: CheckedProgram
    op_at: list[int]
    op_index: list[int]
    taken: list[tuple[int, int]]  # temporaries in the order of their slots: group and number in it


# Copied by the driver itself, unless they change the type.
_COPIES = ("aten._to_copy.default", "aten.copy_.default", "aten.clone.default")


def _is_kernel(op: Op) -> bool:
    """Whether an operator runs a kernel on what is on the GPU already; those that make random numbers do not count."""
    read = [tensor for tensor in op.inputs if tensor.storage >= 0]
    copied = op.name in _COPIES and all(tensor.dtype == op.outputs[0].dtype for tensor in read if op.outputs)
    return bool(read) and not copied


class _Plan(NamedTuple):
    """In which order an operator takes and frees its temporaries among its own allocations."""

    entries: list[tuple[int, int]]  # (0, own allocation); (1 or -1, place in `taken` from 1 on): it is taken, or freed
    taken: list[int]  # numbers of the temporaries, in order
    simple: bool  # whether it is the same each time, nothing being kept or tried once only


def _plan(temporaries: Sequence[workspaces.Temporary], last: int) -> _Plan:
    """The plan for an operator with so many own allocations."""

    def place_of(before: int, earliest: int = 0) -> int:
        return before if earliest <= before < last else last

    entries: list[tuple[int, int]] = []
    taken: list[int] = []
    frees: dict[int, list[tuple[int, int]]] = {}  # by the own allocation before which they come
    for place in range(last + 1):
        for number, temporary in enumerate(temporaries):
            if place_of(temporary.before_output) == place:
                taken.append(number)
                entries.append((1, len(taken)))
                frees.setdefault(place_of(temporary.freed_before, place), []).append((-1, len(taken)))
        entries += frees.get(place, ())
        if place < last:
            entries.append((0, place))
    return _Plan(entries, taken, not any(one.kept or one.search for one in temporaries))


class Skeleton:
    """The part of a program that is the same at every batch size, cut where an operator may take temporaries.

    Operators that are the same at every batch size form a group, since they take the same temporaries.
    """

    def __init__(self, source: Scaled | Single) -> None:
        self._pieces: list[tuple[list[int], list[tuple[int, int]], int, list[int]]] = []
        # (instructions, [(place in them, operator)], group of the operator that follows or -1, its own allocations)
        self._examples: list[int] = []  # of each group, one operator
        self._layouts: dict[Temporaries, _Layout] = {}
        groups: dict[tuple[object, ...], int] = {}
        instructions: list[int] = []
        marks: list[tuple[int, int]] = []
        # an operator takes memory for its results before it runs, so that only the next one meets what loading changes
        self._loaded_before = next((index for index, op in enumerate(source.low.ops, 1) if _is_kernel(op)), -1)
        events = source.events
        place = 0
        while place < len(events):
            kind, argument = events[place]
            place += 1
            if kind == EventKind.ALLOC:
                instructions.append(argument + 1)
            elif kind == EventKind.FREE:
                instructions.append(-(argument + 1))
            elif kind == EventKind.OP:
                marks.append((len(instructions), argument))
                if source.low.ops[argument].name in workspaces.RULES:
                    own = []
                    while place < len(events) and events[place][0] == EventKind.ALLOC:
                        own.append(events[place][1] + 1)
                        place += 1
                    group = groups.setdefault(source.signature(argument), len(groups))
                    if group == len(self._examples):
                        self._examples.append(argument)
                    self._pieces.append((instructions, marks, group, own))
                    instructions, marks = [], []
        self._pieces.append((instructions, marks, -1, []))

    def operators(self, source: Scaled | Single, batch_size: int) -> Operators:
        """One operator of each group at a batch size."""
        ops = [source.op(op, batch_size) for op in self._examples]
        return [(op, workspaces.temporaries_on_any(op)) for op in ops]

    def temporaries(self, operators: Operators, capability: Capability) -> Temporaries:
        """What the operators of each group take on a card of a capability."""
        return tuple(workspaces.temporaries(op, capability) if on_any is None else on_any for op, on_any in operators)

    def program(self, storage_bytes: Sizes, temporaries: Temporaries) -> Program:
        """Everything with its sizes; `temporaries` by group."""
        # batch sizes differ in sizes, seldom in what is allocated and freed
        names: dict[str, int] = {}
        shape = tuple(tuple(_without_size(one, names) for one in group) for group in temporaries)
        layout = self._layouts.get(shape)
        if layout is None:
            layout = self._layouts[shape] = self._layout(len(storage_bytes), temporaries)
        taken = [temporaries[group][number].bytes for group, number in layout.taken]
        sizes = np.append(storage_bytes, np.array(taken, np.int64))
        return Program(layout.instructions, sizes, layout.op_at, layout.op_index, len(storage_bytes))

    def _layout(self, storages: int, temporaries: Temporaries) -> _Layout:
        out: list[int] = []
        op_at: list[int] = []
        op_index: list[int] = []
        taken: list[tuple[int, int]] = []
        kept: set[str] = set()
        searched: set[str] = set()
        loads: list[int] = []
        plans: dict[tuple[int, int], _Plan] = {}  # by group and number of own allocations
        for instructions, marks, group, own in self._pieces:
            base = len(out)
            for at, index in marks:
                op_at.append(base + at)
                op_index.append(index)
                if index == self._loaded_before and not loads:
                    loads.append(base + at)
            out += instructions
            if group < 0 or not temporaries[group]:
                out += own
                continue
            plan = plans.get((group, len(own)))
            if plan is None:
                plan = plans[group, len(own)] = _plan(temporaries[group], len(own))
            if plan.simple:
                before_first = storages + len(taken)
                out += [own[number] if sign == 0 else sign * (before_first + number) for sign, number in plan.entries]
                taken += [(group, number) for number in plan.taken]
                continue
            slot_of: dict[int, int] = {}
            for sign, place in plan.entries:
                if sign == 0:
                    out.append(own[place])
                    continue
                number = plan.taken[place - 1]
                temporary = temporaries[group][number]
                if sign < 0:
                    if number in slot_of:
                        out.append(-slot_of[number])
                    continue
                if temporary.kept:
                    if temporary.key in kept:
                        continue
                    kept.add(temporary.key)
                    if temporary.key.startswith(workspaces.CUBLAS):
                        # where the first kernel is a product, making the handle loads the kernels too
                        loads += [len(out)] * (1 if loads else 2)
                if temporary.search in searched:
                    continue
                taken.append((group, number))
                slot = storages + len(taken)
                out.append(slot)
                if temporary.search:
                    searched.add(temporary.search)
                    out += (-slot, EMPTY_CACHE)
                elif not temporary.kept:
                    slot_of[number] = slot
        alike: dict[str | tuple[int, int], list[int]] = {}
        instead_of: dict[int, int] = {}
        for place, (group, number) in enumerate(taken):
            temporary = temporaries[group][number]
            if temporary.optional:
                alike.setdefault(temporary.plan or (group, number), []).append(storages + place)
            if temporary.instead:
                instead_of[storages + place] = storages + place - 1  # the one before it is taken at the same place
        optional = {slot: slots for slots in alike.values() for slot in slots}
        return _Layout(CheckedProgram(out, loads, optional, instead_of), op_at, op_index, taken)
