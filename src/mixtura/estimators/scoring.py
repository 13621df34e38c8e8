"""Scores that ignore unlabeled samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.utils import _safe_indexing
from torch import Tensor

from mixtura import checks
from mixtura.estimators.labels import as_labels, labeled_samples
from mixtura.estimators.rows import is_dask
from mixtura.streams.batches import named_batches


@dataclass(frozen=True)
class LabeledScorer:
    """A scikit-learn scorer of the labeled samples.

    Cross-validation holds out unlabeled samples too. Most scorers count them as errors; this one ignores them.

    Parameters
    ----------
    scoring : str or callable, default="accuracy"
        A scorer, as `sklearn.metrics.get_scorer` takes it.
    unlabeled : object, default=-1
        The label of unlabeled samples; np.nan stands for every missing label.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from mixtura import LabeledScorer, MixtureClassifier
    >>> from mixtura.datasets import make_ripley
    >>> X, y = make_ripley(60, random_state=0)
    >>> y[::3] = -1
    >>> model = MixtureClassifier(1, unlabeled=-1)
    >>> scores = cross_val_score(model, X, y, scoring=LabeledScorer("neg_log_loss", unlabeled=-1))
    >>> bool((scores > -0.6).all())
    True
    """

    scoring: Any = "accuracy"
    unlabeled: Any = -1

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of the labeled samples of X and y."""
        X, y, sample_weight = only_labeled(X, y, sample_weight, self.unlabeled)
        known = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(get_scorer(self.scoring)(estimator, X, y, **known))


def only_labeled(X: Any, y: Any, sample_weight: Any, unlabeled: Any) -> tuple[Any, Any, Any]:
    """The samples that have a label."""
    labeled = labeled_samples(y, unlabeled)
    if labeled.all():
        return X, y, sample_weight
    if not labeled.any():
        raise ValueError(f"y holds no labeled sample to score: every label is {unlabeled!r}.")
    return tuple(_some(part, labeled) for part in (X, y, sample_weight))


def accuracy_of_batches(model: Any, batches: Any) -> float:
    """The accuracy on the labeled samples of batches of (X, y) or (X, y, sample_weight)."""
    counts = np.zeros(2)
    for batch in named_batches(batches):
        if len(batch.X):
            checks.given_labels(batch.y, f"{batch.origin}: {type(model).__name__}")
            counts += _counts(model.predict(batch.X), batch.y, batch.sample_weight, model.unlabeled)
    return _accuracy(counts)


def accuracy_of_collection(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """The accuracy on the labeled samples of a Dask collection; predictions and labels come into this process."""
    parts = (model.predict(X), y, sample_weight)
    predicted, labels, weights = (part.compute() if is_dask(part) else part for part in parts)
    return _accuracy(_counts(predicted, labels, weights, model.unlabeled))


def _counts(predicted: Any, y: Any, sample_weight: Any, unlabeled: Any) -> np.ndarray:
    """The weights of the correctly predicted and of all labeled samples."""
    (labels, _), (predicted_labels, _) = as_labels(y), as_labels(predicted)
    weights = checks.sample_weight(sample_weight, len(labels), all_rows=False)
    shares = np.ones(len(labels)) if weights is None else weights.cpu().numpy()
    shares = shares * labeled_samples(y, unlabeled)
    return np.array([shares @ (predicted_labels == labels), shares.sum()])


def _accuracy(counts: np.ndarray) -> float:
    if counts[1] == 0:
        raise ValueError("y holds no labeled sample to score.")
    return float(counts[0] / counts[1])


def _some(values: Any, chosen: np.ndarray) -> Any:
    if values is None or isinstance(values, Tensor):
        return None if values is None else values[chosen]
    return _safe_indexing(values, np.flatnonzero(chosen))
