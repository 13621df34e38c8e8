"""Class predictions of all classifiers, from the scores of the classes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.threads import computing
from mixtura.estimators.density_estimator import DensityEstimator
from mixtura.estimators.estimator import TRAINED, Estimator
from mixtura.estimators.explained import DRAWS, is_frame, log_odds
from mixtura.estimators.facts import fit_facts, label_facts
from mixtura.estimators.parts import by_parts
from mixtura.estimators.refits import held_out, probabilities_of
from mixtura.estimators.rows import Rows, as_array, is_batches, is_dask
from mixtura.estimators.scoring import accuracy_of_batches, accuracy_of_collection, only_labeled
from mixtura.inspection.class_priors import checked_costs, estimate_prior
from mixtura.inspection.explanations import Explanation, marginal_importances, shapley_values
from mixtura.inspection.graphs import AverageGraph, ClassifierGraph, GaussianScores
from mixtura.inspection.outliers import CoverageCurve, SuspiciousLabels, find_suspicious, set_thresholds
from mixtura.inspection.summaries import ModelSummary, Table, component_entropies, feature_names
from mixtura.model.missingness import Missingness
from mixtura.model.mixture import Member
from mixtura.model.temperature import Temperature, average_posteriors
from mixtura.objectives import class_log_joint, posteriors


class Classifier(ClassifierMixin, Estimator):
    """Predictions of a classifier from the scores of its classes: log p(x, c), up to a constant per row."""

    _attributes: ClassVar = TRAINED
    classes_: np.ndarray
    n_components_: Any
    n_parameters_: Any
    temperature_: float = 1.0
    unlabeled: Any = None  # argument of estimators that support unlabeled samples

    def _map_scores(self, X: Any, finish: Callable[[Tensor], Tensor]) -> Any:
        """finish(scores (C, n)) -> (n, ...) over the rows of X, returned in the format of X."""
        raise NotImplementedError

    def _finished(self, X: Any, finish: Callable[[Tensor], Tensor]) -> Any:
        """The same under the requested class prior."""
        return self._map_scores(X, lambda scores: finish(self._offset(scores)))

    @by_parts("class")
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
        return self._finished(X, lambda scores: scores.log_softmax(0).T)

    @by_parts("class")
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

    @by_parts("class")
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

    @by_parts()
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

    set_reference_: np.ndarray | None = None  # classes of calibration samples, and -log of their probabilities

    def calibrate_sets(self, X: Any, y: Any) -> Any:
        """Calibrate `predict_set` with labeled samples that the model has not seen.

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
        own = scores[np.arange(len(numbers)), numbers].clip(max=1e300)
        self.set_reference_ = np.column_stack((numbers, own)).astype(np.float64)
        return self

    @by_parts("class")
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
        share = checks.fraction("coverage", coverage)
        if self.set_reference_ is None:
            raise ValueError(
                "predict_set needs calibrated thresholds. Call model.calibrate_sets(X, y) first, with labeled samples "
                "that were not used for the fit."
            )
        thresholds = set_thresholds(self.set_reference_, len(self.classes_), share)
        scores = self.predict_log_proba(X)
        if isinstance(scores, Tensor):
            return -scores <= torch.from_numpy(thresholds).to(scores)
        return -scores <= thresholds

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

        def answer(copy: Any, part: Any) -> np.ndarray:
            return probabilities_of(copy, part, self.classes_)

        for test, values in held_out(self, X, y, cv, answer, reselect=reselect, groups=groups):
            probabilities[test] = values
        return find_suspicious(probabilities, numbers, self.classes_)


