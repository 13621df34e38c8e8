"""Methods of every estimator with a density: parameters, information criteria, a summary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mixtura import checks
from mixtura.estimators.export import ExportableMixture
from mixtura.estimators.trust import OutlierDetection, as_array
from mixtura.model.mixture import Mixture
from mixtura.model.warp import Warp
from mixtura.reading.summaries import component_entropies, component_table, feature_names
from mixtura.reading.tables import ModelSummary


class DescribedMixture(ExportableMixture, OutlierDetection):
    """Parameters, criteria and summary of a fitted mixture.

    The parameters are those of `mixture_`: with `warp` they are in the units of the transformed features. Everything
    else is in the units of the samples.
    """

    mixture_: Mixture
    warp_: Warp | None
    n_features_in_: int
    training_weight_: float
    n_iter_: int
    converged_: bool

    def _labels_of_components(self) -> Any:
        """The label of the class of each component, or None."""
        return vars(self).get("classes_")

    def _fitted(self, name: str) -> Mixture:
        if "mixture_" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: it is not fitted yet")
        return self.mixture_

    @property
    def weights_(self) -> np.ndarray:
        """Weight of each component, (n_components,); those of all classes sum to one."""
        return self._fitted("weights_").weights.cpu().numpy()

    @property
    def means_(self) -> np.ndarray:
        """Mean of each component, (n_components, n_features); of the transformed features under `warp`."""
        return self._fitted("means_").means.cpu().numpy()

    @property
    def covariances_(self) -> np.ndarray:
        """Covariance matrix of each component, dense; of the transformed features under `warp`."""
        return self._fitted("covariances_").covariance.dense().cpu().numpy()

    def _likelihood(self, X: Any, y: Any, sample_weight: Any) -> tuple[float, float, float]:
        """Log-likelihood of samples in their own units, entropy of their components, and their weight."""
        model: Any = self
        sizes = self._fitted("mixture_").class_sizes
        if y is None:
            values = as_array(model.score_samples(X))
            entropies = as_array(model._map(X, lambda log_joint: component_entropies(log_joint, [len(log_joint)])))[
                :, 0
            ]
        else:
            numbers = self._class_numbers(y)
            own = np.arange(len(numbers)), numbers
            values = as_array(model.predict_joint_log_proba(X))[own]
            entropies = as_array(model._map(X, lambda log_joint: component_entropies(log_joint, sizes)))[own]
        weights = checks.sample_weight(sample_weight, len(values))
        weights = np.ones(len(values)) if weights is None else weights.cpu().numpy()
        return float(weights @ values), float(weights @ entropies), float(weights.sum())

    def _class_numbers(self, y: Any) -> np.ndarray:
        classes = self._labels_of_components()
        if classes is None:
            raise ValueError(f"{type(self).__name__} has no classes; leave y out.")
        return checks.known_labels(y, classes)

    @property
    def _n_free(self) -> int:
        return self._fitted("n_parameters_").n_parameters + (0 if self.warp_ is None else self.warp_.n_parameters)

    def bic(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the Bayesian information criterion; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional
            Labels; with labels the criterion uses the joint likelihood of samples and labels.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        float
            -2 log-likelihood + n_parameters log(n_samples).
        """
        value, _, weight = self._likelihood(X, y, sample_weight)
        return -2 * value + self._n_free * math.log(weight)

    def aic(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the Akaike information criterion, -2 log-likelihood + 2 n_parameters; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,), optional
            Labels, as in `bic`.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.

        Returns
        -------
        aic : float
        """
        value, _, _ = self._likelihood(X, y, sample_weight)
        return -2 * value + 2 * self._n_free

    def icl(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Compute the integrated completed likelihood, BIC plus twice the entropy of the components; lower is better.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,), optional
            Labels, as in `bic`.
        sample_weight : array-like of shape (n_samples,), optional
            Sample weights.

        Returns
        -------
        icl : float
        """
        value, entropy, weight = self._likelihood(X, y, sample_weight)
        return -2 * value + self._n_free * math.log(weight) + 2 * entropy

    def summary(self, X: Any = None, y: Any = None, sample_weight: Any = None) -> ModelSummary:
        """Summarise the fitted model: classes, components with weights and typical feature values, and the fit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), optional
            Samples. The summary then includes their log-likelihood, BIC and ICL and, if y is given, their log-loss and
            error rate. Pass the training samples for the likelihood of the fit, others for held-out scores.
        y : array-like of shape (n_samples,), optional
            Labels of X.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        ModelSummary
            A table as text, or as HTML in a notebook; `to_frame()` returns a pandas data frame of the components.
        """
        mixture = self._fitted("summary")
        weight = vars(self).get("training_weight_")
        classes = self._labels_of_components()
        encoding = vars(self).get("encoding_")
        feature_of = np.arange(mixture.n_features) if encoding is None else encoding.feature_of
        pairs = [] if encoding is None else zip(encoding.categorical, encoding.categories, strict=True)
        names = feature_names(self)
        table, note = component_table(mixture, self.warp_, names, classes, weight, feature_of, dict(pairs))
        facts: dict[str, Any] = {"features": self.n_features_in_}
        if classes is not None:
            facts["class prior"] = dict(zip(classes.tolist(), vars(self)["class_prior_"].tolist(), strict=True))
            facts["components per class"] = dict(zip(classes.tolist(), mixture.class_sizes, strict=True))
        else:
            facts["components"] = mixture.n_components
        facts["parameters"] = self._n_free
        if weight is not None:
            facts["training samples"] = weight if weight != round(weight) else round(weight)
        facts |= fit_facts(self)
        if X is not None:
            value, entropy, n = self._likelihood(X, y, sample_weight)
            bic = -2 * value + self._n_free * math.log(n)
            facts |= {"log-likelihood": value, "BIC": bic, "ICL": bic + 2 * entropy}
            if y is not None:
                facts |= label_facts(self, X, y, sample_weight)
        return ModelSummary(type(self).__name__, facts, table, note)


def fit_facts(model: Any) -> dict[str, Any]:
    """Facts about the fit and its automatic choices."""
    known, facts = vars(model), {}
    if "n_iter_" in known:
        facts["iterations"] = f"{known['n_iter_']} ({'converged' if known.get('converged_') else 'not converged'})"
    if known.get("history_"):
        facts["objective per sample"] = known["history_"][-1].objective
    if known.get("temperature_", 1.0) != 1.0:
        facts["temperature"] = known["temperature_"]
    if known.get("search_"):
        facts |= chosen_facts(known["search_"])
    return facts


def chosen_facts(search: Any) -> dict[str, Any]:
    """Facts about a search: candidates, criterion and choice."""
    criterion, n_compared = search.criterion.replace("_", " "), len(search.candidates)
    chosen = {f"chosen {name.replace('_', ' ')}": value for name, value in search.best.what.items()}
    return {"chosen by": f"{criterion} {search.best.score:.4f} ({n_compared} compared)", **chosen}


def label_facts(model: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, float]:
    """Log-loss and error rate of samples with labels."""
    numbers = checks.known_labels(y, model.classes_)
    log_proba = as_array(model.predict_log_proba(X))
    checks.as_many_labels(numbers, len(log_proba))
    weights = checks.sample_weight(sample_weight, len(numbers))
    weights = np.ones(len(numbers)) if weights is None else weights.cpu().numpy()
    own = log_proba[np.arange(len(numbers)), numbers]
    return {
        "log-loss": float(-(weights @ own) / weights.sum()),
        "error rate": float(weights @ (log_proba.argmax(1) != numbers) / weights.sum()),
    }
