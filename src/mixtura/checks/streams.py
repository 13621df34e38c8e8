"""Messages about rows that are read in parts: files, batches, partitions."""

from __future__ import annotations


class SourceError(ValueError):
    """Rows could not be read, or are not those that were read before. A fit that meets it keeps its last model."""


def other_number_of_rows(before: int, now: int) -> SourceError:
    """Batches that changed between two passes."""
    return SourceError(
        f"The batches held {before} rows when they were first read and {now} rows now; a fit reads them many times and "
        "needs the same rows each time."
    )


def unread(what: str, error: Exception) -> SourceError:
    """A part of the rows that could not be read; `what` names it."""
    return SourceError(f"{what} could not be used: {error}")


def other_columns(what: str, wanted: list[str], columns: list[str]) -> SourceError:
    """A file without some of the columns that are read."""
    absent = [name for name in wanted if name not in columns]
    return SourceError(f"{what} has no column {absent[0]!r}; its columns are {columns}. All files must have the same.")
