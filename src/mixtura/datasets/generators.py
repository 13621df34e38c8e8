"""Generators of synthetic samples, and the one real table that ships with the package."""

from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

Seed = int | np.random.Generator | np.random.RandomState | None
Labeled = tuple[np.ndarray, np.ndarray]

RIPLEY_MEANS = np.array([[[-0.7, 0.3], [0.3, 0.3]], [[-0.3, 0.7], [0.4, 0.7]]])  # (classes, components, D)
RIPLEY_VARIANCE = 0.03


def make_ripley(n_per_class: int = 125, random_state: Seed = None) -> Labeled:
    """Generate Ripley's two-class problem: each class is an equal mixture of two Gaussians with covariance 0.03 I.

    The Bayes error is 8.9 %. (The 8.0 % often quoted is the error of the Bayes rule on the 1000 published test
    samples, see `load_ripley`.)

    Parameters
    ----------
    n_per_class : int, default=125
        Number of samples per class.
    random_state : int, Generator, RandomState or None, default=None
        Seed or generator; pass an int for reproducible samples.

    Returns
    -------
    X : ndarray of shape (2 * n_per_class, 2)
    y : ndarray of shape (2 * n_per_class,)
        Classes 0 and 1.

    Examples
    --------
    >>> X, y = make_ripley(125, random_state=0)
    >>> X.shape, np.bincount(y).tolist()
    ((250, 2), [125, 125])
    """
    _check_count(n_per_class, "n_per_class")
    generator = _generator(random_state)
    return _mixture_rows(RIPLEY_MEANS, np.sqrt(RIPLEY_VARIANCE) * np.eye(2), n_per_class, generator)


def make_waveform(n_rows: int = 300, n_noise: int = 0, random_state: Seed = None) -> Labeled:
    """Generate Breiman's waveforms: three classes, 21 features, then `n_noise` features of standard normal noise.

    With triangles h_1, h_2, h_3 of height 6 at features 11, 15 and 7, a sample of class c is
    u h_i + (1 - u) h_j + e, where u is uniform on (0, 1), e is standard normal and (i, j) = (1, 2), (1, 3), (2, 3)
    for c = 0, 1, 2. The Bayes error is about 14 % [1]_.

    Parameters
    ----------
    n_rows : int, default=300
        Number of samples.
    n_noise : int, default=0
        Number of noise features; 19 gives the version with 40 features.
    random_state : int, Generator, RandomState or None, default=None
        Seed or generator; pass an int for reproducible samples.

    Returns
    -------
    X : ndarray of shape (n_rows, 21 + n_noise)
    y : ndarray of shape (n_rows,)
        Classes 0, 1 and 2.

    References
    ----------
    .. [1] Breiman, Friedman, Olshen and Stone (1984). Classification and regression trees. Wadsworth.

    Examples
    --------
    >>> X, y = make_waveform(400, n_noise=19, random_state=0)
    >>> X.shape, np.unique(y).tolist()
    ((400, 40), [0, 1, 2])
    """
    _check_count(n_rows, "n_rows")
    _check_count(n_noise, "n_noise", least=0)
    generator = _generator(random_state)
    pairs = _waveform_pairs()
    y = generator.integers(3, size=n_rows)
    u = generator.uniform(size=(n_rows, 1))
    signal = u * pairs[y, 0] + (1 - u) * pairs[y, 1]  # (N, 21)
    X = generator.standard_normal((n_rows, 21 + n_noise))
    X[:, :21] += signal
    return X, y


def make_checkerboard(
    n_per_component: int = 20, n_cells: int = 4, scale: float = 0.125, random_state: Seed = None
) -> Labeled:
    """Generate two classes in the colours of a checkerboard, with a spherical Gaussian at the centre of each cell.

    The board is the square from -1 to 1. The defaults give the training set of Hayashi and Uchida (2021, appendix B);
    their test set has 100 samples per component.

    Parameters
    ----------
    n_per_component : int, default=20
        Number of samples per cell of the board.
    n_cells : int, default=4
        Number of cells along each side of the board.
    scale : float, default=0.125
        Standard deviation of each Gaussian.
    random_state : int, Generator, RandomState or None, default=None
        Seed or generator; pass an int for reproducible samples.

    Returns
    -------
    X : ndarray of shape (n_per_component * n_cells**2, 2)
    y : ndarray of shape (n_per_component * n_cells**2,)
        Classes 0 and 1.

    Examples
    --------
    >>> X, y = make_checkerboard(20, random_state=0)
    >>> X.shape, np.bincount(y).tolist()
    ((320, 2), [160, 160])
    """
    _check_count(n_per_component, "n_per_component")
    _check_count(n_cells, "n_cells", least=2)
    _check_positive(scale, "scale")
    generator = _generator(random_state)
    cells = np.repeat(np.indices((n_cells, n_cells)).reshape(2, -1).T, n_per_component, axis=0)  # (N, 2)
    X = (2 * cells + 1) / n_cells - 1 + scale * generator.standard_normal(cells.shape)
    return _in_random_order(X, cells.sum(axis=1) % 2, generator)


