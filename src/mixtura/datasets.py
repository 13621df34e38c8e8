"""Data to try mixtures on: generators with known truth, and loaders of published sets.

Generators return `(X, y)`, draw all randomness from `random_state` and give the rows in random order, so the first
rows are a fair sample. To get a training and a test set from one law, draw once and split.

Loaders read one NumPy archive from a folder, `data_home` or the environment variable `MIXTURA_DATA`, and return
a `sklearn.utils.Bunch` of its arrays: `X_train`, `y_train`, `X_test`, `y_test` where a split was published,
`X` and `y` otherwise. Nothing is downloaded and nothing pickled is read.
"""

import os
import zipfile
import zlib
from numbers import Integral, Real
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

__all__ = [
    "load_bupa",
    "load_cbcl_faces",
    "load_fashion_mnist",
    "load_mnist",
    "load_peterson_barney",
    "load_pima",
    "load_ratsch",
    "load_ripley",
    "load_usps",
    "make_anisotropic",
    "make_checkerboard",
    "make_rings",
    "make_ripley",
    "make_waveform",
    "remove_cells",
]

Seed = int | np.random.Generator | np.random.RandomState | None
Labeled = tuple[np.ndarray, np.ndarray]
Home = str | os.PathLike[str] | None

# ---- Generators ------------------------------------------------------------------------------------------------------

RIPLEY_MEANS = np.array([[[-0.7, 0.3], [0.3, 0.3]], [[-0.3, 0.7], [0.4, 0.7]]])  # (classes, components, D)
RIPLEY_VARIANCE = 0.03


def make_ripley(n_per_class: int = 125, random_state: Seed = None) -> Labeled:
    """Rows of Ripley's two-class problem: each class an equal mixture of two round Gaussians of variance 0.03.

    The best possible error is 8.9 %. (The 8.0 % often quoted is the error of the same rule on the 1000 published
    test rows, see `load_ripley`.)

    >>> X, y = make_ripley(125, random_state=0)
    >>> X.shape, np.bincount(y).tolist()
    ((250, 2), [125, 125])
    """
    _check_count(n_per_class, "n_per_class")
    generator = _generator(random_state)
    return _mixture_rows(RIPLEY_MEANS, np.sqrt(RIPLEY_VARIANCE) * np.eye(2), n_per_class, generator)


