"""Refitting of a model with the settings that an automatic choice selected, without another selection."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold

from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.outliers import as_array

FOLDS = 5


def settled(model: MixtureClassifier, labels: np.ndarray) -> MixtureClassifier:
    """An unfitted classifier with the settings that a fitted one has chosen, for samples with these labels."""
    chosen = {} if model.search_ is None else dict(model.search_.best.what)
    present = set(np.unique(labels).tolist())
    pairs = zip(model.classes_.tolist(), model.n_components_.tolist(), strict=True)
    return MixtureClassifier(
        {label: count for label, count in pairs if label in present},
        covariance_type=chosen.get("covariance_type", model.covariance_type),
        prior=chosen.get("prior", model.prior),
        warp=chosen.get("warp"),
        temperature=model.temperature_,
        random_state=0,
    )


def fit_settled(model: MixtureClassifier, X: Any, labels: np.ndarray) -> MixtureClassifier:
    """Fit a classifier with these settings, without the warnings that the model itself has given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = settled(model, labels).fit(X, labels)
    copy.label_noise_ = model.label_noise_  # estimated by the selection, which the copy skips
    return copy


def splits(labels: np.ndarray, seed: int, n_folds: int = FOLDS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out positions; stratified where every class has enough samples."""
    _, counts = np.unique(labels, return_counts=True)
    n_folds = min(n_folds, len(labels))
    splitter = StratifiedKFold if counts.min() >= n_folds else KFold
    positions = np.zeros((len(labels), 1))
    return list(splitter(n_folds, shuffle=True, random_state=seed).split(positions, labels))


def held_out(
    model: MixtureClassifier, X: Any, labels: np.ndarray, seed: int, deadline: float = float("inf")
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, C) and outlier scores (n,) of samples by copies of a model that have not seen them.

    No further fold begins after the deadline; samples that were not held out have NaN.
    """
    probabilities, scores = np.full((len(labels), len(model.classes_)), np.nan), np.full(len(labels), np.nan)
    for train, test in splits(labels, seed):
        judged = not np.isnan(scores).all()
        if len(np.unique(labels[train])) < 2 or (judged and time.perf_counter() > deadline):
            continue
        probabilities[test] = 0.0
        copy = fit_settled(model, X.iloc[train], labels[train])
        places = np.searchsorted(model.classes_, copy.classes_)
        probabilities[np.ix_(test, places)] = as_array(copy.predict_proba(X.iloc[test]))
        scores[test] = as_array(copy.outlier_score(X.iloc[test]))
    return probabilities, scores


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
