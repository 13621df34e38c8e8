"""Models in other runtimes: ONNX graphs, and the classes of scikit-learn."""

import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC

from mixtura import (
    AveragedMixtureClassifier,
    GaussianMixture,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    SparseMixtureClassifier,
    load,
)
from mixtura.model.transforms import Warp
from named_samples import NAMES, named_samples

WARP = Warp([0.0] * 4, [1.0, math.inf, 2.0, math.inf])
MODELS = {
    "full": MixtureClassifier(2, random_state=0),
    "diagonal, tempered": MixtureClassifier(1, covariance_type="diag", random_state=0),
    "warped": MixtureClassifier(1, covariance_type="diag", warp=WARP, random_state=0),
    "density": GaussianMixture(3, covariance_type="tied", random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(1, covariance_type="diag"), n_estimators=3, random_state=0),
    "averaged densities": AveragedMixtureClassifier(MixtureClassifier(2), 3, combine="density", random_state=0),
    "sparse": SparseMixtureClassifier(random_state=0),
    "kernels": SparseMixtureClassifier(kernel="rbf", random_state=0),
    "nonnegative": NonnegativeMixtureClassifier(random_state=0, tol=1e-3),
}


def answers(model, path, rows):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model.to_onnx(path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, session.run(None, {"X": rows})


QUICK = ("warped", "sparse")  # an export takes seconds


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_onnx_graphs_answer_as_the_model(name, tmp_path):
    model = clone(MODELS[name])
    has_density = hasattr(model, "score_samples")
    n_classes = 10 if name in ("diagonal, tempered", "nonnegative") else 2
    X, y = named_samples(n_classes, missing=0.2 if has_density else 0.0)
    X = (X - X.min()).astype(np.float32)
    model.fit(X, y)
    if "tempered" in name:
        model.temperature_ = 1.5
    if name in ("warped", "diagonal, tempered"):
        model.label_noise_ = 0.05
    if name == "nonnegative":
        X.iloc[0] = 0  # a sample of zeros gets the class prior
    if name in ("sparse", "nonnegative", "full", "diagonal, tempered"):
        prior = np.linspace(1, 2, n_classes)
        model = model.with_class_prior(prior / prior.sum())
    session, actual = answers(model, tmp_path / "model.onnx", X.to_numpy())
    expected = [model.predict_proba(X)] + ([model.score_samples(X)] if has_density else [])
    for ours, theirs in zip(expected, actual, strict=True):
        assert theirs.dtype == np.float32
        assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    assert len(session.run(None, {"X": X.to_numpy()[:1]})[0]) == 1  # any number of samples
    notes = session.get_modelmeta().custom_metadata_map
    assert json.loads(notes["feature_names"]) == NAMES
    if name != "density":
        assert json.loads(notes["classes"]) == model.classes_.tolist()


@pytest.mark.slow
def test_onnx_graphs_of_many_features_take_complete_samples(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 40)).astype(np.float32), rng.integers(2, size=200)
    model = MixtureClassifier(1).fit(X, y)
    _, actual = answers(model, tmp_path / "model.onnx", X)
    assert_allclose(actual[0], model.predict_proba(X), atol=1e-5)


# ---- scikit-learn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_mixtures_go_to_scikit_learn_and_back(kind, tmp_path):
    X, _ = named_samples(2, missing=0.0)
    ours = GaussianMixture(3, covariance_type=kind, random_state=0).fit(X)
    theirs = ours.to_sklearn()
    assert isinstance(theirs, SklearnMixture)
    assert_allclose(theirs.score_samples(X), ours.score_samples(X), atol=1e-9)
    back = GaussianMixture.from_sklearn(SklearnMixture(3, covariance_type=kind, random_state=0).fit(X))
    assert_allclose(back.predict_proba(X), ours.predict_proba(X), atol=1e-5)
    assert_allclose(GaussianMixture.from_sklearn(theirs).score_samples(X), ours.score_samples(X), atol=1e-9)
    assert back.feature_names_in_.tolist() == NAMES
    back.save(tmp_path / "model")
    assert_allclose(load(tmp_path / "model").covariances_, back.covariances_)


def test_other_covariances_become_full_in_scikit_learn():
    X, _ = named_samples(2, missing=0.0)
    ours = GaussianMixture(2, covariance_type="low_rank", rank=1, random_state=0).fit(X)
    assert_allclose(ours.to_sklearn().score_samples(X), ours.score_samples(X), atol=1e-9)


ANALYSES = {
    "quadratic": QuadraticDiscriminantAnalysis(),
    "linear": LinearDiscriminantAnalysis(store_covariance=True),
    "linear, lsqr": LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1, store_covariance=True),
    "naive Bayes": GaussianNB(),
}


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("analysis", ANALYSES.values(), ids=ANALYSES)
def test_discriminant_analyses_come_from_scikit_learn_and_go_back(analysis, n_classes):
    X, y = named_samples(n_classes, missing=0.0)
    theirs = clone(analysis).fit(X, y)
    ours = MixtureClassifier.from_sklearn(theirs)
    assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert ours.predict(X).tolist() == theirs.predict(X).tolist()
    assert np.isfinite(ours.predict_proba(X.mask(X > 2))).all()  # with missing values, which theirs does not take
    again = ours.to_sklearn()
    assert type(again) is type(theirs)
    assert_allclose(again.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


def test_conversions_say_what_they_do_not_take():
    X, y = named_samples(2, missing=0.0)
    with pytest.raises(TypeError, match=r"from_sklearn takes a QuadraticDiscriminantAnalysis.*; got SVC"):
        MixtureClassifier.from_sklearn(SVC().fit(X, y))
    with pytest.raises(TypeError, match="from_sklearn takes a GaussianMixture of scikit-learn; got SVC"):
        GaussianMixture.from_sklearn(SVC().fit(X, y))
    with pytest.raises(ValueError, match="fit it with store_covariance=True"):
        MixtureClassifier.from_sklearn(LinearDiscriminantAnalysis().fit(X, y))
    with pytest.raises(ValueError, match=r"this model has \[2, 2\] components per class, no transform"):
        MixtureClassifier(2, random_state=0).fit(X, y).to_sklearn()
