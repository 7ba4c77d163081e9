"""The cards people train on, what they cost, and whether a PyTorch build can use a card: all from data files.

Facts live in `data/gpus.toml`, `data/prices/*.toml` and `data/torch_wheels.toml`, each row with its source
and date. Nothing here opens a connection or imports torch.

Names. `find` ignores case, spaces, hyphens, underscores and the words NVIDIA, GeForce and Tesla. A name that
several cards share ("A100", "RTX 6000") is refused with the candidates. Where a name states the memory but
not the form ("A100 80GB", "H100 80GB", "V100 32GB"), the SXM part is meant: memory decides what fits, and
clouds rent mostly those. "H200" is the SXM part, "P100" the PCIe part, "RTX 3060" the common one of 12 GB.

Memory. `Gpu.memory_bytes` is what the driver shows to PyTorch, the smallest where several figures are known.
Newer drivers keep back more than older ones, so a figure known only from an older driver is lowered by the
largest drop seen on the same architecture, and a card without any figure gets the worst share of its family
(`memory_basis` = "derived").

Not covered: multi-GPU topologies, MIG slices, cards with modified memory, and more than the figures of cards
without CUDA.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import date
from decimal import Decimal
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from rapidfuzz import fuzz, process

from whichgpu.errors import CatalogueError

__all__ = ["Catalogue", "Gpu", "Offer", "Price", "SecondSource", "load", "supports"]

Text = Annotated[str, msgspec.Meta(min_length=1)]
Day = Annotated[str, msgspec.Meta(pattern=r"^20\d\d(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$")]
Capability = Annotated[str, msgspec.Meta(pattern=r"^\d{1,2}\.\d$")]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(gt=0)]
HardwareDtype = Literal["tf32", "fp16", "bf16", "fp8"]
OfferKind = Literal["buy-new", "buy-used", "cloud-on-demand", "cloud-spot"]

LONGEST_NAME = 100
BUY_MONTHS = 18  # a purchase price older than this is named as old
RENT_MONTHS = 12


class SecondSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What another table says of the card; `disagrees` names the figures where it differs from ours."""

    name: Text
    url: Text
    memory_gib: Positive | None = None
    bandwidth_gb_per_s: Positive | None = None
    sm_count: Count | None = None
    disagrees: tuple[Literal["memory_gib", "bandwidth_gb_per_s", "sm_count"], ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card. Rates are dense peaks in TFLOPS; None is unknown, or not in hardware where `no` says so."""

    name: Text
    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    aliases: tuple[Text, ...] = ()  # other names of this card alone
    families: tuple[Text, ...] = ()  # names it shares with other cards
    vendor: Literal["NVIDIA", "AMD", "Intel", "Google", "Apple"]
    architecture: Text
    compute_capability: Capability | None = None  # "8.9"; None where there is no CUDA
    release: Annotated[str, msgspec.Meta(pattern=r"^20\d\d-(0[1-9]|1[0-2])$")]
    form: Literal["desktop", "workstation", "server", "mobile"]
    memory_gib: Positive  # as sold
    memory_bytes: Count  # as the driver shows it
    memory_basis: Literal["measured", "derived"]
    memory_source: Text
    bandwidth_gb_per_s: Positive  # 10^9 bytes per second
    fp32_tflops: Positive | None = None
    tf32_tflops: Positive | None = None
    fp16_tflops: Positive | None = None  # accumulating in fp32, as PyTorch does by default
    fp16_fp16_accumulate_tflops: Positive | None = None
    bf16_tflops: Positive | None = None
    fp8_tflops: Positive | None = None
    no: tuple[HardwareDtype, ...] = ()
    sm_count: Count | None = None
    boost_mhz: Positive | None = None
    l2_mib: Positive | None = None
    tdp_w: Positive | None = None
    nvlink_gb_per_s: Annotated[float, msgspec.Meta(ge=0)] | None = None  # both directions; 0 = has none
    pcie_gen: Count | None = None
    launch_price_usd: Positive | None = None
    source: Text
    checked: Day
    second_source: SecondSource | None = None
    note: str = ""

    @property
    def cuda(self) -> bool:
        """Whether CUDA runs on it; the others are listed for their figures only."""
        return self.vendor == "NVIDIA"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as two integers; CatalogueError for a card without CUDA."""
        if self.compute_capability is None:
            raise CatalogueError(f"{self.name} has no CUDA compute capability; choose an NVIDIA card")
        return _version(self.compute_capability)


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One price as it was read: USD for one card, or for an hour of one card of whatever instance."""

    # ids; several where the source leaves the form open
    gpus: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    kind: OfferKind
    provider: Text
    usd: Decimal
    count: Count = 1  # cards in the instance that was priced
    date: Day
    source: Text
    minimum: bool = False  # the lowest of many listings, no typical price
    note: str = ""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a card costs to buy, or an hour of it to rent: the median over `offers` offers."""

    usd: float
    unit: Literal["once", "hour"]
    # "new", "used", "lowest listing", "new, dated", "used, dated", "launch"; "on-demand", "on-demand, dated"
    condition: str
    offers: int  # how many offers the median is over
    lowest_usd: float
    highest_usd: float
    oldest: str  # date of the oldest offer used, ISO ("2026-05-24" or "2026-05")
    newest: str
    providers: tuple[str, ...]
    sources: tuple[str, ...]


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published build of PyTorch and the compute capabilities it has kernels for."""

    torch: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]
    cuda: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]
    kernels: tuple[Capability, ...]
    source: Text
    checked: Day
    default: bool = False
    ptx: Capability | None = None


class Catalogue:
    """Cards and offers. Offers of the packaged data are read when a price is first asked for."""

    def __init__(self, gpus: Iterable[Gpu], offers: Iterable[Offer] | Traversable) -> None:
        self.gpus = tuple(gpus)
        self._offers = offers
        self._names, self._shared = _index(self.gpus)

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer; CatalogueError where a price file is malformed or names an unknown card."""
        if isinstance(self._offers, Traversable):
            return tuple(_read_offers(self._offers, {gpu.id for gpu in self.gpus}))
        return tuple(self._offers)

    @cached_property
    def _offers_by_gpu(self) -> dict[str, list[Offer]]:
        by_gpu: dict[str, list[Offer]] = {}
        for offer in self.offers:
            for gpu_id in offer.gpus:
                by_gpu.setdefault(gpu_id, []).append(offer)
        return by_gpu

    def find(self, name: str) -> Gpu:
        """The card of that name, alias or id; CatalogueError, naming what is near, for none or several."""
        if len(name) > LONGEST_NAME:
            raise CatalogueError(f'"{_plain(name[:40])}..." is too long for a name; `whichgpu gpus` lists the names')
        key = _key(name)
        if not key and any(map(str.isalnum, name)):
            raise CatalogueError(f'no card is called "{_plain(name)}"; `whichgpu gpus` lists the names')
        if not key:
            raise CatalogueError("the card's name is empty; `whichgpu gpus` lists the names")
        for candidate in dict.fromkeys((key, re.sub(r"(?<=\d)(g|gib)$", "gb", key))):
            if candidate in self._names:
                return self._names[candidate]
            if candidate in self._shared:
                raise CatalogueError(f'"{_plain(name)}" may be {_either(self._shared[candidate])}: say which')
        near = self._near(key)
        hint = f"did you mean {_either(near)}?" if near else "`whichgpu gpus` lists the names"
        raise CatalogueError(f'no card is called "{_plain(name)}"; {hint}')

    def twins(self, name: str) -> list[str]:
        """Cards that a name without a form (SXM, PCIe) may mean besides the one that is found; CatalogueError as `find`."""
        card = self.find(name)
        if _FORM.search(name):
            return []
        return [other.name for other in self.gpus if other is not card and _formless(other) == _formless(card)]

    def _near(self, key: str) -> list[str]:
        keys = [*self._names, *self._shared]
        found: dict[str, None] = {}
        for match, _, _ in process.extract(key, keys, scorer=fuzz.ratio, limit=8, score_cutoff=60):
            names = [self._names[match].name] if match in self._names else self._shared[match]
            found.update(dict.fromkeys(names))
        return list(found)[:5]

    def price(self, gpu: Gpu, kind: Literal["buy", "rent"], *, as_of: date | None = None) -> Price | None:
        """The median price to buy the card or to rent it for an hour, or None where none is known.

        To buy: new offers of the last 18 months before `as_of` (default today), else used ones, else the
        lowest listings of a shop, else the newest older offers ("new, dated"), else the price at launch. To
        rent: on demand, the last 12 months, the median over providers of each provider's median; else the
        same over older offers ("on-demand, dated"). The lowest listings of marketplaces are left out.
        """
        today = as_of or date.today()
        known = [o for o in self._offers_by_gpu.get(gpu.id, ()) if _age_months(o.date, today) >= 0]
        return _rent(known, today) if kind == "rent" else _buy(gpu, known, today)


def load(directory: Path | None = None) -> Catalogue:
    """The packaged catalogue; `gpus.toml` and `prices/` in `directory`, if there, replace the packaged ones.

    CatalogueError names file, entry, field and cure where a file is malformed. Packaged prices are read only
    when they are asked for.
    """
    if directory is None:
        return _packaged()
    own_gpus, own_prices = directory / "gpus.toml", directory / "prices"
    if not own_gpus.is_file() and not own_prices.is_dir():
        raise CatalogueError(f"{directory} holds neither gpus.toml nor prices/; name a folder that does")
    gpus = _read_gpus(own_gpus) if own_gpus.is_file() else _packaged().gpus
    if own_prices.is_dir():
        return Catalogue(gpus, list(_read_offers(own_prices, {gpu.id for gpu in gpus})))
    known = {gpu.id for gpu in gpus}
    return Catalogue(gpus, [offer for offer in _packaged().offers if known.issuperset(offer.gpus)])


@cache
def _packaged() -> Catalogue:
    data = files("whichgpu") / "data"
    return Catalogue(_read_gpus(data / "gpus.toml"), data / "prices")


def supports(gpu: Gpu, torch_version: str, cuda_version: str | None, dtypes: Iterable[str] = ()) -> list[str]:
    """Why a PyTorch build cannot run on the card, or the card lacks a dtype; empty where all is well.

    `cuda_version` None (a CPU build) stands for the wheel that `pip install torch` of that version gets on
    Linux. A build that the table of wheels does not list is not judged; versions after the last are taken as
    the last. dtypes are PyTorch's names ("bfloat16", "torch.float16", "float8_e4m3fn") or "bf16"; others need
    nothing, TF32 neither: PyTorch computes in float32 where a card lacks it.
    """
    if not gpu.cuda:
        return [f"{gpu.name} has no CUDA"]
    notes = []
    wheels = _wheels_of(torch_version)
    used = next((w for w in wheels if (w.default if cuda_version is None else w.cuda == cuda_version)), None)
    if used is not None and not _has_kernels(used, gpu.capability):
        others = [w.cuda for w in wheels if _has_kernels(w, gpu.capability)]
        cure = f"the CUDA {' and '.join(others)} wheel has them" if others else "no wheel of it has them"
        notes.append(
            f"PyTorch {used.torch} for CUDA {used.cuda} has no kernels for compute capability "
            f"{gpu.compute_capability}: {cure}"
        )
    for kind in dict.fromkeys(_hardware_dtype(d) for d in dtypes):
        needed = _DTYPE_NEEDS.get(kind)
        if needed is not None and gpu.capability < needed:
            notes.append(f"no {kind} in hardware (needs compute capability {needed[0]}.{needed[1]})")
    return notes


# CUDA C++ Programming Guide, table "Arithmetic instructions" and tensor core data types by compute capability
_DTYPE_NEEDS = {"bfloat16": (8, 0), "fp8": (8, 9)}


def _hardware_dtype(name: str) -> str:
    short = name.lower().removeprefix("torch.")
    if short in {"bf16", "bfloat16", "pure-bf16"}:
        return "bfloat16"
    return "fp8" if short.startswith(("float8", "fp8")) else short


@cache
def _wheels() -> tuple[Wheel, ...]:
    entry = files("whichgpu") / "data" / "torch_wheels.toml"
    return tuple(_convert_all(_parse(entry), "wheel", Wheel, entry.name))


def _wheels_of(torch_version: str) -> list[Wheel]:
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if match is None:
        return []
    asked = (int(match[1]), int(match[2]))
    last = max(_version(w.torch) for w in _wheels())
    return [w for w in _wheels() if _version(w.torch) == min(asked, last)]


def _has_kernels(wheel: Wheel, capability: tuple[int, int]) -> bool:
    """A cubin runs on the same major capability from its minor on; PTX is compiled for anything later."""
    built = [_version(text) for text in wheel.kernels]
    runs = any(major == capability[0] and minor <= capability[1] for major, minor in built)
    return runs or (wheel.ptx is not None and capability >= _version(wheel.ptx))


def _buy(gpu: Gpu, known: list[Offer], today: date) -> Price | None:
    offers = [o for o in known if o.kind in {"buy-new", "buy-used"}]
    recent = [o for o in offers if _age_months(o.date, today) <= BUY_MONTHS]
    typical = [o for o in recent if not o.minimum]
    for condition, chosen in (
        ("new", [o for o in typical if o.kind == "buy-new"]),
        ("used", [o for o in typical if o.kind == "buy-used"]),
        ("lowest listing", [o for o in recent if o.minimum]),
    ):
        if chosen:
            return _summary(chosen, "once", condition, float(median(o.usd for o in chosen)))
    if offers:
        newest = max(offers, key=lambda o: o.date)
        old = [o for o in offers if o.kind == newest.kind and o.date[:7] == newest.date[:7]]
        condition = f"{newest.kind.removeprefix('buy-')}, dated"
        return _summary(old, "once", condition, float(median(o.usd for o in old)))
    if gpu.launch_price_usd is None:
        return None
    usd = gpu.launch_price_usd
    launch = Offer(
        gpus=(gpu.id,),
        kind="buy-new",
        provider=gpu.vendor,
        usd=Decimal(str(usd)),
        date=gpu.release,
        source=gpu.source,
    )
    return _summary([launch], "once", "launch", usd)


def _rent(known: list[Offer], today: date) -> Price | None:
    offers = [o for o in known if o.kind == "cloud-on-demand" and not o.minimum]
    recent = [o for o in offers if _age_months(o.date, today) <= RENT_MONTHS]
    chosen = recent or offers
    if not chosen:
        return None
    by_provider: dict[str, list[Decimal]] = {}
    for offer in chosen:
        by_provider.setdefault(offer.provider, []).append(offer.usd)
    usd = float(median(median(prices) for prices in by_provider.values()))
    return _summary(chosen, "hour", "on-demand" if recent else "on-demand, dated", usd)


def _summary(offers: list[Offer], unit: Literal["once", "hour"], condition: str, usd: float) -> Price:
    dates = sorted(o.date for o in offers)
    return Price(
        usd=usd,
        unit=unit,
        condition=condition,
        offers=len(offers),
        lowest_usd=float(min(o.usd for o in offers)),
        highest_usd=float(max(o.usd for o in offers)),
        oldest=dates[0],
        newest=dates[-1],
        providers=tuple(sorted({o.provider for o in offers})),
        sources=tuple(sorted({o.source for o in offers})),
    )


def _age_months(day: str, today: date) -> int:
    """Calendar months since `day`; a bare year counts as its January or, in the same year, as this month."""
    year, month, *_ = (int(part) for part in [*day.split("-"), "0"][:2])
    if month == 0:
        month = today.month if year == today.year else 1
    return (today.year - year) * 12 + today.month - month


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _key(name: str) -> str:
    """What is left of a name when case, punctuation and the maker's brands are ignored."""
    key = re.sub(r"[^0-9a-z]", "", name.casefold()).removesuffix("generation")
    while (rest := re.sub(r"^(nvidia|geforce|tesla)(?=.)", "", key)) != key:
        key = rest
    return key


# NVL is no form of a card that goes by the same name: an H200 NVL is always called so
_FORM = re.compile(r"sxm\d*|pcie|nvlink", re.IGNORECASE)


def _formless(gpu: Gpu) -> str:
    return _key(_FORM.sub("", gpu.name))


def _index(gpus: tuple[Gpu, ...]) -> tuple[dict[str, Gpu], dict[str, list[str]]]:
    names: dict[str, Gpu] = {}
    shared: dict[str, list[str]] = {}
    for gpu in gpus:
        for name in (gpu.name, gpu.id, *gpu.aliases):
            other = names.setdefault(_key(name), gpu)
            if other is not gpu:
                both = f"both {other.name} and {gpu.name}"
                raise CatalogueError(f'gpus.toml: "{name}" names {both}; move it to `families` of both')
        for family in gpu.families:
            shared.setdefault(_key(family), []).append(gpu.name)
    for key in names.keys() & shared.keys():
        raise CatalogueError(f'gpus.toml: "{key}" is a name of {names[key].name} and a family; keep one')
    return names, shared


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _read_gpus(entry: Traversable) -> list[Gpu]:
    return list(_convert_all(_parse(entry), "gpu", Gpu, entry.name))


def _read_offers(folder: Traversable, known: set[str]) -> Iterator[Offer]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".toml"):
            continue
        raw = _parse(entry)
        provider = raw.pop("provider", None)
        if provider is not None:
            for row in raw.get("offer", ()):
                if isinstance(row, dict):
                    row.setdefault("provider", provider)
        for number, offer in enumerate(_convert_all(raw, "offer", Offer, entry.name), 1):
            unknown = set(offer.gpus) - known
            if unknown:
                problem = f'field gpus: no card has the id "{min(unknown)}"; add it to gpus.toml or correct it'
                raise CatalogueError(f"{entry.name}: offer {number}, {problem}")
            if not offer.usd.is_finite() or offer.usd <= 0:
                raise CatalogueError(f"{entry.name}: offer {number}, field usd: {offer.usd} is no price; correct it")
            yield offer


