"""Checks of the arguments of network heads."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.numerics.linalg import recording


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
