"""Class predictions of all classifiers, from the scores of the classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.estimators.base import MixtureEstimator
from mixtura.estimators.class_reading import ClassReading
from mixtura.estimators.described import fit_facts, label_facts
from mixtura.estimators.explained import ExplainedClassifier
from mixtura.estimators.export import Exportable
from mixtura.estimators.input import is_batches, is_dask
from mixtura.estimators.model_files import Savable
from mixtura.estimators.rowwise import rowwise
from mixtura.estimators.scoring import accuracy_of_batches, accuracy_of_collection, only_labeled
from mixtura.model.temperature import Temperature
from mixtura.objectives import class_log_joint, posteriors
from mixtura.reading.class_priors import checked_costs
from mixtura.reading.graphs import ClassifierGraph, GaussianScores
from mixtura.reading.summaries import feature_names
from mixtura.reading.tables import ModelSummary, Table, data_frame


class ClassPredictions(ClassReading, ClassifierMixin):
    """Predictions of a classifier from the scores of its classes: log p(x, c), up to a constant per row."""

    classes_: np.ndarray
    unlabeled: Any = None  # argument of estimators that support unlabeled samples

    def _map_scores(self, X: Any, finish: Callable[[Tensor], Tensor]) -> Any:
        """finish(scores (C, n)) -> (n, ...) over the rows of X, returned in the format of X."""
        raise NotImplementedError

    def _finished(self, X: Any, finish: Callable[[Tensor], Tensor]) -> Any:
        """The same under the requested class prior."""
        return self._map_scores(X, lambda scores: finish(self._offset(scores)))

    @rowwise("class")
    def predict_log_proba(self, X: Any) -> Any:
        """Predict log probabilities of the classes; a sample without observed values gets the class prior.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
        """
        return self._finished(X, lambda scores: scores.log_softmax(0).T)

    @rowwise("class")
    def predict_proba(self, X: Any) -> Any:
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        return self._finished(X, lambda scores: posteriors(scores)[1].T)

    @rowwise("class")
    def decision_function(self, X: Any) -> Any:
        """Compute log posteriors, or the log odds of the second class if there are two classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
        """
        return self._finished(X, lambda scores: scores[1] - scores[0] if len(scores) == 2 else scores.log_softmax(0).T)

    @rowwise()
    def predict(self, X: Any, costs: Any = None) -> Any:
        """Predict the most probable class of each sample, or the class with the lowest expected cost.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        costs : array-like of shape (n_classes, n_classes), optional
            `costs[i, j]` is the cost of predicting `classes_[j]` if `classes_[i]` is true.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        """
        if costs is None:
            numbers = self._finished(X, lambda scores: scores.max(0).indices)
        else:
            matrix = torch.from_numpy(checked_costs(costs, len(self.classes_)))
            numbers = self._finished(X, lambda scores: (matrix.to(scores).T @ posteriors(scores)[1]).min(0).indices)
        if not isinstance(numbers, Tensor):
            return self.classes_[numbers.astype(np.int64)]
        if self.classes_.dtype.kind not in "iufb":
            return self.classes_[numbers.long().cpu().numpy()]
        return torch.from_numpy(self.classes_).to(numbers.device)[numbers.long()]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the accuracy on labeled samples; unlabeled ones are ignored.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, or batches of (X, y) or (X, y, sample_weight).
        y : array-like of shape (n_samples,)
            Labels; None if they are in the batches.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.

        Returns
        -------
        accuracy : float
        """
        if y is None and is_batches(X):
            checks.alone_with_batches(sample_weight=sample_weight)
            return accuracy_of_batches(self, X)
        checks.given_labels(y, type(self).__name__)
        if is_dask(X):
            return accuracy_of_collection(self, X, y, sample_weight)
        X, y, sample_weight = only_labeled(X, y, sample_weight, self.unlabeled)
        labels = [v.detach().cpu().numpy() if isinstance(v, Tensor) else v for v in (y, self.predict(X))]
        return float(accuracy_score(*labels, sample_weight=sample_weight))


