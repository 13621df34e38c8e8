"""Data sets of the benchmark of the defaults: measured ones, divided in data_sets.toml, and generators."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets as bundled
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, train_test_split

from mixtura import datasets

DIVISION = Path(__file__).with_name("data_sets.toml")
CLASS, CATEGORY, GROUP = "class", ":category", ":group"  # of columns of exported files
N_FOLDS = 5
MOST_ROWS = 3000  # a random part of larger sets is taken
SMALLEST_CLASS = 10  # rarer classes are left out, so that every fold has some samples of each class
Labeled = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class DataSet:
    """Rows with numeric and categorical columns, class numbers, and groups that folds do not divide."""

    name: str
    X: pd.DataFrame
    y: np.ndarray
    groups: np.ndarray | None = None

    @property
    def categories(self) -> list[str]:
        """Names of the categorical columns."""
        return [name for name in self.X if self.X[name].dtype == "category"]

    def folds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions of training and test rows of every fold."""
        splitter = StratifiedKFold if self.groups is None else StratifiedGroupKFold
        return splitter(N_FOLDS, shuffle=True, random_state=0).split(self.X, self.y, self.groups)


# ---- measured --------------------------------------------------------------------------------------------------------


@cache
def division() -> dict[str, list[dict[str, Any]]]:
    """Entries of the development and of the evaluation sets."""
    return tomllib.loads(DIVISION.read_text("utf-8"))


def load(name: str) -> DataSet:
    """A measured set, from the folder that MIXTURA_BENCHMARKS names."""
    path = Path(os.environ.get("MIXTURA_BENCHMARKS", "")) / f"{name}.csv"
    header = pd.read_csv(path, nrows=0).columns
    text = {column: str for column in header if column.endswith((CATEGORY, GROUP)) or column == CLASS}
    table = pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])  # "NA" may be a category
    frequent = table[CLASS].map(table[CLASS].value_counts()) >= SMALLEST_CLASS
    table = table[frequent]
    if len(table) > MOST_ROWS:
        table, _ = train_test_split(table, train_size=MOST_ROWS, stratify=table[CLASS], random_state=0)
        frequent = table[CLASS].map(table[CLASS].value_counts()) >= SMALLEST_CLASS
        table = table[frequent]
    y = np.unique(table[CLASS], return_inverse=True)[1]
    groups = [table.pop(column).to_numpy() for column in header if column.endswith(GROUP)]
    X = table.drop(columns=CLASS).reset_index(drop=True)
    X = X.astype({c: "category" if c.endswith(CATEGORY) else float for c in X})
    X.columns = [c.removesuffix(CATEGORY) for c in X]
    return DataSet(name, X, y, groups[0] if groups else None)


def names_of(part: str) -> tuple[list[str], list[str]]:
    """Names of the sets of a part that are there, and of those that are absent."""
    if part == "generators":
        return [f"{name} {n}" for name in GENERATORS for n in N_GENERATED], []
    there: dict[bool, list[str]] = {True: [], False: []}
    for entry in division()[part]:
        path = Path(os.environ.get("MIXTURA_BENCHMARKS", "")) / f"{entry['name']}.csv"
        there[path.exists()].append(entry["name"])
    return there[True], there[False]


def development_sets() -> Iterator[tuple[str, pd.DataFrame, np.ndarray, list[str]]]:
    """Name, rows, class numbers and names of the categorical columns of every development set."""
    for name in names_of("development")[0]:
        data = load(name)
        yield name, data.X, data.y, data.categories


# ---- missing values --------------------------------------------------------------------------------------------------


def remove(X: pd.DataFrame, mechanism: str, share: float, seed: int, y: np.ndarray | None = None) -> pd.DataFrame:
    """Rows with a share of their values removed.

    "random": every value with the same probability. "at random": with probability u ** (1 / share - 1) where u is the
    rank of the row, from 0 to 1, in a column that loses nothing, the one with the most values; the columns take turns
    in which end of it loses more. "informative": with the rank of the value itself in its column. Ranks of categories
    are those of their frequencies. "by class": every column loses values of every class with a probability of its own,
    from 0 to twice the share.
    """
    rng = np.random.default_rng(seed)
    draws = rng.random(X.shape)
    if mechanism == "random":
        return X.mask(draws < share)
    if mechanism == "by class":
        assert y is not None
        return X.mask(draws < 2 * share * rng.random((y.max() + 1, X.shape[1]))[y])
    ranks = np.column_stack([_ranks(X[name], rng) for name in X])
    falling = rng.random(X.shape[1]) < 0.5
    kept = np.zeros(X.shape[1], bool)
    if mechanism == "at random":
        driver = int(np.argmax(X.nunique() - len(X) * X.isna().any()))
        ranks = np.repeat(ranks[:, [driver]], X.shape[1], 1)
        kept[driver] = X.shape[1] > 1
    ranks = np.where(falling, 1 - ranks, ranks)
    return X.mask((draws < ranks ** (1 / share - 1)) & ~kept)


