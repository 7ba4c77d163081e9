"""Whether a PyTorch build can use a card: which compute capabilities its published wheels have kernels for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Annotated

import msgspec

from whichgpu.catalogue.files import Document
from whichgpu.catalogue.records import Capability, Day, Gpu, Text, version

__all__ = ["Wheel", "supports"]


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published build of PyTorch and the compute capabilities it has kernels for."""

    torch: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]
    cuda: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]
    kernels: tuple[Capability, ...]
    source: Text
    checked: Day
    default: bool = False
    ptx: Capability | None = None


def supports(gpu: Gpu, torch_version: str, cuda_version: str | None, dtypes: Iterable[str] = ()) -> list[str]:
    """Why a PyTorch build cannot run on the card, or the card lacks a dtype; empty where all is well.

    `cuda_version` None (a CPU build) stands for the wheel that `pip install torch` of that version gets on
    Linux. A build that the table of wheels does not list is not judged; versions after the last are taken as
    the last. dtypes are PyTorch's names ("bfloat16", "torch.float16", "float8_e4m3fn") or "bf16"; others need
    nothing, TF32 neither: PyTorch computes in float32 where a card lacks it.
    """
    if not gpu.cuda:
        return [f"{gpu.name} has no CUDA"]
    notes = []
    wheels = _wheels_of(torch_version)
    used = next((w for w in wheels if (w.default if cuda_version is None else w.cuda == cuda_version)), None)
    if used is not None and not _has_kernels(used, gpu.capability):
        others = [w.cuda for w in wheels if _has_kernels(w, gpu.capability)]
        cure = f"the CUDA {' and '.join(others)} wheel has them" if others else "no wheel of it has them"
        notes.append(
            f"PyTorch {used.torch} for CUDA {used.cuda} has no kernels for compute capability "
            f"{gpu.compute_capability}: {cure}"
        )
    for kind in dict.fromkeys(_hardware_dtype(d) for d in dtypes):
        needed = _DTYPE_NEEDS.get(kind)
        if needed is not None and gpu.capability < needed:
            notes.append(f"no {kind} in hardware (needs compute capability {needed[0]}.{needed[1]})")
    return notes


# CUDA C++ Programming Guide, table "Arithmetic instructions" and tensor core data types by compute capability
_DTYPE_NEEDS = {"bfloat16": (8, 0), "fp8": (8, 9)}


def _hardware_dtype(name: str) -> str:
    short = name.lower().removeprefix("torch.")
    if short in {"bf16", "bfloat16", "pure-bf16"}:
        return "bfloat16"
    return "fp8" if short.startswith(("float8", "fp8")) else short


@cache
def _wheels() -> tuple[Wheel, ...]:
    entry = files("whichgpu") / "data" / "torch_wheels.toml"
    return tuple(Document(entry).rows("wheel", Wheel))


def _wheels_of(torch_version: str) -> list[Wheel]:
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if match is None:
        return []
    asked = (int(match[1]), int(match[2]))
    last = max(version(w.torch) for w in _wheels())
    return [w for w in _wheels() if version(w.torch) == min(asked, last)]


def _has_kernels(wheel: Wheel, capability: tuple[int, int]) -> bool:
    """A cubin runs on the same major capability from its minor on; PTX is compiled for anything later."""
    built = [version(text) for text in wheel.kernels]
    runs = any(major == capability[0] and minor <= capability[1] for major, minor in built)
    return runs or (wheel.ptx is not None and capability >= version(wheel.ptx))
