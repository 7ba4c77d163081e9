"""Classes of cards that PyTorch dispatches alike, by compute capability.

A trace is made for a class, not for a card: which attention kernel is taken, and for which dtypes, is what differs.
"""

from __future__ import annotations

Capability = tuple[int, int]

# One capability stands for each class; the traces carry its name.
CLASSES = ("6.0", "7.0", "8.0", "8.6", "9.0")


def class_of(capability: Capability) -> str:
    """The class of a card: Pascal and older, Volta and Turing, GA100, consumer cards since Ampere, Hopper and its like.

    Consumer Blackwell (12.x) goes with 8.6 and 8.9, datacentre Blackwell (10.x) with Hopper, as in sdp_utils.cpp.
    """
    if capability < (7, 0):
        return "6.0"
    if capability < (8, 0):
        return "7.0"
    if capability == (8, 0):
        return "8.0"
    return "9.0" if capability[0] in (9, 10) else "8.6"


def parse(name: str) -> Capability:
    """From "9.0"."""
    major, minor = name.split(".")
    return int(major), int(minor)
