"""GaussianMixture beside scikit-learn's class of that name and mclust; and what it has beyond them."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.decomposition import FactorAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Theirs

from mixtura import GaussianMixture
from mixtura.checks import RepairWarning
from mixtura.covariances import Diagonal, Tied
from mixtura.priors import Conjugate

FIXTURES = Path(__file__).parent / "fixtures"
COVARIANCE_TYPES = ["full", "tied", "diag", "spherical"]
STARTS = ["kmeans", "k-means++", "random", "random_from_data"]
PARAMETERS = ["weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"]
METHODS = ["predict", "predict_proba", "score_samples", "score", "bic", "aic"]


def three_groups(n_rows: int = 180, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0, 0.0], [4.0, 0.0, 1.0], [0.0, 5.0, -3.0]])
    scales = np.array([[1.0, 2.0, 0.5], [1.0, 1.0, 1.0], [0.7, 0.7, 1.5]])
    rows = rng.normal(size=(n_rows, 3))
    rows[:, 1] += 0.6 * rows[:, 0]
    group = np.arange(n_rows) % 3
    return centres[group] + scales[group] * rows


X = three_groups()


def quietly(call, *arguments, **named):
    """The call without its warning that max_iter was too small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return call(*arguments, **named)


def both(rows=X, **arguments):
    """Ours and theirs, fitted with the same arguments."""
    return quietly(GaussianMixture(**arguments).fit, rows), quietly(Theirs(**arguments).fit, rows)


def assert_same_fit(ours, theirs, rows=X, tolerance: float = 1e-8) -> None:
    assert (ours.n_iter_, ours.converged_) == (theirs.n_iter_, theirs.converged_)
    assert len(ours.lower_bounds_) == len(theirs.lower_bounds_)
    if ours.lower_bounds_:
        # From single rows the first bound is about -1e6, and scikit-learn's variances there are half rounding.
        relative = 1e-6 if ours.lower_bounds_[0] < -1e4 else 0
        np.testing.assert_allclose(ours.lower_bounds_[0], theirs.lower_bounds_[0], rtol=relative, atol=tolerance)
        np.testing.assert_allclose(ours.lower_bounds_[1:], theirs.lower_bounds_[1:], rtol=0, atol=tolerance)
        assert ours.lower_bound_ == ours.lower_bounds_[-1]
    for name in PARAMETERS:
        actual, expected = getattr(ours, name), getattr(theirs, name)
        assert actual.shape == expected.shape, name
        np.testing.assert_allclose(actual, expected, rtol=100 * tolerance, atol=100 * tolerance, err_msg=name)
    for name in METHODS:
        actual, expected = getattr(ours, name)(rows), getattr(theirs, name)(rows)
        np.testing.assert_allclose(actual, expected, rtol=100 * tolerance, atol=100 * tolerance, err_msg=name)


# ---- the same numbers as scikit-learn ------------------------------------------------------------------------------


@pytest.mark.parametrize("init_params", STARTS)
@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("n_init", [1, 3])
def test_same_random_state_same_fit(covariance_type, init_params, n_init):
    # Few iterations, so that several starts do not end at one maximum, where rounding would choose among them.
    arguments = {"max_iter": 4 if n_init > 1 else 100, "tol": 0 if n_init > 1 else 1e-4}
    ours, theirs = both(
        n_components=4,
        covariance_type=covariance_type,
        init_params=init_params,
        n_init=n_init,
        random_state=3,
        **arguments,
    )
    assert_same_fit(ours, theirs)


@pytest.mark.parametrize("init_params", STARTS)
@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("n_init", [1, 2])
def test_same_start_without_iterations(covariance_type, init_params, n_init):
    arguments = {"n_components": 3, "covariance_type": covariance_type, "init_params": init_params, "n_init": n_init}
    ours, theirs = both(max_iter=0, random_state=1, **arguments)
    assert ours.n_iter_ == 0
    assert not ours.converged_
    assert ours.lower_bound_ == theirs.lower_bound_ == -np.inf
    # One over a variance of 1e-6 shows scikit-learn's rounding of that variance.
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def precisions(covariance_type: str) -> np.ndarray:
    matrices = np.array([[[2.0, 0.3, 0], [0.3, 1.0, 0.1], [0, 0.1, 0.5]], np.eye(3), 2 * np.eye(3)])
    return {
        "full": matrices,
        "tied": matrices[0],
        "diag": matrices.diagonal(axis1=1, axis2=2),
        "spherical": matrices[:, 0, 0],
    }[covariance_type]


