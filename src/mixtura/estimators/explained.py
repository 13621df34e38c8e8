"""Explanations of predictions, and the importance of features, by exact marginalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixtura.estimators.rows import PandasLike

# Draws of a missing value to estimate its effect on the log-odds.
DRAWS = 16


def log_odds(scores: np.ndarray, targets: np.ndarray, against: int | None) -> np.ndarray:
    """Log-odds of the target class of each sample against another class, or against all others together."""
    places = np.arange(len(scores))
    own = scores[places, targets]
    if against is not None:
        return own - scores[:, against]
    others = scores.copy()
    others[places, targets] = -np.inf
    return own - np.logaddexp.reduce(others, axis=1)


def is_frame(X: Any) -> bool:
    """Whether X is a pandas data frame."""
    return isinstance(X, PandasLike)
