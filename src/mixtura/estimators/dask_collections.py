"""Dask arrays and data frames as partitions, and predictions for them as lazy collections (the extra `dask`)."""

from __future__ import annotations

from collections.abc import Callable, Sized
from operator import methodcaller
from typing import TYPE_CHECKING, TypeGuard, cast

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed

from mixtura import checks
from mixtura.estimators.frames import is_pandas

if TYPE_CHECKING:
    import dask.dataframe as dd

# Dask declares chunks as text.
divide = cast("Callable[..., da.Array]", da.from_array)
rechunk = cast("Callable[..., da.Array]", da.rechunk)


def _is_frame(X: object) -> TypeGuard[dd.DataFrame]:
    return "_meta_nonempty" in dir(type(X))  # a Delayed has attributes of all names


def example_of(X: object) -> object:
    """A few rows in memory with the columns and types of a collection."""
    if isinstance(X, da.Array):
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, rows and features; got an array of shape {X.shape}.")
        return np.zeros((2, int(X.shape[1])), X.dtype)
    if _is_frame(X):
        return X._meta_nonempty
    raise ValueError(f"X must be a Dask array or data frame; got a {type(X).__name__}. Convert it with from_delayed.")


def partitions_of(X: object, y: object, sample_weight: object) -> list[tuple[object, object, object]]:
    """(X, y, sample_weight) of every partition, as delayed values."""
    rows = _delayed(X)
    others = [_delayed_like(name, part, X, len(rows)) for name, part in (("y", y), ("sample_weight", sample_weight))]
    return list(zip(rows, *others, strict=True))


def _delayed(X: object) -> list[Delayed]:
    if not isinstance(X, da.Array):
        return list(methodcaller("to_delayed")(X))
    whole = rechunk(X, {1: -1}) if X.ndim == 2 else X  # rows stay whole
    return methodcaller("to_delayed")(whole).ravel().tolist()


def _delayed_like(name: str, values: object, X: object, n_partitions: int) -> list[Delayed] | list[None]:
    """The partitions of labels or weights, divided like the rows."""
    if values is None:
        return [None] * n_partitions
    lengths = X.chunks[0] if isinstance(X, da.Array) and not np.isnan(X.chunks[0]).any() else None
    if lengths is not None and not is_dask_collection(values):
        checks.as_many_labels(np.asarray(values), sum(lengths))
        values = divide(np.asarray(values), chunks=(lengths,))
    if not is_dask_collection(values):
        raise ValueError(
            f"{name} must be a Dask collection, divided at the same rows as X; got {type(values).__name__}."
        )
    if lengths is not None and isinstance(values, da.Array) and not np.isnan(values.chunks[0]).any():
        if sum(values.chunks[0]) != sum(lengths):
            raise ValueError(f"X has {sum(lengths)} rows, but {name} has {sum(values.chunks[0])}.")
        values = rechunk(values, {0: lengths})
    parts = _delayed(values)
    if len(parts) != n_partitions:
        raise ValueError(
            f"X has {n_partitions} partitions and {name} has {len(parts)}; both must be divided at the same rows: take "
            "them from the same data frame, or rechunk them."
        )
    return parts


def lazily(predict: Callable[[object], object], X: object) -> object:
    """predict(rows) -> (n, ...) of every partition, as one lazy array, or as a lazy frame if it returns frames."""
    example = predict(example_of(X))
    task, lengths = delayed(predict, traverse=False), _lengths(X)
    work = delayed(_predict_part)
    nothing = example.iloc[:0] if is_pandas(example) else np.asarray(example)[:0]
    parts = [work(task, number, part, nothing) for number, part in enumerate(_delayed(X))]
    if is_pandas(nothing):
        import dask.dataframe as dd  # pandas is installed, since the frame is one of its own

        return dd.from_delayed(parts, meta=nothing, divisions=cast("dd.DataFrame", X).divisions, verify_meta=False)
    arrays = [
        da.from_delayed(part, shape=(length, *nothing.shape[1:]), meta=nothing)
        for part, length in zip(parts, lengths, strict=True)
    ]
    return da.concatenate(arrays, allow_unknown_chunksizes=True)


def _lengths(X: object) -> list[float]:
    return list(X.chunks[0]) if isinstance(X, da.Array) else [np.nan] * cast("dd.DataFrame", X).npartitions


def _predict_part(predict: Callable[[object], object], number: int, part: Sized, nothing: object) -> object:
    if not len(part):
        return nothing
    try:
        return predict(part) if is_pandas(nothing) else np.asarray(predict(part))
    except ValueError as error:
        raise checks.unread(f"Partition {number}", error) from error
