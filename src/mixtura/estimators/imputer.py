"""MixtureImputer and MarginalFeatureSelector, transformers based on a fitted mixture."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import MetaEstimatorMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from mixtura import checks
from mixtura.estimators import arguments
from mixtura.estimators.averaged import AveragedMixture
from mixtura.estimators.categorical import find_encoding
from mixtura.estimators.density_classifier import DensityClassifier, marginal_loss
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import Estimator, check_fitted, estimator_of, fitting, with_constructor
from mixtura.estimators.frames import as_array, columns_of, is_missing, is_pandas, with_nan
from mixtura.estimators.gaussian_mixture import GaussianMixture
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.refits import fit_copy
from mixtura.estimators.rows import adopt_features, read_array
from mixtura.files.registry import storable
from mixtura.inspection.explanations import forward_selection


def missing_values(X: object) -> np.ndarray:
    """Which values are missing, (n, D)."""
    if isinstance(X, np.ndarray) and X.dtype.kind == "f":
        return np.isnan(X)
    return np.stack([[is_missing(value) for value in np.asarray(c, dtype=object)] for c in columns_of(X)], 1)


def check_density(value: object) -> None:
    """Check the argument `estimator` of `MixtureImputer`."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        checks.count("estimator", value)
    else:
        words = "a GaussianMixture, an AveragedMixture or a number of components"
        estimator_of(GaussianMixture | AveragedMixture, words)(value)


