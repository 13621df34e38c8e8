"""Colours, markers and names of all plots: colour-blind safe, and different for many classes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# The colour-blind safe palette of Okabe and Ito (2008). From the ninth class on, colours repeat with other markers and
# line styles, so that forty classes all look different.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
GREY = "#777777"


LineType: TypeAlias = str | tuple[int, tuple[int, ...]]


def colour(number: int) -> str:
    return COLOURS[int(number) % len(COLOURS)]


def marker(number: int) -> str:
    return MARKERS[int(number) % len(MARKERS)]


def line(number: int) -> LineType:
    """The style of a line, which changes when the colours repeat."""
    return LINES[int(number) // len(COLOURS) % len(LINES)]


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (6.4, 4.8)) -> tuple[Axes, Figure]:
    """The given axes, or those of a new figure, and their figure."""
    ax = plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax
    return ax, cast("Figure", ax.figure)


def names_of(model: object, n_features: int) -> list[str]:
    """Names of the features of a fitted model."""
    known = vars(model).get("feature_names_in_")
    return [f"x{j}" for j in range(n_features)] if known is None else [str(name) for name in known]


def outside_legend(ax: Axes, n_entries: int, title: str | None = None) -> None:
    """A legend that does not cover data: next to the axes if it has many entries."""
    if n_entries > 6:
        legend = ax.legend(title=title, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize=8)
    else:
        legend = ax.legend(title=title, loc="best", framealpha=0.9, fontsize=9)
    legend.get_title().set_color("black")


def spread_out(values: Sequence[float] | np.ndarray, width: float) -> np.ndarray:
    """Heights that separate points with similar values, within +- width."""
    ordered = np.argsort(values, kind="stable")
    span = float(np.ptp(values)) or 1.0
    bins = np.floor((np.asarray(values) - np.min(values)) / span * 60).astype(int)
    heights = np.zeros(len(bins))
    for number in np.unique(bins):
        members = ordered[bins[ordered] == number]
        steps = (np.arange(len(members)) + 1) // 2 * np.where(np.arange(len(members)) % 2, 1, -1)
        heights[members] = steps
    most = np.abs(heights).max() or 1.0
    return heights * min(width / most, width / 6)


INK = "#0a0b0c"  # a colour of nothing else, which becomes the colour of the text around a picture


def svg_of(draw: Callable[[Figure], object], size: tuple[float, float]) -> str:
    """The picture that draw(figure) makes as SVG for a page: its text is text, in the colour of the page.

    Parameters
    ----------
    draw : callable
    size : pair of float
        Width and height in inches.
    """
    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor")
    plain = {
        "svg.fonttype": "none",
        "svg.hashsalt": "mixtura",
        "text.parse_math": False,
        "axes.facecolor": "none",
        "legend.facecolor": "white",
    }
    settings = plain | dict.fromkeys(ink, INK) | {"legend.labelcolor": "black", "axes.titlesize": 10}
    with plt.rc_context(cast("dict[RcKeyType, object]", settings)):
        figure = plt.figure(figsize=size, layout="constrained")
        try:
            draw(figure)
            file = io.StringIO()
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        finally:
            plt.close(figure)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    return re.sub(r' width="[\d.]+pt"', "", re.sub(r' height="[\d.]+pt"', "", text, count=1), count=1).replace(
        INK, "currentColor"
    )
