"""The environment of a measurement: the card and the software, and when two measurements share one."""

from __future__ import annotations

import contextlib
import hashlib
from importlib import metadata
from pathlib import Path

import msgspec

from whichgpu import catalogue, errors
from whichgpu.bench_attempts import Card
from whichgpu.gpu_status import GpuStatus
from whichgpu.results import Environment


def describe(card: Card, libraries: dict[str, str], status: GpuStatus | None) -> Environment:
    """What a measurement on this card depends on besides the workload."""
    gpu_id = None
    with contextlib.suppress(errors.CatalogueError):
        gpu_id = catalogue.load().find(card.name).id
    return Environment(
        gpu=card.name,
        gpu_id=gpu_id,
        gpu_uuid_hash=hashlib.sha256(card.uuid.removeprefix("GPU-").encode()).hexdigest()[:16],
        gpu_memory_bytes=card.memory_bytes,
        compute_capability=card.compute_capability,
        driver=(status.driver if status is not None else None) or _kernel_driver(),
        cuda=card.cuda,
        torch=card.torch,
        cudnn=card.cudnn,
        python=card.python,
        libraries=libraries,
        flags=card.flags,
        whichgpu=_own_version(),
    )


def _own_version() -> str:
    """The version that is installed; from a checkout, a digest of the code that measures."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("whichgpu")
    digest = hashlib.sha256()
    for file in sorted((Path(errors.__file__).parent / "bench_worker").glob("*.py")):
        digest.update(file.read_bytes())
    return f"source {digest.hexdigest()[:8]}"


def _kernel_driver() -> str:
    """The driver's version as the kernel module says it, where it cannot be asked otherwise."""
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
        return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
    return "unknown"


# Switches that come from the environment of the process; the others are set by the workload's own code.
_OUTER_FLAGS = ("allocator", "cublas_workspace", "tf32_override")


def same_place(one: Environment, other: Environment) -> bool:
    """Whether two measurements were made on the same card with the same software and settings."""
    if any(one.flags.get(flag) != other.flags.get(flag) for flag in _OUTER_FLAGS):
        return False
    return msgspec.structs.replace(one, flags={}) == msgspec.structs.replace(other, flags={})