def make_waveform(n_rows: int = 300, n_noise: int = 0, random_state: Seed = None) -> Labeled:
    """Rows of Breiman's waveforms: three classes, 21 attributes, then `n_noise` columns of standard normal noise.

    With h_1, h_2, h_3 triangles of height 6 at attributes 11, 15 and 7, a row of class c is
    u h_i + (1 - u) h_j + e, u uniform on (0, 1), e standard normal, (i, j) = (1, 2), (1, 3), (2, 3) for c = 0, 1, 2.
    `n_noise=19` gives the 40-attribute version. The best possible error is about 14 % (Breiman et al. 1984).

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
    """Rows of two classes in the colours of a checkerboard: one round Gaussian in the middle of each cell.

    The board is the square from -1 to 1 with `n_cells` cells along each side, and every component has exactly
    `n_per_component` rows and standard deviation `scale`. The defaults are the training set of HU21, appendix B;
    its test set has 100 rows per component.

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
    """Rows of circularly arranged classes: each an equal mixture of `n_blobs` round Gaussians on a circle about 0.

    The blobs of the classes take turns in angle: blob b of class c is at angle 2 pi (b C + c) / (n_blobs C). One
    radius puts all classes on one circle; a tuple of radii, one per class, on rings inside one another. `scale`
    is the standard deviation of a blob.

    OT95 shows such a problem in a figure without its numbers. The defaults have about its difficulty: the best
    possible accuracy is 87 %, where its trained mixtures reach 81 to 84 %.

    >>> X, y = make_rings(100, random_state=0)
    >>> X.shape, np.bincount(y).tolist()
    ((200, 2), [100, 100])
    """
    for value, name in [(n_per_class, "n_per_class"), (n_classes, "n_classes"), (n_blobs, "n_blobs")]:
        _check_count(value, name)
    _check_positive(scale, "scale")
    radius = _checked_radii(radii, n_classes)[:, None, None]  # (C, 1, 1)
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
    """Rows of classes made of elongated clusters, each turned at random.

    A cluster has standard deviations from 1 down to 1 / `elongation`, in equal ratios, along axes drawn at
    random, and its mean is drawn from a normal of standard deviation `spread`. For clustering without classes
    take `n_clusters=1`: then `y` is the cluster.

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


def remove_cells(X: np.ndarray, fraction: float, random_state: Seed = None) -> np.ndarray:
    """A float copy of `X` with `round(fraction * X.size)` of its cells, drawn at random, set to NaN.

    All cells are equally likely, so a row or a column may lose all of its own.

    >>> remove_cells(np.arange(6).reshape(2, 3), 0.5, random_state=1)
    array([[ 0., nan, nan],
           [ 3., nan,  5.]])
    """
    if not isinstance(fraction, Real) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be a number from 0 to 1; got {fraction!r}. Pass 0.3 to remove 30 % of cells.")
    X = _float_copy(X)
    chosen = _generator(random_state).choice(X.size, round(fraction * X.size), replace=False)
    X.flat[chosen] = np.nan
    return X


def _mixture_rows(means: np.ndarray, factors: np.ndarray, n_per_class: int, generator: np.random.Generator) -> Labeled:
    """`n_per_class` rows of every class, an equal mixture of N(mean, factor factor') over its components.

    `means` is (C, components, D) and `factors` (..., D, D), the same for all or one per component.
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
    """The two waves that each class mixes, (3 classes, 2, 21 attributes)."""
    attributes = np.arange(1, 22)
    first, second, third = (np.maximum(6.0 - abs(attributes - peak), 0.0) for peak in (11, 15, 7))
    return np.stack([[first, second], [first, third], [second, third]])


def _random_axes(shape: tuple[int, ...], n_features: int, generator: np.random.Generator) -> np.ndarray:
    """Orthogonal matrices, uniformly distributed: QR of normal draws, with the signs that make R positive."""
    q, r = np.linalg.qr(generator.standard_normal((*shape, n_features, n_features)))
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def _generator(random_state: Seed) -> np.random.Generator:
    if isinstance(random_state, np.random.RandomState):  # draws a seed, so that the next call differs
        return np.random.default_rng(random_state.randint(2**32, size=4, dtype=np.uint32))
    seed_or_generator = random_state is None or isinstance(random_state, Integral | np.random.Generator)
    if not seed_or_generator or (isinstance(random_state, Integral) and random_state < 0):
        raise ValueError(
            "random_state must be None, a non-negative integer, a numpy Generator or a numpy RandomState; "
            f"got {random_state!r}. Pass an integer such as 0 to draw the same rows every time."
        )
    return np.random.default_rng(random_state)


def _check_count(value: int, name: str, least: int = 1) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}. Pass {name}={least} or more.")


def _check_positive(value: float, name: str, least: float = 0.0) -> None:
    """Finite, and above 0 or not below a positive `least`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not np.isfinite(value) or value <= 0 or value < least:
        wanted = f"of at least {least:g}" if least else "above 0"
        raise ValueError(f"{name} must be a finite number {wanted}; got {value!r}. Pass {name}=1.0, for example.")


def _checked_radii(radii: float | tuple[float, ...], n_classes: int) -> np.ndarray:
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
            f"X must hold numbers, since a missing cell is NaN; got dtype {kind}. Encode categories as numbers first."
        ) from error


# ---- Loaders ---------------------------------------------------------------------------------------------------------

SPLIT = ("X_train", "y_train", "X_test", "y_test")

RATSCH_NAMES = (
    "banana",
    "breast_cancer",
    "diabetis",
    "flare_solar",
    "german",
    "heart",
    "image",
    "ringnorm",
    "splice",
    "thyroid",
    "titanic",
    "twonorm",
    "waveform",
)


def load_ripley(data_home: Home = None) -> Bunch:
    """Ripley's (1994) two-class sample, 250 training and 1000 test rows of 2 features, from `ripley.npz`."""
    return _load("ripley", (*SPLIT, "feature_names"), data_home)