@pytest.mark.parametrize("given", ["w", "m", "p", "wm", "wmp", "mp"])
@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_given_starts(covariance_type, given):
    parts = {
        "w": {"weights_init": [0.2, 0.3, 0.5]},
        "m": {"means_init": X[[0, 1, 2]]},
        "p": {"precisions_init": precisions(covariance_type)},
    }
    arguments = {name: value for letter in given for name, value in parts[letter].items()}
    ours, theirs = both(n_components=3, covariance_type=covariance_type, random_state=0, tol=1e-5, **arguments)
    assert_same_fit(ours, theirs)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_warm_start_goes_on(covariance_type):
    arguments = {"n_components": 3, "covariance_type": covariance_type, "random_state": 0, "warm_start": True}
    models = GaussianMixture(max_iter=1, tol=1e-6, **arguments), Theirs(max_iter=1, tol=1e-6, **arguments)
    for _ in range(5):
        for model in models:
            quietly(model.fit, X)
        assert_same_fit(*models)
    for model in models:
        model.set_params(max_iter=100).fit(X)
    assert_same_fit(*models)


def test_warm_start_with_other_settings_says_what_differs():
    model = GaussianMixture(2, warm_start=True).fit(X)
    with pytest.raises(
        ValueError, match=re.escape("has 3 features and [2] components per class, but the model has 3 features and [4]")
    ):
        model.set_params(n_components=4).fit(X)
    with pytest.raises(
        ValueError,
        match=r"other covariances than covariance_type='diag' \(12 parameters instead of "
        r"6\)",
    ):
        model.set_params(n_components=2, covariance_type="diag").fit(X)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
@pytest.mark.parametrize("reg_covar", [0.0, 0.3])
def test_ridge(covariance_type, reg_covar):
    assert_same_fit(*both(n_components=3, covariance_type=covariance_type, reg_covar=reg_covar, random_state=0))


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_single_precision(covariance_type):
    rows = X.astype(np.float32)
    ours, theirs = both(rows, n_components=3, covariance_type=covariance_type, random_state=0, tol=1e-4)
    np.testing.assert_allclose(ours.lower_bound_, theirs.lower_bound_, atol=1e-3)
    np.testing.assert_allclose(ours.means_, theirs.means_, atol=0.02)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, atol=0.05)
    assert np.mean(ours.predict(rows) == theirs.predict(rows)) > 0.98


@pytest.mark.parametrize("covariance_type", [*COVARIANCE_TYPES, "low_rank"])
def test_single_precision_agrees_with_double(covariance_type):
    arguments = {"n_components": 3, "covariance_type": covariance_type, "random_state": 0, "max_iter": 10, "tol": 0}
    single = quietly(GaussianMixture(**arguments).fit, X.astype(np.float32))
    double = quietly(GaussianMixture(**arguments).fit, X.astype(np.float32).astype(float))
    np.testing.assert_allclose(single.lower_bounds_, double.lower_bounds_, atol=1e-9)
    np.testing.assert_allclose(single.covariances_, double.covariances_, atol=1e-7)


def test_one_feature_and_one_component():
    for covariance_type in COVARIANCE_TYPES:
        assert_same_fit(*both(X[:, :1], covariance_type=covariance_type), rows=X[:, :1])
        assert_same_fit(*both(covariance_type=covariance_type))


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("arguments", [{"max_iter": 3}, {"max_iter": 100}, {"max_iter": 0}], ids=str)
def test_prints_what_scikit_learn_prints(verbose, arguments, capsys):
    settings = {
        "n_components": 3,
        "n_init": 2,
        "random_state": 0,
        "verbose": verbose,
        "verbose_interval": 2,
        **arguments,
    }
    quietly(GaussianMixture(**settings).fit, X)
    ours = capsys.readouterr().out
    quietly(Theirs(**settings).fit, X)
    theirs = capsys.readouterr().out
    without_times = [re.sub(r"time lapse \d+\.\d+s", "time", text) for text in (ours, theirs)]
    assert without_times[0] == without_times[1]
    assert bool(ours) == (verbose > 0)


