"""Rows of a table and their predictions by copies of a model that were fitted without them."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from mixtura.cli.columns import TableProblem
from mixtura.cli.scores import log_loss_of, performance
from mixtura.estimators.refits import probabilities_of, with_selected_settings
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.inspection.outliers import find_suspicious, reference_of, threshold_of

MOST_ROWS, FOLDS, FALSE_ALARM = 1500, 5, 0.01


@dataclass(frozen=True)
class HeldOut:
    """Rows and their predictions by copies of the model that were fitted without them; fit and report share them.

    Parameters
    ----------
    model : TableClassifier
    copy : TableClassifier
        An unfitted copy with the selected settings.
    frame : pandas data frame
        The rows, with their numbers in the file.
    labels : ndarray of shape (n,)
    weights : ndarray of shape (n,)
        Above 1 where a row stands for several: large classes are sampled.
    probabilities : ndarray of shape (n, C)
    outlier_scores : ndarray of shape (n,)
    sizes : dict
        Rows of every class, if the table has more.
    left_out : list
        Values of the target that are no class here.
    n_folds : int
    seed : int
    """

    model: TableClassifier
    copy: TableClassifier
    frame: pd.DataFrame
    labels: np.ndarray
    weights: np.ndarray
    probabilities: np.ndarray
    outlier_scores: np.ndarray
    sizes: dict[Any, int]
    left_out: list[Any]
    n_folds: int
    seed: int

    @cached_property
    def numbers(self) -> np.ndarray:
        """The numbers of the classes."""
        return np.searchsorted(self.model.classes_, self.labels)

    @property
    def names(self) -> list[str]:
        return [str(label) for label in self.model.classes_.tolist()]

    @property
    def wrong(self) -> np.ndarray:
        return self.probabilities.argmax(1) != self.numbers

    @cached_property
    def performance(self) -> dict[str, Any]:
        """Error rate and log-loss, with intervals where they are known."""
        return performance(self.model.estimator_, self.probabilities, self.numbers, self.weights)

    @property
    def log_loss(self) -> float:
        """The log-loss of these predictions, which is not corrected for the selection."""
        return log_loss_of(self.probabilities, self.numbers, self.weights) if len(self.labels) else float("nan")

    @cached_property
    def reference(self) -> np.ndarray:
        """Sorted outlier scores, a class as often as in the table."""
        if not self.sizes:
            return reference_of(self.outlier_scores)
        shares = self.weights / self.weights.sum()
        drawn = np.random.default_rng(self.seed).choice(self.outlier_scores, 10 * len(self.labels), p=shares)
        return reference_of(drawn)

    @cached_property
    def outlying(self) -> np.ndarray:
        """Positions of rows that are outliers, the farthest first."""
        order = np.argsort(-self.outlier_scores)
        return order[self.outlier_scores[order] > threshold_of(self.reference, FALSE_ALARM)]

    @cached_property
    def suspicious(self) -> Any:
        """Labels that contradict the held-out predictions."""
        return find_suspicious(self.probabilities, self.numbers, np.array(self.names))


def choose_rows(labels: Any, seed: int, most: int = MOST_ROWS) -> tuple[Any, dict[Any, int]]:
    """The labels of at most about `most` rows, all of rare classes, and how many of every class if not all rows.

    A class of a single row cannot be held out.
    """
    counts = Counter(labels.tolist())
    labels = labels[labels.map(counts) > 1]
    if len(labels) <= most:
        return labels, {}
    n_classes = sum(count > 1 for count in counts.values())
    fair = most // (2 * n_classes)
    sizes = {c: max(min(n, fair), n * most // len(labels)) for c, n in sorted(counts.items()) if n > 1}
    chosen = [labels[labels == label].sample(size, random_state=seed) for label, size in sizes.items()]
    return pd.concat(chosen).sort_index(), sizes


def predict_held_out(
    model: TableClassifier, problem: TableProblem, seed: int, deadline: float = float("inf")
) -> HeldOut:
    """Predict rows of a table by five-fold cross-validation with the settings of a model.

    No further fold begins after the deadline; rows that were not held out are left out.
    """
    every: Any = pd.Series(problem.labels, problem.frame.index)
    chosen, sizes = choose_rows(every, seed)
    frame, labels = problem.frame.loc[chosen.index], chosen.to_numpy()
    counts = every.value_counts()
    left_out = [*(value for value in problem.no_classes if value is not None), *counts.index[counts == 1].tolist()]
    estimator = with_selected_settings(model.estimator_)
    weights = np.ones(len(labels))
    if sizes:
        counts = Counter(every[every.isin(sizes)].tolist())
        shares = {label: counts[label] / sum(counts.values()) for label in sizes}
        weights = np.array([shares[label] * len(labels) / sizes[label] for label in labels.tolist()])
        if "class_prior" in estimator.get_params():
            estimator.set_params(class_prior=shares)
    components = estimator.get_params().get("n_components")
    if isinstance(components, dict):
        present = set(labels.tolist())
        estimator.set_params(n_components={c: count for c, count in components.items() if c in present})
    copy = TableClassifier(estimator, model.features)
    probabilities, scores = np.full((len(labels), len(model.classes_)), np.nan), np.full(len(labels), np.nan)
    sizes_known = chosen.value_counts()
    n_folds = min(FOLDS, int(sizes_known.max())) if len(sizes_known) > 1 else 0
    kind, groups = StratifiedKFold, None
    if problem.groups is not None:
        groups = pd.Series(problem.groups, problem.frame.index).loc[chosen.index]
        kind, n_folds = StratifiedGroupKFold, min(n_folds, groups.nunique())
    splits = kind(n_folds, shuffle=True, random_state=seed).split(frame, labels, groups) if n_folds > 1 else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model itself has given them
        for train, test in splits:
            part: Any = clone(copy)
            part.fit(frame.iloc[train], labels[train])
            if "label_noise_" in vars(model.estimator_):
                part.estimator_.label_noise_ = model.estimator_.label_noise_  # of the selection, which copies skip
            if vars(part.estimator_).get("missingness_") is not None:
                strength = model.estimator_.missingness_.strength
                part.estimator_.missingness_ = part.estimator_.missingness_.scaled(strength)
            probabilities[test] = probabilities_of(part, frame.iloc[test], model.classes_)
            scores[test] = part.outlier_score(frame.iloc[test]) if hasattr(part.estimator_, "outlier_score") else 0.0
            if time.perf_counter() > deadline:
                break
    judged = ~np.isnan(scores)
    rows = (frame[judged], labels[judged], weights[judged], probabilities[judged], scores[judged])
    return HeldOut(model, copy, *rows, sizes, left_out, n_folds, seed)
