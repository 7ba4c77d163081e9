"""Which PyTorch is installed, without loading it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import msgspec


class TorchBuild(msgspec.Struct, frozen=True):
    """Version and CUDA flavour ("13.0") of a PyTorch build; cuda is None for a CPU build."""

    version: str
    cuda: str | None


def installed_torch() -> TorchBuild:
    """The installed PyTorch, read from its own version file; the newest supported one where there is none."""
    try:
        distribution = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return TorchBuild("2.14", None)
    path = Path(str(distribution.locate_file("torch/version.py")))
    try:
        found = re.search(r"^cuda\b[^=]*= *'([\d.]+)'", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return TorchBuild(distribution.version, found.group(1) if found else None)