def test_did_not_converge_warns_as_scikit_learn():
    messages = []
    for kind in (GaussianMixture, Theirs):
        with pytest.warns(ConvergenceWarning) as caught:
            kind(3, max_iter=1, random_state=0).fit(X)
        messages.append(str(caught[0].message))
        assert kind is Theirs or caught[0].filename == __file__
    assert messages[0] == messages[1]


def test_fit_predict_is_fit_then_predict():
    model = GaussianMixture(3, random_state=0)
    np.testing.assert_array_equal(model.fit_predict(X), GaussianMixture(3, random_state=0).fit(X).predict(X))
    np.testing.assert_array_equal(model.predict(X), Theirs(3, random_state=0).fit_predict(X))


def test_takes_every_argument_and_has_every_attribute_of_scikit_learn():
    theirs = Theirs(2, random_state=0)
    ours = GaussianMixture(**theirs.get_params())
    assert theirs.get_params().items() <= ours.get_params().items()
    ours.fit(X)
    public = [name for name in vars(theirs.fit(X)) if name.endswith("_") and not name.startswith("_")]
    assert {"precisions_cholesky_", "lower_bounds_", "n_features_in_"} <= set(public)
    for name in public:
        assert type(getattr(ours, name)) is type(getattr(theirs, name)) or isinstance(getattr(ours, name), float), name


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_samples_come_from_the_mixture(covariance_type):
    model = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(X)
    rows, components = model.sample(30_000)
    assert rows.shape == (30_000, 3)
    assert components.dtype == np.int64
    assert (np.diff(components) >= 0).all()
    np.testing.assert_allclose(np.bincount(components) / 30_000, model.weights_, atol=0.01)
    dense = model.mixture_.covariances.numpy()
    for k in range(3):
        np.testing.assert_allclose(rows[components == k].mean(0), model.means_[k], atol=0.1)
        np.testing.assert_allclose(np.cov(rows[components == k].T), dense[k], atol=0.05 * dense[k].max())
    again, _ = model.sample(30_000)
    np.testing.assert_array_equal(rows, again)


# ---- the same errors as scikit-learn -------------------------------------------------------------------------------

EYE = np.eye(3)
SLANTED = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
BAD_ARGUMENTS = [
    {"n_components": 0},
    {"n_components": 1.5},
    {"n_components": "three"},
    {"tol": -1},
    {"reg_covar": -1e-3},
    {"max_iter": -1},
    {"max_iter": 2.5},
    {"n_init": 0},
    {"init_params": "best"},
    {"random_state": "seed"},
    {"warm_start": "yes"},
    {"verbose": -1},
    {"verbose_interval": 0},
    {"weights_init": 3},
    {"n_components": 2, "weights_init": [0.2, 0.3, 0.5]},
    {"n_components": 2, "weights_init": [0.5, 0.6]},
    {"n_components": 2, "weights_init": [np.nan, 0.6]},
    {"n_components": 2, "means_init": [[1, 2], [3, 4]]},
    {"n_components": 2, "means_init": [1, 2]},
    {"n_components": 2, "means_init": [[np.inf, 2, 3], [1, 2, 3]]},
    {"n_components": 2, "precisions_init": np.ones((2, 2, 2))},
    {"n_components": 2, "precisions_init": EYE},
    {"n_components": 2, "precisions_init": np.array([EYE, -EYE])},
    {"n_components": 2, "precisions_init": np.array([EYE, SLANTED])},
    {"n_components": 2, "covariance_type": "tied", "precisions_init": np.eye(2)},
    {"n_components": 2, "covariance_type": "tied", "precisions_init": -EYE},
    {"n_components": 2, "covariance_type": "tied", "precisions_init": SLANTED},
    {"n_components": 2, "covariance_type": "diag", "precisions_init": np.ones((2, 2))},
    {"n_components": 2, "covariance_type": "diag", "precisions_init": -np.ones((2, 3))},
    {"n_components": 2, "covariance_type": "spherical", "precisions_init": np.ones(3)},
    {"n_components": 2, "covariance_type": "spherical", "precisions_init": np.array([1.0, -1.0])},
    {"n_components": 181},
]
BAD_ROWS = {
    "one dimension": X[0],
    "three dimensions": X[None],
    "a number": 3.0,
    "one row": X[:1],
    "no rows": X[:0],
    "no columns": X[:, :0],
    "complex": X + 1j,
    "sparse": sparse.csr_array(X),
}


