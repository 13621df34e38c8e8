"""Scores of class probabilities, and samples of rows."""

from __future__ import annotations

import numpy as np


def sampled(n_rows: int, most: int, labels: np.ndarray, seed: int) -> np.ndarray:
    """Positions of at most this number of rows, at least two of every class."""
    if n_rows <= most:
        return np.arange(n_rows)
    order = np.random.default_rng(seed).permutation(n_rows)
    first = [order[labels[order] == label][:2] for label in np.unique(labels)]
    return np.sort(np.unique(np.concatenate([order[:most], *first])))


def log_loss_of(probabilities: np.ndarray, numbers: np.ndarray) -> float:
    """Mean log-loss; a probability of zero counts as 1e-15, as in scikit-learn."""
    own = probabilities[np.arange(len(numbers)), numbers]
    return float(-np.log(own.clip(1e-15)).mean()) + 0.0  # no minus before zero


def calibration_error(probabilities: np.ndarray, numbers: np.ndarray, n_bins: int = 10) -> float:
    """Expected calibration error of the predicted class: mean distance of confidence and accuracy over bins."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == numbers
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    distances = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in set(bins)]
    return float(sum(distances))
