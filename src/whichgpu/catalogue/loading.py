"""The catalogue from its files: a lab's own before the user's refreshed prices before those of the package.

Each layer is a folder with `gpus.toml`, `prices/*.toml` and `free_machines.toml`, any of them, in the formats of the shipped
files. A card with the id of a card below takes its place; others are added. An offer takes the place of one below of the
same provider, kind, cards, instance, region and date; others are added, and of one provider's offers the newest count. A
price file that says `replaces_provider = true` drops all offers of that provider below.

The lab's own folder is that of `using` (`--catalogue DIR`) or of $WHICHGPU_CATALOGUE. The user's folder is where
`whichgpu update` writes.

Prices in the wrong unit (for a month, for the whole machine, in cents) are caught in all files but the shipped ones, where
tests do: see `whichgpu.catalogue.units`. So are figures of a card that cannot be: `whichgpu.catalogue.plausible`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import platformdirs

from whichgpu.catalogue.cards import Catalogue, clash
from whichgpu.catalogue.files import Document
from whichgpu.catalogue.plausible import impossible
from whichgpu.catalogue.records import Gpu, Offer
from whichgpu.catalogue.units import Known, unlikely
from whichgpu.errors import CatalogueError

__all__ = ["VARIABLE", "load", "own_folder", "shipped", "user_folder", "using"]

VARIABLE = "WHICHGPU_CATALOGUE"

_chosen: ContextVar[Path | None] = ContextVar("catalogue", default=None)


@contextlib.contextmanager
def using(directory: Path) -> Iterator[None]:
    """While it lasts, `load` takes a lab's own files from this folder; CatalogueError where it holds none."""
    _check(directory)
    token = _chosen.set(directory)
    try:
        yield
    finally:
        _chosen.reset(token)


def own_folder(directory: Path | None = None) -> Path | None:
    """The folder of a lab's own files: the one given, that of `using`, that of $WHICHGPU_CATALOGUE, or None."""
    found = directory or _chosen.get()
    if found is None and os.environ.get(VARIABLE):
        found = Path(os.environ[VARIABLE]).expanduser()
    if found is not None:
        _check(found)
    return found


def user_folder() -> Path:
    """Where `whichgpu update` writes: `catalogue` in the user's data folder."""
    return Path(platformdirs.user_data_dir("whichgpu")) / "catalogue"


def load(directory: Path | None = None) -> Catalogue:
    """The shipped catalogue with the user's refreshed prices and a lab's own files over it.

    `directory` is the lab's folder; without it, see `own_folder`. CatalogueError names file, line, field and cure where a
    file is malformed. Offers are read only when they are asked for. What was read before is kept while no file changed.
    """
    users, own = user_folder(), own_folder(directory)
    with _reading(users):
        folders = [users] if users.is_dir() else []
    folders += [own] if own is not None else []
    layers = []
    for folder in folders:
        with _reading(folder):
            layers.append((folder, _state(folder)))
    return _loaded(tuple(layers))


def shipped() -> Catalogue:
    """The catalogue of the package alone."""
    return _loaded(())


@lru_cache(maxsize=8)
def _loaded(layers: tuple[tuple[Path, object], ...]) -> Catalogue:
    data = files("whichgpu") / "data"
    gpus = {gpu.id: gpu for gpu in Document(data / "gpus.toml").rows("gpu", Gpu)}
    folders = [folder for folder, _ in layers]
    for folder in folders:
        if (folder / "gpus.toml").is_file():
            gpus = _with_own_gpus(folder / "gpus.toml", gpus)
    return Catalogue(gpus.values(), lambda: _offers(data / "prices", folders, gpus))


