"""A workload: one training step, how it is named on the command line, and how it is found and imported.

A workload is a function `setup(device)` that builds model and optimizer and returns `step(batch_size)`, which
runs one training step. It is named as

    path/to/file.py:function       a file of the user's; the function defaults to `setup`
    package.module:function        the same, from a package on the path or in the current folder
    timm:NAME?options              an architecture of a model library, built from its own configuration;
    torchvision:NAME?options       weights are never downloaded
    hf:NAME?options                (NAME also: a path to a folder with a config.json, or to the file)
    bert-base                      an entry of the zoo; also with ?options

`parse` reads the name and imports nothing of the workload; `load` imports it and belongs in the process that
traces or runs it. Importing a user's file runs its top level, and its folder stays first on `sys.path`, so
load one workload per process: two files with siblings of the same name would otherwise share them.

This module imports no torch, and nothing beyond Python's own library: a step is also run on machines that have
only PyTorch. The zoo lies above it: its entries are found by name, as a user's file is.
Not covered: running the step, and errors raised inside it (`failure_line` puts those into one line).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal, TypeVar

from whichgpu.errors import MissingExtraError, WorkloadError

Scheme = Literal["file", "module", "timm", "torchvision", "hf", "zoo"]
F = TypeVar("F", bound=Callable[..., Any])
Setup = Callable[[Any], Callable[[int], Any]]

DEFAULT_BATCH_SIZE = 8

_ZOO = "whichgpu.zoo"
_ADAPTERS: dict[str, Scheme] = {"timm": "timm", "torchvision": "torchvision", "hf": "hf"}
_LIBRARIES = ("diffusers", "peft", "scipy", "timm", "torchvision", "transformers")
_EXTRAS = dict.fromkeys(_LIBRARIES, "zoo")  # package -> extra that brings it
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_OWN_TOOLS = frozenset({"whichgpu", "msgspec", "platformdirs", "rapidfuzz", "rich", "typer"})
_FORMS = "file.py:function, package.module:function, timm:NAME, torchvision:NAME, hf:NAME or a zoo name"
_NO_OPTIONS = "options are for timm:, torchvision:, hf: and the zoo; a step of your own sets them itself"
_LONGEST_MESSAGE = 300
_SHORT = 3  # letters


@dataclass(frozen=True, kw_only=True)
class WorkloadRef:
    """The name of a workload, read and checked; `parse(ref.text)` gives it back."""

    text: str  # as typed, in one canonical spelling: function spelled out, options sorted
    scheme: Scheme
    target: str  # absolute path, dotted module, or a name in its library or the zoo
    function: str | None = None  # only for file and module
    options: dict[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()  # made to its step while it is traced (capture/changes.py); `text` does not say them


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An imported workload: its set-up function and what one batch of it means."""

    name: str
    setup: Setup
    # Does what set-up does before it needs the device, and returns the rest of it, to be called once: processes that are
    # forked in between share what was built. None where set-up cannot be split.
    prepare: Callable[[], Setup] | None = None
    unit: str = "samples"  # what speeds are quoted in: "images", "tokens", "sequences", ...
    items_per_sample: int = 1  # units in one element of the batch (tokens: the sequence length)
    default_batch_size: int = DEFAULT_BATCH_SIZE
    precision: str | None = None  # one of the zoo's precisions; None where the step decides for itself
    dtypes: tuple[str, ...] = ()  # what it computes in, where known before tracing ("bfloat16")
    sizes: Mapping[str, int] = field(default_factory=dict)  # options that set how large a sample is, with their values
    description: str = ""
    source_files: tuple[Path, ...] = ()  # the file itself or its config.json; `sources` adds what it imports


def describe(
    *,
    unit: str = "samples",
    items_per_sample: int = 1,
    name: str | None = None,
    default_batch_size: int = DEFAULT_BATCH_SIZE,
) -> Callable[[F], F]:
    """Decorate a `setup` function with what one batch of it means; everything is optional."""
    if items_per_sample < 1 or default_batch_size < 1:
        raise WorkloadError("@describe: items_per_sample and default_batch_size must be 1 or more")
    facts: dict[str, Any] = {
        "unit": unit,
        "items_per_sample": items_per_sample,
        "default_batch_size": default_batch_size,
    }
    if name is not None:
        facts["name"] = name

    def mark(function: F) -> F:
        function.__whichgpu__ = facts  # type: ignore[attr-defined]
        return function

    return mark


