"""Classes of cards that dispatch alike."""

from __future__ import annotations

import pytest

from whichgpu import catalogue
from whichgpu.capability import CLASSES, class_of, parse


@pytest.mark.parametrize(
    ("capability", "name"),
    [((3, 7), "6.0"), ((5, 2), "6.0"), ((6, 1), "6.0"), ((7, 0), "7.0"), ((7, 5), "7.0"), ((8, 0), "8.0"),
     ((8, 6), "8.6"), ((8, 9), "8.6"), ((12, 0), "8.6"), ((12, 1), "8.6"), ((9, 0), "9.0"), ((10, 0), "9.0"),
     ((10, 3), "9.0")],
)  # fmt: skip
def test_cards_belong_to_the_class_that_dispatches_alike(capability: tuple[int, int], name: str) -> None:
    """Consumer Blackwell goes with consumer Ampere, datacentre Blackwell with Hopper."""
    assert name == class_of(capability)


def test_every_class_stands_for_itself() -> None:
    """The name of a class is a capability of that class."""
    assert list(CLASSES) == [class_of(parse(name)) for name in CLASSES]


def test_every_card_of_the_catalogue_has_a_class() -> None:
    """No CUDA card falls outside the classes that are traced."""
    cards = [card for card in catalogue.load().gpus if card.cuda]

    assert cards
    assert {class_of(card.capability) for card in cards} <= set(CLASSES)


def test_capabilities_are_read_as_two_numbers() -> None:
    """ "12.0" is twelve and zero."""
    assert (12, 0) == parse("12.0")
