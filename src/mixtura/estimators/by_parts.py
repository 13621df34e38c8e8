"""Predictions for rows in parts: lazily for Dask collections, batch by batch for batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from sklearn.utils.validation import check_is_fitted

from mixtura.estimators.input import is_batches, is_dask
from mixtura.streams.predictions import BatchedPredictions


def by_parts(columns: str = "") -> Callable[[Any], Any]:
    """A decorator for methods whose result for a row does not depend on other rows.

    Parameters
    ----------
    columns : str, default=""
        Meaning of the columns of the result: "class", "component" or "feature".
    """

    def decorate(method: Any) -> Any:
        name = method.__name__

        @wraps(method)
        def over_parts(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
            if is_dask(X) or is_batches(X):
                check_is_fitted(self)
                predict = partial(_predicted, getattr(self, name), arguments, options)
                if is_batches(X):
                    return BatchedPredictions(predict, X, name, _labels(self, columns))
                from mixtura.estimators.dask_collections import lazily

                return lazily(predict, X)
            return method(self, X, *arguments, **options)

        return over_parts

    return decorate


def _predicted(predict: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], X: Any) -> Any:
    return predict(X, *arguments, **options)


def _labels(estimator: Any, columns: str) -> list[Any]:
    if columns == "class":
        return estimator.classes_.tolist()
    if columns == "component":
        return list(range(estimator.mixture_.n_components))
    named = columns == "feature" and "feature_names_in_" in vars(estimator)
    return list(estimator.feature_names_in_ if named else range(estimator.n_features_in_))
