"""The cards that several questions take: the one whose rules hold by default, and the one that speeds are compared with."""

from __future__ import annotations

from whichgpu import arguments, catalogue
from whichgpu.errors import InputError

DEFAULT_CARD = "H200"  # whose rules hold where no card is named: under --memory-limit, and in `explain`


def baseline_card(cards: catalogue.Catalogue, name: str | None) -> catalogue.Gpu | None:
    """The card of a name that speeds are compared with; InputError where no speed of it can be predicted."""
    if name is None:
        return None
    arguments.check_gpu(name)
    card = cards.find(name)
    if not card.cuda:
        raise InputError(f"{card.name} has no CUDA, so that its speed is not known; take another --baseline")
    return card
