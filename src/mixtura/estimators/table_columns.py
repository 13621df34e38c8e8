"""Columns of a table as people write them: numbers in text, categories, dates, identifiers, copies of the target."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mixtura import checks
from mixtura.estimators.frames import is_missing
from mixtura.files.registry import storable

if TYPE_CHECKING:
    import pandas as pd

MOSTLY = 0.9  # share of the values of a column that decides what it holds
FEW_INTEGERS = 5  # different integers that are taken for categories
MOST_CATEGORIES = 20  # of one column; rarer ones count as missing
FEWEST_FOR_IDENTIFIERS = 20  # rows from which on a column of different values is an identifier
FEWEST_VALUES = 5  # of a column with missing values, so that folds without any are rare
MOST_NOTES = 10
MOST_DATES = 500  # that are looked at

# Text for a missing value: what spreadsheets, databases and statistics packages write.
NO_VALUE = {"", "na", "n/a", "nan", "null", "none", "nil", "<na>", "nat", "#n/a", "#na", "#null!", "#div/0!", "#value!"}
NO_VALUE |= {"#n/a n/a", "-nan", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
NO_VALUE |= {"-", "--", "\u2013", "\u2014", "?", ".", "..", "...", "\u2026"}
CODES = re.compile(r"(?i)(?:^|[^a-z])(?:phone|tel|fax|zip|postal|postcode|plz|isbn|ssn|sku|part.?(?:no|number|id))")

CURRENCY = (
    r"[A-Z]{0,2}[$\u20ac\u00a3\u00a5\u20b9\u20a9\u20bd\u20ba]|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN"
)
SPACES = "'\u2019\u00a0\u202f "  # between thousands, beside the mark that is not the decimal one
NUMBER = {
    mark: re.compile(
        rf"(?:[<>\u2264\u2265~\u2248]=?\s*)?(?P<first>{CURRENCY})?\s*(?P<negative>\()?\s*(?P<sign>[-+\u2212])?\s*"
        rf"(?P<before>{CURRENCY})?\s*"
        rf"(?P<later>[-+\u2212])?(?P<digits>[1-9]\d{{0,2}}(?P<sep>[{other}{SPACES}])\d{{3}}(?:(?P=sep)\d{{3}})*"
        rf"(?:{re.escape(mark)}\d+)?|\d+(?:{re.escape(mark)}\d*)?|{re.escape(mark)}\d+)(?P<power>[eE][-+]?\d+)?(?P<last>[-+])?"
        rf"\s*(?P<after>%|\u2030|{CURRENCY}|[^\W\d_][^\s\d()]{{0,11}}[23]?(?:[ /][^\W\d]{{1,8}})?|\u00b0[CF]?)?\s*"
        rf"(?(negative)\))"
    )
    for mark, other in ((".", ","), (",", "."))
}

TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")
DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y")
NAMED_DAYS = ("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y")
DATE_FORMATS = ("ISO8601", *(day + time for day in (*DAYS, *NAMED_DAYS) for time in TIMES))
DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?([T ].*)?|\d{1,4}[-/.]\d\d?[-/.]\d{2,4}([T ].*)?|(?=.*\d{4}|.*-\d\d$).*[A-Za-z]{3}.*"
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def check_column(column: TableColumn) -> None:
    """Raise a ValueError unless all categories are text."""
    for category in column.categories or ():
        checks.is_kind("categories", category, str)
    if column.part and column.part not in PARTS:
        raise ValueError(f"{column.part!r} is no part of a date")


@storable("table_column", check=check_column)
@dataclass(frozen=True)
class TableColumn:
    """A column of a table, or a feature that is computed from a column of dates.

    Parameters
    ----------
    name : str
        The name of the column.
    categories : tuple of str or None, default=None
        None for a numeric column. Otherwise its categories as text.
    form : str, default="."
        The decimal mark of numbers in text, or the format of dates.
    unit : str, default=""
        The unit or currency that follows or precedes numbers in text, in lower case.
    part : str, default=""
        The feature of a date: "days" since `origin`, "year", "weekday", or sine and cosine of "month" and "hour".
    origin : float, default=0.0
        The first date, in days since 1970.
    """

    name: str
    categories: tuple[str, ...] | None = None
    form: str = "."
    unit: str = ""
    part: str = ""
    origin: float = 0.0

    @property
    def feature(self) -> str:
        """The name of the feature."""
        return f"{self.name}: {self.part}" if self.part else self.name

    def read(self, values: Any) -> np.ndarray:
        """Return numbers with NaN, or categories with None, where a value is missing, unknown or of another kind."""
        if self.part:
            return PARTS[self.part](dates_of(values, self.form), self.origin)
        if self.categories is None:
            return numbers_of(values, self.form, self.unit)
        known = set(self.categories)
        names = [category_of(entry) for entry in entries_of(values)]
        return np.array([name if name in known else None for name in names], dtype=object)


# ---- values ----------------------------------------------------------------------------------------------------------


def entries_of(values: object) -> list[object]:
    """Values as Python objects: text without spaces around it, None where a value is missing."""
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        return array.tolist()
    return [None if is_missing(entry) else entry for entry in map(_stripped, array.tolist())]


def _stripped(entry: object) -> object:
    if not isinstance(entry, str):
        return entry
    text = entry.strip()
    return None if text.lower() in NO_VALUE else text


def category_of(value: object) -> str | None:
    """The name of a category; 3.0 and 3 are the same category, as are True and "true"; None is a missing value."""
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.capitalize()
    return text[:-2] if text.endswith(".0") and text[:-2].lstrip("-").isdigit() else text


def numbers_of(values: object, decimal: str = ".", unit: str = "") -> np.ndarray:
    """Convert values to numbers; NaN if that is not possible."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(float)
    if decimal == ".":  # plain numbers and gaps, in a tenth of the time
        with suppress(TypeError, ValueError):
            numbers = array.astype(float)
            if not np.isinf(numbers).any() and not any(isinstance(v, str) and "_" in v for v in array.tolist()):
                return numbers
    return np.array([_number(value, decimal, unit) for value in array.tolist()], dtype=float)


