"""Published data sets: one NumPy archive for each, read from a folder and fetched into it where it is public.

The folder is `data_home` or the environment variable `MIXTURA_DATA`. Values of a fetched set are compared by checksum
with those of the set that the results of this project were computed with. The Rätsch benchmarks have none: that
collection holds all published splits, more than were at hand here. Nor has CIFAR-10: the file of the results holds the
same images in another order.
"""

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from sklearn.datasets import fetch_openml
from sklearn.utils import Bunch

Arrays = dict[str, np.ndarray]

MASS = "https://vincentarelbundock.github.io/Rdatasets/csv/MASS/{}.csv"
ELEMENTS = "https://hastie.su.domains/ElemStatLearn/datasets/zip.{}.gz"
LIVER = "https://archive.ics.uci.edu/ml/machine-learning-databases/liver-disorders/bupa.data"
RATSCH = "https://github.com/tdiethe/gunnar_raetsch_benchmark_datasets/raw/master/benchmarks.mat"
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
# Of Peterson and Barney's 1520 vowels, in their order: one bit each, 1 for those with an asterisk in verified_pb.data
# (Watrous 1991), as Praat's table has them: not all listeners identified the vowel that the speaker meant.
MARKED = (
    "060c004c00008042040000100009c028a34af38001900000200cb4000ec01c22030d000e300000c000600043100ffb00c700"
    "209803ced00ed000c60000040053000c810006023c4c00aee0104080c440380c880244000402c8000cb2000b020014044534"
    "0380010130101200000000020042801010010c003210040000214a1070c40803003000080001b280038003cb300010000100"
    "0cf003db60043c22f0003cee03c2c8145003c100107800030034300003c00488000040006e400100"
)
N_CIFAR_VALUES, N_CIFAR_FEATURES = 3072, 50
CIFAR_PARTS = ([f"data_batch_{number}.bin" for number in range(1, 6)], ["test_batch.bin"])
RATSCH_NAMES = ("banana", "breast_cancer", "diabetis", "flare_solar", "german", "heart", "image", "ringnorm", "splice",
                "thyroid", "titanic", "twonorm", "waveform")  # fmt: skip
SPLIT = ("X_train", "y_train", "X_test", "y_test")
# Names of the archives and the arrays that each holds.
ARRAYS: dict[str, tuple[str, ...]] = {
    "ripley": (*SPLIT, "feature_names"),  # Ripley (1994): 250 training and 1000 test samples, 2 features
    "pima": (*SPLIT, "feature_names"),  # Pima diabetes without missing values: 200 and 332 samples, 7 features
    # BUPA liver disorders: 345 samples, 6 features. Most of the literature uses y in {1, 2} as the class; its donors
    # meant it to mark training and test samples (McDermott and Forsyth 2016).
    "bupa": ("X", "y", "feature_names"),
    # Peterson and Barney's (1952) vowels: 1520 samples, F0 to F3 in Hz, 10 classes. `speaker` numbers the 76 speakers.
    "peterson_barney": ("X", "y", "speaker", "speaker_type", "sex", "repetition", "feature_names", "class_names"),
    "mnist": SPLIT,  # 60000 training and 10000 test images of 28 x 28 bytes
    "fashion_mnist": SPLIT,
    "usps": SPLIT,  # 7291 training and 2007 test images of 16 x 16 pixels in [-1, 1]
    "cbcl_faces": ("X_train", "y_train"),  # CBCL Face Database 1: 6977 images of 19 x 19 bytes, y 1 for a face
    "cifar10_pca50": SPLIT,  # principal components of the first 40000 training images, not whitened
    # Rätsch, Onoda and Müller (2001): y in {-1, 1}; row i of `train` and `test` are the sample indices of split i. Some
    # of the published splits are identical.
    **{f"ratsch_{name}": ("X", "y", "train", "test") for name in RATSCH_NAMES},
}


def load(name: str, data_home: str | os.PathLike[str] | None = None, download: bool = False) -> Bunch:
    """The arrays of a set of ARRAYS; with `download` it is fetched if it is public and the folder lacks it."""
    if name not in ARRAYS:
        raise ValueError(f"name must be one of the data sets; got {name!r}. Choose from {', '.join(ARRAYS)}.")
    path = _find(f"{name}.npz", data_home, download)
    arrays = _read(path)
    lacking = [key for key in ARRAYS[name] if key not in arrays]
    if lacking:
        raise ValueError(
            f"{path} lacks the arrays {', '.join(lacking)}; got {', '.join(arrays) or 'none'}. "
            f"Replace it with an archive written by numpy.savez that holds {', '.join(ARRAYS[name])}."
        )
    return Bunch(**arrays)


def identified_by_all() -> np.ndarray:
    """Which of Peterson and Barney's vowels all listeners identified: 1199 of 1520."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(MARKED), np.uint8))[:1520] == 0


def _find(filename: str, data_home: str | os.PathLike[str] | None, download: bool) -> Path:
    home = data_home if data_home is not None else os.environ.get("MIXTURA_DATA") or None
    name = filename.removesuffix(".npz")
    if home is None:
        reason = "neither data_home nor the environment variable MIXTURA_DATA is set"
    else:
        path = Path(home).expanduser() / filename
        if path.is_file():
            return path
        if download:
            return download_into(path)
        source = "data_home" if data_home is not None else "MIXTURA_DATA"
        reason = f"{Path(home).expanduser().absolute()} ({source}) does not contain it"
    advice = f"Set data_home or MIXTURA_DATA to the folder that holds {filename}"
    advice += ", or pass download=True to fetch it into that folder." if name in PUBLIC else "."
    raise FileNotFoundError(f"{filename} was not found: {reason}. {advice}")


def _read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a NumPy archive; pickled objects are rejected."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a NumPy archive of plain arrays; got: {error}. Replace it with one written by numpy.savez."
        ) from error


# ---- downloads -------------------------------------------------------------------------------------------------------


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