def load_pima(data_home: Home = None) -> Bunch:
    """Pima Indians diabetes without missing cells, 200 training and 332 test rows of 7 features, from `pima.npz`."""
    return _load("pima", (*SPLIT, "feature_names"), data_home)


def load_bupa(data_home: Home = None) -> Bunch:
    """BUPA liver disorders, 345 rows of 6 features, from `bupa.npz`.

    `y` in {1, 2} is the field that most of the literature takes for the class; its donors meant it to
    mark training and test rows (McDermott & Forsyth 2016).
    """
    return _load("bupa", ("X", "y", "feature_names"), data_home)


def load_peterson_barney(data_home: Home = None) -> Bunch:
    """Peterson & Barney's (1952) vowels, 1520 rows of F0 to F3 in Hz, 10 classes, from `peterson_barney.npz`.

    `speaker` numbers the 76 speakers; split by it, or the same voice is on both sides.
    """
    wanted = ("X", "y", "speaker", "speaker_type", "sex", "repetition", "feature_names", "class_names")
    return _load("peterson_barney", wanted, data_home)


def load_mnist(data_home: Home = None) -> Bunch:
    """MNIST digits, 60000 training and 10000 test images of 28 x 28 bytes, from `mnist.npz`."""
    return _load("mnist", SPLIT, data_home)


def load_fashion_mnist(data_home: Home = None) -> Bunch:
    """Fashion-MNIST, 60000 training and 10000 test images of 28 x 28 bytes, from `fashion_mnist.npz`."""
    return _load("fashion_mnist", SPLIT, data_home)


def load_usps(data_home: Home = None) -> Bunch:
    """USPS digits, 7291 training and 2007 test rows of 16 x 16 pixels in [-1, 1], from `usps.npz`."""
    return _load("usps", SPLIT, data_home)


def load_cbcl_faces(data_home: Home = None) -> Bunch:
    """CBCL Face Database 1, training part: 6977 images of 19 x 19 bytes, `y` 1 for a face, from `cbcl_faces.npz`."""
    return _load("cbcl_faces", ("X_train", "y_train"), data_home)


def load_ratsch(name: str, data_home: Home = None) -> Bunch:
    """A two-class benchmark of Rätsch, Onoda & Müller (2001), `y` in {-1, 1}, from `ratsch_<name>.npz`.

    `train[i]` and `test[i]` are the row numbers of split i. Published splits may repeat one another.
    """
    if name not in RATSCH_NAMES:
        known = ", ".join(RATSCH_NAMES)
        raise ValueError(f"name must be one of the Rätsch benchmarks; got {name!r}. Choose from {known}.")
    return _load(f"ratsch_{name}", ("X", "y", "train", "test"), data_home)


def _load(name: str, wanted: tuple[str, ...], data_home: Home) -> Bunch:
    path = _find(f"{name}.npz", data_home)
    arrays = _read(path)
    lacking = [key for key in wanted if key not in arrays]
    if lacking:
        raise ValueError(
            f"{path} lacks the arrays {', '.join(lacking)}; got {', '.join(arrays) or 'none'}. "
            f"Replace it by an archive of numpy.savez that holds {', '.join(wanted)}."
        )
    return Bunch(**arrays)


def _find(filename: str, data_home: Home) -> Path:
    home = data_home if data_home is not None else os.environ.get("MIXTURA_DATA") or None
    if home is None:
        looked = "neither data_home nor the environment variable MIXTURA_DATA says where to look"
    else:
        path = Path(home).expanduser() / filename
        if path.is_file():
            return path
        source = "data_home" if data_home is not None else "MIXTURA_DATA"
        looked = f"it is not in {Path(home).expanduser().absolute()} ({source})"
    raise FileNotFoundError(
        f"The file {filename} is wanted, and {looked}. "
        f"Pass data_home=, or set MIXTURA_DATA to, the folder that holds {filename}."
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a NumPy archive; pickled objects are refused, not executed."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a NumPy archive of plain arrays; got: {error}. Replace it by one written with numpy.savez."
        ) from error
