"""What the catalogue's files say: cards and offers, each row with its source and date."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from whichgpu.errors import CatalogueError

__all__ = ["Capability", "Count", "Day", "Gpu", "Offer", "OfferKind", "Positive", "SecondSource", "Text", "version"]

Text = Annotated[str, msgspec.Meta(min_length=1)]
Day = Annotated[str, msgspec.Meta(pattern=r"^20\d\d(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$")]
Capability = Annotated[str, msgspec.Meta(pattern=r"^\d{1,2}\.\d$")]
Positive = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]  # finite
Count = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]  # JSON has no more
HardwareDtype = Literal["tf32", "fp16", "bf16", "fp8"]
OfferKind = Literal["buy-new", "buy-used", "cloud-on-demand", "cloud-spot"]


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
        return version(self.compute_capability)


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One price as it was read: USD for one card, or for an hour of one card of whatever instance."""

    # ids; several where the source leaves the form open
    gpus: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    kind: OfferKind
    provider: Text
    usd: Decimal
    count: Count = 1  # cards in the instance that was priced: the least that can be rented of it
    instance: Text | None = None  # the provider's name of it
    region: Text | None = None  # where, in the provider's words; None where the source does not say
    date: Day
    source: Text
    minimum: bool = False  # the lowest of many listings, no typical price
    unusual: bool = False  # far from all other prices of the card, and right all the same
    note: str = ""

    @property
    def rental(self) -> bool:
        """Whether the price is for an hour."""
        return self.kind.startswith("cloud")

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it the same offer as another, at whatever price and from whatever source."""
        where = (self.instance, self.region, self.count)
        return (self.provider, self.kind, tuple(sorted(self.gpus)), *where, self.minimum, self.date)


def version(text: str) -> tuple[int, int]:
    """A version or compute capability of two numbers."""
    major, minor = text.split(".")
    return int(major), int(minor)
