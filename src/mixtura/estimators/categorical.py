"""Encoding of categorical features of frames and arrays as indicator columns, and decoding."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, cast

import numpy as np
from torch import Tensor

from mixtura import checks
from mixtura.estimators.frames import as_numbers, columns_of, is_missing, is_pandas, is_table, plain
from mixtura.files.registry import storable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

# Types of the columns of a frame that hold categories.
CATEGORIES = ("category", "categorical", "enum", "dictionary", "string", "large_string", "str", "object", "bool")


def check_encoding(encoding: Encoding) -> None:
    """Raise a ValueError unless positions and categories belong together."""
    positions, categories = encoding.categorical, encoding.categories
    whole = all(type(j) is int and 0 <= j < encoding.n_features for j in positions)
    if not whole or list(positions) != sorted(set(positions)) or len(positions) != len(categories):
        raise ValueError("the positions of categorical features are not increasing, one for each list of categories")
    for values in categories:
        if not isinstance(values, np.ndarray) or values.ndim != 1 or not len(values):
            raise ValueError("the categories of a feature are not a list")
        if len(set(values.tolist())) < len(values):
            raise ValueError("a categorical feature has a category twice")
    if not set(encoding.ordered) <= set(range(len(positions))):
        raise ValueError("a feature with ordered categories is not one of the categorical features")


@storable("encoding", check=check_encoding)
@dataclass(frozen=True)
class Encoding:
    """Which features are categorical, and their categories.

    Encoded samples have the numeric features first, then one indicator column for every category.

    Parameters
    ----------
    n_features : int
    categorical : tuple of int
        Positions of the categorical features.
    categories : tuple of ndarray
        The categories of each of them, sorted, or in the order that a data frame gives.
    ordered : tuple of int, default=()
        Positions, among the categorical features, of those whose categories have an order.
    """

    n_features: int
    categorical: tuple[int, ...]
    categories: tuple[np.ndarray, ...]
    ordered: tuple[int, ...] = ()

    @property
    def numeric(self) -> list[int]:
        return [j for j in range(self.n_features) if j not in self.categorical]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.categories)

    @property
    def labels(self) -> dict[int, list[Hashable]]:
        """The categories of each categorical feature, by its position."""
        return {j: values.tolist() for j, values in zip(self.categorical, self.categories, strict=True)}

    @property
    def n_columns(self) -> int:
        return len(self.numeric) + sum(self.sizes)

    @property
    def feature_of(self) -> np.ndarray:
        """The feature that each encoded column belongs to, (n_columns,)."""
        return np.concatenate((self.numeric, np.repeat(self.categorical, self.sizes))).astype(np.int64)

    def encode(self, X: object) -> np.ndarray:
        """Samples as numbers; NaN in all indicators of a missing or unknown category."""
        columns = columns_of(X)
        parts = [np.asarray(as_numbers(columns[j]), dtype=float)[:, None] for j in self.numeric]
        for j, values in zip(self.categorical, self.categories, strict=True):
            places = {value: place for place, value in enumerate(values.tolist())}
            numbers = numbers_of(columns[j], places)
            indicators = np.where(numbers[:, None] < 0, np.nan, numbers[:, None] == np.arange(len(values)))
            parts.append(indicators)
        return np.concatenate(parts, 1)

    def decode(self, rows: np.ndarray) -> dict[int, np.ndarray]:
        """The features of encoded samples, by position; the category is the one with the largest value."""
        columns: dict[int, np.ndarray] = {j: rows[:, place] for place, j in enumerate(self.numeric)}
        first = len(self.numeric)
        for j, values in zip(self.categorical, self.categories, strict=True):
            columns[j] = values[rows[:, first : first + len(values)].argmax(1)]
            first += len(values)
        return columns

    def numbered(self, rows: np.ndarray) -> np.ndarray:
        """Encoded samples with one column per feature: numbers of categories in place of indicators."""
        features = np.full((len(rows), self.n_features), np.nan)
        features[:, self.numeric] = rows[:, : len(self.numeric)]
        for j in self.categorical:
            indicators = rows[:, self.feature_of == j]
            numbers = np.nan_to_num(indicators).argmax(1)
            features[:, j] = np.where(np.isnan(indicators).all(1), np.nan, numbers)
        return features


@dataclass(frozen=True)
class FoundCategories:
    """The categories in some of the samples, by the position of their feature. Instances add.

    `values` are those that occur, `orders` all of the features whose categories have an order, and `numbers` the
    positions of other features with an observed value.
    """

    n_features: int
    values: Mapping[int, np.ndarray]
    orders: Mapping[int, Sequence[Hashable]]
    numbers: frozenset[int] = frozenset()

    def __add__(self, other: FoundCategories) -> FoundCategories:
        checks.same_size("n_features", other.n_features, self.n_features)
        values = dict(self.values)
        for position, more in other.values.items():
            parts = [part for part in (values.get(position), more) if part is not None and len(part)]
            values[position] = checks.distinct(np.concatenate(parts)) if parts else more
        orders = {j: order for j, order in self.orders.items() if order == other.orders.get(j, order)}
        return FoundCategories(self.n_features, values, {**other.orders, **orders}, self.numbers | other.numbers)

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of these categories; None if no feature is categorical."""
        positions = sorted(self.values)
        if self.numbers & set(positions):
            raise ValueError(
                f"Feature {min(self.numbers & set(positions))} holds text or categories in some batches and numbers in "
                "others. Name it in categorical_features, or give it the same type in every batch."
            )
        for position in positions:
            if not len(self.values[position]):
                raise ValueError(f"Feature {position} is categorical and has no observed value; leave it out.")
        categories = [self.values[position] for position in positions]
        for place, position in enumerate(positions):
            if position in self.orders:
                order, present = self.orders[position], set(categories[place].tolist())
                categories[place] = np.array([plain(value) for value in order if plain(value) in present])
        ordered = tuple(place for place, position in enumerate(positions) if position in self.orders)
        return Encoding(self.n_features, tuple(positions), tuple(categories), ordered) if positions else None


