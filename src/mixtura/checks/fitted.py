"""Checks of the parts of a model: fitted attributes, transforms, kernels, and inputs of network heads."""

from __future__ import annotations

import math
import types

import numpy as np
import torch
from torch import Tensor

from mixtura.numerics.linalg import recording

# Correlation matrices that fail to be positive definite by less than this are repaired when they are factored.
ROUNDING = 1e-6


def positive_numbers(name: str, values: Tensor) -> None:
    """Raise a ValueError unless values are positive, finite and not empty."""
    if not values.is_floating_point() or values.numel() == 0:
        raise ValueError(f"{name} is not a number")
    if not bool(((values > 0) & values.isfinite()).all()):
        raise ValueError(f"{name} is not positive and finite")


def definite(name: str, correlations: Tensor) -> None:
    """Raise a ValueError unless matrices with a unit diagonal are symmetric and positive definite up to rounding."""
    if not bool(((correlations - correlations.mT).abs() <= ROUNDING).all()):
        raise ValueError(f"{name} is not finite and symmetric")
    size = correlations.shape[-1]
    shifted = correlations + ROUNDING * torch.eye(size, dtype=correlations.dtype, device=correlations.device)
    if bool((torch.linalg.cholesky_ex(shifted)[1] != 0).any()):
        raise ValueError(f"{name} is not positive definite")


def class_numbers(class_of: Tensor, n_components: int) -> None:
    """Raise a ValueError unless class numbers of components are sorted and every class has a component."""
    if class_of.dtype != torch.int64 or class_of.shape != (n_components,) or n_components == 0:
        raise ValueError("components need one class number each")
    steps = class_of.diff(prepend=class_of.new_zeros(1))
    if bool(((steps < 0) | (steps > 1)).any()):
        raise ValueError("class numbers are not sorted, or a class has no component")


