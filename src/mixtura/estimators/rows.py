"""Rows of users (arrays, frames, tensors, memory maps) become sources of rows, and with labels the data of a fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import ArraySource, Block, BlockSource, Source, TensorSource, present, warped
from mixtura.engine.threads import limit_after_fork
from mixtura.engine.tuning import FEW_VALUES
from mixtura.estimators.categorical import Encoding, find_encoding
from mixtura.estimators.estimator import Estimator
from mixtura.estimators.frames import (
    from_arrow,
    is_batches,
    is_dask,
    is_pandas,
    is_table,
    refuse_categories,
    refuse_dates,
    text_columns,
    with_nan,
)
from mixtura.estimators.labels import Labels
from mixtura.model.transforms import Transform
from mixtura.streams.batches import Sharded
from mixtura.values.extents import Extents, extents_of


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
            complete = extents is not None and extents.complete
            block = Block(self.values, labels, shares, weights, counts=counts, complete=complete)
            source = BlockSource(present(block.each(lambda part: part.to(self.device))), extents)
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


@dataclass(frozen=True)
class Data:
    """Checked samples of a fit; `rows`, `labels` and `weights` are None if they come in parts."""

    source: Source
    classes: np.ndarray | None = None
    n_unlabeled: int = 0
    encoding: Encoding | None = None
    cv: object = 5
    held_out: TensorSource | None = None
    rows: Rows | None = None
    labels: Labels | None = None
    weights: Tensor | None = None

    @property
    def home(self) -> torch.device | None:
        """Device of fitted parameters, if they are computed on another one."""
        return None if self.rows is None else self.rows.home


def read_samples(estimator: Estimator, X: object, reset: bool, smallest: int = 1) -> Rows:
    """Check samples and encode categorical features, which are found if `reset`; tables of Arrow become data frames."""
    X = from_arrow(X)
    if reset:
        estimator.encoding_ = find_encoding(X, estimator.categorical_features)
    if estimator.encoding_ is None:
        return read_rows(estimator, X, reset, smallest)
    refuse_dates(X)
    return read_encoded(estimator, estimator.encoding_, X, reset, smallest)


def read_encoded(estimator: Estimator, encoding: Encoding, X: object, reset: bool, smallest: int = 1) -> Rows:
    """Check the rows of encoded samples; tensors are already encoded."""
    name, n_columns = type(estimator).__name__, encoding.n_columns
    if isinstance(X, Tensor) and (X.ndim != 2 or X.shape[1] != n_columns):
        raise ValueError(
            f"A tensor must hold encoded samples, {len(encoding.numeric)} numeric features and {sum(encoding.sizes)} "
            f"indicators of categories; got shape {tuple(X.shape)}. Pass a data frame or an array with categories."
        )
    checks.enough_rows(len(cast("Sized", X)), smallest, name)
    limit_after_fork()
    device = checks.device(estimator.device, required=False)
    if isinstance(X, Tensor):
        return rows_of_tensor(checks.rows(X.detach(), n_columns, name), device, True)
    X = X if reset else aligned(estimator, X)
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)
    return rows_of_array(encoding.encode(X), device, True)


def read_rows(estimator: Estimator, X: object, reset: bool, smallest: int = 1) -> Rows:
    """Check X; NaN means missing."""
    limit_after_fork()
    checks.rows_of_something(X)
    if is_dask(X) or isinstance(X, Sharded):
        raise checks.not_in_memory(type(estimator).__name__, f"a {type(X).__module__}.{type(X).__name__}")
    if is_batches(X):
        raise ValueError(
            f"{type(estimator).__name__} got an X of batches ({type(X).__name__}) where it needs all samples at once; "
            "pass an array, a data frame or a memory map. Batches are for predictions, and for fit of GaussianMixture "
            "and MixtureClassifier without y, with the labels in the batches, as (X, y)."
        )
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
    words = [f"{absent} of the training samples are absent and count as missing"] if absent else []
    words += [f"{new} are new and have no effect"] if new else []
    checks.warn(f"Columns of X differ from those in training: {'; '.join(words)}.", UserWarning)
    if is_pandas(X):
        return X.reindex(columns=known)
    return type(X)({name: X[name] if name in given else [None] * len(X) for name in known})


def read_array(estimator: BaseEstimator, X: object, reset: bool) -> np.ndarray:
    """Check X and return an array of float64, for estimators around another; NaN means missing."""
    checks.rows_of_something(X)
    if isinstance(X, Tensor):
        X = checks.rows(X.detach(), None, type(estimator).__name__).cpu().double().numpy()
    return _check_array(estimator, with_nan(X), reset, 1).astype(np.float64, copy=False)


def adopt_features(estimator: object, fitted: object) -> None:
    """Copy number and names of the features from an inner estimator."""
    for name in ("n_features_in_", "feature_names_in_"):
        vars(estimator).pop(name, None)
        if name in vars(fitted):
            vars(estimator)[name] = vars(fitted)[name]


def _shared(array: np.ndarray) -> Tensor:
    """A tensor over the memory of an array. torch warns of arrays that may not be written, but rows are only read."""
    if any(stride < 0 for stride in array.strides):  # not supported by torch
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def _check_tensor(estimator: Estimator, X: Tensor, reset: bool, smallest: int) -> Tensor:
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
    refuse_categories(X)
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
            columns = text_columns(X)
            raise ValueError(f"{error}. {checks.categorical(columns) if columns else checks.TEXTS}") from error
        raise
    except OverflowError as error:  # integers of Python
        raise ValueError(checks.too_large(torch.float64, takes_nan=False)) from error
    except TypeError as error:
        values = sparse.coo_array(X).data if sparse.issparse(X) else None
        if values is not None and is_classifier(estimator) and (values >= 0).all():
            raise TypeError(
                f"{error} {type(estimator).__name__} has Gaussian components, which suit few dense features. For "
                "counts of words and other sparse rows of non-negative features use NonnegativeMixtureClassifier."
            ) from error
        if "NAType" not in str(error) or not isinstance(X, list | tuple):
            raise
        return _check_array(estimator, with_nan(np.array(X, dtype=object)), reset, smallest)