def _number(value: object, decimal: str, unit: str) -> float:
    if isinstance(value, str):
        parsed = parse_number(value.strip(), decimal)
        return parsed[0] if parsed is not None and parsed[1] in ("", unit) else float("nan")
    try:
        return float(cast("float", value))
    except (TypeError, ValueError):  # None, pd.NA, a date
        return float("nan")


@lru_cache(2**16)
def parse_number(text: str, decimal: str) -> tuple[float, str] | None:
    """The number that a text states, and its unit or currency in lower case; None if it states none.

    A bound such as "< 5" is read as 5, parentheses as a minus sign.
    """
    match = NUMBER[decimal].fullmatch(text)
    if match is None:
        return None
    digits = match["digits"].replace(match["sep"] or " ", "").replace(decimal, ".")
    if match["sign"] == "+" and not match["after"] and len(digits) > 7:
        return None  # a telephone number
    signs = {match["sign"], match["later"], match["last"]}
    negative = bool(match["negative"]) or not signs.isdisjoint({"-", "\u2212"})
    unit = "".join(match[place] or "" for place in ("first", "before", "after")).lower()
    value = float(digits + (match["power"] or ""))
    return (-value if negative else value), unit[:-1] if len(unit) > 2 and unit[-1] in "s." else unit


def dates_of(values: object, form: str) -> np.ndarray:
    """Dates (n,) as days since 1970, NaN where a value is none."""
    import pandas as pd

    series = pd.Series(values)
    if series.dtype == object and any(isinstance(value, str) for value in series):
        dates = pd.to_datetime(series.astype("string"), format=form, errors="coerce", utc=True)
    else:
        dates = pd.to_datetime(series, errors="coerce", utc=True)
    seconds = dates.dt.tz_localize(None).to_numpy("datetime64[s]")
    return np.where(np.isnat(seconds), np.nan, seconds.astype(np.int64) / 86400)


