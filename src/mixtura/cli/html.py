"""Pieces of a report page: escaped text, tables, and pictures as SVG that follow the colours of the page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

N_COLOURS = 8  # of report.css; every class has a shape as well, so that no class is told by its colour alone
OUTLINES = (  # corners in units of the size; a circle first
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
)
LONGEST_NAME = 40
MARGIN = 46


def part_of_page(name: str) -> str:
    """The text of a file beside this one."""
    return Path(__file__).with_name(name).read_text("utf-8")


def escaped(value: Any) -> str:
    """Text that a browser shows as it is."""
    return html.escape(str(value), quote=True)


def percent(share: Any, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}\u00a0%"


def short(name: Any, longest: int = LONGEST_NAME) -> str:
    """A name for tables and legends."""
    text = str(name)
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def page(title: str, beginning: str, sections: Sequence[tuple[str, str]], samples: Sequence[Any]) -> str:
    """A whole page without links to other files.

    Parameters
    ----------
    title : str
    beginning : str
        HTML between the title and the list of contents.
    sections : sequence of (title, HTML)
    samples : sequence
        Details of the points that can be pointed at; without any the page has no script.
    """
    data = json.dumps(list(samples)).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    script = f"<script type='application/json' id='samples'>{data}</script>" if samples else ""
    script += f"<script>{part_of_page('report.js')}</script>" if samples else ""
    places = [re.sub("[^a-z]+", "-", name.lower()) for name, _ in sections]
    contents = "".join(
        f"<a href='#{place}'>{escaped(name)}</a>" for place, (name, _) in zip(places, sections, strict=True)
    )
    body = "".join(
        f"<section id='{place}'><h2>{escaped(name)}</h2>{text}</section>"
        for place, (name, text) in zip(places, sections, strict=True)
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none';style-src 'unsafe-inline';"
        "script-src 'unsafe-inline'\">"
        f"<title>{escaped(title)}</title><style>{part_of_page('report.css')}</style></head><body><header><h1>{escaped(title)}</h1>"
        f"{beginning}<nav>{contents}</nav></header><main>{body}</main>{script}</body></html>\n"
    )


def paragraph(text: str, soft: bool = False) -> str:
    return f"<p{' class=soft' if soft else ''}>{escaped(text)}</p>"


def heading(text: str) -> str:
    return f"<h3>{escaped(text)}</h3>"


def facts(pairs: Sequence[tuple[str, Any]]) -> str:
    """Names and values, one pair per line."""
    body = "".join(f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>" for name, value in pairs)
    return f"<table class='facts'>{body}</table>"


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Large numbers, each with a line that says what it is."""
    return (
        "<div class=tiles>"
        + "".join(
            f"<div class=tile><b>{escaped(value)}</b><span>{escaped(name)}</span></div>" for value, name in numbers
        )
        + "</div>"
    )


def table(heads: Sequence[Any], rows: Sequence[Sequence[Any]], own: int | None = None) -> str:
    """A table of text; cells that are already HTML are of class `Cell`. The row `own` is bold."""
    head = "".join(f"<th title='{escaped(name)}'>{escaped(short(name))}</th>" for name in heads)
    body = "".join(
        f"<tr{' class=own' if number == own else ''}>" + "".join(_cell(value) for value in row) + "</tr>"
        for number, row in enumerate(rows)
    )
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


class Cell(str):
    """HTML of a table cell, with its tag."""

    __slots__ = ()


def _cell(value: Any) -> str:
    return value if isinstance(value, Cell) else f"<td>{escaped(short(value))}</td>"


def shaded(text: Any, share: float) -> Cell:
    """A cell with a background between none and the accent colour."""
    opacity = f"opacity:calc({share:.2f}*var(--shade))"
    return Cell(f"<td class=cell><i class=fill style='{opacity}'></i><b>{escaped(text)}</b></td>")


def bar(share: float, text: str) -> Cell:
    """A cell with a bar, of length 1 at most, and a number."""
    return Cell(f"<td class=text><i class=bar style='width:{7 * share:.2f}rem'></i> {escaped(text)}</td>")


def button(text: str, sample: int) -> Cell:
    """A cell that shows the details of a sample when it is clicked."""
    return Cell(f"<td><button data-sample='{sample}'>{escaped(text)}</button></td>")


# ---- pictures --------------------------------------------------------------------------------------------------------