def _ranks(column: pd.Series, rng: np.random.Generator) -> np.ndarray:
    """Ranks from 0 to 1, ties in random order; missing values have random ranks."""
    values = column.map(column.value_counts()).astype(float) if column.dtype == "category" else column
    order = np.lexsort((rng.random(len(values)), values.fillna(values.median())))
    ranks = np.empty(len(values))
    ranks[order] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks


# ---- generators: one thing that is hard in each ----------------------------------------------------------------------


def correlated(seed: int, n_samples: int = 2000) -> Labeled:
    """12 strongly correlated features; the classes differ along directions of small variance."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n_samples)
    factors = rng.normal(size=(n_samples, 3)) @ rng.normal(size=(3, 12)) * 3
    return factors + rng.normal(size=(n_samples, 12)) * 0.5 + 0.4 * rng.normal(size=(3, 12))[y], y


def skewed(seed: int, n_samples: int = 2000) -> Labeled:
    """8 log-normal features whose logarithms have class means and correlations."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n_samples)
    mixing = np.eye(8) + 0.4 * rng.normal(size=(8, 8))
    return np.exp(rng.normal(size=(n_samples, 8)) @ mixing + 0.7 * rng.normal(size=(2, 8))[y]), y


def clusters(seed: int, n_samples: int = 2000) -> Labeled:
    """4 classes of 10 round clusters each in 6 dimensions."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(40, 6))
    component = rng.integers(40, size=n_samples)
    return centres[component] + rng.normal(size=(n_samples, 6)), component % 4


def noise(seed: int, n_samples: int = 2000) -> Labeled:
    """4 informative features of 24."""
    X, y = bundled.make_classification(
        n_samples, 24, n_informative=4, n_redundant=2, n_clusters_per_class=2, flip_y=0.05, random_state=seed
    )
    return X, y


def moons(seed: int, n_samples: int = 2000) -> Labeled:
    """Two moons, and 4 features without information."""
    X, y = bundled.make_moons(n_samples, noise=0.25, random_state=seed)
    return np.hstack((X, np.random.default_rng(seed).normal(size=(n_samples, 4)))), y


def copies(seed: int, n_samples: int = 2000) -> Labeled:
    """20 noisy copies of 4 numbers, with heavy tails: dependence that Gaussians exaggerate."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n_samples)
    hidden = rng.normal(size=(n_samples, 4)) + np.array([1.0, 0.6, 0.3, 0.0]) * y[:, None]
    return np.repeat(hidden, 5, 1) + 0.7 * rng.standard_t(3, size=(n_samples, 20)), y


def levels(seed: int, n_samples: int = 2000) -> Labeled:
    """10 ordinal features of 5 levels with an interaction: far from Gaussian."""
    rng = np.random.default_rng(seed)
    X = rng.integers(5, size=(n_samples, 10)).astype(float)
    score = 0.8 * (X[:, 0] - 2) + 0.6 * (X[:, 1] - 2) * (X[:, 2] - 2) + 0.5 * (X[:, 3] > 2)
    return X, (score + rng.logistic(size=n_samples) > 0).astype(int)


GENERATORS: dict[str, Callable[[int], Labeled]] = {
    "ripley": lambda seed: datasets.make_ripley(1000, random_state=seed),
    "rings": lambda seed: datasets.make_rings(700, random_state=seed),
    "correlated": correlated,
    "skewed": skewed,
    "clusters": clusters,
    "noise": noise,
    "moons": moons,
    "copies": copies,
    "levels": levels,
}
N_GENERATED = (50, 200, 1000)  # training samples; the sizes of one generator are one set in standard errors


def generate(name: str, n_train: int, seed: int) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    """Training and test rows and class numbers of a generator; every seed draws another distribution."""
    X, y = GENERATORS[name](seed)
    frame, y = pd.DataFrame(X), np.unique(y, return_inverse=True)[1]
    train, test = train_test_split(np.arange(len(y)), train_size=n_train, stratify=y, random_state=seed)
    return frame.iloc[train], y[train], frame.iloc[test[:1000]], y[test[:1000]]
