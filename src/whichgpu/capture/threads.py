"""Threads of the step: what they run counts like the rest, and an error in one is the step's.

A dispatch mode holds for one thread only, and so does autocast's state. `Threads(recorder)` brings both into every thread
that is started while it is entered. Not covered: threads that are not `threading.Thread`s.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from whichgpu.capture.recorder import Recorder


class Threads:
    """Context manager; threads that run longer keep the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._failures: list[BaseException] = []

    def __enter__(self) -> Threads:
        self._plain, self._hook = threading.Thread._bootstrap_inner, threading.excepthook  # type: ignore[attr-defined]
        recorder, plain = self.recorder, self._plain

        def bootstrap(thread: threading.Thread) -> None:
            torch.set_autocast_dtype("cpu", torch.float16)  # CUDA's default, as in the pretence
            with recorder:
                plain(thread)

        threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]
        threading.excepthook = self._failed
        return self

    def __exit__(self, *_: object) -> None:
        threading.Thread._bootstrap_inner = self._plain  # type: ignore[attr-defined]
        threading.excepthook = self._hook

    def _failed(self, args: Any) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            self._failures.append(args.exc_value)

    def raise_failure(self) -> None:
        """Raise what ended a thread, if anything did: Python itself only prints it."""
        if self._failures:
            raise self._failures.pop(0)
