"""Loaders of published sets give what the files hold, and mistakes are told in words."""

import gzip
import io
import os
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from conftest import ROOT
from mixtura.datasets.generators import RIPLEY_MEANS
from test_datasets import assert_moments, error_of_bayes_rule, mixture_moments

sys.path.insert(0, str(ROOT))

from reproduce import data

DATA_HOME = Path(os.environ.get("MIXTURA_DATA") or ROOT.parent / "shared" / "data")

# name -> (load, shapes, count of each label in y or y_train), as published
PUBLISHED = {
    "ripley": (((250, 2), (250,), (1000, 2), (1000,)), {0: 125, 1: 125}),
    "pima": (((200, 7), (200,), (332, 7), (332,)), {0: 132, 1: 68}),
    "mnist": (((60000, 28, 28), (60000,), (10000, 28, 28), (10000,)), {0: 5923, 1: 6742}),
    "fashion_mnist": (
        ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,)),
        dict.fromkeys(range(10), 6000),
    ),
    "usps": (((7291, 256), (7291,), (2007, 256), (2007,)), {0: 1194, 1: 1005}),
    "bupa": (((345, 6), (345,)), {1: 145, 2: 200}),
    "peterson_barney": (((1520, 4), (1520,)), dict.fromkeys(range(10), 152)),
    "cbcl_faces": (((6977, 19, 19), (6977,)), {0: 4548, 1: 2429}),
}

# name -> (shape of X, splits, training rows of each, rows of class -1)
RATSCH = {
    "banana": ((5300, 2), 100, 400, 2924),
    "breast_cancer": ((277, 9), 10, 200, 196),
    "german": ((1000, 20), 10, 700, 700),
    "image": ((2310, 18), 10, 1300, 990),
    "titanic": ((2201, 3), 10, 150, 1490),
    "waveform": ((5000, 21), 10, 400, 3353),
}


def data_home_with(filename):
    if not (DATA_HOME / filename).is_file():
        pytest.skip(f"the published file {filename} is not at hand; set MIXTURA_DATA to the folder that holds it")
    return DATA_HOME


@pytest.mark.parametrize("name", PUBLISHED)
def test_loaders_give_the_published_sets(name):
    shapes, counts = PUBLISHED[name]
    bunch = data.load(name, data_home_with(f"{name}.npz"))
    keys = data.SPLIT if "X_train" in bunch else ("X", "y")
    assert tuple(bunch[key].shape for key in keys if key in bunch) == shapes
    labels = bunch[keys[1]]
    assert {label: int((labels == label).sum()) for label in counts} == counts
    if "feature_names" in bunch:
        assert len(bunch.feature_names) == bunch[keys[0]].shape[1]


def test_a_set_that_is_not_known_is_named():
    with pytest.raises(ValueError, match=r"^name must be one of the data sets; got 'timit'\. Choose from ripley, "):
        data.load("timit")


def test_peterson_barney_carries_its_speakers():
    bunch = data.load("peterson_barney", data_home_with("peterson_barney.npz"))
    assert np.unique(bunch.speaker).size == 76
    assert len(bunch.class_names) == 10


@pytest.mark.parametrize("name", RATSCH)
def test_ratsch_splits_part_the_rows(name):
    shape, n_splits, n_train, n_negative = RATSCH[name]
    bunch = data.load(f"ratsch_{name}", data_home_with(f"ratsch_{name}.npz"))
    assert bunch.X.shape == shape
    assert (bunch.y == -1).sum() == n_negative
    assert (bunch.y == 1).sum() == shape[0] - n_negative
    assert bunch.train.shape == (n_splits, n_train)
    for train, test in zip(bunch.train, bunch.test, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(shape[0]))


def test_ripley_generator_and_published_sample_are_of_one_law():
    published = data.load("ripley", data_home_with("ripley.npz"))
    for label, means in enumerate(RIPLEY_MEANS):
        assert_moments(published.X_test[published.y_test == label], *mixture_moments(means, 0.03))
    assert error_of_bayes_rule(published.X_test, published.y_test, RIPLEY_MEANS, np.sqrt(0.03)) == 0.080


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("MIXTURA_DATA", raising=False)
    return tmp_path


