"""Fetch public data sets and keep them as the archives that the loaders read.

Values of a fetched set are compared by checksum with those of the set that the results of this project were computed
with. The Rätsch benchmarks have none: that collection holds all published splits, more than were at hand here. Nor has
CIFAR-10: the file of the results holds the same images in another order.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from sklearn.datasets import fetch_openml

Arrays = dict[str, np.ndarray]

MASS = "https://vincentarelbundock.github.io/Rdatasets/csv/MASS/{}.csv"
ELEMENTS = "https://hastie.su.domains/ElemStatLearn/datasets/zip.{}.gz"
LIVER = "https://archive.ics.uci.edu/ml/machine-learning-databases/liver-disorders/bupa.data"
RATSCH = "https://github.com/tdiethe/gunnar_raetsch_benchmark_datasets/raw/master/benchmarks.mat"
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
N_CIFAR_VALUES, N_CIFAR_FEATURES = 3072, 50
CIFAR_PARTS = ([f"data_batch_{number}.bin" for number in range(1, 6)], ["test_batch.bin"])
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


def read_url(url: str) -> bytes:
    """Download a file."""
    with urlopen(url, timeout=60) as response:
        return response.read()


def read_openml(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Download a set from OpenML: features and labels in the order of the set."""
    X, y = fetch_openml(name, version=1, as_frame=False, parser="liac-arff", return_X_y=True)
    return np.asarray(X), np.asarray(y)


def split_after(X: np.ndarray, y: np.ndarray, n_train: int) -> Arrays:
    return {"X_train": X[:n_train], "y_train": y[:n_train], "X_test": X[n_train:], "y_test": y[n_train:]}


def images(name: str) -> Arrays:
    """MNIST and Fashion-MNIST: 60000 training images, then 10000 test images."""
    X, y = read_openml(name)
    return split_after(X.reshape(-1, 28, 28).astype(np.uint8), y.astype(np.uint8), 60_000)


def table(url: str) -> list[list[str]]:
    """Rows of a file with commas between values."""
    lines = read_url(url).decode().split()
    return [[value.strip('"') for value in line.split(",")] for line in lines]


def mass(train: str, test: str, positive: str) -> Arrays:
    """Two tables of R package MASS: a row number, features, the label."""
    parts: Arrays = {}
    for part, name in (("train", train), ("test", test)):
        head, *rows = table(MASS.format(name))
        parts[f"X_{part}"] = np.array([[float(value) for value in row[1:-1]] for row in rows])
        parts[f"y_{part}"] = np.array([int(row[-1] == positive) for row in rows])
        parts["feature_names"] = np.array(head[1:-1])
    return parts


def usps() -> Arrays:
    parts: Arrays = {}
    for part in ("train", "test"):
        rows = np.loadtxt(io.BytesIO(gzip.decompress(read_url(ELEMENTS.format(part)))))
        parts[f"X_{part}"], parts[f"y_{part}"] = rows[:, 1:].astype(np.float32), rows[:, 0].astype(np.int64)
    return parts


def bupa() -> Arrays:
    rows = np.array([[float(value) for value in row] for row in table(LIVER)])
    names = np.array(["mcv", "alkphos", "sgpt", "sgot", "gammagt", "drinks"])
    return {"X": rows[:, :-1], "y": rows[:, -1].astype(np.int64), "feature_names": names}


def ratsch(name: str) -> Arrays:
    """One benchmark, with its splits as rows of indices that start at 0."""
    from scipy.io import loadmat

    benchmark = loadmat(io.BytesIO(read_url(RATSCH)), variable_names=[name])[name][0, 0]
    splits = {part: benchmark[part].astype(np.int32) - 1 for part in ("train", "test")}
    return {"X": np.asarray(benchmark["x"], float), "y": benchmark["t"].ravel().astype(np.int64), **splits}


def cifar10_pca50() -> Arrays:
    """Principal components of CIFAR-10: those of the first four fifths of the training images, not whitened.

    A record of the published files is a label and the values of an image.
    """
    with tarfile.open(fileobj=io.BytesIO(read_url(CIFAR))) as archive:
        contents = {Path(member.name).name: archive.extractfile(member) for member in archive.getmembers()}
        files = {name: np.frombuffer(part.read(), np.uint8) for name, part in contents.items() if part is not None}
    train, test = (
        np.concatenate([files[name] for name in names]).reshape(-1, 1 + N_CIFAR_VALUES) for names in CIFAR_PARTS
    )
    fitted = train[: len(train) * 4 // 5, 1:].astype(np.float32) / 255
    mean = fitted.mean(0)
    vectors = np.linalg.eigh((fitted - mean).T @ (fitted - mean))[1][:, : -N_CIFAR_FEATURES - 1 : -1]
    arrays: Arrays = {}
    for part, records in (("train", train), ("test", test)):
        arrays[f"X_{part}"] = ((records[:, 1:].astype(np.float32) / 255 - mean) @ vectors).astype(np.float16)
        arrays[f"y_{part}"] = records[:, 0].astype(np.int64)
    return arrays


PUBLIC: dict[str, Callable[[], Arrays]] = {
    "mnist": lambda: images("mnist_784"),
    "fashion_mnist": lambda: images("Fashion-MNIST"),
    "usps": usps,
    "ripley": lambda: mass("synth.tr", "synth.te", "1"),
    "pima": lambda: mass("Pima.tr", "Pima.te", "Yes"),
    "bupa": bupa,
    "cifar10_pca50": cifar10_pca50,
    **{f"ratsch_{name}": lambda name=name: ratsch(name) for name in RATSCH_NAMES},
}
CHECKSUMS = {
    "mnist": "5888e09f604bdab4",
    "fashion_mnist": "942e2c01b60062ab",
    "usps": "01936e44257565e0",
    "ripley": "bb40944c8ac4caff",
    "pima": "93b1045636e11543",
    "bupa": "c1d878742daba4a6",
}


def checksum(arrays: Arrays) -> str:
    """Of the values, to seven digits, whatever their type."""
    total = hashlib.sha256()
    for key in sorted(arrays):
        if key != "feature_names":
            values = np.ascontiguousarray(arrays[key], dtype=np.float64)
            total.update(f"{key}{values.shape}".encode() + (values * 1e5).round().astype(np.int64).tobytes())
    return total.hexdigest()[:16]


def download_into(path: Path) -> Path:
    """Fetch the set that a file is named after, check it and write the file."""
    name = path.stem
    if name not in PUBLIC:
        known = ", ".join(PUBLIC)
        raise ValueError(f"{path.name} cannot be fetched; got {name!r}. Public sets are {known}.")
    arrays = PUBLIC[name]()
    if CHECKSUMS.get(name, checksum(arrays)) != checksum(arrays):
        raise ValueError(
            f"The values fetched for {name} are not those that results were computed with: got checksum "
            f"{checksum(arrays)}, expected {CHECKSUMS[name]}. Get {path.name} from another source."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path