def _with_own_gpus(entry: Path, below: dict[str, Gpu]) -> dict[str, Gpu]:
    """The cards below with those of a file over them."""
    document = Document(entry)
    own: dict[str, Gpu] = {}
    for number, gpu in enumerate(document.rows("gpu", Gpu), 1):
        if gpu.id in own:
            raise document.error("gpu", number, "id", f'"{gpu.id}" is the id of an earlier entry too; keep one of them')
        own[gpu.id] = gpu
    found = {**below, **own}
    for number, gpu in enumerate(own.values(), 1):
        if problem := clash(gpu, found.values()):
            raise document.error("gpu", number, *problem)
        if problem := impossible(gpu, below.values()):
            raise document.error("gpu", number, *problem)
    return found


def _offers(shipped_prices: Traversable, folders: list[Path], gpus: dict[str, Gpu]) -> list[Offer]:
    found = list(_read_offers(shipped_prices, gpus, None))
    for folder in folders:
        if (folder / "prices").is_dir():
            new = list(_read_offers(folder / "prices", gpus, Known(gpus, [offer for offer, _ in found])))
            dropped = {offer.provider for offer, replaces in new if replaces}
            keys = {offer.key for offer, _ in new}
            kept = [(o, r) for o, r in found if o.provider not in dropped and o.key not in keys]
            found = [*kept, *new]
    return [offer for offer, _ in found]


def _read_offers(folder: Traversable, gpus: dict[str, Gpu], known: Known | None) -> Iterator[tuple[Offer, bool]]:
    """Each offer of a folder, and whether it takes the place of all of its provider; units are checked where `known`."""
    with _reading(folder):
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    for entry in entries:
        if not entry.name.endswith(".toml"):
            continue
        document = Document(entry)
        raw: dict[str, Any] = document.raw
        provider = raw.pop("provider", None)
        replaces = raw.pop("replaces_provider", False)
        if not isinstance(replaces, bool):
            raise CatalogueError(f"{document.name}: replaces_provider is true or false; correct that line")
        defaults = {} if provider is None else {"provider": provider}
        for number, offer in enumerate(document.rows("offer", Offer, **defaults), 1):
            unknown = set(offer.gpus) - gpus.keys()
            if unknown:
                what = f'no card has the id "{min(unknown)}"; add it to gpus.toml or correct it'
                raise document.error("offer", number, "gpus", what)
            if not offer.usd.is_finite() or offer.usd <= 0:
                raise document.error("offer", number, "usd", f"{offer.usd} is no price; correct it")
            if known is not None and (what := unlikely(offer, known)):
                raise document.error("offer", number, "usd", what)
            yield offer, replaces


@contextlib.contextmanager
def _reading(folder: object) -> Iterator[None]:
    """CatalogueError in place of an OSError of a folder that cannot be looked into."""
    try:
        yield
    except OSError as error:
        why = error.strerror or "unknown why"
        raise CatalogueError(f"{folder}: cannot be read ({why}); make it a folder that you may read") from None


_FILES = ("gpus.toml", "prices", "free_machines.toml")


def _check(directory: Path) -> None:
    with _reading(directory):
        _check_files(directory)


def _check_files(directory: Path) -> None:
    if not directory.is_dir():
        raise CatalogueError(
            f"{directory}: there is no such folder of catalogue files; correct --catalogue or ${VARIABLE}"
        )
    if not any((directory / name).exists() for name in _FILES):
        raise CatalogueError(
            f"{directory} holds neither gpus.toml, prices/ nor free_machines.toml; name a folder that does"
        )
    for name in _FILES:
        path = directory / name
        if name == "prices" and path.exists() and not path.is_dir():
            raise CatalogueError(f"{path} is no folder; put it into a folder of that name, as prices/<provider>.toml")
        if name != "prices" and path.is_dir():
            raise CatalogueError(f"{path} is a folder; make it a file, or rename it")


def _state(folder: Path) -> object:
    """What changes when a file of the folder does."""
    paths = sorted((folder / "gpus.toml", *(folder / "prices").glob("*.toml")))
    stats = [(path.name, path.stat()) for path in paths if path.is_file()]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