class ConditionalClassifier(Classifier):
    """A classifier without a density."""

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
        if name in dir(type(self)):  # a property that failed: show its error
            check_is_fitted(self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class DensityClassifier(Classifier, DensityEstimator):
    """A classifier whose classes are Gaussian mixtures."""

    class_prior_: np.ndarray
    label_noise_: float = 0.0
    training_prior_: np.ndarray | None = None  # class probabilities that the temperature was estimated with
    further_members_: tuple[Member, ...] = ()  # beside the best one, which `mixture_` holds
    average_temperature_: float = 1.0  # of the average of the members
    missingness_: Missingness | None = None  # how often values are missing in each class, unless that is ignorable
    _told: Missingness | None = None  # the one that a warning was given for

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

    @property
    def members_(self) -> Any:
        """The models whose class posteriors are averaged, the best one first."""
        check_is_fitted(self)
        return [Member(self.mixture_, self.warp_, self.temperature_), *self.further_members_]

    @property
    def n_parameters_(self) -> int:
        """Number of free parameters of the fitted mixtures."""
        check_is_fitted(self)
        return self.mixture_.n_parameters + sum(member.mixture.n_parameters for member in self.further_members_)

    def _map_scores(self, X: Any, finish: Callable[[Tensor], Tensor], counted: Tensor | None = None) -> Any:
        """`counted` (n, D): columns whose missing values count; all unless it is given."""
        check_is_fitted(self)
        if self.further_members_:
            return self._map_average(X, finish, counted)
        scores, temperature = self._scores(), self._temperature()
        if not temperature.changes and self.missingness_ is None:
            return self._map(X, lambda log_joint: finish(scores(log_joint)))

        def calibrate(values: Tensor, rows: Rows) -> Tensor:
            return finish(temperature.apply(values.T, rows.observed_shares(), self._log_factors(rows, counted)))

        return self._map(X, lambda log_joint: scores(log_joint).T, finish=calibrate)

    def _doubt(self, X: Any) -> Any:
        """1 minus the largest class probability, (n,); 0 with missing values, where doubt is no surprise."""
        probabilities, shares = self.predict_proba(X), self._read(X).observed_shares()
        doubts = 1 - (probabilities.amax(1) if isinstance(probabilities, Tensor) else probabilities.max(1))
        complete = torch.as_tensor(shares) == 1
        return doubts * (complete if isinstance(doubts, Tensor) else complete.cpu().numpy())

    def _log_factors(self, rows: Rows, counted: Tensor | None) -> Tensor | float:
        """The factors of the classes by which values are missing, (C, n) (missingness)."""
        known = self.missingness_
        if known is None:
            return 0.0
        missing = rows.missing(known.columns)
        if counted is not None:
            return known.log_factors(missing, counted[:, known.columns].to(missing.device))
        if self._told is not known and vars(self).get("missing") == "auto":
            numbers, *shares = known.unusual(missing, self.class_prior_)
            if len(numbers):
                self._told = known  # once
                features = self._feature_of()[known.columns.cpu().numpy()[numbers]]
                names = [feature_names(self)[j] for j in features]
                checks.warn(checks.missingness_changed(names, *shares), UserWarning)
        return known.log_factors(missing)

    def _map_average(self, X: Any, finish: Callable[[Tensor], Tensor], counted: Tensor | None) -> Any:
        """The same for an average of the members' posteriors (averaged-posterior)."""
        rows, limit = self._read(X), checks.memory_limit(self.memory_limit)
        with computing():
            observed, sizes = rows.observed_shares(), [member.mixture.class_sizes for member in self.members_]
            scores = []
            for member, own in zip(self.members_, sizes, strict=True):
                transformed = replace(rows, warp=member.warp)
                self._check_distances(transformed, member.mixture)
                compute = partial(class_log_joint, sizes=own)
                scores.append(map_rows(member.mixture, transformed.source(), lambda a, f=compute: f(a).T, limit).T)
            temperatures = [self._temperature(member.temperature) for member in self.members_]
            average = average_posteriors(scores, temperatures, observed)
            calibration, log_factors = self._temperature(self.average_temperature_), self._log_factors(rows, counted)
            values = finish(calibration.apply(average, observed, log_factors))
        return rows.answer(values)

    def _temperature(self, value: float | None = None) -> Temperature:
        log_prior, change = self.mixture_.log_class_prior.cpu(), None
        if self.training_prior_ is not None:
            log_training_prior = torch.from_numpy(self.training_prior_).log().to(log_prior)
            change, log_prior = log_prior - log_training_prior, log_training_prior
        noise = self.label_noise_
        value = self.temperature_ if value is None else value
        return Temperature(value, change, noise, log_prior if noise > 0 else None)

    def _graph(self) -> Any:
        graphs = [
            ClassifierGraph(
                GaussianScores(member.mixture, member.warp),
                member.mixture.class_sizes,
                self._temperature(member.temperature),
                missingness=None if self.further_members_ else self.missingness_,
            )
            for member in self.members_
        ]
        if len(graphs) == 1:
            return graphs[0]
        return AverageGraph(graphs, self._temperature(self.average_temperature_), self.missingness_)

    @by_parts("class")
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

        No value is missing, also if class probabilities depend on missing values (missingness).

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

    def _densities(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        if y is None:
            return super()._densities(X, y)
        numbers, sizes = checks.known_labels(y, self.classes_), self.mixture_.class_sizes
        own = np.arange(len(numbers)), numbers
        entropies = as_array(self._map(X, lambda log_joint: component_entropies(log_joint, sizes)))
        return as_array(self.predict_joint_log_proba(X))[own], entropies[own]

    def _take_class_prior(self, prior: np.ndarray) -> None:
        if self.training_prior_ is None:
            self.training_prior_ = self.class_prior_  # another class prior is applied after the temperature
        changed = torch.from_numpy(prior).to(self.mixture_.means.device)
        self.mixture_ = self.mixture_.with_class_prior(changed)
        self.further_members_ = tuple(
            replace(member, mixture=member.mixture.with_class_prior(changed)) for member in self.further_members_
        )
        self.class_prior_ = prior

    def _check_fitted(self) -> None:
        super()._check_fitted()
        checks.fitted_classes(self, self.mixture_.n_classes)
        checks.fitted_prior(self)
        checks.positive("temperature_", self.temperature_)
        checks.share("label_noise_", self.label_noise_)
        checks.positive("average_temperature_", self.average_temperature_)
        checks.is_kind("further_members_", self.further_members_, tuple)
        for member in self.further_members_:
            checks.is_kind("further_members_", member, Member)
            checks.same_size("further_members_", member.n_inputs, self.mixture_.n_features)
            checks.same_size("further_members_", member.mixture.n_classes, self.mixture_.n_classes)
        if self.missingness_ is not None:
            checks.is_kind("missingness_", self.missingness_, Missingness)
            checks.same_size("missingness_", len(self.missingness_.log_odds), self.mixture_.n_classes)
            checks.positions("missingness_", self.missingness_.columns, self.mixture_.n_features)
        if self.training_prior_ is not None:
            checks.is_kind("training_prior_", self.training_prior_, np.ndarray)
            checks.numbers("training_prior_", torch.from_numpy(self.training_prior_), self.classes_.shape)
            if not bool((self.training_prior_ > 0).all()):
                raise ValueError("training_prior_ is not one probability above 0 for each class")

    def explain(self, X: Any, classes: Any = None, n_orders: int | None = None, random_state: Any = 0) -> Explanation:
        """Compute the contributions of features to the log-odds of a class (Shapley values by exact marginalisation).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or pandas Series
            NaN means missing; a Series is a single row.
        classes : label or pair of labels, optional
            The class that is explained, against all others; a pair (a, b) explains a against b. None explains the
            predicted class of each sample against all others.
        n_orders : int, optional
            Number of orders of the features that are averaged; None takes all subsets of up to 9 features, and 32
            orders of more. The values sum to the log-odds in any case.
        random_state : int or RandomState, default=0
            Of the orders, and of the draws that show what missing values would change.

        Returns
        -------
        Explanation
            Prints, plots, and converts to a data frame or to `shap.Explanation`.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from mixtura import MixtureClassifier
        >>> X, y = load_iris(as_frame=True, return_X_y=True)
        >>> model = MixtureClassifier(1, random_state=0).fit(X, y)
        >>> explanation = model.explain(X[100:101], classes=(2, 1))
        >>> explanation.feature_names[explanation.values[0].argmax()]
        'petal width (cm)'
        """
        if type(X).__name__ == "Series" and "to_frame" in dir(X):  # a single row of a data frame
            X = X.to_frame().T.infer_objects()
        random = check_random_state(random_state)
        orders = None if n_orders is None else checks.count("n_orders", n_orders)
        rows = self._plain_rows(X)
        scores = self._class_scores(rows)
        targets, against = self._compared(classes, scores)

        def game(kept: np.ndarray, samples: np.ndarray, counted: np.ndarray) -> np.ndarray:
            return log_odds(self._class_scores(kept, counted), targets[samples], against)

        feature_of = self._feature_of()
        values, base = shapley_values(rows, feature_of, game, orders, random, self._silent(rows, feature_of))
        exponents = scores - scores.max(1, keepdims=True)
        probabilities = np.exp(exponents) / np.exp(exponents).sum(1, keepdims=True)
        places = np.arange(len(rows))
        return Explanation(
            values,
            base,
            log_odds(scores, targets, against),
            probabilities[places, targets],
            self._shown_values(rows),
            feature_names(self),
            self.classes_[targets],
            None if against is None else self.classes_[against],
            as_array(self._map(torch.from_numpy(rows), self._nearest)).astype(np.int64)[places, targets],
            as_array(self.outlier_score(torch.from_numpy(rows))),
            self._missing_effects(rows, feature_of, game, random),
            X.index if is_frame(X) else None,
            self._categories(),
        )

    def _plain_rows(self, X: Any) -> np.ndarray:
        return as_array(self._read(X).values).astype(float)

    def _class_scores(self, rows: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
        """Log posteriors up to a constant per sample, (n, C); `counted` (n, D) as in `_map_scores`."""
        known = None if counted is None else torch.tensor(counted)
        return as_array(self._map_scores(torch.from_numpy(rows), lambda scores: scores.T, known)).astype(float)

    def _marginal_log_proba(self, rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Log probabilities of the classes (n, C) given some of the columns, `kept` (D,); the others are unknown."""
        scores = self._class_scores(np.where(kept, rows, np.nan), np.repeat(kept[None], len(rows), 0))
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    def _silent(self, rows: np.ndarray, feature_of: np.ndarray) -> np.ndarray:
        """Missing features that tell nothing by being missing, (n, F)."""
        missing = np.stack([np.isnan(rows[:, feature_of == j]).all(1) for j in range(int(feature_of.max()) + 1)], 1)
        if self.missingness_ is not None:
            missing[:, feature_of[self.missingness_.columns.cpu().numpy()]] = False
        return missing

    def _nearest(self, log_joint: Tensor) -> Tensor:
        """The component of every class with the largest responsibility, (n, C)."""
        slices = self.mixture_.class_slices
        return torch.stack([log_joint[part].max(0).indices + part.start for part in slices], 1)

    def _compared(self, classes: Any, scores: np.ndarray) -> tuple[np.ndarray, int | None]:
        """The number of the explained class of each sample, and that of the class it is compared with."""
        if classes is None:
            return scores.argmax(1), None
        labels = [classes] if np.ndim(classes) == 0 else list(classes)
        numbers = checks.known_labels(np.array(labels), self.classes_).tolist() if labels else []
        if len(numbers) not in (1, 2) or len(set(numbers)) < len(numbers):
            raise ValueError(f"classes must be a label or a pair of different labels; got {classes!r}.")
        return np.full(len(scores), numbers[0]), numbers[1] if len(numbers) == 2 else None

    def _feature_of(self) -> np.ndarray:
        """The feature that each column of the rows belongs to."""
        return np.arange(self.mixture_.n_features) if self.encoding_ is None else self.encoding_.feature_of

    def _categories(self) -> dict[int, list[Any]]:
        encoding = self.encoding_
        if encoding is None:
            return {}
        return {j: v.tolist() for j, v in zip(encoding.categorical, encoding.categories, strict=True)}

    def _shown_values(self, rows: np.ndarray) -> np.ndarray:
        """Samples with one column per feature: numbers of categories in place of indicators."""
        encoding = self.encoding_
        if encoding is None:
            return rows
        shown = np.full((len(rows), encoding.n_features), np.nan)
        shown[:, encoding.numeric] = rows[:, : len(encoding.numeric)]
        for j in encoding.categorical:
            indicators = rows[:, encoding.feature_of == j]
            numbers = np.nan_to_num(indicators).argmax(1)
            shown[:, j] = np.where(np.isnan(indicators).all(1), np.nan, numbers)
        return shown

    def _missing_effects(
        self, rows: np.ndarray, feature_of: np.ndarray, game: Any, random: np.random.RandomState
    ) -> np.ndarray:
        """Standard deviation of the log-odds over draws of each missing value by itself, (n, F)."""
        size = int(feature_of.max()) + 1
        missing = np.stack([np.isnan(rows[:, feature_of == j]).all(1) for j in range(size)], 1)
        effects = np.full(missing.shape, np.nan)
        samples, features = np.nonzero(missing)
        if not len(samples):
            return effects
        draws = as_array(self.impute(torch.from_numpy(np.repeat(rows, DRAWS, 0)), "draw", random))
        draws = draws.reshape(len(rows), DRAWS, -1)[samples].reshape(len(samples) * DRAWS, -1)
        drawn = np.repeat(features[:, None] == feature_of, DRAWS, 0)
        completed = np.where(drawn, draws, np.repeat(rows[samples], DRAWS, 0))
        odds = game(completed, np.repeat(samples, DRAWS), np.ones(completed.shape, bool)).reshape(-1, DRAWS)
        effects[samples, features] = odds.std(1)
        return effects

    def feature_importances(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Compute the increase of the log-loss when a feature is integrated out of the model, without refitting.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        importances : ndarray of shape (n_features,), or pandas Series for a data frame
            In nats per sample; below zero for a feature that misleads.
        """
        loss = self._marginal_loss(X, y, sample_weight)
        importances = marginal_importances(loss, self.n_features_in_)
        if not is_frame(X):
            return importances
        import pandas as pd

        return pd.Series(importances, index=feature_names(self), name="importance")

    def _marginal_loss(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """The function from kept features (D,) to the log-loss of samples whose other features are integrated out."""
        X, y, sample_weight = only_labeled(X, y, sample_weight, self.unlabeled)
        rows, labels = self._plain_rows(X), as_array(y)
        weights = checks.sample_weight(sample_weight, len(rows))
        weights = np.ones(len(rows)) if weights is None else weights.cpu().numpy()
        checks.as_many_labels(labels, len(rows))
        rows, labels, weights = rows[weights > 0], labels[weights > 0], weights[weights > 0]
        numbers = checks.known_labels(labels, self.classes_)
        feature_of = self._feature_of()

        def loss(kept: np.ndarray) -> float:
            own = self._marginal_log_proba(rows, kept[feature_of])[np.arange(len(rows)), numbers]
            return float(-(weights @ own) / weights.sum())

        return loss
