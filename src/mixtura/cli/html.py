"""Pieces of a report page: escaped text and tables."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONGEST_NAME = 40


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
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none';img-src data:;"
        "style-src 'unsafe-inline';"
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
