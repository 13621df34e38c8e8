"""Every check of user input and every message about it: what was wrong, the value got, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor


class RepairWarning(UserWarning):
    """Something degenerate in the data or in a component was mended so that the fit could go on."""


class UnlabeledWarning(UserWarning):
    """Rows were taken as unlabeled because of their label."""


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


def device(value: object) -> torch.device | None:
    """A torch device that is there, or None."""
    if value is None:
        return None
    try:
        found = torch.device(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device must be None, "cpu", "cuda" or a torch.device; got {value!r}.') from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device={value!r} asks for a GPU, but torch finds none here; use device=None or "cpu".')
    return found


DTYPES = {"float32": torch.float32, "float64": torch.float64}


def dtype(value: object) -> torch.dtype | None:
    """float32, float64 or None, as a torch or NumPy type or its name."""
    if value is None:
        return None
    name = str(value).removeprefix("torch.") if isinstance(value, torch.dtype | str) else np.dtype(value).name  # pyright: ignore[reportArgumentType, reportCallIssue]
    if name not in DTYPES:
        raise ValueError(f'dtype must be None, "float32" or "float64"; got {value!r}.')
    return DTYPES[name]


MEMORY_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def memory_limit(value: object) -> int:
    """Bytes of scratch memory, from a number or text like "256 MB"; None is the default."""
    if value is None:
        return 256 * 2**20
    if isinstance(value, str):
        text = value.strip().upper()
        unit = next((u for u in sorted(MEMORY_UNITS, key=len, reverse=True) if text.endswith(u)), None)
        number = text.removesuffix(unit).strip() if unit else text
        if not number.replace(".", "", 1).isdigit():
            raise ValueError(f'memory_limit must be bytes or text like "256 MB"; got {value!r}.')
        value = float(number) * (MEMORY_UNITS[unit] if unit else 1)
    if isinstance(value, bool) or not isinstance(value, Real) or float(value) < 2**20:
        raise ValueError(f'memory_limit must be at least 1 MiB, as bytes or text like "256 MB"; got {value!r}.')
    return int(value)


def rows(values: Tensor, expected: int | None, name: str = "X") -> Tensor:
    """A two-dimensional tensor of finite numbers or NaN."""
    if values.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {values.ndim}D tensor instead for {name}, of shape {tuple(values.shape)}. "
            f"Reshape your data: one row per sample, one column per feature."
        )
    if expected is not None and values.shape[1] != expected:
        raise ValueError(f"{name} has {values.shape[1]} features, but this model was fitted with {expected} features.")
    if values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} must hold real numbers; got dtype {values.dtype}.")
    if values.is_floating_point() and bool(values.isinf().any()):
        raise ValueError(infinite(name))
    return values


def infinite(name: str) -> str:
    return f"Input {name} contains infinity; remove those rows, clip them, or set them to NaN (missing)."


def enough_rows(n_rows: int, smallest: int, name: str) -> None:
    if n_rows < smallest:
        raise ValueError(f"Found array with {n_rows} sample(s) while a minimum of {smallest} is required by {name}.")


def categorical(columns: Sequence[Any]) -> str:
    """The message about columns that are not numbers."""
    return (
        f"X has columns that are not numbers: {list(columns)}. Gaussian mixtures need numeric features: encode them first, "
        f"e.g. with sklearn.preprocessing.OneHotEncoder in a ColumnTransformer, or leave them out."
    )


def sample_weight(values: Any, n_rows: int, all_rows: bool = True) -> Tensor | None:
    """One non-negative finite number per row, not all zero where these are all the rows."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        try:
            values = torch.from_numpy(np.array(values, dtype=float))
        except (TypeError, ValueError) as error:
            raise ValueError(f"sample_weight must hold one number per row; it could not be read as numbers: {error}.") from error
    weights = values.detach().double()
    if weights.ndim == 0:
        weights = weights.expand(n_rows).clone()
    if weights.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar; got shape {tuple(weights.shape)}.")
    if len(weights) != n_rows:
        raise ValueError(f"sample_weight.shape == {tuple(weights.shape)}, expected {(n_rows,)}!")
    if not bool(weights.isfinite().all()):
        raise ValueError("sample_weight must be finite; it contains NaN or infinity.")
    if bool((weights < 0).any()):
        raise ValueError(
            f"Negative values in data passed to `sample_weight`: the smallest is {float(weights.min()):g}; "
            f"weights must be at least 0."
        )
    if all_rows and not bool((weights > 0).any()):
        raise ValueError("sample_weight is zero for every row; at least one weight must be positive.")
    return weights


