"""Where PyTorch's C++ code writes in place, but not while a dispatch mode is on.

While any mode is on, `at::areAnyTensorSubclassLike` holds, and so autograd's engine and some formulas of
torch/csrc/autograd (input_buffer.cpp, FunctionsManual.cpp) make a new tensor instead of writing into one that nobody else
holds. The card sees no mode: `variant` says which operator runs there. Read at torch 2.11.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whichgpu.errors import CaptureError

aten = torch.ops.aten
Tensor = torch.Tensor

# What formulas write into zeros that they have just made: `gather_backward`, `value_selecting_reduction_backward`,
# `index_select_backward`, `index_backward`.
_INTO_ZEROS = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
}
_RECORDER = {__file__, os.path.join(os.path.dirname(__file__), "recorder.py")}
_THREADS_RUN = 3  # exit code of a fork in which autograd refuses to work
CANDIDATES = {aten.add.Tensor, *_INTO_ZEROS}


def variant(func: Any, args: Any, kwargs: Any, *, just_made: bool) -> Any:
    """The operator that runs in place of `func` on the card, called by autograd; `just_made`: its first argument is new."""
    if not _called_by_engine():
        return func
    if func is not aten.add.Tensor:
        return _INTO_ZEROS[func] if just_made else func
    alone = _uses(args) == _uses_when_alone()  # before anything else here refers to them
    held, more = args[:2]
    alike = isinstance(more, Tensor) and held.shape == more.shape and held.dtype == more.dtype and not kwargs
    if alone and alike and held.layout == more.layout == torch.strided and _dense(held):
        return aten.add_.Tensor
    return func


def is_made_up(func: Any) -> bool:
    """Whether the call makes the gradient of an output that nobody used: zeros where the others are, which is the card.

    Formulas such as those of `split` and `unbind` name the device of the other gradients, the CPU as hollow tensors have it.
    """
    return func is aten.zeros.default and _called_by_engine()


def is_kept(func: Any, args: Any) -> bool:
    """Whether the engine copies a sparse gradient that it would keep as it is, if the mode did not hold it too.

    `AccumulateGrad::accumulateGrad` (accumulate_grad.h) counts who holds the indices and the values.
    """
    return func is aten.clone.default and args[0].layout == torch.sparse_coo and _called_by_engine()


def shallow(gradient: Tensor) -> Tensor:
    """A sparse tensor of the same indices and values."""
    return aten._sparse_coo_tensor_with_dims_and_tensors.default(
        gradient.sparse_dim(),
        gradient.dense_dim(),
        gradient.shape,
        gradient._indices(),
        gradient._values(),
        dtype=gradient.dtype,
        layout=torch.sparse_coo,
        device=torch.device("cpu"),  # what it is to C++
        is_coalesced=gradient.is_coalesced(),
    )


def _called_by_engine() -> bool:
    """Whether autograd's engine called the operator that is looked at."""
    return not torch.is_grad_enabled() and _by_engine(_caller(sys._getframe()))


def _caller(frame: FrameType | None) -> FrameType | None:
    """The frame of the code that called the operator: the innermost that is not the recorder's."""
    while frame is not None and frame.f_code.co_filename in _RECORDER:
        frame = frame.f_back
    return frame


def _by_engine(frame: FrameType | None) -> bool:
    """Whether C++ code of the autograd engine made the call, not Python code of a function's own backward."""
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _dense(tensor: Tensor) -> bool:
    """`is_non_overlapping_and_dense`."""
    expected = 1
    for step, size in sorted(
        (step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if step != expected:
            return False
        expected *= size
    return True


def _uses(args: Any) -> tuple[int, ...]:
    """References to the first argument, from C++ and Python, and to its storage; the call's own among them."""
    held = args[0]
    storage = torch._C._storage_Use_Count(held.untyped_storage()._cdata) if held.layout == torch.strided else 0
    return held._use_count(), sys.getrefcount(held), storage


class _Probe(TorchDispatchMode):
    """Notes the references to a gradient that only the engine holds."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []


def _probe(self: _Probe, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if func is aten.add.Tensor:
        self.seen.append(_uses(args))
    return func(*args, **(kwargs or {}))


_Probe.__torch_dispatch__ = _probe  # set afterwards, as in `recorder`


def _count_uses() -> tuple[int, ...]:
    with torch.enable_grad():
        leaf = torch.ones(2, requires_grad=True)
        middle = leaf * 1
        total = middle.sin() * middle.cos()
    with _Probe() as probe:
        total.backward(torch.ones(2))
    return probe.seen[-1]


@cache
def _uses_when_alone() -> tuple[int, ...]:
    """Counted in a process of its own: where there is a GPU, autograd starts threads, after which no fork can use it.

    Only where they run already, so that autograd refuses to work in the fork, nothing is lost by counting here.
    """
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 about threads, none of which is needed there
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(theirs, " ".join(map(str, _count_uses())).encode())
            code = 0
        except RuntimeError as error:
            code = _THREADS_RUN if "fork-based" in str(error) else 1
        finally:
            os._exit(code)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        counted = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == _THREADS_RUN:
        return _count_uses()
    if code:
        raise CaptureError(f"a backward pass of two numbers failed on this machine (code {code}); is PyTorch whole?")
    return tuple(map(int, counted.split()))


def prepare() -> None:
    """Look once how many references there are, before anything is patched."""
    _uses_when_alone()
