"""TableClassifier: a mixture for tables with numeric and categorical columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from mixtura import checks
from mixtura.estimators.classifiers import Classifier
from mixtura.estimators.estimator import Estimator, check_fitted, fitting
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.rows import PandasLike, as_array
from mixtura.files.registry import storable
from mixtura.inspection.tables import data_frame

CONSTANT = "(constant)"  # a numeric column that models of version 0.1 add to tables of categories alone


def check_column(column: TableColumn) -> None:
    """Raise a ValueError unless all categories are text."""
    for category in column.categories or ():
        checks.is_kind("categories", category, str)


@storable("table_column", check=check_column)
@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Parameters
    ----------
    name : str
        The name of the column.
    categories : tuple of str or None, default=None
        None for a numeric column. Otherwise its categories as text.
    """

    name: str
    categories: tuple[str, ...] | None = None

    def read(self, values: Any) -> np.ndarray:
        """Return numbers with NaN, or categories with None, where a value is missing, unknown or of another kind."""
        entries = np.asarray(values)
        if self.categories is None:
            return numbers_of(entries)
        known = set(self.categories)
        names = [category_of(entry) for entry in entries.tolist()]
        return np.array([name if name in known else None for name in names], dtype=object)


def numbers_of(values: np.ndarray) -> np.ndarray:
    """Convert values to numbers; NaN if that is not possible."""
    if values.dtype.kind in "biuf":
        return values.astype(float)
    return np.array([_number(value) for value in values.tolist()], dtype=float)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):  # text, None, pd.NA
        return float("nan")


def category_of(value: Any) -> str | None:
    """The name of a category; 3.0 and 3 are the same category, and None is a missing value."""
    if value is None or value != value or str(value) == "<NA>":
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def listed(names: Any, most: int = 12) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(repr(str(name)) for name in list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


@storable("TableClassifier", check=check_fitted)
class TableClassifier(ClassifierMixin, MetaEstimatorMixin, Estimator):
    """Classify the rows of a data frame with numeric and categorical columns; ``mixtura fit`` writes such models.

    Columns are identified by name: tables for prediction may have additional columns, and another order. Unknown
    categories are treated as missing, and missing values are marginalised.

    Parameters
    ----------
    estimator : classifier of mixtura, optional
        None is `MixtureClassifier()`.
    columns : sequence of TableColumn, default=()
        The columns to use. Others are ignored.

    Attributes
    ----------
    estimator_ : classifier
        The model of the columns.
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

    _arguments: ClassVar = {
        "columns": checks.Rule(
            "a list of at least one TableColumn",
            lambda value: bool(value) and all(isinstance(column, TableColumn) for column in value),
        ),
        "estimator": checks.kind_of_estimator(Classifier, "a classifier of mixtura"),
    }

    def __init__(self, estimator: Any = None, columns: Sequence[TableColumn] = ()):
        self.estimator = estimator
        self.columns = columns

    def read(self, X: Any) -> Any:
        """Return the columns of a data frame that the model uses, as numbers and as categories.

        Parameters
        ----------
        X : pandas data frame
            With the columns of the model.

        Returns
        -------
        table : pandas data frame of shape (n_samples, n_columns)
        """
        if not isinstance(X, PandasLike):
            raise TypeError(f"X must be a pandas data frame, whose columns have names; got {type(X).__name__}.")
        checks.distinct_columns(X.columns)
        absent = [column.name for column in self.columns if column.name not in X.columns]
        if absent:
            raise ValueError(f"The table lacks the columns {listed(absent)}; it has {listed(X.columns)}.")
        table: Any = X
        values = {column.name: column.read(table[column.name]) for column in self.columns}
        if "estimator_" in vars(self) and self.estimator_.n_features_in_ > len(self.columns):
            values[CONSTANT] = np.zeros(len(table))
        return data_frame(values, table.index)

    @fitting
    def fit(self, X: Any, y: Any) -> TableClassifier:
        """Fit the estimator to the columns of a data frame.

        Parameters
        ----------
        X : pandas data frame
        y : array-like of shape (n_samples,)

        Returns
        -------
        self
        """
        model: Any = clone(MixtureClassifier() if self.estimator is None else self.estimator)
        self.estimator_ = model.fit(self.read(X), y)
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
        return as_array(self.estimator_.predict(self.read(X)))

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
        return as_array(self.estimator_.predict_proba(self.read(X)))

    def _check_fitted(self) -> None:
        checks.is_kind("columns", self.columns, list | tuple)
        for column in self.columns:
            checks.is_kind("columns", column, TableColumn)
        check_fitted(self.estimator_)
        numeric = any(column.categories is None for column in self.columns)
        if self.estimator_.n_features_in_ - len(self.columns) not in ((0,) if numeric else (0, 1)):
            raise ValueError("the columns and the model have different numbers of features")
