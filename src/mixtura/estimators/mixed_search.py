"""The automatic choice where features are categorical: numbers of components and a transform, by cross-validation."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from mixtura import checks
from mixtura.estimators.trust import as_array, fitted_clone, folds
from mixtura.selection.table import ScoredCandidate, SearchTable

COUNTS = (1, 2, 3, 4)  # components per class that are compared


def fit_chosen(model: Any, X: Any, y: Any, sample_weight: Any) -> SearchTable:
    """Fit a model with the number of components and the transform that predict held-out samples best.

    Parameters
    ----------
    model : MixtureClassifier
        With `n_components="auto"`; it gets the fitted attributes of the chosen candidate.
    X, y, sample_weight
        As in `fit`.
    """
    labels = as_array(y)
    classes = checks.distinct(labels)
    parts = folds(model, X, labels, model.cv)
    weights = None if sample_weight is None else np.asarray(sample_weight)
    warps = (None, "johnson") if isinstance(model.warp, str) and model.warp == "auto" else (model.warp,)
    candidates = []
    for settings in ({"n_components": count, "warp": warp} for count in COUNTS for warp in warps):
        start, losses = time.perf_counter(), np.zeros(len(labels))
        for train, test in parts:
            known = {} if weights is None else {"sample_weight": weights[train]}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                copy: Any = clone(model)
                fitted = fitted_clone(copy.set_params(**settings), X, labels, train, **known)
            log_proba = as_array(fitted.predict_log_proba(_safe_indexing(X, test)))
            numbers = np.searchsorted(classes, labels[test])
            losses[test] = -log_proba[np.arange(len(test)), numbers]
        error = float(losses.std(ddof=1) / np.sqrt(len(losses)))
        candidates.append(ScoredCandidate(settings, float(losses.mean()), error, time.perf_counter() - start))
    best = min(range(len(candidates)), key=lambda number: candidates[number].score)
    chosen: Any = clone(model)
    chosen.set_params(**candidates[best].what)
    known = {} if sample_weight is None else {"sample_weight": sample_weight}
    chosen.fit(X, y, **known)
    for name, value in vars(chosen).items():
        if name.endswith("_"):
            setattr(model, name, value)
    return SearchTable("log_loss", candidates, best)
