"""Dask arrays and data frames as partitions, and predictions for them as lazy collections (the extra `dask`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed

from mixtura import checks
from mixtura.estimators.rows import PandasLike


def _is_array(X: Any) -> bool:
    return isinstance(X, da.Array)


def example_of(X: Any) -> Any:
    """A few rows in memory with the columns and types of a collection."""
    if _is_array(X):
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, rows and features; got an array of shape {X.shape}.")
        return np.zeros((2, X.shape[1]), X.dtype)
    if "_meta_nonempty" in dir(type(X)):  # a Delayed has attributes of all names
        return X._meta_nonempty
    raise ValueError(f"X must be a Dask array or data frame; got a {type(X).__name__}. Convert it with from_delayed.")


def partitions_of(X: Any, y: Any, sample_weight: Any) -> list[tuple[Any, Any, Any]]:
    """(X, y, sample_weight) of every partition, as delayed values."""
    rows = _delayed(X)
    others = [_delayed_like(name, part, X, len(rows)) for name, part in (("y", y), ("sample_weight", sample_weight))]
    return list(zip(rows, *others, strict=True))


def _delayed(X: Any) -> list[Any]:
    if _is_array(X):
        X = X.rechunk({1: -1}) if X.ndim == 2 else X  # rows stay whole
        return list(X.to_delayed().ravel())
    return list(X.to_delayed())


def _delayed_like(name: str, values: Any, X: Any, n_partitions: int) -> list[Any]:
    """The partitions of labels or weights, divided like the rows."""
    if values is None:
        return [None] * n_partitions
    known = _is_array(X) and not np.isnan(X.chunks[0]).any()
    if known and not is_dask_collection(values):
        checks.as_many_labels(np.asarray(values), sum(X.chunks[0]))
        cut: Any = (X.chunks[0],)
        values = da.from_array(np.asarray(values), chunks=cut)
    if not is_dask_collection(values):
        raise ValueError(
            f"{name} must be a Dask collection, divided at the same rows as X; got {type(values).__name__}."
        )
    if known and _is_array(values) and not np.isnan(values.chunks[0]).any():
        if sum(values.chunks[0]) != sum(X.chunks[0]):
            raise ValueError(f"X has {sum(X.chunks[0])} rows, but {name} has {sum(values.chunks[0])}.")
        values = values.rechunk({0: X.chunks[0]})
    parts = _delayed(values)
    if len(parts) != n_partitions:
        raise checks.unlike_partitions(name, len(parts), n_partitions)
    return parts


def lazily(predict: Callable[[Any], Any], X: Any) -> Any:
    """predict(rows) -> (n, ...) of every partition, as one lazy array, or as a lazy frame if it returns frames."""
    example = predict(example_of(X))
    task, lengths = delayed(predict, traverse=False), _lengths(X)
    work, is_frame = delayed(_predict_part), isinstance(example, PandasLike)
    nothing = example.iloc[:0] if is_frame else np.asarray(example)[:0]
    parts = [work(task, number, part, nothing) for number, part in enumerate(_delayed(X))]
    if is_frame:
        import dask.dataframe as dd  # pandas is installed, since the frame is one of its own

        return dd.from_delayed(parts, meta=nothing, divisions=X.divisions, verify_meta=False)
    arrays = [
        da.from_delayed(part, shape=(length, *nothing.shape[1:]), meta=nothing)
        for part, length in zip(parts, lengths, strict=True)
    ]
    return da.concatenate(arrays, allow_unknown_chunksizes=True)


def _lengths(X: Any) -> list[float]:
    return list(X.chunks[0]) if _is_array(X) else [np.nan] * X.npartitions


def _predict_part(predict: Callable[[Any], Any], number: int, part: Any, nothing: Any) -> Any:
    if not len(part):
        return nothing
    try:
        return predict(part) if isinstance(nothing, PandasLike) else np.asarray(predict(part))
    except ValueError as error:
        raise checks.unread(f"Partition {number}", error) from error
