"""Rows of a table and their predictions by copies of a model that were fitted without them; scores and decisions."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix, log_loss
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from mixtura.cli.tables import TableProblem
from mixtura.estimators.classifiers import probabilities_of
from mixtura.estimators.density_classifier import DensityClassifier, Trained
from mixtura.estimators.estimator import unfitted_copy, with_selected_settings
from mixtura.estimators.refits import adopt_estimates
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.inspection.outliers import SuspiciousLabels, find_suspicious, reference_of, threshold_of

MOST_ROWS, FOLDS, FALSE_ALARM, N_BINS = 1500, 5, 0.01, 10
COSTS, PRECISIONS = (1, 2, 5, 10, 20, 50), (0.5, 0.8, 0.9, 0.95, 0.99)

Decision = dict[str, float]  # names and values of the scores of a threshold


@dataclass(frozen=True)
class HeldOut:
    """Rows and their predictions by copies of the model that were fitted without them; fit and report share them.

    Parameters
    ----------
    model : TableClassifier
    copy : Classifier
        An unfitted copy of its estimator, with the selected settings.
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
    copy: Trained
    frame: pd.DataFrame
    labels: np.ndarray
    weights: np.ndarray
    probabilities: np.ndarray
    outlier_scores: np.ndarray
    sizes: Mapping[Hashable, int]
    left_out: list[Hashable]
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
    def confusions(self) -> np.ndarray:
        """Number of rows by true and predicted class, (C, C)."""
        return confusion_matrix(self.numbers, self.probabilities.argmax(1), labels=range(len(self.names)))

    @cached_property
    def log_loss(self) -> float:
        """The log-loss of these predictions, which is not corrected for the selection."""
        return log_loss_of(self.probabilities, self.numbers, self.weights) if len(self.labels) else float("nan")

    @property
    def performance(self) -> dict[str, Any]:
        """Error rate and log-loss: what the selection expects, with intervals, or those of these rows without one."""
        search = self.model.estimator_.search_
        estimate = None if search is None else search.estimate
        error = float(np.average(self.wrong, weights=self.weights)) if len(self.labels) else float("nan")
        return {
            "held_out_error": error if estimate is None else estimate.error,
            "held_out_error_interval": None if estimate is None else list(estimate.error_interval),
            "held_out_log_loss": self.log_loss if estimate is None else estimate.log_loss,
            "held_out_log_loss_interval": None if estimate is None else list(estimate.log_loss_interval),
        }

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
    def suspicious(self) -> SuspiciousLabels:
        """Labels that contradict the held-out predictions."""
        return find_suspicious(self.probabilities, self.numbers, np.array(self.names))


def choose_rows(labels: pd.Series, seed: int) -> tuple[pd.Series, dict[Hashable, int]]:
    """The labels of at most about MOST_ROWS rows, all of rare classes, and how many of every class if not all rows.

    A class of a single row cannot be held out.
    """
    counts = Counter(labels.tolist())
    labels = labels.loc[labels.map(counts) > 1]
    if len(labels) <= MOST_ROWS:
        return labels, {}
    n_classes = sum(count > 1 for count in counts.values())
    fair = MOST_ROWS // (2 * n_classes)
    sizes = {c: max(min(n, fair), n * MOST_ROWS // len(labels)) for c, n in sorted(counts.items()) if n > 1}
    chosen = [labels.loc[labels == label].sample(size, random_state=seed) for label, size in sizes.items()]
    return cast("pd.Series", pd.concat(chosen).sort_index()), sizes


def predict_held_out(
    model: TableClassifier, problem: TableProblem, seed: int, deadline: float = float("inf")
) -> HeldOut:
    """Predict rows of a table by five-fold cross-validation with the settings of a model.

    No further fold begins after the deadline; rows that were not held out are left out.
    """
    every = pd.Series(problem.labels, problem.frame.index)
    chosen, sizes = choose_rows(every, seed)
    frame, labels = problem.frame.loc[chosen.index], chosen.to_numpy()
    counts = every.value_counts()
    left_out = [
        *(value for value in problem.no_classes if value is not None),
        *(value for value, count in counts.items() if count == 1),
    ]
    fitted, copy, settings = model.estimator_, with_selected_settings(model.estimator_), {}
    weights = np.ones(len(labels))
    if sizes:
        shares = {label: float(counts[label] / counts[counts > 1].sum()) for label in sizes}
        weights = np.array([shares[label] * len(labels) / sizes[label] for label in labels.tolist()])
        settings = {"class_prior": shares}
    components = copy.get_params(deep=False).get("n_components")
    if isinstance(components, dict):
        present = set(labels.tolist())
        settings["n_components"] = {c: count for c, count in components.items() if c in present}
    copy.set_params(**{name: value for name, value in settings.items() if name in copy.get_params(deep=False)})
    probabilities, scores = np.full((len(labels), len(model.classes_)), np.nan), np.full(len(labels), np.nan)
    kind, groups = StratifiedKFold, None
    n_folds = min(FOLDS, int(chosen.value_counts().max())) if chosen.nunique() > 1 else 0
    if problem.groups is not None:
        groups = pd.Series(problem.groups, problem.frame.index).loc[chosen.index]
        kind, n_folds = StratifiedGroupKFold, min(n_folds, groups.nunique())
    splits = kind(n_folds, shuffle=True, random_state=seed).split(frame, labels, groups) if n_folds > 1 else ()
    rows = model.read(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model itself has given them
        for train, test in splits:
            part = unfitted_copy(copy)
            part.fit(rows.iloc[train], labels[train])
            adopt_estimates(part, fitted)
            probabilities[test] = probabilities_of(part, rows.iloc[test], model.classes_)
            scores[test] = part.outlier_score(rows.iloc[test]) if isinstance(part, DensityClassifier) else 0.0
            if time.perf_counter() > deadline:
                break
    judged = ~np.isnan(scores)
    held_out = (frame[judged], labels[judged], weights[judged], probabilities[judged], scores[judged])
    return HeldOut(model, copy, *held_out, sizes, left_out, n_folds, seed)


def log_loss_of(probabilities: np.ndarray, numbers: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean log-loss of classes by their numbers."""
    return float(log_loss(numbers, probabilities, labels=range(probabilities.shape[1]), sample_weight=weights))


def calibration_error(probabilities: np.ndarray, numbers: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Expected calibration error of the predicted class: mean distance of confidence and accuracy over bins."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == numbers
    shares = np.ones(len(numbers)) if weights is None else weights
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    gaps = [abs(float(((confidence - right) * shares)[bins == b].sum())) for b in set(bins.tolist())]
    return sum(gaps) / float(shares.sum())


def decision(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray, threshold: float) -> Decision:
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


def threshold_table(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> list[tuple[str, Decision]]:
    """For stated costs and precisions: their names, thresholds and what they give on held-out rows."""
    lines = []
    for metric in (*(f"cost:{cost}" for cost in COSTS), *(f"precision:{share}" for share in PRECISIONS)):
        try:
            threshold = threshold_for(metric, positive, scores, weights)
        except ValueError:
            continue
        assert threshold is not None
        lines.append((metric, decision(positive, scores, weights, threshold)))
    return lines