def mark(left: float, top: float, number: int, size: float, attributes: str = "class='mark {tint}'") -> str:
    """A mark at a place of a picture, in the colour and the shape of a class."""
    attributes = attributes.replace("{tint}", tint(number))
    outline = OUTLINES[(number + number // N_COLOURS) % len(OUTLINES)]
    if not outline:
        return f"<circle cx='{left:.1f}' cy='{top:.1f}' r='{size}' {attributes}/>"
    corners = " ".join(f"{left + size * dx:.1f},{top + size * dy:.1f}" for dx, dy in outline)
    return f"<polygon points='{corners}' {attributes}/>"


def tint(number: int) -> str:
    """The style class of a colour."""
    return f"k{number % N_COLOURS}"


class Axes:
    """A picture with two axes; positions are numbers in two ranges."""

    def __init__(
        self,
        across: tuple[float, float],
        up: tuple[float, float],
        labels: tuple[str, str],
        size: tuple[int, int] = (640, 420),
    ):
        self.across, self.up, self.labels = across, up, labels
        self.width, self.height = size
        self.parts: list[str] = []

    def x(self, value: Any) -> Any:
        low, high = self.across
        return MARGIN + (np.asarray(value) - low) / ((high - low) or 1.0) * (self.width - 1.5 * MARGIN)

    def y(self, value: Any) -> Any:
        low, high = self.up
        return self.height - MARGIN - (np.asarray(value) - low) / ((high - low) or 1.0) * (self.height - 2 * MARGIN)

    def line(self, xs: Any, ys: Any, kind: str = "curve") -> None:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(self.x(xs), self.y(ys), strict=True))
        self.parts.append(f"<polyline class='{kind}' points='{points}'/>")

    def outline(self, points: np.ndarray, kind: str) -> None:
        """A closed curve through points (n, 2)."""
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(self.x(points[:, 0]), self.y(points[:, 1]), strict=True))
        self.parts.append(f"<polygon class='{kind}' points='{corners}'/>")

    def box(self, left: float, right: float, bottom: float, top: float, kind: str) -> None:
        x, y = float(self.x(left)), float(self.y(top))
        width, height = float(self.x(right)) - x, float(self.y(bottom)) - y
        self.parts.append(f"<rect class='{kind}' x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}'/>")

    def dot(self, x: float, y: float, hint: str) -> None:
        """A dot with a text that appears under the pointer."""
        place = f"cx='{float(self.x(x)):.1f}' cy='{float(self.y(y)):.1f}'"
        self.parts.append(f"<circle class='dot' {place} r='4.5'><title>{escaped(hint)}</title></circle>")

    def text(self, x: float, y: float, words: str, anchor: str = "middle", kind: str = "") -> None:
        style = f" class='{kind}'" if kind else ""
        self.parts.append(f"<text{style} x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'>{escaped(words)}</text>")

    def picture(self, title: str, ticks: bool = True) -> str:
        """The SVG with its axes."""
        bottom, right = self.height - MARGIN, self.width - MARGIN / 2
        frame = f"<path class='axis' d='M{MARGIN} {MARGIN - 10}V{bottom}H{right:.0f}'/>"
        if ticks:
            for value in round_numbers(*self.across):
                self.text(float(self.x(value)), bottom + 16, f"{value:g}")
            for value in round_numbers(*self.up):
                self.text(MARGIN - 6, float(self.y(value)) + 4, f"{value:g}", "end")
        self.text((MARGIN + right) / 2, self.height - 8, self.labels[0], kind="name")
        self.text(10, 20, self.labels[1], "start", kind="name")
        view = f"viewBox='0 0 {self.width} {self.height}' role='img' aria-label='{escaped(title)}'"
        return f"<svg xmlns='http://www.w3.org/2000/svg' {view}>{frame}{''.join(self.parts)}</svg>"


def round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """At most this many numbers with few digits between two others."""
    if not high > low:
        return [low]
    rough = (high - low) / (most - 1)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [float(f"{number * step:.6g}") for number in range(first, last + 1)]


def legend(names: Sequence[Any]) -> str:
    """The marks of the classes."""
    items = (
        f"<span><svg viewBox='0 0 16 16'>{mark(8, 8, number, 5)}</svg>{escaped(short(name))}</span>"
        for number, name in enumerate(names)
    )
    return f"<div class=legend>{''.join(items)}</div>"