def save_bupa(folder, **changes):
    arrays = {"X": np.arange(12.0).reshape(2, 6), "y": np.array([1, 2]), "feature_names": np.array(list("abcdef"))}
    arrays.update(changes)
    np.savez(folder / "bupa.npz", **{key: value for key, value in arrays.items() if value is not None})


@pytest.mark.parametrize("as_type", [str, Path])
def test_loader_reads_data_home(home, as_type):
    save_bupa(home, note=np.array(["kept"]))
    bunch = data.load("bupa", as_type(home))
    np.testing.assert_array_equal(bunch.X, np.arange(12.0).reshape(2, 6))
    assert set(bunch) == {"X", "y", "feature_names", "note"}


def test_loader_falls_back_to_the_environment(home, monkeypatch):
    save_bupa(home)
    monkeypatch.setenv("MIXTURA_DATA", str(home))
    np.testing.assert_array_equal(data.load("bupa").y, [1, 2])


def test_data_home_comes_before_the_environment(home, monkeypatch):
    for name, label in [("given", 1), ("environment", 2)]:
        (home / name).mkdir()
        save_bupa(home / name, y=np.array([label, label]))
    monkeypatch.setenv("MIXTURA_DATA", str(home / "environment"))
    np.testing.assert_array_equal(data.load("bupa", home / "given").y, [1, 1])


ADVICE = (
    "Set data_home or MIXTURA_DATA to the folder that holds mnist.npz, or pass download=True to fetch it into that "
    "folder."
)


@pytest.mark.parametrize("value", [None, ""])
def test_a_loader_without_a_folder_says_how_to_give_one(home, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("MIXTURA_DATA", value)
    message = f"mnist.npz was not found: neither data_home nor the environment variable MIXTURA_DATA is set. {ADVICE}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        data.load("mnist")


@pytest.mark.parametrize("source", ["data_home", "MIXTURA_DATA"])
def test_a_missing_file_is_named_with_the_folder(home, monkeypatch, source):
    monkeypatch.setenv("MIXTURA_DATA", str(home))
    message = f"mnist.npz was not found: {home} ({source}) does not contain it. {ADVICE}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        data.load("mnist", home if source == "data_home" else None)


# ---- downloads, from a network that is not there ---------------------------------------------------------------------

RIPLEY = {
    "synth.tr": 'rownames,"xs","ys","yc"\n"1",0.25,0.5,0\n"2",-1,2,1\n',
    "synth.te": 'rownames,"xs","ys","yc"\n"1",1,1,1\n',
    "Pima.tr": 'rownames,npreg,glu,type\n"1",5,86,"No"\n"2",7,195,"Yes"\n',
    "Pima.te": 'rownames,npreg,glu,type\n"1",6,148,"Yes"\n',
}


def fake_url(url):
    name = url.rpartition("/")[2].removesuffix(".csv")
    if name in RIPLEY:
        return RIPLEY[name].encode()
    if name == "bupa.data":
        return b"85,92,45,27,31,0.0,1\n85,64,59,32,23,0.0,2\n"
    if name == "benchmarks.mat":
        file, kind = io.BytesIO(), [(key, object) for key in ("x", "t", "train", "test")]
        parts = (np.eye(3), np.array([[1], [-1], [1]]), np.array([[1, 2]]), np.array([[3]]))
        savemat(file, {"banana": np.array([[parts]], dtype=kind)})
        return file.getvalue()
    row = " ".join(["6.0000", *["-1.0000"] * 256])
    return gzip.compress(f"{row}\n{row}\n".encode())


@pytest.fixture
def network(monkeypatch):
    """Tiny files in the places of the public ones."""
    monkeypatch.setattr(data, "read_url", fake_url)
    monkeypatch.setattr(data, "read_openml", lambda name: (np.full((70_000, 784), 3.0), np.array(["7"] * 70_000)))
    monkeypatch.setattr(data, "CHECKSUMS", {})


def test_a_missing_set_is_fetched_and_kept(home, network, monkeypatch):
    fetched = data.load("ripley", home, download=True)
    np.testing.assert_array_equal(fetched.X_train, [[0.25, 0.5], [-1, 2]])
    assert fetched.y_train.tolist() == [0, 1]
    assert fetched.feature_names.tolist() == ["xs", "ys"]
    monkeypatch.setattr(data, "read_url", None)  # a second call does not ask the network
    np.testing.assert_array_equal(data.load("ripley", home, download=True).X_test, [[1, 1]])


def test_fetched_sets_have_the_layout_of_the_published_files(home, network):
    assert data.load("mnist", home, download=True).X_train.shape == (60_000, 28, 28)
    assert data.load("fashion_mnist", home, download=True).y_test.tolist() == [7] * 10_000
    assert data.load("pima", home, download=True).y_train.tolist() == [0, 1]
    assert data.load("bupa", home, download=True).y.tolist() == [1, 2]
    digits = data.load("usps", home, download=True)
    assert digits.X_test.shape == (2, 256)
    assert digits.y_test.tolist() == [6, 6]
    banana = data.load("ratsch_banana", home, download=True)
    assert banana.y.tolist() == [1, -1, 1]
    assert banana.train.tolist() == [[0, 1]]
    assert banana.test.tolist() == [[2]]


def test_principal_components_are_computed_from_the_fetched_images(home, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 12), dtype=np.uint8)
    images[:, 0] = np.where(np.arange(60) % 2, 255, 0)  # the direction of the largest variance
    records = np.column_stack([np.arange(60) % 10, images]).astype(np.uint8)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for number, name in enumerate(name for names in data.CIFAR_PARTS for name in names):
            content = records[10 * number : 10 * number + 10].tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(data, "read_url", lambda url: file.getvalue())
    monkeypatch.setattr(data, "N_CIFAR_VALUES", 12)
    monkeypatch.setattr(data, "N_CIFAR_FEATURES", 3)
    fetched = data.load("cifar10_pca50", home, download=True)
    assert fetched.X_train.shape == (50, 3)
    assert fetched.y_test.tolist() == list(range(10))
    rows = images / 255 - images[:40].mean(0) / 255
    expected = np.linalg.svd(rows[:40], full_matrices=False)[2][:3]
    np.testing.assert_allclose(np.abs(fetched.X_test), np.abs(rows[50:] @ expected.T), atol=2e-3)