def complaint(call) -> tuple[str, str]:
    """Kind and text of the error; options that scikit-learn prints as a set come in alphabetical order."""
    with pytest.raises((ValueError, TypeError, AttributeError)) as caught:
        call()
    text = re.sub(r"\{(.*?)\}", lambda options: ", ".join(sorted(options[1].split(", "))), str(caught.value))
    return caught.type.__name__, text


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=lambda a: ", ".join(f"{k}={v!r}"[:40] for k, v in a.items()))
def test_bad_arguments_get_the_words_of_scikit_learn(arguments):
    assert complaint(lambda: GaussianMixture(**arguments).fit(X)) == complaint(lambda: Theirs(**arguments).fit(X))


@pytest.mark.parametrize("rows", BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_get_the_words_of_scikit_learn(rows):
    assert complaint(lambda: GaussianMixture().fit(rows)) == complaint(lambda: Theirs().fit(rows))


def test_infinities_get_the_words_of_scikit_learn_and_a_cure():
    rows = np.where(X > 3, np.inf, X)
    kind, text = complaint(lambda: GaussianMixture().fit(rows))
    _, theirs = complaint(lambda: Theirs().fit(rows))
    assert (kind, text) == (
        "ValueError",
        f"{theirs} Remove those samples, clip them, or set the values to NaN (missing).",
    )


def test_weights_out_of_range_name_the_largest_and_the_smallest():
    # scikit-learn's own message names them the wrong way round.
    kind, text = complaint(lambda: GaussianMixture(2, weights_init=[1.5, -0.5]).fit(X))
    assert kind == "ValueError"
    assert (
        text == "The parameter 'weights' should be in the range [0, 1], but got max value 1.50000, min value -0.50000"
    )


def test_unknown_covariance_lists_the_known_ones():
    kind, text = complaint(lambda: GaussianMixture(covariance_type="round").fit(X))
    assert kind == "InvalidParameterError"
    for part in ("'covariance_type' parameter of GaussianMixture", "'low_rank'", "'tied'", "Got 'round' instead."):
        assert part in text


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_equal_rows_without_ridge_raise_as_scikit_learn(covariance_type):
    arguments = {"n_components": 2, "covariance_type": covariance_type, "reg_covar": 0}
    rows = np.ones((10, 2))
    with pytest.warns(ConvergenceWarning, match="X has 1 distinct samples for 2 components"):
        kind, text = complaint(lambda: GaussianMixture(**arguments).fit(rows))
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        their_kind, their_text = complaint(lambda: Theirs(**arguments).fit(rows))
    assert kind == their_kind == "ValueError"
    assert text == their_text + " Or use prior='default', which never fails."


def test_other_mistakes():
    fitted = GaussianMixture(2, random_state=0).fit(X)
    theirs = Theirs(2, random_state=0).fit(X)
    assert complaint(lambda: fitted.predict(X[:, :2])) == complaint(lambda: theirs.predict(X[:, :2]))
    assert complaint(lambda: GaussianMixture().means_)[0] == "AttributeError"
    kind, text = complaint(lambda: fitted.sample(0))
    assert (kind, text) == (
        "ValueError",
        "Invalid value for 'n_samples': 0 . The sampling requires at least one sample.",
    )


# ---- the same numbers as mclust ------------------------------------------------------------------------------------

MCLUST = {"VVV": "full", "VVI": "diag", "VII": "spherical", "EEE": "tied"}


def fixture(name: str) -> dict:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def from_labels(rows, labels, weights, covariance_type) -> dict:
    """weights_init, means_init and precisions_init of the M-step from hard labels."""
    parts = [(rows[labels == k], weights[labels == k]) for k in range(labels.max() + 1)]
    totals = np.array([w.sum() for _, w in parts])
    means = np.array([w @ r / w.sum() for r, w in parts])
    scatters = np.array([(r - m).T @ ((r - m) * w[:, None]) for (r, w), m in zip(parts, means, strict=True)])
    matrices = scatters / totals[:, None, None]
    diagonals = matrices.diagonal(axis1=1, axis2=2)
    precisions_init = {
        "full": lambda: np.linalg.inv(matrices),
        "tied": lambda: np.linalg.inv(scatters.sum(0) / totals.sum()),
        "diag": lambda: 1 / diagonals,
        "spherical": lambda: 1 / diagonals.mean(1),
    }[covariance_type]()
    return {"weights_init": totals / totals.sum(), "means_init": means, "precisions_init": precisions_init}


@pytest.mark.parametrize("data", ["faithful", "iris", "faithful_weighted"])
@pytest.mark.parametrize("name", MCLUST)
def test_iterations_and_fixed_point_of_mclust(data, name):
    numbers = fixture("mclust_em")
    rows = load_iris().data if data == "iris" else np.array(numbers["faithful"]["X"])
    case, expected = numbers[data], numbers[data]["models"][name]
    weights = np.array(case.get("row_weights", np.ones(len(rows))))
    start = from_labels(rows, np.array(case["start_labels"]), weights, MCLUST[name])
    model = GaussianMixture(3, covariance_type=MCLUST[name], reg_covar=0, tol=1e-13, max_iter=5000, **start)
    quietly(model.fit, rows, sample_weight=None if data != "faithful_weighted" else weights)
    first = expected.get("loglik_of_first_iterations", [])
    np.testing.assert_allclose(np.array(model.lower_bounds_[: len(first)]) * weights.sum(), first, rtol=1e-10)
    assert model.lower_bound_ * weights.sum() == pytest.approx(expected["loglik"], rel=1e-9)
    np.testing.assert_allclose(model.weights_, expected["weights"], atol=1e-5)
    np.testing.assert_allclose(model.means_, expected["means"], atol=1e-3)
    np.testing.assert_allclose(model.mixture_.covariances, expected["covariances"], rtol=1e-3, atol=1e-4)
    if "bic_mclust" in expected:
        assert model.bic(rows) == pytest.approx(-expected["bic_mclust"], rel=1e-8)
        assert model.n_parameters_ == expected["n_parameters"]


@pytest.mark.parametrize("name", ["full", "diag", "spherical", "low_rank_1", "low_rank_2"])
def test_missing_values_of_lavaan(name):
    numbers = fixture("lavaan_missing")["generated"]
    rows = np.array(numbers["X"], dtype=float)
    kind, _, rank = name.partition("_rank_")
    arguments = {"covariance_type": "low_rank", "rank": int(rank)} if rank else {"covariance_type": kind}
    model = GaussianMixture(reg_covar=0, tol=1e-9 if rank else 1e-12, max_iter=20_000, **arguments).fit(rows)
    tolerance = 1e-6 if rank else 1e-9
    assert model.score_samples(rows).sum() == pytest.approx(numbers[name]["loglik"], rel=tolerance)
    np.testing.assert_allclose(model.means_[0], numbers[name]["mean"], atol=1e-3 if rank else 1e-4)


# ---- beyond scikit-learn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance_type", [*COVARIANCE_TYPES, "low_rank"])
def test_weight_two_is_a_row_twice(covariance_type):
    weights = np.random.default_rng(0).integers(0, 3, len(X))
    arguments = {"n_components": 3, "covariance_type": covariance_type, "max_iter": 7, "tol": 0, "means_init": X[:3]}
    shares = {"weights_init": [0.2, 0.3, 0.5]}
    if covariance_type != "low_rank":
        shares["precisions_init"] = precisions(covariance_type)
    else:
        arguments["n_components"], arguments["means_init"], shares = 1, None, {}
    weighted = quietly(GaussianMixture(**arguments, **shares).fit, X, sample_weight=weights)
    repeated = quietly(GaussianMixture(**arguments, **shares).fit, np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.lower_bounds_, repeated.lower_bounds_, atol=1e-9)
    np.testing.assert_allclose(weighted.means_, repeated.means_, atol=1e-9)
    np.testing.assert_allclose(weighted.covariances_, repeated.covariances_, atol=1e-9)


@pytest.mark.parametrize("init_params", STARTS)
@pytest.mark.parametrize("covariance_type", [*COVARIANCE_TYPES, "low_rank"])
def test_missing_values_and_weights_from_every_start(covariance_type, init_params):
    rng = np.random.default_rng(0)
    rows = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    model = GaussianMixture(3, covariance_type=covariance_type, init_params=init_params, random_state=0, tol=1e-5)
    quietly(model.fit, rows, sample_weight=rng.uniform(0.5, 2, len(X)))
    assert (np.diff(model.lower_bounds_[1:]) > -1e-7).all()
    completed = model.impute(rows)
    assert np.isfinite(completed).all()
    np.testing.assert_array_equal(completed[~np.isnan(rows)], rows[~np.isnan(rows)])
    assert np.isfinite(model.score_samples(rows)).all()
    np.testing.assert_allclose(model.predict_proba(rows).sum(1), 1)


def test_a_row_with_nothing_observed_gets_the_weights():
    model = GaussianMixture(3, random_state=0).fit(X)
    nothing = np.full((1, 3), np.nan)
    np.testing.assert_allclose(model.predict_proba(nothing)[0], model.weights_, atol=1e-12)
    np.testing.assert_allclose(model.score_samples(nothing), 0, atol=1e-12)
    np.testing.assert_allclose(model.impute(nothing)[0], model.weights_ @ model.means_, atol=1e-12)


def test_low_rank_is_factor_analysis():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6)) + rng.normal(size=(300, 6)) * rng.uniform(0.3, 1, 6)
    model = GaussianMixture(covariance_type="low_rank", rank=2, reg_covar=0, tol=1e-10, max_iter=20_000).fit(rows)
    theirs = FactorAnalysis(2, tol=1e-10, max_iter=10_000, svd_method="lapack").fit(rows)
    assert model.score(rows) == pytest.approx(theirs.score(rows), abs=1e-6)
    np.testing.assert_allclose(model.covariances_[0], theirs.get_covariance(), atol=1e-3)
    np.testing.assert_allclose(model.precisions_[0] @ model.covariances_[0], np.eye(6), atol=1e-9)
    assert model.covariances_.shape == (1, 6, 6)


