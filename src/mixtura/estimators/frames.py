"""Arrays, data frames and collections of users: what they are, their columns, and their missing values."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from operator import methodcaller
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.streams.batches import Sharded

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from dask.base import DaskMethodsMixin

# Types of columns of a frame that are not numeric.
NOT_NUMBERS = ("category", "string", "str", "interval")
DATES = ("datetime", "timedelta", "period")


def offers(X: object, *names: str) -> bool:
    """Whether the class of X has attributes of these names; instances, as Delayed of Dask, may answer to any name."""
    return all(any(name in vars(kind) for kind in type(X).__mro__) for name in names)


def is_table(X: object) -> TypeGuard[pl.DataFrame]:
    """Whether X is a data frame of any library: its columns have names."""
    return offers(X, "columns", "dtypes")


def is_pandas(X: object) -> TypeGuard[pd.DataFrame]:
    """Whether X is a data frame with the methods of pandas."""
    return offers(X, "columns", "dtypes", "iloc")


def is_series(X: object) -> TypeGuard[pd.Series]:
    return type(X).__name__ == "Series" and "to_frame" in dir(X)


def is_dask(X: object) -> TypeGuard[DaskMethodsMixin]:
    """Whether X is a Dask collection, without importing dask."""
    dask = sys.modules.get("dask")
    return dask is not None and dask.is_dask_collection(X)


def is_batches(X: object) -> TypeGuard[Iterable[object]]:
    """Whether X is a re-iterable of (X, y) batches rather than one array."""
    if isinstance(X, Tensor | str | bytes | dict | Sharded) or offers(X, "shape") or is_table(X):
        return False
    if not isinstance(X, list | tuple):
        return isinstance(X, Iterable)
    first = X[0] if len(X) else None
    if offers(first, "shape") and len(checks.shape_of(first)) == 2:  # a list of arrays: batches without labels
        return True
    return isinstance(first, tuple | list) and len(first) in (2, 3) and np.ndim(first[0]) == 2


def as_array(values: object) -> np.ndarray:
    """Labels, samples or predictions as an array; NumPy has no bfloat16."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):  # pd.NA is neither true nor false
        return type(value).__name__ == "NAType"


def missing_objects(values: np.ndarray) -> np.ndarray:
    return np.array([is_missing(value) for value in values.flat], bool).reshape(values.shape)


def with_nan(X: object) -> object:
    """X with NaN where values are masked, or where they are None or pd.NA among objects."""
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(X.dtype if X.dtype.kind == "f" else float), np.nan)
    if is_pandas(X):
        return X.mask(X.isna()) if any(str(kind) == "object" for kind in X.dtypes) else X
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":
        return np.where(missing_objects(X), np.nan, X)
    return X


def columns_of(X: object) -> list[object]:
    """The columns of a frame or an array."""
    if is_pandas(X):
        return [X.iloc[:, j] for j in range(X.shape[1])]
    if is_table(X):
        return [X[name].to_numpy() for name in X.columns]
    array = np.asarray(X)
    return [array[:, j] for j in range(array.shape[1])]


def as_numbers(column: object) -> np.ndarray:
    """A numeric column, missing values as NaN."""
    values = np.asarray(column, dtype=object)
    try:
        return np.array([np.nan if is_missing(value) else float(value) for value in values])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}. Name the feature in categorical_features, or leave it out.") from error


def plain(value: Hashable) -> Hashable:
    return value.item() if isinstance(value, np.generic) else value


def framed_like(X: object, values: np.ndarray | Tensor) -> object:
    """Imputed samples as a data frame with the names and the index of X, if X is one (pandas or polars)."""
    if not is_table(X):
        return values
    if is_pandas(X):
        return type(X)(values, index=X.index, columns=X.columns)
    return type(X)(values, schema=list(X.columns))


def refuse_categories(X: object) -> None:
    if is_table(X):
        checks.distinct_columns(X.columns)
        named = [c for c, kind in zip(X.columns, X.dtypes, strict=True) if str(kind).startswith(NOT_NUMBERS)]
        if named:
            raise ValueError(checks.categorical(named))
    refuse_dates(X)


def refuse_dates(X: object) -> None:
    """Raise a ValueError if columns hold dates or times."""
    if is_table(X):
        named = [c for c, kind in zip(X.columns, X.dtypes, strict=True) if str(kind).lower().startswith(DATES)]
        if named:
            raise ValueError(checks.dates(named))
    elif isinstance(X, np.ndarray) and X.dtype.kind in ("m", "M"):
        raise ValueError(checks.dates([]))


def text_columns(X: object) -> list[Hashable]:
    """Columns that hold text, by name if names are known."""
    values = np.asarray(X, dtype=object)
    if values.ndim != 2:
        return []
    names = list(X.columns) if is_table(X) else range(values.shape[1])
    return [name for name, column in zip(names, values.T, strict=True) if any(isinstance(v, str) for v in column)]


def from_arrow(X: object) -> object:
    """A table of Arrow as a data frame of pandas, and anything else as it is."""
    return methodcaller("to_pandas")(X) if type(X).__module__ == "pyarrow.lib" else X


def as_frame(X: object) -> pd.DataFrame:
    """A pandas data frame of a data frame of pandas, polars or Arrow."""
    if not is_pandas(X) and "to_pandas" in dir(X):
        X = methodcaller("to_pandas")(X)
    if not is_pandas(X):
        raise TypeError(f"X must be a pandas data frame, whose columns have names; got {type(X).__name__}.")
    checks.distinct_columns(X.columns)
    return X
