"""Tables from CSV and Parquet files and the standard input; the classes and the features in them."""

from __future__ import annotations

import csv
import gzip
import io
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pandas as pd

from mixtura.cli.output import STANDARD, check_table
from mixtura.estimators.table_columns import TableColumn, category_of, entries_of, find_columns, listed, parse_number

DELIMITERS = ",;\t|"
PARQUET = (".parquet", ".pq")
BYTES_LOOKED_AT = 1 << 20  # a header of 10 000 columns with long names
IN_MEMORY = 1 << 26  # bytes of the standard input; more are in a temporary file
PART_VALUES = 2_000_000  # of one part: 200 MB as text
PLAIN = re.compile(r"[-+]?(?!0\d)(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
MOST_VALUES = 20_000_000  # of a table that is fitted; a random sample of the rows of a larger one
FEWEST_ROWS = 3
FEWEST_FOR_IDENTIFIERS = 20  # rows
MOST_CLASSES_PER_ROW = 0.5
MOST_FRACTIONAL_CLASSES = 20
PLAIN_NUMBER = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?|inf)")


def read_table(path: Path, sep: str | None = None, most_values: int | None = None) -> pd.DataFrame:
    """Read a CSV or Parquet file; delimiter, encoding and compression by gzip are detected.

    Parameters
    ----------
    path : Path
        The file; ``Path("-")`` is the standard input.
    sep : str, optional
        The delimiter.
    most_values : int, optional
        Of a table with more values a random sample of the rows is read, in bounded memory.

    Returns
    -------
    table : pandas data frame
        Rows have their numbers in the file, from 0; names of columns are text without spaces around it. Text
        is as it stands in the file; `TableClassifier` reads numbers, dates and missing values in it.

    Raises
    ------
    ValueError
        The file cannot be read as a table; the message says why.
    """
    limit, random = most_values or sys.maxsize, np.random.default_rng(0)
    parts: list[pd.DataFrame] = []
    share, n_rows = 1.0, 0  # of the rows that are kept; all rows
    for part in read_parts(path, sep):
        n_rows += len(part)
        parts.append(part if share == 1.0 else part.loc[random.random(len(part)) < share])
        while sum(part.size for part in parts) > limit:
            share /= 2
            parts = [part.loc[random.random(len(part)) < 0.5] for part in parts]
    table = pd.concat(parts)
    table.attrs |= {"read": parts[0].attrs["read"], "n_rows": n_rows}  # the line of Python that reads it
    for place in range(table.shape[1]):
        if table.dtypes.iloc[place].kind == "O":
            table.isetitem(place, _plain_numbers(table.iloc[:, place]))
    return table


def _plain_numbers(column: pd.Series) -> pd.Series | np.ndarray:
    """A column of text as numbers, if all of its values are plain ones; others are read with the model."""
    entries = entries_of(column)
    texts = [entry for entry in entries if isinstance(entry, str) and PLAIN.fullmatch(entry)]
    if len(texts) < sum(entry is not None for entry in entries):
        return column
    comma = [text for text in texts if "," in text]
    if not texts or (comma and ("." in "".join(texts) or all(parse_number(text, ".") for text in comma))):
        return column  # no value, or commas that may stand between thousands
    return np.array([float(entry.replace(",", ".")) if isinstance(entry, str) else np.nan for entry in entries])


