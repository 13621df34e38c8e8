"""Saving and loading: nothing is lost, nothing is executed, and files of others are refused."""

import dataclasses
import json
import math
import pickle
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.datasets import load_iris

import mixtura
from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RejectOption,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.covariances import Diagonal, Full, LowRank, LowRankPrecision, Spherical, Tied
from mixtura.datasets import load_penguins, make_ripley
from mixtura.estimators import TableClassifier
from mixtura.files.codec import Decoder, Encoder, arguments_of, fitted_of
from mixtura.files.registry import CLASSES, storable
from mixtura.model.transforms import Warp
from mixtura.objectives import Conditional, Hybrid, Joint, Margin, Marginal
from mixtura.priors import Conjugate, Shrinkage
from mixtura.solvers import EM, BaumWelch, Gradient

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


def assert_same_numbers(actual, expected, name=""):
    """To rounding: where a buffer lies in memory may change how a product is rounded."""
    np.testing.assert_allclose(actual, expected, rtol=1e-12, err_msg=name)


def assert_equal(actual, expected, place="model"):
    """The same types and the same numbers to the last bit, all the way down."""
    assert type(actual) is type(expected), place
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, place
        torch.testing.assert_close(actual, expected.cpu(), rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype, place
        if expected.dtype == object:
            assert_equal(actual.tolist(), expected.tolist(), place)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=place)
    elif isinstance(expected, list | tuple):
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_equal(one, other, f"{place}.{i}")
    elif isinstance(expected, dict):
        assert_equal(list(actual.items()), list(expected.items()), place)
    elif dataclasses.is_dataclass(expected):
        for name in (field.name for field in dataclasses.fields(expected) if not field.name.startswith("_")):
            assert_equal(getattr(actual, name), getattr(expected, name), f"{place}.{name}")
    elif hasattr(expected, "get_params"):
        assert_equal(arguments_of(actual), arguments_of(expected), place)
        assert_equal(fitted_of(actual), fitted_of(expected), place)
    else:
        assert actual == expected or (actual != actual and expected != expected), place


def assert_same(loaded, model, rows=HOLED):
    assert_equal(loaded, model)
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
        for actual, expected in zip(loaded.sample(9), model.sample(9), strict=True):
            np.testing.assert_array_equal(actual, expected)

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
    model = MixtureClassifier(1).fit(X, labels[Y])
    loaded = again(model, path)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.predict(X).dtype == model.predict(X).dtype
    assert_same(loaded, model)


def test_labels_of_other_kinds_are_refused(path):
    days = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")
    model = MixtureClassifier(1).fit(X, Y % 2)
    model.classes_ = days
    with pytest.raises(ValueError, match=r"classes_ .*of type datetime64\[D\], .*; arrays must .*hold numbers or text"):
        model.save(path)
    assert not path.exists()


def test_names_of_columns_are_kept(path):
    frame = pd.DataFrame(X, columns=["a", "b", "c", "ö"])
    loaded = again(MixtureClassifier(1).fit(frame, Y), path)
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "ö"]
    loaded.predict(frame)
    with pytest.warns(UserWarning, match=r"\['a'\] of the training samples are absent and count as missing; \['z'\]"):
        loaded.predict(frame.rename(columns={"a": "z"}))
    assert not hasattr(again(MixtureClassifier(1).fit(X, Y), path), "feature_names_in_")


def test_arguments_of_every_plain_kind_are_kept(path):
    arguments = {
        "n_components": {0: np.int64(1), 1: 2, 2: 1},
        "class_prior": np.array([0.2, 0.3, 0.5]),
        "class_weight": {0: 1.0, 1: 2.0, 2: 1.0},
        "device": torch.device("cpu"),
        "random_state": np.int64(7),
        "tol": np.float64(1e-3),
        "memory_limit": "64 MB",
        "unlabeled": math.nan,
    }
    loaded = again(MixtureClassifier(**arguments).fit(X, Y), path)
    assert_equal(arguments_of(loaded), {**arguments_of(MixtureClassifier(1)), **arguments})
    assert_same_numbers(loaded.fit(X, Y).predict_proba(X), MixtureClassifier(**arguments).fit(X, Y).predict_proba(X))


