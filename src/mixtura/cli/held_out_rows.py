"""The numbers behind a report: held-out predictions, the plane that separates the classes, importances of features."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mixtura.cli.columns import read_problem
from mixtura.cli.files import read_table
from mixtura.cli.html import percent
from mixtura.cli.scores import sampled
from mixtura.estimators.refits import held_out, probabilities_of, refit
from mixtura.estimators.rows import as_array
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.inspection.outliers import find_suspicious, threshold_of
from mixtura.inspection.summaries import separating_features

MOST_ROWS, MOST_POINTS, MOST_LISTED = 1500, 400, 12
FALSE_ALARM, FOLDS = 0.01, 5
# Features of the plane, of importances and of reasons; those that separate the components best, where there are more.
MOST_IN_PLANE, MOST_IMPORTANCES, MOST_EXPLAINED = 200, 100, 100
ROWS_FOR_IMPORTANCES, ORDERS = 500, 4


@dataclass(frozen=True)
class ReportedRows:
    """A model, the rows of the report, and their predictions by copies of the model that were fitted without them."""

    model: TableClassifier
    frame: Any  # of the rows
    places: np.ndarray  # numbers of the rows in the table, from 1
    features: Any
    labels: np.ndarray
    probabilities: np.ndarray  # (n, C)
    outlier_scores: np.ndarray
    seed: int

    @cached_property
    def numbers(self) -> np.ndarray:
        return np.searchsorted(self.model.classes_, self.labels)

    @property
    def names(self) -> list[str]:
        return [str(label) for label in self.model.classes_.tolist()]

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.model.features]

    @property
    def fitted(self) -> Any:
        return self.model.estimator_

    @property
    def predicted(self) -> np.ndarray:
        return self.probabilities.argmax(1)

    @cached_property
    def encoded(self) -> tuple[np.ndarray, list[str]]:
        """The rows as the mixture sees them: imputed, categories as indicators, transformed; and names of columns."""
        names = [str(name) for name in self.features.columns]
        imputed, encoding = self.fitted.impute(self.features), self.fitted.encoding_
        rows = np.asarray(imputed if encoding is None else encoding.encoded(imputed), dtype=float)
        if encoding is not None:
            categories = zip(encoding.categorical, encoding.categories, strict=True)
            indicators = [f"{names[j]}={category}" for j, values in categories for category in values.tolist()]
            names = [names[j] for j in encoding.numeric] + indicators
        if self.fitted.warp_ is not None:
            rows = self.fitted.warp_.to("cpu").forward(torch.from_numpy(rows)).numpy()
        return np.nan_to_num(rows), names

    @cached_property
    def suspicious(self) -> Any:
        """Labels that contradict the held-out predictions."""
        return find_suspicious(self.probabilities, self.numbers, np.array(self.names))

    @cached_property
    def outlier_limit(self) -> float:
        reference = self.fitted.outlier_reference_
        return threshold_of(np.sort(self.outlier_scores) if reference is None else reference, FALSE_ALARM)

    @cached_property
    def outlying(self) -> np.ndarray:
        """Positions of rows above the limit, the farthest first."""
        order = np.argsort(-self.outlier_scores)
        return order[self.outlier_scores[order] > self.outlier_limit]

    @cached_property
    def drawn(self) -> np.ndarray:
        """Positions of the rows that are drawn: those that the report lists, then a random choice."""
        listed = np.concatenate([self.suspicious.positions[:MOST_LISTED], self.outlying[:MOST_LISTED]])
        others = np.random.default_rng(self.seed).permutation(len(self.labels))
        return np.sort(np.unique(np.concatenate([listed, others])[np.arange(len(listed) + len(others)) < MOST_POINTS]))


def evidence_of(model: TableClassifier, data: Path, seed: int) -> ReportedRows:
    """Predict rows of a table by copies of a model that were fitted without them."""
    target = model.about_.get("target")
    if target is None:
        raise ValueError("The model file does not say which column is the target; pass a model file of `mixtura fit`.")
    frame = read_table(data)
    if target not in frame.columns:
        raise ValueError(f"The table has no column {target!r}; a report needs the labels of its rows.")
    model.read(frame.head(1))  # all columns of the model are there
    used = {target, *(column.name for column in model.features)}
    problem = read_problem(frame, target, [name for name in frame.columns if name not in used])
    unknown = sorted(set(np.unique(problem.labels).tolist()) - set(model.classes_.tolist()), key=str)
    if unknown:
        raise ValueError(f"Column {target!r} holds {unknown[0]!r}, which is not a class of the model.")
    rows = sampled(len(problem.labels), MOST_ROWS, problem.labels, seed)
    labels, table = problem.labels[rows], model.read(problem.frame.iloc[rows])
    probabilities, scores = predict_held_out(model.estimator_, table, labels, seed)
    judged = ~np.isnan(scores)
    if len(np.unique(labels[judged])) < 2:
        raise ValueError(f"A report needs two classes of {target!r} with at least two rows each.")
    places = problem.frame.index.to_numpy()[rows][judged] + 1
    frame, features = (part[judged].reset_index(drop=True) for part in (problem.frame.iloc[rows], table))
    return ReportedRows(model, frame, places, features, labels[judged], probabilities[judged], scores[judged], seed)


def predict_held_out(
    model: Any, X: Any, labels: np.ndarray, seed: int, deadline: float = float("inf")
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, C) and outlier scores (n,) of samples by copies of a model that have not seen them.

    No further fold begins after the deadline; samples that were not held out have NaN.
    """
    probabilities, scores = np.full((len(labels), len(model.classes_)), np.nan), np.full(len(labels), np.nan)

    def answer(copy: Any, part: Any) -> tuple[np.ndarray, np.ndarray]:
        return probabilities_of(copy, part, model.classes_), as_array(copy.outlier_score(part))

    for test, values in held_out(model, X, labels, FOLDS, answer, seed=seed):
        probabilities[test], scores[test] = values
        if time.perf_counter() > deadline:
            break
    return probabilities, scores