def numbers(name: str, values: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> None:
    """Raise a ValueError unless these are finite numbers of this shape and type."""
    if values.shape != shape or values.dtype != dtype:
        raise ValueError(f"{name} {tuple(values.shape)} of type {values.dtype} should be {shape} of type {dtype}")
    if not bool(values.square().isfinite().all()):
        raise ValueError(f"{name} are not finite, or too large to square")


def positions(name: str, values: Tensor, n_places: int, lowest: int = 0) -> None:
    """Raise a ValueError unless these are integers (n,) from `lowest` to below `n_places`."""
    if values.ndim != 1 or values.dtype != torch.int64:
        raise ValueError(f"{name} {tuple(values.shape)} of type {values.dtype} are not a list of integers")
    if bool(((values < lowest) | (values >= n_places)).any()):
        raise ValueError(f"{name} are not from {lowest} to {n_places - 1}")


def is_kind(name: str, value: object, kind: type | types.UnionType) -> None:
    """Raise a ValueError unless a fitted attribute is of a type."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is a {type(value).__name__}")


def same_size(name: str, size: int, expected: int) -> None:
    """Raise a ValueError unless two parts have the same size."""
    if size != expected:
        raise ValueError(f"{name} has size {size}, other parts have {expected}")


def feature_names(estimator: object) -> np.ndarray | None:
    """The names of the columns that an estimator was fitted to, None if they had none."""
    return vars(estimator).get("feature_names_in_")


def warp_parameters(locations: object, scales: object) -> tuple[Tensor, Tensor]:
    """Check the location and scale of every feature; returned in double precision."""
    locations, scales = (torch.as_tensor(part, dtype=torch.float64) for part in (locations, scales))
    if locations.ndim != 1 or locations.shape != scales.shape:
        raise ValueError(
            f"locations and scales must have one number per feature each; got shapes {tuple(locations.shape)} and "
            f"{tuple(scales.shape)}."
        )
    if not bool(locations.isfinite().all()):
        raise ValueError(f"locations must be finite; got {locations.tolist()}.")
    if not bool((scales > 0).all()):
        raise ValueError(
            f"scales must be above 0 (infinite for features that are not transformed); got {scales.tolist()}."
        )
    return locations, scales


def powers(degree: int, gamma: float, coef0: float) -> None:
    """Check that the coefficients of a polynomial kernel do not overflow."""
    largest = "coef0" if coef0 > gamma else "gamma"
    if degree * math.log(max(gamma, coef0, 1.0)) > math.log(LARGEST_FEATURE):
        raise ValueError(
            f"{largest}={max(gamma, coef0):g} to the power of degree={degree} exceeds {LARGEST_FEATURE:g}. Lower "
            f"{largest} or degree."
        )


def gram_shape(values: np.ndarray, n_left: int, n_right: int) -> None:
    """Check the values of a kernel function."""
    if values.shape != (n_left, n_right):
        raise ValueError(
            f"The kernel function must return an array of shape {(n_left, n_right)} for {n_left} and {n_right} rows, "
            f"as sklearn.metrics.pairwise functions do; got shape {values.shape}."
        )
    if not np.isfinite(values).all():
        raise ValueError(
            "The kernel function returned values that are not finite. It receives standardised samples: check it on "
            "such input."
        )


def symmetric_gram(matrix: np.ndarray) -> None:
    """Check that a kernel matrix is symmetric."""
    worst = float(np.abs(matrix - matrix.T).max())
    if worst > 1e-6 * max(float(np.abs(matrix).max()), 1e-300):
        raise ValueError(
            f"The kernel matrix is not symmetric: k(x, z) and k(z, x) differ by up to {worst:g}. Use a symmetric "
            f"kernel."
        )


def positive_definite(matrix: np.ndarray, residue: float, allowed: float) -> None:
    """Check that a pivoted Cholesky factor of a kernel matrix leaves at most the allowed residue."""
    if not residue <= allowed:
        lowest = float(np.linalg.eigvalsh(matrix)[0])
        raise ValueError(
            f"The kernel is not positive definite: the smallest eigenvalue of its matrix is {lowest:g}. Use a positive "
            f"definite kernel, such as 'rbf' or 'polynomial' with coef0 of at least 0."
        )


# Sums of features of this size times weights are finite.
LARGEST_FEATURE = 1e100


def bounded_features(features: Tensor, rows: Tensor, scaled: Tensor) -> None:
    """Check that the columns of a basis at rows, (n, H), are not too large to sum."""
    bad = ~(features.abs() <= LARGEST_FEATURE).all(1)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        column = int(scaled[row].abs().nan_to_num(nan=torch.inf).argmax())
        raise ValueError(
            f"X holds {float(rows[row, column]):g} in column {column}, too large for the kernel. Check the units of "
            "that column, or remove such values."
        )


def finite_rows(values: Tensor) -> None:
    """Check that features to initialise a head from are finite."""
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).any(1).nonzero()[0, 0])
        raise ValueError(
            f"X must hold finite values to initialise a head; row {row} has a missing or infinite one. Remove such "
            "rows, or fit a MixtureClassifier, which handles missing values (NaN)."
        )


def head_sizes(rows: Tensor, n_classes: int, n_features: int, n_classes_of_head: int) -> None:
    """Check that features and classes match an existing head."""
    if (rows.shape[1], n_classes) != (n_features, n_classes_of_head):
        raise ValueError(
            f"The head has {n_features} features and {n_classes_of_head} classes, but X and y have {rows.shape[1]} and "
            f"{n_classes}. Pass samples of all its classes, or create a new head with from_features."
        )


def convertible_to_head(warp: object, encoding: object, name: str) -> None:
    """Check that a model describes the features as they are."""
    if warp is not None or encoding is not None:
        what = "transforms the features; fit it with warp=None" if encoding is None else "has categorical features"
        raise ValueError(f"A head has the features of a network as they are, but this {name} {what}.")


def head_features(values: Tensor, n_features: int, name: str) -> None:
    """Check that features are floating-point tensors (..., D), for the head of this name."""
    if not isinstance(values, Tensor):
        raise TypeError(
            f"features of {name} must be a torch tensor; got {type(values).__name__}. Convert with torch.as_tensor."
        )
    if not values.is_floating_point():
        raise TypeError(
            f"features of {name} must have a floating-point dtype; got {values.dtype}. Convert with .float()."
        )
    if values.ndim < 2 or values.shape[-1] != n_features:
        raise ValueError(
            f"features of {name} must have shape (..., {n_features}) with at least two dimensions; got "
            f"{tuple(values.shape)}. Create the head with n_features={values.shape[-1] if values.ndim else 1}, or "
            "change the layer before it."
        )


def head_labels(values: Tensor, n_rows: int, n_classes: int, smallest: int = 0) -> None:
    """Check that there is one class number per row. Values are not checked while a graph is being recorded."""
    if not isinstance(values, Tensor) or values.is_floating_point() or values.dtype == torch.bool:
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"labels must be an integer tensor; got {kind}. Convert them with .long().")
    if tuple(values.shape) != (n_rows,):
        raise ValueError(
            f"labels must have shape ({n_rows},), one label per sample of features; got {tuple(values.shape)}."
        )
    if recording(values) or not len(values):
        return
    low, high = (int(end) for end in values.aminmax())
    if low < smallest or high >= n_classes:
        raise ValueError(
            f"labels must be between {smallest} and {n_classes - 1}, since the head has {n_classes} classes; got "
            f"{low if low < smallest else high}. Number the classes from 0, or create the head with more classes."
        )
