"""Checks of kernels."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


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


def square_kernel(shape: tuple[int, ...]) -> None:
    """Check that a precomputed kernel matrix is square."""
    if shape[0] != shape[1]:
        raise ValueError(
            f"Precomputed kernel matrix is not square: with kernel='precomputed' X must hold the kernel of every pair "
            f"of samples; got shape {shape}. Pass a square matrix, or choose another kernel."
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


def ill_conditioned(name: str, error: Exception) -> str:
    """The message about basis functions with a singular Hessian."""
    return (
        f"{name} cannot be fitted: the kernel columns of X are too large or too similar ({error}). Use "
        "scaling=True, a smaller degree, or kernel='rbf'."
    )
