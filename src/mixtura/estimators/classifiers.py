"""Class predictions of all classifiers, from the scores of the classes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.estimators.estimator import TRAINED, Estimator
from mixtura.estimators.frames import as_array, is_batches, is_dask
from mixtura.estimators.labels import as_labels, labeled_samples, only_labeled
from mixtura.estimators.refits import held_out
from mixtura.estimators.streamed_rows import by_batches
from mixtura.inspection.class_priors import check_costs, estimate_prior
from mixtura.inspection.outliers import CoverageCurve, SuspiciousLabels, find_suspicious, set_thresholds
from mixtura.inspection.summaries import ModelSummary, Table, fit_facts, label_facts
from mixtura.objectives import posteriors
from mixtura.streams.batches import named_batches

PROBABILITY_ERROR = 1e-3  # of sums of single-precision probabilities


def check_classes(name: str, labels: np.ndarray, model: object) -> None:
    """Check that labels are distinct."""
    checks.is_kind(name, labels, np.ndarray)
    checks.same_size(name, len(set(labels.tolist())) if labels.ndim == 1 else 0, labels.size)


def check_prior(name: str, probabilities: np.ndarray, model: Classifier) -> None:
    """Check that there is one probability for each class."""
    check_class_numbers(name, probabilities, model)
    if not bool((probabilities >= 0).all()) or abs(float(probabilities.sum()) - 1) > PROBABILITY_ERROR:
        raise ValueError(f"{name} is not one probability for each class")


def check_class_numbers(name: str, values: np.ndarray | None, model: Classifier) -> None:
    """Check that there is one number for each class, if there are any."""
    if values is not None:
        checks.is_kind(name, values, np.ndarray)
        checks.numbers(name, torch.from_numpy(values), model.classes_.shape)


def check_sets(name: str, reference: np.ndarray | None, model: Classifier) -> None:
    """Check numbers of classes and scores, (n, 2) or (n, 3), if there are any."""
    if reference is not None:
        checks.is_kind(name, reference, np.ndarray)
        checks.numbers(name, torch.from_numpy(reference), (len(reference), 3 if reference.shape[-1] == 3 else 2))
        if not np.isin(reference[:, 0], np.arange(len(model.classes_))).all():
            raise ValueError(f"{name} has numbers of classes that the model does not have")


class Classifier(ClassifierMixin, Estimator):
    """Predictions of a classifier from the scores of its classes: log p(x, c), up to a constant per row."""

    _attributes: ClassVar = TRAINED | {
        "classes_": check_classes,
        "class_prior_": check_prior,
        "class_offsets_": check_class_numbers,
        "set_reference_": check_sets,
        "temperature_": checks.POSITIVE,
    }
    classes_: np.ndarray
    n_components_: object
    n_parameters_: object
    temperature_: float = 1.0
    unlabeled: object = None  # argument of estimators that support unlabeled samples

    def _map_scores(self, X: object, finish: Callable[[Tensor], Tensor]) -> np.ndarray | Tensor:
        """finish(scores (C, n)) -> (n, ...) over the rows of X, under the requested class prior, in the format of X."""
        raise NotImplementedError

    @by_batches("class")
    def predict_log_proba(self, X: Any) -> Any:
        """Predict log probabilities of the classes.

        A sample without observed values gets the class prior, unless it counts which values are missing (missingness).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
        """
        return self._map_scores(X, lambda scores: scores.log_softmax(0).T)

    @by_batches("class")
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
        return self._map_scores(X, lambda scores: posteriors(scores)[1].T)

    @by_batches("class")
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
        return self._map_scores(
            X, lambda scores: scores[1] - scores[0] if len(scores) == 2 else scores.log_softmax(0).T
        )

    @by_batches()
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
            numbers = self._map_scores(X, lambda scores: scores.max(0).indices)
        else:
            matrix = torch.from_numpy(check_costs(costs, len(self.classes_)))
            numbers = self._map_scores(X, lambda scores: (matrix.to(scores).T @ posteriors(scores)[1]).min(0).indices)
        return take_labels(self.classes_, numbers)

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

    class_prior_: np.ndarray
    class_offsets_: np.ndarray | None = None  # of models without a density, see `ConditionalClassifier`

    def _take_class_prior(self, prior: np.ndarray) -> None:
        """Change the class prior of this copy of the model."""
        raise NotImplementedError

    def _label_facts(self, X: object, y: object, sample_weight: object) -> dict[str, float]:
        """Log-loss and error rate of samples with labels, for a summary."""
        return label_facts(as_array(self.predict_log_proba(X)), y, self.classes_, sample_weight)

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
        check_is_fitted(self)
        probabilities = checks.class_prior(prior, torch.ones(len(self.classes_), dtype=torch.float64), self.classes_)
        model = copy.copy(self)
        vars(model).pop("set_reference_", None)  # its scores are those of the former class prior
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
        return estimate_prior(as_array(self.predict_proba(X)).astype(float), self.class_prior_)

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
        numbers, probabilities = checks.known_labels(y, self.classes_), as_array(self.predict_proba(X))
        checks.as_many_labels(numbers, len(probabilities))
        return CoverageCurve.of(probabilities.max(1), probabilities.argmax(1) != numbers)

    # Classes of calibration samples, -log of their probabilities, and of a model with a density -log of that.
    set_reference_: np.ndarray | None = None

    def calibrate_sets(self, X: Any, y: Any) -> Any:
        """Calibrate `predict_set`, and `typicality` of a model with a density, with samples that it has not seen.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples that were not used for the fit: the model is too sure of those.
        y : array-like of shape (n_samples,)
            Their labels. A class with fewer samples than coverage / (1 - coverage), 9 for 0.9, is in every set.

        Returns
        -------
        self : estimator
        """
        X, y, _ = only_labeled(X, y, None, self.unlabeled)
        numbers, scores = checks.known_labels(y, self.classes_), -as_array(self.predict_log_proba(X))
        checks.as_many_labels(numbers, len(scores))
        own = scores[np.arange(len(numbers)), numbers].astype(np.float64).clip(max=1e300)
        self.set_reference_ = np.column_stack((numbers, own, *self._own_densities(X, numbers)))
        return self

    def _own_densities(self, X: object, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """-log of the densities of samples in their classes, (n,), if the model has one."""
        return ()

    @by_batches("class")
    def predict_set(self, X: Any, coverage: float = 0.9) -> Any:
        """Predict sets of classes that hold the true one with a given probability, in every class (prediction-sets).

        Nothing is assumed of the model or the distribution, except that samples of a class are exchangeable with its
        calibration samples. A sample unlike all classes may have an empty set.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        coverage : float, default=0.9
            Probability that the set of a sample holds its class.

        Returns
        -------
        members : ndarray of bool of shape (n_samples, n_classes)
            Which of `classes_` are in the set of each sample.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from mixtura import MixtureClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = MixtureClassifier(1, random_state=0).fit(X[::2], y[::2]).calibrate_sets(X[1::2], y[1::2])
        >>> model.predict_set([[5.0, 3.4, 1.5, 0.2], [6.2, 2.8, 4.9, 1.6]], coverage=0.95)
        array([[ True, False, False],
               [False,  True,  True]])
        """
        share = float(checks.require("coverage", coverage, checks.FRACTION))
        if self.set_reference_ is None:
            raise ValueError(
                "predict_set needs calibrated thresholds. Call model.calibrate_sets(X, y) first, with labeled samples "
                "that were not used for the fit."
            )
        scores, thresholds = self.predict_log_proba(X), set_thresholds(self.set_reference_, len(self.classes_), share)
        return -scores <= (torch.from_numpy(thresholds).to(scores) if isinstance(scores, Tensor) else thresholds)

    def suspicious_labels(
        self, X: Any, y: Any, cv: Any = 5, reselect: bool = False, groups: Any = None
    ) -> SuspiciousLabels:
        """Find samples that are probably mislabelled, by cross-validation.

        At most a fifth of the labels that are returned are right in expectation (label-errors); labels where classes
        overlap are not. Copies of the model predict samples that they were not fitted to. They have the settings that
        the model selected: its selection has seen these samples and their labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        cv : int or cross-validation splitter, default=5
            Number of folds, or a splitter.
        reselect : bool, default=False
            Whether every copy selects its own settings, without the held-out samples. It then takes as long as `cv`
            fits of the model.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, as in `fit`: no group is divided between folds.

        Returns
        -------
        SuspiciousLabels
            Positions, labels and suggested classes, the most suspicious sample first.
        """
        check_is_fitted(self)
        numbers = checks.known_labels(y, self.classes_)
        probabilities = np.full((len(numbers), len(self.classes_)), np.nan)  # of samples that are not held out

        def answer(copy: Classifier, part: object) -> np.ndarray:
            return probabilities_of(copy, part, self.classes_)

        for test, values in held_out(self, X, y, cv, answer, reselect=reselect, groups=groups):
            probabilities[test] = values
        return find_suspicious(probabilities, numbers, self.classes_)


class ConditionalClassifier(Classifier):
    """A classifier without a density."""

    def _column_name(self, column: int) -> str:
        return checks.column_name(self, column)

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
        before = self._log_prior_change().numpy()
        self.class_offsets_ = before + np.log(prior / self.class_prior_)
        self.class_prior_ = prior

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
        columns: dict[str, list[object]] = {"class": self.classes_.tolist(), "prior": self.class_prior_.tolist()}
        columns["components"] = np.asarray(self.n_components_).tolist()
        facts = {"features": self.n_features_in_, "parameters": self.n_parameters_, **fit_facts(self)}
        if X is not None and y is not None:
            facts |= self._label_facts(X, y, sample_weight)
        return ModelSummary(type(self).__name__, facts, Table(columns))

    def __getattr__(self, name: str) -> Any:
        if name in checks.NEEDS_DENSITY:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}: it models p(class | x) and has no density p(x). Use "
                "MixtureClassifier or GaussianMixture."
            )
        if name in dir(type(self)):  # a property that failed: show its error
            check_is_fitted(self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def take_labels(classes: np.ndarray, numbers: np.ndarray | Tensor) -> np.ndarray | Tensor:
    """The labels of numbers of classes: a tensor for a tensor, unless they are text."""
    if not isinstance(numbers, Tensor):
        return classes[numbers.astype(np.int64)]
    if classes.dtype.kind not in "iufb":
        return classes[numbers.long().cpu().numpy()]
    return torch.from_numpy(classes).to(numbers.device)[numbers.long()]


def accuracy_of_batches(model: Classifier, batches: Iterable[object]) -> float:
    """The accuracy on the labeled samples of batches of (X, y) or (X, y, sample_weight)."""
    counts = np.zeros(2)
    for batch in named_batches(batches):
        if batch.n_rows:
            checks.given_labels(batch.y, f"{batch.origin}: {type(model).__name__}")
            counts += _counts(model.predict(batch.X), batch.y, batch.sample_weight, model.unlabeled)
    return _accuracy(counts)


def accuracy_of_collection(model: Classifier, X: object, y: object, sample_weight: object) -> float:
    """The accuracy on the labeled samples of a Dask collection; predictions and labels come into this process."""
    parts = (model.predict(X), y, sample_weight)
    predicted, labels, weights = (part.compute() if is_dask(part) else part for part in parts)
    return _accuracy(_counts(predicted, labels, weights, model.unlabeled))


def _counts(predicted: object, y: object, sample_weight: object, unlabeled: object) -> np.ndarray:
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


def probabilities_of(copy: Classifier, X: object, classes: np.ndarray) -> np.ndarray:
    """Class probabilities (n, C) by a copy of a model, which may know fewer classes."""
    known = as_array(copy.predict_proba(X))
    probabilities = np.zeros((len(known), len(classes)))
    probabilities[:, np.searchsorted(classes, copy.classes_)] = known
    return probabilities
