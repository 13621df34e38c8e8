"""Saving and loading: nothing is lost, nothing is executed, and files of others are refused."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.datasets import load_iris

import mixtura
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.covariances import Diagonal, Full, LowRank, Spherical, Tied
from mixtura.priors import Conjugate

X, Y = load_iris(return_X_y=True)
HOLED = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
COVARIANCES = [
    "full",
    "tied",
    "diag",
    "spherical",
    "low_rank",
    Full(),
    Tied(Diagonal()),
    Tied(Spherical(), per_class=True),
    Tied(LowRank(1)),
    LowRank(1),
]
LABELS = {
    "int": np.array([3, 5, 9]),
    "small int": np.array([3, 5, 9], dtype=np.int8),
    "text": np.array(["a", "bbb", "ü"]),
    "float": np.array([1.0, 2.0, 3.0]),
    "bool": np.array([False, True, True]),
    "object": np.array(["a", "b", "c"], dtype=object),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.mixtura"


def again(model, path):
    model.save(path)
    return mixtura.load(path)


def assert_same_numbers(found, expected, name=""):
    """To rounding: where a buffer lies in memory may change how a product is rounded."""
    np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


def assert_same(loaded, model, rows=HOLED):
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    for method in ("predict_proba", "score_samples", "responsibilities", "impute"):
        assert_same_numbers(getattr(loaded, method)(rows), getattr(model, method)(rows), method)
    for name in ("n_features_in_", "n_iter_", "converged_", "history_", "n_parameters_"):
        assert getattr(loaded, name) == getattr(model, name), name


@pytest.mark.parametrize("covariance_type", COVARIANCES, ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
class TestRoundTrip:
    def test_classifier(self, covariance_type, path):
        model = MixtureClassifier({0: 2, 1: 1, 2: 2}, covariance_type=covariance_type, max_iter=10, random_state=0)
        model.fit(HOLED, Y)
        loaded = again(model, path)
        assert_same(loaded, model)
        assert_same_numbers(loaded.predict_joint_log_proba(X), model.predict_joint_log_proba(X))
        np.testing.assert_array_equal(loaded.class_prior_, model.class_prior_)
        np.testing.assert_array_equal(loaded.n_components_, model.n_components_)
        for found, expected in zip(loaded.sample(9), model.sample(9), strict=True):
            np.testing.assert_array_equal(found, expected)

    def test_density(self, covariance_type, path):
        model = GaussianMixture(2, covariance_type=covariance_type, max_iter=10, random_state=0).fit(HOLED)
        loaded = again(model, path)
        assert_same(loaded, model)
        names = (
            "weights_",
            "means_",
            "covariances_",
            "precisions_",
            "precisions_cholesky_",
            "lower_bound_",
            "lower_bounds_",
        )
        for name in names:
            np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name), err_msg=name)
        assert loaded.bic(X) == model.bic(X)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_keep_their_kind(labels, path):
    model = MixtureClassifier().fit(X, labels[Y])
    loaded = again(model, path)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.predict(X).dtype == model.predict(X).dtype
    assert_same(loaded, model)


def test_labels_of_other_kinds_are_refused(path):
    days = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")
    model = MixtureClassifier().fit(X, Y % 2)
    model.classes_ = days
    with pytest.raises(ValueError, match="cannot be saved; labels must be numbers or text"):
        model.save(path)
    assert not path.exists()


def test_names_of_columns_are_kept(path):
    frame = pd.DataFrame(X, columns=["a", "b", "c", "ö"])
    loaded = again(MixtureClassifier().fit(frame, Y), path)
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "ö"]
    loaded.predict(frame)
    with pytest.raises(ValueError, match="Feature names"):
        loaded.predict(frame.rename(columns={"a": "z"}))
    assert not hasattr(again(MixtureClassifier().fit(X, Y), path), "feature_names_in_")


def test_arguments_of_every_plain_kind_are_kept(path):
    arguments = {
        "n_components": {0: np.int64(1), 1: 2, 2: 1},
        "class_prior": np.array([0.2, 0.3, 0.5]),
        "class_weight": {0: 1.0, 1: 2.0, 2: 1.0},
        "dtype": torch.float64,
        "device": torch.device("cpu"),
        "random_state": np.int64(7),
        "tol": np.float64(1e-3),
        "memory_limit": "64 MB",
    }
    loaded = again(MixtureClassifier(**arguments).fit(X, Y), path)
    assert loaded.n_components == {0: 1, 1: 2, 2: 1}
    assert loaded.class_prior == [0.2, 0.3, 0.5]
    assert loaded.class_weight == {0: 1.0, 1: 2.0, 2: 1.0}
    assert (loaded.dtype, loaded.device, loaded.random_state, loaded.tol) == ("float64", "cpu", 7, 1e-3)
    assert_same_numbers(loaded.fit(X, Y).predict_proba(X), MixtureClassifier(**arguments).fit(X, Y).predict_proba(X))


def test_objects_stay_behind(path):
    prior = Conjugate(3.0, torch.ones(4, dtype=torch.float64))
    state = np.random.RandomState(0)
    first = MixtureClassifier().fit(X, Y)
    loaded = again(MixtureClassifier(prior=prior, random_state=state, init=first).fit(X, Y), path)
    assert (loaded.prior, loaded.random_state, loaded.init) == ("default", None, "kmeans")


def test_arguments_that_changed_after_the_fit_do_no_harm(path):
    model = MixtureClassifier(covariance_type="full").fit(X, Y)
    expected = model.predict_proba(X)
    loaded = again(model.set_params(covariance_type="diag"), path)
    assert_same_numbers(loaded.predict_proba(X), expected)
    assert loaded.covariance_type == "diag"


def test_a_loaded_model_goes_on(path):
    model = MixtureClassifier(2, random_state=0, warm_start=True).fit(X, Y)
    loaded = again(model, path)
    assert_same_numbers(loaded.fit(X, Y).predict_proba(X), model.fit(X, Y).predict_proba(X))
    assert_same_numbers(pickle.loads(pickle.dumps(loaded)).predict_proba(X), loaded.predict_proba(X))


def test_a_model_without_iterations(path):
    for model in (MixtureClassifier(max_iter=0).fit(X, Y), GaussianMixture(max_iter=0, random_state=0).fit(X)):
        assert_same(again(model, path), model)


def test_a_model_from_a_device_is_loaded_on_the_cpu(path, device, dtype):
    rows = torch.from_numpy(X).to(device, dtype)
    model = MixtureClassifier().fit(rows, torch.from_numpy(Y).to(device))
    loaded = again(model, path)
    assert loaded.mixture_.means.device.type == "cpu"
    assert_same_numbers(loaded.predict_proba(rows).cpu(), model.predict_proba(rows).cpu())


def test_the_header_is_plain_json(path):
    MixtureClassifier(2, random_state=0).fit(pd.DataFrame(X, columns=list("abcd")), Y).save(path)
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["mixtura"], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert header["format"] == "mixtura model"
    assert header["estimator"] == "MixtureClassifier"
    assert header["feature_names"] == list("abcd")


def test_paths_as_text_and_overwriting(path):
    MixtureClassifier().fit(X, Y).save(str(path))
    MixtureClassifier(covariance_type="diag").fit(X, Y).save(str(path))
    assert mixtura.load(str(path)).covariance_type == "diag"


# ---- what is refused -----------------------------------------------------------------------------------------------


class Bomb:
    """A pickle that makes a file when it is read."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return open, (str(self.target), "w")


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        mixtura.load(path)
    assert str(path) in str(caught.value)


