"""What the Python functions are given, checked before any work: InputError says what was meant instead.

The command line parses words into the same values, so that only a caller from Python sees these errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whichgpu.errors import InputError

_MOST_SAMPLES = 10**15
TIMEOUT_S = 600.0  # how long loading the workload, or one trace, may take unless another time is given


def check_name(name: object) -> None:
    """A workload is named by a text."""
    if not isinstance(name, str):
        what = "a function" if callable(name) else _shown(name)
        raise InputError(f'{what} is no workload\'s name; write a text such as "bert-base" or "train.py:setup"')


def check_names(names: object) -> None:
    """Several workloads are a list of such names, with at least one in it."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(f'{_shown(names)} is no list of workloads; write for example ["bert-base", "train.py:setup"]')
    if not names:
        raise InputError("name at least one workload")
    for name in names:
        check_name(name)


def check_batch_size(batch_size: object) -> None:
    """A whole number of at least 1, or None."""
    if batch_size is None:
        return
    if _no_whole_number(batch_size):
        raise InputError(f"batch size {_shown(batch_size)}: it must be a whole number")
    if batch_size < 1:  # type: ignore[operator]
        raise InputError(f"batch size {batch_size}: it must be 1 or more")


def check_memory_limit(limit_bytes: object) -> None:
    """A positive whole number of bytes, or None."""
    if limit_bytes is None:
        return
    if _no_whole_number(limit_bytes):
        raise InputError(f"memory limit of {_shown(limit_bytes)}: it must be a whole number of bytes")
    if limit_bytes < 1:  # type: ignore[operator]
        raise InputError(f"memory limit of {limit_bytes} bytes: it must be positive")


def check_gpus(gpus: object) -> None:
    """A list of cards' names with at least one in it, or None."""
    if gpus is None:
        return
    if isinstance(gpus, str) or not isinstance(gpus, Sequence):
        raise InputError(f'gpus={_shown(gpus)} is no list of cards; write for example gpus=["RTX 4090"]')
    if not gpus:
        raise InputError("gpus is an empty list; leave it out for all cards")
    for gpu in gpus:
        check_gpu(gpu)


def check_gpu(gpu: object) -> None:
    """A card is named by a text, or None."""
    if gpu is not None and not isinstance(gpu, str):
        raise InputError(f'{_shown(gpu)} is no card\'s name; write a text such as "RTX 4090"')


def timeout(timeout_s: Any) -> float:
    """A positive, finite number of seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise InputError(f"timeout of {_shown(timeout_s)}: it must be a number of seconds")
    if not 0 < timeout_s < float("inf"):
        raise InputError(f"timeout of {timeout_s:g} s: it must be positive and finite")
    return float(timeout_s)


def _no_whole_number(value: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, int)


def _shown(value: object) -> str:
    words = " ".join(repr(value).split())
    return words if len(words) <= 40 else words[:37] + "..."


def check_sort(sort: object) -> None:
    """An order of a ranking."""
    if sort not in ("price", "speed", "memory"):
        raise InputError(f"sort {_shown(sort)}: say price, speed or memory")


def run_samples(samples: object, epochs: object, dataset_size: object) -> int | None:
    """Of how many samples a training run is: `samples`, or epochs over a data set; None where nothing is said."""
    for what, count in (("samples", samples), ("epochs", epochs), ("dataset size", dataset_size)):
        if count is None:
            continue
        if _no_whole_number(count):
            raise InputError(f"{what} {_shown(count)}: it must be a whole number")
        if not 1 <= count <= _MOST_SAMPLES:  # type: ignore[operator]
            raise InputError(f"{what} {count}: it must be between 1 and {_MOST_SAMPLES:,}")
    if samples is not None and (epochs is not None or dataset_size is not None):
        raise InputError(
            "samples and epochs both say how long a run is: give either samples, or epochs and dataset size"
        )
    if (epochs is None) != (dataset_size is None):
        missing = "the dataset size" if dataset_size is None else "the number of epochs"
        raise InputError(f"epochs and dataset size belong together: {missing} is missing, or give samples")
    return samples if epochs is None else epochs * dataset_size  # type: ignore[return-value,operator]
