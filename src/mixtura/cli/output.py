"""The output of a command, its progress bar, and checks of the files that it reads and writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

METRICS = ("log-loss", "error", "balanced-error", "f1", "cost", "precision")
STANDARD = Path("-")  # the standard input or output

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


def check_place(path: Path, *inputs: Path, ending: str | None = None, option: str = "--out") -> Path:
    """Check that a file can be written, before any work is done.

    Raises
    ------
    ValueError
        The place is one of the inputs, a folder, in no existing folder, or may not be written to.
    """
    if path == STANDARD:
        return path
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; pass the name of a file with {option}.")
    if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
        raise ValueError(f"{str(path)!r} is an input and would be overwritten; choose another file with {option}.")
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"There is no folder {str(folder)!r} to write {path.name!r} to; create it first.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"There is no permission to write {str(path)!r}; choose another place with {option}.")
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