@pytest.fixture
def saved(path):
    MixtureClassifier().fit(X, Y).save(path)
    return path


def edited(path, change):
    """The file with its header and tensors changed and written anew; a checksum is made where none is left."""
    from mixtura.estimators.model_files import _checksum

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["mixtura"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    if "checksum" not in header:
        header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, metadata={"mixtura": json.dumps(header)})
    return path


class TestRefused:
    def test_missing_file(self, path):
        with pytest.raises(
            FileNotFoundError, match=r"No model file at .*model\.mixtura'; check the path, or write one"
        ):
            mixtura.load(path)
        with pytest.raises(FileNotFoundError, match="No model file at"):
            mixtura.load(path.parent)

    def test_missing_folder(self, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"There is no folder .*nowhere' to save the model in; make it first"
        ):
            MixtureClassifier().fit(X, Y).save(tmp_path / "nowhere" / "model")

    def test_a_pickle_is_not_executed(self, path, tmp_path):
        target = tmp_path / "made by the pickle"
        path.write_bytes(pickle.dumps(Bomb(target)))
        refused(path, "is not a model file of mixtura, or it is damaged")
        torch.save({"bomb": Bomb(target)}, path)
        refused(path, "is not a model file of mixtura, or it is damaged")
        assert not target.exists()

    @pytest.mark.parametrize("content", [b"", b"\x00", b"hello", b"\xff" * 100, b"{}" * 50])
    def test_other_bytes(self, path, content):
        path.write_bytes(content)
        refused(path, "is not a model file of mixtura, or it is damaged")

    @pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99])
    def test_truncated(self, saved, share):
        content = saved.read_bytes()
        saved.write_bytes(content[: int(share * len(content))])
        refused(saved, "is not a model file of mixtura, or it is damaged .*; save the model again with model.save")

    @pytest.mark.parametrize("place", [-1, -50, -200])
    def test_a_flipped_bit(self, saved, place):
        content = bytearray(saved.read_bytes())
        content[place] ^= 4
        saved.write_bytes(bytes(content))
        refused(saved, "is damaged: its checksum does not match; save the model again")

    def test_tensors_of_another_program(self, path):
        save_file({"weight": torch.ones(3)}, path)
        refused(path, "was not written by mixtura: its header is missing or unreadable")
        save_file({"weight": torch.ones(3)}, path, metadata={"mixtura": "not json"})
        refused(path, "was not written by mixtura: its header is missing or unreadable")
        save_file({"weight": torch.ones(3)}, path, metadata={"mixtura": json.dumps({"format": "other"})})
        refused(path, "was not written by mixtura: its header does not name one of its models")

    def test_an_unknown_estimator(self, saved):
        edited(saved, lambda header, _: header.update(estimator="os.system"))
        refused(saved, "its header does not name one of its models")

    def test_another_version(self, saved):
        edited(saved, lambda header, _: header.update(format_version=99))
        refused(saved, r"has format version 99, but this mixtura reads version 1; install the version that wrote it")

    def test_a_changed_header(self, saved):
        edited(saved, lambda header, _: header["classes"].update(values=[2, 1, 0]))
        refused(saved, "its checksum does not match")

    @pytest.mark.parametrize(
        "change",
        [
            lambda header, tensors: tensors.pop("means"),
            lambda header, tensors: tensors.pop("covariance.matrices"),
            lambda header, tensors: tensors.update(means=torch.ones(2, 4, dtype=torch.float64)),
            lambda header, tensors: tensors.update(means=torch.ones(3, dtype=torch.float64)),
            lambda header, tensors: tensors.update(history=torch.ones(3, 9)),
            lambda header, tensors: header["parameters"].update(colour="red"),
            lambda header, tensors: header["parameters"].update(n_components={"pairs": 3}),
            lambda header, tensors: header["stored"].update(structure={"name": "strange"}),
            lambda header, tensors: header["stored"].update(structure=None),
            lambda header, tensors: header.update(classes={"dtype": "strange", "values": [1]}),
            lambda header, tensors: header.pop("feature_names"),
        ],
    )
    def test_parts_that_do_not_fit_together(self, saved, change):
        def without_checksum(header, tensors):
            del header["checksum"]
            change(header, tensors)

        edited(saved, without_checksum)
        refused(saved, r"is damaged \(.*\); save the model again")
