"""Checks of X and of sample weights. A message says what is wrong, which value was passed and how to fix it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from mixtura.checks.arguments import warn
from mixtura.checks.fitted import feature_names


def rows(values: Tensor, expected: int | None, name: str) -> Tensor:
    """Check that X is a two-dimensional tensor of real numbers, for the estimator of this name."""
    if values.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {values.ndim}D tensor instead, of shape {tuple(values.shape)}. Reshape X: one "
            "row per sample, one column per feature."
        )
    if expected is not None and values.shape[1] != expected:
        raise ValueError(f"X has {values.shape[1]} features, but {name} is expecting {expected} features as input.")
    if values.shape[1] == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={tuple(values.shape)}) while a minimum of 1 is required by {name}."
        )
    if values.is_complex() or values.dtype == torch.bool:
        raise ValueError(
            f"X must hold real numbers; got dtype {values.dtype}. Convert it, for example with X.double()."
        )
    return values


def _fix_of_infinity(takes_nan: bool) -> str:
    return (
        "those samples, clip them, or set the values to NaN (missing)." if takes_nan else "those samples, or clip them."
    )


def no_infinity(values: Tensor, takes_nan: bool) -> None:
    """Check that values are finite or NaN."""
    if values.is_floating_point() and bool(values.isinf().any()):
        row = int(values.isinf().any(1).nonzero()[0])
        raise ValueError(f"Input X contains infinity, first in row {row}; remove {_fix_of_infinity(takes_nan)}")


def too_large(dtype: torch.dtype, takes_nan: bool) -> str:
    """scikit-learn's message about infinities in an array, with a fix."""
    name = str(dtype).removeprefix("torch.")
    return f"Input X contains infinity or a value too large for dtype('{name}'). Remove {_fix_of_infinity(takes_nan)}"