def test_automatic_and_full_rank():
    full = GaussianMixture(reg_covar=0).fit(X)
    same = GaussianMixture(covariance_type="low_rank", rank=3, tol=1e-6, max_iter=1000, reg_covar=0).fit(X)
    automatic = GaussianMixture(covariance_type="low_rank", tol=1e-6, max_iter=1000, reg_covar=0).fit(X)
    assert automatic.mixture_.covariance.rank == 1
    assert automatic.lower_bound_ < same.lower_bound_ == pytest.approx(full.lower_bound_, abs=1e-3)


def test_a_structure_object():
    model = GaussianMixture(3, covariance_type=Tied(Diagonal()), random_state=0).fit(X)
    assert model.covariances_.shape == (3, 3)
    assert model.n_parameters_ == 2 + 9 + 3
    with pytest.raises(ValueError, match=r"precisions_init is for covariance_type 'full', 'tied', 'diag', 'spherical'"):
        model.set_params(precisions_init=np.eye(3)).fit(X)


class TestPriors:
    def test_default_survives_what_maximum_likelihood_does_not(self):
        rows = np.vstack([X, np.full((5, 3), 50.0)])
        with pytest.raises(ValueError, match="ill-defined empirical covariance"):
            quietly(GaussianMixture(4, reg_covar=0, random_state=0).fit, rows)
        model = quietly(GaussianMixture(4, prior="default", random_state=0).fit, rows)
        assert np.isfinite(model.score_samples(rows)).all()

    def test_default_does_not_depend_on_units(self):
        scale = np.array([1e6, 1.0, 1e-3])
        arguments = {"n_components": 1, "prior": "default", "random_state": 0}
        plain = GaussianMixture(**arguments).fit(X)
        scaled = GaussianMixture(**arguments).fit(X * scale)
        np.testing.assert_allclose(scaled.covariances_, plain.covariances_ * np.outer(scale, scale), rtol=1e-9)
        np.testing.assert_allclose(
            scaled.score_samples(X * scale), plain.score_samples(X) - np.log(scale).sum(), rtol=1e-9
        )

    def test_shrinks_as_its_formula_says(self):
        variances = np.array([1.0, 2.0, 3.0])
        model = GaussianMixture(prior=Conjugate(10.0, torch.from_numpy(variances)), reg_covar=0.7).fit(X)
        centred = X - X.mean(0)
        expected = (centred.T @ centred + 10 * np.diag(variances)) / (len(X) + 10)
        np.testing.assert_allclose(model.covariances_[0], expected, atol=1e-12)

    def test_unknown_prior(self):
        with pytest.raises(
            ValueError, match=r"prior must be one of 'default'.*, None or a prior object; got 'strong'\."
        ):
            GaussianMixture(prior="strong").fit(X)


