"""Checks of heads of networks."""

from __future__ import annotations

import torch
from torch import Tensor

from mixtura.numerics.linalg import recording


def finite_rows(values: Tensor) -> None:
    """Features to start a head from; a network gives a number for every feature."""
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).any(1).nonzero()[0, 0])
        raise ValueError(
            f"X must hold finite features to start a head from; row {row} has one that is missing or infinite. Remove "
            "such rows, or fit a MixtureClassifier, which takes NaN for missing."
        )


def head_sizes(rows: Tensor, n_classes: int, n_features: int, n_classes_of_head: int) -> None:
    """Rows and classes for a head that is there already."""
    if (rows.shape[1], n_classes) != (n_features, n_classes_of_head):
        raise ValueError(
            f"The head has {n_features} features and {n_classes_of_head} classes, but X and y have {rows.shape[1]} and "
            f"{n_classes}; give rows of all its classes, or make another head with from_features."
        )


def head_features(values: Tensor, n_features: int, name: str) -> None:
    """Features (..., D) of floating point for the head of this name."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} takes features as a torch tensor; got {type(values).__name__}. Use torch.as_tensor.")
    if not values.is_floating_point():
        raise TypeError(f"{name} takes features of floating point; got {values.dtype}. Convert them with .float().")
    if values.ndim < 2 or values.shape[-1] != n_features:
        raise ValueError(
            f"{name} was made for {n_features} features, in the last of at least two dimensions; got features of shape "
            f"{tuple(values.shape)}. Make the head with n_features={values.shape[-1] if values.ndim else 1}, or change "
            "the layer before it."
        )


def head_labels(values: Tensor, n_rows: int, n_classes: int, smallest: int = 0) -> None:
    """One class number per row. Values are looked at only where that does not break a recorded graph."""
    if not isinstance(values, Tensor) or values.is_floating_point() or values.dtype == torch.bool:
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"labels must be a tensor of whole numbers; got {kind}. Convert them with .long().")
    if tuple(values.shape) != (n_rows,):
        raise ValueError(f"labels must be one number for each of the {n_rows} rows; got shape {tuple(values.shape)}.")
    if recording(values) or not len(values):
        return
    low, high = (int(end) for end in values.aminmax())
    if low < smallest or high >= n_classes:
        raise ValueError(
            f"labels must lie between {smallest} and {n_classes - 1}, since the head has {n_classes} classes; got "
            f"{low if low < smallest else high}. Number the classes from 0, or make the head with more of them."
        )
