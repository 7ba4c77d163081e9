"""Every error that whichgpu raises on purpose.

WhichGpuError                 anything below; the command line prints its one line and exits with `exit_code`
├── InputError                an option or argument that makes no sense (batch size 0, "8 giraffes" of memory)
├── WorkloadError             the workload cannot be found, imported, set up or stepped
│   ├── MissingExtraError     it needs a package that is not installed; names the extra to install
│   └── StepError             its step raised at one batch size; at another it may run
├── CatalogueError            an unknown or ambiguous card, a malformed catalogue file
├── TraceError                a trace that is damaged, of a newer format, or inconsistent
├── CaptureError              tracing failed for a reason that is not the workload's own
│   └── DataDependentError    the step looks at values that only a real run knows; trace it with real tensors
├── BenchError                the card cannot be used for measuring: no driver, another process holds it
└── ResultsError              a file of measurements that cannot be read or written

Messages are one line: what was wrong, then what to do.
"""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came from, the last first: a library may have wrapped what is looked for."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


class WhichGpuError(Exception):
    """Base of all deliberate errors; `str(error)` is one line fit for a user."""

    exit_code = 2

    def __str__(self) -> str:
        # PyTorch's own errors end in the frames of its C++ code, which say nothing to whoever asked
        words, frames, _ = super().__str__().partition("Exception raised from ")
        return f"{words.rstrip()} ..." if frames else words


class InputError(WhichGpuError):
    """A value given by the user cannot be used."""


class WorkloadError(WhichGpuError):
    """The workload cannot be found, imported, set up or stepped."""


class MissingExtraError(WorkloadError):
    """The workload needs a package that is not installed."""


class StepError(WorkloadError):
    """The step raised at one batch size; at another it may run."""


class CatalogueError(WhichGpuError):
    """A card or price cannot be looked up, or a catalogue file is malformed."""


class TraceError(WhichGpuError):
    """A trace is damaged, of an unknown format, or inconsistent with itself."""


class CaptureError(WhichGpuError):
    """Tracing failed for a reason that is not the workload's own."""


class DataDependentError(CaptureError):
    """The step looks at values that only a real run knows."""


class BenchError(WhichGpuError):
    """The card cannot be used for measuring."""


class ResultsError(WhichGpuError):
    """A file of measurements cannot be read or written."""
