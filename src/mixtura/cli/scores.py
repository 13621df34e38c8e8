"""Scores of class probabilities, and samples of rows."""

from __future__ import annotations

from typing import Any

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


def performance(fitted: Any, probabilities: np.ndarray, numbers: np.ndarray) -> dict[str, Any]:
    """Error rate and log-loss of a model: its own estimate, or those of held-out rows if nothing was selected."""
    estimate = None if fitted.search_ is None else fitted.search_.estimate
    if estimate is None:
        error, log_loss, ends = (
            float((probabilities.argmax(1) != numbers).mean()),
            log_loss_of(probabilities, numbers),
            (None, None),
        )
    else:
        error, log_loss = estimate.error, estimate.log_loss
        ends = list(estimate.error_interval), list(estimate.log_loss_interval)
    return {
        "held_out_error": error,
        "held_out_error_interval": ends[0],
        "held_out_log_loss": log_loss,
        "held_out_log_loss_interval": ends[1],
    }


def percents(value: float, ends: Any) -> str:
    """A share in per cent, with its interval if there is one."""
    return f"{100 * value:.1f} %" + (f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else "")


def decimals(value: float, ends: Any) -> str:
    """A number with its interval, if there is one."""
    return f"{value:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")


def calibration_error(probabilities: np.ndarray, numbers: np.ndarray, n_bins: int = 10) -> float:
    """Expected calibration error of the predicted class: mean distance of confidence and accuracy over bins."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == numbers
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    distances = [abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in set(bins)]
    return float(sum(distances))