def _parse(entry: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(entry.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogueError(f"{entry.name}: cannot be read ({error.strerror}); check the file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        what = _plain(str(error))
        raise CatalogueError(f"{entry.name}: not valid TOML ({what}); correct that line") from None


Record = TypeVar("Record", Gpu, Offer, Wheel)


def _convert_all(raw: dict[str, Any], key: str, record: type[Record], file: str) -> Iterator[Record]:
    rows = raw.get(key)
    others = sorted(raw.keys() - {key})
    if others or not isinstance(rows, list) or not rows:
        problem = f'unknown key "{others[0]}"' if others else f"no [[{key}]] entry"
        raise CatalogueError(f"{file}: {problem}; the file is a list of [[{key}]] entries")
    for number, row in enumerate(rows, 1):
        try:
            yield msgspec.convert(row, record)
        except msgspec.ValidationError as error:
            name = row.get("name", "") if isinstance(row, dict) else ""
            label = f'{key} {number} "{name}"' if isinstance(name, str) and name else f"{key} {number}"
            raise CatalogueError(f"{file}: {label}, {_problem(error)}; correct that entry") from None


def _problem(error: msgspec.ValidationError) -> str:
    """msgspec's message with the field first: "field sm_count: expected int, got str"."""
    what, _, where = str(error).partition(" - at ")
    field = where.strip("`").removeprefix("$").removeprefix(".")
    text = what[0].lower() + what[1:].replace("`", "").replace(" | null", "")
    return f"field {field}: {text}" if field else text
