"""The dispatch mode that writes down what a training step asks of the GPU.

Every operator that reaches the dispatcher passes through `Recorder`. Operators on GPU tensors are "run" on hollow
CPU tensors (shapes from PyTorch's own meta kernels) or, in the fallback, on real CPU tensors; their new storages
are noted when they are born and, through weak references, when the C++ side lets go of them. Tensors of the
host are computed for real when small and are hollow when large, and never counted.

What belongs to the GPU is a tag on the storage, so views and `.data` tricks keep it without effort.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from bisect import bisect_right
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whichgpu import trace
from whichgpu.capability import CLASSES
from whichgpu.capture import choices, hollow, in_place, known, operands, refusals
from whichgpu.capture.host_work import HostWork, Kind
from whichgpu.capture.operators import (
    NO_DATA,
    Operator,
    attributes_of,
    fill,
    flops_of,
    healthy,
    makes_large,
    named,
    plain_index,
)
from whichgpu.capture.outcome import Outcome, collect, describe, is_dense, key_of, materialise, meta_of, recipe, zeros
from whichgpu.errors import DataDependentError

aten = torch.ops.aten
Tensor = torch.Tensor

# Reads the host must wait for; answered from known values, or a stand-in, or not at all.
_UNKNOWN_FLOAT = 1.0
# of the host, and no work: memory that is not written, and a look at it
_FREE = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"})

_next_sequence_number = torch.autograd._get_sequence_nr
_USERS, _MACHINERY, _AUTOGRAD = -1, -2, -3  # whose code it is
_NOWHERE = (-1, -1)
_TORCH, _OWN, _STANDARD = (
    os.path.join(os.path.dirname(folder), "") for folder in (torch.__file__, os.path.dirname(__file__), os.__file__)
)


class _Birth(weakref.ref):
    """A weak reference that knows which storage it watches."""

    __slots__ = ("index",)


class Recorder(TorchDispatchMode):
    """Runs and records; `kind` is "fake" (hollow tensors) or "real-cpu"."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        in_place.prepare()
        self.kind = kind
        self.real = kind == "real-cpu"
        self.phase: trace.Phase = "setup"
        self.step = -1
        self.force: str | None = None  # "gpu" or "host" while a tensor is being copied there
        self.module_stack: list[int] = []
        self.modules: dict[int, Any] = {}
        self.same_for = set(CLASSES)  # classes of cards for which this trace holds as well
        self.notes: list[str] = []
        self.dtypes: set[str] = set()
        self.events: list[tuple[int, int]] = []
        self.ops: list[tuple[Any, ...]] = []
        self.host_work = HostWork()
        self.storage_bytes: list[int] = []
        self.storage_op: list[int] = []
        self.storage_phase: list[str] = []
        self.alive: dict[int, _Birth] = {}
        self.held_into_backward: set[int] = set()
        self._infos: dict[Any, Operator] = {}
        self._shapes: dict[Any, Outcome] = {}
        self._sources: dict[Any, int] = {}
        self.source_names: list[str] = []
        # Nodes of autograd's graph are numbered in the order in which they are made; those from a number on, up to the
        # next one here, were made at the place of the same index.
        self._node_numbers: list[int] = []
        self._node_places: list[tuple[int, int]] = []
        self._next_node = _next_sequence_number()
        self._thread = threading.get_ident()
        self.lock = threading.RLock()
        self._noted: tuple[int, int] | None = None  # the place of the operator that is dispatched, once it is known
        self._patched_tables()

    # ---- what belongs to the GPU ------------------------------------------------------------------

    @staticmethod
    def index_of(tensor: Tensor) -> int | None:
        """Index of the tensor's storage on the GPU, None for a tensor of the host."""
        if tensor.layout != torch.strided:
            return Recorder._index_of_sparse(tensor)
        try:
            return getattr(tensor.untyped_storage(), "_whichgpu", None)
        except ValueError:  # the parameter of a lazy module, which has no size yet
            return None

    @staticmethod
    def _on_gpu(tensor: Tensor) -> bool:
        return tensor.layout != torch.strided or Recorder.index_of(tensor) is not None

    @staticmethod
    def _index_of_sparse(tensor: Tensor) -> int | None:
        if tensor.layout == torch.sparse_coo:
            return getattr(tensor._values().untyped_storage(), "_whichgpu", None)
        return None

    def adopt(self, tensor: Tensor) -> None:
        """The tensor's storage is new on the GPU: note its birth and watch for its death."""
        if tensor.layout == torch.sparse_coo:
            self.adopt(tensor._indices())
            self.adopt(tensor._values())
            return
        refusals.check_layout(tensor)
        storage = tensor.untyped_storage()
        if getattr(storage, "_whichgpu", None) is not None:
            return
        index = len(self.storage_bytes)
        storage._whichgpu = index
        self.storage_bytes.append(storage.nbytes())
        self.storage_op.append(len(self.ops) - 1)
        self.storage_phase.append(self.phase)
        self.events.append((trace.EventKind.ALLOC, index))
        birth = _Birth(storage, self._on_death)
        birth.index = index
        self.alive[index] = birth

    def _on_death(self, birth: _Birth) -> None:
        if self.alive.pop(birth.index, None) is not None:
            self.events.append((trace.EventKind.FREE, birth.index))

    # ---- marks ------------------------------------------------------------------------------------

    def begin_step(self, number: int) -> None:
        """A training step begins."""
        self.step = number
        self.phase = "forward"
        self.events.append((trace.EventKind.STEP, number))

    def begin_backward(self) -> None:
        """The backward pass begins: what the forward pass left alive is held for it."""
        self.phase = "backward"
        self.held_into_backward.update(self.alive)

    # ---- dispatch ---------------------------------------------------------------------------------

    def _dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.lock:  # threads of the step come here too
            if func in in_place.CANDIDATES and self.phase == "backward":  # here, since it looks at the caller's frame
                func = in_place.variant(func, args, kwargs or {}, just_made=self._just_made(args[0]))
            elif self.phase == "backward" and in_place.is_made_up(func):
                kwargs = {**kwargs, "device": "cuda"}
            elif self.phase == "backward" and in_place.is_kept(func, args):
                return in_place.shallow(args[0])
            return self._dispatch_one(func, types, args, kwargs)

    def _dispatch_one(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._noted = None
        # each thread counts the nodes that it makes by itself
        if (number := _next_sequence_number()) != self._next_node and threading.get_ident() == self._thread:
            self._noted = self._place()
            self._node_numbers.append(self._next_node)
            self._node_places.append(self._noted)
            self._next_node = number
        kwargs = dict(kwargs) if kwargs else {}
        info = self._infos.get(func)
        if info is None:
            info = self._infos[func] = Operator(func)
        if info.composite and info.short not in NO_DATA:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        taken_apart = self.decompositions.get(info.short)
        if taken_apart is not None and self.index_of(args[0]) is not None:
            with self:
                out = taken_apart(*args, **kwargs)
            if out is not NotImplemented:
                return out
        tensors: list[Tensor] = []
        collect(args, tensors)
        collect(kwargs.values(), tensors)
        on_gpu = any(self.index_of(t) is not None for t in tensors)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            operands.check_ordinal(torch.device(device))
            on_gpu = True
            kwargs["device"] = torch.device("cpu")
        if self.force is not None:
            on_gpu = self.force == "gpu"
        kwargs.pop("pin_memory", None) if kwargs.get("pin_memory") else None
        if on_gpu:
            return self._run_on_gpu(func, info, args, kwargs, tensors)
        return self._run_on_host(func, info, args, kwargs, tensors)

    def _run_on_host(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        out = self._make_on_host(func, info, args, kwargs, tensors)
        if not info.no_data and info.short not in _FREE and self.step >= 0:
            made: list[Tensor] = []
            collect((out,) if out is not None else args, made)
            elements = sum(t.numel() for t in made if t.layout == torch.strided)
            self.on_host("random" if info.random else "made", elements)
        return out

    def on_host(self, kind: Kind, elements: int) -> None:
        """The host does something itself, or waits, before it launches the next operator."""
        if self.step >= 0:
            self.host_work.note(self.step, len(self.ops), kind, elements)

    def _make_on_host(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if self.real or info.no_data:
            return func(*args, **kwargs)
        if not any(hollow.is_hollow(t) for t in tensors):
            if tensors or not makes_large(info, args, kwargs):
                return func(*args, **kwargs)
        elif info.short == "_local_scalar_dense":
            return self._scalar(args[0])
        return self._infer(func, info, args, kwargs, tensors, gpu=False)

    def _run_on_gpu(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if info.no_data:
            out = func(*args, **kwargs)
            if not self.real:
                self._follow_view(func, args, kwargs, tensors, out)
            return out
        operands.check_devices(info.short, tensors, self._on_gpu)
        operands.check_types(info.short, args)
        if "generator" in kwargs:
            kwargs["generator"] = None
        if info.short == "_local_scalar_dense":
            self.on_host("wait", 1)
            return func(*args, **kwargs) if self.real else self._scalar(args[0])
        if info.short == "copy_":
            self._note_copy(args[0], args[1], bool(kwargs.get("non_blocking") or args[2:3] == (True,)))
        self.events.append((trace.EventKind.OP, len(self.ops)))
        if self.real:
            return self._run_real(func, info, args, kwargs, tensors)
        return self._infer(func, info, args, kwargs, tensors, gpu=True)

    def _note_copy(self, target: Tensor, source: Tensor, non_blocking: bool) -> None:
        """A copy between the host and the GPU."""
        if not self._on_gpu(target):
            self.on_host("wait", target.numel())
        elif not self._on_gpu(source) and source.dim():
            self.on_host("upload_async" if non_blocking else "upload", source.numel())

    # ---- real tensors -----------------------------------------------------------------------------

    def _run_real(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if info.short == "_cudnn_rnn_flatten_weight":
            return self._flatten(info, args[0])
        implementation = self.real_implementations.get(info.short)
        inputs = tuple(self._describe(t) for t in tensors)
        self.ops.append(())  # its place in the order; filled in below
        place = len(self.ops) - 1
        try:
            out = implementation(*args, **kwargs) if implementation else func(*args, **kwargs)
        except NotImplementedError:  # no kernel on the CPU: the shapes are what counts
            shapes = self._work_out(func, info, args, kwargs, tensors, self.hollow_implementations.get(info.short))
            out = materialise(shapes.out, tensors, zeros)
        outputs: list[Tensor] = []
        collect((out,), outputs)
        for tensor in self.allocation_order.get(info.short, list)(outputs):
            self.adopt(tensor)
        shapes = Outcome(None, None, attributes_of(info, args, kwargs))
        shapes.flops = flops_of(info, args, kwargs, out)
        self.ops[place] = self._op(info, inputs, tuple(self._describe(t) for t in outputs), shapes)
        return out

    # ---- hollow tensors ---------------------------------------------------------------------------

    def _infer(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: list[Tensor], *, gpu: bool) -> Any:
        if (picked := self._known_masks(info, args)) is not None:
            args, tensors = (args[0], picked), [args[0], *(index for index in picked if index is not None)]
        values = self._known_values(tensors)
        by_value = self.value_implementations.get(info.short)
        if (
            info.data_dependent
            and by_value is None
            and info.short != "_local_scalar_dense"
            and not plain_index(info, args)
        ):
            return self._data_dependent(func, info, args, kwargs, values, gpu)
        if info.resizes:
            return self._resize(func, info, args, kwargs, tensors, gpu)
        if info.short == "_cudnn_rnn_flatten_weight":
            return self._flatten(info, args[0])
        special = self.hollow_implementations.get(info.short)
        key: list[Any] = [func]
        key_of(args, key)
        key_of(kwargs, key)
        try:
            cache_key: Any = None if by_value else tuple(key)
            shapes = self._shapes.get(cache_key)
        except TypeError:  # an argument that cannot be hashed; worked out afresh each time
            cache_key, shapes = None, None
        if shapes is None:
            shapes = self._work_out(func, info, args, kwargs, tensors, special, by_value)
            if cache_key is not None:
                self._shapes[cache_key] = shapes
        if gpu:
            self.ops.append(())
        place = len(self.ops) - 1
        inputs = tuple(self.index_of(t) for t in tensors) if gpu else ()
        out = materialise(shapes.out, tensors)
        if gpu:
            outputs: list[Tensor] = []
            collect((out,), outputs)
            for tensor in self.allocation_order.get(info.short, list)(outputs):
                if hollow.is_hollow(tensor):
                    self.adopt(tensor)
            described = tuple(
                (shape, dtype, stride, -1 if index is None else index)
                for (shape, dtype, stride), index in zip(shapes.inputs, inputs, strict=True)
            )
            self.ops[place] = self._op(info, described, tuple(self._describe(t) for t in outputs), shapes)
        self._follow(func, info, args, kwargs, tensors, values, out)
        return out

    def _known_masks(self, info: Operator, args: Any) -> list[Tensor | None] | None:
        """Indices in place of the masks of an `index` when all of these are known; None where there is nothing to do."""
        if info.short != "index" or plain_index(info, args):
            return None
        picked: list[Tensor | None] = []
        for index in args[1]:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                picked.append(index)
                continue
            value = known.value_of(index, hollow.is_hollow(index))
            if value is None and self._hardly_counts(args[0]):
                self.note("masks over a few numbers of the network were taken to let all of them pass")
                value = torch.ones(index.shape, dtype=torch.bool)
            if value is None:
                return None
            self.note_choices([value])
            picked += value.nonzero(as_tuple=True)
        return picked

    def _hardly_counts(self, tensor: Tensor) -> bool:
        """Whether all of a tensor is next to nothing of what is held: then any part of it may stand for the whole."""
        held = sum(self.storage_bytes[index] for index in self.alive)
        return tensor.numel() * tensor.itemsize * 1000 < held

    def _work_out(
        self,
        func: Any,
        info: Operator,
        args: Any,
        kwargs: Any,
        tensors: list[Tensor],
        special: Any,
        by_value: Any = None,
    ) -> Outcome:
        metas = {id(t): meta_of(t) for t in tensors}
        if by_value is not None:  # small tensors with their contents, the others as shapes
            for tensor in tensors:
                value = known.value_of(tensor, hollow.is_hollow(tensor))
                if value is not None and not value.dtype.is_floating_point:
                    metas[id(tensor)] = value
        lookup = lambda t: metas[id(t)]  # noqa: E731
        meta_args = known.substitute(args, lookup)
        meta_kwargs = {name: known.substitute(value, lookup) for name, value in kwargs.items()}
        if "device" in meta_kwargs:
            meta_kwargs["device"] = torch.device("meta")
        try:
            out = (by_value or special or func)(*meta_args, **meta_kwargs)
        except (NotImplementedError, RuntimeError) as error:
            out = self._try_on_zeros(func, args, kwargs, tensors, error)
        places = {id(metas[id(t)]): number for number, t in reversed(list(enumerate(tensors)))}
        bases = {metas[id(t)].untyped_storage()._cdata: number for number, t in reversed(list(enumerate(tensors)))}
        inputs = tuple(describe(t) for t in tensors)
        shapes = Outcome(recipe(out, places, bases), inputs, attributes_of(info, args, kwargs))
        shapes.flops = flops_of(info, args, kwargs, out)
        return shapes

    def _try_on_zeros(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], error: Exception) -> Any:
        """An operator without a meta kernel: run it for real on zeros when that is small."""
        if "out of memory" in str(error) or sum(t.numel() * t.itemsize for t in tensors) > 1 << 28:
            raise error
        if not isinstance(error, NotImplementedError) and "meta" not in str(error).lower():
            raise error
        stand_ins = {
            id(t): torch.zeros(t.shape, dtype=t.dtype).as_strided(t.shape, t.stride())
            if is_dense(t)
            else torch.zeros(t.shape, dtype=t.dtype)
            for t in tensors
        }
        lookup = lambda t: stand_ins[id(t)]  # noqa: E731
        real_kwargs = {name: known.substitute(value, lookup) for name, value in kwargs.items()}
        out = func(*known.substitute(args, lookup), **real_kwargs)
        back = {id(z): meta_of(next(t for t in tensors if stand_ins[id(t)] is z)) for z in stand_ins.values()}
        return torch.utils._pytree.tree_map_only(Tensor, lambda t: back.get(id(t), meta_of(t)), out)

    # ---- values -----------------------------------------------------------------------------------

    def _known_values(self, tensors: list[Tensor]) -> list[Tensor] | None:
        values = []
        for tensor in tensors:
            if tensor.layout != torch.strided:
                return None
            value = known.value_of(tensor, hollow.is_hollow(tensor))
            if value is None:
                return None
            values.append(value)
        return values

    def _follow(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: Any, values: Any, out: Any) -> None:
        """Compute the known values of the results, or mark what was written as unknown."""
        outputs: list[Tensor] = []
        collect((out,), outputs)
        if (number := fill(info, args)) is not None and hollow.is_hollow(outputs[0]):
            known.uniform(outputs[0], number)
            return
        if info.short == "_amp_foreach_non_finite_check_and_unscale_":
            return  # gradients are unknown anyway, and the flag of an infinite one stays as it was: none
        if (
            values is not None
            # the numbers of weights, and those that take a while to compute, only where there are few
            and all(known.followed(t, weights=self.phase == "setup" or info.flops is not None) for t in outputs)
            and not (info.written and any(known.shares_one_number(t, v) for t, v in zip(tensors, values, strict=True)))
        ):
            by_id = {id(t): v for t, v in zip(tensors, values, strict=True)}
            lookup = lambda t: by_id[id(t)]  # noqa: E731
            try:
                result = func(
                    *known.substitute(args, lookup), **{k: known.substitute(v, lookup) for k, v in kwargs.items()}
                )
            except (RuntimeError, NotImplementedError, TypeError):
                result = None
            if result is not None:
                results: list[Tensor] = []
                collect((result,), results)
                if choices.follow_from(values):
                    choices.mark(results)
                for tensor, value in zip(outputs, results, strict=False):
                    if id(tensor) not in by_id and hollow.is_hollow(tensor):
                        known.attach(tensor, value)
                return
        elif choices.attach(info.short, info.arguments, args, kwargs, outputs):
            return
        if (answer := healthy(info, args)) is not None and known.followed(outputs[0]):
            self.note("the step looks for infinite or missing numbers on the GPU; none were assumed")
            known.attach(outputs[0], torch.full(outputs[0].shape, answer))
            return
        if info.written:
            for name, value in named(info, args, kwargs):
                if name in info.written:
                    written: list[Tensor] = []
                    collect((value,), written)
                    for tensor in written:
                        known.forget(tensor)

    def _follow_view(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> None:
        values = self._known_values(tensors)
        if values is None or torch.Tag.inplace_view in func.tags:
            return
        by_id = {id(t): v for t, v in zip(tensors, values, strict=True)}
        lookup = lambda t: by_id[id(t)]  # noqa: E731
        try:
            result = func(
                *known.substitute(args, lookup), **{k: known.substitute(v, lookup) for k, v in kwargs.items()}
            )
        except RuntimeError:  # a view by strides of a tensor that is known to hold one number everywhere
            return
        outputs: list[Tensor] = []
        results: list[Tensor] = []
        collect((out,), outputs)
        collect((result,), results)
        for tensor, value in zip(outputs, results, strict=False):
            if hollow.is_hollow(tensor):
                known.attach(tensor, value)

    def _scalar(self, tensor: Tensor) -> Any:
        value = known.value_of(tensor, hollow.is_hollow(tensor))
        if value is not None:
            self.note_choices([value])
            return value.item()
        if tensor.dtype.is_floating_point:
            self.note("the step reads a result back from the GPU (.item()); a finite number was assumed")
            return _UNKNOWN_FLOAT
        raise DataDependentError("the step branches on a value computed on the GPU")

    def _data_dependent(self, func: Any, info: Operator, args: Any, kwargs: Any, values: Any, gpu: bool) -> Any:
        if values is None:
            raise DataDependentError(f"{info.name}: the shape of its result depends on values")
        self.note_choices(values)
        tensors: list[Tensor] = []
        collect(args, tensors)
        collect(kwargs.values(), tensors)
        by_id = {id(t): v for t, v in zip(tensors, values, strict=True)}
        lookup = lambda t: by_id[id(t)]  # noqa: E731
        result = func(*known.substitute(args, lookup), **{k: known.substitute(v, lookup) for k, v in kwargs.items()})
        if gpu:
            self.ops.append(())
        place = len(self.ops) - 1

        def to_hollow(value: Tensor) -> Tensor:
            tensor = hollow.empty(tuple(value.shape), value.stride(), value.dtype)
            known.attach(tensor, value)
            if gpu:
                self.adopt(tensor)
            return tensor

        out = torch.utils._pytree.tree_map_only(Tensor, to_hollow, result)
        if gpu:
            outputs: list[Tensor] = []
            collect((out,), outputs)
            shapes = Outcome(None, None, attributes_of(info, args, kwargs))
            shapes.flops = 0
            self.ops[place] = self._op(
                info, tuple(self._describe(t) for t in tensors), tuple(self._describe(t) for t in outputs), shapes
            )
        return out

    def _resize(self, func: Any, info: Operator, args: Any, kwargs: Any, tensors: list[Tensor], gpu: bool) -> Any:
        target = args[0]
        if gpu:
            self.ops.append(())
            shapes = Outcome(None, None, {})
            shapes.flops = 0
            self.ops[-1] = self._op(info, tuple(self._describe(t) for t in tensors), (), shapes)
        if info.short == "set_":
            return func(*args, **kwargs)
        size = tuple(args[1].shape) if info.short == "resize_as_" else tuple(args[1])
        stride = torch.empty(size, device="meta").stride()
        needed = hollow.storage_bytes(size, stride, target.dtype.itemsize)
        if needed <= target.untyped_storage().nbytes():
            return target.as_strided_(size, stride)
        fresh = hollow.empty(size, stride, target.dtype)
        if gpu:
            self.adopt(fresh)
        return target.set_(fresh.untyped_storage(), 0, size, stride)

    def _flatten(self, info: Operator, weights: list[Tensor]) -> Tensor:
        """Weights of a recurrent layer become views of one new buffer."""
        inputs = tuple(self._describe(w) for w in weights)
        self.ops.append(())
        size = sum(w.numel() for w in weights)
        if self.real:
            buffer = torch.cat([w.detach().reshape(-1) for w in weights])
        else:
            buffer = hollow.empty((size,), (1,), weights[0].dtype)
        self.adopt(buffer)
        offset = 0
        with torch.no_grad():
            for w in weights:
                stride = torch.empty(w.shape, device="meta").stride()
                w.set_(buffer.untyped_storage(), offset, w.shape, stride)
                offset += w.numel()
        shapes = Outcome(None, None, {})
        self.ops[-1] = self._op(info, inputs, (self._describe(buffer),), shapes)
        return buffer

    # ---- bookkeeping ------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A caveat for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _just_made(self, tensor: Tensor) -> bool:
        """Whether the last operator made the tensor."""
        index = self.index_of(tensor)
        return index is not None and self.storage_op[index] == len(self.ops) - 1

    def note_choices(self, values: list[Tensor]) -> None:
        """Say so where something that decides follows from what the network chooses."""
        if choices.follow_from(values):
            self.note(choices.NOTE)

    def _describe(self, tensor: Tensor) -> tuple[Any, ...]:
        index = self.index_of(tensor)
        return (*describe(tensor), -1 if index is None else index)

    def _op(self, info: Operator, inputs: Any, outputs: Any, shapes: Outcome) -> tuple[Any, ...]:
        module, source = self._noted or self._place()
        return (info.name, self.phase, self.step, inputs, outputs, shapes.attributes, shapes.flops or 0, module, source)

    def begins_backward(self, code: Any) -> None:
        """What is called from a frame of this code, with no user's frame between, is autograd's own."""
        self._sources[code] = _AUTOGRAD

    def _place(self) -> tuple[int, int]:
        """The module (its id) that runs, and where in the user's code we are: the innermost frame of neither torch nor
        whichgpu, -1 for none.

        An operator that autograd runs by itself belongs where the operator ran whose gradient it computes; what the user's
        code runs inside the backward pass (recomputed layers, functions with a backward of their own, hooks) where it runs.
        """
        module = self.module_stack[-1] if self.module_stack else -1
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            place = self._sources.get(code)
            if place is None:
                place = self._sources[code] = _MACHINERY if _is_machinery(code.co_filename) else _USERS
            if place == _USERS:
                key = (code, frame.f_lineno)
                number = self._sources.get(key)
                if number is None:
                    number = self._sources[key] = len(self.source_names)
                    self.source_names.append(f"{code.co_filename}:{frame.f_lineno}")
                return (module if module != -1 else self._node_place()[0]), number
            if place == _AUTOGRAD and (node := self._node_place()) is not _NOWHERE:
                return (module if module != -1 else node[0]), node[1]
            frame = frame.f_back
        return module, -1

    def _node_place(self) -> tuple[int, int]:
        """Where the node of autograd's graph was made that runs now."""
        node = torch._C._current_autograd_node()
        if node is None:
            return _NOWHERE
        index = bisect_right(self._node_numbers, node._sequence_nr()) - 1
        # the nodes that add gradients up belong to parameters and have the largest number there is
        return self._node_places[index] if index >= 0 and node._sequence_nr() < self._next_node else _NOWHERE

    def _patched_tables(self) -> None:
        # filled by capture.composites: operators without a usable meta or CPU kernel
        self.hollow_implementations: dict[str, Any] = {}
        self.real_implementations: dict[str, Any] = {}
        self.value_implementations: dict[str, Any] = {}  # get small integer tensors with their contents
        self.decompositions: dict[str, Any] = {}  # what CUDA does in several operators; may return NotImplemented
        # how CUDA orders the results of an operator when it allocates them, where not as they are returned
        self.allocation_order: dict[str, Any] = {}

    def collect_garbage(self) -> None:
        """Let go of reference cycles at a fixed place, so that every batch size sees the same order of events."""
        gc.collect()


# Set after the class is made: PyTorch wraps a method of this name so that its first call loads torch._dynamo,
# which takes seconds and is not needed here.
Recorder.__torch_dispatch__ = Recorder._dispatch


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<", _TORCH, _OWN)) or (
        filename.startswith(_STANDARD) and "site-packages" not in filename and "dist-packages" not in filename
    )
