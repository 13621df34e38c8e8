"""Estimation of shifted class priors, and decisions with unequal costs."""

from __future__ import annotations

import numpy as np

MAX_ITERATIONS = 10_000
TOLERANCE = 1e-8


def estimate_prior(posteriors: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The class prior of unlabeled samples by EM (Saerens, Latinne and Decaestecker 2002) (prior-shift):

        p'(c) <- mean_n  p(c | x_n) p'(c) / p(c)  /  sum_c' p(c' | x_n) p'(c') / p(c').

    Parameters
    ----------
    posteriors : ndarray of shape (n, C)
        Class probabilities of the samples under the class prior of the training set.
    prior : ndarray of shape (C,)
        The class prior of the training set.

    Returns
    -------
    ndarray of shape (C,)
    """
    ratios, current = posteriors / prior, prior
    for _ in range(MAX_ITERATIONS):
        joint = ratios * current
        updated = (joint / joint.sum(1, keepdims=True)).mean(0)
        if np.abs(updated - current).max() < TOLERANCE:
            return updated
        current = updated
    return current


def check_costs(costs: object, n_classes: int) -> np.ndarray:
    """Check a matrix of costs: costs[i, j] is the cost of predicting class j if class i is true."""
    matrix = np.asarray(costs, dtype=float)
    if matrix.shape != (n_classes, n_classes) or not np.isfinite(matrix).all():
        raise ValueError(
            f"costs must be a finite matrix of shape ({n_classes}, {n_classes}): costs[i, j] is the cost of predicting "
            f"class j if class i is true; got shape {matrix.shape}."
        )
    return matrix
