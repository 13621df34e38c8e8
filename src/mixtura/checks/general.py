"""Every check of user input and every message about it: what was wrong, the value got, what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class RepairWarning(UserWarning):
    """Something degenerate in the data or in a component was mended so that the fit could go on."""


class PriorWarning(UserWarning):
    """A prior is so strong or so weak that nothing is learned."""


def one_of(name: str, value: object, table: Iterable[str], also: str = "") -> str:
    """A name out of a table."""
    names = list(table)
    if not isinstance(value, str) or value not in names:
        options = ", ".join(repr(n) for n in names)
        raise ValueError(f"{name} must be one of {options}{also}; got {value!r}.")
    return value


def count(name: str, value: object, smallest: int = 1) -> int:
    """A whole number, at least the smallest."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < smallest:
        raise ValueError(f"{name} must be a whole number of at least {smallest}; got {value!r}.")
    return int(value)


def non_negative(name: str, value: object) -> float:
    """A number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
        raise ValueError(f"{name} must be a number of at least 0; got {value!r}.")
    return float(value)


def positive(name: str, value: object, also: str = "") -> float:
    """A number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise ValueError(f"{name} must be a number above 0{also}; got {value!r}.")
    return float(value)


def fraction(name: str, value: object) -> float:
    """A number between 0 and 1, both left out."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise ValueError(f"{name} must be a number above 0 and below 1; got {value!r}.")
    return float(value)


def share(name: str, value: object, also: str = "") -> float:
    """A number between 0 and 1, both included."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1{also}; got {value!r}.")
    return float(value)


