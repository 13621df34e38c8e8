"""Outlier scores that are comparable between samples with different missing values; thresholds from held-out scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mixtura.inspection.summaries import data_frame
from mixtura.model.mixture import Mixture
from mixtura.objectives import class_log_joint, posteriors

if TYPE_CHECKING:
    import pandas as pd

NEGLIGIBLE = 1e-6
# Largest number of stored held-out scores.
MOST_REFERENCES = 5_000
# Classes and features from which on doubt counts. Mean area under the ROC curve of left-out classes by distance alone,
# with doubt:
#   4 to 9 features (glass, olive, crabs, vowels, vowel)    .89 .85    16 to 18, five classes or more        .925 .941
#   13 to 18, two or three classes (wine, vehicle)          .87 .79    36 to 90 (satellite to movements)     .869 .889
#   50 to 384 (digits, CIFAR-10, docstrings, images): two classes .880 .898, three .859 .881, four .837 .858
LEAST_CLASSES, LEAST_FEATURES = 3, 20


def outlier_scores(
    log_joint: Tensor, distances: Tensor, means: Tensor, variances: Tensor, missing: bool, sizes: Sequence[int]
) -> Tensor:
    """Standardised distances of samples from their components (outlier-score), and their doubts (doubt), (n, 2).

    The squared distance of a Gaussian sample with m observed features has mean m and variance 2 m. Divided by its mean,
    its cube root is nearly normal with mean 1 - s and variance s, where s = variance / (9 mean^2) (Wilson and Hilferty
    1931), for any missing values. The score is the average of the standardised roots, weighted by
    responsibilities. It makes samples comparable; the threshold comes from held-out samples. The doubt is the entropy
    of the class posteriors at the temperature sqrt(variance).

    Parameters
    ----------
    log_joint : Tensor of shape (K, n)
    distances : Tensor of shape (K, n)
        Squared Mahalanobis distances of the observed features.
    means, variances : Tensor of shape (n,) or (K, n)
        Of the distances of a component's own samples.
    missing : bool
        Whether the samples have missing values. Doubt is no surprise there, nor with few features or classes: it is
        NaN.
    sizes : sequence of int
        Numbers of components of the classes.
    """
    known = means > 0
    means = means.clamp_min(1e-300)
    spread = (variances / (9 * means.square())).clamp_min(1e-12)
    roots = (distances.clamp_min(0) / means).pow(1 / 3)
    scores = torch.where(known, (roots - 1 + spread) / spread.sqrt(), 0.0)
    shares = posteriors(log_joint)[1]
    scores = (shares * torch.where(shares > 0, scores, 0.0)).sum(0)  # a component without weight may be infinitely far
    if missing or len(sizes) < LEAST_CLASSES or float(means.mean()) < LEAST_FEATURES:
        return torch.stack((scores, torch.full_like(scores, torch.nan)), 1)
    tempered = class_log_joint(log_joint, sizes) / variances.reshape(-1, len(scores)).mean(0).sqrt().clamp_min(1.0)
    return torch.stack((scores, torch.special.entr(tempered.softmax(0)).sum(0)), 1)


def left_out(
    mixture: Mixture, counts: Tensor, pseudo: float
) -> Callable[[Tensor, Tensor, Tensor, Tensor, bool], Tensor]:
    """The scores that training samples would have if they were left out of the fit, as a function (left-out-distance).

    Parameters
    ----------
    mixture : Mixture
        Fitted to the samples.
    counts : Tensor of shape (K,)
        Samples of each component.
    pseudo : float
        Pseudo-samples of the prior of a covariance.
    """
    matrix_of, n = mixture.covariance.matrix_of, counts.unsqueeze(-1)
    totals = counts.new_zeros(len(counts)).index_add_(0, matrix_of, counts)[matrix_of].unsqueeze(-1) + pseudo
    influence = 1 if mixture.covariance.structure.is_unrestricted else 1 / mixture.n_features

    def scores(log_joint: Tensor, distances: Tensor, means: Tensor, variances: Tensor, missing: bool) -> Tensor:
        r = posteriors(log_joint)[1]
        rest = (n - r).clamp_min(NEGLIGIBLE * n)
        left = (1 - r * n / rest * influence * distances / totals).clamp_min(NEGLIGIBLE)
        farther = (n / rest).square() * (totals - r).clamp_min(NEGLIGIBLE) / totals * distances / left
        farther_joint = log_joint - (farther - distances) / 2
        return outlier_scores(farther_joint, farther, means, variances, missing, mixture.class_sizes)

    return scores


def reference_of(scores: np.ndarray) -> np.ndarray:
    """Scores of held-out samples (n,) or (n, 2), sorted by distance; many are reduced to equally spaced quantiles."""
    scores = scores.astype(np.float64)
    ordered = scores[np.argsort(scores if scores.ndim == 1 else scores[:, 0], kind="stable")]
    if len(ordered) <= MOST_REFERENCES:
        return ordered
    return ordered[np.linspace(0, len(ordered) - 1, MOST_REFERENCES).round().astype(np.int64)]


def surprises(reference: np.ndarray, scores: Tensor) -> Tensor:
    """-log p of the distances of samples plus -log p of their doubts, (n,), by the ranks among held-out ones (doubt).

    Parameters
    ----------
    reference : ndarray of shape (m, 2)
        Of `reference_of`.
    scores : Tensor of shape (n, 2)
        Of `outlier_scores`.
    """
    own = torch.from_numpy(reference).to(scores.device)
    distances, doubts = scores.double().unbind(1)
    known = own[:, 1][~own[:, 1].isnan()].sort().values
    unknown = doubts.isnan() | (len(known) == 0)
    doubtful = torch.where(unknown, 1.0, -_tail(known, doubts).log())  # 1 is the mean of -log p
    ordered, start = own[:, 0].contiguous(), max(0, math.ceil(0.9 * len(own)) - 1)
    limit = ordered[min(start, len(ordered) - 2)] if len(ordered) > 1 else ordered[0]
    excess = (ordered[ordered > limit] - limit).sum() / (ordered > limit).sum().clamp_min(1)
    beyond = (distances - limit).clamp_min(0) / excess.clamp_min(1e-6)
    return beyond - _tail(ordered, distances.clamp_max(limit)).log() + doubtful


def _tail(ordered: Tensor, values: Tensor) -> Tensor:
    """The share of sorted held-out values that are as large as each value, counting the value itself."""
    return (len(ordered) + 1 - torch.searchsorted(ordered, values.contiguous())) / (len(ordered) + 1)


def threshold_of(reference: np.ndarray, false_alarm: float) -> float:
    """The threshold with an expected false alarm rate of at most `false_alarm`.

    It is the order statistic ceil((n + 1)(1 - false_alarm)) of n held-out scores, or the largest one if n is too small
    for this rate.
    """
    rank = math.ceil((len(reference) + 1) * (1 - false_alarm))
    return float(reference[min(rank, len(reference)) - 1])


def set_thresholds(reference: np.ndarray, n_classes: int, coverage: float) -> np.ndarray:
    """For every class the largest -log p(c | x) of the samples x whose set holds it, (C,) (prediction-sets).

    `reference` (n, 2) holds the classes of calibration samples and their scores. The threshold is the order statistic
    ceil((n_c + 1) coverage) of the n_c scores of a class, and infinite if there are fewer.
    """
    thresholds = np.full(n_classes, np.inf)
    for c in range(n_classes):
        own = np.sort(reference[reference[:, 0] == c, 1])
        rank = math.ceil((len(own) + 1) * coverage)
        if rank <= len(own):
            thresholds[c] = own[rank - 1]
    return thresholds


def class_p_values(reference: np.ndarray, scores: Tensor) -> Tensor:
    """The p-values of samples in every class, (n, C), from -log p(x, c) of samples (typicality).

    `reference` (m, 3) holds the classes of calibration samples, and in its last column the scores in them.
    """
    known, p_values = torch.from_numpy(reference).to(scores.device), torch.empty_like(scores, dtype=torch.float64)
    for c in range(scores.shape[1]):
        own = known[known[:, 0] == c, 2].sort().values
        smaller = torch.searchsorted(own, scores[:, c].double().contiguous())
        p_values[:, c] = (len(own) + 1 - smaller).double() / (len(own) + 1)
    return p_values


@dataclass(frozen=True)
class CoverageCurve:
    """Error rate among the accepted samples, for every fraction of accepted samples (coverage).

    Attributes
    ----------
    coverages : ndarray
        Fraction of accepted samples, from the most certain ones to all.
    errors : ndarray
        Error rate among the accepted samples.
    confidences : ndarray
        Smallest confidence among the accepted samples: the threshold for this coverage.
    """

    coverages: np.ndarray
    errors: np.ndarray
    confidences: np.ndarray

    @classmethod
    def of(cls, confidences: np.ndarray, wrong: np.ndarray) -> CoverageCurve:
        """Compute the curve from the confidence and the outcome of each sample."""
        order = np.argsort(-confidences, kind="stable")
        answered = np.arange(1, len(order) + 1)
        return cls(answered / len(order), np.cumsum(wrong[order]) / answered, confidences[order])

    @property
    def area(self) -> float:
        """Mean error rate over all coverages; lower is better."""
        return float(self.errors.mean())

    def to_frame(self) -> pd.DataFrame:
        """A pandas data frame with one line per coverage."""
        return data_frame({"coverage": self.coverages, "error rate": self.errors, "confidence": self.confidences})

    def plot(self, ax: Any = None) -> Any:
        """Draw the curve; returns a CoverageDisplay."""
        from mixtura.plotting.curves import CoverageDisplay

        return CoverageDisplay(self.coverages, self.errors).plot(ax)


@dataclass(frozen=True)
class SuspiciousLabels:
    """Samples whose labels contradict a model that was fitted without them, the most suspicious first.

    Attributes
    ----------
    positions : ndarray of int
        Positions of the samples in X.
    labels : ndarray
        Their labels.
    suggestions : ndarray
        Classes predicted by the model.
    label_probabilities, suggestion_probabilities : ndarray
        Held-out probabilities of labels and suggestions.
    """

    positions: np.ndarray
    labels: np.ndarray
    suggestions: np.ndarray
    label_probabilities: np.ndarray
    suggestion_probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    def to_frame(self) -> pd.DataFrame:
        """A pandas data frame with one line per suspicious sample, indexed by its position."""
        columns = {
            "label": self.labels,
            "suggestion": self.suggestions,
            "p(label)": self.label_probabilities,
            "p(suggestion)": self.suggestion_probabilities,
        }
        return data_frame(columns, self.positions)


FALSE_DISCOVERIES = 0.2  # expected share of right labels among suspicious ones
TEMPERATURES = np.geomspace(0.25, 4, 25)  # a model that was fitted to wrong labels too is less certain than it could be
STEPS = 100  # of EM


def find_suspicious(probabilities: np.ndarray, numbers: np.ndarray, classes: np.ndarray) -> SuspiciousLabels:
    """Find probable label errors: the most labels of which at most a fifth are right in expectation (label-errors).

    Parameters
    ----------
    probabilities : ndarray of shape (n, C)
        Held-out probabilities; rows of NaN were not held out.
    numbers : ndarray of shape (n,)
    classes : ndarray of shape (C,)
    """
    judged = np.flatnonzero(~np.isnan(probabilities[:, 0]))
    predicted, own_numbers = probabilities[judged], numbers[judged]
    own = predicted[np.arange(len(judged)), own_numbers]
    wrong = _error_probabilities(predicted, own_numbers)
    order = np.argsort(-wrong, kind="stable")
    right_shares = np.cumsum(1 - wrong[order]) / np.arange(1, len(order) + 1)
    n_flagged = int((right_shares <= FALSE_DISCOVERIES).sum())  # the shares increase
    chosen = order[:n_flagged]
    others = predicted[chosen].copy()
    others[np.arange(n_flagged), own_numbers[chosen]] = -1.0
    best = others.argmax(1)
    return SuspiciousLabels(
        judged[chosen], classes[own_numbers[chosen]], classes[best], own[chosen], others[np.arange(n_flagged), best]
    )


def _error_probabilities(probabilities: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The probability that each label is wrong, (n,); temperature and share of errors have maximal likelihood."""
    n_rows, n_classes = probabilities.shape
    if not n_rows or n_classes < 2:
        return np.zeros(n_rows)
    logs = np.log(probabilities.clip(1e-12))  # (n, C)
    places = np.arange(n_rows)
    own = np.stack([np.exp(logs[places, numbers] / t - np.logaddexp.reduce(logs / t, axis=1)) for t in TEMPERATURES])
    other = (1 - own) / (n_classes - 1)
    shares = np.full((len(TEMPERATURES), 1), 0.02)
    wrong = np.zeros_like(own)
    for _ in range(STEPS):
        wrong = shares * other / ((1 - shares) * own + shares * other)
        shares = wrong.sum(1, keepdims=True) / (n_rows + 1)
    likelihoods = np.log((1 - shares) * own + shares * other).sum(1)
    return wrong[int(likelihoods.argmax())]
