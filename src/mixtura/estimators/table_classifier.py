"""TableClassifier: a mixture for tables with numeric and categorical columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from mixtura import checks
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.model_files import Savable, check_fitted
from mixtura.estimators.trust import as_array
from mixtura.values.storable import storable


@storable("table_column")
@dataclass(frozen=True)
class TableColumn:
    """A column of a table and the features that it becomes.

    Parameters
    ----------
    name : str
        The name of the column.
    categories : tuple of str or None, default=None
        None for a numeric column. Otherwise its categories as text; every category but the first becomes a feature
        that is 1 for samples of that category and 0 for samples of another one.
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [self.name] if self.categories is None else [f"{self.name}={value}" for value in self.categories[1:]]

    def encode(self, values: Any) -> np.ndarray:
        """Return the features of a column, (n_samples, n_features); NaN where its value is missing or unknown."""
        entries = np.asarray(values)
        if self.categories is None:
            return numbers_of(entries)[:, None]
        numbers: dict[str | None, int] = {category: number for number, category in enumerate(self.categories)}
        positions = np.array([numbers.get(category_of(entry), -1) for entry in entries.tolist()], dtype=np.int64)
        indicators = (positions[:, None] == np.arange(1, len(self.categories))).astype(float)
        indicators[positions < 0] = np.nan
        return indicators


def numbers_of(values: np.ndarray) -> np.ndarray:
    """Values as numbers; NaN where they are none."""
    if values.dtype.kind in "biuf":
        return values.astype(float)
    return np.array([_number(value) for value in values.tolist()], dtype=float)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):  # text, None, pd.NA
        return float("nan")


def category_of(value: Any) -> str | None:
    """The name of a category; 3.0 and 3 are the same one, and a missing value is none."""
    if value is None or value != value or str(value) == "<NA>":
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


@storable("TableClassifier", check=check_fitted)
class TableClassifier(Savable, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Classify the rows of a data frame with numeric and categorical columns; ``mixtura fit`` writes such models.

    Categories become indicator features, missing values are marginalised, and columns are found by name, so that
    tables for prediction may have other columns, and their columns in another order.

    Parameters
    ----------
    estimator : classifier of mixtura, optional
        None is `MixtureClassifier()`.
    columns : sequence of TableColumn, default=()
        The columns to use. Others are ignored.

    Attributes
    ----------
    estimator_ : classifier
        The model of the features.
    classes_ : ndarray of shape (n_classes,)
    about_ : dict
        Facts about the training, such as the name of the target.

    Examples
    --------
    >>> import pandas as pd
    >>> from mixtura.estimators.table_classifier import TableClassifier, TableColumn
    >>> frame = pd.DataFrame({"colour": ["red", "blue", None, "blue"] * 5, "size": [1.0, 5.0, 1.2, None] * 5})
    >>> columns = [TableColumn("colour", ("blue", "red")), TableColumn("size")]
    >>> model = TableClassifier(columns=columns).fit(frame, ["a", "b", "a", "b"] * 5)
    >>> model.predict(pd.DataFrame({"size": [1.1], "colour": ["red"]}))
    array(['a'], dtype='<U1')
    """

    def __init__(self, estimator: Any = None, columns: Sequence[TableColumn] = ()):
        self.estimator = estimator
        self.columns = columns

    def encode(self, X: Any) -> Any:
        """Return the features of a data frame.

        Parameters
        ----------
        X : pandas data frame
            With the columns of the model.

        Returns
        -------
        features : pandas data frame of shape (n_samples, n_features)
        """
        absent = [column.name for column in self.columns if column.name not in X.columns]
        if absent:
            raise ValueError(f"The table lacks the columns {absent}; it has {[str(name) for name in X.columns]}.")
        features = np.concatenate([column.encode(X[column.name]) for column in self.columns], 1)
        return type(X)(features, index=X.index, columns=self.feature_names)

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, in the order of `encode`."""
        return [name for column in self.columns for name in column.features]

    def fit(self, X: Any, y: Any) -> TableClassifier:
        """Fit the estimator to the features of a data frame.

        Parameters
        ----------
        X : pandas data frame
        y : array-like of shape (n_samples,)

        Returns
        -------
        self
        """
        if not self.columns:
            raise ValueError("columns must have at least one TableColumn; got none.")
        features = self.encode(X)
        model: Any = clone(MixtureClassifier() if self.estimator is None else self.estimator)
        self.estimator_ = model.fit(features, y)
        self.classes_, self.n_features_in_, self.about_ = model.classes_, len(self.columns), {}
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the classes of the rows of a data frame.

        Parameters
        ----------
        X : pandas data frame

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        return as_array(self.estimator_.predict(self.encode(X)))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : pandas data frame

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return as_array(self.estimator_.predict_proba(self.encode(X)))

    def _check_fitted(self) -> None:
        checks.is_kind("columns", self.columns, list)
        for column in self.columns:
            checks.is_kind("columns", column, TableColumn)
        check_fitted(self.estimator_)
        if self.estimator_.n_features_in_ != len(self.feature_names):
            raise ValueError("the columns and the model have different numbers of features")
