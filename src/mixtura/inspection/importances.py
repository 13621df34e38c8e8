"""Importance of features: the log-loss of a fitted model with features integrated out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Loss = Callable[[np.ndarray], float]  # kept features (D,) of bool -> log-loss


def marginal_importances(loss: Loss, n_features: int) -> np.ndarray:
    """Increase of the log-loss when a single feature is integrated out, (D,)."""
    whole = loss(np.ones(n_features, bool))
    return np.array([loss(np.arange(n_features) != j) - whole for j in range(n_features)])


def forward_selection(loss: Loss, n_features: int, n_selected: int) -> tuple[list[int], list[float]]:
    """Select features one by one, each with the largest decrease of the log-loss; return them and the log-losses.

    The features that are not selected yet are integrated out.
    """
    chosen: list[int] = []
    losses: list[float] = []
    while len(chosen) < n_selected:
        trials = {j: loss(np.isin(np.arange(n_features), [*chosen, j])) for j in range(n_features) if j not in chosen}
        best = min(trials, key=lambda j: trials[j])
        chosen.append(best)
        losses.append(trials[best])
    return chosen, losses
