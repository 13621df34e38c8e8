"""A covariance structure that is not the library's own, through the estimators: by name and as an object."""

import numpy as np
import pytest

import mixtura
from example_covariance import CODE, Chain, ChainCovariance
from mixtura import DiscriminativeMixtureClassifier, GaussianMixture, MixtureClassifier
from mixtura.covariances import COVARIANCES, Tied, TiedCovariance
from mixtura.solvers import Gradient

N_FEATURES = 6


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(COVARIANCES, "chain", lambda rank: Chain())


@pytest.fixture(scope="module")
def data():
    """Two classes of random walks with the same means and variances: only the correlations separate them."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 300)
    steps = rng.normal(size=(600, N_FEATURES))
    sign = np.where(y == 0, 0.8, -0.8)
    X = steps.copy()
    for j in range(1, N_FEATURES):
        X[:, j] = sign * X[:, j - 1] + 0.6 * steps[:, j]
    return X, y


def with_holes(X):
    holes = np.random.default_rng(1).random(X.shape) < 0.3
    return np.where(holes, np.nan, X)


by_name_or_object = pytest.mark.parametrize("covariance_type", ["chain", Chain()], ids=["name", "object"])
SOLVERS = {
    "em": {"solver": "em"},
    "baum_welch": {"solver": "baum_welch", "objective": "conditional"},
    "gradient": {"solver": Gradient(optimiser="lbfgs"), "objective": "conditional", "max_iter": 5},
}
every_solver = pytest.mark.parametrize("arguments", SOLVERS.values(), ids=SOLVERS)


def test_it_has_at_most_forty_lines():
    classes = CODE[CODE.index("@storable") :]
    assert sum(bool(line.strip()) for line in classes.splitlines()) <= 40


@by_name_or_object
@every_solver
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_solver_fits_it(covariance_type, arguments, data):
    X, y = data
    model = MixtureClassifier(1, covariance_type=covariance_type, prior="default", random_state=0, **arguments)
    model.fit(X[::2], y[::2])
    assert isinstance(model.mixture_.covariance, ChainCovariance)
    values = [record.objective for record in model.history_]
    assert values[-1] >= values[0]
    assert model.score(X[1::2], y[1::2]) > 0.9
    blind = MixtureClassifier(1, covariance_type="diag", random_state=0).fit(X[::2], y[::2])
    assert blind.score(X[1::2], y[1::2]) < 0.7


@every_solver
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_missing_values_are_marginalised_at_fit_and_at_predict(arguments, data):
    X, y = data
    model = MixtureClassifier(1, covariance_type="chain", prior="default", random_state=0, **arguments)
    model.fit(with_holes(X[::2]), y[::2])
    assert model.score(with_holes(X[1::2]), y[1::2]) > 0.75
    imputed = model.impute(with_holes(X[1::2]))
    assert np.isfinite(imputed).all()
    assert np.mean((imputed - X[1::2]) ** 2) < 0.8 * np.mean((np.nan_to_num(with_holes(X[1::2])) - X[1::2]) ** 2)


@by_name_or_object
def test_it_is_saved_and_loaded(covariance_type, data, tmp_path):
    X, y = data
    model = MixtureClassifier(2, covariance_type=covariance_type, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    loaded = mixtura.load(tmp_path / "model")
    assert loaded.covariance_type == covariance_type
    assert isinstance(loaded.mixture_.covariance, ChainCovariance)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.n_parameters_ == model.n_parameters_ == 4 * (2 * N_FEATURES - 1 + N_FEATURES) + 3


def test_numbers_of_components_and_priors_are_chosen_for_it(data):
    X, y = data
    model = MixtureClassifier(covariance_type="chain", n_components="auto", prior="auto", random_state=0).fit(X, y)
    assert isinstance(model.mixture_.covariance, ChainCovariance)
    assert model.score(X, y) > 0.9


def test_components_share_it(data):
    X, y = data
    model = MixtureClassifier(2, covariance_type=Tied(Chain(), per_class=True), random_state=0).fit(X, y)
    assert isinstance(model.mixture_.covariance, TiedCovariance)
    assert model.mixture_.covariance.inner.n_components == 2
    assert model.score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_presets_and_densities_take_it(data):
    X, y = data
    preset = DiscriminativeMixtureClassifier(1, covariance_type="chain", random_state=0, max_iter=5).fit(X, y)
    assert isinstance(preset.mixture_.covariance, ChainCovariance)
    density = GaussianMixture(1, covariance_type="chain", random_state=0).fit(X[y == 0])
    full = GaussianMixture(1, random_state=0).fit(X[y == 0])
    assert full.score(X[y == 0]) - 0.05 < density.score(X[y == 0]) <= full.score(X[y == 0])
    assert density.n_parameters_ < full.n_parameters_
    draws, _ = density.sample(2000)
    np.testing.assert_allclose(np.cov(draws.T), density.covariances_[0], atol=0.15)