def part(name: str, value: object) -> float:
    """A number above 0 and up to 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= 1:
        raise ValueError(f"{name} must be a number above 0 and at most 1; got {value!r}.")
    return float(value)


def switch(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}.")
    return bool(value)


def components_per_class(value: object, classes: Sequence[Any]) -> list[int]:
    """Number of components of each class, from an int or a dict class -> int."""
    if not isinstance(value, Mapping):
        return [count("n_components", value)] * len(classes)
    unknown = [key for key in value if key not in classes]
    absent = [c for c in classes if c not in value]
    if unknown or absent:
        raise ValueError(
            f"n_components as a dict must name every class once: the classes are {list(classes)}, "
            f"but {_listed('missing', absent)}{' and ' if absent and unknown else ''}{_listed('unknown', unknown)}."
        )
    return [count(f"n_components[{c!r}]", value[c]) for c in classes]


def _listed(word: str, values: list[Any]) -> str:
    return f"{word} are {values}" if values else ""


def rank(value: object, n_features: int) -> int | None:
    """A rank for low-rank covariances, None for "auto"."""
    if isinstance(value, str) and value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f'rank must be "auto" or a whole number of at least 1; got {value!r}.')
    if int(value) > n_features:
        raise ValueError(
            f"rank must not exceed the number of features, {n_features}; got {value}. "
            f'Lower it, or use covariance_type="full".'
        )
    return int(value)


def has_update(structure: Any) -> None:
    """A covariance structure that EM can fit."""
    if hasattr(structure, "for_em"):
        raise ValueError(
            f"covariance_type {structure.name!r} has no closed update, so EM cannot fit it; use 'low_rank', or a "
            "classifier with solver='gradient'."
        )


def device(value: object, required: bool = True) -> torch.device | None:
    """A torch device that is there, or None; None also where it is not required and absent."""
    if value is None:
        return None
    try:
        found = torch.device(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device must be None, "cpu", "cuda" or a torch.device; got {value!r}.') from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        if not required:
            return None
        n_found = torch.cuda.device_count() or "none"
        raise ValueError(f'device={value!r} asks for a GPU, but torch finds {n_found} here; use device=None or "cpu".')
    if found.type == "meta":
        raise ValueError(f'device must be one that holds numbers, such as "cpu" or "cuda"; got {value!r}.')
    if found.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=found)
        except (RuntimeError, AssertionError, ImportError, NotImplementedError) as error:
            if not required:
                return None
            raise ValueError(f'device={value!r} is not available here; use device=None or "cpu".') from error
    return found


def checkpoint(value: object) -> None:
    """None, or a file that can be written."""
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError(f"checkpoint must be None or the path of a file; got {value!r}.")
    path = Path(value)
    if path.is_dir():
        raise ValueError(f"checkpoint must be the path of a file; got the folder {str(path)!r}. Add a file name.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        reason = "cannot be written to" if path.parent.is_dir() else "does not exist"
        raise ValueError(
            f"checkpoint is {str(path)!r}, but the folder {str(path.parent)!r} {reason}; make it, or name another file."
        )


DTYPES = {"float32": torch.float32, "float64": torch.float64}


def dtype(value: object) -> torch.dtype | None:
    """float32, float64 or None, as a torch or NumPy type or its name."""
    if value is None:
        return None
    try:
        name = str(value).removeprefix("torch.") if isinstance(value, torch.dtype | str) else np.dtype(value).name  # pyright: ignore[reportArgumentType, reportCallIssue]
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise ValueError(f'dtype must be None, "float32" or "float64"; got {value!r}.')
    return DTYPES[name]


MEMORY_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def memory_limit(value: object) -> int:
    """Bytes of scratch memory, from a number or text like "256 MB"; None is the default."""
    if value is None:
        return 256 * 2**20
    size = _bytes(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, Real) or not 2**20 <= float(size) < float("inf"):
        raise ValueError(f'memory_limit must be at least 1 MiB, as bytes or text like "256 MB"; got {value!r}.')
    return int(float(size))


def _bytes(text: str) -> float | None:
    """The number that text like "256 MB" names, or None."""
    text = text.strip().upper()
    unit = next((u for u in sorted(MEMORY_UNITS, key=len, reverse=True) if text.endswith(u)), None)
    number = text.removesuffix(unit).strip() if unit else text
    if not number.replace(".", "", 1).isdigit():
        return None
    return float(number) * (MEMORY_UNITS[unit] if unit else 1)


def rows(values: Tensor, expected: int | None, name: str) -> Tensor:
    """A two-dimensional tensor of real numbers, for the estimator of this name."""
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
        raise ValueError(f"X must hold real numbers; got dtype {values.dtype}. Convert it, e.g. with X.double().")
    return values


def _cure_of_infinity(takes_nan: bool) -> str:
    return "those rows, clip them, or set the values to NaN (missing)." if takes_nan else "those rows, or clip them."


def no_infinity(values: Tensor, takes_nan: bool) -> None:
    """Finite numbers, or NaN."""
    if values.is_floating_point() and bool(values.isinf().any()):
        row = int(values.isinf().any(1).nonzero()[0])
        raise ValueError(f"Input X contains infinity, first in row {row}; remove {_cure_of_infinity(takes_nan)}")


def too_large(dtype: torch.dtype, takes_nan: bool) -> str:
    """The message about infinities in an array, in the words of scikit-learn, and a cure."""
    name = str(dtype).removeprefix("torch.")
    return f"Input X contains infinity or a value too large for dtype('{name}'). Remove {_cure_of_infinity(takes_nan)}"


def rows_of_something(values: object) -> None:
    """What can never be rows, whatever it holds."""
    if values is None or type(values) in (
        str,
        bytes,
        dict,
        set,
    ):  # not their subclasses: some sparse matrices are dicts
        raise ValueError(
            "X must be rows of numbers: an array, a frame, a tensor, a memory map or a list of rows; got "
            f"{type(values).__name__}."
        )


def column_name(estimator: Any, column: int) -> str:
    """A column by its number, and by its name where it has one."""
    names = getattr(estimator, "feature_names_in_", None)
    return f"column {column}" if names is None else f"column {column} ({names[column]!r})"


# A column that spreads by less has variances without all their digits.
SMALLEST_SPREAD = 1e-150


def squareable(estimator: Any, centre: Tensor, radii: Tensor, weight: float = 1.0) -> None:
    """Rows at most the radii away from the centre, whose weighted squares can be computed with."""
    sizes = centre.abs() + radii
    too_large = ~(sizes.square() * max(weight, 1.0)).isfinite()
    if bool(too_large.any()):
        column = int(torch.where(too_large, sizes, 0.0).argmax())
        raise ValueError(
            f"X holds values as large as {float(sizes[column]):g} in {column_name(estimator, column)}, too large to "
            "square; rescale that column, or remove such values."
        )
    too_small = (radii > 0) & (radii < SMALLEST_SPREAD)
    if bool(too_small.any()):
        column = int(too_small.int().argmax())
        raise ValueError(
            f"X varies by no more than {2 * float(radii[column]):g} in {column_name(estimator, column)}, too little to "
            "square; rescale that column, or leave it out."
        )


# Standard deviations between a value and a component up to which distances are computed, in the precision that is used.
FARTHEST = {torch.float64: 1e100, torch.float32: 1e15}


def near_enough(estimator: Any, values: Tensor, distances: Tensor, dtype: torch.dtype) -> None:
    """Values (2, D), the smallest and the largest of each column, at most so many standard deviations away, (2, D)."""
    far = ~(distances <= FARTHEST[dtype]) & ~values.isnan()
    if bool(far.any()):
        place = int(torch.where(far, distances.nan_to_num(posinf=torch.inf, nan=torch.inf), 0.0).argmax())
        column = place % values.shape[1]
        raise ValueError(
            f"X holds {float(values.flatten()[place]):g} in {column_name(estimator, column)}, more than "
            f"{FARTHEST[dtype]:g} standard deviations from a component, too far to compute probabilities; check the "
            "units of that column, or remove such values."
        )


def observed(columns: Tensor) -> None:
    """At least one column has an observed value."""
    if not bool(columns.any()):
        raise ValueError(
            "X has no observed value: every value is NaN in all rows of positive weight. Check how X was read."
        )


def enough_rows(n_rows: int, smallest: int, name: str) -> None:
    if n_rows < smallest:
        raise ValueError(f"Found array with {n_rows} sample(s) while a minimum of {smallest} is required by {name}.")


def categorical(columns: Sequence[Any]) -> str:
    """The message about columns that are not numbers, by their names where these are known."""
    which = f"columns that are not numbers: {list(columns)}" if len(columns) else "values that are not numbers"
    return (
        f"X has {which}. Gaussian mixtures need numeric features: encode them first, "
        f"e.g. with sklearn.preprocessing.OneHotEncoder in a ColumnTransformer, or leave them out."
    )


def dates(columns: Sequence[Any]) -> str:
    """The message about columns of dates or times, by their names where these are known."""
    which = f" in columns {list(columns)}" if len(columns) else ""
    return (
        f"X holds dates or times{which}. Gaussian mixtures need numeric features: convert them first, e.g. to days "
        "since a date, or to month and weekday, or leave them out."
    )


def sample_weight(values: Any, n_rows: int, all_rows: bool = True) -> Tensor | None:
    """One non-negative finite number per row, not all zero where these are all the rows."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        try:
            if isinstance(values, np.ma.MaskedArray):
                values = np.ma.filled(values.astype(float), np.nan)
            values = torch.from_numpy(np.array(values, dtype=float))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"sample_weight must hold one number per row; it could not be read as numbers: {error}."
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
            f"{int(bad.nonzero()[0])}. Give such rows weight 0, or leave them out."
        )
    if bool((weights < 0).any()):
        raise ValueError(
            f"Negative values in data passed to `sample_weight`: the smallest is {float(weights.min()):g}; "
            f"weights must be at least 0."
        )
    if all_rows and not bool((weights > 0).any()):
        raise ValueError("sample_weight is zero for every row; at least one weight must be positive.")
    return weights