def make_rings(
    n_per_class: int = 100,
    n_classes: int = 2,
    n_blobs: int = 4,
    radii: float | tuple[float, ...] = 1.0,
    scale: float = 0.25,
    random_state: Seed = None,
) -> Labeled:
    """Generate classes on circles: each is an equal mixture of `n_blobs` spherical Gaussians on a circle about 0.

    The blobs of the classes alternate: blob b of class c is at angle 2 pi (b C + c) / (n_blobs C). Ormoneit and Tresp
    (1995) show such a problem without its parameters. The defaults are about as difficult: the Bayes accuracy is 87 %
    (their mixtures reach 81 to 84 % on theirs).

    Parameters
    ----------
    n_per_class : int, default=100
        Number of samples per class.
    n_classes : int, default=2
        Number of classes.
    n_blobs : int, default=4
        Number of Gaussians per class.
    radii : float or tuple of float, default=1.0
        Radius of the circle; a tuple has one radius per class, which gives concentric rings.
    scale : float, default=0.25
        Standard deviation of each Gaussian.
    random_state : int, Generator, RandomState or None, default=None
        Seed or generator; pass an int for reproducible samples.

    Returns
    -------
    X : ndarray of shape (n_per_class * n_classes, 2)
    y : ndarray of shape (n_per_class * n_classes,)
        Classes 0, 1, ...

    Examples
    --------
    >>> X, y = make_rings(100, random_state=0)
    >>> X.shape, np.bincount(y).tolist()
    ((200, 2), [100, 100])
    """
    for value, name in [(n_per_class, "n_per_class"), (n_classes, "n_classes"), (n_blobs, "n_blobs")]:
        _check_count(value, name)
    _check_positive(scale, "scale")
    radius = _check_radii(radii, n_classes)[:, None, None]  # (C, 1, 1)
    turns = (np.arange(n_blobs) * n_classes + np.arange(n_classes)[:, None]) / (n_blobs * n_classes)
    angles = 2 * np.pi * turns  # (C, blobs)
    means = radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)  # (C, blobs, 2)
    return _mixture_rows(means, scale * np.eye(2), n_per_class, _generator(random_state))


def make_anisotropic(
    n_per_class: int = 150,
    n_classes: int = 2,
    n_clusters: int = 2,
    n_features: int = 2,
    elongation: float = 10.0,
    spread: float = 4.0,
    random_state: Seed = None,
) -> Labeled:
    """Generate classes of elongated clusters with random orientations.

    A cluster has standard deviations from 1 down to 1 / `elongation`, in a geometric sequence, along random axes. Its
    mean is drawn from a normal distribution with standard deviation `spread`. For clustering, use `n_clusters=1`: then
    `y` is the cluster.

    Parameters
    ----------
    n_per_class : int, default=150
        Number of samples per class.
    n_classes : int, default=2
        Number of classes.
    n_clusters : int, default=2
        Number of clusters per class.
    n_features : int, default=2
        Number of features, at least 2.
    elongation : float, default=10.0
        Ratio of the largest to the smallest standard deviation of a cluster, at least 1.
    spread : float, default=4.0
        Standard deviation of the means of the clusters.
    random_state : int, Generator, RandomState or None, default=None
        Seed or generator; pass an int for reproducible samples.

    Returns
    -------
    X : ndarray of shape (n_per_class * n_classes, n_features)
    y : ndarray of shape (n_per_class * n_classes,)
        Classes 0, 1, ...

    Examples
    --------
    >>> X, y = make_anisotropic(100, n_classes=3, n_features=5, random_state=0)
    >>> X.shape, np.bincount(y).tolist()
    ((300, 5), [100, 100, 100])
    """
    for value, name in [(n_per_class, "n_per_class"), (n_classes, "n_classes"), (n_clusters, "n_clusters")]:
        _check_count(value, name)
    _check_count(n_features, "n_features", least=2)
    _check_positive(elongation, "elongation", least=1.0)
    _check_positive(spread, "spread")
    generator = _generator(random_state)
    means = spread * generator.standard_normal((n_classes, n_clusters, n_features))
    axes = _random_axes((n_classes, n_clusters), n_features, generator)  # (C, clusters, D, D), axes in columns
    scales = np.geomspace(1.0, 1.0 / elongation, n_features)
    return _mixture_rows(means, axes * scales, n_per_class, generator)


def remove_values(X: np.ndarray, fraction: float, random_state: Seed = None) -> np.ndarray:
    """Set a random fraction of the values of X to NaN (missing completely at random).

    Every value is equally likely to be removed, so a sample or a feature may lose all of its values.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Numbers.
    fraction : float
        Fraction of values to remove, from 0 to 1; `round(fraction * X.size)` values are removed.
    random_state : int, Generator, RandomState or None, default=None
        Seed or generator; pass an int for reproducible results.

    Returns
    -------
    X_missing : ndarray of shape (n_samples, n_features)
        A copy of X, of floating point.

    Examples
    --------
    >>> remove_values(np.arange(6).reshape(2, 3), 0.5, random_state=1)
    array([[ 0., nan, nan],
           [ 3., nan,  5.]])
    """
    if not isinstance(fraction, Real) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise ValueError(
            f"fraction must be a number from 0 to 1; got {fraction!r}. Pass 0.3 to remove 30 % of the values."
        )
    X = _float_copy(X)
    positions = _generator(random_state).choice(X.size, round(fraction * X.size), replace=False)
    X.flat[positions] = np.nan
    return X