# ---- names ----


def parse(text: str) -> WorkloadRef:
    """Read a workload's name; raises WorkloadError for one that cannot exist, with the nearest that do."""
    check_text(text)
    text = text.strip()
    prefix, colon, rest = text.partition(":")
    if colon and prefix in _ADAPTERS:
        return _parse_library(_ADAPTERS[prefix], rest)
    path, function = _split_function(text)
    if path is not None:
        return _parse_file(path, function)
    name, options = _split_options(text)
    if name in zoo_names():
        return _library_ref("zoo", name, name, options)
    if colon:
        return _parse_module(text)
    near = nearest(name, zoo_names())
    raise WorkloadError(f"unknown workload {_quote(text)}{near}; a workload is {_FORMS}")


def check_text(words: str) -> None:
    """Raise WorkloadError for a name of bytes that are no text in this locale: it can neither be shown nor kept."""
    try:
        words.encode()
    except UnicodeEncodeError:
        shown = _quote(words.encode(errors="backslashreplace").decode())
        raise WorkloadError(
            f"{shown} holds bytes that are no text in this locale ({sys.getfilesystemencoding()}); rename it, or set "
            "LC_ALL to a UTF-8 locale such as C.UTF-8"
        ) from None


def with_options(ref: WorkloadRef, options: Mapping[str, str]) -> WorkloadRef:
    """The same workload with further options; raises WorkloadError for a user's own file or module."""
    if not options:
        return ref
    if ref.scheme in ("file", "module"):
        raise WorkloadError(f"{ref.text}: {_NO_OPTIONS}")
    base = ref.text.partition("?")[0]
    merged = {**ref.options, **options}
    return parse(base + "?" + "&".join(f"{key}={value}" for key, value in merged.items()))


def zoo_names() -> tuple[str, ...]:
    """Names of the zoo's entries; imports none of them."""
    return tuple(importlib.import_module(_ZOO).ENTRIES)


def nearest(word: str, names: Iterable[str], limit: int = 3) -> str:
    """A clause "; did you mean a, b or c?" with the names nearest to `word`, or nothing when none is near."""
    try:
        from rapidfuzz import fuzz, process  # noqa: PLC0415  (a machine that only runs steps may lack it)
    except ImportError:
        return ""
    # of a short word any long one holds a part, as "foreach" does of "foo": it must be alike as a whole
    scorer = fuzz.WRatio if len(word) > _SHORT else fuzz.ratio
    found = process.extract(word, list(names), scorer=scorer, processor=str.casefold, limit=limit, score_cutoff=60)
    hits = [hit[0] for hit in found]
    if not hits:
        return ""
    return "; did you mean " + (", ".join(hits[:-1]) + " or " if len(hits) > 1 else "") + hits[-1] + "?"


def _split_function(text: str) -> tuple[str | None, str]:
    if text.endswith(".py"):
        return text, "setup"
    head, _, function = text.rpartition(":")
    if head.endswith(".py"):
        return head, function
    if ".py?" in text:
        return text.partition("?")[0], "setup?" + text.partition("?")[2]
    return None, ""


def _check_function(text: str, function: str) -> str:
    if "?" in function:
        raise WorkloadError(f"{_quote(text)}: {_NO_OPTIONS}")
    if not _FUNCTION.fullmatch(function):
        raise WorkloadError(f"{_quote(text)}: {_quote(function)} is not a function name; write {_FORMS}")
    return function


def _parse_file(path: str, function: str) -> WorkloadRef:
    _check_function(f"{path}:{function}", function)
    file = Path(path)
    if not file.is_file():
        folder = file.parent if file.parent.is_dir() else Path()
        near = nearest(file.name, [str(folder / found.name) for found in folder.glob("*.py")])
        check_text(os.getcwd())
        raise WorkloadError(f"no such file: {_one_line(path)} (seen from {os.getcwd()}){near}")
    target = os.path.abspath(file)
    check_text(target)
    return WorkloadRef(text=f"{file}:{function}", scheme="file", target=target, function=function)


def _parse_module(text: str) -> WorkloadRef:
    module, _, function = text.rpartition(":")
    _check_function(text, function)
    if not _FUNCTION.fullmatch(module):
        raise WorkloadError(f"unknown workload {_quote(text)}; a workload is {_FORMS}")
    check_text(os.getcwd())  # a module is looked for here first
    top = module.partition(".")[0]
    if top not in sys.builtin_module_names and PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
        schemes = nearest(top, _ADAPTERS)
        raise WorkloadError(f"{_quote(text)}: there is no scheme and no module {top}{schemes}; a workload is {_FORMS}")
    return WorkloadRef(text=f"{module}:{function}", scheme="module", target=module, function=function)