class ConditionalClassifier(ClassPredictions, Exportable, Savable, BaseEstimator):
    """A classifier without a density."""

    n_features_in_: int
    n_components_: Any
    n_parameters_: Any

    def _column_name(self, column: int) -> str:
        return checks.column_name(self, column)

    def summary(self, X: Any = None, y: Any = None, sample_weight: Any = None) -> ModelSummary:
        """Summarise the fitted model: classes, components, parameters and the fit.

        Parameters
        ----------
        X, y : array-like, optional
            Samples and labels, whose log-loss and error rate the summary then has.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        ModelSummary
        """
        check_is_fitted(self)
        columns: dict[str, Any] = {"class": self.classes_.tolist(), "prior": self.class_prior_.tolist()}
        columns["components"] = np.asarray(self.n_components_).tolist()
        facts = {"features": self.n_features_in_, "parameters": self.n_parameters_, **fit_facts(self)}
        if X is not None and y is not None:
            facts |= label_facts(self, X, y, sample_weight)
        return ModelSummary(type(self).__name__, facts, Table(columns))

    def __getattr__(self, name: str) -> Any:
        if name in checks.NEEDS_DENSITY:
            raise AttributeError(checks.no_density(type(self).__name__, name))
        if hasattr(type(self), name):  # a property that failed: show its error
            check_is_fitted(self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class DensityClassifier(ExplainedClassifier, ClassPredictions, MixtureEstimator):
    """A classifier whose classes are Gaussian mixtures."""

    class_prior_: np.ndarray
    temperature_: float = 1.0
    label_noise_: float = 0.0
    training_prior_: np.ndarray | None = None  # class probabilities that the temperature was estimated with

    @property
    def n_components_(self) -> np.ndarray:
        """Number of components of each class."""
        check_is_fitted(self)
        return np.array([part.stop - part.start for part in self.mixture_.class_slices])

    def _scores(self) -> Callable[[Tensor], Tensor]:
        """The function from log joints (K, n) to log p(x, c), (C, n)."""
        check_is_fitted(self)
        sizes = self.mixture_.class_sizes
        return lambda log_joint: class_log_joint(log_joint, sizes)

    def _map_scores(self, X: Any, finish: Callable[[Tensor], Tensor]) -> Any:
        scores, temperature = self._scores(), self._temperature()
        if not temperature.changes:
            return self._map(X, lambda log_joint: finish(scores(log_joint)))
        return self._map(
            X,
            lambda log_joint: scores(log_joint).T,
            finish=lambda values, observed: finish(temperature.apply(values.T, observed)),
        )

    def _temperature(self) -> Temperature:
        log_prior, change = self.mixture_.log_class_prior.cpu(), None
        if self.training_prior_ is not None:
            log_training_prior = torch.from_numpy(self.training_prior_).log().to(log_prior)
            change, log_prior = log_prior - log_training_prior, log_training_prior
        noise = self.label_noise_
        return Temperature(self.temperature_, change, noise, log_prior if noise > 0 else None)

    def _graph(self) -> Any:
        checks.no_categories("to_onnx", self.encoding_)
        scores = GaussianScores(self.mixture_, self.warp_)
        return ClassifierGraph(scores, self.mixture_.class_sizes, self._temperature())

    @rowwise("class")
    def predict_joint_log_proba(self, X: Any) -> Any:
        """Compute the joint log density of each sample and class, log p(x, c).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        joint_log_density : ndarray of shape (n_samples, n_classes)
        """
        scores = self._scores()
        return self._map(X, lambda log_joint: scores(log_joint).T, density=True)

    def sample(self, n_samples: int = 1, class_label: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Draw samples and their labels, from all classes or from one.

        Parameters
        ----------
        n_samples : int, default=1
            Number of samples.
        class_label : object, optional
            Class to draw from; all classes, by their probabilities, if None.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
        y : ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        mixture = self.mixture_
        if class_label is not None:
            matches = np.flatnonzero(self.classes_ == class_label)
            if not len(matches):
                raise ValueError(f"class_label must be one of {self.classes_.tolist()}; got {class_label!r}.")
            mixture = mixture.select(mixture.class_slices[int(matches[0])])
            rows, _ = self._draw(mixture, n_samples)
            return self._drawn_samples(rows), np.repeat(self.classes_[matches], len(rows))
        rows, components = self._draw(mixture, n_samples)
        return self._drawn_samples(rows), self.classes_[mixture.class_of.cpu()[components].numpy()]

    def _drawn_samples(self, rows: Tensor) -> Any:
        """Samples as an array, or as a data frame where features are categorical."""
        if self.encoding_ is None:
            return rows.numpy()
        columns = self.encoding_.decoded(rows.numpy())
        return data_frame({name: columns[j] for j, name in enumerate(feature_names(self))})

    def _take_class_prior(self, prior: np.ndarray) -> None:
        if self.training_prior_ is None:
            self.training_prior_ = self.class_prior_  # another class prior is applied after the temperature
        self.mixture_ = self.mixture_.with_class_prior(torch.from_numpy(prior).to(self.mixture_.means.device))
        self.class_prior_ = prior

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.fitted_classes(self, self.mixture_.n_classes)
        checks.fitted_prior(self)
        checks.positive("temperature_", self.temperature_)
        checks.share("label_noise_", self.label_noise_)
        if self.training_prior_ is not None:
            checks.is_kind("training_prior_", self.training_prior_, np.ndarray)
            checks.numbers("training_prior_", torch.from_numpy(self.training_prior_), self.classes_.shape)
            if not bool((self.training_prior_ > 0).all()):
                raise ValueError("training_prior_ is not one probability above 0 for each class")