class Batches:
    """Rows in parts, which can be iterated repeatedly."""

    def __init__(self, *arrays, size=50):
        self.arrays, self.size = arrays, size

    def __iter__(self):
        for start in range(0, len(self.arrays[0]), self.size):
            parts = tuple(a[start : start + self.size] for a in self.arrays)
            yield parts if len(parts) > 1 else parts[0]


GIVEN = {"weights_init": [0.2, 0.3, 0.5], "means_init": X[:3], "precisions_init": precisions("full")}


@pytest.fixture(scope="module")
def whole():
    return GaussianMixture(3, **GIVEN).fit(X)


class TestSources:
    def assert_same(self, model, whole):
        np.testing.assert_allclose(model.lower_bounds_, whole.lower_bounds_, atol=1e-10)
        np.testing.assert_allclose(model.covariances_, whole.covariances_, atol=1e-10)

    def test_batches(self, whole):
        self.assert_same(GaussianMixture(3, **GIVEN).fit(Batches(X)), whole)
        self.assert_same(GaussianMixture(3, **GIVEN).fit([(X[:100], None), (X[100:], None)]), whole)

    def test_batches_with_weights(self):
        weights = np.linspace(0.5, 2, len(X))
        batches = [(X[:100], None, weights[:100]), (X[100:], None, weights[100:])]
        self.assert_same(
            GaussianMixture(3, **GIVEN).fit(batches), GaussianMixture(3, **GIVEN).fit(X, sample_weight=weights)
        )

    def test_batches_without_a_given_start(self):
        model = GaussianMixture(3, random_state=0).fit(Batches(X))
        np.testing.assert_allclose(model.score(X), GaussianMixture(3, random_state=0).fit(X).score(X), atol=0.02)

    def test_batches_with_missing_values(self):
        rows = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
        self.assert_same(GaussianMixture(3, **GIVEN).fit(Batches(rows)), GaussianMixture(3, **GIVEN).fit(rows))

    @pytest.mark.parametrize("kind", [np.float64, np.float32])
    @pytest.mark.parametrize("given", [True, False])
    def test_memory_map(self, tmp_path, kind, given):
        np.save(tmp_path / "rows.npy", X.astype(kind))
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
        arguments = {"n_components": 3, **GIVEN} if given else {"n_components": 3, "random_state": 0}
        model = GaussianMixture(**arguments).fit(mapped)
        self.assert_same(model, GaussianMixture(**arguments).fit(X.astype(kind)))
        np.testing.assert_allclose(model.predict_proba(mapped), model.predict_proba(X.astype(kind)), atol=1e-12)

    def test_a_generator_can_be_read_only_once(self):
        with pytest.raises(
            ValueError, match=r"X is a generator, which can be iterated only once.* pass a list of batches"
        ):
            GaussianMixture().fit(part for part in [X, X])

    def test_no_batches(self):
        with pytest.raises(ValueError, match="X has no rows: it has no batches, or all of them are empty"):
            GaussianMixture().fit(Batches(X[:0]))

    def test_device_and_precision(self, device, dtype, whole):
        model = GaussianMixture(3, **GIVEN, device=device).fit(torch.from_numpy(X).to(dtype).numpy())
        assert model.mixture_.means.device.type == device.type
        np.testing.assert_allclose(
            model.lower_bound_, whole.lower_bound_, atol=1e-6 if dtype == torch.float64 else 1e-3
        )
        assert isinstance(model.predict_proba(X), np.ndarray)

    def test_memory_limit_changes_nothing(self, whole):
        self.assert_same(GaussianMixture(3, **GIVEN, memory_limit="1 MiB").fit(X), whole)


