"""Sets of workloads by name: those of the zoo (`--set 2020`), and a user's own in a small TOML file.

    title = "What our lab trains"                         # optional
    workloads = ["bert-base", "timm:resnet50?precision=fp16", "train.py:setup"]

Files and folders in it are meant from where the TOML file lies. Every workload is named as on the command line
and its name is checked here; nothing is imported, so what a file holds is not.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from whichgpu import workload
from whichgpu.errors import InputError, WorkloadError
from whichgpu.zoo import ENTRIES, SETS


class WorkloadSet(msgspec.Struct, frozen=True, kw_only=True):
    """Workloads that belong together, named as on the command line."""

    name: str  # as given: of the zoo, or the path of a file
    title: str
    workloads: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workloads: list[str]
    title: str = ""


def find(name: str) -> WorkloadSet:
    """The set of that name, or the one in that TOML file; InputError in one line for what is neither, or is wrong."""
    if name in SETS:
        members = tuple(member for member, entry in ENTRIES.items() if name in entry.sets)
        return WorkloadSet(name=name, title=SETS[name], workloads=members)
    if name.endswith(".toml") or "/" in name:
        return _read(name)
    raise InputError(f"there is no set {name!r}; say {', '.join(SETS)}, or the path of a .toml file of your own")


def expand(workloads: Sequence[str], sets: Iterable[str]) -> list[str]:
    """The workloads and then those of the sets, each once; InputError for an unknown set, or when there is none."""
    names = dict.fromkeys([*workloads, *(member for name in sets for member in find(name).workloads)])
    if not names:
        raise InputError("name at least one workload, or a set of them as in --set 2026")
    return list(names)


def _read(name: str) -> WorkloadSet:
    path = Path(name)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{name}: the set cannot be read ({error.strerror})") from error
    except ValueError as error:  # TOML and text alike
        raise InputError(f"{name}: not a TOML file ({' '.join(str(error).split())})") from error
    found = _checked(name, table)
    members = dict.fromkeys(_member(name, path.parent, member) for member in found.workloads)
    return WorkloadSet(name=name, title=found.title, workloads=tuple(members))


def _checked(name: str, table: dict[str, Any]) -> _File:
    example = 'as in workloads = ["bert-base", "train.py:setup"]'
    try:
        found = msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: {error}; a set is a title and a list of workloads, {example}") from error
    if not found.workloads:
        raise InputError(f"{name}: the set has no workload; name some, {example}")
    return found


def _member(name: str, folder: Path, member: str) -> str:
    """A workload of a file, as it is named from the current folder; InputError for one that cannot exist."""
    try:
        return workload.parse(_from_here(member, folder)).text
    except WorkloadError as error:
        raise InputError(f"{name}: {error}") from error


def _from_here(member: str, folder: Path) -> str:
    """A workload's name with the path in it, if there is one, seen from the current folder instead of `folder`."""
    scheme, colon, rest = member.partition(":")
    if colon and scheme == "hf" and not rest.startswith("/") and ("/" in rest or ".json" in rest):
        return f"hf:{os.path.join(folder, rest)}"
    is_file = member.endswith(".py") or ".py:" in member or ".py?" in member
    return os.path.join(folder, member) if is_file else member
