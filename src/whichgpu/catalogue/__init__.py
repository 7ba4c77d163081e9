"""The cards people train on, what they cost, and whether a PyTorch build can use a card: all from data files.

Facts live in `data/gpus.toml`, `data/prices/*.toml` and `data/torch_wheels.toml`, each row with its source and date, and in
the files of a lab's own (`loading`). Nothing here opens a connection or imports torch.

Memory. `Gpu.memory_bytes` is what the driver shows to PyTorch, the smallest where several figures are known.
Newer drivers keep back more than older ones, so a figure known only from an older driver is lowered by the
largest drop seen on the same architecture, and a card without any figure gets the worst share of its family
(`memory_basis` = "derived").

Not covered: multi-GPU topologies, MIG slices, cards with modified memory, and more than the figures of cards
without CUDA.

`records` says what a row is, `cards` finds cards by name, `prices` makes one price with its interval from dated offers,
`units` catches prices in the wrong unit, `plausible` figures of cards, `loading` and `files` read, `wheels` knows the builds of PyTorch.
"""

from __future__ import annotations

from whichgpu.catalogue.cards import Catalogue
from whichgpu.catalogue.loading import load, own_folder, shipped, user_folder, using
from whichgpu.catalogue.prices import Kind, Price, interval
from whichgpu.catalogue.records import Gpu, Offer, SecondSource
from whichgpu.catalogue.wheels import lacking, supports

__all__ = [
    "Catalogue",
    "Gpu",
    "Kind",
    "Offer",
    "Price",
    "SecondSource",
    "interval",
    "lacking",
    "load",
    "own_folder",
    "shipped",
    "supports",
    "user_folder",
    "using",
]
