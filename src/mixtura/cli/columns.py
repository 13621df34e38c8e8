"""The classes in the target of a table, and the features in its other columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mixtura.estimators.table_columns import TableColumn, category_of, entries_of, find_columns, listed, shorten

FEWEST_ROWS = 3
FEWEST_FOR_IDENTIFIERS = 20  # rows
MOST_CLASSES_PER_ROW = 0.5
MOST_FRACTIONAL_CLASSES = 20
PLAIN_NUMBER = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?|inf)")


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
        The features.
    notes : list of str
        Sentences about rows and columns that were left out, and values that count as missing.
    no_classes : tuple
        Values of the target that stand for missing ones.
    groups : ndarray of shape (n_rows,), optional
        Groups of rows that no split divides.
    """

    frame: pd.DataFrame
    labels: np.ndarray
    columns: list[TableColumn]
    notes: list[str]
    no_classes: tuple[Any, ...] = ()
    groups: np.ndarray | None = None


def read_problem(frame: Any, target: str, drop: Sequence[str] = (), group: str | None = None) -> TableProblem:
    """Find the classes and the kinds of all columns of a table.

    Parameters
    ----------
    frame : pandas data frame
        As `read_table` returns it.
    target : str
        Name of the column with the classes.
    drop : sequence of str, default=()
        Names of columns to leave out.
    group : str, optional
        Name of a column, such as a patient, whose rows no split divides. It is no feature.

    Returns
    -------
    problem : TableProblem

    Raises
    ------
    ValueError
        The target is not in the table or holds no classes, or no other column can be used.
    """
    drop = [*drop] if group is None else [*drop, group]
    for name in (target, *drop):
        if name not in frame.columns:
            raise ValueError(f"There is no column {name!r}; the columns are {listed(frame.columns)}.")
    if target in drop:
        raise ValueError(f"The target {target!r} cannot be left out; name another column with --drop.")
    labels, known, notes = read_classes(frame[target], target)
    kept: Any = frame[known].drop(columns=[target, *drop])
    columns, more = find_columns(kept, labels)
    if not columns:
        raise ValueError(f"No column besides the target {target!r} can be used. {' '.join([*notes, *more])}".strip())
    absent = tuple(frame[target][~known].drop_duplicates().astype(object).tolist())
    no_classes = tuple(None if value != value else value for value in absent)
    groups = None if group is None else np.asarray(frame[group])[known]
    return TableProblem(kept, labels, columns, shorten([*notes, *more]), no_classes, groups)


def read_classes(column: Any, name: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The classes of the rows that have one, a mask of these rows, and notes."""
    entries = entries_of(column)
    known = np.array([entry is not None for entry in entries])
    labels, notes = _as_classes([entry for entry in entries if entry is not None], name), []
    if not known.all():
        notes.append(f"{int((~known).sum())} rows without a value of {name!r} were left out.")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise ValueError(
            f"The target {name!r} has a single class, {labels[0].item()!r}; a classifier needs two or more."
        )
    if len(classes) > MOST_CLASSES_PER_ROW * len(labels) and len(labels) > FEWEST_FOR_IDENTIFIERS:
        raise ValueError(
            f"The target {name!r} has {len(classes)} different values in {len(labels)} rows; it looks like an "
            "identifier or a number, not like classes."
        )
    single = classes[counts == 1].tolist()
    if single:
        notes.append(f"Classes with a single row cannot be judged on held-out rows: {listed(single, 5)}.")
    return labels, known, notes


def _as_classes(entries: list[Any], name: str) -> np.ndarray:
    """Whole numbers as integers, everything else as text."""
    if not entries:
        raise ValueError(f"The target {name!r} has no values.")
    if len(entries) < FEWEST_ROWS:
        raise ValueError(f"The target {name!r} has {len(entries)} values; a classifier needs {FEWEST_ROWS} or more.")
    if not all(_is_number(entry) for entry in entries):
        return np.array([category_of(entry) for entry in entries])
    values = np.array(entries, dtype=float)
    if np.isinf(values).any():
        raise ValueError(f"The target {name!r} holds infinite values, which are not classes. Remove those rows.")
    whole, n_values = np.array_equal(values, np.round(values)), len(np.unique(values))
    if not whole and n_values > MOST_FRACTIONAL_CLASSES:
        raise ValueError(
            f"The target {name!r} holds {n_values} different fractional numbers, not classes; mixtura "
            "classifies. Cut it into classes first."
        )
    return values.astype("int64") if whole and np.abs(values).max() < 2**53 else values.astype(str)


def _is_number(entry: Any) -> bool:
    if isinstance(entry, str):
        return PLAIN_NUMBER.fullmatch(entry) is not None
    return isinstance(entry, int | float) and not isinstance(entry, bool)