def test_fetched_values_are_checked(home, network, monkeypatch):
    arrays = data.PUBLIC["bupa"]()
    monkeypatch.setattr(data, "CHECKSUMS", {"bupa": "0" * 16})
    message = (
        "The values fetched for bupa are not those that results were computed with: got checksum "
        f"{data.checksum(arrays)}, expected {'0' * 16}. Get bupa.npz from another source."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.load("bupa", home, download=True)
    assert not (home / "bupa.npz").exists()


@pytest.mark.parametrize("name", sorted(data.CHECKSUMS))
def test_checksums_are_of_the_published_sets(name):
    archive = np.load(data_home_with(f"{name}.npz") / f"{name}.npz")
    assert data.checksum(dict(archive)) == data.CHECKSUMS[name]


def test_a_set_that_is_not_public_is_not_fetched(home):
    with pytest.raises(ValueError, match=r"^timit\.npz cannot be fetched; got 'timit'\. Public sets are mnist, "):
        data.download_into(home / "timit.npz")


def test_an_archive_without_its_arrays_is_refused(home):
    save_bupa(home, y=None, feature_names=None)
    message = (
        f"{home / 'bupa.npz'} lacks the arrays y, feature_names; got X. "
        "Replace it with an archive written by numpy.savez that holds X, y, feature_names."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.load("bupa", home)


class Trap:
    """Unpickling it would raise an error of its own."""

    def __reduce__(self):
        return (pytest.fail, ("a pickled object was executed",))


def foreign_text(path):
    path.write_text("not an archive")


def foreign_array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def foreign_pickle(path):
    save_bupa(path.parent, y=np.array([Trap(), None], dtype=object))


def cut_short(path):
    save_bupa(path.parent)
    path.write_bytes(path.read_bytes()[:300])


def damaged(path):
    save_bupa(path.parent)
    content = bytearray(path.read_bytes())
    content[150] ^= 0xFF  # inside the first array
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "spoil", [Path.touch, foreign_text, foreign_array, foreign_pickle, cut_short, damaged], ids=lambda f: f.__name__
)
def test_a_foreign_or_corrupted_file_is_refused_and_nothing_executed(home, spoil):
    path = home / "bupa.npz"
    spoil(path)
    start = re.escape(f"{path} is not a NumPy archive of plain arrays; got: ")
    with pytest.raises(ValueError, match=rf"^{start}(?s:.+)\. Replace it with one written by numpy\.savez\.$"):
        data.load("bupa", home)
