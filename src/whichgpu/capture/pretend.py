"""Makes an ordinary machine look, to the user's code, like one with a single CUDA GPU.

`Pretence(recorder, target)` patches PyTorch's Python surface while it is entered: devices, `torch.cuda`, autocast's
device, copies between host and GPU, and the places from which the phases of a step are known. C++ never sees
a CUDA device: whatever names one is turned into a tag on CPU storages before it gets there.

Not covered: custom CUDA extensions, and what `refusals` names.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.optim import optimizer as torch_optimizer
from torch.utils import _device as torch_device_context
from torch.utils import checkpoint as _checkpoint  # noqa: F401 - loaded before the patches

from whichgpu.capture import choices, dynamo, hollow, known, operands, pretend_cuda, refusals
from whichgpu.capture.recorder import Recorder
from whichgpu.capture.target import Target
from whichgpu.errors import DataDependentError

Tensor = torch.Tensor
_CUDA = torch.device("cuda", 0)
_MISSING = object()
_STREAMS = (
    "what runs on a stream of its own is counted with the rest; PyTorch keeps the free memory of each stream apart, so "
    "the card may reserve more"
)


class Pretence:
    """Context manager; everything it changed is put back on exit."""

    def __init__(self, recorder: Recorder, target: Target) -> None:
        self.recorder = recorder
        self.target = target
        self.backward_calls = 0
        self.optimizer_steps = 0
        self.idle_optimizers: set[int] = set()  # ids of those that were made and have not stepped yet
        self.compiled = False
        self.gradient_storages: dict[int, int] = {}  # id of the parameter by storage
        self.state_storages: dict[int, int] = {}
        self._undo: list[tuple[Any, str, Any]] = []
        self._hooks: list[Any] = []
        self._backward_depth = 0

    # ---- patching ---------------------------------------------------------------------------------

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute until exit."""
        self._undo.append((owner, name, owner.__dict__.get(name, _MISSING)))
        setattr(owner, name, value)

    def __enter__(self) -> Pretence:
        dynamo.stand_in()
        self._patch_tensors()
        self._patch_factories()
        self._patch_cuda()
        self._patch_autocast()
        self._patch_phases()
        for owner, name, value in refusals.patches():
            self.set(owner, name, value)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for owner, name, value in reversed(self._undo):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._undo.clear()

    # ---- tensors: device, copies, reads -----------------------------------------------------------

    def _patch_tensors(self) -> None:
        recorder = self.recorder
        index_of = recorder.index_of
        base = torch._C.TensorBase
        true_device = base.device.__get__
        cpu = "cpu"

        # under a torch function mode (`with torch.device(...)`) `true_device` comes back through these properties
        def device(tensor: Tensor) -> torch.device:
            return _CUDA if index_of(tensor) is not None else true_device(tensor)

        def is_cuda(tensor: Tensor) -> bool:
            return index_of(tensor) is not None

        def is_cpu(tensor: Tensor) -> bool:
            return index_of(tensor) is None and true_device(tensor).type == cpu

        self.set(Tensor, "device", property(device))
        self.set(Tensor, "is_cuda", property(is_cuda))
        self.set(Tensor, "is_cpu", property(is_cpu))
        self.set(Tensor, "get_device", lambda tensor: 0 if is_cuda(tensor) else -1)

        plain_address = base.data_ptr

        def data_ptr(tensor: Tensor) -> int:
            """Hollow tensors share one address, by which parameters would pass for one; so each storage has its own."""
            index = index_of(tensor)
            if index is None or not hollow.is_hollow(tensor):
                return plain_address(tensor)
            return (index + 1 << 44) + tensor.storage_offset() * tensor.itemsize

        self.set(Tensor, "data_ptr", data_ptr)
        plain_to = base.to

        def move(tensor: Tensor, to_gpu: bool, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Tensor:
            if not to_gpu:
                recorder.on_host("wait", tensor.numel())
            else:
                recorder.on_host("upload_async" if non_blocking else "upload", tensor.numel())
            if not to_gpu and not tensor.requires_grad and hollow.is_hollow(tensor):
                value = known.value_of(tensor, True)
                if value is not None:
                    return plain_to(value, *args, copy=True, **kwargs)
            with recorder.lock:
                recorder.force = "gpu" if to_gpu else "host"
                try:
                    return plain_to(tensor, *args, copy=True, **kwargs)
                finally:
                    recorder.force = None

        def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            wanted, dtype, options = _parse_to(args, kwargs)
            if wanted is not None:
                operands.check_ordinal(wanted)
            if isinstance(tensor, UninitializedTensorMixin):
                if wanted is not None:
                    tensor._whichgpu_wanted = wanted
                return tensor
            on_gpu = index_of(tensor) is not None
            if (not on_gpu and true_device(tensor).type != cpu) or (
                wanted is not None and wanted.type not in ("cpu", "cuda")
            ):
                return plain_to(tensor, *args, **kwargs)
            to_gpu = on_gpu if wanted is None else wanted.type == "cuda"
            dtype = tensor.dtype if dtype is None else dtype
            if to_gpu == on_gpu:
                return plain_to(tensor, dtype, **options)
            options.pop("copy", None)
            non_blocking = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            return move(tensor, to_gpu, dtype, non_blocking=non_blocking, **options)

        def cuda(tensor: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
            if device is not None:
                operands.check_ordinal(
                    torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
                )
            options = {"memory_format": memory_format} if memory_format else {}
            return to(tensor, device=_CUDA, non_blocking=non_blocking, **options)

        def cpu_(tensor: Tensor, memory_format: Any = None) -> Tensor:
            return to(tensor, device=torch.device("cpu"), **({"memory_format": memory_format} if memory_format else {}))

        plain_materialize = UninitializedTensorMixin.materialize

        def materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
            plain_materialize(tensor, shape, device or tensor.__dict__.get("_whichgpu_wanted"), dtype)

        self.set(UninitializedTensorMixin, "materialize", materialize)
        self.set(Tensor, "to", to)
        self.set(Tensor, "cuda", cuda)
        self.set(Tensor, "cpu", cpu_)
        self.set(Tensor, "pin_memory", _pin)
        self.set(Tensor, "is_pinned", lambda tensor, device=None: _is_pinned(tensor))
        self.set(Tensor, "record_stream", lambda tensor, stream: None)
        plain_deepcopy = Tensor.__deepcopy__

        def deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
            if id(tensor) in memo or not (hollow.is_hollow(tensor) or index_of(tensor) is not None):
                return plain_deepcopy(tensor, memo)
            copied = tensor.detach().clone()
            copied.requires_grad_(tensor.requires_grad)
            memo[id(tensor)] = copied
            return copied

        self.set(Tensor, "__deepcopy__", deepcopy)
        for name in ("tolist", "numpy", "__array__"):
            self.set(Tensor, name, self._read(getattr(Tensor, name), of_host=name != "tolist"))

    def _read(self, plain: Any, of_host: bool) -> Any:
        index_of = self.recorder.index_of

        @functools.wraps(plain)
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if of_host and tensor.is_cuda and not kwargs.get("force"):
                raise TypeError(
                    "can't convert cuda:0 device type tensor to numpy. "
                    "Use Tensor.cpu() to copy the tensor to host memory first."
                )
            if index_of(tensor) is not None:
                self.recorder.on_host("wait", tensor.numel())
            if hollow.is_hollow(tensor):
                value = known.value_of(tensor, True)
                if value is None and tensor.dtype.is_floating_point and known.followed(tensor):
                    self.recorder.note(choices.READ)
                    value = choices.numbers_like(tensor)
                if value is None:
                    raise DataDependentError("the step reads values computed on the GPU")
                self.recorder.note_choices([value])
                return plain(value, *args, **kwargs)
            return plain(tensor, *args, **kwargs)

        return read

    # ---- factories whose C++ would copy to a CUDA device by itself ---------------------------------

    def _patch_factories(self) -> None:
        constructors = torch_device_context._device_constructors()
        plain_tensor, plain_as_tensor, plain_asarray = torch.tensor, torch.as_tensor, torch.asarray
        plain_new_tensor = torch._C.TensorBase.new_tensor
        by_copy = {plain_tensor, plain_as_tensor, plain_asarray}

        def copying(plain: Any) -> Any:
            @functools.wraps(plain)
            def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
                kwargs.pop("pin_memory", None)
                if device is None and isinstance(data, Tensor):
                    device = data.device
                if device is None:
                    return plain(data, *args, **kwargs)  # a device context, if any, sees to it
                made = (
                    plain(data, *args, device="cpu", **kwargs)
                    if not isinstance(data, Tensor)
                    else (plain(data, *args, **kwargs))
                )
                return made.to(torch.device(device))

            return make

        def new_tensor(tensor: Tensor, data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
            kwargs.setdefault("dtype", tensor.dtype)
            made = plain_tensor(data, **kwargs) if not isinstance(data, Tensor) else data.detach().clone()
            return made.to(tensor.device if device is None else device)

        self.set(torch, "tensor", copying(plain_tensor))
        self.set(torch, "as_tensor", copying(plain_as_tensor))
        self.set(torch, "asarray", copying(plain_asarray))
        self.set(Tensor, "new_tensor", new_tensor)
        del plain_new_tensor

        def context_function(context: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in constructors and kwargs.get("device") is None:
                if func in by_copy:
                    made = func(*args, **{**kwargs, "device": "cpu"})
                    return made.to(context.device)
                kwargs["device"] = context.device
            return func(*args, **kwargs)

        self.set(torch_device_context.DeviceContext, "__torch_function__", context_function)
        self.set(torch, "Generator", _Generator)
        plain_compile = torch.compile

        def compile_(model: Any = None, **kwargs: Any) -> Any:
            self.compiled = True
            self.recorder.note(
                "the step uses torch.compile; it was traced without it, and compiled code usually needs less memory"
            )
            if model is None:
                return lambda function: function
            return model

        functools.update_wrapper(compile_, plain_compile)
        self.set(torch, "compile", compile_)
        self.set(torch.nn.Module, "compile", lambda module, *args, **kwargs: compile_(module) and None)

    # ---- torch.cuda ---------------------------------------------------------------------------------

    def _patch_cuda(self) -> None:
        cuda = torch.cuda
        answers = pretend_cuda.answers(self.target, self._asked)
        for name, value in answers.items():
            # a function of its own for each: torch._dynamo, if loaded later, refuses duplicates
            self.set(cuda, name, value)

        def enter(stream: Any) -> Any:
            if stream is not pretend_cuda.MAIN_STREAM:
                self.recorder.note(_STREAMS)
            return stream

        self.set(pretend_cuda.Stream, "__enter__", enter)
        for name in pretend_cuda.OF_MEMORY:
            self.set(cuda.memory, name, answers[name])
        self.set(torch.backends.cudnn, "is_acceptable", lambda tensor: tensor.is_cuda)
        self.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)  # as in builds for CUDA
        for name, value in pretend_cuda.accelerator_answers().items():
            if hasattr(torch.accelerator, name):
                self.set(torch.accelerator, name, value)

    def _asked(self, answer: Any) -> Any:
        """An answer that differs between cards: what the step makes of it holds for the target's class alone."""
        self.recorder.same_for.clear()
        return answer

    # ---- autocast -----------------------------------------------------------------------------------

    def _patch_autocast(self) -> None:
        autocast = torch.amp.autocast_mode.autocast
        torch.set_autocast_dtype("cpu", torch.float16)  # CUDA's default
        plain_init, plain_enter, plain_exit = autocast.__init__, autocast.__enter__, autocast.__exit__

        def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            # CPU autocast has no say over GPU tensors, and its state in C++ serves for CUDA's here
            context._whichgpu_idle = device_type == "cpu"
            plain_init(context, "cuda" if device_type == "cpu" else device_type, *args, **kwargs)

        def enter(context: Any) -> Any:
            return context if context._whichgpu_idle else plain_enter(context)

        def leave(context: Any, *args: Any) -> Any:
            return None if context._whichgpu_idle else plain_exit(context, *args)

        self.set(autocast, "__init__", init)
        self.set(autocast, "__enter__", enter)
        self.set(autocast, "__exit__", leave)
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
            self.set(torch, name, _for_cuda(getattr(torch, name)))
        self.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cuda"))
        self.set(torch, "is_autocast_cpu_enabled", lambda: False)
        self.set(torch.amp.autocast_mode, "is_autocast_available", lambda device_type: True)
        self.set(torch.amp, "is_autocast_available", lambda device_type: True)

    # ---- phases -------------------------------------------------------------------------------------

    def _patch_phases(self) -> None:
        recorder = self.recorder
        plain_run = torch.autograd.graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            before = recorder.phase
            stack, recorder.module_stack = recorder.module_stack, []  # what runs now is no part of the caller's module
            self._backward_depth += 1
            if self._backward_depth == 1:
                self.backward_calls += 1
                recorder.begin_backward()
            try:
                return plain_run(*args, **kwargs)
            finally:
                recorder.module_stack = stack
                self._backward_depth -= 1
                if self._backward_depth == 0:
                    recorder.phase = "other" if before == "forward" else before

        recorder.begins_backward(run_backward.__code__)
        self.set(torch.autograd.graph, "_engine_run_backward", run_backward)
        self.set(torch.autograd, "_engine_run_backward", run_backward)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            recorder.phase = "optimizer"
            self.optimizer_steps += 1
            self.idle_optimizers.discard(id(optimizer))
            self._note_gradients(optimizer)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            recorder.phase = "other"
            self._note_state(optimizer)

        plain_init = torch.optim.Optimizer.__init__

        @functools.wraps(plain_init)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(optimizer, *args, **kwargs)
            self.idle_optimizers.add(id(optimizer))
            weakref.finalize(optimizer, self.idle_optimizers.discard, id(optimizer)).atexit = False

        self.set(torch.optim.Optimizer, "__init__", init)
        self._hooks.append(torch_optimizer.register_optimizer_step_pre_hook(before_step))
        self._hooks.append(torch_optimizer.register_optimizer_step_post_hook(after_step))
        plain_call = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            stack = recorder.module_stack
            if not stack and recorder.phase == "other":
                recorder.phase = "forward"
            number = id(module)
            if number not in recorder.modules:
                recorder.modules[number] = module
            stack.append(number)
            try:
                return plain_call(module, *args, **kwargs)
            finally:
                stack.pop()

        self.set(torch.nn.Module, "__call__", call)

    def _note_gradients(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    index = self.recorder.index_of(parameter.grad)
                    if index is not None:
                        self.gradient_storages[index] = id(parameter)

    def _note_state(self, optimizer: Any) -> None:
        for parameter, state in optimizer.state.items():
            tensors: list[Tensor] = []
            _gather(state, tensors)
            for tensor in tensors:
                index = self.recorder.index_of(tensor)
                if index is not None and self.recorder.storage_phase[index] != "setup":
                    self.state_storages[index] = id(parameter)


def _pin(tensor: Tensor, device: Any = None) -> Tensor:
    if tensor.layout == torch.strided:
        tensor.untyped_storage()._whichgpu_pinned = True
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and getattr(tensor.untyped_storage(), "_whichgpu_pinned", False)


def _gather(value: Any, into: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        into.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, into)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather(item, into)


def _parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device | None, Any, dict[str, Any]]:
    """Arguments of `Tensor.to` as (device, dtype, other options)."""
    rest = dict(kwargs)
    options = {name: rest.pop(name) for name in ("copy", "memory_format") if name in rest}
    other = args[0] if args and isinstance(args[0], Tensor) else rest.pop("other", None)
    if isinstance(other, Tensor):
        return other.device, other.dtype, options
    device = rest.get("device")
    dtype = rest.get("dtype")
    for value in args[:2]:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, int, torch.device)) and not isinstance(value, bool):
            device = value
    if len(args) > 3:
        options["copy"] = args[3]
    if isinstance(device, int):
        device = torch.device("cuda", device)
    return (None if device is None else torch.device(device)), dtype, options


def _for_cuda(plain: Any) -> Any:
    def call(*args: Any) -> Any:
        """Autocast state of "cuda" lives in that of "cpu" while tracing."""
        if not args:
            return plain("cpu") if plain.__name__ == "is_autocast_enabled" else plain()
        if isinstance(args[0], str):
            if args[0] == "cpu" and plain.__name__ == "is_autocast_enabled":
                return False
            return plain("cpu" if args[0] in ("cuda", "cpu") else args[0], *args[1:])
        return plain(*args)

    return call


class _GeneratorType(type):
    """Makes `torch.Generator(device)` a generator of the host, whatever the device."""

    plain = torch.Generator

    def __call__(cls, device: Any = "cpu") -> Any:
        return cls.plain("cpu")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.plain)


class _Generator(metaclass=_GeneratorType):
    """Stands in for torch.Generator, in annotations and `isinstance` too."""