def _year(days: np.ndarray) -> np.ndarray:
    known = np.isfinite(days)
    years = np.where(known, days, 0).astype("datetime64[D]").astype("datetime64[Y]").astype(int) + 1970.0
    return np.where(known, years, np.nan)


def _month(days: np.ndarray) -> np.ndarray:
    """Months since the beginning of the year, with fractions."""
    dates = np.where(np.isfinite(days), days, 0).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    share = (dates - months.astype("datetime64[D]")).astype(float) / 31
    return np.where(np.isfinite(days), months.astype(int) % 12 + share, np.nan)


def _weekday(days: np.ndarray) -> np.ndarray:
    names = [WEEKDAYS[(int(np.floor(day)) + 3) % 7] if np.isfinite(day) else None for day in days.tolist()]
    return np.array(names, dtype=object)  # 1970 began on a Thursday


PARTS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "days": lambda days, origin: days - origin,
    "year": lambda days, origin: _year(days),
    "month (sin)": lambda days, origin: np.sin(2 * np.pi * _month(days) / 12),
    "month (cos)": lambda days, origin: np.cos(2 * np.pi * _month(days) / 12),
    "weekday": lambda days, origin: _weekday(days),
    "hour (sin)": lambda days, origin: np.sin(2 * np.pi * (days % 1)),
    "hour (cos)": lambda days, origin: np.cos(2 * np.pi * (days % 1)),
}


# ---- the kinds of columns --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """The features in a column, or none, and a sentence for the user."""

    columns: tuple[TableColumn, ...] = ()
    note: str = ""
    numbers: np.ndarray | None = None  # of a numeric column
    leaks: bool = False  # repeats or predicts the target


def find_columns(frame: pd.DataFrame, labels: np.ndarray | None = None) -> tuple[list[TableColumn], list[str]]:
    """Find the kind of every column of a pandas data frame.

    Parameters
    ----------
    frame : pandas data frame
    labels : ndarray of shape (n_rows,), optional
        The classes; columns that repeat or predict them are then named.

    Returns
    -------
    columns : list of TableColumn
        The features.
    notes : list of str
        Sentences about possible leaks, then about columns that were left out and values that count as missing.
    """
    readings = {name: _read_column(frame[name], str(name)) for name in frame.columns}
    integers = [_are_integers(reading.numbers) for reading in readings.values()]
    most_are_integers = sum(integers) > len(integers) / 2
    columns: list[TableColumn] = []
    notes: list[tuple[bool, str]] = []
    for (name, reading), whole in zip(readings.items(), integers, strict=True):
        if whole:
            reading = _integer_column(reading, str(name), most_are_integers)
        if labels is not None and reading.columns:
            reading = _without_leak(reading, frame[name], labels)
        columns += reading.columns
        notes += [(not reading.leaks, reading.note)] if reading.note else []
    return columns, [note for _, note in sorted(notes, key=lambda note: note[0])]


def shorten(notes: list[str]) -> list[str]:
    """The first notes, and how many more there are."""
    n_more = len(notes) - MOST_NOTES
    return notes if n_more <= 0 else [*notes[:MOST_NOTES], f"... and {n_more} more notes on columns."]


def _read_column(values: object, name: str) -> Reading:
    array = np.asarray(values)
    numeric = array.dtype.kind in "iuf" and CODES.search(name) is None
    entries = array if numeric else [entry for entry in entries_of(values) if entry is not None]
    if numeric and array.dtype.kind == "f":
        entries = array[~np.isnan(array)]
    n_known = len(entries)
    if n_known < FEWEST_VALUES and n_known < len(array):
        return Reading(note=f"Column {name!r} has {n_known or 'no'} values and was left out.")
    if not numeric and isinstance(entries[0], dict | list | np.ndarray):
        return Reading(note=f"Column {name!r} holds lists or records, not values, and was left out.")
    if bool(np.all(entries == entries[0])) if numeric else all(entry == entries[0] for entry in entries):
        return Reading(note=f"Column {name!r} always has the same value and was left out.")
    if numeric:
        return Reading((TableColumn(name),), numbers=np.asarray(entries, dtype=float))
    if array.dtype.kind == "M" or isinstance(entries[0], date):
        return _date_columns(values, name, "ISO8601")
    return _text_column(values, list(entries), name)