def distinct_columns(names: Iterable[Hashable]) -> None:
    """Check that no two columns of a frame have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"X has more than one column named {repeated[0]!r}; rename one of them.")


def rows_of_something(values: object) -> None:
    """Reject types that can never be a table of samples."""
    if values is None or type(values) in (
        str,
        bytes,
        dict,
        set,
    ):  # not their subclasses: some sparse matrices are dicts
        raise ValueError(
            "X must be a table of numbers: an array, a data frame, a tensor, a memory map or a list of rows; got "
            f"{type(values).__name__}."
        )
    if type(values).__module__.startswith("pyarrow") and type(values).__name__.endswith("Dataset"):
        raise ValueError("X is a data set of pyarrow; pass mixtura.streams.files.FileBatches(X).")


def column_name(estimator: object, column: int) -> str:
    """A column by its number and, where known, its name."""
    names = feature_names(estimator)
    return f"column {column}" if names is None else f"column {column} ({names[column]!r})"


# Below this spread variances are denormal and lose digits.
SMALLEST_SPREAD = 1e-150


def squareable(estimator: object, centre: Tensor, radii: Tensor, weight: float = 1.0) -> None:
    """Check that weighted squares of rows, within these radii of the centre, neither overflow nor underflow."""
    small_enough(estimator, centre, radii, weight)
    too_small = (radii > 0) & (radii < SMALLEST_SPREAD)
    if bool(too_small.any()):
        column = int(too_small.int().argmax())
        raise ValueError(
            f"X varies by at most {2 * float(radii[column]):g} in {column_name(estimator, column)}; its variance "
            "underflows. Rescale that column, or remove it."
        )


def small_enough(estimator: object, centre: Tensor, radii: Tensor, weight: float = 1.0) -> None:
    """Check that weighted squares of rows, within these radii of the centre, do not overflow."""
    sizes = centre.abs() + radii
    too_large = ~(sizes.square() * max(weight, 1.0)).isfinite()
    if bool(too_large.any()):
        column = int(torch.where(too_large, sizes, 0.0).argmax())
        raise ValueError(
            f"X holds values up to {float(sizes[column]):g} in {column_name(estimator, column)}; their squares "
            "overflow. Rescale that column, or remove such values."
        )


# Largest distance of a value from a component, in standard deviations, by the precision of the computation.
FARTHEST = {torch.float64: 1e100, torch.float32: 1e15}


def near_enough(estimator: object, values: Tensor, distances: Tensor, dtype: torch.dtype) -> None:
    """Check the distances (2, D), in standard deviations, of the extreme values (2, D) of each column."""
    far = ~(distances <= FARTHEST[dtype]) & ~values.isnan()
    if bool(far.any()):
        place = int(torch.where(far, distances.nan_to_num(posinf=torch.inf, nan=torch.inf), 0.0).argmax())
        column = place % values.shape[1]
        raise ValueError(
            f"X holds {float(values.flatten()[place]):g} in {column_name(estimator, column)}, more than "
            f"{FARTHEST[dtype]:g} standard deviations from a component: probabilities cannot be computed. Check the "
            "units of that column, or remove such values."
        )


def observed(columns: Tensor) -> None:
    """Check that at least one column has an observed value."""
    if not bool(columns.any()):
        raise ValueError(
            "X has no observed value: all values of samples with positive weight are NaN. Check how X was read."
        )


def enough_rows(n_rows: int, smallest: int, name: str) -> None:
    if n_rows < smallest:
        raise ValueError(f"Found array with {n_rows} sample(s) while a minimum of {smallest} is required by {name}.")


def categorical(columns: Sequence[Hashable]) -> str:
    """The message about columns that are not numeric, by name where names are known."""
    which = f"columns that are not numeric: {list(columns)}" if len(columns) else "values that are not numeric"
    return (
        f"X has {which}. Gaussian mixtures need numeric features: encode them first, for example with "
        "sklearn.preprocessing.OneHotEncoder in a ColumnTransformer, or drop them. MixtureClassifier, its "
        "presets, its averages and MixtureImputer take categories of a data frame in memory as they are."
    )


def warn_of_columns(absent: Sequence[Hashable], new: Sequence[Hashable]) -> None:
    """Warn of columns of the training frame that are absent in another one, and of those that are new in it."""
    words = [f"{absent} of the training samples are absent and count as missing"] if absent else []
    words += [f"{new} are new and have no effect"] if new else []
    warn(f"Columns of X differ from those in training: {'; '.join(words)}.", UserWarning)


def dates(columns: Sequence[Hashable]) -> str:
    """The message about columns of dates or times, by name where names are known."""
    which = f" in columns {list(columns)}" if len(columns) else ""
    return (
        f"X holds dates or times{which}. Gaussian mixtures need numeric features: convert them first, for example to "
        "days since a date, or to month and weekday, as mixtura.estimators.TableClassifier does, or drop them."
    )


def sample_weight(values: object, n_rows: int, all_rows: bool = True) -> Tensor | None:
    """Check that there is one non-negative finite weight per row, and one above 0 if these are all rows."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        try:
            if isinstance(values, np.ma.MaskedArray):
                values = np.ma.filled(values.astype(float), np.nan)
            if np.asarray(values).dtype.kind == "c":
                raise TypeError("they are complex")
            values = torch.from_numpy(np.array(values, dtype=float))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"sample_weight must hold one number per sample; it could not be converted to numbers: {error}."
            ) from error
    weights = values.detach().double()
    if weights.ndim == 0:
        weights = weights.expand(n_rows).clone()
    if weights.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar; got shape {tuple(weights.shape)}.")
    if len(weights) != n_rows:
        raise ValueError(f"sample_weight.shape == {tuple(weights.shape)}, expected {(n_rows,)}!")
    bad = ~weights.isfinite()
    if bool(bad.any()):
        raise ValueError(
            f"sample_weight must be finite; {int(bad.sum())} weights are NaN or infinite, the first in row "
            f"{int(bad.nonzero()[0])}. Set such weights to 0, or remove the samples."
        )
    if bool((weights < 0).any()):
        raise ValueError(
            f"Negative values in data passed to `sample_weight`: the smallest is {float(weights.min()):g}; "
            f"weights must be at least 0."
        )
    if all_rows and not bool((weights > 0).any()):
        raise ValueError("sample_weight is zero for every sample; at least one weight must be positive.")
    return weights


# Between these limits squares of weighted sums are finite, and so is a prior divided by the total weight.
LEAST_WEIGHT, MOST_WEIGHT = 1e-30, 1e30


def total_weight(total: float) -> None:
    """Check that the sum of all weights neither overflows nor underflows."""
    if not LEAST_WEIGHT <= total <= MOST_WEIGHT:
        raise ValueError(
            f"The sum of all sample weights (sample_weight times class_weight) must be between {LEAST_WEIGHT:g} and "
            f"{MOST_WEIGHT:g}; got {total:g}. Weights are counts of samples: divide sample_weight by its mean."
        )


def rows_to_hold_out(available: bool, other: str) -> None:
    """Check that there are samples to hold out; the only sample of a class cannot be held out."""
    if not available:
        raise ValueError(
            "Candidates are compared on held-out samples, but every class has a single sample, which cannot be held "
            f"out. Add samples, or {other}."
        )