def _parse_library(scheme: Scheme, rest: str) -> WorkloadRef:
    name, options = _split_options(rest)
    if not name:
        raise WorkloadError(f"{scheme}: needs the name of an architecture, as in {_EXAMPLES[scheme]}")
    target = _config_path(name) if scheme == "hf" and ("/" in name or name.endswith(".json")) else name
    return _library_ref(scheme, f"{scheme}:{name}", target, options)


_EXAMPLES = {"timm": "timm:resnet50", "torchvision": "torchvision:resnet50", "hf": "hf:gpt2"}


def _library_ref(scheme: Scheme, base: str, target: str, options: dict[str, str]) -> WorkloadRef:
    tail = "&".join(f"{key}={value}" for key, value in sorted(options.items()))
    text = f"{base}?{tail}" if tail else base
    return WorkloadRef(text=text, scheme=scheme, target=target, options=options)


def _config_path(name: str) -> str:
    path = Path(name)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise WorkloadError(
            f"hf:{_one_line(name)}: no config.json there; nothing is downloaded, so name a model type "
            "such as hf:llama or hf:gpt2, or a local folder that holds config.json"
        )
    return os.path.abspath(file)


def _split_options(text: str) -> tuple[str, dict[str, str]]:
    name, mark, tail = text.partition("?")
    options: dict[str, str] = {}
    for part in tail.split("&") if mark else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or (equals and not value):
            raise WorkloadError(f"{_quote(text)}: options are key=value joined by &, not {_quote(part)}")
        if key in options:
            raise WorkloadError(f"{_quote(text)}: option {key} is given twice")
        options[key] = value if equals else "1"  # a bare `channels_last` switches it on
    return name.strip(), options


# ---- importing ----


def load(ref: WorkloadRef) -> Workload:
    """Import the workload; raises WorkloadError (MissingExtraError for a missing library), in one line."""
    if ref.scheme in _ADAPTERS:
        adapter = _import(f"{_ZOO}.{ref.scheme}_models", ref.text)
        built: Workload = _guarded(ref.text, adapter.build, ref.target, ref.options)
        return built
    if ref.scheme == "zoo":
        module, _, function = importlib.import_module(_ZOO).ENTRIES[ref.target].target.partition(":")
        entry: Workload = _guarded(ref.text, getattr(_import(module, ref.text), function), ref.options)
        return entry
    module_object = _import_file(ref) if ref.scheme == "file" else _import_module(ref)
    setup = _find_function(module_object, ref)
    facts = {"name": ref.text, **getattr(setup, "__whichgpu__", {})}
    file = getattr(module_object, "__file__", None)
    doc = inspect.getdoc(setup) if inspect.isroutine(setup) else None
    return Workload(
        setup=checked_setup(setup, ref.text),
        description=(doc or "").partition("\n")[0],
        source_files=(Path(file),) if file else (),
        **facts,
    )


def checked_setup(setup: Callable[[Any], Any], where: str) -> Callable[[Any], Callable[[int], Any]]:
    """`setup`, made to raise WorkloadError when it does not return a step that takes the batch size."""

    def checked(device: Any) -> Callable[[int], Any]:
        step = setup(device)
        if not callable(step):
            raise WorkloadError(
                f"{where} returned {type(step).__name__}, not a function; "
                "end it with `return step`, where step(batch_size) runs one training step"
            )
        if not _takes_one(step):
            raise WorkloadError(
                f"{where} returned a step that does not take exactly one argument; it is called as step(batch_size)"
            )
        return step  # type: ignore[no-any-return]

    return checked


def failure_line(error: BaseException) -> str:
    """An error of the user's code in one line: its traceback's last line, and file:line in their code."""
    last = traceback.format_exception_only(error)[-1]
    if isinstance(error, SyntaxError) and error.filename:
        place: str | None = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if is_users(frame.filename)]
        place = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    return _one_line(last) + (f" ({place})" if place else "")