def find_encoding(X: object, wanted: object) -> Encoding | None:
    """Find the encoding of samples; None if no feature is categorical.

    Parameters
    ----------
    X : array-like
    wanted : "from_dtype", None, or array-like
        As `categorical_features` of scikit-learn's HistGradientBoostingClassifier.
    """
    known = find_categories(X, wanted)
    return None if known is None else known.encoding


def find_categories(X: object, wanted: object, is_part: bool = False) -> FoundCategories | None:
    """Find the categories of samples, or of a part of them; None if features are not to be categorical."""
    frame = X if is_table(X) else None
    names = None if frame is None else list(frame.columns)
    if names is not None:
        checks.distinct_columns(names)
    if (
        wanted is None
        or isinstance(X, Tensor)
        or (names is None and (isinstance(wanted, str) or len(checks.shape_of(X)) != 2))
    ):
        return None
    n_features = len(names) if names is not None else checks.shape_of(X)[1]
    if isinstance(wanted, str):
        assert frame is not None
        assert names is not None
        positions = [j for j, kind in enumerate(frame.dtypes) if str(kind).lower().startswith(CATEGORIES)]
        positions = [j for j in positions if holds_text(frame, names[j])]
    else:
        positions = find_positions(wanted, names, n_features)
    if not positions and not is_part:
        return None
    columns = columns_of(X)
    orders = (
        {} if frame is None else {j: order_of(frame[name]) for j, name in enumerate(frame.columns) if j in positions}
    )
    values = {j: categories_of(columns[j]) for j in positions}
    others = [j for j in range(n_features) if j not in positions] if is_part else []
    numbers = frozenset(j for j in others if not all(map(is_missing, np.asarray(columns[j], dtype=object))))
    return FoundCategories(n_features, values, {j: o for j, o in orders.items() if o is not None}, numbers)


def numbers_of(column: object, places: Mapping[Hashable, int]) -> np.ndarray:
    """The numbers of the categories of a column; -1 for a missing or unknown one."""
    if is_categorical(column):
        numbers = [places.get(plain(value), -1) for value in column.cat.categories]
        return np.array([*numbers, -1])[np.asarray(column.cat.codes)]
    values = np.asarray(column, dtype=object)
    return np.array([-1 if is_missing(value) else places.get(plain(value), -1) for value in values])


def holds_text(X: pl.DataFrame, name: str) -> bool:
    """Whether a column holds categories; a column of objects may hold only numbers and missing values."""
    column = X[name]
    if not str(column.dtype).lower().startswith("object"):
        return True
    return any(isinstance(value, str | bool | np.bool_) for value in np.asarray(column, dtype=object))


def order_of(column: pl.Series) -> list[Hashable] | None:
    """The categories of an ordered column of pandas, or of an Enum of polars; None if they have no order."""
    if is_categorical(column):
        return list(column.cat.categories) if column.cat.ordered else None
    return cast("pl.Enum", column.dtype).categories.to_list() if str(column.dtype).startswith("Enum") else None


def find_positions(wanted: object, names: list[str] | None, n_features: int) -> list[int]:
    """Positions of features given by a mask, positions or names."""
    values = np.asarray(wanted)
    if values.dtype == bool:
        if values.shape != (n_features,):
            raise ValueError(
                f"categorical_features is a mask of shape {values.shape}, but X has {n_features} features; pass one "
                "value per feature."
            )
        return np.flatnonzero(values).tolist()
    positions = [names.index(v) if names is not None and v in names else v for v in values.tolist()]
    wrong = [v for v in positions if not isinstance(v, int) or not 0 <= v < n_features]
    if wrong:
        raise ValueError(f"categorical_features names {wrong[0]!r}, which is not a feature of X.")
    return sorted(set(positions))


def categories_of(column: object) -> np.ndarray:
    """The different values of a column, sorted."""
    if is_categorical(column):
        column = column.cat.categories[np.unique(column.cat.codes[column.cat.codes >= 0])]
    values = [plain(value) for value in np.asarray(column, dtype=object) if not is_missing(value)]
    return checks.distinct(np.array(values)) if values else np.empty(0, dtype=object)


def is_categorical(column: object) -> TypeGuard[pd.Series]:
    """Whether this is a column of categories of pandas."""
    return str(getattr(column, "dtype", "")) == "category"


def frame_of(X: object, columns: dict[int, np.ndarray]) -> pd.DataFrame | np.ndarray:
    """Features by position as a frame like X, or as an array of objects."""
    ordered = [columns[j] for j in range(len(columns))]
    if is_pandas(X):
        frame = X.copy()
        for name, values in zip(X.columns, ordered, strict=True):
            whole = X[name].astype(object)
            filled = whole.where(whole.notna().to_numpy(), values)
            frame[name] = filled.astype(X[name].dtype) if str(X[name].dtype) == "category" else filled.infer_objects()
        return frame
    return np.stack([np.asarray(values, dtype=object) for values in ordered], 1)