@storable("MixtureImputer", check=check_fitted)
@with_constructor
class MixtureImputer(OneToOneFeatureMixin, TransformerMixin, Estimator):
    """Impute missing values by their conditional distribution under a Gaussian mixture of all samples.

    Parameters
    ----------
    estimator : GaussianMixture, AveragedMixture, int or None, default=None
        The density. A number of components, or None for one, means `GaussianMixture(prior="default")`, with categorical
        features of data frames, which are then imputed by the most probable category.
    method : {"mean", "draw"}, default="mean"
        Conditional expectation, or a draw from the conditional distribution (for multiple imputation).
    add_indicator : bool, default=False
        Whether to append one column per feature with missing training values, which is 1 for missing values.
    random_state : int or RandomState, optional
        Seed of the draws.

    Attributes
    ----------
    estimator_ : GaussianMixture or AveragedMixture
        The fitted density.
    indicator_features_ : ndarray of shape (n_indicators,)
        Indices of the features with an indicator.

    Examples
    --------
    >>> import numpy as np
    >>> from mixtura import MixtureImputer
    >>> X = np.column_stack((np.arange(20.0), 2 * np.arange(20.0)))
    >>> X[10, 1] = np.nan
    >>> bool(abs(MixtureImputer().fit_transform(X)[10, 1] - 20) < 1)
    True
    """

    estimator: GaussianMixture | AveragedMixture | int | None = None
    _: KW_ONLY
    method: str = "mean"
    add_indicator: bool = False
    random_state: arguments.RandomState = None

    _arguments: ClassVar = {
        "estimator": check_density,
        "method": checks.among(("mean", "draw")),
        "add_indicator": checks.SWITCH,
    }
    _attributes: ClassVar = {"estimator_": DensityEstimator}
    estimator_: GaussianMixture | AveragedMixture = field(init=False)

    @property
    def _base(self) -> GaussianMixture | AveragedMixture:
        if isinstance(self.estimator, GaussianMixture | AveragedMixture):
            return self.estimator
        count = 1 if self.estimator is None else int(self.estimator)
        return GaussianMixture(count, prior="default", categorical_features="from_dtype", random_state=0)

    @fitting
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MixtureImputer:
        """Fit the density.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        self : MixtureImputer
        """
        base = self._base
        wanted = base.categorical_features if isinstance(base, GaussianMixture) else "from_dtype"
        has_categories = find_encoding(X, wanted) is not None
        values = X if has_categories else read_array(self, X, reset=True)
        self.estimator_ = fit_copy(base, values, None, sample_weight)
        if has_categories:
            adopt_features(self, self.estimator_)
        self.indicator_features_ = np.flatnonzero(missing_values(values).any(0))
        return self

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.same_size("n_features_in_", self.n_features_in_, self.estimator_.n_features_in_)
        checks.positions("indicator_features_", torch.from_numpy(self.indicator_features_), self.n_features_in_)

    def transform(self, X: Any) -> Any:
        """Impute missing values, and append the indicators if `add_indicator` is set.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        completed : ndarray of shape (n_samples, n_features + n_indicators)
            A data frame if there are categorical features.
        """
        check_is_fitted(self)
        has_categories = self.estimator_.encoding_ is not None
        values = X if has_categories else read_array(self, X, reset=False)
        random = None if self.method == "mean" else check_random_state(self.random_state)
        completed = self.estimator_.impute(values, self.method, random)
        completed = completed if has_categories else as_array(completed)
        return append_indicators(self, completed, values) if self.add_indicator else completed

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns of `transform`.

        Parameters
        ----------
        input_features : array-like of str, optional
            Names of the features; those seen in `fit` if None.

        Returns
        -------
        names : ndarray of str
        """
        names = np.asarray(super().get_feature_names_out(input_features), dtype=object)
        if not self.add_indicator:
            return names
        indicators = [f"missingindicator_{names[j]}" for j in self.indicator_features_]
        return np.concatenate((names, np.array(indicators, dtype=object)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def append_indicators(model: MixtureImputer, completed: object, values: object) -> object:
    """Completed samples with a column for each feature that had missing values in training: 1 where one is missing."""
    indicators = missing_values(values)[:, model.indicator_features_]
    if not is_pandas(completed):
        return np.hstack((as_array(completed), indicators))
    names = model.get_feature_names_out()[model.n_features_in_ :]
    return completed.assign(**dict(zip(names, indicators.T.astype(float), strict=True)))


@storable("MarginalFeatureSelector", check=check_fitted)
@with_constructor
class MarginalFeatureSelector(SelectorMixin, MetaEstimatorMixin, Estimator):
    """Select features by forward selection with a mixture, in which all other features are marginalised.

    The mixture is fitted once. Features are then added one by one, each time the one that lowers the log-loss most.

    Parameters
    ----------
    estimator : classifier with a density, optional
        None means `MixtureClassifier(1)`.
    n_features_to_select : int, default=1
        Number of features to select.

    Attributes
    ----------
    estimator_ : classifier
        The fitted classifier.
    ranking_ : list of int
        The selected features, the best first.
    log_losses_ : list of float
        Log-loss with the first, the first two, ... of them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MarginalFeatureSelector
    >>> X, y = load_iris(return_X_y=True)
    >>> MarginalFeatureSelector(n_features_to_select=2).fit_transform(X, y).shape
    (150, 2)
    """

    estimator: DensityClassifier | None = None
    _: KW_ONLY
    n_features_to_select: int = 1

    _arguments: ClassVar = {
        "estimator": estimator_of(DensityClassifier, "a classifier with a density"),
        "n_features_to_select": checks.at_least(1),
    }
    _attributes: ClassVar = {"estimator_": DensityClassifier}
    estimator_: DensityClassifier = field(init=False)

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MarginalFeatureSelector:
        """Fit the classifier and select features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative sample weights.

        Returns
        -------
        self : MarginalFeatureSelector
        """
        base = MixtureClassifier(1) if self.estimator is None else self.estimator
        model = fit_copy(base, X, y, sample_weight)
        adopt_features(self, model)
        loss = marginal_loss(model, X, y, sample_weight)
        count = min(int(self.n_features_to_select), self.n_features_in_)
        self.ranking_, self.log_losses_ = forward_selection(loss, self.n_features_in_, count)
        self.estimator_ = model
        return self

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.same_size("n_features_in_", self.n_features_in_, self.estimator_.n_features_in_)
        checks.positions("ranking_", torch.tensor(self.ranking_), self.n_features_in_)

    def transform(self, X: Any) -> Any:
        """Select features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples; NaN means missing.

        Returns
        -------
        selected : ndarray of shape (n_samples, n_selected)
        """
        check_is_fitted(self)
        return super().transform(as_array(X) if isinstance(X, torch.Tensor) else with_nan(X))

    def _get_support_mask(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        check_is_fitted(self)
        return np.isin(np.arange(self.n_features_in_), self.ranking_)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
