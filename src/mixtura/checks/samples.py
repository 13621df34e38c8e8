"""Checks of X, in memory and in parts, and of sample weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

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
    return (
        f"X has columns that are not numeric: {list(columns)}. Gaussian mixtures need numeric features: encode them "
        "first, for example with sklearn.preprocessing.OneHotEncoder in a ColumnTransformer, or drop them. "
        "MixtureClassifier, its presets, its averages and MixtureImputer take categories of a data frame in memory as "
        "they are."
    )


TEXTS = (
    "X has one dimension, as a list of texts. For texts count their words: "
    "make_pipeline(CountVectorizer(), NonnegativeMixtureClassifier()), of sklearn.pipeline and "
    "sklearn.feature_extraction.text. A table has two dimensions, samples and features."
)


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


def missingness_changed(names: Sequence[str], shares: np.ndarray, expected: np.ndarray) -> str:
    """The warning of features that are missing far more or less often than in training."""
    place = int(np.abs(shares - expected).argmax())
    more = f" (and {len(names) - 1} other features)" if len(names) > 1 else ""
    return (
        f"{100 * shares[place]:.0f} % of the values of {names[place]} are missing{more}, {100 * expected[place]:.0f} % "
        "were in training, and the class probabilities depend on which values are missing. If values are missing for "
        "other reasons now, fit with missing='ignorable'; with missing='informative' there is no such warning."
    )


class SourceError(ValueError):
    """Rows could not be read, or changed between two passes. An interrupted fit keeps its last model."""


def no_rows() -> ValueError:
    """Batches, or the part of a process, without rows."""
    return ValueError("X has no rows: it has no batches, or all of them are empty. Pass at least one row.")


def other_number_of_rows(before: int, now: int) -> SourceError:
    """Batches that changed between two passes."""
    return SourceError(
        f"The batches held {before} rows when they were first read and {now} rows now; a fit reads them many times and "
        "needs the same rows each time."
    )


def read_once(kind: str) -> SourceError:
    """Batches that cannot be iterated repeatedly."""
    return SourceError(
        f"X is a {kind}, which can be iterated only once, but a fit makes many passes over the rows; pass a list of "
        "batches or an object whose __iter__ starts again."
    )


def unread(what: str, error: Exception) -> SourceError:
    """A part of the rows that could not be read; `what` names it."""
    return SourceError(f"{what} could not be used: {error}")


def changed_file(path: str) -> SourceError:
    """A file that another program wrote to during a fit."""
    return SourceError(
        f"The file {path!r} has changed since it was first read; a fit reads its rows many times and needs the "
        "same rows each time. Write new rows to a new file."
    )


def not_in_memory(name: str, kind: str) -> ValueError:
    """An estimator that needs all rows in memory."""
    return ValueError(
        f"{name} needs all rows in memory here; got {kind}. Pass X.compute(). fit and the predictions of "
        "GaussianMixture and MixtureClassifier take distributed rows."
    )


def in_one_place(what: str) -> ValueError:
    """A solver that needs all rows in one process."""
    return ValueError(
        f"The rows are distributed over {what}, but this solver needs them in one process; use solver='em' or "
        "'baum_welch', which need only sums over the rows."
    )


def lost_scheduler(error: BaseException) -> SourceError:
    """A Dask cluster that was lost."""
    return SourceError(
        f"The Dask scheduler or its workers were lost during a pass ({type(error).__name__}: {error}); the model of "
        "the last complete iteration (if any) is kept. Start a cluster and fit again with warm_start=True to continue."
    )


def lost_process(error: BaseException) -> SourceError:
    """A process that was lost."""
    return SourceError(
        f"Another process was lost during a pass ({error}); the model of the last complete iteration (if any) is "
        "kept. Start the processes again, and fit with warm_start=True to continue."
    )


def not_over_time(covariance_type: str) -> str:
    """Covariances whose moments are projections that change from step to step."""
    return (
        f"partial_fit cannot be used with covariance_type={covariance_type!r}: its moments are projections that change "
        "with every step, so moments of earlier and later samples cannot be added; use 'full', 'tied', 'diag' or "
        "'spherical'"
    )
