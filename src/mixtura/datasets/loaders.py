"""Loaders of published data sets."""

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from mixtura.datasets.downloads import PUBLIC, RATSCH_NAMES, download_into

Home = str | os.PathLike[str] | None

SPLIT = ("X_train", "y_train", "X_test", "y_test")


def load_ripley(data_home: Home = None, download: bool = False) -> Bunch:
    """Load Ripley's (1994) two-class data from `ripley.npz`: 250 training and 1000 test samples, 2 features.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X_train`, `y_train`, `X_test`, `y_test`, `feature_names`.
    """
    return _load("ripley", (*SPLIT, "feature_names"), data_home, download)


def load_pima(data_home: Home = None, download: bool = False) -> Bunch:
    """Load the Pima diabetes data without missing values from `pima.npz`: 200 training, 332 test samples, 7 features.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X_train`, `y_train`, `X_test`, `y_test`, `feature_names`.
    """
    return _load("pima", (*SPLIT, "feature_names"), data_home, download)


def load_bupa(data_home: Home = None, download: bool = False) -> Bunch:
    """Load the BUPA liver disorders data from `bupa.npz`: 345 samples, 6 features.

    Most of the literature uses `y` in {1, 2} as the class; its donors meant it to mark training and test samples
    (McDermott and Forsyth 2016).

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X`, `y`, `feature_names`.
    """
    return _load("bupa", ("X", "y", "feature_names"), data_home, download)


def load_peterson_barney(data_home: Home = None) -> Bunch:
    """Load Peterson and Barney's (1952) vowels from `peterson_barney.npz`: 1520 samples, F0 to F3 in Hz, 10 classes.

    `speaker` numbers the 76 speakers. Use it as the group of a grouped split: otherwise the same voice is in the
    training and in the test set.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.

    Returns
    -------
    data : Bunch
        `X`, `y`, `speaker`, `speaker_type`, `sex`, `repetition`, `feature_names`, `class_names`.
    """
    wanted = ("X", "y", "speaker", "speaker_type", "sex", "repetition", "feature_names", "class_names")
    return _load("peterson_barney", wanted, data_home)


def load_mnist(data_home: Home = None, download: bool = False) -> Bunch:
    """Load the MNIST digits from `mnist.npz`: 60000 training and 10000 test images of 28 x 28 bytes.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X_train`, `y_train`, `X_test`, `y_test`.
    """
    return _load("mnist", SPLIT, data_home, download)


def load_fashion_mnist(data_home: Home = None, download: bool = False) -> Bunch:
    """Load Fashion-MNIST from `fashion_mnist.npz`: 60000 training and 10000 test images of 28 x 28 bytes.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X_train`, `y_train`, `X_test`, `y_test`.
    """
    return _load("fashion_mnist", SPLIT, data_home, download)


def load_usps(data_home: Home = None, download: bool = False) -> Bunch:
    """Load the USPS digits from `usps.npz`: 7291 training and 2007 test images of 16 x 16 pixels in [-1, 1].

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X_train`, `y_train`, `X_test`, `y_test`.
    """
    return _load("usps", SPLIT, data_home, download)


def load_cbcl_faces(data_home: Home = None) -> Bunch:
    """Load the training set of CBCL Face Database 1 from `cbcl_faces.npz`: 6977 images of 19 x 19 bytes.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.

    Returns
    -------
    data : Bunch
        `X_train`, and `y_train`, which is 1 for a face.
    """
    return _load("cbcl_faces", ("X_train", "y_train"), data_home)


def load_ratsch(name: str, data_home: Home = None, download: bool = False) -> Bunch:
    """Load a two-class benchmark of Rätsch, Onoda and Müller (2001) from `ratsch_<name>.npz`.

    Parameters
    ----------
    name : str
        "banana", "breast_cancer", "diabetis", "flare_solar", "german", "heart", "image", "ringnorm", "splice",
        "thyroid", "titanic", "twonorm" or "waveform".
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Fetch the data, which are public, if the folder does not hold them, and keep them there.

    Returns
    -------
    data : Bunch
        `X`, `y` in {-1, 1}, `train` and `test`: row i of these holds the sample indices of split i. Some of the
        published splits are identical.
    """
    if name not in RATSCH_NAMES:
        known = ", ".join(RATSCH_NAMES)
        raise ValueError(f"name must be one of the Rätsch benchmarks; got {name!r}. Choose from {known}.")
    return _load(f"ratsch_{name}", ("X", "y", "train", "test"), data_home, download)


def load_cifar10_pca50(data_home: Home = None, download: bool = False) -> Bunch:
    """Load 50 principal components of CIFAR-10 from `cifar10_pca50.npz`: 50000 training and 10000 test samples.

    The components are those of the first 40000 training images, with RGB values in [0, 1]; they are not whitened.

    Parameters
    ----------
    data_home : str or path-like, optional
        Folder of the archive; the environment variable `MIXTURA_DATA` if None.
    download : bool, default=False
        Whether to fetch the images into that folder and compute the components, if the archive is missing.

    Returns
    -------
    data : Bunch
        `X_train`, `y_train`, `X_test`, `y_test`.
    """
    return _load("cifar10_pca50", SPLIT, data_home, download)


def _load(name: str, wanted: tuple[str, ...], data_home: Home, download: bool = False) -> Bunch:
    path = _find(f"{name}.npz", data_home, download)
    arrays = _read(path)
    lacking = [key for key in wanted if key not in arrays]
    if lacking:
        raise ValueError(
            f"{path} lacks the arrays {', '.join(lacking)}; got {', '.join(arrays) or 'none'}. "
            f"Replace it with an archive written by numpy.savez that holds {', '.join(wanted)}."
        )
    return Bunch(**arrays)


def _find(filename: str, data_home: Home, download: bool) -> Path:
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
