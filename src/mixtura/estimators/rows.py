"""Rows of users (arrays, frames, tensors, memory maps) become sources of rows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import ArraySource, Block, Source, TensorSource, present, warped
from mixtura.engine.threads import limit_after_fork
from mixtura.engine.tuning import FEW_VALUES
from mixtura.model.transforms import Transform
from mixtura.streams.batches import Sharded
from mixtura.values.extents import Extents, extents_of

if TYPE_CHECKING:
    import pandas as pd

# Types of columns of a frame that are not numeric.
NOT_NUMBERS = ("category", "string", "str", "interval")
DATES = ("datetime", "timedelta", "period")


@dataclass(frozen=True)
class Rows:
    """Checked rows, a tensor or an array that is read in parts, and the format of the results."""

    values: Tensor | np.ndarray
    device: torch.device
    dtype: torch.dtype
    as_tensor: bool
    warp: Transform | None = None  # applied to the rows of `source`
    extents: Extents | None = None  # of these rows, or bounds of them
    home: torch.device | None = None  # device of results and fitted parameters; None: that of the computation

    def __len__(self) -> int:
        return len(self.values)

    def source(
        self,
        labels: Tensor | None = None,
        shares: Tensor | None = None,
        weights: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> Source:
        """The source of rows, labels and weights, without rows of weight zero."""
        extents = self.extents if weights is None or bool((weights > 0).all()) else None
        if isinstance(self.values, np.ndarray):
            known = (labels, shares, weights)
            source: Source = ArraySource(self.values, *known, self.device, self.dtype, counts, extents=extents)
        else:
            labels, shares, weights, counts = (
                None if t is None else t.to(self.device) for t in (labels, shares, weights, counts)
            )
            block = present(Block(self.values.to(self.device), labels, shares, weights, counts=counts))
            known = (block.labels, block.shares, block.weights, block.counts)
            source = TensorSource(block.rows, *known, extents=extents)
        return source if self.warp is None else warped(source, self.warp.to(self.device))

    def nearby(self) -> Rows:
        """Move few rows to the host: on a GPU an operation takes as long for few rows as for many."""
        if self.device.type != "cuda" or isinstance(self.values, np.ndarray) or self.values.numel() > FEW_VALUES:
            return self
        host = torch.device("cpu")
        return replace(self, values=self.values.to(host), device=host, home=self.device)

    def log_slopes(self) -> Tensor:
        """The contribution of the transform to the log density of each row, (n,)."""
        assert self.warp is not None
        warp, plain = self.warp.to(self.device), replace(self, warp=None)
        return torch.cat([warp.log_slopes(block.rows) for block in plain.source().blocks()])

    def observed_shares(self) -> Tensor | float:
        """The fraction of observed features of each row, (n,)."""
        if self.extents is not None and self.extents.complete:
            return 1.0
        blocks = replace(self, warp=None).source().blocks()
        return torch.cat([(~block.rows.isnan()).to(block.rows.dtype).mean(1) for block in blocks])

    def missing(self, columns: Tensor) -> Tensor:
        """Which values of some columns are missing, (n, J)."""
        blocks = replace(self, warp=None).source().blocks()
        return torch.cat([block.rows[:, columns.to(block.rows.device)].isnan() for block in blocks])

    def answer(self, values: Tensor) -> np.ndarray | Tensor:
        """Results in the format of the input: tensors in its precision, arrays in that of the computation."""
        if not self.as_tensor:
            return values.cpu().numpy()
        values = values if self.home is None else values.to(self.home)
        return values.to(self.dtype) if values.is_floating_point() else values


class ReadsRows(Protocol):
    """An estimator that reads rows."""

    n_features_in_: int
    feature_names_in_: np.ndarray

    @property
    def device(self) -> object: ...


def read_rows(estimator: ReadsRows, X: object, reset: bool, smallest: int = 1) -> Rows:
    """Check X; NaN means missing."""
    limit_after_fork()
    checks.rows_of_something(X)
    if is_dask(X) or isinstance(X, Sharded):
        raise checks.not_in_memory(type(estimator).__name__, f"a {type(X).__module__}.{type(X).__name__}")
    if is_batches(X):
        raise checks.not_one_table(type(estimator).__name__, type(X).__name__)
    # A model fitted on a GPU may predict on a machine without one.
    wanted_device = checks.device(estimator.device, required=reset)
    takes_nan = get_tags(estimator).input_tags.allow_nan
    if takes_nan and not reset:
        X = aligned(estimator, X)
    if isinstance(X, Tensor):
        return rows_of_tensor(_check_tensor(estimator, X, reset, smallest), wanted_device, takes_nan)
    array = _check_array(estimator, with_nan(X), reset, smallest)
    return rows_of_array(array, wanted_device, takes_nan, is_map=isinstance(X, np.memmap))


def rows_of_tensor(values: Tensor, device: torch.device | None, takes_nan: bool) -> Rows:
    """The rows of a tensor, on its own device unless another one is given."""
    values = values if values.dtype in (torch.float32, torch.float64) else values.double()
    if device is not None and device.type == "cuda" and values.numel() > FEW_VALUES:
        values = values.to(device)  # whose memory is read many times as fast
    extents = extents_of(values)
    if not extents.within(values.dtype):
        checks.no_infinity(values, takes_nan)
    return Rows(values, device or values.device, values.dtype, as_tensor=True, extents=extents)


def rows_of_array(array: np.ndarray, device: torch.device | None, takes_nan: bool, is_map: bool = False) -> Rows:
    """The rows of an array; those of a memory map are read in parts."""
    dtype = torch.float32 if array.dtype in (np.float32, np.float16) else torch.float64
    values = array if is_map else _shared(array).to(dtype)
    extents = extents_of(values)
    if not extents.within(dtype):
        raise ValueError(checks.too_large(dtype, takes_nan))
    return Rows(values, device or torch.device("cpu"), dtype, as_tensor=False, extents=extents)


def aligned(estimator: object, X: object) -> object:
    """The columns of the training frame: absent ones count as missing, new ones are left out, both with a warning."""
    names = checks.feature_names(estimator)
    if names is None or not is_table(X):
        return X
    given, known = list(X.columns), names.tolist()
    absent, new = [name for name in known if name not in given], [name for name in given if name not in known]
    if not (absent or new) or len(absent) == len(known):  # scikit-learn checks the order, and says what is wrong
        return X
    checks.distinct_columns(given)
    checks.warn_of_columns(absent, new)
    if is_pandas(X):
        return X.reindex(columns=known)
    return type(X)({name: X[name] if name in given else [None] * len(X) for name in known})


def read_array(estimator: BaseEstimator, X: object, reset: bool) -> np.ndarray:
    """Check X and return an array of float64, for estimators around another; NaN means missing."""
    checks.rows_of_something(X)
    if isinstance(X, Tensor):
        X = checks.rows(X.detach(), None, type(estimator).__name__).cpu().double().numpy()
    return _check_array(estimator, with_nan(X), reset, 1).astype(np.float64, copy=False)


@runtime_checkable
class ArrayLike(Protocol):
    """An array of any library."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@runtime_checkable