def read_parts(path: Path, sep: str | None = None) -> Iterator[pd.DataFrame]:
    """Read a table part by part; a message says what is wrong with it."""
    name, n_rows = "The standard input" if path == STANDARD else f"The file {str(path)!r}", 0
    with open_file(path) as file:
        is_parquet = _starts_with(file, b"PAR1") or path.suffix.lower() in PARQUET
        for part in _parquet_parts(file, name) if is_parquet else _csv_parts(file, name, sep):
            part.columns = [str(column).strip() for column in part.columns]
            repeated = [column for column, count in Counter(part.columns).items() if count > 1]
            if repeated:
                raise ValueError(f"{name} has more than one column named {repeated[0]!r}; rename one of them.")
            if len(part):
                numbered = part.set_axis(range(n_rows, n_rows + len(part)))
                reader = part.attrs.get("read", "pd.read_parquet(FILE)")
                numbered.attrs["read"] = reader.replace("FILE", repr(path.name))
                yield numbered
            n_rows += len(part)
    if not n_rows:
        raise ValueError(f"{name} has a header and no rows.")


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A context with a file or the standard input, without compression."""
    if path == STANDARD:
        opened = cast(BinaryIO, tempfile.SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115
        shutil.copyfileobj(sys.stdin.buffer, opened)
        opened.seek(0)
    else:
        check_table(path)
        opened = path.open("rb")
    with opened as file:
        if _starts_with(file, b""):
            raise ValueError("The standard input is empty.")
        if not _starts_with(file, b"\x1f\x8b"):
            yield cast(BinaryIO, file)
            return
        with gzip.open(file) as unpacked:
            yield cast(BinaryIO, unpacked)


def _starts_with(file: BinaryIO, beginning: bytes) -> bool:
    """Whether a file begins with these bytes, or, without any, is empty."""
    start = file.read(max(1, len(beginning)))
    file.seek(0)
    return start == beginning


def _parquet_parts(file: BinaryIO, name: str) -> Iterator[pd.DataFrame]:
    from mixtura.streams.files import parquet_parts

    try:
        yield from parquet_parts(file, PART_VALUES)
    except (ImportError, PermissionError):
        raise
    except Exception as error:  # of pyarrow, whatever it is
        text = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{name.removeprefix('The file ')} is not a Parquet file that can be read ({text})."
        ) from error


def _csv_parts(file: BinaryIO, name: str, sep: str | None) -> Iterator[pd.DataFrame]:
    encoding = _encoding(file)
    with io.TextIOWrapper(file, encoding=encoding, newline="") as text:
        delimiter, names = _header(text, name, sep)
        given = {} if delimiter == "," else {"sep": delimiter}
        given |= {} if encoding == "utf-8-sig" else {"encoding": encoding}
        options = "".join(f", {key}={value!r}" for key, value in given.items())
        reader = f"pd.read_csv(FILE{options}, dtype=str, skipinitialspace=True)"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # more values than names
                parts = pd.read_csv(
                    text,
                    sep=delimiter,
                    header=None,  # pandas renames columns of the same name
                    skiprows=1,
                    names=range(len(names)),
                    index_col=False,
                    skipinitialspace=True,
                    dtype=str,
                    keep_default_na=False,
                    na_values=[""],
                    chunksize=max(1, PART_VALUES // len(names)),
                )
                for part in parts:
                    named = part.set_axis(names, axis=1)
                    named.attrs["read"] = reader
                    yield named
        except pd.errors.EmptyDataError:
            return
        except (pd.errors.ParserError, pd.errors.ParserWarning, UnicodeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            hint = "" if len(names) > 1 else " Name its delimiter with --sep."
            raise ValueError(f"{name} is not a table of {len(names)} columns: {reason}.{hint}") from error


def _header(text: io.TextIOWrapper, name: str, sep: str | None) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns."""
    short = name.removeprefix("The file ")
    try:
        beginning = text.read(BYTES_LOOKED_AT)
    except UnicodeError:  # a code page has no such character
        beginning = "\0"
    text.seek(0)
    if "\0" in beginning:
        raise ValueError(f"{short} is not a text file; pass a CSV or Parquet file.")
    delimiter = sep or _delimiter(beginning)
    try:
        names = [
            title.strip() for title in next(csv.reader(io.StringIO(beginning, newline=""), delimiter=delimiter), [])
        ]
    except (csv.Error, TypeError) as error:
        raise ValueError(f"The header of {short} cannot be read: {error}.") from error
    if not any(names):
        raise ValueError(f"{name} has no header: its first line is empty.")
    return delimiter, names


def _encoding(file: BinaryIO) -> str:
    """UTF-8 (with or without a byte order mark), UTF-16 with one, or the Windows code page."""
    encoding = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    file.seek(0)
    try:
        for line in file if encoding == "utf-8-sig" else ():
            line.decode("utf-8")
    except UnicodeDecodeError:
        encoding = "cp1252"
    file.seek(0)
    return encoding


def _delimiter(beginning: str) -> str:
    """The character that separates most names in the header; quoted parts, line breaks among them, do not count."""
    header = re.split(r"[\r\n]", re.sub(r'"[^"]*"', "", beginning), maxsplit=1)[0]
    return max(DELIMITERS, key=header.count)


# ---- Classes and features --------------------------------------------------------------------------------------------


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
    groups : ndarray of shape (n_rows,), or None
        Groups of rows that no split divides.
    """

    frame: pd.DataFrame
    labels: np.ndarray
    columns: list[TableColumn]
    notes: list[str]
    no_classes: tuple[Hashable, ...]
    groups: np.ndarray | None


def read_problem(frame: pd.DataFrame, target: str, drop: Sequence[str] = (), group: str | None = None) -> TableProblem:
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
    kept = frame.loc[known].drop(columns=[target, *drop])
    columns, more = find_columns(kept, labels)
    if not columns:
        raise ValueError(f"No column besides the target {target!r} can be used. {' '.join([*notes, *more])}".strip())
    absent = tuple(frame.loc[~known, target].drop_duplicates().astype(object).tolist())
    no_classes = tuple(None if value != value else value for value in absent)
    groups = None if group is None else np.asarray(frame[group])[known]
    return TableProblem(kept, labels, columns, [*notes, *more], no_classes, groups)


def read_classes(column: object, name: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
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


def number_classes(column: object, classes: np.ndarray) -> np.ndarray:
    """Numbers of the classes of rows, as `read_classes` reads them; -1 for a missing or unknown one."""
    places = {float(name) if classes.dtype.kind == "i" else name: place for place, name in enumerate(classes.tolist())}

    def place_of(entry: object) -> int:
        name = category_of(entry)
        if _is_number(entry) and name not in places:
            number = float(cast("float", entry))
            name = number if classes.dtype.kind == "i" else str(number)
        return places.get(name, -1)

    return np.array([-1 if entry is None else place_of(entry) for entry in entries_of(column)])


def _as_classes(entries: list[object], name: str) -> np.ndarray:
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


def names_of(features: Iterable[TableColumn]) -> list[str]:
    """The columns that features are made of, each once."""
    return list(dict.fromkeys(feature.name for feature in features))


def missing_values(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Which values of some columns are missing, (n_rows, n_names)."""
    return np.stack([[entry is None for entry in entries_of(frame[name])] for name in names], 1)


def _is_number(entry: object) -> bool:
    if isinstance(entry, str):
        return PLAIN_NUMBER.fullmatch(entry) is not None
    return isinstance(entry, int | float) and not isinstance(entry, bool)
