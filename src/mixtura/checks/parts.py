"""Checks of the parts of a model, before they are saved and after they are loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# Correlation matrices that fail to be positive definite by less than this are repaired when they are factored.
ROUNDING = 1e-6
PROBABILITY_ERROR = 1e-3  # of sums of single-precision probabilities


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


def is_kind(name: str, value: object, kind: Any) -> None:
    """Raise a ValueError unless a fitted attribute is of a type."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is a {type(value).__name__}")


def same_size(name: str, size: int, expected: int) -> None:
    """Raise a ValueError unless two parts have the same size."""
    if size != expected:
        raise ValueError(f"{name} has size {size}, other parts have {expected}")


def feature_names(estimator: Any) -> np.ndarray | None:
    """The names of the columns that an estimator was fitted to, None if they had none."""
    return vars(estimator).get("feature_names_in_")


def fitted_classes(estimator: Any, n_classes: int) -> None:
    """Check that there is one label for each class of the model."""
    is_kind("classes_", estimator.classes_, np.ndarray)
    labels = estimator.classes_.tolist()
    same_size("classes_", len(set(labels)) if estimator.classes_.ndim == 1 else 0, n_classes)
    same_size("classes_", len(labels), n_classes)


def fitted_prior(estimator: Any) -> None:
    """Check that there is one probability for each class."""
    is_kind("class_prior_", estimator.class_prior_, np.ndarray)
    numbers("class_prior_", torch.from_numpy(estimator.class_prior_), estimator.classes_.shape)
    if (
        not bool((estimator.class_prior_ >= 0).all())
        or abs(float(estimator.class_prior_.sum()) - 1) > PROBABILITY_ERROR
    ):
        raise ValueError("class_prior_ is not one probability for each class")
    if estimator.class_offsets_ is not None:
        is_kind("class_offsets_", estimator.class_offsets_, np.ndarray)
        numbers("class_offsets_", torch.from_numpy(estimator.class_offsets_), estimator.classes_.shape)
    reference = estimator.set_reference_
    if reference is not None:
        is_kind("set_reference_", reference, np.ndarray)
        numbers("set_reference_", torch.from_numpy(reference), (len(reference), 2))
        if not np.isin(reference[:, 0], np.arange(len(estimator.classes_))).all():
            raise ValueError("set_reference_ has numbers of classes that the model does not have")


def fitted_reference(name: str, scores: Any) -> None:
    """Check the sorted outlier scores of held-out samples, if there are any."""
    if scores is None:
        return
    is_kind(name, scores, np.ndarray)
    numbers(name, torch.from_numpy(scores), (max(1, scores.size),))
    if bool((np.diff(scores) < 0).any()):
        raise ValueError(f"{name} is not sorted")
