"""Methods of every classifier: other class priors, costs, coverage curves, suspicious labels."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.estimators.trust import as_array, fitted_clone, folds, indexable
from mixtura.reading.class_priors import estimate_prior
from mixtura.reading.outliers import CoverageCurve, SuspiciousLabels, find_suspicious


class ClassReading:
    """Class priors, uncertain samples and suspicious labels, for classifiers with probabilities."""

    classes_: np.ndarray
    class_prior_: np.ndarray
    class_offsets_: np.ndarray | None = None  # added to the scores of the classes for another class prior

    def _log_prior_change(self) -> Tensor:
        """The change of the scores of the classes by another class prior, (C,)."""
        if self.class_offsets_ is None:
            return torch.zeros(len(self.classes_), dtype=torch.float64)
        return torch.from_numpy(self.class_offsets_)

    def _offset(self, scores: Tensor) -> Tensor:
        """The scores of the classes (C, n) under the requested class prior."""
        if self.class_offsets_ is None:
            return scores
        return scores + torch.from_numpy(self.class_offsets_).to(scores).unsqueeze(-1)

    def _take_class_prior(self, prior: np.ndarray) -> None:
        """Change the class prior of this copy of the model."""
        before = 0.0 if self.class_offsets_ is None else self.class_offsets_
        self.class_offsets_ = before + np.log(prior / self.class_prior_)
        self.class_prior_ = prior

    def with_class_prior(self, prior: Any) -> Any:
        """Adapt the fitted model to a population with another class prior, without refitting.

        Parameters
        ----------
        prior : array-like of shape (n_classes,), dict or "uniform"
            Probability of each class in the order of `classes_`, or by label.

        Returns
        -------
        estimator
            A copy of the fitted model.

        Examples
        --------
        >>> from mixtura import MixtureClassifier
        >>> from mixtura.datasets import make_ripley
        >>> X, y = make_ripley(125, random_state=0)
        >>> model = MixtureClassifier(2, random_state=0).fit(X, y)
        >>> rare = model.with_class_prior([0.9, 0.1])
        >>> bool((rare.predict(X) == 1).sum() < (model.predict(X) == 1).sum())
        True
        """
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        if isinstance(prior, dict):
            prior = [prior[label] for label in checks.prior_labels(prior, self.classes_)]
        probabilities = checks.class_prior(prior, torch.ones(len(self.classes_), dtype=torch.float64))
        model = copy.copy(self)
        model._take_class_prior(self.class_prior_ if probabilities is None else probabilities.numpy())
        return model

    def estimate_class_prior(self, X: Any) -> np.ndarray:
        """Estimate the class prior of a population from unlabeled samples of it (prior-shift).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Unlabeled samples of a population that differs from the training set in the class prior only.

        Returns
        -------
        prior : ndarray of shape (n_classes,)
            In the order of `classes_`; `with_class_prior` takes it.
        """
        model: Any = self
        return estimate_prior(as_array(model.predict_proba(X)).astype(float), self.class_prior_)

    def coverage_curve(self, X: Any, y: Any) -> CoverageCurve:
        """Compute the error rate among the samples with the most certain predictions, for every coverage.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        CoverageCurve
        """
        model: Any = self
        numbers, probabilities = checks.known_labels(y, self.classes_), as_array(model.predict_proba(X))
        checks.as_many_labels(numbers, len(probabilities))
        return CoverageCurve.of(probabilities.max(1), probabilities.argmax(1) != numbers)

    def suspicious_labels(self, X: Any, y: Any, cv: Any = 5) -> SuspiciousLabels:
        """Find samples that are probably mislabelled, by cross-validation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        cv : int or cross-validation splitter, default=5
            Number of folds, or a splitter.

        Returns
        -------
        SuspiciousLabels
            Positions, labels and suggested classes, the most suspicious sample first.
        """
        check_is_fitted(self)  # pyright: ignore[reportArgumentType]
        X, numbers = indexable(X), checks.known_labels(y, self.classes_)
        probabilities = np.eye(len(self.classes_))[numbers]  # samples that are not held out are not suspicious
        for train, test in folds(self, X, y, cv):
            probabilities[test] = 0.0
            part = fitted_clone(self, X, y, train)
            known = np.searchsorted(self.classes_, part.classes_)
            probabilities[np.ix_(test, known)] = as_array(part.predict_proba(_safe_indexing(X, test)))
        return find_suspicious(probabilities, numbers, self.classes_)
