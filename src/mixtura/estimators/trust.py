"""Outlier detection by models with a density, with a threshold from held-out samples."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples, check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.engine.conditionals import map_distances
from mixtura.engine.threads import computing
from mixtura.estimators.input import ArrayLike, FrameLike, read_labels
from mixtura.estimators.rowwise import rowwise
from mixtura.model.mixture import Mixture
from mixtura.reading.outliers import outlier_scores, reference_of, threshold_of
from mixtura.selection.folds import checked_cv, hold_outs


class OutlierDetection:
    """Outlier scores of samples, and which of them exceed a threshold."""

    mixture_: Mixture
    outlier_reference_: np.ndarray | None = None  # sorted scores of held-out training samples
    memory_limit: Any

    @rowwise()
    def outlier_score(self, X: Any) -> Any:
        """Compute outlier scores; larger values are more unusual.

        The score is the squared distance of the observed features from the components of a sample. It is standardised
        to mean 0 and variance 1 for Gaussian samples with any missing values (outlier-score).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing. A sample without observed values has score 0.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
        """
        rows = self._read(X)  # pyright: ignore[reportAttributeAccessIssue]
        source = rows.source()
        with computing():
            mixture = self.mixture_.to(source.device)
            scores = map_distances(mixture, source, outlier_scores, checks.memory_limit(self.memory_limit))
        return rows.answer(scores)

    def calibrate_outliers(self, X: Any, y: Any = None, sample_weight: Any = None, cv: Any = 5) -> Any:
        """Estimate the distribution of outlier scores by cross-validation, for `is_outlier`.

        Copies of the model are fitted to the training folds and score the held-out samples. No distribution of the
        scores is assumed.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training samples.
        y : array-like of shape (n_samples,), optional
            Their labels, for classifiers.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.
        cv : int or cross-validation splitter, default=5
            Number of folds, or a splitter.

        Returns
        -------
        self : estimator
        """
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        X, weights = indexable(X), None if sample_weight is None else as_array(sample_weight)
        scores = []
        for train, test in folds(self, X, y, cv, weights):
            known = {} if weights is None else {"sample_weight": weights[train]}
            scores.append(as_array(fitted_clone(self, X, y, train, **known).outlier_score(_safe_indexing(X, test))))
        self.outlier_reference_ = reference_of(np.concatenate(scores))
        return self

    @rowwise()
    def is_outlier(self, X: Any, false_alarm: float = 0.01) -> Any:
        """Detect outliers: samples with larger scores than all but a small fraction of the training samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        false_alarm : float, default=0.01
            False alarm rate: the fraction of ordinary samples that are detected as outliers.

        Returns
        -------
        outliers : ndarray of bool of shape (n_samples,)

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from mixtura import MixtureClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = MixtureClassifier(1, random_state=0).fit(X, y).calibrate_outliers(X, y)
        >>> model.is_outlier([[50.0, 50, 50, 50], [5.8, 2.7, 4.2, 1.3]])
        array([ True, False])
        """
        share = checks.part("false_alarm", false_alarm)
        if self.outlier_reference_ is None:
            raise ValueError(
                "is_outlier needs a calibrated threshold. Call model.calibrate_outliers(X, y) with the training set "
                "first, or use outlier_score with your own threshold."
            )
        return self.outlier_score(X) > threshold_of(self.outlier_reference_, share)


def folds(model: Any, X: Any, y: Any, cv: Any, sample_weight: Any = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions of training and held-out samples, stratified by class.

    Unlabeled samples, samples of weight zero and the only sample of a class are in every training set.
    """
    n_samples, shares = _num_samples(X), None
    weights = checks.sample_weight(sample_weight, n_samples)
    weights = torch.ones(n_samples, dtype=torch.float64) if weights is None else weights.cpu()
    numbers = torch.zeros(n_samples, dtype=torch.int64)
    if is_classifier(model):
        labels = read_labels(y, n_samples, None, type(model).__name__, model.unlabeled, takes_unlabeled=True)
        numbers, shares = labels.numbers, labels.shares
    generator = torch.Generator().manual_seed(0)
    parts = hold_outs(checked_cv(cv), numbers, generator, shares=shares, weights=weights, every=True)
    if not parts:
        raise ValueError("No sample can be held out: every class has a single sample. Pass more samples.")
    return [(part.kept.nonzero()[:, 0].numpy(), part.held_out.nonzero()[:, 0].numpy()) for part in parts]


def indexable(X: Any) -> Any:
    """Samples from which some can be taken."""
    return X if isinstance(X, ArrayLike | FrameLike | list) else np.asarray(X)


def fitted_clone(model: Any, X: Any, y: Any, train: np.ndarray, **known: Any) -> Any:
    """Fit a copy of a model to some of the samples."""
    labels = None if y is None else as_array(y)[train]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the model itself has warned
        copy: Any = clone(model)
        return copy.fit(_safe_indexing(X, train), labels, **known)


def as_array(values: Any) -> np.ndarray:
    """Labels, samples or predictions as an array; NumPy has no bfloat16."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