def copy_probabilities(evidence: ReportedRows, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Probabilities (n, C) of some rows by a copy of the model that is fitted to others."""
    copy = refit(evidence.fitted, evidence.features, evidence.labels, train)
    return probabilities_of(copy, evidence.features.iloc[test], evidence.model.classes_)


# ---- the plane -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """Rows and components in two coordinates.

    Means and covariances are those of the rows, weighted by responsibilities: they also fit rows whose missing values
    were imputed.

    Parameters
    ----------
    points : ndarray of shape (n, 2)
    means : ndarray of shape (K, 2)
    covariances : ndarray of shape (K, 2, 2)
    counts : ndarray of shape (K,)
        Sums of the responsibilities.
    labels : pair of str
        The features that each coordinate is mostly made of.
    """

    points: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    counts: np.ndarray
    labels: tuple[str, str]


def plane_of(evidence: ReportedRows) -> Plane:
    """The plane that separates the classes best: the first two discriminant directions of the transformed features.

    With two classes there is one such direction; the second is the one with the largest variance at right angles.
    """
    rows, names = evidence.encoded
    mixture = evidence.fitted.mixture_.to("cpu")
    chosen = separating_features(mixture, MOST_IN_PLANE)
    rows, names = rows[:, chosen], [names[j] for j in chosen]
    centre, scale = rows.mean(0), rows.std(0)
    scale[scale == 0] = 1.0
    weights = _discriminants((rows - centre) / scale, evidence.numbers) / scale[:, None]  # (D, 2)
    points = (rows - centre) @ weights
    shares = own_shares(evidence, np.arange(len(points)))
    counts = shares.sum(0).clip(1e-12)
    means = shares.T @ points / counts[:, None]  # (K, 2)
    products = shares.T @ (points[:, :, None] * points[:, None, :]).reshape(len(points), 4) / counts[:, None]
    matrices = products.reshape(-1, 2, 2) - means[:, :, None] * means[:, None, :]
    labels = [_direction(weights[:, axis] * scale, names) for axis in (0, 1)]
    return Plane(points, means, matrices, counts, (labels[0], labels[1]))


def own_shares(evidence: ReportedRows, rows: np.ndarray) -> np.ndarray:
    """Responsibilities of the components of the class of each row, (n, K); those of other classes are zero."""
    shares = as_array(evidence.fitted.responsibilities(evidence.features.iloc[rows])).astype(float)
    own = evidence.fitted.mixture_.class_of.cpu().numpy() == evidence.numbers[rows][:, None]
    shares = np.where(own, shares.clip(1e-300), 0.0)
    return shares / shares.sum(1, keepdims=True)


def _discriminants(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Two directions (D, 2) in which standardised rows of different classes differ most."""
    present, owners = np.unique(numbers, return_inverse=True)
    size = rows.shape[1]
    means = np.stack([rows[owners == c].mean(0) for c in range(len(present))])
    within = np.cov((rows - means[owners]).T).reshape(size, size)
    shrinkage = 1e-3 + 0.2 * size / len(rows)  # with few rows the directions would be those of their noise
    within = within + (shrinkage * np.trace(within) / size + 1e-12) * np.eye(size)
    factor = np.linalg.inv(np.linalg.cholesky(within))
    _, _, directions = np.linalg.svd((means - means.mean(0)) @ factor.T)
    if len(present) == 2 and size > 1:
        whitened = rows @ factor.T
        rest = whitened - np.outer(whitened @ directions[0], directions[0])
        directions = np.stack([directions[0], np.linalg.svd(rest - rest.mean(0), full_matrices=False)[2][0]])
    weights = (directions[:2] @ factor).T
    return weights if weights.shape[1] == 2 else np.concatenate([weights, np.zeros_like(weights)], 1)


def _direction(weights: np.ndarray, names: list[str]) -> str:
    order = np.argsort(-np.abs(weights))[:3]
    return "mostly " + ", ".join(names[j][:24] for j in order) if np.abs(weights).max() > 0 else ""


# ---- features --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Importances:
    """Rise of the log-loss without a feature: over all rows, and over those of every class and component.

    Parameters
    ----------
    features : list of int
        Positions of the features, the most important first.
    overall : ndarray of shape (F,)
    by_class : dict of int to ndarray of shape (F,)
    by_component : dict of int to ndarray of shape (F,)
    """

    features: list[int]
    overall: np.ndarray
    by_class: dict[int, np.ndarray]
    by_component: dict[int, np.ndarray]


def importances_of(evidence: ReportedRows) -> Importances:
    """Integrate every feature out of the model, for the rows of every component and class.

    A row belongs to the component of its class that has the largest responsibility for it.
    """
    fitted = evidence.fitted
    sample = np.random.default_rng(evidence.seed).permutation(len(evidence.labels))[:ROWS_FOR_IMPORTANCES]
    part, numbers, feature_of = evidence.features.iloc[sample], evidence.numbers[sample], fitted._feature_of()
    rows, features = fitted._plain_rows(part), np.arange(part.shape[1])
    if len(features) > MOST_IMPORTANCES:
        features = np.unique(feature_of[separating_features(fitted.mixture_, MOST_IMPORTANCES)])

    def losses(kept: np.ndarray) -> np.ndarray:
        return -fitted._marginal_log_proba(rows, kept)[np.arange(len(rows)), numbers]

    whole = losses(np.ones(len(feature_of), bool))
    rises = np.stack([losses(feature_of != j) - whole for j in features], 1)  # (n, F)
    order = np.argsort(-rises.mean(0), kind="stable")
    rises, nearest = rises[:, order], own_shares(evidence, sample).argmax(1)
    return Importances(
        features[order].tolist(),
        rises.mean(0),
        {c: rises[numbers == c].mean(0) for c in np.unique(numbers).tolist()},
        {k: rises[nearest == k].mean(0) for k in np.unique(nearest).tolist()},
    )


def details_of(evidence: ReportedRows, most_values: int) -> list[dict[str, Any]]:
    """Details of every drawn row: label, prediction, component, reasons and values."""
    drawn, texts = evidence.drawn, []
    explained = evidence.features.shape[1] <= MOST_EXPLAINED
    explanation = evidence.fitted.explain(evidence.features.iloc[drawn], n_orders=ORDERS) if explained else None
    nearest = as_array(evidence.fitted.responsibilities(evidence.features.iloc[drawn])).argmax(1)
    names = [str(name) for name in evidence.features.columns]
    for place, sample in enumerate(drawn.tolist()):
        best = int(evidence.predicted[sample])
        row, reasons, why = evidence.frame.iloc[sample], [], ""
        if explanation is not None:
            contributions = explanation.values[place]
            order = np.argsort(-np.abs(contributions))[:6]
            reasons = [[names[j], round(float(contributions[j]), 3)] for j in order if contributions[j]]
            why = f"Reasons for {explanation.classes[place]}, in log-odds"
        own = evidence.probabilities[sample, evidence.numbers[sample]]
        lines = [f"Held-out prediction: {evidence.names[best]} ({percent(evidence.probabilities[sample, best])})"]
        if best != evidence.numbers[sample]:
            lines.append(f"Probability of {evidence.names[evidence.numbers[sample]]}: {percent(own)}")
        score = evidence.outlier_scores[sample]
        unusual = f", above {evidence.outlier_limit:.1f}: an outlier" if score > evidence.outlier_limit else ""
        lines.append(f"Component {nearest[place]}; outlier score {score:.1f}{unusual}")
        left_out = len(evidence.columns) - most_values
        texts.append(
            {
                "row": int(evidence.places[sample]),
                "label": evidence.names[evidence.numbers[sample]],
                "lines": lines,
                "why": why,
                "reasons": reasons,
                "values": [[name, shown_value(row[name])] for name in evidence.columns[:most_values]],
                "more": f"and {left_out} more columns" if left_out > 0 else "",
            }
        )
    return texts


def shown_value(value: Any) -> str:
    """A value of a table as text."""
    if value is None or value != value or str(value) == "<NA>":
        return "missing"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)[:60]
