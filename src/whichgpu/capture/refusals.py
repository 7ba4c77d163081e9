"""What is not covered, refused by name and with what to do instead, before PyTorch fails over it in its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from whichgpu.errors import causes

_GRAPHS = "CUDA graphs are not covered; trace the step without them (their memory pool comes on top)"
_PROCESSES = (
    "torch.distributed is not covered: a step is traced for one process and one card; leave init_process_group, DDP and FSDP "
    "out (on the card, DDP also holds buckets as large as the gradients)"
)
_NESTED = "nested tensors are not covered; pad the sequences to one length instead"
_FLEX = "flex_attention is not covered; use torch.nn.functional.scaled_dot_product_attention instead"
_TYPE = 'a default tensor type of CUDA is not covered; write torch.set_default_device("cuda") instead'


class Refusal(Exception):
    """The step uses something that cannot be traced; says what, and what to do instead."""


def patches() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and what stands there instead."""
    for name in ("CUDAGraph", "graph"):  # classes still, which annotations may name
        yield torch.cuda, name, type(name, (), {"__new__": _refuse(_GRAPHS)})
    yield torch.cuda, "make_graphed_callables", _refuse(_GRAPHS)
    if torch.distributed.is_available():
        yield torch.distributed, "init_process_group", _refuse(_PROCESSES)
    for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged"):
        yield torch.nested, name, _refuse(_NESTED)
    plain = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        if "cuda" in str(kind):
            raise Refusal(_TYPE)
        plain(kind)

    yield torch, "set_default_tensor_type", set_default_tensor_type


def check_layout(tensor: torch.Tensor) -> None:
    """Refuse a tensor that is neither dense nor a list of coordinates."""
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        if tensor.layout == torch.jagged:
            raise Refusal(_NESTED)
        raise Refusal(f"a tensor of layout {tensor.layout} is not covered; use a dense one or to_sparse_coo() instead")


def known_refusal(error: BaseException) -> Refusal | None:
    """The refusal that an error comes down to: itself, one that a library wrapped, or of a function that it passed through."""
    for cause in causes(error):
        if isinstance(cause, Refusal):
            return cause
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.endswith("torch/nn/attention/flex_attention.py"):
            return Refusal(_FLEX)
        frame = frame.tb_next
    return None


def _refuse(words: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Refusal(words)

    return refuse