def alone_with_batches(**arguments: object) -> None:
    """Check that arguments with one entry per row are None if rows come in batches."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"{given[0]} cannot be combined with an X of batches or of Dask. Put weights into the batches, as "
            "(X, y, sample_weight), or, for Dask, into sample_weight."
        )


TAKE_NAN = "MixtureClassifier, DiscriminativeMixtureClassifier, HybridMixtureClassifier or AveragedMixtureClassifier"
NEEDS_DENSITY = (
    "sample",
    "impute",
    "score_samples",
    "predict_joint_log_proba",
    "explain",
    "feature_importances",
    "outlier_score",
    "is_outlier",
    "calibrate_outliers",
    "bic",
    "aic",
    "icl",
)


def no_categories(name: str, encoding: object) -> None:
    """Raise an error for methods that do not support categorical features."""
    if encoding is not None:
        raise ValueError(
            f"{name} does not support categorical features. Use a MixtureClassifier that is fitted to the numeric "
            "features, or encode the others."
        )


def hard_labels(numbers: Tensor | None, name: str) -> Tensor:
    """Check that labels are not soft, and return the class numbers."""
    if numbers is None:
        raise ValueError(
            f"{name} needs one label per sample; y has several columns, which means soft labels. Pass the most "
            f"probable label of each sample, or use MixtureClassifier, which supports soft labels."
        )
    return numbers


def no_density(name: str, method: str) -> str:
    """The message about a method that needs a density."""
    return (
        f"{name} has no {method!r}: it models p(class | x) and has no density p(x). Use MixtureClassifier or "
        f"GaussianMixture."
    )


def finite_features(
    values: Tensor | np.ndarray, columns: Callable[[], np.ndarray] | None, named: Callable[[int], str], name: str
) -> None:
    """Check that values are finite; for sparse rows, columns() gives the column of each stored value."""
    entries = torch.as_tensor(values)
    bad = ~entries.isfinite()
    if not bool(bad.any()):
        return
    what = "NaN" if bool(entries.isnan().any()) else "infinity"
    position = int((entries.isnan() if what == "NaN" else bad).flatten().nonzero()[0])
    column = int(columns()[position]) if columns else position % entries.shape[1]
    fix = f"impute the missing values first, or use an estimator that supports them: {TAKE_NAN}."
    if what == "infinity":
        fix = f"remove {_fix_of_infinity(takes_nan=False)}"
    raise ValueError(f"Input X contains {what}, first in {named(column)}; {name} does not accept it: {fix}")


def non_negative_features(
    values: Tensor | np.ndarray, columns: Callable[[], np.ndarray] | None, named: Callable[[int], str], name: str
) -> None:
    """Check that values are at least 0; for sparse rows, columns() gives the column of each stored value."""
    entries = torch.as_tensor(values)
    bad = entries < 0
    if not bool(bad.any()):
        return
    negative_columns = torch.as_tensor(columns())[bad] if columns else bad.any(0).nonzero()[:, 0]
    column = int(negative_columns.min())
    own = entries[bad & (torch.as_tensor(columns()) == column)] if columns else entries[:, column]
    raise ValueError(
        f"Negative values in data passed to {name}: features must be at least 0; {named(column)} holds "
        f"{float(own.min()):g}. Subtract the smallest value of that column."
    )


def bounded_scores(estimator: object, largest: Tensor, coefficients: Tensor) -> None:
    """Check that products of features, at most `largest` (D,), with coefficients (J, D) do not overflow."""
    products = largest * coefficients.abs().amax(0)
    if not float(products.sum()) < 1e150:
        column = int(products.nan_to_num(nan=torch.inf).argmax())
        raise ValueError(
            f"X holds {float(largest[column]):g} in {column_name(estimator, column)}, too large to compute "
            "probabilities. Check the units of that column, or remove such values."
        )


def as_many_names(names: np.ndarray, n_features: int) -> None:
    """Raise an error unless there is one name for each feature."""
    if names.shape != (n_features,):
        raise ValueError(
            f"feature_names must hold one name for each of the {n_features} features; got shape {names.shape}."
        )


def missingness_changed(names: Sequence[str], shares: np.ndarray, expected: np.ndarray) -> str:
    """The warning of features that are missing far more or less often than in training."""
    place = int(np.abs(shares - expected).argmax())
    more = f" (and {len(names) - 1} other features)" if len(names) > 1 else ""
    return (
        f"{100 * shares[place]:.0f} % of the values of {names[place]} are missing{more}, {100 * expected[place]:.0f} % "
        "were in training, and the class probabilities depend on which values are missing. If values are missing for "
        "other reasons now, fit with missing='ignorable'; with missing='informative' there is no such warning."
    )


def sparse_for_dense(name: str) -> str:
    """Say which classifier takes sparse rows."""
    return (
        f" {name} has Gaussian components, which suit few dense features. For counts of words and other sparse rows of "
        "non-negative features use NonnegativeMixtureClassifier."
    )


def rank_of_codes(n_basis: object, shape: Sequence[int]) -> None:
    """Check that the rank of a factorisation is at most the numbers of rows and features."""
    if len(shape) == 2 and isinstance(n_basis, Integral) and int(n_basis) > min(shape):
        raise ValueError(
            f"n_basis must be at most min(n_samples, n_features) = {min(shape)} for X of shape {tuple(shape)}; got "
            f"{n_basis}."
        )
