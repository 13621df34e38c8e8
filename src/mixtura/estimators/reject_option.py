"""RejectOption, a classifier that rejects uncertain and unusual samples."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from mixtura import checks
from mixtura.estimators.classifiers import Classifier, check_classes
from mixtura.estimators.density_classifier import Trained
from mixtura.estimators.density_estimator import DensityEstimator as OutlierDetection
from mixtura.estimators.estimator import Estimator, check_fitted, estimator_of, fitting, with_constructor
from mixtura.estimators.frames import as_array
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.refits import fit_copy
from mixtura.estimators.rows import adopt_features
from mixtura.estimators.streamed_rows import by_batches
from mixtura.files.registry import storable
from mixtura.inspection.outliers import CoverageCurve


def _has_density(self: RejectOption) -> bool:
    return isinstance(self.estimator_ if "estimator_" in vars(self) else self._base, OutlierDetection)


@storable("RejectOption", check=check_fitted)
@with_constructor
class RejectOption(ClassifierMixin, MetaEstimatorMixin, Estimator):
    """Classifier with a reject option for uncertain predictions and for outliers.

    Parameters
    ----------
    estimator : classifier of mixtura, optional
        None means `MixtureClassifier(1)`.
    confidence : float, default=0.8
        Smallest probability of the predicted class at which a sample is not rejected.
    false_alarm : float or None, default=0.01
        False alarm rate of the outlier detection, with a threshold from held-out training samples; None does not
        reject outliers. Needs an estimator with a density.
    reject_label : object, default="auto"
        Label predicted for rejected samples; "auto" means -1 for numeric labels (less if -1 is a class) and
        "rejected" for text.

    Attributes
    ----------
    estimator_ : classifier
        The fitted estimator.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    reject_label_ : object
        Label of rejected samples.

    Examples
    --------
    >>> from mixtura import MixtureClassifier, RejectOption
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = RejectOption(MixtureClassifier(1, random_state=0)).fit(X, y)
    >>> model.predict([[50.0, 50, 50, 50], [5.0, 3.4, 1.5, 0.2]])
    array([-1,  0])
    """

    estimator: Trained | None = None
    _: KW_ONLY
    confidence: float = 0.8
    false_alarm: float | None = 0.01
    reject_label: object = "auto"

    _arguments: ClassVar = {
        "estimator": estimator_of(Classifier, "a classifier of mixtura"),
        "confidence": checks.SHARE,
        "false_alarm": checks.PART | checks.NONE,
        "reject_label": checks.Rule("a single label", checks.is_single),
    }
    _attributes: ClassVar = {"estimator_": Classifier, "classes_": check_classes}
    estimator_: Trained = field(init=False)

    @property
    def _base(self) -> Trained:
        return MixtureClassifier(1) if self.estimator is None else self.estimator

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> RejectOption:
        """Fit the estimator and the threshold of the outlier detection.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.
        groups : array-like of shape (n_samples,), optional
            The group of each sample, such as a patient: samples of a group are never both in training and held out.

        Returns
        -------
        self : RejectOption
        """
        model = fit_copy(self._base, X, y, sample_weight, groups)
        label = choose_label(self.reject_label, model.classes_)
        if self.false_alarm is not None:
            model.calibrate_outliers(X, y, sample_weight, groups=groups)
        self.estimator_, self.classes_, self.reject_label_ = model, model.classes_, label
        adopt_features(self, model)
        return self

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.false_alarm is not None and not isinstance(self._base, OutlierDetection):
            raise ValueError(
                f"{type(self._base).__name__} has no density and cannot detect outliers. Set false_alarm=None, or use "
                "MixtureClassifier."
            )

    def _check_fitted(self) -> None:
        super()._check_fitted()
        own = {"confidence": self.confidence, "false_alarm": self.false_alarm}
        checks.check_arguments(own, self._arguments)
        checks.is_kind("estimator", self._base, Classifier)
        checks.same_size("n_features_in_", self.n_features_in_, self.estimator_.n_features_in_)
        checks.same_size("classes_", len(self.classes_), len(self.estimator_.classes_))
        if self.false_alarm is not None:
            checks.is_kind("estimator_", self.estimator_, OutlierDetection)
        checks.same_size("reject_label_", len(checks.shape_of(self.reject_label_)), 0)

    @by_batches()
    def abstains(self, X: Any) -> np.ndarray:
        """Return which samples are rejected.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        rejected : ndarray of bool of shape (n_samples,)
        """
        check_is_fitted(self)
        doubtful = as_array(self.predict_proba(X)).max(1) < self.confidence
        if self.false_alarm is not None:
            doubtful |= as_array(self.estimator_.is_outlier(X, self.false_alarm))
        return doubtful

    @by_batches()
    def predict(self, X: Any) -> np.ndarray:
        """Predict classes, and `reject_label_` for rejected samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        labels = as_array(self.estimator_.predict(X))
        return np.where(self.abstains(X), *_of_one_type(self.reject_label_, labels))

    def predict_proba(self, X: Any) -> Any:
        """Predict the class probabilities of the estimator, for rejected samples too.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_has_density)
    def outlier_score(self, X: Any) -> Any:
        """Compute the outlier scores of the estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        return self.estimator_.outlier_score(X)

    def coverage_curve(self, X: Any, y: Any) -> CoverageCurve:
        """Compute the error rate of samples that are not rejected, for every confidence.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.

        Returns
        -------
        curve : CoverageCurve
        """
        check_is_fitted(self)
        return self.estimator_.coverage_curve(X, y)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy on samples that are not rejected; NaN if all are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.

        Returns
        -------
        accuracy : float
        """
        check_is_fitted(self)
        predicted, truth, answered = as_array(self.estimator_.predict(X)), as_array(y), ~self.abstains(X)
        weights = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight, float)
        weights = weights * answered
        return float(weights @ (predicted == truth) / weights.sum()) if weights.sum() else float("nan")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = get_tags(self._base).input_tags.allow_nan
        return tags


def choose_label(wanted: object, classes: np.ndarray) -> object:
    """The label of rejected samples, from the argument `reject_label`."""
    label = wanted
    if isinstance(wanted, str) and wanted == "auto":
        label = min(-1, math.floor(classes.min()) - 1) if classes.dtype.kind in "iufb" else "rejected"
    if label in classes.tolist():
        raise ValueError(f"reject_label must not be a class; got {label!r}. Choose another label.")
    return label


def _of_one_type(label: object, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A label and labels as arrays of one type that changes neither: numbers do not become text."""
    other = np.asarray(label)
    kind = np.result_type(other.dtype, labels.dtype)
    kinds = {"f" if dtype.kind in "biuf" else dtype.kind for dtype in (other.dtype, labels.dtype)}
    if len(kinds) > 1 or (kind.kind == "f" and labels.dtype.kind != "f" and other.dtype.kind != "f"):
        kind = np.dtype(object)
    return other.astype(kind), labels.astype(kind)
