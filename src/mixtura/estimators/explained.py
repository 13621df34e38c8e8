"""Explanations of predictions, and the importance of features, by exact marginalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from mixtura import checks
from mixtura.estimators.categorical import Encoding
from mixtura.estimators.input import PandasLike
from mixtura.estimators.scoring import only_labeled
from mixtura.estimators.trust import as_array
from mixtura.model.mixture import Mixture
from mixtura.reading.explanations import Explanation, shapley_values
from mixtura.reading.importances import marginal_importances
from mixtura.reading.summaries import feature_names

# Draws of a missing value to estimate its effect on the log-odds.
DRAWS = 16


class ExplainedClassifier:
    """Explanations for classifiers with exact marginalisation: features that are NaN are integrated out."""

    classes_: np.ndarray
    mixture_: Mixture
    encoding_: Encoding | None
    n_features_in_: int

    def explain(self, X: Any, classes: Any = None, n_orders: int | None = None, random_state: Any = 0) -> Explanation:
        """Compute the contributions of features to the log-odds of a class (Shapley values by exact marginalisation).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            NaN means missing.
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
        model: Any = self
        random = check_random_state(random_state)
        orders = None if n_orders is None else checks.count("n_orders", n_orders)
        rows = self._plain_rows(X)
        scores = self._class_scores(rows)
        targets, against = self._compared(classes, scores)

        def game(kept: np.ndarray, samples: np.ndarray) -> np.ndarray:
            return log_odds(self._class_scores(kept), targets[samples], against)

        feature_of = self._feature_of()
        values, base = shapley_values(rows, feature_of, game, orders, random)
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
            as_array(model._map(torch.from_numpy(rows), self._nearest)).astype(np.int64)[places, targets],
            as_array(model.outlier_score(torch.from_numpy(rows))),
            self._missing_effects(rows, feature_of, game, random),
            X.index if is_frame(X) else None,
            self._categories(),
        )

    def _plain_rows(self, X: Any) -> np.ndarray:
        rows: Any = self._read(X)  # pyright: ignore[reportAttributeAccessIssue]
        return as_array(rows.values).astype(float)

    def _class_scores(self, rows: np.ndarray) -> np.ndarray:
        """log p(x, c) up to a constant per sample, under the requested class prior, (n, C)."""
        model: Any = self
        return as_array(model._finished(torch.from_numpy(rows), lambda scores: scores.T)).astype(float)

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
        model: Any = self
        draws = as_array(model.impute(torch.from_numpy(np.repeat(rows, DRAWS, 0)), "draw", random))
        draws = draws.reshape(len(rows), DRAWS, -1)[samples].reshape(len(samples) * DRAWS, -1)
        drawn = np.repeat(features[:, None] == feature_of, DRAWS, 0)
        completed = np.where(drawn, draws, np.repeat(rows[samples], DRAWS, 0))
        odds = game(completed, np.repeat(samples, DRAWS)).reshape(-1, DRAWS)
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
        model: Any = self
        X, y, sample_weight = only_labeled(X, y, sample_weight, model.unlabeled)
        rows, labels = self._plain_rows(X), as_array(y)
        weights = checks.sample_weight(sample_weight, len(rows))
        weights = np.ones(len(rows)) if weights is None else weights.cpu().numpy()
        checks.as_many_labels(labels, len(rows))
        rows, labels, weights = rows[weights > 0], labels[weights > 0], weights[weights > 0]
        numbers = checks.known_labels(labels, self.classes_)
        feature_of = self._feature_of()

        def loss(kept: np.ndarray) -> float:
            log_proba = as_array(model.predict_log_proba(torch.from_numpy(np.where(kept[feature_of], rows, np.nan))))
            return float(-(weights @ log_proba[np.arange(len(rows)), numbers]) / weights.sum())

        return loss


def log_odds(scores: np.ndarray, targets: np.ndarray, against: int | None) -> np.ndarray:
    """Log-odds of the target class of each sample against another class, or against all others together."""
    places = np.arange(len(scores))
    own = scores[places, targets]
    if against is not None:
        return own - scores[:, against]
    others = scores.copy()
    others[places, targets] = -np.inf
    return own - np.logaddexp.reduce(others, axis=1)


def is_frame(X: Any) -> bool:
    """Whether X is a pandas data frame."""
    return isinstance(X, PandasLike)
