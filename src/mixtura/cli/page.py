"""Pieces of a report page: escaped text, tables, and pictures as SVG that follow the colours of the page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

# Okabe and Ito (2008), as in the plots of the library; from the ninth class on colours come again with another shape.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#B8A800", "#666666")
SHAPES = ("circle", "square", "diamond", "triangle")
WIDTH, HEIGHT, MARGIN = 640, 420, 46

STYLE = """
:root{--back:#fff;--text:#1a1a1a;--soft:#666;--line:#d5d5d5;--card:#f6f7f9;--accent:#0072B2}
@media(prefers-color-scheme:dark){:root{--back:#14171a;--text:#e8e8e8;--soft:#a0a0a0;--line:#3a3f45;--card:#1d2125;
--accent:#56B4E9}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;background:var(--back);color:var(--text);margin:0 auto;max-width:60rem;
padding:1rem}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
section{break-inside:avoid}p{max-width:46rem}.soft{color:var(--soft);font-size:.9rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.cell{position:relative;text-align:center}.fill{position:absolute;inset:0;background:var(--accent)}
.cell b{position:relative;font-weight:normal}
.bar{display:inline-block;height:.7rem;background:var(--accent);vertical-align:middle;min-width:1px}
svg{max-width:100%;height:auto;background:var(--card);border-radius:6px}
svg text{fill:var(--text);font:12px system-ui,sans-serif}svg .axis{stroke:var(--line);fill:none}
svg .guide{stroke:var(--soft);stroke-dasharray:4 4;fill:none}svg .curve{fill:none;stroke-width:2}
.point{stroke:var(--back);stroke-width:.5;cursor:pointer}.point:focus,.point.on{stroke:var(--text);stroke-width:2.5;
outline:none}
pre{background:var(--card);padding:.8rem;overflow-x:auto;border-radius:6px;font-size:.85rem}
#detail{background:var(--card);border-left:4px solid var(--accent);padding:.5rem .8rem;min-height:5.5rem;
font-size:.9rem;white-space:pre-wrap;overflow-wrap:anywhere}
@media(max-width:600px){svg text{font-size:19px}}
@media print{body{max-width:none}#detail{display:none}
:root{--back:#fff;--text:#000;--card:#fff;--soft:#444;--line:#bbb}}
"""

SCRIPT = """
(function(){var data=JSON.parse(document.getElementById('samples').textContent),box=document.getElementById('detail');
function show(point){var old=document.querySelector('.point.on');if(old){old.classList.remove('on')}
point.classList.add('on');box.textContent=data[+point.getAttribute('data-sample')]}
document.querySelectorAll('.point').forEach(function(point){['mouseenter','focus','click'].forEach(function(name){
point.addEventListener(name,function(){show(point)})})})})();
"""


def escaped(value: Any) -> str:
    """Text that a browser shows as it is."""
    return html.escape(str(value), quote=True)


def page(title: str, sections: Sequence[str], samples: Sequence[str]) -> str:
    """A whole page without links to other files; `samples` are the texts of the points that can be pointed at."""
    data = json.dumps(list(samples)).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    script = f"<script type='application/json' id='samples'>{data}</script><script>{SCRIPT}</script>" if samples else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none';style-src 'unsafe-inline';"
        "script-src 'unsafe-inline'\">"
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head><body><h1>{escaped(title)}</h1>"
        f"{''.join(sections)}{script}</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str, soft: bool = False) -> str:
    return f"<p{' class=soft' if soft else ''}>{escaped(text)}</p>"


def facts(pairs: Sequence[tuple[str, Any]]) -> str:
    """Names and values, one pair per line."""
    body = "".join(f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>" for name, value in pairs)
    return f"<table class='facts'>{body}</table>"


def table(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table of text; cells that are already HTML are of class `Cell`."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


class Cell(str):
    """HTML of a table cell, with its tag."""

    __slots__ = ()


def _cell(value: Any) -> str:
    return value if isinstance(value, Cell) else f"<td>{escaped(value)}</td>"


def shaded(text: Any, share: float) -> Cell:
    """A cell with a background between none and the accent colour."""
    return Cell(f"<td class=cell><i class=fill style='opacity:{0.75 * share:.2f}'></i><b>{escaped(text)}</b></td>")


def bar(share: float, text: str) -> Cell:
    """A cell with a bar, of length 1 at most, and a number."""
    return Cell(f"<td style='text-align:left'><i class=bar style='width:{8 * share:.2f}rem'></i> {escaped(text)}</td>")


# ---- pictures --------------------------------------------------------------------------------------------------------


class Axes:
    """Positions in a picture of numbers in two ranges."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float], labels: tuple[str, str]):
        self.across, self.up, self.labels = across, up, labels
        self.parts: list[str] = []

    def x(self, value: Any) -> Any:
        low, high = self.across
        return MARGIN + (np.asarray(value) - low) / ((high - low) or 1.0) * (WIDTH - 2 * MARGIN)

    def y(self, value: Any) -> Any:
        low, high = self.up
        return HEIGHT - MARGIN - (np.asarray(value) - low) / ((high - low) or 1.0) * (HEIGHT - 2 * MARGIN)

    def line(self, xs: Any, ys: Any, kind: str = "curve", colour: str = "") -> None:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(self.x(xs), self.y(ys), strict=True))
        stroke = f" stroke='{colour}'" if colour else ""
        self.parts.append(f"<polyline class='{kind}'{stroke} points='{points}'/>")

    def point(self, x: float, y: float, number: int, sample: int | None = None, size: float = 4.0) -> None:
        """A mark in the colour and shape of a class; with a sample it can be pointed at."""
        left, top = float(self.x(x)), float(self.y(y))
        mark = f"fill='{COLOURS[number % len(COLOURS)]}'"
        if sample is not None:
            mark += f" class='point' tabindex='0' data-sample='{sample}'"
        shape = SHAPES[number // len(COLOURS) % len(SHAPES)]
        if shape == "circle":
            self.parts.append(f"<circle cx='{left:.1f}' cy='{top:.1f}' r='{size}' {mark}/>")
            return
        outlines = {
            "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
            "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
            "triangle": [(0, -1.3), (1.2, 1), (-1.2, 1)],
        }
        corners = " ".join(f"{left + size * dx:.1f},{top + size * dy:.1f}" for dx, dy in outlines[shape])
        self.parts.append(f"<polygon points='{corners}' {mark}/>")

    def text(self, x: float, y: float, words: str, anchor: str = "middle") -> None:
        self.parts.append(f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'>{escaped(words)}</text>")

    def picture(self, title: str) -> str:
        """The SVG with its axes."""
        bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN
        frame = f"<path class='axis' d='M{MARGIN} {MARGIN / 2:.0f}V{bottom}H{right}'/>"
        for share in (0.0, 0.5, 1.0):
            across = self.across[0] + share * (self.across[1] - self.across[0])
            up = self.up[0] + share * (self.up[1] - self.up[0])
            self.text(float(self.x(across)), bottom + 16, f"{across:.3g}")
            self.text(MARGIN - 4, float(self.y(up)) + 4, f"{up:.3g}", "end")
        self.text(WIDTH / 2, HEIGHT - 8, self.labels[0])
        self.text(MARGIN, 16, self.labels[1], "start")
        view = f"viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escaped(title)}'"
        return f"<svg xmlns='http://www.w3.org/2000/svg' {view}>{frame}{''.join(self.parts)}</svg>"


def legend(names: Sequence[Any]) -> str:
    """The marks of the classes."""
    items = []
    for number, name in enumerate(names):
        axes = Axes((0, 1), (0, 1), ("", ""))
        axes.x = axes.y = lambda value: 8.0  # type: ignore[method-assign]
        axes.point(0, 0, number, size=5)
        items.append(
            f"<span style='white-space:nowrap;margin-right:1rem'><svg width='16' height='16' "
            f"style='vertical-align:middle;background:none'>{axes.parts[0]}</svg> {escaped(name)}</span>"
        )
    return f"<p class=soft>{''.join(items)}</p>"
