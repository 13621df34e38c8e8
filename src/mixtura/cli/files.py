"""Tables from CSV and Parquet files and the standard input, part by part."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd

from mixtura.cli.output import STANDARD, check_table
from mixtura.estimators.table_columns import entries_of, parse_number

DELIMITERS = ",;\t|"
PARQUET = (".parquet", ".pq")
BYTES_LOOKED_AT = 1 << 20  # a header of 10 000 columns with long names
IN_MEMORY = 1 << 26  # bytes of the standard input; more are in a temporary file
PART_VALUES = 2_000_000  # of one part: 200 MB as text
PLAIN = re.compile(r"[-+]?(?!0\d)(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
MOST_VALUES = 20_000_000  # of a table that is fitted; a random sample of the rows of a larger one


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
    parts: list[Any] = []
    share = 1.0  # of the rows that are kept
    for part in read_parts(path, sep):
        parts.append(part if share == 1.0 else part[random.random(len(part)) < share])
        while sum(part.size for part in parts) > limit:
            share /= 2
            parts = [part[random.random(len(part)) < 0.5] for part in parts]
    table = pd.concat(parts)
    table.attrs["read"] = parts[0].attrs["read"]  # the line of Python that reads it
    for place in range(table.shape[1]):
        if table.dtypes.iloc[place].kind == "O":
            table.isetitem(place, _plain_numbers(table.iloc[:, place]))
    return table


def _plain_numbers(column: Any) -> Any:
    """A column of text as numbers, if all of its values are plain ones; others are read with the model."""
    entries = entries_of(column)
    texts = [entry for entry in entries if entry is not None]
    if not all(isinstance(text, str) and PLAIN.fullmatch(text) for text in texts):
        return column
    comma = [text for text in texts if "," in text]
    if not texts or (comma and ("." in "".join(texts) or all(parse_number(text, ".") for text in comma))):
        return column  # no value, or commas that may stand between thousands
    return np.array([np.nan if entry is None else float(entry.replace(",", ".")) for entry in entries])


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
        settings: dict[str, Any] = {
            "sep": delimiter,
            "header": None,  # pandas renames columns of the same name
            "skiprows": 1,
            "names": range(len(names)),
            "index_col": False,
            "skipinitialspace": True,
            "dtype": str,
            "keep_default_na": False,
            "na_values": [""],
            "chunksize": max(1, PART_VALUES // len(names)),
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # more values than names
                for part in pd.read_csv(text, **settings):
                    named = part.set_axis(names, axis=1)
                    named.attrs["read"] = reader
                    yield named
        except pd.errors.EmptyDataError:
            return
        except (pd.errors.ParserError, pd.errors.ParserWarning, UnicodeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise ValueError(f"{name} is not a table of {len(names)} columns: {reason}.") from error


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
