"""Rental offers as gpuhunt collects them: the only place that imports it, and the only one that opens a connection.

gpuhunt (of dstack, an extra: `whichgpu[update]`) downloads one list for each provider from where dstack publishes them daily,
or from $GPUHUNT_CATALOG_URL; a provider whose list cannot be had is named in `missing`, and the others are used. Providers
that gpuhunt asks live, most of them with an account, are not asked.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Iterator
from datetime import date
from typing import Any

import msgspec

from whichgpu.errors import CatalogueError, MissingExtraError, causes

__all__ = ["PROVIDERS", "Fetched", "Listing", "fetch"]

TIMEOUT_S = 30.0  # of each connection; gpuhunt sets none
# names by gpuhunt, and by the files in data/prices
PROVIDERS = {
    "aws": "aws",
    "azure": "azure",
    "cloudrift": "cloudrift",
    "gcp": "gcp",
    "lambdalabs": "lambda",
    "nebius": "nebius",
    "oci": "oracle",
    "runpod": "runpod",
    "verda": "verda",
}


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a provider in one region, for an hour: USD for the whole of it."""

    provider: str
    instance: str
    region: str
    usd: float
    gpu: str
    gpu_memory_gib: float
    count: int
    spot: bool
    date: str  # on which the list was made


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What could be had, and of which providers nothing."""

    listings: tuple[Listing, ...]
    missing: tuple[str, ...]
    version: str  # of gpuhunt


def fetch() -> Fetched:
    """Download what the providers ask today; CatalogueError with the cure where nothing could be had."""
    try:
        import gpuhunt  # noqa: PLC0415
        from gpuhunt.version import __version__  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("refreshing prices needs gpuhunt: pip install 'whichgpu[update]'") from None
    catalog = gpuhunt.Catalog(auto_reload=False)
    try:
        with _quiet(), _timeout():
            catalog.load()
    except Exception as error:  # whatever the network, the archive or its rows raise
        raise CatalogueError(
            f"no prices could be fetched ({_cause(error)}); connect to the network and try again, or set "
            "GPUHUNT_CATALOG_URL to a mirror; the prices at hand stay as they are"
        ) from None
    listings = [
        _listing(PROVIDERS[name], loaded.version, item)
        for name, loaded in catalog.catalog.items()
        if name in PROVIDERS
        for item in loaded.items
        if item.gpu_count and item.gpu_name and item.gpu_memory and item.price > 0
    ]
    missing = sorted(ours for name, ours in PROVIDERS.items() if name not in catalog.catalog)
    return Fetched(listings=tuple(listings), missing=tuple(missing), version=__version__)


def _listing(provider: str, version: str, item: Any) -> Listing:
    return Listing(
        provider=provider,
        instance=item.instance_name,
        region=item.location,
        usd=float(item.price),
        gpu=item.gpu_name,
        gpu_memory_gib=float(item.gpu_memory),
        count=int(item.gpu_count),
        spot=bool(item.spot),
        date=_made_on(version),
    )


def _made_on(version: str) -> str:
    """The day in a list's version ("20261103-1"); today where it has none that was."""
    today = date.today()
    match = re.match(r"(20\d\d)(\d\d)(\d\d)", version)
    if match:
        with contextlib.suppress(ValueError):
            return min(date(*map(int, match.groups())), today).isoformat()
    return today.isoformat()


def _cause(error: BaseException) -> str:
    """The first cause in a few words."""
    first = list(causes(error))[-1]
    words = " ".join(str(getattr(first, "strerror", None) or first).split()) or type(first).__name__
    return words[:120]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """gpuhunt logs each failure with its traceback; here they are told as `missing`."""
    logger = logging.getLogger("gpuhunt")
    before = logger.disabled, logger.propagate
    nowhere = logging.NullHandler()
    logger.addHandler(nowhere)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(nowhere)
        logger.disabled, logger.propagate = before


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