# Between these the squares of sums of weighted values are finite, and so is a prior divided by the weight of the rows.
LEAST_WEIGHT, MOST_WEIGHT = 1e-30, 1e30


def total_weight(total: float) -> None:
    """Weights of all rows whose sum can be computed with."""
    if not LEAST_WEIGHT <= total <= MOST_WEIGHT:
        raise ValueError(
            f"The weights of all rows (sample_weight times class_weight) must sum to a number from {LEAST_WEIGHT:g} to "
            f"{MOST_WEIGHT:g}; they sum to {total:g}. A weight counts how often a row occurs: divide sample_weight by "
            "its mean."
        )


def rows_to_hold_out(found: bool, other: str) -> None:
    """Candidates are compared on held-out rows, which a class with a single row cannot lend."""
    if not found:
        raise ValueError(
            "Candidates are compared on held-out rows, but no row can be held out: every class has a single row. Add "
            f"rows, or {other}."
        )


def alone_with_batches(**arguments: Any) -> None:
    """Arguments that speak of all rows at once must be left out where rows come in batches."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"{given[0]} cannot be used where X is batches; put the weights of the rows into the batches, as "
            f"(X, y, sample_weight)."
        )


TAKE_NAN = "MixtureClassifier, DiscriminativeMixtureClassifier, HybridMixtureClassifier or AveragedMixtureClassifier"
NEEDS_DENSITY = ("sample", "impute", "score_samples", "predict_joint_log_proba")


def hard_labels(numbers: Tensor | None, name: str) -> Tensor:
    """Class numbers, which soft labels do not have."""
    if numbers is None:
        raise ValueError(
            f"{name} needs one label per row; y has several columns, which means soft labels. Take the most probable "
            f"label of each row, or use MixtureClassifier, which takes soft labels."
        )
    return numbers


def no_density(name: str, method: str) -> str:
    """Why a model of classes given rows lacks a method, and which have it."""
    return (
        f"{name} has no {method!r}: it models classes given rows and has no density of the rows. MixtureClassifier and "
        f"GaussianMixture have one."
    )


def finite_features(values: Any, columns: Any, named: Any, name: str) -> None:
    """No NaN or infinity; columns() are the columns of the cells where rows are sparse."""
    cells = torch.as_tensor(values)
    bad = ~cells.isfinite()
    if not bool(bad.any()):
        return
    what = "NaN" if bool(cells.isnan().any()) else "infinity"
    cell = int((cells.isnan() if what == "NaN" else bad).flatten().nonzero()[0])
    column = int(columns()[cell]) if columns else cell % cells.shape[1]
    cure = f"impute the missing values first, or use an estimator that takes them: {TAKE_NAN}."
    if what == "infinity":
        cure = f"remove {_cure_of_infinity(takes_nan=False)}"
    raise ValueError(f"Input X contains {what}, first in {named(column)}; {name} does not accept it: {cure}")


def non_negative_features(values: Any, columns: Any, named: Any, name: str) -> None:
    """No negative cell; columns() are the columns of the cells where rows are sparse."""
    cells = torch.as_tensor(values)
    bad = cells < 0
    if not bool(bad.any()):
        return
    places = torch.as_tensor(columns())[bad] if columns else bad.any(0).nonzero()[:, 0]
    column = int(places.min())
    own = cells[bad & (torch.as_tensor(columns()) == column)] if columns else cells[:, column]
    raise ValueError(
        f"Negative values in data passed to {name}: {named(column)} holds {float(own.min()):g}, and features must be "
        "at least 0. Subtract the smallest value of that column."
    )


def bounded_scores(estimator: Any, largest: Tensor, coefficients: Tensor) -> None:
    """Features, at most so large in each column (D,), whose products with coefficients (J, D) can be added."""
    products = largest * coefficients.abs().amax(0)
    if not float(products.sum()) < 1e150:
        column = int(products.nan_to_num(nan=torch.inf).argmax())
        raise ValueError(
            f"X holds {float(largest[column]):g} in {column_name(estimator, column)}, too large to compute "
            "probabilities; check the units of that column, or remove such values."
        )


def rank_of_codes(n_basis: Any, shape: Sequence[int]) -> None:
    """A factorisation has no more columns than the rows have rows or features."""
    if len(shape) == 2 and isinstance(n_basis, Integral) and int(n_basis) > min(shape):
        raise ValueError(
            f"n_basis must not exceed the number of rows, {shape[0]}, nor that of features, {shape[1]}; got {n_basis}."
        )
