"""Scores of class probabilities, and decisions by a threshold; all with weights of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

COSTS, PRECISIONS = (1, 2, 5, 10, 20, 50), (0.5, 0.8, 0.9, 0.95, 0.99)


def log_loss_of(probabilities: np.ndarray, numbers: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean log-loss; a probability of zero counts as 1e-15, as in scikit-learn."""
    own = probabilities[np.arange(len(numbers)), numbers]
    return float(np.average(-np.log(own.clip(1e-15)), weights=weights)) + 0.0  # no minus before zero


def performance(fitted: Any, probabilities: np.ndarray, numbers: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Error rate and log-loss of a model: its own estimate, or those of held-out rows if nothing was selected."""
    search = getattr(fitted, "search_", None)
    estimate = None if search is None else search.estimate
    if estimate is None:
        error = float(np.average(probabilities.argmax(1) != numbers, weights=weights)) if len(numbers) else float("nan")
        log_loss = log_loss_of(probabilities, numbers, weights) if len(numbers) else float("nan")
        ends = (None, None)
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


def calibration_error(
    probabilities: np.ndarray, numbers: np.ndarray, weights: np.ndarray | None = None, n_bins: int = 10
) -> float:
    """Expected calibration error of the predicted class: mean distance of confidence and accuracy over bins."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == numbers
    shares = np.ones(len(numbers)) if weights is None else weights
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = [abs(float(((confidence - right) * shares)[bins == b].sum())) for b in set(bins.tolist())]
    return sum(gaps) / float(shares.sum())


def decision(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray, threshold: float) -> dict[str, float]:
    """Share of flagged rows, precision, recall and F1 of a class at a threshold of its probability."""
    flagged = scores >= threshold
    hits = float(weights[flagged & positive].sum())
    n_flagged, n_positive = float(weights[flagged].sum()), float(weights[positive].sum())
    return {
        "threshold": threshold,
        "flagged": n_flagged / float(weights.sum()),
        "precision": hits / n_flagged if n_flagged else float("nan"),
        "recall": hits / n_positive,
        "f1": 2 * hits / (n_flagged + n_positive),
        "balanced-error": 0.5 * (1 - hits / n_positive)
        + 0.5 * (n_flagged - hits) / (float(weights.sum()) - n_positive),
    }


def threshold_for(metric: str, positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float | None:
    """The threshold that is best for a metric on held-out rows; None if the most probable class is predicted.

    A cost, as in "cost:10" (a missed row costs as much as ten false alarms), has the threshold 1 / (1 + cost) of
    calibrated probabilities; "precision:0.9" has the smallest threshold with this precision.
    """
    name, _, text = metric.partition(":")
    if name in ("log-loss", "error"):
        return None
    if name == "cost":
        return 1 / (1 + float(text))
    tried = [decision(positive, scores, weights, threshold) for threshold in np.unique(scores).tolist()]
    if name == "precision":
        enough = [line for line in tried if line["precision"] >= float(text)]
        if not enough:
            raise ValueError(f"No threshold has a precision of {text} on held-out rows; ask for a lower one.")
        return max(enough, key=lambda line: line["recall"])["threshold"]
    return max(tried, key=lambda line: line["f1"] if name == "f1" else -line["balanced-error"])["threshold"]


def threshold_table(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> list[list[Any]]:
    """For stated costs and precisions: their names, thresholds and what they give on held-out rows."""
    lines = []
    for metric in (*(f"cost:{cost}" for cost in COSTS), *(f"precision:{share}" for share in PRECISIONS)):
        try:
            threshold = threshold_for(metric, positive, scores, weights)
        except ValueError:
            continue
        assert threshold is not None
        lines.append([metric, decision(positive, scores, weights, threshold)])
    return lines
