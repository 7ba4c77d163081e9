"""What `torch.cuda` and `torch.accelerator` answer while one GPU is pretended.

Streams, events and memory counters do nothing: a trace has one order of events, and its memory is worked out afterwards.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from whichgpu.capture.target import Target

_CUDA = torch.device("cuda", 0)
# What `torch.cuda` takes from `torch.cuda.memory`, where it is looked for as well.
OF_MEMORY = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "memory_stats",
    "mem_get_info",
    "empty_cache",
)


def answers(target: Target, asked: Callable[[Any], Any]) -> dict[str, Any]:
    """Name in `torch.cuda` -> what stands there; `asked` is told of answers that differ between cards."""
    properties = SimpleNamespace(
        name=target.name,
        major=target.capability[0],
        minor=target.capability[1],
        total_memory=target.memory_bytes,
        multi_processor_count=target.sm_count,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        L2_cache_size=50 << 20,
        uuid="",
    )
    found: dict[str, Any] = {
        "_lazy_init": nothing,
        "_lazy_call": nothing,
        "init": nothing,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "synchronize": nothing,
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
        "_is_in_bad_fork": lambda: False,
        "get_device_properties": lambda *_: asked(properties),
        "get_device_name": lambda *_: asked(target.name),
        "get_device_capability": lambda *_: asked(target.capability),
        "get_arch_list": lambda: asked([f"sm_{target.capability[0]}{target.capability[1]}"]),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or asked(target.capability >= (8, 0)),
        "is_tf32_supported": lambda: asked(target.capability >= (8, 0)),
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": zero,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda *_: False,
        "memory_allocated": zero,
        "max_memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_reserved": zero,
        "reset_peak_memory_stats": nothing,
        "memory_stats": lambda *_: collections.defaultdict(int),
        "reset_accumulated_memory_stats": nothing,
        "reset_max_memory_allocated": nothing,
        "mem_get_info": lambda *_: (target.memory_bytes, target.memory_bytes),
        "memory_summary": lambda *_, **__: "",
        "set_per_process_memory_fraction": nothing,
        "utilization": zero,
        "temperature": zero,
        "power_draw": zero,
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": _Event,
        "stream": lambda stream=None: stream if isinstance(stream, Stream) else contextlib.nullcontext(),
        "current_stream": lambda *_: MAIN_STREAM,
        "default_stream": lambda *_: MAIN_STREAM,
        "set_stream": nothing,
    }
    # a function of its own for each: torch._dynamo, if loaded later, refuses duplicates
    return {name: value if isinstance(value, type) else _own(value) for name, value in found.items()}


def accelerator_answers() -> dict[str, Any]:
    """Name in `torch.accelerator` -> what stands there."""
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "synchronize": nothing,
        "empty_cache": nothing,
        "set_device_index": nothing,
        "current_stream": lambda *_: MAIN_STREAM,
        "memory_allocated": zero,
        "max_memory_allocated": zero,
        "reset_peak_memory_stats": nothing,
    }


def zero(*_: Any, **__: Any) -> int:
    """What counters say."""
    return 0


def nothing(*_: Any, **__: Any) -> None:
    """Done, with no effect."""


def _own(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Stream:
    """Stands in for torch.cuda.Stream; everything happens in order anyway."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = _CUDA
        self.cuda_stream = 0
        self.device_index = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        """All is done."""
        return True

    def is_capturing(self) -> bool:
        """No graph is made."""
        return False

    def synchronize(self) -> None:
        """All is done already."""

    def wait_stream(self, _: Any) -> None:
        """In order anyway."""

    def wait_event(self, _: Any) -> None:
        """In order anyway."""

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one."""
        return event or _Event()


MAIN_STREAM = Stream()


class _Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _: Any) -> float:
        return 1.0
