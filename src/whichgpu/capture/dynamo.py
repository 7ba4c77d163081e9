"""Keeps `torch._dynamo` unloaded while tracing.

PyTorch imports it (three seconds on a small machine) at the first `optimizer.step()`, only to switch itself off. The
stand-in answers those two calls and turns into the real package as soon as anything else is asked of it. Its settings, which
checkpointing without reentrance reads, are in a module that needs nothing of the package: that one alone is loaded for them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch


class _StandIn(ModuleType):
    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self.__spec__ = importlib.util.find_spec("torch._dynamo")
        assert self.__spec__ is not None

    @property
    def __path__(self) -> list[str]:
        """Asked for by the import of a submodule, which needs the whole package: its parts import one another in a circle."""
        return list(load().__path__)

    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
        return fn if fn is not None else lambda function: function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        return None

    @staticmethod
    def is_compiling() -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "config":
            return _load_config(self)
        if importlib.util.find_spec(f"torch._dynamo.{name}") is not None:
            return importlib.import_module(f"torch._dynamo.{name}")
        return getattr(load(), name)


_CONFIG = "torch._dynamo.config"


def _load_config(package: _StandIn) -> Any:
    """The package's settings, which stay those of the real package if it is loaded later."""
    spec = package.__spec__
    assert spec is not None
    folders = spec.submodule_search_locations
    found = importlib.machinery.PathFinder.find_spec(_CONFIG, folders)
    assert found is not None
    assert found.loader is not None
    config = importlib.util.module_from_spec(found)
    sys.modules[_CONFIG] = config  # where the module looks for itself
    found.loader.exec_module(config)
    package.__dict__["config"] = config
    return config


def stand_in() -> None:
    """Put the stand-in in place unless the real package is already loaded."""
    if "torch._dynamo" not in sys.modules:
        module = _StandIn()
        sys.modules["torch._dynamo"] = module
        torch._dynamo = module


def step_aside() -> None:
    """Take the stand-in away again, if it is still one, so that whoever wants the real package gets it."""
    if isinstance(sys.modules.get("torch._dynamo"), _StandIn):
        del sys.modules["torch._dynamo"]
        sys.modules.pop(_CONFIG, None)
        torch.__dict__.pop("_dynamo", None)


def load() -> Any:
    """Turn the stand-in into the real package, keeping the submodules that were loaded through it."""
    module = sys.modules["torch._dynamo"]
    if isinstance(module, _StandIn):
        spec = module.__spec__
        assert spec is not None
        assert spec.loader is not None
        module.__class__ = ModuleType
        module.__loader__ = spec.loader
        module.__file__ = spec.origin
        module.__path__ = list(spec.submodule_search_locations or [])
        spec.loader.exec_module(module)
    return module