def _are_integers(numbers: np.ndarray | None) -> bool:
    return numbers is not None and bool(np.isfinite(numbers).all() and (numbers == np.floor(numbers)).all())


def _integer_column(reading: Reading, name: str, most_are_integers: bool) -> Reading:
    numbers = reading.numbers
    assert numbers is not None
    values, counts = np.unique(numbers, return_counts=True)
    if reading.columns[0].unit:
        return reading
    if len(numbers) >= FEWEST_FOR_IDENTIFIERS and len(values) == len(numbers) and np.ptp(numbers) < 2 * len(numbers):
        return Reading(
            note=f"Column {name!r} looks like an identifier (a different integer in every row) and was left out."
        )
    if 2 < len(values) <= FEW_INTEGERS and not most_are_integers:
        order = sorted(range(len(values)), key=lambda i: (-counts[i], category_of(float(values[i]))))
        return replace(reading, columns=(TableColumn(name, tuple(str(int(values[i])) for i in order)),), numbers=None)
    return reading


def _text_column(values: object, entries: Sequence[object], name: str) -> Reading:
    """Numbers in text, dates, identifiers or categories."""
    counts = Counter(str(category_of(entry)) for entry in entries)
    digits = [text for text in counts if text.isdigit()]
    is_code = any(text.startswith("0") and len(text) > 1 for text in digits)
    is_code = is_code or (CODES.search(name) is not None and len(digits) == len(counts))
    if not is_code and all(isinstance(entry, int | float) and not isinstance(entry, bool) for entry in entries):
        return Reading((TableColumn(name),), numbers=np.array(entries, dtype=float))
    reading = None if is_code else _number_column(entries, counts, name)
    if reading is not None:
        return reading
    form = _date_format(counts)
    if form is not None:
        return _date_columns(values, name, form)
    if len(counts) > MOSTLY * len(entries) and len(entries) >= FEWEST_FOR_IDENTIFIERS:
        return Reading(
            note=f"Column {name!r} has a different text in nearly every row (an identifier) and was left out."
        )
    order = sorted(counts, key=lambda text: (-counts[text], text))
    n_rare = len(order) - MOST_CATEGORIES
    note = f"Column {name!r} has many categories: {n_rare} rare ones count as missing." if n_rare > 0 else ""
    return Reading((TableColumn(name, tuple(order[:MOST_CATEGORIES])),), note)


def _number_column(entries: Sequence[object], counts: Counter[str], name: str) -> Reading | None:
    """Numbers, if most of the texts state one with the same decimal mark and unit."""
    if not any(character.isdigit() for text in counts for character in text):
        return None
    best: tuple[int, str, str] = (0, ".", "")
    for decimal in NUMBER:
        units: Counter[str] = Counter()
        for text, count in counts.items():
            parsed = parse_number(text, decimal)
            if parsed is not None:
                units[parsed[1]] += count
        unit = max((unit for unit in units if unit), key=lambda unit: units[unit], default="")
        best = max(best, (units[""] + (units[unit] if unit else 0), decimal, unit), key=lambda reading: reading[0])
    n_numbers, decimal, unit = best
    numbers = numbers_of(np.array(entries, dtype=object), decimal, unit)
    several = 2 * n_numbers > len(entries) and len(np.unique(numbers[~np.isnan(numbers)])) > MOST_CATEGORIES
    if n_numbers < MOSTLY * len(entries) and not several:  # numbers, and a text such as "unknown"
        return None
    others = [str(entry) for entry, number in zip(entries, numbers, strict=True) if np.isnan(number)]
    note = f"{len(others)} other values, such as {others[0]!r}, count as missing." if others else ""
    written = [entry for entry in entries if isinstance(entry, str) and not _is_plain(entry)]
    if written and len(written) > len(others):
        example = next(entry for entry in written if entry not in set(others))
        value = parse_number(example, decimal)
        note = f"{example!r} is read as {0.0 if value is None else value[0]:g}{'; ' if note else '.'}{note}"
    note = f"Column {name!r} holds numbers; {note}" if note else ""
    return Reading((TableColumn(name, None, decimal, unit),), note, numbers[~np.isnan(numbers)])