def _mixture_rows(means: np.ndarray, factors: np.ndarray, n_per_class: int, generator: np.random.Generator) -> Labeled:
    """Draw `n_per_class` rows of every class, an equal mixture of N(mean, factor factor') over its components.

    `means` is (C, components, D); `factors` is (..., D, D), one for all components or one for each.
    """
    n_classes, n_components, n_features = means.shape
    y = np.repeat(np.arange(n_classes), n_per_class)
    component = generator.integers(n_components, size=y.size)
    noise = generator.standard_normal((y.size, n_features, 1))
    factors = np.broadcast_to(factors, (n_classes, n_components, n_features, n_features))
    X = means[y, component] + (factors[y, component] @ noise)[..., 0]  # (N, D)
    return _in_random_order(X, y, generator)


def _in_random_order(X: np.ndarray, y: np.ndarray, generator: np.random.Generator) -> Labeled:
    order = generator.permutation(y.size)
    return X[order], y[order]


def _waveform_pairs() -> np.ndarray:
    """The two waves that each class mixes, (3 classes, 2, 21 features)."""
    attributes = np.arange(1, 22)
    first, second, third = (np.maximum(6.0 - abs(attributes - peak), 0.0) for peak in (11, 15, 7))
    return np.stack([[first, second], [first, third], [second, third]])


def _random_axes(shape: tuple[int, ...], n_features: int, generator: np.random.Generator) -> np.ndarray:
    """Uniformly distributed orthogonal matrices: QR of normal draws, with signs such that R has a positive diagonal."""
    q, r = np.linalg.qr(generator.standard_normal((*shape, n_features, n_features)))
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def _generator(random_state: Seed) -> np.random.Generator:
    if isinstance(random_state, np.random.RandomState):  # draws a seed, so that the next call differs
        return np.random.default_rng(random_state.randint(2**32, size=4, dtype=np.uint32))
    seed_or_generator = random_state is None or isinstance(random_state, Integral | np.random.Generator)
    if not seed_or_generator or (isinstance(random_state, Integral) and random_state < 0):
        raise ValueError(
            "random_state must be None, a non-negative integer, a numpy Generator or a numpy RandomState; "
            f"got {random_state!r}. Pass an integer such as 0 for reproducible samples."
        )
    return np.random.default_rng(random_state)


def _check_count(value: int, name: str, least: int = 1) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}. Pass {name}={least} or more.")


def _check_positive(value: float, name: str, least: float = 0.0) -> None:
    """Check that a number is finite, and above 0 or at least a positive `least`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not np.isfinite(value) or value <= 0 or value < least:
        wanted = f"of at least {least:g}" if least else "above 0"
        raise ValueError(f"{name} must be a finite number {wanted}; got {value!r}. Pass {name}=1.0, for example.")


def _check_radii(radii: float | tuple[float, ...], n_classes: int) -> np.ndarray:
    each = np.ravel(np.asarray(radii, dtype=object))
    for radius in each:
        _check_positive(radius, "radii")
    if each.size not in (1, n_classes):
        raise ValueError(
            f"radii must be one number or one per class; got {each.size} for n_classes={n_classes}. "
            f"Pass one radius, or {n_classes}."
        )
    return np.broadcast_to(each.astype(float), (n_classes,))


def _float_copy(X: np.ndarray) -> np.ndarray:
    kind = np.asarray(X).dtype
    try:
        return np.array(X, dtype=kind if kind.kind == "f" else np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"X must hold numbers, since missing values are NaN; got dtype {kind}. Encode categories as numbers first."
        ) from error


def load_penguins() -> tuple[Any, Any]:
    """Load the Palmer penguins: 344 penguins of three species, with two categorical features and missing values.

    Returns
    -------
    X : pandas data frame of shape (344, 7)
        island, bill_length_mm, bill_depth_mm, flipper_length_mm, body_mass_g, sex and year.
    y : pandas series of shape (344,)
        The species: Adelie, Chinstrap or Gentoo.

    References
    ----------
    Gorman, Williams and Fraser (2014), PLoS ONE 9(3): e90081; Horst, Hill and Gorman (2020), palmerpenguins (CC0).

    Examples
    --------
    >>> from mixtura.datasets import load_penguins
    >>> X, y = load_penguins()
    >>> X.shape, sorted(y.unique())
    ((344, 7), ['Adelie', 'Chinstrap', 'Gentoo'])
    """
    try:
        import pandas as pd
    except ImportError as error:
        text = "`load_penguins` returns a pandas data frame; install pandas with: pip install 'mixtura[cli]'"
        raise ModuleNotFoundError(text, name="pandas") from error
    table = pd.read_csv(Path(__file__).with_name("penguins.csv"), dtype={"island": "category", "sex": "category"})
    return table.drop(columns="species"), table["species"]
