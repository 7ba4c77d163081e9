"""whichgpu: which GPU can train this model, how big a batch fits, and what does it cost?

    import whichgpu

    report = whichgpu.fit("bert-base", gpus=["RTX 4090"])
    print(report.gpus[0].max_batch_size)

The names in `__all__` are public and keep their meaning; everything else may change. They are loaded when
they are first used, so that importing the package loads next to nothing, and PyTorch is never loaded at all:
tracing happens in a process of its own.
"""

# Nothing from the standard library: under `python -m whichgpu` this runs while the current folder still stands first on
# the path, and a typing.py there would be taken for Python's own.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from whichgpu.advice import FitReport, RankReport
    from whichgpu.advising.records import AdviceReport
    from whichgpu.advising.wishes import Wishes
    from whichgpu.api.advise import advise
    from whichgpu.api.explain import explain
    from whichgpu.api.fit import fit
    from whichgpu.api.rank import rank
    from whichgpu.errors import WhichGpuError
    from whichgpu.explanation import ExplainReport
    from whichgpu.workload import describe

    __version__: str

del TYPE_CHECKING

__all__ = [
    "AdviceReport",
    "ExplainReport",
    "FitReport",
    "RankReport",
    "WhichGpuError",
    "Wishes",
    "advise",
    "describe",
    "explain",
    "fit",
    "rank",
]

_HOMES = {
    "AdviceReport": ("whichgpu.advising.records", "AdviceReport"),
    "ExplainReport": ("whichgpu.explanation", "ExplainReport"),
    "FitReport": ("whichgpu.advice", "FitReport"),
    "RankReport": ("whichgpu.advice", "RankReport"),
    "WhichGpuError": ("whichgpu.errors", "WhichGpuError"),
    "Wishes": ("whichgpu.advising.wishes", "Wishes"),
    "advise": ("whichgpu.api", "advise"),
    "describe": ("whichgpu.workload", "describe"),
    "explain": ("whichgpu.api", "explain"),
    "fit": ("whichgpu.api", "fit"),
    "rank": ("whichgpu.api", "rank"),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  (slow, and seldom asked for)

        return version("whichgpu")
    if name not in _HOMES:
        raise AttributeError(f"module 'whichgpu' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module, attribute = _HOMES[name]
    found: object = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
