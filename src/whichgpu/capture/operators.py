"""What the recorder needs to know of an operator, and of one call of it, from its schema and arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

Tensor = torch.Tensor

# Host tensors beyond this are made hollow, so that building a model of any size costs no memory.
HOST_REAL_BYTES = 1 << 18

# Not declared as views, yet they never touch data.
NO_DATA = {"_unsafe_view", "_reshape_alias", "lift_fresh", "lift", "alias", "detach", "_to_dense_alias"}
_RESIZES = {"resize_", "resize_as_", "set_"}


class Operator:
    """What the recorder needs to know of one operator overload, worked out once."""

    __slots__ = (
        "arguments",
        "composite",
        "data_dependent",
        "flops",
        "name",
        "no_data",
        "random",
        "resizes",
        "short",
        "written",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = str(func)
        self.short = func.overloadpacket.__name__
        self.arguments = tuple(argument.name for argument in schema.arguments)
        self.written = tuple(
            argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write
        )
        aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)
        self.no_data = (
            aliases or self.short in NO_DATA or torch.Tag.inplace_view in func.tags
        ) and self.short not in _RESIZES
        self.resizes = self.short in _RESIZES
        self.data_dependent = (
            torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
        )
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        # where a backend has a kernel of its own, the decomposition is for other backends
        self.composite = has_kernel(func.name(), torch._C.DispatchKey.CompositeImplicitAutograd) and not has_kernel(
            func.name(), torch._C.DispatchKey.CPU
        )
        self.flops = flop_registry.get(func.overloadpacket)


def plain_index(info: Operator, args: Any) -> bool:
    """Indexing by numbers, whose result's shape does not depend on values (indexing by a mask's does)."""
    return info.short == "index" and all(
        index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1]
    )


def fill(info: Operator, args: Any) -> float | None:
    """The number that a factory fills a tensor with, whatever the tensors that it is given hold."""
    if info.short in ("zeros_like", "new_zeros", "zeros"):
        return 0
    if info.short in ("ones_like", "new_ones", "ones"):
        return 1
    place = {"full_like": 1, "new_full": 2, "full": 1}.get(info.short)
    return args[place] if place is not None and len(args) > place and not isinstance(args[place], Tensor) else None


def healthy(info: Operator, args: Any) -> bool | None:
    """What a comparison that looks for NaN or infinity says of a tensor without any; None for other operators."""
    if info.short in ("isnan", "isinf", "isposinf", "isneginf"):
        return False
    if info.short in ("eq", "ne"):
        one, other = args[0], args[1]
        if one is other:  # x == x
            return info.short == "eq"
        if isinstance(other, float) and math.isinf(other):
            return info.short == "ne"
    return None


def named(info: Operator, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """The arguments with their names."""
    return [*zip(info.arguments, args, strict=False), *kwargs.items()]


def attributes_of(info: Operator, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments that are not tensors, as plain values; for convolutions also what cuDNN is allowed."""
    found: dict[str, Any] = {}
    if info.short in ("convolution", "convolution_backward"):
        found = {"allow_tf32": torch.backends.cudnn.allow_tf32, "benchmark": torch.backends.cudnn.benchmark}
    for name, value in named(info, args, kwargs):
        plain = _plain(value)
        if plain is not _NOT_PLAIN:
            found[name] = plain
    return found


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.memory_format)):
        return str(value)[6:]
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        return list(value)
    return _NOT_PLAIN


def flops_of(info: Operator, args: Any, kwargs: Any, out: Any) -> int:
    """FLOPs of the call by PyTorch\'s own counter; 0 where it has no formula."""
    if info.flops is None:
        return 0
    try:
        return int(info.flops(*args, **kwargs, out_val=out))
    except (TypeError, ValueError, AssertionError, NotImplementedError):
        return 0


def makes_large(info: Operator, args: Any, kwargs: Any) -> bool:
    """Whether a factory's result would be larger than what the host makes for real."""
    size: Any = kwargs.get("size")
    if size is None:
        for name, value in zip(info.arguments, args, strict=False):
            if name == "size" or (
                isinstance(value, (list, tuple)) and value and all(isinstance(i, int) for i in value)
            ):
                size = value
                break
    if size is None:
        for name, value in zip(info.arguments, args, strict=False):
            if name in ("n", "end", "steps") and isinstance(value, (int, float)):
                return value * 8 > 8 * HOST_REAL_BYTES
        return False
    count = 1
    for item in size:
        count *= item
    return count * 4 > HOST_REAL_BYTES
