"""What all pictures share: colours, sizes of letters, titles, the line with the source, and how a file is written."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from whichgpu import output_file
from whichgpu.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg")
# Okabe and Ito, "Color universal design" (2008): told apart with every kind of colour-blindness
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE = "#666666", "#DDDDDD"
SERIES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)  # in this order
MARKS = ("o", "s", "^", "D", "v", "P", "X")
TITLE, LABEL, SMALL = 15, 11, 9  # points
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # behind letters that a line would run through
_DOTS_PER_INCH = 160
_LEFT = 0.22  # inches of margin
_WIDE = 0.53  # of DejaVu Sans: the width of a letter by its size
_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": LABEL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "svg.hashsalt": "whichgpu",  # the same picture is the same file
}


def check_file(path: Path) -> None:
    """Raise InputError unless a picture can be written there, and MissingExtraError where there is no matplotlib."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: pictures are written as PNG or SVG; name a file that ends in .png or .svg")
    output_file.check_path(path, "picture")
    check_installed()


def check_installed() -> None:
    """Raise MissingExtraError where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("pictures need matplotlib, which is not installed; pip install 'whichgpu[charts]'")


@contextmanager
def style() -> Iterator[None]:
    """What is drawn and written inside has the style of all pictures; nothing else that matplotlib draws has."""
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white")


def title(figure: Figure, words: str, below: str) -> None:
    """The title at the top, and below it in a line or two what is shown."""
    _, height = figure.get_size_inches()
    figure.text(*_at(figure, height - 0.16), words, fontsize=TITLE, fontweight="bold", va="top")
    figure.text(*_at(figure, height - 0.48), _wrapped(figure, below, LABEL), fontsize=LABEL, color=GREY, va="top")


def source(figure: Figure, words: str) -> None:
    """The line at the bottom, or two, that says where the figures come from."""
    said = _wrapped(figure, f"{words} whichgpu {metadata.version('whichgpu')}.", SMALL)
    figure.text(*_at(figure, 0.1), said, fontsize=SMALL, color=GREY, va="bottom")


def _at(figure: Figure, inches: float) -> tuple[float, float]:
    """The left margin, so many inches from the bottom."""
    width, height = figure.get_size_inches()
    return _LEFT / width, inches / height


def _wrapped(figure: Figure, words: str, size: float) -> str:
    """Words in lines that the picture has room for."""
    inches = figure.get_size_inches()[0] - 2 * _LEFT
    return textwrap.fill(words, int(inches * 72 / (_WIDE * size)))


def place(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at inches from the lower left corner of the picture."""
    whole_width, whole_height = figure.get_size_inches()
    return figure.add_axes((left / whole_width, bottom / whole_height, width / whole_width, height / whole_height))


def save(figure: Figure, path: Path) -> None:
    """Write a picture in one atomic step; raises InputError where that cannot be."""
    kind = path.suffix.lower().removeprefix(".")
    about = {"Date": None} if kind == "svg" else {"Software": "whichgpu"}
    output_file.write(path, "picture", lambda file: figure.savefig(file, format=kind, metadata=about))


def axis_titles(axes: Axes, across: str, up: str) -> None:
    """What the axes show: below, and above the upright one, so that both are read without turning the head."""
    axes.set_xlabel(across)
    axes.set_title(up, fontsize=LABEL, loc="left", color=BLACK)


def log_ticks(axis: Axis, say: Callable[[float], str], subs: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Ticks at 1, 2, 5, 10, ... in words, and nothing between them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: PLC0415

    axis.set_major_locator(LogLocator(subs=tuple(subs)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: say(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def ticks(axis: Axis, places: Sequence[float], say: Callable[[float], str]) -> None:
    """Ticks at just these places, in words."""
    from matplotlib.ticker import NullFormatter, NullLocator  # noqa: PLC0415

    axis.set_ticks(places, labels=[say(place) for place in places])
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def key(axes: Axes, entries: Sequence[tuple[str, str, bool, str]], size: float) -> None:
    """What marks mean, in a line: mark, colour, whether it is filled, and words."""
    axes.set_axis_off()
    width = axes.get_window_extent().width
    axes.set_xlim(0, width)
    axes.set_ylim(0, 1)
    dots = axes.figure.dpi / 72
    x = 5 * dots
    for mark, colour, filled, words in entries:
        axes.scatter([x], [0.5], s=40, marker=mark, facecolors=colour if filled else "white", edgecolors=colour)
        said = axes.text(x + 7 * dots, 0.5, words, fontsize=size, va="center_baseline")
        x += said.get_window_extent().width + 24 * dots


def end_labels(axes: Axes, ends: Sequence[tuple[float, str, str]], size: float) -> None:
    """Names to the right of the ends of curves (height, name, colour), apart from each other where they would meet."""
    dots = axes.figure.dpi / 72
    window, least = axes.get_window_extent(), 1.25 * size * dots
    places: list[float] = []
    for height, name, colour in sorted(ends):
        wanted = float(axes.transData.transform((axes.get_xlim()[1], height))[1])
        place = max(wanted, places[-1] + least) if places else wanted
        places.append(place)
        axes.annotate(
            name, (window.x1 + 6 * dots, place), xycoords="figure pixels", fontsize=size, color=colour,
            fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip
