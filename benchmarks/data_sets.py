"""Data sets of the benchmark of defaults: scikit-learn's, published ones in their training sizes, and generators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from sklearn import datasets as bundled
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from mixtura import datasets
from reproduce.data import load

MOST_TEST_SAMPLES = 1000
N_FOLDS = 5  # of exported data sets
Labeled = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Split:
    """Training and test samples."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def stratified(X: np.ndarray, y: np.ndarray, n_train: int, seed: int) -> Split:
    """A random split with the same class shares in both parts, and at most MOST_TEST_SAMPLES test samples."""
    n_test = min(len(X) - n_train, MOST_TEST_SAMPLES)
    splitter = StratifiedShuffleSplit(1, train_size=n_train, test_size=n_test, random_state=seed)
    train, test = next(splitter.split(X, y))
    return Split(X[train], y[train], X[test], y[test])


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
BUNDLED: dict[str, Callable[..., Labeled]] = {
    "iris": bundled.load_iris,
    "wine": bundled.load_wine,
    "breast cancer": bundled.load_breast_cancer,
    "digits": bundled.load_digits,
}
RATSCH = ("banana", "breast_cancer", "german", "image", "titanic", "waveform")


def _bundled(name: str) -> Callable[[int], Split]:
    def split(seed: int) -> Split:
        X, y = BUNDLED[name](return_X_y=True)
        return stratified(X, y, len(X) // 2, seed)

    return split


def _ratsch(name: str) -> Callable[[int], Split]:
    def split(seed: int) -> Split:
        data = load(f"ratsch_{name}")
        train, test = data.train[seed % len(data.train)], data.test[seed % len(data.test)][:MOST_TEST_SAMPLES]
        return Split(data.X[train], data.y[train], data.X[test], data.y[test])

    return split


def _published(name: str, n_train: int | None) -> Callable[[int], Split]:
    def split(seed: int) -> Split:
        data = load(name)
        rng = np.random.default_rng(seed)
        X, y = _flat(data.X_train), data.y_train
        X_test, y_test = _flat(data.X_test), data.y_test
        if n_train is not None:
            part = stratified(X, y, n_train, seed)
            X, y = part.X_train, part.y_train
        test = rng.permutation(len(X_test))[:MOST_TEST_SAMPLES]
        return Split(X, y, X_test[test], y_test[test])

    return split


def _flat(X: np.ndarray) -> np.ndarray:
    return np.asarray(X, dtype=float).reshape(len(X), -1)


def _vowels(seed: int) -> Split:
    data = load("peterson_barney")
    speakers = np.random.default_rng(seed).permutation(np.unique(data.speaker))
    train = np.isin(data.speaker, speakers[:50])
    return Split(data.X[train], data.y[train], data.X[~train], data.y[~train])


def _bupa(seed: int) -> Split:
    data = load("bupa")
    return stratified(data.X, data.y, 230, seed)


def _generated(name: str, n_train: int) -> Callable[[int], Split]:
    return lambda seed: stratified(*GENERATORS[name](seed), n_train, seed)


@lru_cache(maxsize=1)
def splits() -> dict[str, Callable[[int], Split]]:
    """Name -> a function from a seed to a split; the first five numbers of training samples are published ones."""
    makers: dict[str, Callable[[int], Split]] = {name: _bundled(name) for name in BUNDLED}
    makers |= {f"ratsch {name}": _ratsch(name) for name in RATSCH}
    makers |= {"pima": _published("pima", None), "synth": _published("ripley", None)}
    makers |= {"bupa": _bupa, "vowels": _vowels, "usps": _published("usps", 1000)}
    for name in GENERATORS:
        for n_train in (50, 200, 1000):
            makers[f"{name} {n_train}"] = _generated(name, n_train)
    return makers


@lru_cache(maxsize=1)
def exported(folder: str) -> dict[str, Callable[[int], Split]]:
    """Data sets that export_r.R has written into a folder; the seed is the number of the fold that is the test set."""
    return {path.stem: _folds_of(path) for path in sorted(Path(folder).glob("*.csv"))}


def _folds_of(path: Path) -> Callable[[int], Split]:
    def split(seed: int) -> Split:
        table = np.genfromtxt(path, delimiter=",", skip_header=1)
        X, y = table[:, :-1], table[:, -1].astype(int)
        folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
        train, test = list(folds.split(X, y))[seed % N_FOLDS]
        return Split(X[train], y[train], X[test], y[test])

    return split