class FrameLike(Protocol):
    """A data frame of any library."""

    @property
    def columns(self) -> Iterable[Hashable]: ...
    @property
    def dtypes(self) -> Iterable[object]: ...


@runtime_checkable
class PandasLike(FrameLike, Protocol):
    """A data frame with the methods of pandas."""

    @property
    def iloc(self) -> object: ...
    @property
    def index(self) -> object: ...
    def isna(self) -> object: ...
    def mask(self, cond: object) -> object: ...


class Column(Protocol):
    """A column of a data frame of any library."""

    @property
    def dtype(self) -> object: ...
    def to_numpy(self) -> np.ndarray: ...
    def to_list(self) -> list[Hashable]: ...


class NamedColumns(FrameLike, Protocol):
    """A data frame of columns with names, as polars has it."""

    def __init__(self, data: object, schema: Sequence[Hashable] | None = None) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, name: Hashable) -> Column: ...


def is_pandas(X: object) -> TypeGuard[pd.DataFrame]:
    return isinstance(X, PandasLike)


def is_table(X: object) -> TypeGuard[NamedColumns]:
    return isinstance(X, FrameLike)


def adopt_features(estimator: object, fitted: object) -> None:
    """Copy number and names of the features from an inner estimator."""
    for name in ("n_features_in_", "feature_names_in_"):
        vars(estimator).pop(name, None)
        if name in vars(fitted):
            vars(estimator)[name] = vars(fitted)[name]


def framed_like(X: object, values: np.ndarray | Tensor) -> object:
    """Imputed samples as a data frame with the names and the index of X, if X is one (pandas or polars)."""
    if not is_table(X):
        return values
    if is_pandas(X):
        return type(X)(values, index=X.index, columns=X.columns)
    return type(X)(values, schema=list(X.columns))


def with_nan(X: object) -> object:
    """X with NaN where values are masked, or where they are None or pd.NA among objects."""
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(X.dtype if X.dtype.kind == "f" else float), np.nan)
    if isinstance(X, PandasLike):
        return X.mask(X.isna()) if any(str(kind) == "object" for kind in X.dtypes) else X
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":
        return np.where(missing_objects(X), np.nan, X)
    return X


