"""Parts of the rows, with labels, weights and a name for messages; rows of one of several processes; predictions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, NamedTuple, TypeVar

import numpy as np

from mixtura import checks
from mixtura.files.models import write_atomically

if TYPE_CHECKING:
    import torch.distributed as dist


class Batch(NamedTuple):
    """A part of the rows."""

    X: object
    y: object = None
    sample_weight: object = None
    origin: str = ""  # description of its origin

    @property
    def n_rows(self) -> int:
        """Number of rows; sparse matrices have a shape, but no length."""
        return len(self.X) if isinstance(self.X, list | tuple) else checks.shape_of(self.X)[0]


def named_batches(batches: Iterable[object]) -> Iterator[Batch]:
    """Batches in any form (X, (X, y) or (X, y, sample_weight)), with names; failures of the iterable are named too."""
    iterator = iter(batches)
    for number in itertools.count():
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except checks.SourceError:
            raise
        except Exception as error:  # a lost disk, or a process of a DataLoader that was killed
            raise checks.unread(f"Batch {number}", error) from error
        if isinstance(batch, Batch):
            yield batch
        elif isinstance(batch, tuple | list):
            yield Batch(*[*batch, None, None][:3], origin=f"Batch {number}")
        else:
            yield Batch(batch, origin=f"Batch {number}")


T = TypeVar("T")


@dataclass(frozen=True)
class EveryPass(Generic[T]):
    """An iterable that begins again in every pass."""

    begin: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.begin()


@dataclass(frozen=True)
class Sharded:
    """The training rows of this process.

    Every process of a `torch.distributed` group calls `fit` with its own part; each pass sums the moments over all
    processes. All processes get the same model, that of all rows together.

    Parameters
    ----------
    X : array-like, tensor, memory map or re-iterable of batches
        Rows of this process.
    y : array-like, default=None
        One label per row; None for `GaussianMixture`, or if X has batches of (X, y).
    sample_weight : array-like, default=None
        One weight per row.
    group : torch.distributed.ProcessGroup, default=None
        The processes that share the rows; None means all.

    Examples
    --------
    Start with ``torchrun --nproc-per-node=2 script.py``:

    >>> import torch.distributed as dist
    >>> from mixtura import GaussianMixture
    >>> from mixtura.streams import Sharded
    >>> dist.init_process_group("gloo")  # doctest: +SKIP
    >>> model = GaussianMixture(8, random_state=0).fit(Sharded(own_rows))  # doctest: +SKIP
    """

    X: object
    y: object = None
    sample_weight: object = None
    group: dist.ProcessGroup | None = None


class BatchedPredictions:
    """Predictions for batches of rows, computed on demand.

    Iteration yields one array per batch that has rows, and can be repeated.

    Parameters
    ----------
    predict : callable
        Takes rows and returns an array with one entry, or one row, for each.
    batches : re-iterable of batches
    name : str
        Name of a single column of the file, or prefix of several.
    labels : sequence
        Suffixes of the names of several columns.
    """

    def __init__(
        self, predict: Callable[[object], object], batches: Iterable[object], name: str, labels: Sequence[object]
    ):
        self._predict, self._batches = predict, batches
        self.name, self.labels = name, list(labels)

    def __iter__(self) -> Iterator[object]:
        for batch in named_batches(self._batches):
            if not batch.n_rows:
                continue
            try:
                yield self._predict(batch.X)
            except ValueError as error:
                raise checks.unread(batch.origin, error) from error

    def joined(self) -> np.ndarray:
        """All predictions in one array."""
        return np.concatenate(list(self._arrays()))

    def mean(self) -> float:
        """The mean of all predictions, without keeping them."""
        sums = np.array([(part.sum(dtype=np.float64), part.size) for part in self._arrays()]).sum(0)
        return float(sums[0] / sums[1])

    def _arrays(self) -> Iterator[np.ndarray]:
        empty = True
        for part in self:
            empty = False
            yield np.asarray(part)
        if empty:
            raise checks.no_rows()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write all predictions to a file, batch by batch.

        Parameters
        ----------
        path : str or Path
            A file that ends in ".parquet", ".csv" or ".npy". It gets this name when it is complete; after an error
            there is no partial file, and an existing file of this name does not change.
        """
        target = Path(path)
        write = WRITERS[checks.one_of("the ending of path", target.suffix.lower(), WRITERS)]
        try:
            with write_atomically(target) as file:
                write(file, self._arrays(), self._columns)
        except OSError as error:
            raise OSError(
                error.errno, f"Predictions could not be written to {str(path)!r}: {error.strerror or error}"
            ) from error

    def _columns(self, part: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of a table by name."""
        if part.ndim == 1:
            return {self.name: part}
        columns = zip(self.labels, part.T, strict=True)
        return {f"{self.name}_{label}": np.ascontiguousarray(column) for label, column in columns}


Columns = Callable[[np.ndarray], dict[str, np.ndarray]]


def _write_parquet(file: BinaryIO, parts: Iterable[np.ndarray], columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for part in parts:
            table = pa.table(columns(part))
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _write_csv(file: BinaryIO, parts: Iterable[np.ndarray], columns: Columns) -> None:
    import pandas as pd

    for number, part in enumerate(parts):
        pd.DataFrame(columns(part)).to_csv(file, index=False, header=number == 0)


def _write_npy(file: BinaryIO, parts: Iterable[np.ndarray], columns: Columns) -> None:
    """Write the header last, since it needs the number of rows; NumPy leaves room for it."""
    shape: tuple[int, ...] = ()
    kind: np.dtype | None = None
    n_rows = start = 0
    for part in parts:
        if kind is None:
            shape, kind = part.shape[1:], part.dtype
            if kind.hasobject:
                raise ValueError("Labels of this kind cannot be written to a .npy file; use .parquet or .csv.")
            _write_header(file, (0, *shape), kind)
            start = file.tell()
        n_rows += len(part)
        file.write(np.ascontiguousarray(part, dtype=kind).tobytes())
    assert kind is not None
    file.seek(0)
    _write_header(file, (n_rows, *shape), kind)
    assert file.tell() == start


def _write_header(file: BinaryIO, shape: tuple[int, ...], kind: np.dtype) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": kind.str, "fortran_order": False, "shape": shape})


WRITERS = {".parquet": _write_parquet, ".csv": _write_csv, ".npy": _write_npy}
