"""The output of a command, and its progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

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

    parts: list[Any]
    facts: dict[str, Any]


def pairs(rows: list[tuple[str, str]]) -> Table:
    """Names and values, one pair per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    return grid


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
