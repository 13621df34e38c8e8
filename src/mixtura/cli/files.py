"""Tables from CSV and Parquet files, and places for files to be written."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

DELIMITERS = ",;\t|"
PARQUET = (".parquet", ".pq")
BYTES_LOOKED_AT = 1 << 20  # a header of 10 000 columns with long names
# Besides what pandas takes for missing: what spreadsheets and statistics packages write.
MISSING = ["?", "-", "."]
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*")


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file; delimiter, encoding and decimal comma are detected.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    table : pandas data frame
        Rows are numbered from 0, names of columns are text without spaces around it.

    Raises
    ------
    ValueError
        The file cannot be read as a table; the message says why.
    """
    if not path.exists():
        raise ValueError(f"There is no file {str(path)!r}.")
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; pass a CSV or Parquet file.")
    if path.stat().st_size == 0:
        raise ValueError(f"The file {str(path)!r} is empty.")
    frame = _read_parquet(path) if _is_parquet(path) else _read_csv(path)
    frame = frame.reset_index(drop=True)
    frame.columns = [str(name).strip() for name in frame.columns]
    repeated = [name for name, count in Counter(frame.columns).items() if count > 1]
    if repeated:
        raise ValueError(f"The file {str(path)!r} has more than one column named {repeated[0]!r}; rename one of them.")
    if not len(frame):
        raise ValueError(f"The file {str(path)!r} has a header and no rows.")
    return frame


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1" or path.suffix.lower() in PARQUET


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (ImportError, PermissionError):
        raise
    except Exception as error:  # of pyarrow, whatever it is
        text = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{str(path)!r} is not a Parquet file that can be read ({text}).") from error


def _read_csv(path: Path) -> pd.DataFrame:
    encoding = _encoding(path)
    try:
        with path.open(encoding=encoding, newline="") as file:
            beginning = file.read(BYTES_LOOKED_AT)
    except UnicodeError:  # a code page has no such character
        beginning = "\0"
    if "\0" in beginning:
        raise ValueError(f"{str(path)!r} is not a text file; pass a CSV or Parquet file.")
    delimiter = _delimiter(beginning)
    try:
        names = [name.strip() for name in next(csv.reader(io.StringIO(beginning, newline=""), delimiter=delimiter), [])]
    except csv.Error as error:
        raise ValueError(f"The header of {str(path)!r} cannot be read: {error}.") from error
    if not any(names):
        raise ValueError(f"The file {str(path)!r} has no header: its first line is empty.")
    settings: dict[str, Any] = {
        "sep": delimiter,
        "encoding": encoding,
        "header": None,  # pandas renames columns of the same name
        "skiprows": 1,
        "names": range(len(names)),
        "index_col": False,
        "na_values": MISSING,
        "skipinitialspace": True,
        "low_memory": False,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # more values than names
            frame = pd.read_csv(path, **settings)
            if delimiter != "," and _has_decimal_comma(frame):
                frame = pd.read_csv(path, decimal=",", **settings)
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame(columns=range(len(names)))
    except (pd.errors.ParserError, pd.errors.ParserWarning, UnicodeError) as error:
        text = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"The file {str(path)!r} is not a table of {len(names)} columns: {text}.") from error
    return frame.set_axis(names, axis=1)


def _encoding(path: Path) -> str:
    """UTF-8 (with or without a byte order mark), UTF-16 with one, or the Windows code page."""
    with path.open("rb") as file:
        beginning = file.read(2)
        if beginning in (b"\xff\xfe", b"\xfe\xff"):
            return "utf-16"
        file.seek(0)
        try:
            for line in file:
                line.decode("utf-8")
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def _delimiter(beginning: str) -> str:
    """The character that separates most names in the header; quoted parts, line breaks among them, do not count."""
    header = re.split(r"[\r\n]", re.sub(r'"[^"]*"', "", beginning), maxsplit=1)[0]
    return max(DELIMITERS, key=header.count)


def _has_decimal_comma(frame: pd.DataFrame) -> bool:
    for _, column in frame.select_dtypes(include=["object", "string"]).items():
        values = column.dropna().astype(str).head(200)
        with_comma = [value for value in values if "," in value]
        if with_comma and all(DECIMAL_COMMA.fullmatch(value) for value in with_comma):
            return True
    return False


def check_place(path: Path, *inputs: Path, ending: str | None = None, option: str = "--out") -> Path:
    """Check that a file can be written, before any work is done.

    Raises
    ------
    ValueError
        The place is one of the inputs, a folder, in no existing folder, or may not be written to.
    """
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
