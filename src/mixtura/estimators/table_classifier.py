"""TableClassifier: a mixture for tables with numbers, categories and dates."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from sklearn.base import ClassifierMixin, MetaEstimatorMixin
from sklearn.utils.validation import check_is_fitted

from mixtura import checks
from mixtura.estimators.classifiers import Classifier
from mixtura.estimators.density_classifier import DensityClassifier, Trained, marginal_loss
from mixtura.estimators.estimator import Estimator, check_fitted, estimator_of, fitting, with_constructor
from mixtura.estimators.frames import as_array, as_frame, is_series
from mixtura.estimators.mixture_classifier import MixtureClassifier
from mixtura.estimators.refits import fit_copy, refit, split_samples
from mixtura.estimators.table_columns import TableColumn, find_columns, listed
from mixtura.files.registry import storable
from mixtura.inspection.explanations import forward_selection
from mixtura.inspection.summaries import data_frame

if TYPE_CHECKING:
    import pandas as pd

CONSTANT = "(constant)"  # a numeric column that models of version 0.1 add to tables of categories alone
MOST_JUDGED = 1000  # held-out rows by which `select` judges


@storable("TableClassifier", check=check_fitted)
@with_constructor
class TableClassifier(ClassifierMixin, MetaEstimatorMixin, Estimator):
    """Classify the rows of a data frame as it was read from a file; ``mixtura fit`` writes such models.

    Numbers may be written as people write them ("$1,234.50", "20.5 %", "61 kg", "(3)"), few different integers are
    categories, and dates become features. Identifiers, constant columns and copies of the target are left out. Columns
    are identified by name: tables for prediction may have additional columns, and another order. Absent columns and
    unknown categories count as missing, and missing values are marginalised.

    Parameters
    ----------
    estimator : classifier of mixtura, optional
        None is `MixtureClassifier()`.
    columns : sequence of TableColumn, default=()
        The columns to use; without any they are found in the table.
    select : bool, default=False
        Leave out features without which held-out rows are predicted as well.

    Attributes
    ----------
    estimator_ : classifier
        The model of the columns.
    columns_ : list of TableColumn
        The features.
    classes_ : ndarray of shape (n_classes,)
    notes_ : list of str
        Sentences about columns that were left out, values that count as missing, and possible leaks.
    about_ : dict
        Facts about the training, such as the name of the target.

    Examples
    --------
    >>> import pandas as pd
    >>> from mixtura.estimators import TableClassifier
    >>> frame = pd.DataFrame({"colour": ["red", "blue", None, "blue"] * 5, "price": ["$1", "5.20", "$1.25", "-"] * 5})
    >>> model = TableClassifier().fit(frame, ["a", "b", "a", "b"] * 5)
    >>> model.predict(pd.DataFrame({"price": ["$1.10"], "colour": ["red"]}))
    array(['a'], dtype='<U1')
    """

    estimator: Trained | None = None
    columns: Sequence[TableColumn] = ()
    select: bool = False

    _arguments: ClassVar = {
        "columns": checks.Rule(
            "a list of at least one TableColumn",
            lambda value: all(isinstance(column, TableColumn) for column in cast("Sequence[object]", value)),
        ),
        "estimator": estimator_of(Classifier, "a classifier of mixtura"),
        "select": checks.SWITCH,
    }
    estimator_: Trained = field(init=False)
    columns_: list[TableColumn] = field(init=False)
    notes_: list[str] = field(init=False)

    @property
    def features(self) -> list[TableColumn]:
        """The features of the fitted model."""
        return list(vars(self).get("columns_", self.columns))  # models of version 0.1 have the argument alone

    def read(self, X: Any) -> pd.DataFrame:
        """Return the features of a data frame that the model uses, as numbers and as categories.

        Parameters
        ----------
        X : data frame
            With the columns of the model; those that are absent count as missing.

        Returns
        -------
        table : pandas data frame of shape (n_samples, n_features)
        """
        table, columns = as_frame(X), self.features
        absent = absent_columns(table, columns)
        nothing = np.full(len(table), None, dtype=object)
        values = {c.feature: c.read(nothing if c.name in absent else table[c.name]) for c in columns}
        if "estimator_" in vars(self) and self.estimator_.n_features_in_ > len(columns):
            values[CONSTANT] = np.zeros(len(table))
        return data_frame(values, table.index)

    @fitting
    def fit(self, X: Any, y: Any, groups: Any = None) -> TableClassifier:
        """Find the kinds of the columns and fit the estimator to them.

        Parameters
        ----------
        X : data frame
            Of pandas, polars or Arrow.
        y : array-like of shape (n_samples,)
        groups : array-like of shape (n_samples,), optional
            The group of each row, such as a patient: rows of a group are never both in training and held out.

        Returns
        -------
        self
        """
        X, labels = as_frame(X), as_array(y)
        self.columns_, notes = choose_columns(self.columns, X, labels)
        base = MixtureClassifier() if self.estimator is None else self.estimator
        model = fit_copy(base, self.read(X), y, groups=groups)
        if self.select and len(self.columns_) > 1:
            model = leave_out_useless(self, model, X, labels, groups, notes)
        self.estimator_, self.classes_, self.n_features_in_ = model, model.classes_, len(self.columns_)
        self.notes_, self.about_ = notes, {}
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the classes of the rows of a data frame.

        Parameters
        ----------
        X : data frame

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        """
        return self._ask("predict", X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : data frame

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        return self._ask("predict_proba", X)

    def outlier_score(self, X: Any) -> np.ndarray:
        """Compute how unusual rows are.

        Parameters
        ----------
        X : data frame

        Returns
        -------
        scores : ndarray of shape (n_samples,)
        """
        return self._ask("outlier_score", X)

    def is_outlier(self, X: Any, false_alarm: float = 0.01) -> np.ndarray:
        """Flag rows that are unlike the training rows.

        Parameters
        ----------
        X : data frame
        false_alarm : float, default=0.01
            Expected fraction of flagged rows among those that are like the training rows.

        Returns
        -------
        outlying : ndarray of bool of shape (n_samples,)
        """
        return self._ask("is_outlier", X, false_alarm)

    def explain(self, X: Any, classes: Any = None, n_orders: int | None = None, random_state: Any = 0) -> Any:
        """Compute the contributions of the features, as `MixtureClassifier.explain` does.

        Parameters
        ----------
        X : data frame, or pandas Series
            A Series is a single row.
        classes : label or pair of labels, optional
        n_orders : int, optional
        random_state : int or RandomState, default=0

        Returns
        -------
        Explanation
        """
        check_is_fitted(self)
        X = X.to_frame().T.infer_objects() if is_series(X) else X
        return self.estimator_.explain(self.read(X), classes, n_orders, random_state)

    def feature_importances(self, X: Any, y: Any) -> Any:
        """Compute the increase of the log-loss when a feature is integrated out of the model.

        Parameters
        ----------
        X : data frame
        y : array-like of shape (n_samples,)

        Returns
        -------
        importances : pandas Series of length n_features
        """
        check_is_fitted(self)
        return self.estimator_.feature_importances(self.read(X), y)

    def summary(self) -> Any:
        """Describe the classes and components in the units of the table.

        Returns
        -------
        Summary
        """
        check_is_fitted(self)
        return self.estimator_.summary()

    def _ask(self, method: str, X: object, *arguments: object) -> np.ndarray:
        check_is_fitted(self)
        return as_array(getattr(self.estimator_, method)(self.read(X), *arguments))

    def _check_fitted(self) -> None:
        checks.is_kind("columns", self.columns, list | tuple)
        columns = self.features
        for column in columns:
            checks.is_kind("columns", column, TableColumn)
        check_fitted(self.estimator_)
        numeric = any(column.categories is None for column in columns)
        if self.estimator_.n_features_in_ - len(columns) not in ((0,) if numeric else (0, 1)):
            raise ValueError("the columns and the model have different numbers of features")


def choose_columns(
    given: Sequence[TableColumn], table: pd.DataFrame, labels: np.ndarray
) -> tuple[list[TableColumn], list[str]]:
    """The given columns, or those of a table that can be used, and notes about the others."""
    if given:
        return list(given), []
    checks.as_many_labels(labels, len(table))
    columns, notes = find_columns(table, labels)
    if not columns:
        raise ValueError(f"No column of the table can be used. {' '.join(notes)}".strip())
    return columns, notes


def absent_columns(table: pd.DataFrame, columns: Sequence[TableColumn]) -> list[str]:
    """The names of columns that a table lacks, with a warning."""
    names = dict.fromkeys(column.name for column in columns)
    absent = [name for name in names if name not in table.columns]
    if len(absent) == len(names):
        raise ValueError(f"The table lacks the columns {listed(absent)}; it has {listed(table.columns)}.")
    if absent:
        warnings.warn(f"The table lacks the columns {listed(absent)}; their values count as missing.", stacklevel=4)
    return absent


def leave_out_useless(
    tables: TableClassifier, model: Trained, X: pd.DataFrame, labels: np.ndarray, groups: object, notes: list[str]
) -> Trained:
    """A fit without features that do not help to predict held-out rows, with a note; the same model if all help."""
    kept = _useful(model, tables.read(X), labels, groups)
    left = [column.feature for column in tables.columns_ if column.feature not in kept]
    if not left:
        return model
    tables.columns_ = [column for column in tables.columns_ if column.feature in kept]
    notes.append(f"Held-out rows are predicted as well without {listed(left)}, which were left out.")
    return refit(model, tables.read(X), labels, np.arange(len(labels)), reselect=True, groups=groups)


def _useful(model: Trained, table: pd.DataFrame, labels: np.ndarray, groups: object) -> set[str]:
    """The features with which a copy of the model predicts held-out rows best, at a price of one nat per feature.

    The price is what the best of several useless features gains on the held-out rows at random.
    """
    train, test = split_samples(model, table, labels, 3, groups=groups)[0]
    copy, test = refit(model, table, labels, train, groups=groups), test[:MOST_JUDGED]
    loss = marginal_loss(cast("DensityClassifier", copy), table.iloc[test], labels[test])
    order, losses = forward_selection(loss, table.shape[1], table.shape[1])
    size = int(np.argmin(np.array(losses) + np.arange(len(losses)) / len(test))) + 1
    return {str(table.columns[j]) for j in order[:size]}
