"""Traces kept on disk, and the question whether a kept trace still holds.

One trace is two files in `cache_directory()`: the trace, and an entry that names it and what it was made
from. A trace is used again only when it was asked for in the same way (`make_key`) and every source file and
distribution that the workload loaded is the same. Nothing is locked: files appear whole or not at all, a file
that another process replaced or removed is a miss, and beyond `CACHE_LIMIT_BYTES` the least recently used go.

Does not cover files that a step reads as data: whoever changes those says `--no-cache`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import msgspec
import platformdirs

from whichgpu import trace as traces
from whichgpu.errors import TraceError
from whichgpu.trace import Trace

RULES_VERSION = 1  # raise it when a trace means something else although the code below `capture` is the same
CACHE_LIMIT_BYTES = 512 << 20
_NO_FILE = (FileNotFoundError, NotADirectoryError)


def cache_directory() -> Path:
    """Where traces are kept: `traces` under $WHICHGPU_CACHE, or else under the user's cache directory."""
    root = os.environ.get("WHICHGPU_CACHE") or platformdirs.user_cache_dir("whichgpu")
    return Path(root).expanduser() / "traces"


def make_key(*asked: str | int) -> str:
    """The name of a trace asked for in this way, by this whichgpu, torch and Python."""
    # where opt_einsum is installed, PyTorch multiplies in the order that it names
    libraries = [installed_version(name) for name in ("torch", "opt_einsum")]
    maker = (RULES_VERSION, _code_hash(), libraries, platform.python_version())
    return hashlib.sha256(msgspec.json.encode((asked, maker))).hexdigest()


class Origin(msgspec.Struct, frozen=True):
    """What a trace was made from: source files by path and distributions by name."""

    sources: dict[str, str]  # path to SHA-256
    distributions: dict[str, str]  # name to version
    started: float = 0.0  # when the process that loaded them started, seconds since the epoch
    complete: bool = True  # False when a source could not be pinned down: then nothing is kept

    @classmethod
    def empty(cls, started: float) -> Origin:
        """The origin of a worker that has loaded nothing yet."""
        return cls({}, {}, started)

    def extended(self, sources: Iterable[str], distributions: dict[str, str]) -> Origin:
        """This origin and further source files, hashed now, and distributions."""
        hashes, complete = dict(self.sources), self.complete
        for source in sources:
            if source not in hashes:
                digest = _file_hash(source)
                # a file saved after the worker started may not be what the worker has loaded
                complete = complete and digest is not None and _saved(source) < self.started
                hashes[source] = digest or ""
        return Origin(hashes, {**self.distributions, **distributions}, self.started, complete)

    def holds(self, versions: dict[str, str | None] | None = None) -> bool:
        """Whether every source file and distribution is still the same; `versions` keeps what was looked up."""
        known = {} if versions is None else versions
        for name in self.distributions.keys() - known.keys():
            known[name] = installed_version(name)
        return all(known[name] == version for name, version in self.distributions.items()) and all(
            _file_hash(path) == digest for path, digest in self.sources.items()
        )


class TraceCache:
    """Traces kept on disk; damaged entries are ignored, told to `on_note` and rebuilt by the next write."""

    def __init__(self, directory: Path, on_note: Callable[[str], None], limit_bytes: int = CACHE_LIMIT_BYTES) -> None:
        self._directory = directory
        self._on_note = on_note
        self._limit_bytes = limit_bytes
        # Traces that were read or written: their keys and the SHA-256 of their files, None where it could not be kept.
        self.used: dict[str, str | None] = {}

    def read(self, key: str) -> Trace | None:
        """The trace kept under a key, or None when there is none that still holds."""
        path = self._directory / f"{key}.json"
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=_Entry)
            if not entry.origin.holds():
                return None
            kept = self._directory / Path(entry.trace).name
            trace = traces.load(kept)
        except (OSError, msgspec.MsgspecError, TraceError) as error:
            # there is none, or another process removed or replaced the files meanwhile: that is no damage
            if not isinstance(error, _NO_FILE) and not isinstance(error.__cause__, _NO_FILE):
                self.note_damage()
            return None
        self._touch(path, kept)
        self.used[key] = _file_hash(str(kept))
        return trace

    def note_damage(self) -> None:
        """Say that something kept could not be used."""
        self._on_note("a damaged entry of the trace cache was ignored and rebuilt")

    def holds(self, key: str) -> bool:
        """Whether a trace that still holds is kept under a key, as far as can be told without reading it."""
        try:
            entry = msgspec.json.decode((self._directory / f"{key}.json").read_bytes(), type=_Entry)
        except (OSError, msgspec.MsgspecError):
            return False
        return (self._directory / Path(entry.trace).name).is_file() and entry.origin.holds()

    def write(self, key: str, path: Path, origin: Origin) -> None:
        """Keep the trace in the file `path`; a cache that cannot be written is told to `on_note`."""
        self.used[key] = None
        if not origin.complete:
            return
        entry = _Entry(trace=f"{key[:32]}-{secrets.token_hex(4)}.trace", origin=origin)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            self._place(entry.trace, data)
            self._place(f"{key}.json", msgspec.json.encode(entry))
            self.used[key] = hashlib.sha256(data).hexdigest()
            self._shrink()
        except OSError as error:
            self._on_note(f"the trace cache {self._directory} cannot be written ({error.strerror})")

    # ---- what else is kept in the same place ----------------------------------------------------------------

    def all_hold(self, traces: dict[str, str]) -> bool:
        """Whether these traces, by key and SHA-256, are still the ones that are kept, and hold."""
        versions: dict[str, str | None] = {}
        for key, digest in traces.items():
            path = self._directory / f"{key}.json"
            try:
                entry = msgspec.json.decode(path.read_bytes(), type=_Entry)
            except (OSError, msgspec.MsgspecError):
                return False
            kept = self._directory / Path(entry.trace).name
            if _file_hash(str(kept)) != digest or not entry.origin.holds(versions):
                return False
            self._touch(path, kept)
        return True

    def read_beside(self, name: str) -> bytes | None:
        """A file that was written beside the traces, None when there is none."""
        path = self._directory / name
        try:
            data = path.read_bytes()
        except OSError:
            return None
        self._touch(path)
        return data

    def write_beside(self, name: str, data: bytes) -> None:
        """Keep a file beside the traces, if that can be done."""
        with contextlib.suppress(OSError):
            self._place(name, data)
            self._shrink()

    def remove_beside(self, name: str) -> None:
        """Remove such a file."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink(missing_ok=True)

    def _touch(self, *paths: Path) -> None:
        with contextlib.suppress(OSError):
            for path in paths:  # the least recently used goes first
                os.utime(path)

    def _place(self, name: str, data: bytes) -> None:
        part = self._directory / f"{name}.{secrets.token_hex(4)}.part"
        try:
            part.write_bytes(data)
            part.replace(self._directory / name)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def _shrink(self) -> None:
        files: list[tuple[float, int, Path]] = []
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


class _Entry(msgspec.Struct, frozen=True):
    trace: str  # name of the trace's file
    origin: Origin


@lru_cache(maxsize=1)
def _code_hash() -> str:
    """A hash of the code that decides what a trace says: a changed tracer starts a new cache."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*package.glob("capture/**/*.py"), *package.glob("zoo/**/*.py"), package / "trace.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update((package / "workload.py").read_bytes())
    return digest.hexdigest()


def _file_hash(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _saved(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return float("inf")


def installed_version(distribution: str) -> str | None:
    """The release of a distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