class TestInterrupted:
    """Ctrl-C keeps the best parameters so far and is raised again."""

    def interrupt_after(self, monkeypatch, n_steps):
        from mixtura.solvers import EM

        step, seen = EM.step, []

        def interrupted(self, mixture, rows):
            seen.append(mixture)
            if len(seen) > n_steps:
                raise KeyboardInterrupt
            return step(self, mixture, rows)

        monkeypatch.setattr(EM, "step", interrupted)

    def test_parameters_so_far_are_kept(self, monkeypatch):
        three = quietly(GaussianMixture(3, max_iter=3, tol=0, **GIVEN).fit, X)
        self.interrupt_after(monkeypatch, 3)
        model = GaussianMixture(3, tol=0, **GIVEN)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
        assert model.n_iter_ == 3
        assert not model.converged_
        np.testing.assert_array_equal(model.means_, three.means_)
        assert np.isfinite(model.score(X))

    def test_the_best_start_so_far_is_kept(self, monkeypatch):
        one = quietly(GaussianMixture(3, init_params="random", max_iter=5, tol=0, random_state=0).fit, X)
        self.interrupt_after(monkeypatch, 1 + 5 + 1 + 2)  # a step for each start, then the iterations
        model = GaussianMixture(3, init_params="random", max_iter=5, tol=0, n_init=4, random_state=0)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
        assert model.lower_bound_ >= one.lower_bound_
        assert np.isfinite(model.score(X))

    def test_between_two_starts(self, monkeypatch):
        one = quietly(GaussianMixture(3, init_params="random", max_iter=5, tol=0, random_state=0).fit, X)
        self.interrupt_after(monkeypatch, 1 + 5)
        model = GaussianMixture(3, init_params="random", max_iter=5, tol=0, n_init=4, random_state=0)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
        np.testing.assert_array_equal(model.means_, one.means_)


