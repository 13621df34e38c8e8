"""From what users pass - arrays, frames, tensors, memory maps, batches - to sources of rows, labels and weights."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from mixtura import checks
from mixtura.engine.sources import ArraySource, BatchSource, Block, Source, TensorSource, warped
from mixtura.model.warp import Warp
from mixtura.values.extents import Extents, extents_of

# Types of columns of a frame that cannot be read as numbers, or only as numbers without a meaning.
NOT_NUMBERS = ("category", "string", "str", "datetime", "timedelta", "period", "interval")


@dataclass(frozen=True)
class Rows:
    """Checked rows: a tensor, or an array that is read in parts; and how answers are handed back."""

    values: Tensor | np.ndarray
    device: torch.device
    dtype: torch.dtype
    as_tensor: bool
    warp: Warp | None = None  # that the rows of `source` go through
    extents: Extents | None = None  # of these rows, or of others among which they are

    def __len__(self) -> int:
        return len(self.values)

    def source(
        self,
        labels: Tensor | None = None,
        shares: Tensor | None = None,
        weights: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> Source:
        if isinstance(self.values, np.ndarray):
            known = (labels, shares, weights)
            source: Source = ArraySource(self.values, *known, self.device, self.dtype, counts, extents=self.extents)
        else:
            known = [None if t is None else t.to(self.device) for t in (labels, shares, weights, counts)]
            source = TensorSource(self.values.to(self.device), *known, extents=self.extents)
        return source if self.warp is None else warped(source, self.warp.to(self.device))

    def log_slopes(self) -> Tensor:
        """What the warp adds to the log density of each row, (n,)."""
        assert self.warp is not None
        warp, plain = self.warp.to(self.device), replace(self, warp=None)
        return torch.cat([warp.log_slopes(block.rows) for block in plain.source().blocks()])

    def answer(self, values: Tensor) -> Any:
        """As the input came: tensor for tensor, in its precision; array for array, in that of the computation."""
        if not self.as_tensor:
            return values.cpu().numpy()
        return values.to(self.dtype) if values.is_floating_point() else values


def read_rows(estimator: Any, X: Any, reset: bool, smallest: int = 1) -> Rows:
    """Check X; NaN means missing."""
    checks.rows_of_something(X)
    wanted_device, wanted_dtype = checks.device(estimator.device), checks.dtype(estimator.dtype)
    if isinstance(X, Tensor):
        values = _checked_tensor(estimator, X, reset, smallest)
        dtype = wanted_dtype or values.dtype
        values = values.to(dtype)
        extents = extents_of(values)
        if not extents.within(dtype):
            checks.no_infinity(values)
        return Rows(values, wanted_device or values.device, dtype, as_tensor=True, extents=extents)
    array = _checked_array(estimator, X, reset, smallest)
    dtype = wanted_dtype or (torch.float32 if array.dtype == np.float32 else torch.float64)
    device = wanted_device or torch.device("cpu")
    values = array if isinstance(X, np.memmap) else _shared(array).to(dtype)
    extents = extents_of(values)
    if not extents.within(dtype):
        raise ValueError(checks.too_large(dtype))
    return Rows(values, device, dtype, as_tensor=False, extents=extents)


def _shared(array: np.ndarray) -> Tensor:
    """A tensor over the memory of an array. torch warns of arrays that may not be written, but rows are only read."""
    if any(stride < 0 for stride in array.strides):  # which torch does not have
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def _checked_tensor(estimator: Any, X: Tensor, reset: bool, smallest: int) -> Tensor:
    name = type(estimator).__name__
    values = checks.rows(X.detach(), None if reset else estimator.n_features_in_, name)
    checks.enough_rows(len(values), smallest, name)
    if reset:
        estimator.n_features_in_ = values.shape[1]
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    return values if values.dtype in (torch.float32, torch.float64) else values.double()


def _checked_array(estimator: Any, X: Any, reset: bool, smallest: int) -> np.ndarray:
    _refuse_categories(X)
    # A memory map keeps its own type: converting it would read all of it into memory.
    dtype: Any = "numeric" if isinstance(X, np.memmap) else [np.float64, np.float32]
    try:
        checked: Any = validate_data(
            estimator,
            X=X,  # pyright: ignore[reportArgumentType]
            reset=reset,
            dtype=dtype,
            ensure_all_finite=False,  # seen from the ends of the rows, which are needed anyway
            ensure_min_samples=smallest,
        )
        return checked
    except ValueError as error:
        if "could not convert string" in str(error):
            raise ValueError(f"{error}. {checks.categorical(_text_columns(X))}") from error
        raise


def _refuse_categories(X: Any) -> None:
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        named = [c for c, kind in zip(X.columns, X.dtypes, strict=True) if str(kind).startswith(NOT_NUMBERS)]
        if named:
            raise ValueError(checks.categorical(named))


def _text_columns(X: Any) -> list[Any]:
    """Columns that hold text, by name where there are names."""
    values = np.asarray(X, dtype=object)
    if values.ndim != 2:
        return []
    names = list(getattr(X, "columns", range(values.shape[1])))
    return [name for name, column in zip(names, values.T, strict=True) if any(isinstance(v, str) for v in column)]


@dataclass(frozen=True)
class Labels:
    """Checked labels: class numbers (-1 unlabeled) or shares, and the classes they number."""

    classes: np.ndarray
    numbers: Tensor | None
    shares: Tensor | None

    @property
    def unlabeled(self) -> Tensor:
        if self.shares is not None:
            return self.shares[:, 0].isnan()
        assert self.numbers is not None
        return self.numbers < 0


def read_labels(y: Any, n_rows: int, weights: Tensor | None, unlabeled: Any, has_density: bool, name: str) -> Labels:
    """Check y: one label per row, or a matrix of shares. Rows of weight zero count as absent."""
    if y is None:
        raise ValueError(
            f"{name} requires y to be passed, but the target y is None; use GaussianMixture for rows without labels."
        )
    values = _as_array(y)
    checks.as_many_labels(values, n_rows)
    if values.ndim == 2 and values.shape[1] > 1:
        return _read_shares(values, getattr(y, "columns", range(values.shape[1])), name)
    values = column_or_1d(values, warn=True)
    checks.finite_labels(values)
    present = np.ones(len(values), bool) if weights is None else weights.cpu().numpy() > 0
    free = _unlabeled_rows(values, present, unlabeled, has_density)
    classes = checks.distinct(values[present & ~free])
    check_classification_targets(values[~free])
    checks.enough_classes(classes, int(free.sum()), name)
    numbers = np.searchsorted(classes, np.where(free | ~present, classes[0], values))
    numbers = np.where(free | ~np.isin(values, classes), -1, numbers)
    return Labels(classes, torch.from_numpy(numbers.astype(np.int64)), None)


def _as_array(y: Any) -> np.ndarray:
    return y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)


def _unlabeled_rows(values: np.ndarray, present: np.ndarray, unlabeled: Any, has_density: bool) -> np.ndarray:
    """Which rows have no label, by the argument `unlabeled`."""
    checks.one_label(unlabeled)
    nowhere = np.zeros(len(values), bool)
    if not _is_auto(unlabeled):
        return nowhere if unlabeled is None else np.asarray(values == unlabeled) | nowhere
    if values.dtype.kind != "i" or not has_density:
        return nowhere
    free = values == -1
    if not free.any() or len(np.unique(values[present & ~free])) < 2:
        return nowhere
    _warn_of_unlabeled(int(free.sum()), stacklevel=7)
    return free


def _is_auto(unlabeled: Any) -> bool:
    return isinstance(unlabeled, str) and unlabeled == "auto"


def _warn_of_unlabeled(n_rows: int, stacklevel: int) -> None:
    warnings.warn(
        f"{n_rows} rows have the label -1 and are taken as unlabeled; pass unlabeled=None if -1 is a class, or "
        "unlabeled=-1 if this is meant.",
        checks.UnlabeledWarning,
        stacklevel=stacklevel,
    )


def _read_shares(values: np.ndarray, columns: Iterable[Any], name: str) -> Labels:
    shares = checks.soft_labels(values)
    classes = np.array(list(columns))
    if np.isnan(shares).all():
        checks.enough_classes([], len(shares), name)
    checks.shared_classes(shares, classes)
    return Labels(classes, None, torch.from_numpy(shares))


def is_batches(X: Any) -> bool:
    """Whether X is a re-iterable of (X, y) batches rather than one array."""
    if (
        isinstance(X, Tensor | str | bytes | dict)
        or hasattr(X, "__array__")
        or hasattr(X, "shape")
        or hasattr(X, "columns")
    ):
        return False
    if not isinstance(X, list | tuple):
        return isinstance(X, Iterable)
    first = X[0] if len(X) else None
    if getattr(first, "ndim", 0) == 2:  # a list of arrays: batches without labels
        return True
    return isinstance(first, tuple | list) and len(first) in (2, 3) and np.ndim(first[0]) == 2


def first_batch(batches: Any) -> Any:
    """The first batch of a re-iterable that has one."""
    if iter(batches) is batches:
        raise ValueError(
            f"X is a {type(batches).__name__}, which can be gone through only once, but a fit goes through the rows "
            "many times; pass a list of batches or an object whose __iter__ starts anew."
        )
    for batch in batches:
        return batch
    raise ValueError("X is an iterable without batches; pass at least one batch, such as (X, y).")


def split_batch(batch: Any) -> tuple[Any, Any, Any]:
    """(X, y, sample_weight) of a batch; y and sample_weight may be left out."""
    if isinstance(batch, tuple | list):
        parts = [*batch, None, None]
        return parts[0], parts[1], parts[2]
    return batch, None, None


def look_at_batches(
    estimator: Any, batches: Any, unlabeled: Any, has_density: bool, name: str
) -> tuple[np.ndarray, Any]:
    """One look at all batches: the classes, and the label that means unlabeled; features are set on the estimator."""
    read_rows(estimator, split_batch(first_batch(batches))[0], reset=True)
    counts: Counter[Any] = Counter()
    integers = True
    for batch in batches:
        X, y, _ = split_batch(batch)
        values = _batch_labels(y, len(read_rows(estimator, X, reset=False)), name)
        integers = integers and values.dtype.kind == "i"
        counts.update(values.tolist())
    if _is_auto(unlabeled):
        unlabeled = -1 if integers and has_density and counts[-1] and len(counts) > 2 else None
        if unlabeled is not None:
            _warn_of_unlabeled(counts[-1], stacklevel=5)
    n_unlabeled = 0 if unlabeled is None else counts.pop(unlabeled, 0)
    classes = np.array(sorted(counts))
    checks.enough_classes(classes, n_unlabeled, name)
    return classes, unlabeled


def _batch_labels(y: Any, n_rows: int, name: str) -> np.ndarray:
    if y is None:
        raise ValueError(f"{name} needs batches of (X, y) or (X, y, sample_weight); a batch without y was found.")
    values = _as_array(y)
    checks.as_many_labels(values, n_rows)
    if values.ndim != 1:
        raise ValueError(
            f"y of a batch must hold one label per row; got shape {values.shape}. Soft labels need all rows at once: "
            "pass X and y as arrays or memory maps."
        )
    checks.finite_labels(values)
    return values


def batch_source(estimator: Any, batches: Any, classes: np.ndarray | None = None, unlabeled: Any = None) -> BatchSource:
    """A source over batches whose classes are known; every batch is checked each time it is read."""
    probe = read_rows(estimator, split_batch(first_batch(batches))[0], reset=False)

    def read(batch: Any) -> Block:
        X, y, sample_weight = split_batch(batch)
        rows = read_rows(estimator, X, reset=False)
        weights = checks.sample_weight(sample_weight, len(rows), all_rows=False)
        numbers = None
        if classes is not None:
            numbers = _number(_batch_labels(y, len(rows), type(estimator).__name__), classes, unlabeled)
        block = next(iter(rows.source(numbers, None, weights).blocks()))
        values = block.rows.to(probe.device, probe.dtype)
        return Block(values, block.labels, None, block.weights, complete=block.complete)

    return BatchSource(batches, read, estimator.n_features_in_, probe.device, probe.dtype)


def _number(values: np.ndarray, classes: np.ndarray, unlabeled: Any) -> Tensor:
    free = np.zeros(len(values), bool) if unlabeled is None else np.asarray(values == unlabeled)
    numbers = np.searchsorted(classes, np.where(free, classes[0], values)).clip(0, len(classes) - 1)
    strangers = ~free & (classes[numbers] != values)
    if strangers.any():
        raise ValueError(
            f"A batch holds the label {values[strangers.argmax()].item()!r}, which the first reading did not show; "
            "batches must hold the same rows each time they are gone through."
        )
    return torch.from_numpy(np.where(free, -1, numbers).astype(np.int64))
