"""Tables: text in a terminal, HTML in a notebook, pandas data frames."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def data_frame(columns: Mapping[str, Any], index: Any = None) -> Any:
    """A pandas data frame of named columns.

    Raises
    ------
    ModuleNotFoundError
        pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ModuleNotFoundError(
            "Data frames need pandas; install it with: pip install pandas", name="pandas"
        ) from error
    return pd.DataFrame(dict(columns), index=index)


@dataclass(frozen=True)
class Table:
    """Named columns of equal length.

    Parameters
    ----------
    columns : dict of str to list
        The values of each column, from top to bottom. Numbers are rounded only where they are shown.
    shown : sequence of str, optional
        The columns that text and HTML show; None shows all.
    """

    columns: Mapping[str, Sequence[Any]]
    shown: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def visible(self) -> dict[str, list[str]]:
        """The text of each visible entry."""
        names = self.columns if self.shown is None else self.shown
        return {name: column_text(self.columns[name]) for name in names}

    def __str__(self) -> str:
        columns = [[str(name), *cells] for name, cells in self.visible.items()]
        widths = [max(len(cell) for cell in column) for column in columns]
        lines = zip(*columns, strict=True)
        return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)

    def _repr_html_(self) -> str:
        columns = self.visible
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in columns)
        rows = zip(*columns.values(), strict=True)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_frame(self) -> Any:
        """All columns as a pandas data frame."""
        return data_frame(self.columns)


@dataclass(frozen=True)
class Spread:
    """A centre and a spread, shown as "5.01 ± 0.35"."""

    value: float
    scale: float

    def __str__(self) -> str:
        if not (math.isfinite(self.value) and 1e-4 < abs(self.scale) < 1e6):
            return f"{self.value:.3g} ± {self.scale:.2g}"
        decimals = 1 - math.floor(math.log10(abs(self.scale)))  # two digits of the spread
        value, scale = (round(number, decimals) + 0.0 for number in (self.value, self.scale))
        return f"{value:.{max(decimals, 0)}f} ± {scale:.{max(decimals, 0)}f}"


@dataclass(frozen=True)
class CategoryShare:
    """The most frequent category, shown as "male 72 %"."""

    category: Any
    share: float

    def __str__(self) -> str:
        return f"{self.category} {100 * self.share:.0f} %"


@dataclass(frozen=True)
class ModelSummary:
    """Summary of a fitted model, shown as text in a terminal and as HTML in a notebook.

    Attributes
    ----------
    title : str
        Name of the estimator.
    facts : dict of str to object
        Properties of the model, such as its log-likelihood and number of parameters.
    components : Table
        One line per component (or per class, where there are no components): class, number, weight, typical values.
    note : str
        Note on units and on features that are not shown.
    """

    title: str
    facts: Mapping[str, Any]
    components: Table
    note: str = ""
    sections: Mapping[str, Table] = field(default_factory=dict)  # further tables by their titles

    def __str__(self) -> str:
        width = max((len(name) for name in self.facts), default=0)
        lines = [self.title, "-" * len(self.title)]
        lines += [f"{name.ljust(width)}  {text_of(value)}" for name, value in self.facts.items()]
        lines += ["", str(self.components)]
        for title, table in self.sections.items():
            lines += ["", title, str(table)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text_of(value))}</td></tr>"
            for name, value in self.facts.items()
        )
        others = "".join(
            f"<p><b>{html.escape(title)}</b></p>{table._repr_html_()}" for title, table in self.sections.items()
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        title = f"<h4>{html.escape(self.title)}</h4>"
        return f"{title}<table>{facts}</table>{self.components._repr_html_()}{others}{note}"

    def to_frame(self) -> Any:
        """The components as a pandas data frame, with the means and the scales of all features as numbers."""
        columns: dict[str, Any] = {}
        for name, values in self.components.columns.items():
            if values and all(isinstance(value, Spread) for value in values):
                columns[f"{name} mean"] = [value.value for value in values]
                columns[f"{name} scale"] = [value.scale for value in values]
            elif values and all(isinstance(value, CategoryShare) for value in values):
                columns[f"{name} category"] = [value.category for value in values]
                columns[f"{name} share"] = [value.share for value in values]
            else:
                columns[name] = values
        return data_frame(columns)


def column_text(values: Sequence[Any]) -> list[str]:
    """The cells of a column; numbers of one column have the same number of decimals."""
    numbers = [isinstance(value, float | np.floating) for value in values]
    if not values or not all(numbers):
        return [text_of(value) for value in values]
    largest = max((abs(float(value)) for value in values if np.isfinite(value)), default=0.0)
    if largest >= 1e6 or 0 < largest < 1e-3:
        return [f"{value:.3g}" for value in values]
    return [f"{value:.{1 if largest >= 10 else 3}f}" for value in values]


def text_of(value: Any) -> str:
    """A value as text, rounded to four digits."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        size = abs(float(value))
        if size >= 1e6 or 0 < size < 1e-4:
            return f"{value:.3g}"
        return f"{value:.{max(0, 2 if size >= 10 else 3 if size >= 1 else 4)}f}" if np.isfinite(size) else str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{text_of(key)}: {text_of(item)}" for key, item in value.items())
    if isinstance(value, list | tuple | np.ndarray):
        return ", ".join(text_of(item) for item in value)
    return str(value)