def test_repairs_are_named():
    collinear = np.hstack([X, X @ np.array([[1.0], [2.0], [3.0]])])
    with pytest.warns(
        RepairWarning,
        match="covariance of component 0 was not positive definite; a multiple of its diagonal was added",
    ) as caught:
        GaussianMixture(prior=Conjugate(1e-14, torch.ones(4, dtype=torch.float64))).fit(collinear)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda X: X[::-1].copy()[::-1],
        lambda X: X[:, ::-1].copy()[:, ::-1],
        np.asfortranarray,
        lambda X: X.repeat(2, 0)[::2],
    ],
)
def test_the_layout_of_an_array_does_not_matter(laid_out):
    X = load_iris().data
    model = GaussianMixture(2, random_state=0).fit(X)
    again = GaussianMixture(2, random_state=0).fit(laid_out(X))
    np.testing.assert_allclose(again.means_, model.means_, rtol=1e-9)
    np.testing.assert_allclose(model.predict_proba(laid_out(X)), model.predict_proba(X), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["diag", "spherical"])
def test_a_component_on_a_single_sample_keeps_the_variance_of_rounding(kind):
    X = np.random.default_rng(0).uniform(1, 2, size=(30, 2))
    X[0] = 100.0
    starts = {"means_init": [[100.0, 100.0], [1.5, 1.5]], "weights_init": [1 / 30, 29 / 30], "reg_covar": 0.0}
    starts["precisions_init"] = np.full((2, 2) if kind == "diag" else 2, 1e4)
    ours, theirs = (estimator(2, covariance_type=kind, **starts).fit(X) for estimator in (GaussianMixture, Theirs))
    assert (ours.covariances_[0] > 0).all()
    assert (ours.covariances_[0] < 1e-10).all()
    np.testing.assert_allclose(ours.covariances_[1], theirs.covariances_[1], rtol=1e-9)
    assert np.isfinite(ours.score_samples(X)).all()