def _is_plain(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _date_format(counts: Counter[str]) -> str | None:
    """The format that fits most of the texts, if they are dates."""
    texts = list(counts)[:MOST_DATES]
    if sum(DATE.fullmatch(text) is not None for text in texts) < MOSTLY * len(texts):
        return None
    sizes = {form: int(np.isfinite(dates_of(texts, form)).sum()) for form in DATE_FORMATS}
    best = max(sizes, key=lambda form: sizes[form])
    return best if sizes[best] >= MOSTLY * len(texts) else None


def _date_columns(values: object, name: str, form: str) -> Reading:
    days = dates_of(values, form)
    if not np.isfinite(days).any():
        return Reading(note=f"Column {name!r} holds dates that cannot be read and was left out.")
    origin = float(np.nanmin(days))
    columns = []
    for part, compute in PARTS.items():
        entries = [entry for entry in compute(days, origin).tolist() if not is_missing(entry)]
        if len(set(np.round(entries, 9).tolist() if part != "weekday" else entries)) > 1:
            columns.append(TableColumn(name, WEEKDAYS if part == "weekday" else None, form, "", part, origin))
    shown = ", ".join(column.part for column in columns)
    return Reading(tuple(columns), f"Column {name!r} holds dates, from which these features are computed: {shown}.")


# ---- leaks -----------------------------------------------------------------------------------------------------------


def _without_leak(reading: Reading, values: object, labels: np.ndarray) -> Reading:
    """Leave a copy of the target out, and name a column that predicts it perfectly."""
    column = reading.columns[0]
    if column.part or len(labels) < FEWEST_FOR_IDENTIFIERS:
        return reading
    entries = column.read(values)
    known = np.array([not is_missing(entry) for entry in entries.tolist()])
    if known.mean() < MOSTLY or len(np.unique(labels[known])) < 2:
        return reading
    known_entries, known_labels = entries[known], labels[known]
    if [category_of(entry) for entry in known_entries.tolist()] == [
        category_of(label) for label in known_labels.tolist()
    ]:
        return Reading(note=f"Column {column.name!r} is a copy of the target and was left out.", leaks=True)
    if not _is_perfect(known_entries, known_labels):
        return reading
    note = (
        f"Column {column.name!r} predicts the target perfectly (a leak?); leave it out if it is not known beforehand."
    )
    return replace(reading, note=f"{note} {reading.note}".strip(), leaks=True)


def _is_perfect(entries: np.ndarray, labels: np.ndarray) -> bool:
    """Whether every value has one class; numbers must have one interval per class."""
    n_classes = len(np.unique(labels))
    values, places = np.unique(
        entries.astype(float) if entries.dtype.kind == "f" else entries.astype(str), return_inverse=True
    )
    owners = np.full(len(values), labels[0], dtype=labels.dtype)
    owners[places] = labels
    if not bool((owners[places] == labels).all()):
        return False
    if entries.dtype.kind == "f":
        return int((owners[1:] != owners[:-1]).sum()) == n_classes - 1
    return len(values) <= max(n_classes, len(labels) // FEW_INTEGERS)


def listed(names: Iterable[object], most: int = 12) -> str:
    """The first names, and how many more there are."""
    every = list(names)
    shown = ", ".join(repr(str(name)) for name in every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"