def alone_with_batches(**arguments: Any) -> None:
    """Arguments that speak of all rows at once must be left out where rows come in batches."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"{given[0]} cannot be used where X is batches; put the weights of the rows into the batches, as "
            f"(X, y, sample_weight)."
        )


def as_many_labels(labels: np.ndarray, n_rows: int) -> None:
    if labels.ndim > 0 and len(labels) != n_rows:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: [{n_rows}, {len(labels)}]; y must have one label for "
            f"each of the {n_rows} rows of X."
        )


def distinct(labels: np.ndarray) -> np.ndarray:
    """The different labels, sorted."""
    try:
        return np.unique(labels)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in labels})
        raise ValueError(
            f"y holds labels of kinds that cannot be sorted together: {', '.join(kinds)}; make all of them text or all numbers."
        ) from error


def finite_labels(values: np.ndarray) -> None:
    """Labels that are numbers may not be NaN or infinite."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    if np.isnan(values).any():
        raise ValueError(
            f"Input y contains NaN, in {int(np.isnan(values).sum())} rows; mark unlabeled rows by a label of their own, such as "
            f"-1 among integers, and name it in `unlabeled`."
        )
    raise ValueError("Input y contains infinity; labels must be finite numbers or text.")


def soft_labels(shares: np.ndarray) -> None:
    """Rows of shares that are non-negative and sum to one, or NaN throughout."""
    missing = np.isnan(shares)
    partly = missing.any(1) & ~missing.all(1)
    if partly.any():
        raise ValueError(
            f"Row {int(partly.argmax())} of the soft labels y is partly NaN; a row must be NaN throughout (unlabeled) or not at all."
        )
    known = shares[~missing.any(1)]
    if (known < 0).any() or not np.allclose(known.sum(1), 1, atol=1e-6):
        bad = int(((known < 0).any(1) | ~np.isclose(known.sum(1), 1, atol=1e-6)).argmax())
        raise ValueError(
            f"y with several columns means soft labels: rows must be non-negative and sum to 1; a row is {known[bad].tolist()}, "
            f"which sums to {known[bad].sum():g}. Divide each row by its sum, or pass one label per row."
        )


def enough_classes(classes: Sequence[Any], n_unlabeled: int, name: str) -> None:
    """At least two classes with rows of positive weight."""
    if len(classes) == 0:
        raise ValueError(
            f"{name} needs labeled rows, but all {n_unlabeled} rows are unlabeled; label some rows of every class, "
            f"or use GaussianMixture, which needs no labels."
        )
    if len(classes) == 1:
        raise ValueError(
            f"{name} needs rows of at least two classes, but y holds only one class: {_plain(classes[0])!r}. "
            f"Add rows of another class, or use GaussianMixture for a density of one."
        )


def weighted_classes(classes: Sequence[Any], class_weights: Tensor) -> None:
    """Every class has a row of positive weight."""
    empty = (class_weights <= 0).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(
            f"Class {classes[empty[0]]!r} has no row of positive weight (sample_weight times class_weight); give it a positive "
            f"weight, or leave its rows out."
        )


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def class_prior(value: object, class_weights: Tensor) -> Tensor | None:
    """Fixed class probabilities (C,), or None where they are learned."""
    n_classes = len(class_weights)
    if isinstance(value, str) or value is None:
        one_of("class_prior", value, ("empirical", "uniform"), " or an array with one probability per class")
        return None if value == "empirical" else torch.full_like(class_weights, 1 / n_classes)
    prior = torch.as_tensor(np.asarray(value, dtype=float), device=class_weights.device)
    if prior.shape != (n_classes,):
        raise ValueError(
            f"class_prior must have one probability for each of the {n_classes} classes; got shape {tuple(prior.shape)}."
        )
    if not bool((prior > 0).all()) or abs(float(prior.sum()) - 1) > 1e-6:
        raise ValueError(f"class_prior must be positive and sum to 1; got {prior.tolist()}, summing to {float(prior.sum()):g}.")
    return prior / prior.sum()
