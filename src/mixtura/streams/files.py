"""Batches of rows from Parquet, Arrow and CSV files (the extra `arrow`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

try:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.dataset as ds
except ImportError as error:
    text = "mixtura.streams.files needs pandas and pyarrow; install them with: pip install 'mixtura[arrow]'"
    raise ModuleNotFoundError(text, name=error.name) from error

from mixtura import checks
from mixtura.streams.batches import Batch

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "feather",
}
# Types that are read as numbers; a column of nulls alone has a type of its own.
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
# Bytes per batch: large enough to amortise Python, small enough to prefetch several.
BATCH_BYTES = 16 * 2**20


class FileBatches:
    """Rows in files, read batch by batch.

    Estimators make several passes over the batches and hold a few of them in memory at a time.

    Parameters
    ----------
    data : str, Path, sequence of them, or pyarrow.dataset.Dataset
        Parquet, Arrow (IPC, Feather) or CSV files, or a folder of such files.
    features : sequence of str, default=None
        Columns of the features, in this order; None means all but `label`, `sample_weight` and the index of a pandas
        data frame. Nulls are missing values; columns of text are categorical features.
    label : str, default=None
        The column with the labels.
    sample_weight : str, default=None
        The column with the weights.
    batch_size : int, default=None
        Rows per batch; None means 16 MB.
    file_format : str, default=None
        "parquet", "csv", "ipc" or "feather"; None decides by the ending of the first file.

    Examples
    --------
    >>> import pandas as pd, tempfile, os
    >>> from mixtura import GaussianMixture
    >>> from mixtura.streams.files import FileBatches
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "rows.parquet")
    >>> pd.DataFrame({"a": [1.0, 2.0, 8.0, 9.0], "b": [1.0, None, 2.0, 1.0]}).to_parquet(path)
    >>> model = GaussianMixture(2, random_state=0).fit(FileBatches(path))
    >>> model.feature_names_in_.tolist()
    ['a', 'b']
    >>> folder.cleanup()
    """

    def __init__(
        self,
        data: Any,
        features: Sequence[str] | None = None,
        label: str | None = None,
        sample_weight: str | None = None,
        batch_size: int | None = None,
        file_format: str | None = None,
    ):
        self.dataset = data if isinstance(data, ds.Dataset) else _opened(data, file_format)
        names = self.dataset.schema.names
        self.label, self.sample_weight = label, sample_weight
        others = (label, sample_weight, *_index_columns(self.dataset.schema))
        self.features = [name for name in names if name not in others] if features is None else list(features)
        self._columns = [*self.features, *(name for name in (label, sample_weight) if name is not None)]
        kinds = {name: self.dataset.schema.field(name).type for name in self.features if name in names}
        self._text = [name for name, kind in kinds.items() if any(test(kind) for test in TEXT)]
        self._check_columns("The data set", self.dataset.schema)
        if self.dataset is not data:
            self.dataset = _with_numbers(self.dataset, self.features)
        kinds = {self.dataset.schema.field(name).type for name in self.features if name not in self._text}
        single = kinds <= {pa.float32(), pa.float16()}
        self.dtype = np.dtype(np.float32 if single else np.float64)
        size = max(1, BATCH_BYTES // (8 * len(self.features)))
        self.batch_size = size if batch_size is None else checks.count("batch_size", batch_size)
        self._states = {fragment.path: self._state(fragment.path) for fragment in self._files()}

    def __iter__(self) -> Iterator[Batch]:
        for fragment in self.dataset.get_fragments():
            path = fragment.path if isinstance(fragment, ds.FileFragment) else "memory"
            self._check_state(path)
            try:
                schema = fragment.physical_schema
                self._check_columns(f"The file {path!r}", schema)
                options = {"columns": self._columns, "batch_size": self.batch_size, "batch_readahead": 2}
                for part in fragment.to_batches(schema=schema, fragment_readahead=1, **options):
                    if part.num_rows:
                        yield self._batch(part, path)
            except (OSError, pa.ArrowException) as error:
                raise checks.unread(f"The file {path!r}", error) from error
            self._check_state(path)

    def _batch(self, part: pa.RecordBatch, path: str) -> Batch:
        # Column by column, as in the file and in the engine.
        names = [name for name in self.features if name not in self._text]
        values = np.empty((len(names), part.num_rows), self.dtype)
        for row, name in zip(values, names, strict=True):
            row[:] = _numbers(part.column(name))
        frame = pd.DataFrame(values.T, columns=pd.Index(names), copy=False)
        if self._text:  # equal texts once, so that a pass compares numbers
            text = pd.DataFrame({name: part.column(name).to_pandas() for name in self._text})
            text = text.mask(text == "") if isinstance(self.dataset.format, ds.CsvFileFormat) else text
            frame = frame.join(text.astype("category"))[self.features]
        label, weight = (
            None if name is None else part.column(name).to_numpy(zero_copy_only=False)
            for name in (self.label, self.sample_weight)
        )
        return Batch(frame, label, weight, f"The file {path!r}")

    def _check_columns(self, what: str, schema: pa.Schema) -> None:
        if any(name not in schema.names for name in self._columns):
            absent = next(name for name in self._columns if name not in schema.names)
            raise checks.SourceError(
                f"{what} has no column {absent!r}; its columns are {schema.names}. All files must have the same "
                "columns."
            )
        for name in self.features:
            kind = schema.field(name).type
            if not any(test(kind) for test in (TEXT if name in self._text else NUMBERS)):
                wanted = "text as in the first file" if name in self._text else "numeric"
                raise checks.SourceError(
                    f"{what} has values of type {kind} in column {name!r}, but features must be {wanted}; leave the "
                    "column out of features, or encode it."
                )

    def _files(self) -> Iterable[ds.FileFragment]:
        return (part for part in self.dataset.get_fragments() if isinstance(part, ds.FileFragment))

    def _state(self, path: str) -> tuple[object, object]:
        (info,) = self.dataset.filesystem.get_file_info([path])
        return info.size, info.mtime_ns

    def _check_state(self, path: str) -> None:
        if path in self._states and self._state(path) != self._states[path]:
            raise checks.changed_file(path)


def _opened(data: str | Path | Iterable[str | Path], file_format: str | None) -> ds.Dataset:
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    if not paths:
        raise ValueError("data has no files; pass at least one.")
    absent = [str(path) for path in paths if not path.exists()]
    if absent:
        raise FileNotFoundError(f"The file or folder {absent[0]!r} does not exist.")
    if file_format is None:
        first = min(paths[0].rglob("*.*"), default=paths[0]) if paths[0].is_dir() else paths[0]
        if first.suffix.lower() not in FORMATS:
            raise ValueError(f"The format of {str(first)!r} cannot be inferred from its name; set file_format.")
        file_format = FORMATS[first.suffix.lower()]
    checks.one_of("file_format", file_format, set(FORMATS.values()))
    names = [str(path) for path in paths]
    try:
        return ds.dataset(names[0] if len(names) == 1 else names, format=file_format)
    except (OSError, pa.ArrowException) as error:
        raise checks.unread(f"The data set {', '.join(names[:3])}", error) from error


def _with_numbers(dataset: ds.Dataset, features: list[str]) -> ds.Dataset:
    """Read features of CSV files as floats: Arrow infers types from the first megabyte, which may be all integers."""
    if not isinstance(dataset.format, ds.CsvFileFormat):
        return dataset
    others = (pa.types.is_boolean, *TEXT)
    names = [name for name in features if not any(test(dataset.schema.field(name).type) for test in others)]
    options = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64()))
    return ds.dataset(dataset.files, format=ds.CsvFileFormat(convert_options=options), filesystem=dataset.filesystem)


def _index_columns(schema: pa.Schema) -> list[object]:
    """Columns that hold the index of a data frame, as pandas and Dask note them in their files."""
    noted = (schema.metadata or {}).get(b"pandas")
    return [] if noted is None else json.loads(noted).get("index_columns", [])


def _numbers(column: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_null(column.type):
        column = column.cast(pa.float64())
    return column.to_numpy(zero_copy_only=False)


def parquet_parts(file: Any, n_values: int) -> Iterator[pd.DataFrame]:
    """The rows of a Parquet file as data frames of at most this number of values."""
    from pyarrow.parquet import ParquetFile

    table = ParquetFile(file)
    names = [name for name in table.schema_arrow.names if name not in _index_columns(table.schema_arrow)]
    for batch in table.iter_batches(max(1, n_values // max(1, len(names))), columns=names):
        yield batch.to_pandas()
