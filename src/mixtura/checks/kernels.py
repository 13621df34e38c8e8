"""Checks of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from mixtura.checks.general import one_of


def kernel(value: object, names: Iterable[str]) -> None:
    """A known kernel, a function, or None."""
    if value is not None and not callable(value):
        one_of("kernel", value, names, ", None (the features themselves) or a function of two arrays of rows")


def powers(degree: int, gamma: float, coef0: float) -> None:
    """Coefficients of a polynomial kernel that are finite."""
    largest = "coef0" if coef0 > gamma else "gamma"
    if degree * math.log(max(gamma, coef0, 1.0)) > math.log(LARGEST_FEATURE):
        raise ValueError(
            f"{largest}={max(gamma, coef0):g} to the power of degree={degree} exceeds {LARGEST_FEATURE:g}; lower "
            f"{largest} or degree."
        )


def gram_shape(values: np.ndarray, n_left: int, n_right: int) -> None:
    """What a kernel function must give."""
    if values.shape != (n_left, n_right):
        raise ValueError(
            f"The kernel function gave an array of shape {values.shape} for {n_left} and {n_right} rows; it must take "
            f"two arrays of rows and give all pairs, shape {(n_left, n_right)}, as sklearn.metrics.pairwise does."
        )
    if not np.isfinite(values).all():
        raise ValueError(
            "The kernel function gave values that are not finite; check it on the rows scaled to unit variance."
        )


def square_kernel(shape: tuple[int, ...]) -> None:
    """What X must be where it holds a precomputed kernel."""
    if shape[0] != shape[1]:
        raise ValueError(
            f"Precomputed kernel matrix is not square: kernel='precomputed' means that X holds the kernel of every "
            f"pair of rows, but its shape is {shape}; pass a square matrix, or another kernel."
        )


def symmetric_gram(matrix: np.ndarray) -> None:
    """Kernels are symmetric."""
    worst = float(np.abs(matrix - matrix.T).max())
    if worst > 1e-6 * max(float(np.abs(matrix).max()), 1e-300):
        raise ValueError(
            f"The kernel matrix is not symmetric: k(x, z) and k(z, x) differ by up to {worst:g}; use a symmetric "
            f"kernel."
        )


def positive_definite(matrix: np.ndarray, residue: float, allowed: float) -> None:
    """A Gram matrix of which a pivoted Cholesky factor leaves no more than the allowed residue."""
    if not residue <= allowed:
        lowest = float(np.linalg.eigvalsh(matrix)[0])
        raise ValueError(
            f"The kernel is not positive definite: the smallest eigenvalue of its matrix is {lowest:g}; use a kernel "
            f"that is, such as 'rbf' or 'polynomial' with coef0 of at least 0."
        )


# Sums of so large features times weights are finite.
LARGEST_FEATURE = 1e100


def bounded_features(features: Tensor, rows: Tensor, scaled: Tensor) -> None:
    """Columns of a basis at rows, (n, H), that can be weighed and added."""
    bad = ~(features.abs() <= LARGEST_FEATURE).all(1)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        column = int(scaled[row].abs().nan_to_num(nan=torch.inf).argmax())
        raise ValueError(
            f"X holds {float(rows[row, column]):g} in column {column}, too large for the kernel; check the units of "
            "that column, or remove such values."
        )