def _shared(array: np.ndarray) -> Tensor:
    """A tensor over the memory of an array. torch warns of arrays that may not be written, but rows are only read."""
    if any(stride < 0 for stride in array.strides):  # not supported by torch
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def _check_tensor(estimator: ReadsRows, X: Tensor, reset: bool, smallest: int) -> Tensor:
    name = type(estimator).__name__
    values = checks.rows(X.detach(), None if reset else estimator.n_features_in_, name)
    checks.enough_rows(len(values), smallest, name)
    if reset:
        estimator.n_features_in_ = values.shape[1]
        if checks.feature_names(estimator) is not None:
            del estimator.feature_names_in_
    if values.dtype in (torch.float16, torch.bfloat16):
        return values.float()
    return values


def _check_array(estimator: object, X: object, reset: bool, smallest: int) -> np.ndarray:
    _refuse_categories(X)
    # A memory map keeps its own type: converting it would read all of it into memory.
    dtype = "numeric" if isinstance(X, np.memmap) else [np.float64, np.float32]
    validate = cast("Callable[..., np.ndarray]", validate_data)  # scikit-learn declares X as text
    try:
        return validate(
            estimator,
            X=X,
            reset=reset,
            dtype=dtype,
            ensure_all_finite=False,  # checked with the extents of the rows
            ensure_min_samples=smallest,
        )
    except ValueError as error:
        if "could not convert string" in str(error):
            raise ValueError(f"{error}. {checks.categorical(_text_columns(X))}") from error
        raise
    except OverflowError as error:  # integers of Python
        raise ValueError(checks.too_large(torch.float64, takes_nan=False)) from error
    except TypeError as error:
        values = sparse.coo_array(X).data if sparse.issparse(X) else None
        if values is not None and is_classifier(estimator) and (values >= 0).all():
            raise TypeError(f"{error}{checks.sparse_for_dense(type(estimator).__name__)}") from error
        if "NAType" not in str(error) or not isinstance(X, list | tuple):
            raise
        return _check_array(estimator, with_nan(np.array(X, dtype=object)), reset, smallest)


def _refuse_categories(X: object) -> None:
    if isinstance(X, FrameLike):
        checks.distinct_columns(X.columns)
        named = [c for c, kind in zip(X.columns, X.dtypes, strict=True) if str(kind).startswith(NOT_NUMBERS)]
        if named:
            raise ValueError(checks.categorical(named))
    refuse_dates(X)


def refuse_dates(X: object) -> None:
    """Raise a ValueError if columns hold dates or times."""
    if isinstance(X, FrameLike):
        named = [c for c, kind in zip(X.columns, X.dtypes, strict=True) if str(kind).lower().startswith(DATES)]
        if named:
            raise ValueError(checks.dates(named))
    elif isinstance(X, np.ndarray) and X.dtype.kind in ("m", "M"):
        raise ValueError(checks.dates([]))


def _text_columns(X: object) -> list[Hashable]:
    """Columns that hold text, by name if names are known."""
    values = np.asarray(X, dtype=object)
    if values.ndim != 2:
        return []
    names = list(X.columns) if isinstance(X, FrameLike) else range(values.shape[1])
    return [name for name, column in zip(names, values.T, strict=True) if any(isinstance(v, str) for v in column)]


def missing_objects(values: np.ndarray) -> np.ndarray:
    return np.array([is_missing(value) for value in values.flat], bool).reshape(values.shape)


def is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):  # pd.NA is neither true nor false
        return type(value).__name__ == "NAType"


class DaskCollection(Protocol):
    """An array or a data frame of Dask."""

    def compute(self) -> object: ...


def is_dask(X: object) -> TypeGuard[DaskCollection]:
    """Whether X is a Dask collection, without importing dask."""
    dask = sys.modules.get("dask")
    return dask is not None and dask.is_dask_collection(X)


def is_batches(X: object) -> TypeGuard[Iterable[object]]:
    """Whether X is a re-iterable of (X, y) batches rather than one array."""
    if isinstance(X, Tensor | str | bytes | dict | Sharded | ArrayLike | FrameLike):
        return False
    if not isinstance(X, list | tuple):
        return isinstance(X, Iterable)
    first = X[0] if len(X) else None
    if isinstance(first, ArrayLike) and len(first.shape) == 2:  # a list of arrays: batches without labels
        return True
    return isinstance(first, tuple | list) and len(first) in (2, 3) and np.ndim(first[0]) == 2


def as_array(values: object) -> np.ndarray:
    """Labels, samples or predictions as an array; NumPy has no bfloat16."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
