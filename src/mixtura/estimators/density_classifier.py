"""The base of classifiers whose classes are Gaussian mixtures: posteriors, sampling, and explanations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.threads import computing
from mixtura.estimators import arguments
from mixtura.estimators.classifiers import Classifier, ConditionalClassifier, check_class_numbers
from mixtura.estimators.density_estimator import (
    DensityEstimator,
    check_distances,
    feature_of,
    map_log_joints,
    read_as_fitted,
)
from mixtura.estimators.estimator import list_features
from mixtura.estimators.frames import as_array, is_pandas, is_series
from mixtura.estimators.labels import only_labeled
from mixtura.estimators.rows import Rows
from mixtura.estimators.streamed_rows import by_batches
from mixtura.init.starts import STARTS
from mixtura.inspection.explanations import Explanation, Game, Loss, log_odds, marginal_importances, shapley_values
from mixtura.inspection.graphs import average_graph, class_scores, classifier_graph
from mixtura.inspection.outliers import class_p_values
from mixtura.inspection.summaries import component_entropies
from mixtura.model.missingness import Missingness
from mixtura.model.mixture import MemberGroup, Mixture
from mixtura.model.temperature import Temperature, average_posteriors
from mixtura.objectives import class_log_joint

if TYPE_CHECKING:
    import pandas as pd

# Draws of a missing value to estimate its effect on the log-odds.
DRAWS = 16


def check_init(value: object) -> None:
    """Check the argument `init`: a method, a mixture or a fitted estimator."""
    if isinstance(value, DensityEstimator) and "mixture_" not in vars(value):
        raise ValueError(
            f"init is a {type(value).__name__} that is not fitted; fit it first. Copies made by clone or a grid "
            "search are not fitted either: pass init=model.mixture_ instead."
        )
    named = checks.among(STARTS, " or a fitted mixture")
    checks.require("init", value, named | checks.of_type(Mixture | DensityEstimator))


class DensityClassifier(Classifier, DensityEstimator):
    """A classifier whose classes are Gaussian mixtures."""

    _arguments: ClassVar = {"init": check_init}
    _attributes: ClassVar = {
        "label_noise_": checks.SHARE,
        "training_prior_": check_class_numbers,
        "further_members_": tuple[MemberGroup, ...],
        "average_temperature_": checks.POSITIVE,
        "missingness_": Missingness | None,
    }
    class_prior_: np.ndarray
    label_noise_: float = 0.0
    training_prior_: np.ndarray | None = None  # class probabilities that the temperature was estimated with
    further_members_: tuple[MemberGroup, ...] = ()  # beside the best one, which `mixture_` holds
    average_temperature_: float = 1.0  # of the average of the members
    missingness_: Missingness | None = None  # how often values are missing in each class, unless that is ignorable
    _told: Missingness | None = None  # the one that a warning was given for

    @property
    def n_components_(self) -> np.ndarray:
        """Number of components of each class."""
        check_is_fitted(self)
        return np.array([part.stop - part.start for part in self.mixture_.class_slices])

    @property
    def _member_groups(self) -> list[MemberGroup]:
        """The models whose class posteriors are averaged, the best one first."""
        check_is_fitted(self)
        return members_of(self)

    @property
    def members_(self) -> list[MemberGroup] | list[Mixture]:
        """The models whose class posteriors are averaged, the best one first."""
        return self._member_groups

    @property
    def n_parameters_(self) -> int:
        """Number of free parameters of the fitted mixtures."""
        check_is_fitted(self)
        return self.mixture_.n_parameters + sum(member.mixture.n_parameters for member in self.further_members_)

    def _map_scores(
        self, X: object, finish: Callable[[Tensor], Tensor], counted: Tensor | None = None
    ) -> np.ndarray | Tensor:
        """The function of the log posteriors (averaged-posterior) of the classes, up to a constant per sample, (C, n).

        `counted` (n, D): columns whose missing values count; all unless it is given.
        """
        members = self._member_groups
        temperatures = [self._temperature(member.temperature) for member in members]
        if len(members) == 1 and not temperatures[0].changes and self.missingness_ is None:
            return map_log_joints(self, X, lambda log_joint: finish(log_joint_of_classes(log_joint, members[0])))
        rows = read_as_fitted(self, X)
        with computing():
            observed, scores = rows.observed_shares(), score_members(self, members, rows)
            values, calibration = scores[0], temperatures[0]
            if len(members) > 1:
                values = average_posteriors(scores, temperatures, observed, [member.weight for member in members])
                calibration = self._temperature(self.average_temperature_)
            return rows.answer(finish(calibration.apply(values, observed, self._log_factors(rows, counted))))

    def _log_factors(self, rows: Rows, counted: Tensor | None) -> Tensor | float:
        """The factors of the classes by which values are missing, (C, n) (missingness)."""
        known = self.missingness_
        if known is None:
            return 0.0
        missing = rows.missing(known.columns)
        if counted is not None:
            return known.log_factors(missing, counted[:, known.columns].to(missing.device))
        if self._told is not known and vars(self).get("missing") == "auto" and tell_of_missing(self, known, missing):
            self._told = known  # once
        return known.log_factors(missing)

    def _temperature(self, value: float | None = None) -> Temperature:
        log_prior, change = self.mixture_.log_class_prior.cpu(), None
        if self.training_prior_ is not None:
            log_training_prior = torch.from_numpy(self.training_prior_).log().to(log_prior)
            change, log_prior = log_prior - log_training_prior, log_training_prior
        noise = self.label_noise_
        value = self.temperature_ if value is None else value
        return Temperature(value, change, noise, log_prior if noise > 0 else None)

    def _graph(self) -> nn.Module:
        members = self._member_groups
        alone = self.missingness_ if len(members) == 1 else None
        scored = [class_scores(member, self._temperature(member.temperature), alone) for member in members]
        if len(members) == 1:
            return classifier_graph(scored[0])
        weights = [member.weight for member in members]
        return average_graph(scored, weights, self._temperature(self.average_temperature_), self.missingness_)

    @by_batches("class")
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
        first = self._member_groups[0]
        return map_log_joints(self, X, lambda log_joint: log_joint_of_classes(log_joint, first).T, density=True)

    def _own_densities(self, X: object, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        scores = -as_array(self.predict_joint_log_proba(X)).astype(np.float64)
        return (scores[np.arange(len(numbers)), numbers].clip(-1e300, 1e300),)

    @by_batches("class")
    def typicality(self, X: Any) -> Any:
        """Compute p-values of samples in every class: small ones say that a sample is unlike the class (typicality).

        The p-value is the share of the calibration samples of a class, and of the sample itself, that are as improbable
        in it as the sample. Of samples of the class at most a share a has a p-value of a or less, whatever the model is
        worth. `calibrate_sets` takes the calibration samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        p_values : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from mixtura import MixtureClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = MixtureClassifier(1, random_state=0).fit(X[::2], y[::2]).calibrate_sets(X[1::2], y[1::2])
        >>> model.typicality([[5.0, 3.4, 1.5, 0.2], [9.0, 9.0, 9.0, 9.0]]).round(2)
        array([[1.  , 0.04, 0.04],
               [0.04, 0.04, 0.04]])
        """
        if self.set_reference_ is None or self.set_reference_.shape[1] < 3:
            raise ValueError(
                "typicality needs calibration samples. Call model.calibrate_sets(X, y) first, with labeled samples "
                "that were not used for the fit."
            )
        joint = self.predict_joint_log_proba(X)
        p_values = class_p_values(self.set_reference_, -torch.as_tensor(joint))
        return p_values if isinstance(joint, Tensor) else p_values.numpy()

    def sample(self, n_samples: int = 1, class_label: Any = None) -> tuple[np.ndarray | pd.DataFrame, np.ndarray]:
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
        if class_label is None:
            rows, components = self._draw(self.mixture_, n_samples)
            return self._drawn_samples(rows), self.classes_[self.mixture_.class_of.cpu()[components].numpy()]
        matches = np.flatnonzero(self.classes_ == class_label)
        if not len(matches):
            raise ValueError(f"class_label must be one of {self.classes_.tolist()}; got {class_label!r}.")
        rows, _ = self._draw(self.mixture_.select(self.mixture_.class_slices[int(matches[0])]), n_samples)
        return self._drawn_samples(rows), np.repeat(self.classes_[matches], len(rows))

    def _densities(self, X: object, y: object) -> tuple[np.ndarray, np.ndarray]:
        if y is None:
            return super()._densities(X, y)
        numbers, sizes = checks.known_labels(y, self.classes_), self.mixture_.class_sizes
        own = np.arange(len(numbers)), numbers
        entropies = as_array(map_log_joints(self, X, lambda log_joint: component_entropies(log_joint, sizes)))
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
        checks.same_size("classes_", len(self.classes_), self.mixture_.n_classes)
        for member in self.further_members_:
            checks.same_size("further_members_", member.n_inputs, self.mixture_.n_features)
            checks.same_size("further_members_", member.mixture.n_classes, self.mixture_.n_classes)
        if self.missingness_ is not None:
            checks.same_size("missingness_", len(self.missingness_.log_odds), self.mixture_.n_classes)
            checks.positions("missingness_", self.missingness_.columns, self.mixture_.n_features)
        if self.training_prior_ is not None and not bool((self.training_prior_ > 0).all()):
            raise ValueError("training_prior_ is not one probability above 0 for each class")

    def explain(
        self, X: Any, classes: Any = None, n_orders: int | None = None, random_state: arguments.RandomState = 0
    ) -> Explanation:
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
        return explain_samples(self, X, classes, n_orders, random_state)

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
        importances = marginal_importances(marginal_loss(self, X, y, sample_weight), self.n_features_in_)
        if not is_pandas(X):
            return importances
        import pandas as pd

        return pd.Series(importances, index=list_features(self), name="importance")


Trained: TypeAlias = DensityClassifier | ConditionalClassifier


def score_members(model: DensityClassifier, members: Sequence[MemberGroup], rows: Rows) -> list[Tensor]:
    """The log joints of the classes by every one of the models that are averaged, (C, n) each."""
    limit, scores = checks.memory_limit(model.memory_limit), []
    for member in members:
        transformed = replace(rows, warp=member.warp)
        if scores:  # the rows have been compared with the first
            check_distances(model, transformed, member.mixture)
        compute = partial(log_joint_of_classes, group=member)
        scores.append(map_rows(member.mixture, transformed.source(), lambda a, f=compute: f(a).T, limit).T)
    return scores


def tell_of_missing(model: DensityClassifier, known: Missingness, missing: Tensor) -> bool:
    """Warn of features that are missing more or less often than in training; whether there are any."""
    numbers, *shares = known.unusual(missing, model.class_prior_)
    names = [list_features(model)[j] for j in feature_of(model)[known.columns.cpu().numpy()[numbers]]]
    if names:
        checks.warn(checks.missingness_changed(names, *shares), UserWarning)
    return bool(names)


def members_of(model: DensityClassifier) -> list[MemberGroup]:
    """The models whose class posteriors are averaged, the best one first."""
    return [MemberGroup(model.mixture_, model.warp_, model.temperature_), *model.further_members_]


def log_joint_of_classes(log_joint: Tensor, group: MemberGroup) -> Tensor:
    """log p(x, c) of the classes, (C, n), from log joints (K, n).

    Of several members: the logarithm of the average posterior, and log p(x) of the average, added.
    """
    scores = class_log_joint(log_joint, group.sizes)
    if group.n_members == 1:
        return scores
    posteriors = scores.unflatten(0, (-1, group.n_members)).log_softmax(0)
    return posteriors.logsumexp(1) - math.log(group.n_members) + log_joint.logsumexp(0)


def explain_samples(
    model: DensityClassifier, X: object, classes: object, n_orders: int | None, random_state: arguments.RandomState
) -> Explanation:
    """Contributions of the features to the log-odds of a class, as `DensityClassifier.explain` documents them."""
    X = X.to_frame().T.infer_objects() if is_series(X) else X  # a single row of a data frame
    random = check_random_state(random_state)
    orders = None if n_orders is None else checks.count("n_orders", n_orders)
    rows, owners, encoding = _encode(model, X), feature_of(model), model.encoding_
    samples, scores = torch.from_numpy(rows), _class_scores(model, rows)
    targets, against = _compared_classes(model.classes_, classes, scores)

    def game(kept: np.ndarray, numbers: np.ndarray, counted: np.ndarray) -> np.ndarray:
        return log_odds(_class_scores(model, kept, counted), targets[numbers], against)

    def nearest(log_joint: Tensor) -> Tensor:  # the component of every class with the largest responsibility, (n, C)
        slices = model.mixture_.class_slices
        return torch.stack([log_joint[part].max(0).indices + part.start for part in slices], 1)

    missing = np.stack([np.isnan(rows[:, owners == j]).all(1) for j in range(int(owners.max()) + 1)], 1)
    silent = missing.copy()  # features that tell nothing by being missing
    if model.missingness_ is not None:
        silent[:, owners[model.missingness_.columns.cpu().numpy()]] = False
    values, base = shapley_values(rows, owners, game, orders, random, silent)
    exponents, places = np.exp(scores - scores.max(1, keepdims=True)), np.arange(len(rows))
    return Explanation(
        values,
        base,
        log_odds(scores, targets, against),
        exponents[places, targets] / exponents.sum(1),
        rows if encoding is None else encoding.numbered(rows),
        list_features(model),
        model.classes_[targets],
        None if against is None else model.classes_[against],
        as_array(map_log_joints(model, samples, nearest)).astype(np.int64)[places, targets],
        as_array(model.outlier_score(samples)),
        _missing_effects(model, rows, missing, game, random),
        X.index if is_pandas(X) else None,
        {} if encoding is None else encoding.labels,
    )


def _encode(model: DensityClassifier, X: object) -> np.ndarray:
    return as_array(read_as_fitted(model, X).values).astype(float)


def _class_scores(model: DensityClassifier, rows: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
    """Log posteriors up to a constant per sample, (n, C); `counted` (n, D) as in `DensityClassifier._map_scores`."""
    known = None if counted is None else torch.tensor(counted)
    return as_array(model._map_scores(torch.from_numpy(rows), lambda scores: scores.T, known)).astype(float)


def _compared_classes(known: np.ndarray, classes: object, scores: np.ndarray) -> tuple[np.ndarray, int | None]:
    """The number of the explained class of each sample, and that of the class it is compared with."""
    if classes is None:
        return scores.argmax(1), None
    labels = [classes] if checks.shape_of(classes) == () else list(cast("Iterable[object]", classes))
    numbers = checks.known_labels(np.array(labels), known).tolist() if labels else []
    if len(numbers) not in (1, 2) or len(set(numbers)) < len(numbers):
        raise ValueError(f"classes must be a label or a pair of different labels; got {classes!r}.")
    return np.full(len(scores), numbers[0]), numbers[1] if len(numbers) == 2 else None


def _missing_effects(
    model: DensityClassifier, rows: np.ndarray, missing: np.ndarray, game: Game, random: np.random.RandomState
) -> np.ndarray:
    """Standard deviation of the log-odds over draws of each missing value by itself, (n, F)."""
    effects = np.full(missing.shape, np.nan)
    samples, features = np.nonzero(missing)
    if not len(samples):
        return effects
    draws = as_array(model.impute(torch.from_numpy(np.repeat(rows, DRAWS, 0)), "draw", random))
    draws = draws.reshape(len(rows), DRAWS, -1)[samples].reshape(len(samples) * DRAWS, -1)
    drawn = np.repeat(features[:, None] == feature_of(model), DRAWS, 0)
    completed = np.where(drawn, draws, np.repeat(rows[samples], DRAWS, 0))
    odds = game(completed, np.repeat(samples, DRAWS), np.ones(completed.shape, bool)).reshape(-1, DRAWS)
    effects[samples, features] = odds.std(1)
    return effects


def marginal_loss(model: DensityClassifier, X: object, y: object, sample_weight: object = None) -> Loss:
    """The function from kept features (D,) to the log-loss of samples whose other features are integrated out."""
    X, y, sample_weight = only_labeled(X, y, sample_weight, model.unlabeled)
    rows, labels = _encode(model, X), as_array(y)
    weights = checks.sample_weight(sample_weight, len(rows))
    weights = np.ones(len(rows)) if weights is None else weights.cpu().numpy()
    checks.as_many_labels(labels, len(rows))
    rows, labels, weights = rows[weights > 0], labels[weights > 0], weights[weights > 0]
    numbers, owners = checks.known_labels(labels, model.classes_), feature_of(model)

    def loss(kept: np.ndarray) -> float:
        own = marginal_log_proba(model, rows, kept[owners])[np.arange(len(rows)), numbers]
        return float(-(weights @ own) / weights.sum())

    return loss


def marginal_log_proba(model: DensityClassifier, rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Log probabilities of the classes (n, C) given some of the columns, `kept` (D,); the others are unknown."""
    scores = _class_scores(model, np.where(kept, rows, np.nan), np.repeat(kept[None], len(rows), 0))
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
