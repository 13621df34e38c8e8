"""The output of a command: text, pieces of a page, a progress bar; and checks of the files that it reads and writes."""

from __future__ import annotations

import html
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

METRICS = ("log-loss", "error", "balanced-error", "f1", "cost", "precision")
STANDARD = Path("-")  # the standard input or output
LONGEST_NAME = 48  # in tables and legends of a page

Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """The output of a command.

    Parameters
    ----------
    parts : list
        For people: sentences (str), lines that are not wrapped (Text), and tables of rich.
    facts : dict
        For ``--json``.
    """

    parts: list[RenderableType]
    facts: Mapping[str, object]


def pairs(rows: list[tuple[str, str]]) -> Table:
    """Names and values, one pair per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    return grid


def percents(value: float, ends: Sequence[float] | None) -> str:
    """A share in per cent, with its interval if there is one."""
    return f"{100 * value:.1f} %" + (f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else "")


def decimals(value: float, ends: Sequence[float] | None) -> str:
    """A number with its interval, if there is one."""
    return f"{value:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")


@contextmanager
def progress(n_steps: int) -> Iterator[Say]:
    """A bar on the error stream, if that is a terminal; the function that is yielded names the next step."""
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    with bar:
        task, started = bar.add_task("", total=n_steps), False

        def say(text: str) -> None:
            nonlocal started
            bar.update(task, description=text.replace("[", "\\["), advance=1 if started else 0)
            started = True

        yield say


def check_table(path: Path) -> None:
    """Raise a ValueError if there is no file to read."""
    if path == STANDARD:
        return
    if not path.exists():
        raise ValueError(f"There is no file {str(path)!r}.")
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; pass a CSV or Parquet file.")
    if path.stat().st_size == 0:
        raise ValueError(f"The file {str(path)!r} is empty.")


def check_place(path: Path, *inputs: Path, ending: str | None = None) -> Path:
    """Check that a file can be written, before any work is done.

    Raises
    ------
    ValueError
        The place is one of the inputs, a folder, in no existing folder, or may not be written to.
    """
    if path == STANDARD:
        return path
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; pass the name of a file with --out.")
    if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
        raise ValueError(f"{str(path)!r} is an input and would be overwritten; choose another file with --out.")
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"There is no folder {str(folder)!r} to write {path.name!r} to; create it first.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"There is no permission to write {str(path)!r}; choose another place with --out.")
    if ending is not None and path.suffix.lower() != ending:
        raise ValueError(f"The name of the file must end in {ending}; got {str(path)!r}.")
    return path


def check_metric(metric: str) -> str:
    """Raise a ValueError unless this is the name of a metric, with a number where it needs one."""
    name, colon, text = metric.partition(":")
    try:
        is_right = name in METRICS and (name in ("cost", "precision")) == bool(colon)
        is_right = is_right and (not colon or 0 < float(text) <= (1 if name == "precision" else float("inf")))
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(
            f"--metric must be log-loss, error, balanced-error, f1, cost:10 or precision:0.9; got {metric!r}."
        )
    return metric


# ---- Pages -----------------------------------------------------------------------------------------------------------


def part_of_page(name: str) -> str:
    """The text of a file beside this one."""
    return Path(__file__).with_name(name).read_text("utf-8")


def escaped(value: object) -> str:
    """Text that a browser shows as it is."""
    return html.escape(str(value), quote=True)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}\u00a0%"


def short(name: object, longest: int = LONGEST_NAME) -> str:
    """A name for tables and legends."""
    text = str(name)
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def page(title: str, beginning: str, sections: Sequence[tuple[str, str]], samples: Sequence[object]) -> str:
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


def facts(pairs: Sequence[tuple[str, object]]) -> str:
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


def table(heads: Sequence[object], rows: Sequence[Sequence[object]], own: int | None = None) -> str:
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


def _cell(value: object) -> str:
    return value if isinstance(value, Cell) else f"<td>{escaped(short(value))}</td>"


def shaded(text: object, share: float) -> Cell:
    """A cell with a background between none and the accent colour."""
    opacity = f"opacity:calc({share:.2f}*var(--shade))"
    return Cell(f"<td class=cell><i class=fill style='{opacity}'></i><b>{escaped(text)}</b></td>")


def bar(share: float, text: str) -> Cell:
    """A cell with a bar, of length 1 at most, and a number."""
    return Cell(f"<td class=text><i class=bar style='width:{7 * share:.2f}rem'></i> {escaped(text)}</td>")


def button(text: str, sample: int) -> Cell:
    """A cell that shows the details of a sample when it is clicked."""
    return Cell(f"<td><button data-sample='{sample}'>{escaped(text)}</button></td>")