FIRST = MixtureClassifier(1, prior=Shrinkage(scale=2.0), random_state=0).fit(X, Y)
OBJECTS = {
    "prior": [
        Shrinkage(2.0, 3.0, "pooled", 1.0, 1.5),
        Conjugate(3.0, torch.ones(4, dtype=torch.float64)),
        Conjugate(3.0, np.eye(4), mean=np.arange(4.0), mean_strength=2.0),
        None,
    ],
    "objective": [Joint(), Conditional(), Hybrid(0.5, Margin(2.0, 5.0), 0.25), Hybrid(0.5, Conditional())],
    "solver": [Gradient("adam", 1e-2, decay_epochs=7, averaging=0.5, batch_size=50), EM(strict=True), BaumWelch()],
    "covariance_type": [Tied(LowRank(2), per_class=True), Spherical(), LowRankPrecision(1)],
    "warp": [Warp([0.0] * 4, [1.0, math.inf, 2.0, math.inf])],
    "init": [FIRST, FIRST.mixture_, "k-means++"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pair for name, values in OBJECTS.items() for pair in ((name, value) for value in values)],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_objects_are_kept(name, value, path):
    """They came back as the default."""
    arguments = {"n_components": 1, "max_iter": 2, "random_state": 0, name: value}
    if isinstance(value, Gradient):
        arguments["objective"] = "hybrid"
    model = MixtureClassifier(**arguments).fit(X, Y)
    loaded = again(model, path)
    assert_equal(loaded, model)
    assert_same_numbers(loaded.predict_proba(X), model.predict_proba(X))


RIPLEY = make_ripley(60, random_state=0)
QUICK = {"max_iter": 20, "random_state": 0}
MODELS = {
    "density": GaussianMixture("auto", **QUICK),
    "classifier": MixtureClassifier("auto", prior="auto", warp="auto", **QUICK),
    "discriminative": DiscriminativeMixtureClassifier("auto", tradeoff="auto", cv=2, early_stopping=True, **QUICK),
    "hybrid": HybridMixtureClassifier(2, n_epochs=2, checkpoint=None, **QUICK),
    "sparse": SparseMixtureClassifier(2, **QUICK),
    "monomials": SparseMixtureClassifier(2, kernel=None, **QUICK),
    "relevance": RelevanceVectorClassifier(**QUICK),
    "nonnegative": NonnegativeMixtureClassifier(2, **QUICK),
    "average": AveragedMixture(GaussianMixture(2, prior=Shrinkage(5.0)), 3, random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier("auto", max_iter=20), 3, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::mixtura.checks.RepairWarning")
def test_all_that_an_estimator_shows_is_kept(name, path):
    model = MODELS[name]
    model.fit(np.abs(RIPLEY[0]), RIPLEY[1])
    loaded = again(model, path)
    assert_equal(loaded, model)
    assert {"average": "oob_score_", "hybrid": "validation_scores_", "discriminative": "search_"}.get(
        name, "history_"
    ) in vars(loaded)
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(loaded.predict_proba(RIPLEY[0]), model.predict_proba(RIPLEY[0]))


VALUES = [
    None, True, 3, -(2**80), 0.1, -0.0, math.nan, math.inf, -math.inf, "ü\n", [], (), {}, [1, [2.5, None]],
    (1, (2, [3])),
    {"a": 1, 2: (3, "x"), (1, 2): None}, [0.5] * 20, [math.nan] * 9, list(range(20)), [2**70] * 9, [True] * 9,
    np.float32(0.1), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.str_("text"), np.float64("nan"),
    np.arange(6.0).reshape(2, 3).T, np.array(3), np.zeros((0, 2)), np.array([1, 2], np.uint16), np.array([True, False]),
    np.array([1.0, 2.0], ">f8"), np.array(["a", "bbb"]), np.array([["a", None], [1, 2.5]], dtype=object),
    np.array([np.nan, "b"], dtype=object), torch.tensor([1.0, math.nan]), torch.tensor(2),
    torch.ones(2, dtype=torch.bfloat16),
    torch.device("cuda:1"), Path("folder/file"),
    Full(), Diagonal(), Tied(Spherical()), LowRank(3), Joint(), Marginal(), Hybrid(), Margin(3.0), Shrinkage(),
    [Shrinkage(float(i)) for i in range(1, 12)], tuple(Margin(i / 3) for i in range(12)), [Full()] * 9, [Joint()] * 8,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_of_every_kind_come_back(value):
    encoder = Encoder()
    code = json.loads(json.dumps(encoder.encode(value, "value"), allow_nan=False))
    decoder = Decoder(encoder.tensors)
    assert_equal(decoder.decode(code), value)
    assert not decoder.unused


class Strange:
    """A prior of a user."""

    def log_density(self, parameters):
        return 0.0 * parameters.log_weights.sum()

    def pseudo_moments(self, n_features):
        return Conjugate(1e-9, torch.ones(n_features, dtype=torch.float64)).pseudo_moments(n_features)


REFUSED = [
    ({"random_state": np.random.RandomState(0)}, r"random_state is a RandomState, .*; pass an integer, or set it"),
    (
        {"prior": Strange()},
        r"prior is a Strange, .*; set it with model.set_params\(prior=...\) .*or register its class",
    ),
    (
        {"solver": Gradient(lambda leaves: None)},
        r"solver.optimiser is a function \(<lambda>\), .*; use a named one",
    ),
    ({"init": MixtureClassifier(1, random_state=np.random.RandomState(0))}, r"init.random_state is a RandomState"),
    ({"class_prior": np.array(["2020"], dtype="datetime64[Y]")}, r"class_prior is a ndarray of type datetime64\[Y\], "),
    (
        {"class_prior": torch.ones(2, dtype=torch.complex64)},
        r"of type torch.complex64, .*; arrays must be dense, and hold",
    ),
    ({"n_init": {1, 2}}, r"n_init is a set, which a model file cannot hold"),
    ({"class_weight": {0: 1.0, 1: print}}, r"class_weight.1 is a function \(print\)"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_kept_is_refused_in_words(arguments, message, path):
    model = MixtureClassifier(1).fit(X, Y).set_params(**arguments)
    with pytest.raises(ValueError, match=message):
        model.save(path)
    assert not path.exists()
    again(model.set_params(**dict.fromkeys(arguments)), path)


def test_attributes_that_cannot_be_kept_are_refused(path):
    model = MixtureClassifier(1).fit(X, Y)
    model.study_ = object()
    with pytest.raises(ValueError, match=r"study_ is a object, .*; remove it with `del model.study_` before saving"):
        model.save(path)


def test_registered_classes_of_others_are_kept(path):
    @storable("test.prior")
    @dataclasses.dataclass(frozen=True)
    class Registered(Strange):
        strength: float = 1.0

    class Another(MixtureClassifier):
        pass

    try:
        assert again(MixtureClassifier(1, prior=Registered(2.0)).fit(X, Y), path).prior == Registered(2.0)
        with pytest.raises(ValueError, match=r"the name 'test.prior' is already used by .*Registered; choose another"):
            storable("test.prior")(Another)
        with pytest.raises(ValueError, match=r"Another cannot be saved, .* Register the class with"):
            Another().fit(X, Y).save(path)
    finally:
        del CLASSES["test.prior"]


def test_files_name_only_what_users_can_construct():
    """Abstract classes could be named too."""
    estimators = [cls for cls in CLASSES.values() if hasattr(cls, "get_params")]
    public = [name for name in mixtura.__all__ if hasattr(getattr(mixtura, name), "get_params")]
    assert sorted(cls.__name__ for cls in estimators) == sorted([*public, "TableClassifier"])  # of the command line


def test_arguments_that_changed_after_the_fit_do_no_harm(path):
    model = MixtureClassifier(1, covariance_type="full").fit(X, Y)
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
    for model in (MixtureClassifier(1, max_iter=0).fit(X, Y), GaussianMixture(max_iter=0, random_state=0).fit(X)):
        assert_same(again(model, path), model)


def test_a_model_from_a_device_is_loaded_on_the_cpu(path, device, dtype):
    rows = torch.from_numpy(X).to(device, dtype)
    model = MixtureClassifier(1).fit(rows, torch.from_numpy(Y).to(device))
    loaded = again(model, path)
    assert loaded.mixture_.means.device.type == "cpu"
    assert_same_numbers(loaded.predict_proba(rows).cpu(), model.predict_proba(rows).cpu())


def test_the_header_is_plain_json(path):
    MixtureClassifier(2, random_state=0).fit(pd.DataFrame(X, columns=list("abcd")), Y).save(path)
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["mixtura"], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert header["format"] == "mixtura model"
    assert header["format_version"] == 4
    assert header["model"]["estimator"] == "MixtureClassifier"
    assert header["model"]["fitted"]["feature_names_in_"]["array"] == list("abcd")


def test_paths_as_text_and_overwriting(path):
    MixtureClassifier(1).fit(X, Y).save(str(path))
    MixtureClassifier(1, covariance_type="diag").fit(X, Y).save(str(path))
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
    MixtureClassifier(1).fit(X, Y).save(path)
    return path


def edited(path, change):
    """The file, written again with another header and other tensors; a missing checksum is computed."""
    from mixtura.files.models import _checksum

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["mixtura"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    if "checksum" not in header:
        header["checksum"] = _checksum(header, tensors)
    tensors = {name: part.contiguous() for name, part in tensors.items()}
    save_file(tensors, path, metadata={"mixtura": json.dumps(header)})
    return path


def doubles(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def tag(name, **fields):
    return {"value": name, "fields": fields}


INDEFINITE = torch.eye(4, dtype=torch.float64).expand(3, 4, 4) - 2 * doubles(4, 4)
# Each changes the model, its fitted attributes or its tensors so that the file is no longer one that `save` writes.
CHANGES = [
    lambda model, fitted, tensors: model.update(estimator="os.system"),
    lambda model, fitted, tensors: model.update(estimator="DensityEstimator"),
    lambda model, fitted, tensors: model.update(estimator="mixture"),
    lambda model, fitted, tensors: model.update(estimator="GaussianMixture"),
    lambda model, fitted, tensors: model.pop("arguments"),
    lambda model, fitted, tensors: model["arguments"].update(colour="red"),
    lambda model, fitted, tensors: model["arguments"].update(n_components={"dict": 3}),
    lambda model, fitted, tensors: model["arguments"].update(n_components={"dict": [[[1], 3]]}),
    lambda model, fitted, tensors: model["arguments"].update(prior={"code": "print(1)"}),
    lambda model, fitted, tensors: model["arguments"].update(prior=tag("strange")),
    lambda model, fitted, tensors: model["arguments"].update(prior=tag("shrinkage", strength="much")),
    lambda model, fitted, tensors: model["arguments"].update(prior=tag("shrinkage", force=1.0)),
    lambda model, fitted, tensors: model["arguments"].update(prior=tag("shrinkage", strength=-1.0)),
    lambda model, fitted, tensors: model["arguments"].update(prior=tag("conjugate")),
    lambda model, fitted, tensors: model["arguments"].update(tol={"float": "1e5"}),
    lambda model, fitted, tensors: model["arguments"].update(tol={"scalar": 1, "dtype": "O"}),
    lambda model, fitted, tensors: model["arguments"].update(
        tol={"array": ["a"], "dtype": "<U999999999", "shape": [1]}
    ),
    lambda model, fitted, tensors: model["arguments"].update(tol={"array": [], "dtype": "O", "shape": [0, 10**12]}),
    lambda model, fitted, tensors: model["arguments"].update(tol={"array": "mixture_.means", "dtype": "<f8"}),
    lambda model, fitted, tensors: fitted.clear(),
    lambda model, fitted, tensors: fitted.pop("mixture_"),
    lambda model, fitted, tensors: fitted.pop("converged_"),
    lambda model, fitted, tensors: fitted.update(predict=1),
    lambda model, fitted, tensors: fitted.update(n_parameters_=1),
    lambda model, fitted, tensors: fitted.update(n_features_in_=3),
    lambda model, fitted, tensors: fitted.update(n_iter_="many"),
    lambda model, fitted, tensors: fitted.update(history_=[1, 2]),
    lambda model, fitted, tensors: fitted.update(warp_="johnson"),
    lambda model, fitted, tensors: fitted.update(mixture_=tag("mixture")),
    lambda model, fitted, tensors: fitted.update(classes_={"array": ["a", "b"], "dtype": "O", "shape": [2]}),
    lambda model, fitted, tensors: fitted.update(classes_={"array": ["a", "b", "a"], "dtype": "O", "shape": [3]}),
    lambda model, fitted, tensors: fitted.update(classes_={"array": ["a"], "dtype": "strange", "shape": [1]}),
    lambda model, fitted, tensors: fitted.update(feature_names_in_={"array": ["a"], "dtype": "O", "shape": [1]}),
    lambda model, fitted, tensors: tensors.pop("mixture_.means"),
    lambda model, fitted, tensors: tensors.pop("mixture_.covariance.matrices"),
    lambda model, fitted, tensors: tensors.update(unused=doubles(2)),
    lambda model, fitted, tensors: tensors["mixture_.means"].fill_(math.nan),
    lambda model, fitted, tensors: tensors["mixture_.log_weights"].fill_(math.inf),
    lambda model, fitted, tensors: tensors["mixture_.log_weights"].fill_(-math.inf),
    lambda model, fitted, tensors: tensors["mixture_.class_of"].copy_(torch.tensor([0, 2, 1])),
    lambda model, fitted, tensors: tensors["mixture_.class_of"].copy_(torch.tensor([0, 1, 10**12])),
    lambda model, fitted, tensors: tensors["mixture_.class_of"].copy_(torch.tensor([-1, 0, 1])),
    lambda model, fitted, tensors: tensors["mixture_.class_of"].copy_(torch.tensor([0, 1, 1])),
    lambda model, fitted, tensors: tensors["mixture_.covariance.matrices"].copy_(INDEFINITE),
    lambda model, fitted, tensors: tensors["mixture_.covariance.matrices"].zero_(),
    lambda model, fitted, tensors: tensors["mixture_.covariance.matrices"][:, 0, 1].add_(1.0),
    lambda model, fitted, tensors: tensors["class_prior_"].fill_(-1.0),
    lambda model, fitted, tensors: tensors.update({"mixture_.class_of": torch.zeros(3, dtype=torch.int32)}),
    lambda model, fitted, tensors: tensors.update({"mixture_.means": doubles(2, 4)}),
    lambda model, fitted, tensors: tensors.update({"mixture_.means": doubles(3)}),
    lambda model, fitted, tensors: tensors.update({"mixture_.means": doubles(3, 0)}),
    lambda model, fitted, tensors: tensors.update({"mixture_.means": doubles(3, 4).float()}),
    lambda model, fitted, tensors: tensors.update({"mixture_.covariance.matrices": doubles(3, 4)}),
    lambda model, fitted, tensors: tensors.update(
        {"mixture_.covariance.matrices": torch.eye(5).double().expand(3, 5, 5)}
    ),
]


class TestRefused:
    def test_missing_file(self, path):
        with pytest.raises(
            FileNotFoundError, match=r"No model file at .*model\.mixtura'\. Check the path, or write a file"
        ):
            mixtura.load(path)
        with pytest.raises(FileNotFoundError, match="No model file at"):
            mixtura.load(path.parent)

    def test_missing_folder(self, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"There is no folder .*nowhere' to save the model in; create it first"
        ):
            MixtureClassifier(1).fit(X, Y).save(tmp_path / "nowhere" / "model")

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
        refused(saved, r"is not a model file of mixtura, or it is damaged .*\. Save the model again with model.save")

    @pytest.mark.parametrize("place", [-1, -50, -200])
    def test_a_flipped_bit(self, saved, place):
        content = bytearray(saved.read_bytes())
        content[place] ^= 4
        saved.write_bytes(bytes(content))
        refused(saved, r"is damaged: its checksum does not match\. Save the model again")

    def test_tensors_of_another_program(self, path):
        save_file({"weight": torch.ones(3)}, path)
        refused(path, r"is not a model file of mixtura, or it is damaged \(it has no header of mixtura\)")
        save_file({"weight": torch.ones(3)}, path, metadata={"mixtura": "not json"})
        refused(path, r"is not a model file of mixtura, or it is damaged \(its header is not JSON")
        save_file({"weight": torch.ones(3)}, path, metadata={"mixtura": json.dumps({"format": "other"})})
        refused(path, r"was not written by mixtura\. Pass a file written by model.save")

    def test_another_version(self, saved):
        edited(saved, lambda header, _: header.update(format_version=99))
        refused(saved, r"has format version 99, but this mixtura reads versions 3 to 4\. Install the version")

    def test_a_changed_header(self, saved):
        edited(saved, lambda header, _: header["model"]["arguments"].update(tol=1.0))
        refused(saved, "its checksum does not match")

    @pytest.mark.parametrize("change", CHANGES, ids=[str(i) for i in range(len(CHANGES))])
    def test_parts_that_do_not_fit_together(self, saved, change):
        def without_checksum(header, tensors):
            del header["checksum"]
            change(header["model"], header["model"]["fitted"], tensors)

        edited(saved, without_checksum)
        refused(saved, r"is damaged \(.*\)\. Save the model again")


# ---- other programs that store models --------------------------------------------------------------------------------

PENGUINS = load_penguins()
STORED = {  # samples, and an estimator
    "default": ((X, Y), MixtureClassifier(random_state=0)),
    "default with categories": (PENGUINS, MixtureClassifier(random_state=0)),
    "density": ((X, None), GaussianMixture(2, random_state=0)),
    "average": ((X, Y), AveragedMixtureClassifier(n_estimators=3, random_state=0)),
    "discriminative": ((X, Y), DiscriminativeMixtureClassifier(1, prior="default", tradeoff=0.5)),
    "sparse": ((X[:40], Y[30:70] > 0), SparseMixtureClassifier(max_iter=5)),
    "reject option": ((X, Y), RejectOption()),
    "table": (PENGUINS, TableClassifier(MixtureClassifier(1))),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("program", ["joblib", "skops"])
def test_models_are_stored_by_other_programs(name, program, tmp_path):
    (rows, labels), estimator = STORED[name]
    fitted, path = clone(estimator).fit(rows, labels), tmp_path / "model"
    if program == "joblib":
        joblib.dump(fitted, path)
        again = joblib.load(path)
    else:
        skops = pytest.importorskip("skops.io")
        skops.dump(fitted, path)
        assert skops.get_untrusted_types(file=path) == [f"{type(fitted).__module__}.{type(fitted).__name__}"]
        again = skops.load(path, trusted=skops.get_untrusted_types(file=path))
        assert fitted_of(again).keys() == fitted_of(fitted).keys()
    assert_same_numbers(again.predict_proba(rows), fitted.predict_proba(rows))
    assert clone(again).get_params(deep=False).keys() == fitted.get_params(deep=False).keys()