def missing_package(error: BaseException, where: str) -> MissingExtraError | None:
    """The error that names the package or extra to install, when an import failed for want of a known one."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    if package == "torch":
        return MissingExtraError(f"{where} needs PyTorch, which is not installed: pip install torch")
    if package in _EXTRAS:
        return MissingExtraError(
            f"{where} needs {package}, which is not installed: pip install 'whichgpu[{_EXTRAS[package]}]'"
        )
    return None


def _import(module: str, where: str) -> Any:
    """Import a module of the zoo or of the user; whatever its top level raises becomes one line."""
    return _guarded(where, importlib.import_module, module)


def _guarded(where: str, action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except (WorkloadError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a script may call sys.exit at its top level
        cure = ""
        if isinstance(error, SystemExit):
            cure = '; put what only a script does (argparse, main()) under if __name__ == "__main__":'
        if "relative import with no known parent" in str(error):
            cure = "; name it by its package instead, as in mypkg.train:setup, from the folder that holds mypkg"
        raise missing_package(error, where) or WorkloadError(
            f"{where} cannot be loaded: {failure_line(error)}{cure}"
        ) from error


def _import_file(ref: WorkloadRef) -> Any:
    path = Path(ref.target)
    # A name of its own, so that a file called `my-model.py` loads and one called `torch.py` hides nothing.
    digest = hashlib.sha256(ref.target.encode()).hexdigest()[:8]
    name = f"whichgpu_user_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{ref.text}: Python cannot import this file")
    _put_first_on_path(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look modules up by name
    try:
        _guarded(ref.text, spec.loader.exec_module, module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(ref: WorkloadRef) -> Any:
    _put_first_on_path(os.getcwd())
    try:
        return _import(ref.target, ref.text)
    except WorkloadError as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and f"{ref.target}.".startswith(f"{missing}."):
            raise WorkloadError(
                f"{ref.text}: no module named {missing} in the current folder or the installed packages"
            ) from error.__cause__
        raise


def _put_first_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _find_function(module: Any, ref: WorkloadRef) -> Callable[[Any], Any]:
    found = module
    for part in (ref.function or "setup").split("."):
        found = getattr(found, part, None)
    if found is None:
        own = [v for v in vars(module).values() if getattr(v, "__module__", None) == module.__name__]
        names = [v.__name__ for v in own if inspect.isfunction(v) and _takes_one(v) and v.__name__[0] != "_"]
        listed = "functions there that take one argument: " + (", ".join(names) or "none")
        raise WorkloadError(f"{ref.text}: no function {ref.function} in {ref.target}; {listed}")
    if not callable(found):
        kind = type(found).__name__
        raise WorkloadError(f"{ref.text}: {ref.function} is {kind}, not a function setup(device)")
    if not _takes_one(found):
        raise WorkloadError(f"{ref.text}: {ref.function} must take exactly one argument, the device")
    return found  # type: ignore[no-any-return]


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: let the call itself tell
        return True
    return True


# ---- what a trace of the workload depends on ----


def sources(ref: WorkloadRef) -> tuple[Path, ...]:
    """The workload's own file or config.json, and every other file of the user's that this process imported.

    Call it after `load`, better after a step has run, so that late imports are seen. Installed packages are
    left out (`distributions` names them), and so is whichgpu, but for its zoo.
    """
    files = {Path(ref.target)} if os.path.isabs(ref.target) else set()
    zoo = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zoo", "")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isfile(file) and (is_users(file) or file.startswith(zoo)):
            files.add(Path(os.path.abspath(file)))
    return tuple(sorted(files))


def distributions(ref: WorkloadRef) -> tuple[str, ...]:
    """Names of the installed distributions that the workload depends on, from what this process imported.

    A model of a library depends on that library and torch; code of the user's on whatever it imported
    (whichgpu's own tools left out).
    """
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    if ref.scheme not in ("file", "module"):
        return tuple(sorted(tops & {"torch", *_EXTRAS}))
    by_top = importlib.metadata.packages_distributions()
    return tuple(sorted({name for top in tops for name in by_top.get(top, ())} - _OWN_TOOLS))


def _installed_folders() -> tuple[str, ...]:
    paths = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parent)]
    return tuple({os.path.join(os.path.realpath(path), "") for path in paths})


def is_users(file: str) -> bool:
    """Whether a file is the user's own: not the standard library's, a package's or whichgpu's."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return not os.path.realpath(file).startswith(_installed_folders())


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 3] + "..."


def _quote(text: str) -> str:
    return f"'{_one_line(text)}'"
