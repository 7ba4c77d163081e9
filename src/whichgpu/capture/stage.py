"""All that stands between the user's code and PyTorch while a workload is loaded, set up and run.

A `Stage` is entered for the import of the user's file, which may ask for a GPU or put a model there, and again for set-up
and steps; what the import made belongs to the same trace. Installed packages are imported outside of it.

Not covered: packages that are imported by other ways than an `import` statement.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import random
import sys
from collections.abc import Iterator
from typing import Any, Literal

import torch

from whichgpu.capability import class_of
from whichgpu.capture import dynamo
from whichgpu.capture.composites import Overrides
from whichgpu.capture.pretend import Pretence
from whichgpu.capture.recorder import Recorder
from whichgpu.capture.target import Target
from whichgpu.capture.threads import Threads
from whichgpu.workload import is_users


class Stage:
    """Context manager that may be entered again; the recorder goes on where it was."""

    def __init__(self, target: Target, kind: Literal["fake", "real-cpu"] = "fake") -> None:
        self.target = target
        self.recorder = Recorder(kind)
        self.pretence = Pretence(self.recorder, target)
        self.threads = Threads(self.recorder)
        self._entered: contextlib.ExitStack | None = None

    def holds_for(self) -> list[str]:
        """Classes of cards for which what was imported is the same."""
        return sorted(self.recorder.same_for | {class_of(self.target.capability)})

    def aim(self, target: Target) -> None:
        """Go on for another card, for whose class what was imported is the same."""
        self.target = self.pretence.target = target

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as stack:
            stack.enter_context(Overrides(self.recorder, self.target))
            stack.enter_context(self.pretence)
            stack.enter_context(self.recorder)
            stack.enter_context(self.threads)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._entered is not None
        self._entered.__exit__(*error)
        self._entered = None

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Entered for the import of a user's file, except while that imports an installed package."""
        plain = builtins.__import__

        def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            if self._entered is None or level or _loaded(name, fromlist) or not _installed(name):
                return plain(name, globals, locals, fromlist, level)
            self.__exit__(None, None, None)
            dynamo.step_aside()
            try:
                return plain(name, globals, locals, fromlist, level)
            finally:
                self.__enter__()

        seed()
        builtins.__import__ = import_
        try:
            with self:
                yield
        finally:
            builtins.__import__ = plain
            dynamo.step_aside()


def _loaded(name: str, wanted: Any) -> bool:
    module = sys.modules.get(name)
    return module is not None and all(part == "*" or hasattr(module, part) for part in wanted or ())


def _installed(name: str) -> bool:
    """Whether a module is none of the user's own."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    folders = list(spec.submodule_search_locations or ())
    origin = spec.origin if spec.origin is not None else (folders[0] if folders else "<none>")
    return not is_users(origin)


def seed() -> None:
    """The same random numbers in every trace."""
    torch.manual_seed(0)
    random.seed(0)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(0)
