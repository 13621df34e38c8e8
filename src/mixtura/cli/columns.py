"""Kinds of the columns of a table (numbers, categories, identifiers, dates), and the classes in its target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mixtura.estimators.table_classifier import TableColumn, category_of, listed

MOSTLY = 0.9  # share of the values of a column that decides what it holds
FEW_INTEGERS = 5  # different integers that are taken for categories
MOST_CATEGORIES = 20  # of one column; rarer ones count as missing
FEWEST_FOR_IDENTIFIERS = 20  # rows from which on a column of different values is an identifier
FEWEST_ROWS = 3
FEWEST_VALUES = 5  # of a column with missing values, so that folds without any are rare
MOST_CLASSES_PER_ROW = 0.5
MOST_FRACTIONAL_CLASSES = 20
DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([T ]\d{1,2}:\d{2}.*)?\s*")


@dataclass(frozen=True)
class TableProblem:
    """A table that is ready for a classifier.

    Parameters
    ----------
    frame : pandas data frame
        The rows with a label, without the target.
    labels : ndarray of shape (n_rows,)
        Their classes.
    columns : list of TableColumn
        The columns to use.
    notes : list of str
        Sentences about rows and columns that were left out, and values that count as missing.
    """

    frame: pd.DataFrame
    labels: np.ndarray
    columns: list[TableColumn]
    notes: list[str]


def read_problem(frame: Any, target: str, drop: Sequence[str] = ()) -> TableProblem:
    """Find the classes and the kinds of all columns of a table.

    Parameters
    ----------
    frame : pandas data frame
        As `read_table` returns it.
    target : str
        Name of the column with the classes.
    drop : sequence of str, default=()
        Names of columns to leave out.

    Returns
    -------
    problem : TableProblem

    Raises
    ------
    ValueError
        The target is not in the table or holds no classes, or a column holds dates.
    """
    for name in (target, *drop):
        if name not in frame.columns:
            raise ValueError(f"There is no column {name!r}; the columns are {listed(frame.columns)}.")
    if target in drop:
        raise ValueError(f"The target {target!r} cannot be left out; name another column with --drop.")
    labels, notes = _labels(frame[target], target)
    kept: Any = frame[frame[target].notna()].drop(columns=[target, *drop])
    columns = []
    most_are_integers = sum(_is_integer(kept[name]) for name in kept.columns) > len(kept.columns) / 2
    for name in kept.columns:
        column, note = _column(kept[name], name, most_are_integers)
        if column is not None:
            columns.append(column)
        if note is not None:
            notes.append(note)
    if not columns:
        raise ValueError(f"No column besides the target {target!r} can be used. {' '.join(notes)}".strip())
    return TableProblem(kept, labels, columns, _shortened(notes))


def _shortened(notes: list[str], most: int = 10) -> list[str]:
    return notes if len(notes) <= most else [*notes[:most], f"... and {len(notes) - most} more notes on columns."]


def _labels(column: Any, name: str) -> tuple[np.ndarray, list[str]]:
    known: Any = column[column.notna()]
    notes: list[str] = []
    if not len(known):
        raise ValueError(f"The target {name!r} has no values.")
    if len(known) < FEWEST_ROWS:
        raise ValueError(f"The target {name!r} has {len(known)} values; a classifier needs {FEWEST_ROWS} or more.")
    if len(known) < len(column):
        notes.append(f"{len(column) - len(known)} rows without a value of {name!r} were left out.")
    if pd.api.types.is_float_dtype(known.dtype):
        values = known.to_numpy(float)
        if np.isinf(values).any():
            raise ValueError(f"The target {name!r} holds infinite values, which are not classes. Remove those rows.")
        if not np.array_equal(values, np.round(values)) and known.nunique() > MOST_FRACTIONAL_CLASSES:
            raise ValueError(
                f"The target {name!r} holds {known.nunique()} different fractional numbers, not classes; mixtura "
                "classifies. Cut it into classes first."
            )
        whole = np.array_equal(values, np.round(values)) and np.abs(values).max() < 2**53
        known = known.astype("int64") if whole else known.astype(str)
    elif not pd.api.types.is_numeric_dtype(known.dtype):
        known = known.astype(str).str.strip()
    n_classes = known.nunique()
    if n_classes < 2:
        raise ValueError(f"The target {name!r} has a single class, {known.iloc[0]!r}; a classifier needs two or more.")
    if n_classes > MOST_CLASSES_PER_ROW * len(known) and len(known) > FEWEST_FOR_IDENTIFIERS:
        raise ValueError(
            f"The target {name!r} has {n_classes} different values in {len(known)} rows; it looks like an identifier "
            "or a number, not like classes."
        )
    kind = str if known.dtype == object else None
    return known.to_numpy(dtype=kind), notes


def _column(values: Any, name: str, most_are_integers: bool) -> tuple[TableColumn | None, str | None]:
    """A column of the model, or None where it is left out, and what a person should know about it."""
    known = values.dropna()
    if len(known) < FEWEST_VALUES and len(known) < len(values):
        return None, f"Column {name!r} has {len(known) or 'no'} values and was left out."
    if known.dtype == object and isinstance(known.iloc[0], dict | list | np.ndarray):
        return None, f"Column {name!r} holds lists or records, not values, and was left out."
    entries = known.to_numpy()
    if (entries == entries[0]).all():
        return None, f"Column {name!r} always has the same value and was left out."
    if pd.api.types.is_numeric_dtype(known.dtype):
        return _numeric_column(known, name, most_are_integers)
    if pd.api.types.is_datetime64_any_dtype(known.dtype) or _is_dates(known):
        raise ValueError(
            f"Column {name!r} holds dates; convert them to numbers, such as days since a date, or leave the column out "
            f"with --drop {name!r}."
        )
    return _text_column(known, name)


def _numeric_column(known: Any, name: str, most_are_integers: bool) -> tuple[TableColumn | None, str | None]:
    if not _is_integer(known):
        return TableColumn(name), None
    n_values = known.nunique()
    if len(known) >= FEWEST_FOR_IDENTIFIERS and n_values == len(known) and known.max() - known.min() < 2 * len(known):
        return None, f"Column {name!r} looks like an identifier (a different integer in every row) and was left out."
    if 2 < n_values <= FEW_INTEGERS and not most_are_integers:
        return TableColumn(name, _categories(known)), None
    return TableColumn(name), None


def _text_column(known: Any, name: str) -> tuple[TableColumn | None, str | None]:
    numbers: Any = pd.to_numeric(known, errors="coerce")
    n_numbers = int(numbers.notna().sum())
    several = 2 * n_numbers > len(known) and numbers.nunique() > MOST_CATEGORIES  # numbers, and a text such as "none"
    if n_numbers >= MOSTLY * len(known) or several:
        n_others = len(known) - n_numbers
        note = f"Column {name!r} holds numbers; {n_others} other values, such as {_example(known, numbers)}, "
        return TableColumn(name), f"{note}count as missing." if n_others else None
    if known.nunique() > MOSTLY * len(known) and len(known) >= FEWEST_FOR_IDENTIFIERS:
        return None, f"Column {name!r} has a different text in nearly every row (an identifier) and was left out."
    categories = _categories(known)
    n_rare = known.map(category_of).nunique() - len(categories)
    note = f"Column {name!r} has many categories: {n_rare} rare ones count as missing." if n_rare else None
    return TableColumn(name, categories), note


def _example(known: Any, numbers: Any) -> str:
    others = known[numbers.isna()]
    return repr(str(others.iloc[0])) if len(others) else "''"


def _categories(known: Any) -> tuple[str, ...]:
    """The categories as text, the most frequent first."""
    counts: Any = known.map(category_of).value_counts()
    order = sorted(counts.index, key=lambda name: (-int(counts[name]), str(name)))
    return tuple(str(name) for name in order[:MOST_CATEGORIES])


def _is_integer(values: Any) -> bool:
    if pd.api.types.is_bool_dtype(values.dtype) or not pd.api.types.is_numeric_dtype(values.dtype):
        return False
    numbers = values.to_numpy(dtype=float, na_value=np.nan)
    return bool((np.isnan(numbers) | (numbers == np.floor(numbers))).all() and not np.isinf(numbers).any())


def _is_dates(known: Any) -> bool:
    sample = known.head(500).astype(str)
    return sum(DATE.fullmatch(value) is not None for value in sample) >= MOSTLY * len(sample)
