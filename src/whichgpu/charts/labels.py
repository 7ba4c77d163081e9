"""Where labels stand, so that none covers another one, a mark or a line, or leaves the picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import hypot
from typing import TYPE_CHECKING, NamedTuple

from whichgpu.charts.figure import BLACK, GREY, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS = (1, 2, 3.2, 4.6, 6.2)  # distances from the mark that are tried, in heights of a label
_DIRECTIONS = ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
_MARGIN = 2.0  # pixels between labels
_LEADER = 1.6  # heights of a label from which on a line leads to it


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles have a pixel in common."""
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def holds(self, other: Box) -> bool:
        """Whether another one lies inside."""
        return (
            self.left <= other.left
            and self.bottom <= other.bottom
            and other.right <= self.right
            and other.top <= self.top
        )

    def grown(self, by: float) -> Box:
        """With a margin."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)


class Anchor(NamedTuple):
    """What is labelled: its place and half its size, and the size of the label, in pixels."""

    x: float
    y: float
    radius: float
    width: float
    height: float


def places(anchors: Sequence[Anchor], inside: Box, obstacles: Iterable[Box] = ()) -> list[Box | None]:
    """A place for each label, those first in line before the others; None where there is no room.

    Every mark is an obstacle for all labels; one without a label is nothing else.
    """
    taken = [*obstacles, *(Box(one.x, one.y, one.x, one.y).grown(one.radius) for one in anchors)]
    found: list[Box | None] = []
    for anchor in anchors:
        if not anchor.width:
            found.append(None)
            continue
        free = (
            box
            for box in _candidates(anchor)
            if inside.holds(box) and not any(box.grown(_MARGIN).meets(other) for other in taken)
        )
        box = next(free, None)
        found.append(box)
        if box is not None:
            taken.append(box)
    return found


def _candidates(anchor: Anchor) -> Iterable[Box]:
    """Places around a mark, the nearest first."""
    for step in _STEPS:
        for across, up in _DIRECTIONS:
            slant = 0.75 if across and up else 1.0
            away = anchor.radius + _MARGIN + 1 + (step - 1) * anchor.height
            x = anchor.x + across * slant * (away + anchor.width / 2)
            y = anchor.y + up * slant * (away + anchor.height / 2)
            yield Box(x - anchor.width / 2, y - anchor.height / 2, x + anchor.width / 2, y + anchor.height / 2)


class Named(NamedTuple):
    """A mark with its label (empty: only an obstacle), in the units of the axes; the radius in points."""

    x: float
    y: float
    label: str
    radius: float = 4.0
    bold: bool = False


def name_points(
    axes: Axes, points: Sequence[Named], obstacles: Iterable[Box] = (), size: float = SMALL
) -> tuple[str, ...]:
    """Write the labels of points that find room, those first in line before the others; and say which found none."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    figure = axes.figure
    figure.canvas.draw()  # sets the sizes of everything
    dots = figure.dpi / 72
    window = axes.get_window_extent()
    anchors = []
    for point in points:
        x, y = axes.transData.transform((point.x, point.y))
        width, height = _size(axes, point, size) if point.label else (0.0, 0.0)
        anchors.append(Anchor(x, y, point.radius * dots, width, height))
    inside = Box(window.x0, window.y0, window.x1, window.y1)
    found = places(anchors, inside, obstacles)
    back = axes.transData.inverted()
    for point, anchor, box in zip(points, anchors, found, strict=True):
        if box is None:
            continue
        middle = ((box.left + box.right) / 2, (box.bottom + box.top) / 2)
        x, y = back.transform(middle)
        written = axes.text(
            x, y, point.label, fontsize=size, ha="center", va="center", color=BLACK, zorder=6,
            fontweight="bold" if point.bold else "normal",
        )  # fmt: skip
        written.set_path_effects([withStroke(linewidth=2.5, foreground="white")])  # thin lines may pass behind it
        gap = hypot(
            max(box.left - anchor.x, anchor.x - box.right, 0), max(box.bottom - anchor.y, anchor.y - box.top, 0)
        )
        if gap > _LEADER * anchor.height + anchor.radius:
            end = (min(max(anchor.x, box.left), box.right), min(max(anchor.y, box.bottom), box.top))
            (x1, y1) = back.transform(end)
            axes.plot([point.x, x1], [point.y, y1], color=GREY, linewidth=0.7, zorder=2)
    return tuple(point.label for point, box in zip(points, found, strict=True) if box is None and point.label)


def _size(axes: Axes, point: Named, size: float) -> tuple[float, float]:
    """Width and height of a label in pixels."""
    drawn = axes.text(0, 0, point.label, fontsize=size, fontweight="bold" if point.bold else "normal", transform=None)
    extent = drawn.get_window_extent()
    drawn.remove()
    return extent.width, extent.height
